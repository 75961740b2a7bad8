//! Removes metadata from image files. Parts of a file are copied or left out, and pixels are never decoded.
//!
//! | | always removed | also removed with `all` |
//! |---|---|---|
//! | texts of a PNG | all but [`KEPT_TEXTS`] | all |
//! | XMP | all but the AI mark, if it holds a prompt or a recipe | all |
//! | EXIF | all but the orientation, if it holds settings of a program | all but the orientation |
//! | comments of a JPEG | all | all |
//! | C2PA manifests | if anything else is removed, which invalidates them | all |
//! | other parts | - | all that do not change the look of the image |

use flate2::Crc;
use image::metadata::Orientation;

use super::parts::{Chunk, SCAN, jpeg_segments, png_chunks, webp_chunks};
use super::read::{C2PA_CHUNKS, C2PA_SEGMENT, PROFILE, element, split, text, unpacked};
use super::{EXIF_HEADER, MARKS, MAX_TEXT, XMP, XMP_HEADER, exif, jpeg_metadata, packet, unescaped};
use flux_base::error::{Error, Result, shortened};

/// Keywords of texts that say nothing about how an image was made.
const KEPT_TEXTS: [&str; 6] = ["Title", "Author", "Copyright", "Creation Time", "Disclaimer", "Warning"];
/// Properties of XMP that hold prompts, recipes or descriptions, with any prefix.
const PRIVATE: [&str; 6] =
    [":Recipe", ":UserComment", ":AIPromptInformation", ":AIPromptWriterName", ":description", ":ImageDescription"];
/// The beginning of a segment that continues the XMP of a JPEG.
const XMP_EXTENSION: &[u8] = b"http://ns.adobe.com/xmp/extension/\0";
/// Chunks of a PNG that may change how it looks, in addition to those whose names begin with a capital letter.
const VISIBLE_PNG: [&[u8; 4]; 18] = [
    b"acTL", b"bKGD", b"cHRM", b"cICP", b"cLLI", b"cLLi", b"fcTL", b"fdAT", b"gAMA", b"hIST", b"iCCP", b"mDCV",
    b"mDCv", b"pHYs", b"sBIT", b"sPLT", b"sRGB", b"tRNS",
];
/// Chunks of a WebP that may change how it looks.
const VISIBLE_WEBP: [&[u8; 4]; 7] = [b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF", b"ICCP"];
/// Chunks of a WebP with pixels.
const PIXELS_WEBP: [&[u8; 4]; 3] = [b"VP8 ", b"VP8L", b"ANMF"];
/// The flags of EXIF and XMP in the header of a WebP.
const FLAGS_WEBP: [(&[u8; 4], u8); 2] = [(b"EXIF", 0x08), (b"XMP ", 0x04)];
/// The marker at the end of a JPEG.
const END_OF_JPEG: [u8; 2] = [0xff, 0xd9];
/// Bytes of a WebP before its first chunk, the longest of all formats.
const HEAD: usize = 12;
/// Maximum bytes of a mark.
const MAX_MARK: usize = 200;
/// Maximum number of names of removed parts, and maximum length of a name.
const MAX_NAMES: usize = 64;
const MAX_NAME: usize = 80;

/// A file without metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stripped {
    /// The bytes of the file.
    pub file: Vec<u8>,
    /// The names of the removed parts, each once.
    pub removed: Vec<String>,
}

/// The file in progress.
#[derive(Debug)]
struct Output {
    file: Vec<u8>,
    removed: Vec<String>,
    all: bool,
    /// `true` if C2PA manifests are kept, which hold only for unchanged files.
    keeps_manifests: bool,
    has_manifest: bool,
}

impl Output {
    /// Replaces a part of the file.
    fn replace(&mut self, name: &str, bytes: &[u8]) {
        self.file.extend_from_slice(bytes);
        if self.removed.len() < MAX_NAMES && !self.removed.iter().any(|known| known == name) {
            self.removed.push(name.to_string());
        }
    }

    /// Adds a part of the file, or the part in its place.
    fn add(&mut self, old: &[u8], new: Option<(String, Vec<u8>)>) {
        match new {
            Some((name, new)) => self.replace(&name, &new),
            None => self.file.extend_from_slice(old),
        }
    }

    fn add_manifest(&mut self, manifest: &[u8]) {
        self.has_manifest = true;
        match self.keeps_manifests {
            true => self.file.extend_from_slice(manifest),
            false => self.replace("the C2PA manifest", &[]),
        }
    }

    /// Removes data after an image, which readers ignore.
    fn end(&mut self, rest: &[u8]) {
        if !rest.is_empty() {
            self.replace("data after the image", &[]);
        }
    }
}

/// Removes recipes, prompts and settings from a PNG, JPEG or WebP, and with `all` everything but pixels, colour profile
/// and orientation.
///
/// Errors if the file is of another format, or is cut off or damaged.
pub fn strip(file: &[u8], all: bool) -> Result<Stripped> {
    let strip = |keeps_manifests: bool| -> Result<Output> {
        let head = HEAD.min(file.len());
        let (file_head, removed) = (file[..head].to_vec(), Vec::new());
        let mut out = Output { file: file_head, removed, all, keeps_manifests, has_manifest: false };
        match file {
            [0x89, b'P', b'N', b'G', ..] => strip_png(file, &mut out)?,
            [0xff, 0xd8, 0xff, ..] => strip_jpeg(file, &mut out)?,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => strip_webp(file, &mut out)?,
            _ => {
                let error = Error::new("the file is not a PNG, JPEG or WebP");
                return Err(error.hint("convert it to one of these formats"));
            }
        }
        Ok(out)
    };
    let mut out = strip(!all)?;
    if !all && out.has_manifest && !out.removed.is_empty() {
        out = strip(false)?;
    }
    Ok(Stripped { file: out.file, removed: out.removed })
}

fn damaged(format: &str) -> Error {
    Error::new(format!("the {format} is cut off or damaged")).hint("create or copy the file again")
}

/// Returns the EXIF in place of another one. `None` if that one can stay.
fn sifted_exif(old: &[u8], all: bool) -> Option<(String, Option<Vec<u8>>)> {
    let bare = old.strip_prefix(EXIF_HEADER).unwrap_or(old);
    let orientation = Orientation::from_exif_chunk(bare).filter(|turned| *turned != Orientation::NoTransforms);
    let new = orientation.map(|turned| exif::oriented(turned.to_exif()));
    if new.as_deref() == Some(bare) || !all && exif::is_free_of_settings(old) {
        return None;
    }
    let name = if new.is_some() { "EXIF except the orientation" } else { "EXIF" };
    Some((name.to_string(), new))
}

/// Returns the XMP in place of another one. `None` if that one can stay.
fn sifted_xmp(old: &str, all: bool) -> Option<(String, Option<String>)> {
    if !all && !PRIVATE.iter().any(|name| old.contains(name)) {
        return None;
    }
    let mark = |name| Some((name, unescaped(element(old, name)?.trim())));
    let marks: Vec<_> = MARKS.into_iter().filter_map(mark).filter(|(_, text)| text.len() <= MAX_MARK).collect();
    // The second mark is the source, without which the others do not say that a model made the image.
    let is_marked = !all && marks.iter().any(|(name, _)| *name == MARKS[1]);
    let new = is_marked.then(|| packet(marks.iter().map(|(name, text)| (*name, text.as_str()))));
    let name = if is_marked { "XMP except the AI mark" } else { "XMP" };
    Some((name.to_string(), new))
}

fn strip_png(file: &[u8], out: &mut Output) -> Result<()> {
    const HEAD: usize = 8;
    out.file.truncate(HEAD);
    let (mut left, mut at, mut has_pixels) = (MAX_TEXT, HEAD, false);
    for Chunk { kind, data, whole } in png_chunks(file) {
        if (at == HEAD) != (kind == b"IHDR") {
            break;
        }
        at += whole.len();
        has_pixels |= kind == b"IDAT";
        match C2PA_CHUNKS.contains(&kind) {
            true => out.add_manifest(whole),
            false => out.add(whole, sifted_chunk(kind, data, out.all, &mut left)?),
        }
        if kind == b"IEND" && has_pixels {
            out.end(&file[at..]);
            return Ok(());
        }
    }
    Err(damaged("PNG"))
}

/// Returns the name of a chunk of a PNG, and the bytes in its place. `None` if the chunk can stay.
fn sifted_chunk(kind: &[u8; 4], data: &[u8], all: bool, left: &mut u64) -> Result<Option<(String, Vec<u8>)>> {
    let exif_chunk =
        |(name, new): (String, Option<Vec<u8>>)| (name, new.map(|new| png_chunk(b"eXIf", &new)).unwrap_or_default());
    let xmp_chunk = |(name, new): (String, Option<String>)| {
        let data = |new: String| [XMP.as_bytes(), &[0; 5], new.as_bytes()].concat();
        (name, new.map(|new| png_chunk(b"iTXt", &data(new))).unwrap_or_default())
    };
    Ok(match kind {
        b"eXIf" => sifted_exif(data, all).map(exif_chunk),
        b"tEXt" | b"zTXt" | b"iTXt" => {
            let keyword = String::from_utf8_lossy(split(data).map_or(data, |(keyword, _)| keyword));
            match keyword.strip_prefix(PROFILE) {
                None if keyword == XMP => {
                    let packet = text(kind, data, left)?.map(|(_, packet)| packet);
                    let damaged = || Some(("XMP".to_string(), None));
                    packet.map_or_else(damaged, |old| sifted_xmp(&old, all)).map(xmp_chunk)
                }
                None if !all && KEPT_TEXTS.contains(&&*keyword) => None,
                None => Some((format!("text `{}`", shortened(&keyword, MAX_NAME)), Vec::new())),
                Some("icc" | "icm") => None,
                Some(profile) => {
                    let bytes = text(kind, data, left)?.and_then(|(_, text)| unpacked(&text)).unwrap_or_default();
                    match bytes.strip_prefix(XMP_HEADER).or((profile == "xmp").then_some(&bytes[..])) {
                        Some(old) => sifted_xmp(&String::from_utf8_lossy(old), all).map(xmp_chunk),
                        None => sifted_exif(&bytes, all).map(exif_chunk),
                    }
                }
            }
        }
        _ if all && kind[0].is_ascii_lowercase() && !VISIBLE_PNG.contains(&kind) => {
            Some((format!("chunk `{}`", kind.escape_ascii()), Vec::new()))
        }
        _ => None,
    })
}

/// Returns a chunk of a PNG with its checksum.
fn png_chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut sum = Crc::new();
    sum.update(kind);
    sum.update(data);
    [&(data.len() as u32).to_be_bytes()[..], kind, data, &sum.sum().to_be_bytes()].concat()
}

fn strip_jpeg(file: &[u8], out: &mut Output) -> Result<()> {
    out.file.truncate(2);
    let (all, mut keeps_xmp) = (out.all, false);
    for segment in jpeg_segments(file) {
        let (data, whole) = (segment.data, segment.whole);
        let new = match segment.marker {
            SCAN => {
                let pixels = &file[segment.at..];
                if !pixels.windows(2).any(|bytes| bytes == END_OF_JPEG) {
                    break;
                }
                out.file.extend_from_slice(pixels);
                return Ok(());
            }
            0xe1 if data.starts_with(EXIF_HEADER) => {
                sifted_exif(data, all).map(|(name, new)| (name, jpeg_metadata(new.as_deref(), None)))
            }
            0xe1 if data.starts_with(XMP_HEADER) => {
                let sifted = sifted_xmp(&String::from_utf8_lossy(&data[XMP_HEADER.len()..]), all);
                keeps_xmp |= sifted.is_none();
                sifted.map(|(name, new)| (name, jpeg_metadata(None, new.as_deref())))
            }
            // An extension belongs to a packet that is not kept.
            0xe1 if data.starts_with(XMP_EXTENSION) && !keeps_xmp => Some(("XMP".to_string(), Vec::new())),
            0xfe => Some(("comments".to_string(), Vec::new())),
            marker if marker == C2PA_SEGMENT.0 && data.starts_with(C2PA_SEGMENT.1) => {
                out.add_manifest(whole);
                continue;
            }
            // JFIF, the colour space, and the colour profile.
            0xe0 | 0xee => None,
            0xe2 if data.starts_with(b"ICC_PROFILE\0") => None,
            marker @ 0xe0..=0xef if all => Some((format!("segment APP{}", marker - 0xe0), Vec::new())),
            _ => None,
        };
        out.add(whole, new);
    }
    Err(damaged("JPEG"))
}

fn strip_webp(file: &[u8], out: &mut Output) -> Result<()> {
    let all = out.all;
    let length = file[4..].first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    // An odd length lacks a byte of padding.
    let image = file.get(..8 + length + length % 2).ok_or_else(|| damaged("WebP"))?;
    let (mut at, mut has_pixels) = (HEAD, false);
    for Chunk { kind, data, whole } in webp_chunks(image) {
        at += whole.len();
        has_pixels |= PIXELS_WEBP.contains(&kind);
        let chunk = |new: Option<Vec<u8>>| new.map(|new| webp_chunk(kind, &new)).unwrap_or_default();
        let new = match kind {
            b"EXIF" => sifted_exif(data, all).map(|(name, new)| (name, chunk(new))),
            b"XMP " => {
                let sifted = sifted_xmp(&String::from_utf8_lossy(data), all);
                sifted.map(|(name, new)| (name, chunk(new.map(String::into_bytes))))
            }
            _ if C2PA_CHUNKS.contains(&kind) => {
                out.add_manifest(whole);
                continue;
            }
            _ if all && !VISIBLE_WEBP.contains(&kind) => Some((format!("chunk `{}`", kind.escape_ascii()), Vec::new())),
            _ => None,
        };
        out.add(whole, new);
    }
    if at != image.len() || !has_pixels {
        return Err(damaged("WebP"));
    }
    out.end(&file[at..]);
    let length = (out.file.len() - 8) as u32;
    out.file[4..8].copy_from_slice(&length.to_le_bytes());
    let is_extended =
        webp_chunks(&out.file).next().is_some_and(|first| first.kind == b"VP8X" && !first.data.is_empty());
    for (kind, flag) in FLAGS_WEBP.iter().filter(|_| is_extended) {
        if !webp_chunks(&out.file).any(|chunk| chunk.kind == *kind) {
            out.file[HEAD + 8] &= !flag;
        }
    }
    Ok(())
}

/// Returns a chunk of a WebP.
fn webp_chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    [&kind[..], &(data.len() as u32).to_le_bytes(), data, &[0][..data.len() % 2]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{pixel_digest, read_bytes, upright_size};
    use crate::metadata::{DigitalSource, Metadata, Said, said_by};
    use crate::output::{ImageFormat, encode};
    use crate::rgb::Rgb;

    const FORMATS: [ImageFormat; 3] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Webp];

    fn image() -> Rgb {
        Rgb { width: 16, height: 8, bytes: (0..16 * 8 * 3).map(|i| (i * 7 % 251) as u8).collect() }
    }

    /// The metadata of a generated image.
    fn whole() -> Metadata {
        let prompt = "a secret cat".to_string();
        Metadata {
            texts: vec![("Description", prompt.clone()), ("model", "/home/me/secret".to_string())],
            recipe: Some(format!("{{\"prompt\":\"{prompt}\"}}")),
            parameters: Some(prompt.clone()),
            prompt: Some(prompt),
            source: Some(DigitalSource::TrainedAlgorithmicMedia),
        }
    }

    fn has(file: &[u8], word: &str) -> bool {
        let utf_16: Vec<u8> = word.encode_utf16().flat_map(u16::to_be_bytes).collect();
        [word.as_bytes(), &utf_16].iter().any(|word| file.windows(word.len()).any(|bytes| bytes == *word))
    }

    #[test]
    fn the_file_of_an_image_without_a_recipe_is_left() {
        let marked = Metadata { source: whole().source, ..Metadata::default() };
        for format in FORMATS {
            let file = encode(&image(), format, &whole()).unwrap();
            assert!(has(&file, "secret"), "{format}");
            let Stripped { file: left, removed } = strip(&file, false).unwrap();
            assert!(!has(&left, "secret") && has(&left, "trainedAlgorithmicMedia"), "{format}: {removed:?}");
            assert_eq!(left, encode(&image(), format, &marked).unwrap(), "{format}");
            assert_eq!(strip(&left, false).unwrap(), Stripped { file: left.clone(), removed: Vec::new() });
            let all = strip(&file, true).unwrap().file;
            assert!(!has(&all, "Media") && !has(&all, "flux"), "{format}");
            for left in [&left, &all] {
                assert_eq!(pixel_digest(left).unwrap(), pixel_digest(&file).unwrap(), "{format}");
                assert_eq!(read_bytes(left).unwrap(), read_bytes(&file).unwrap(), "{format}");
            }
            assert_eq!(said_by(&all).unwrap(), Said::default(), "{format}");
        }
    }

    /// Inserts parts after the first chunk or segment of a file.
    fn with_parts(file: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        let at = match file {
            [0x89, ..] => 33,
            [0xff, ..] => 20,
            _ => file.len(),
        };
        let mut file = [&file[..at], &parts.concat(), &file[at..]].concat();
        if file.starts_with(b"RIFF") {
            let length = (file.len() - 8) as u32;
            file[4..8].copy_from_slice(&length.to_le_bytes());
        }
        file
    }

    /// EXIF of an image on its side, with a text in which programs store settings.
    fn turned(comment: &str) -> Vec<u8> {
        let mut exif = exif::oriented(6);
        exif[9] = 2;
        let entry = [&[0x01, 0x0e, 0, 2][..], &(comment.len() as u32).to_be_bytes(), &38u32.to_be_bytes()].concat();
        exif.splice(22..22, entry);
        [exif, comment.as_bytes().to_vec()].concat()
    }

    #[test]
    fn colour_profiles_and_the_orientation_stay() {
        let exif = turned("prompt: secret");
        let jpeg =
            |marker: u8, data: &[u8]| [&[0xff, marker][..], &(data.len() as u16 + 2).to_be_bytes(), data].concat();
        for (format, parts) in [
            (ImageFormat::Png, [png_chunk(b"iCCP", b"p\0\0x"), png_chunk(b"eXIf", &exif)]),
            (ImageFormat::Jpeg, [jpeg(0xe2, b"ICC_PROFILE\0\x01\x01p"), jpeg(0xe1, &[EXIF_HEADER, &exif].concat())]),
            (ImageFormat::Webp, [webp_chunk(b"ICCP", b"p"), webp_chunk(b"EXIF", &exif)]),
        ] {
            let plain = encode(&image(), format, &Metadata { parameters: None, ..whole() }).unwrap();
            let file = with_parts(&plain, &[&parts[0], &parts[1]]);
            assert!(has(&file, "prompt: secret"));
            for all in [false, true] {
                let Stripped { file: left, removed } = strip(&file, all).unwrap();
                assert!(left.windows(parts[0].len()).any(|bytes| bytes == parts[0]), "{format}: the profile");
                assert!(!has(&left, "secret"), "{format}");
                assert!(removed.iter().any(|name| name == "EXIF except the orientation"), "{format}: {removed:?}");
                if format != ImageFormat::Webp {
                    assert_eq!(upright_size(&left).unwrap(), [8, 16], "{format}");
                }
                assert!(has(&left, str::from_utf8(&exif::oriented(6)[..10]).unwrap()), "{format}");
            }
        }
        assert_eq!(sifted_exif(&turned(""), false), None, "an empty description");
        assert_eq!(sifted_exif(&exif::oriented(6), true), None);
        assert_eq!(sifted_exif(b"no EXIF", false), Some(("EXIF".to_string(), None)));
    }

    #[test]
    fn a_manifest_stays_in_an_unchanged_file_alone() {
        let manifest = png_chunk(b"caBX", b"jumb c2pa");
        let plain = encode(&image(), ImageFormat::Png, &Metadata { source: whole().source, ..Metadata::default() });
        let file = with_parts(&plain.unwrap(), &[&manifest]);
        assert!(said_by(&file).unwrap().has_c2pa);
        assert_eq!(strip(&file, false).unwrap(), Stripped { file: file.clone(), removed: Vec::new() });
        let text = png_chunk(b"tEXt", b"prompt\0{}");
        for (file, all) in [(with_parts(&file, &[&text]), false), (file, true)] {
            let Stripped { file: left, removed } = strip(&file, all).unwrap();
            assert!(!said_by(&left).unwrap().has_c2pa && removed.contains(&"the C2PA manifest".to_string()));
        }
        let segment = [&[0xff, 0xeb, 0, 12][..], b"JP\0\x01jumb01"].concat();
        let jpeg = with_parts(&encode(&image(), ImageFormat::Jpeg, &Metadata::default()).unwrap(), &[&segment]);
        assert!(said_by(&jpeg).unwrap().has_c2pa && strip(&jpeg, false).unwrap().file == jpeg);
    }

    #[test]
    fn a_text_of_the_author_stays_and_data_after_the_image_does_not() {
        let plain = encode(&image(), ImageFormat::Png, &Metadata::default()).unwrap();
        let [own, other] = [&b"Copyright\0me"[..], b"Dream\0secret"].map(|text| png_chunk(b"tEXt", text));
        let file = [with_parts(&plain, &[&own, &other]), other.clone()].concat();
        let Stripped { file: left, removed } = strip(&file, false).unwrap();
        assert_eq!((left, removed.len()), (with_parts(&plain, &[&own]), 2), "{removed:?}");
        assert_eq!(strip(&file, true).unwrap().file, plain);
    }

    #[test]
    fn a_file_that_is_cut_off_is_refused() {
        for format in FORMATS {
            let file = encode(&image(), format, &whole()).unwrap();
            for length in 0..file.len() {
                assert!(strip(&file[..length], false).is_err(), "{format}: {length} of {} bytes", file.len());
            }
        }
        assert!(strip(b"GIF89a", true).is_err());
    }

    #[test]
    fn another_program_s_mark_stays_without_its_prompt() {
        let xmp = |rest: &str| {
            let source = "Iptc4xmpExt:DigitalSourceType=\"http://cv.iptc.org/x/compositeSynthetic\"";
            format!("<x><rdf:Description {source} xmp:CreatorTool=\"a &amp; b\"/>{rest}</x>")
        };
        assert_eq!(sifted_xmp(&xmp(""), false), None);
        let (_, new) = sifted_xmp(&xmp("<dc:description>secret</dc:description>"), false).unwrap();
        let new = new.unwrap();
        assert!(new.contains("compositeSynthetic") && new.contains("a &amp; b") && !new.contains("secret"), "{new}");
        assert_eq!(sifted_xmp("<exif:UserComment>secret</exif:UserComment>", false).unwrap().1, None);
    }
}
