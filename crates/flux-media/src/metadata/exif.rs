//! EXIF: writes a comment for other programs or an orientation, and reads the texts of other programs.

/// The tag with the position of the EXIF directory.
const DIRECTORY_OF_EXIF: u16 = 0x8769;
const USER_COMMENT: u16 = 0x9286;
const ORIENTATION: u16 = 0x0112;
/// The types of values in a directory.
const SHORT: u16 = 3;
const LONG: u16 = 4;
const UNDEFINED: u16 = 7;
/// The beginning of EXIF, with the position of the first directory.
const HEADER: &[u8] = b"MM\0\x2a\0\0\0\x08";
/// The tags of texts, and the keywords for the texts.
const TEXTS: [(u16, &str); 6] = [
    (0x010e, "ImageDescription"),
    (0x010f, "Make"),
    (0x0110, "Model"),
    (0x0131, "Software"),
    (XP_COMMENT, "XPComment"),
    (USER_COMMENT, super::USER_COMMENT),
];
/// A comment that Windows writes, in UTF-16.
const XP_COMMENT: u16 = 0x9c9c;
/// The first bytes of a UserComment, which identify its encoding.
const UTF_16: [u8; 8] = *b"UNICODE\0";
const ENCODINGS: [[u8; 8]; 3] = [*b"ASCII\0\0\0", *b"JIS\0\0\0\0\0", [0; 8]];

/// Returns EXIF with one UserComment in UTF-16, big endian as A1111 writes it.
pub(super) fn user_comment(comment: &str) -> Vec<u8> {
    let text = [&UTF_16[..], &comment.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<_>>()].concat();
    const DIRECTORY: u32 = 2 + 12 + 4;
    let (own, behind) = (8 + DIRECTORY, 8 + 2 * DIRECTORY);
    let exif_directory = directory(DIRECTORY_OF_EXIF, LONG, 1, own);
    let comment_entry = directory(USER_COMMENT, UNDEFINED, text.len() as u32, behind);
    [HEADER, &exif_directory, &comment_entry, &text].concat()
}

/// Returns EXIF with only an orientation, from 1 to 8.
pub(super) fn oriented(orientation: u8) -> Vec<u8> {
    // A value of two bytes is in the first two of four.
    [HEADER, &directory(ORIENTATION, SHORT, 1, u32::from(orientation) << 16)].concat()
}

/// Returns a directory with one entry: the number of entries, the entry, and the position of the next directory.
fn directory(tag: u16, kind: u16, count: u32, value: u32) -> Vec<u8> {
    let entry = [&tag.to_be_bytes()[..], &kind.to_be_bytes(), &count.to_be_bytes(), &value.to_be_bytes()];
    [&1u16.to_be_bytes()[..], &entry.concat(), &0u32.to_be_bytes()].concat()
}

/// Returns `true` if EXIF can be read, and holds no text in which programs store settings. Cameras write their own name
/// in some of these tags.
pub(super) fn is_free_of_settings(exif: &[u8]) -> bool {
    let is_tiff = Tiff::new(exif.strip_prefix(b"Exif\0\0").unwrap_or(exif)).is_some();
    let is_camera = |keyword: &str| matches!(keyword, "Make" | "Model" | "Software");
    is_tiff && texts(exif).iter().all(|(keyword, text)| text.is_empty() || is_camera(keyword) && !text.contains('{'))
}

/// Returns the texts of EXIF by their keywords, each tag once.
pub(super) fn texts(exif: &[u8]) -> Vec<(&'static str, String)> {
    let tiff = Tiff::new(exif.strip_prefix(b"Exif\0\0").unwrap_or(exif));
    let Some((tiff, first)) = tiff else { return Vec::new() };
    let mut own = Vec::new();
    let mut texts = tiff.directory(first, &mut own);
    if let Some(at) = own.first() {
        let more = tiff.directory(*at, &mut Vec::new());
        texts.extend(more.into_iter().filter(|(keyword, _)| *keyword == super::USER_COMMENT));
    }
    texts
}

/// The container of EXIF.
struct Tiff<'a> {
    bytes: &'a [u8],
    is_big_endian: bool,
}

impl<'a> Tiff<'a> {
    /// Reads the container, and the position of its first directory.
    fn new(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let is_big_endian = match bytes.first_chunk::<4>()? {
            b"MM\0\x2a" => true,
            b"II\x2a\0" => false,
            _ => return None,
        };
        let tiff = Self { bytes, is_big_endian };
        let first = tiff.long(4)?;
        Some((tiff, first))
    }

    fn short(&self, at: usize) -> Option<u16> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.is_big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    fn long(&self, at: usize) -> Option<usize> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) } as usize)
    }

    /// Returns the texts of a directory. If it has the position of the EXIF directory, that is added to `exif`.
    fn directory(&self, at: usize, exif: &mut Vec<usize>) -> Vec<(&'static str, String)> {
        let mut texts: Vec<(&'static str, String)> = Vec::new();
        let entries = self.short(at).map_or(0, usize::from);
        for entry in (0..entries).map(|entry| at + 2 + 12 * entry) {
            let Some(tag) = self.short(entry) else { break };
            if tag == DIRECTORY_OF_EXIF {
                exif.extend(self.long(entry + 8));
            }
            let Some((_, keyword)) = TEXTS.iter().find(|(known, _)| *known == tag) else { continue };
            let is_new = texts.iter().all(|(known, _)| known != keyword);
            if let Some(text) = self.value(entry).filter(|_| is_new).map(|bytes| self.text(tag, bytes)) {
                texts.push((*keyword, text));
            }
        }
        texts
    }

    /// Returns the bytes of an entry of a byte type.
    fn value(&self, entry: usize) -> Option<&'a [u8]> {
        if !matches!(self.short(entry + 2)?, 1 | 2 | 7) {
            return None;
        }
        let length = self.long(entry + 4)?;
        let at = if length <= 4 { entry + 8 } else { self.long(entry + 8)? };
        self.bytes.get(at..at.checked_add(length)?)
    }

    fn text(&self, tag: u16, bytes: &[u8]) -> String {
        let text = match (tag, bytes.split_first_chunk::<8>()) {
            (XP_COMMENT, _) => utf_16(bytes, false),
            (USER_COMMENT, Some((encoding, text))) if *encoding == UTF_16 => utf_16(text, self.is_big_endian),
            (USER_COMMENT, Some((encoding, text))) if ENCODINGS.contains(encoding) => lossy(text),
            _ => lossy(bytes),
        };
        text.trim_end_matches(['\0', ' ']).to_string()
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Decodes a text in UTF-16. The byte order comes from a mark, else from the zeros of Latin letters: some programs
/// write another byte order than that of the container. Some write UTF-8.
fn utf_16(bytes: &[u8], is_big_endian: bool) -> String {
    let zeros = |first: usize| bytes.iter().skip(first).step_by(2).filter(|byte| **byte == 0).count();
    let (high, low) = (zeros(0), zeros(1));
    if high + low == 0 && bytes.is_ascii() {
        return lossy(bytes);
    }
    let (is_big_endian, bytes) = match bytes {
        [0xfe, 0xff, text @ ..] => (true, text),
        [0xff, 0xfe, text @ ..] => (false, text),
        _ if high == low => (is_big_endian, bytes),
        _ => (high > low, bytes),
    };
    let (pairs, _) = bytes.as_chunks();
    let unit = |pair: &[u8; 2]| if is_big_endian { u16::from_be_bytes(*pair) } else { u16::from_le_bytes(*pair) };
    String::from_utf16_lossy(&pairs.iter().map(unit).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exif_leads_to_the_comment() {
        let exif = user_comment("a 🧀");
        let at = |at: usize| u32::from_be_bytes(exif[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(at(4), 8);
        let own = at(8 + 2 + 8);
        assert_eq!(exif[own + 2..own + 6], [0x92, 0x86, 0, 7]);
        let (length, text) = (at(own + 2 + 4), at(own + 2 + 8));
        assert_eq!((text + length, &exif[text..text + 8]), (exif.len(), &b"UNICODE\0"[..]));
        let units: Vec<u16> = exif[text + 8..].chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        assert_eq!(String::from_utf16(&units).unwrap(), "a 🧀");
    }

    /// EXIF with one comment, in either byte order.
    fn written(is_big_endian: bool, comment: &[u8]) -> Vec<u8> {
        let short = |value: u16| if is_big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
        let long = |value: u32| if is_big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
        let directory = |tag, kind, count: u32, value: u32| {
            [&short(1)[..], &short(tag), &short(kind), &long(count), &long(value), &long(0)].concat()
        };
        let header: &[u8] = if is_big_endian { b"MM\0\x2a" } else { b"II\x2a\0" };
        let comment_entry = directory(0x9286, 7, comment.len() as u32, 44);
        [header, &long(8), &directory(0x8769, 4, 1, 26), &comment_entry, comment].concat()
    }

    #[test]
    fn comments_of_every_encoding_and_byte_order_are_read() {
        let text = "a käse 🧀, Steps: 4";
        let units = |order: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(order).collect::<Vec<u8>>();
        let with = |encoding: &[u8], text: &[u8]| [encoding, text].concat();
        for is_big_endian in [true, false] {
            for comment in [
                with(&UTF_16, &units(u16::to_be_bytes)),
                with(&UTF_16, &units(u16::to_le_bytes)),
                with(b"UNICODE\0\xff\xfe", &units(u16::to_le_bytes)),
                with(b"ASCII\0\0\0", text.as_bytes()),
                with(&[0; 8], text.as_bytes()),
                with(text.as_bytes(), b"\0\0"),
            ] {
                let exif = written(is_big_endian, &comment);
                let expected = vec![(crate::metadata::USER_COMMENT, text.to_string())];
                assert_eq!(texts(&exif), expected, "{is_big_endian} {comment:?}");
                assert_eq!(texts(&with(b"Exif\0\0", &exif)), expected);
                for end in 0..exif.len() {
                    let _ = texts(&exif[..end]);
                }
            }
        }
        let ascii = written(true, b"UNICODE\0{\"a\": 1}");
        assert_eq!(texts(&ascii)[0].1, "{\"a\": 1}");
        // A directory that contains itself, and positions after the end.
        let mut circle = written(true, b"x");
        circle[18..22].copy_from_slice(&8u32.to_be_bytes());
        assert!(texts(&circle).is_empty());
        circle[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(texts(&circle).is_empty());
    }
}
