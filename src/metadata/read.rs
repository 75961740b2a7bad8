//! Reads what an image file says of itself: the recipe that this program wrote, and the text that others read.

use std::io::{Cursor, Read};

use flate2::read::ZlibDecoder;
use image_webp::WebPDecoder;

use super::{PARAMETERS, RECIPE, RECIPE_TAGS, XMP, XMP_HEADER, unescaped};
use crate::error::{Error, Result};
use crate::guard::guarded;

/// The longest text that is read, in bytes: a recipe with the longest prompt and all that it may carry is shorter.
const MAX_TEXT: u64 = 16 << 20;

/// What a file says of the image in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// How it is made again, as JSON.
    pub recipe: Option<String>,
    /// How it was made, in the words of A1111; of a PNG.
    pub parameters: Option<String>,
}

/// What the bytes of an image file say of it. Nothing of the pixels is decoded.
///
/// Errors when it is no PNG, JPEG or WebP.
pub fn said_by(file: &[u8]) -> Result<Said> {
    match file {
        [0x89, b'P', b'N', b'G', ..] => of_png(file),
        [0xff, 0xd8, ..] => Ok(of_xmp(xmp_of_jpeg(file))),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
            let xmp = || {
                let mut decoder = WebPDecoder::new(Cursor::new(file)).ok()?;
                decoder.set_memory_limit(MAX_TEXT as usize);
                decoder.xmp_metadata().ok().flatten()
            };
            Ok(of_xmp(guarded(xmp).ok().flatten().as_deref()))
        }
        _ => Err(Error::new("the file is no PNG, JPEG or WebP").hint("name an image that flux made")),
    }
}

fn of_xmp(xmp: Option<&[u8]>) -> Said {
    let text = String::from_utf8_lossy(xmp.unwrap_or_default());
    let [begin, end] = RECIPE_TAGS;
    let between = |begin: &str, end: &str| Some(text.split_once(begin)?.1.split_once(end)?.0);
    // Programs that write XMP anew may make an attribute of it.
    let recipe = between(begin, end).or_else(|| between("flux:Recipe=\"", "\"")).map(unescaped);
    Said { recipe, parameters: None }
}

/// The packet of XMP in front of the data of a JPEG.
fn xmp_of_jpeg(file: &[u8]) -> Option<&[u8]> {
    let mut at = 2;
    loop {
        let &[0xff, marker, high, low] = file.get(at..)?.first_chunk()? else { return None };
        if marker == 0xda {
            return None;
        }
        let end = at + 2 + usize::from(u16::from_be_bytes([high, low]));
        let segment = file.get(at + 4..end)?;
        if let Some(xmp) = segment.strip_prefix(XMP_HEADER).filter(|_| marker == 0xe1) {
            return Some(xmp);
        }
        at = end;
    }
}

/// What the texts of a PNG say, wherever they stand. A program that writes the file anew may keep XMP alone.
fn of_png(file: &[u8]) -> Result<Said> {
    let (mut said, mut xmp, mut at) = (Said::default(), None, 8);
    while let Some(&[a, b, c, d, ref kind @ ..]) = file.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let end = at + 12 + u32::from_be_bytes([a, b, c, d]) as usize;
        let Some(data) = file.get(at + 8..end.saturating_sub(4)) else { break };
        if let Some((keyword, text)) = text(kind, data)? {
            match keyword {
                RECIPE => said.recipe = Some(text),
                PARAMETERS => said.parameters = Some(text),
                XMP => xmp = Some(text),
                _ => {}
            }
        }
        at = end;
    }
    Ok(Said { recipe: said.recipe.or_else(|| of_xmp(xmp.as_deref().map(str::as_bytes)).recipe), ..said })
}

/// The keyword and the text of a chunk of text; none of a chunk that is none, or is damaged.
///
/// Errors when the text is longer than any that is read.
fn text<'a>(kind: &[u8; 4], data: &'a [u8]) -> Result<Option<(&'a str, String)>> {
    let Some((keyword, rest)) = split(data) else { return Ok(None) };
    let Ok(keyword) = str::from_utf8(keyword) else { return Ok(None) };
    let text = match kind {
        b"tEXt" => Some(latin_1(rest)),
        b"zTXt" => rest.get(1..).map(inflated).transpose()?.flatten().map(|text| latin_1(&text)),
        b"iTXt" => {
            let plain = || {
                let (&[is_compressed, _], rest) = rest.split_first_chunk()?;
                Some((is_compressed != 0, split(split(rest)?.1)?.1))
            };
            let bytes = match plain() {
                Some((true, text)) => inflated(text)?,
                Some((false, text)) => Some(text.to_vec()),
                None => None,
            };
            bytes.and_then(|bytes| String::from_utf8(bytes).ok())
        }
        _ => None,
    };
    Ok(text.map(|text| (keyword, text)))
}

/// What is in front of the first zero, and behind it.
fn split(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = data.iter().position(|byte| *byte == 0)?;
    Some((&data[..at], &data[at + 1..]))
}

fn latin_1(text: &[u8]) -> String {
    text.iter().map(|byte| char::from(*byte)).collect()
}

/// The bytes of a text; none where it is damaged.
///
/// Errors when it is longer than any that is read.
fn inflated(text: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    if ZlibDecoder::new(text).take(MAX_TEXT + 1).read_to_end(&mut bytes).is_err() {
        return Ok(None);
    }
    if bytes.len() as u64 > MAX_TEXT {
        return Err(Error::new(format!("a text of the file is longer than {} MiB", MAX_TEXT >> 20))
            .hint("no image of flux has such a text: name another file"));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{DigitalSource, Metadata};
    use crate::output::{ImageFormat, Rgb, encode};

    const FORMATS: [ImageFormat; 3] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Webp];

    fn encoded(format: ImageFormat, metadata: &Metadata) -> Vec<u8> {
        encode(&Rgb { width: 16, height: 8, bytes: vec![90; 16 * 8 * 3] }, format, metadata).unwrap()
    }

    #[test]
    fn a_recipe_is_read_back_from_every_format() {
        for json in [r#"{"prompt":"<a> & \"b\" 🧀\n"}"#, "{}"] {
            for source in [None, Some(DigitalSource::TrainedAlgorithmicMedia)] {
                let parameters = Some("a cat\nSteps: 4".to_string());
                let metadata = Metadata { recipe: Some(json.to_string()), parameters, source, ..Metadata::default() };
                for format in FORMATS {
                    let file = encoded(format, &metadata);
                    assert_eq!(said_by(&file).unwrap().recipe.as_deref(), Some(json), "{format:?}");
                    let says = file.windows(23).any(|bytes| bytes == b"trainedAlgorithmicMedia");
                    assert_eq!(says, source.is_some(), "{format:?}");
                    assert_eq!(crate::input::read_bytes(&file).unwrap().width, 16);
                }
                assert_eq!(said_by(&encoded(FORMATS[0], &metadata)).unwrap().parameters, metadata.parameters);
            }
        }
    }

    #[test]
    fn files_that_say_nothing_or_are_cut_off_have_no_recipe() {
        let metadata = Metadata { recipe: Some("{}".to_string()), ..Metadata::default() };
        for format in FORMATS {
            assert_eq!(said_by(&encoded(format, &Metadata::default())).unwrap(), Said::default());
            let file = encoded(format, &metadata);
            for length in 12..file.len() {
                let _ = said_by(&file[..length]).unwrap();
            }
        }
        assert!(said_by(b"GIF89a").is_err());
    }

    #[test]
    fn texts_of_a_png_may_be_compressed_and_of_either_kind() {
        let deflated = |text: &str| {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        fn text<'a>(kind: &[u8; 4], data: &'a [u8]) -> Option<(&'a str, String)> {
            super::text(kind, data).unwrap()
        }
        let wanted = Some(("flux", "{}".to_string()));
        assert_eq!(text(b"tEXt", b"flux\0{}"), wanted);
        assert_eq!(text(b"iTXt", b"flux\0\0\0\0\0{}"), wanted);
        assert_eq!(text(b"zTXt", &[b"flux\0\0", &deflated("{}")[..]].concat()), wanted);
        assert_eq!(text(b"iTXt", &[b"flux\0\x01\0\0\0", &deflated("{}")[..]].concat()), wanted);
        assert_eq!(text(b"IDAT", b"flux\0{}"), None);
        let long = deflated(&" ".repeat(MAX_TEXT as usize + 1));
        let error = super::text(b"zTXt", &[b"flux\0\0", &long[..]].concat()).unwrap_err();
        assert!(error.to_string().contains("16 MiB"), "{error}");
    }
}
