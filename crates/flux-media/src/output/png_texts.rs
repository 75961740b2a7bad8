//! Adds texts to encoded PNGs.

use crate::metadata::parts::png_chunks;
use crate::metadata::read::C2PA_CHUNKS;
use flux_base::error::{Error, Result};

/// Bytes of the signature and of the first chunk, which contains the size.
const HEAD: usize = 8 + 25;
/// Bytes of a chunk without data, such as the last one.
const EMPTY_CHUNK: usize = 12;

/// Adds texts to a PNG, before its pixels. Other files are returned unchanged, and so are files with a C2PA manifest,
/// which would no longer hold.
///
/// Errors if a keyword or a text is not Latin-1.
pub fn with_png_texts(file: &[u8], texts: &[(&str, &str)]) -> Result<Vec<u8>> {
    let png = file.split_at_checked(HEAD).filter(|(head, _)| head.starts_with(b"\x89PNG"));
    let Some((head, rest)) = png.filter(|_| !png_chunks(file).any(|chunk| C2PA_CHUNKS.contains(&chunk.kind))) else {
        return Ok(file.to_vec());
    };
    Ok([head, &chunks(texts)?, rest].concat())
}

/// Copies the texts of another PNG, such as the recipe, to a PNG, before its pixels.
pub fn with_png_texts_of(file: &[u8], other: &[u8]) -> Vec<u8> {
    let before = png_chunks(other).take_while(|chunk| chunk.kind != b"IDAT");
    let texts = before.filter(|chunk| matches!(chunk.kind, b"tEXt" | b"iTXt" | b"zTXt"));
    let texts: Vec<u8> = texts.flat_map(|chunk| chunk.whole).copied().collect();
    let head = HEAD.min(file.len());
    [&file[..head], &texts, &file[head..]].concat()
}

/// Returns the chunks of texts, from a PNG without pixels.
fn chunks(texts: &[(&str, &str)]) -> Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, 1, 1);
    let mut added = Ok(());
    for (keyword, text) in texts {
        added = added.and_then(|()| encoder.add_text_chunk(keyword.to_string(), text.to_string()));
    }
    // The last chunk is written when the writer is dropped.
    added.and_then(|()| encoder.write_header().map(drop)).map_err(|e| Error::new(format!("invalid PNG text: {e}")))?;
    Ok(file[HEAD..file.len() - EMPTY_CHUNK].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input;
    use crate::metadata::Metadata;
    use crate::output::{ImageFormat, encode};
    use crate::rgb::Rgb;

    fn texts(file: &[u8]) -> Vec<(String, String)> {
        let reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        reader.info().uncompressed_latin1_text.iter().map(|text| (text.keyword.clone(), text.text.clone())).collect()
    }

    #[test]
    fn texts_are_added_to_a_file_and_taken_from_another_one() {
        let image = Rgb { width: 2, height: 1, bytes: vec![1, 2, 3, 4, 5, 6] };
        let file = encode(&image, ImageFormat::Png, &Metadata::default()).unwrap();
        let written = with_png_texts(&file, &[("prompt", "{}"), ("workflow", "[1]")]).unwrap();
        let expected = [("prompt", "{}"), ("workflow", "[1]")].map(|(a, b)| (a.to_string(), b.to_string()));
        assert_eq!(texts(&written), expected);
        assert_eq!(input::read_bytes(&written).unwrap().bytes, image.bytes);
        assert_eq!(with_png_texts_of(&file, &written), written);
        assert_eq!(with_png_texts(b"no PNG", &[("prompt", "{}")]).unwrap(), b"no PNG");
        assert!(with_png_texts(&file, &[("prompt", "\u{4e00}")]).is_err());
        assert_eq!(with_png_texts_of(&file, &written[..40]), file, "a truncated file");
    }
}
