//! Reads a PNG.

use std::io::{BufReader, ErrorKind};
use std::path::Path;

use png::{BitDepth, ColorType, Decoder, DecodingError};

use crate::error::{Error, Result};
use crate::files::regular;
use crate::rgb::Rgb;

/// The longest side of an image that is read, in pixels; with three bytes a pixel an image stays below 1 GiB. A small
/// file may claim to be far larger.
const MAX_SIDE: usize = 16384;

/// Reads an 8-bit RGB PNG.
///
/// Errors when the file cannot be read, is no PNG, is cut off, has another kind of pixels, or is larger than 16384 x
/// 16384.
pub fn read_png(path: &Path) -> Result<Rgb> {
    read(path).map_err(|e| e.at_path(path))
}

fn read(path: &Path) -> Result<Rgb> {
    let file = regular::open(path, "name an image that is there")?;
    let mut decoder = Decoder::new(BufReader::new(file));
    // Before anything is allocated for the pixels.
    let header = decoder.read_header_info().map_err(unreadable)?;
    let (width, height) = (header.width as usize, header.height as usize);
    if width.max(height) > MAX_SIDE {
        return Err(Error::new(format!("the PNG is {width}x{height}, expected at most {MAX_SIDE}x{MAX_SIDE}"))
            .hint("scale it down"));
    }
    let mut reader = decoder.read_info().map_err(unreadable)?;
    let (color, depth) = reader.output_color_type();
    if (color, depth) != (ColorType::Rgb, BitDepth::Eight) {
        let bits = depth as u8;
        return Err(Error::new(format!("pixels are {bits}-bit {color:?}, expected 8-bit RGB"))
            .hint("convert it, as with `magick IN.png PNG24:OUT.png`"));
    }
    let size = width * height * color.samples();
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(size)
        .map_err(|_| Error::new(format!("there is no memory for the {width}x{height} pixels of the PNG")))
        .map_err(|e| e.hint("scale it down, or give the program more memory"))?;
    bytes.resize(size, 0);
    reader.next_frame(&mut bytes).map_err(unreadable)?;
    Ok(Rgb { width, height, bytes })
}

fn unreadable(cause: DecodingError) -> Error {
    match cause {
        DecodingError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => {
            Error::new("cannot read the PNG: the file is cut off").hint("make the image again, or copy it again")
        }
        DecodingError::IoError(e) => {
            Error::new(format!("cannot read the PNG: {e}")).hint("is the disk or network share that holds it in order?")
        }
        e => {
            Error::new(format!("cannot read the PNG: {e}")).hint("name a PNG that is whole; other formats are not read")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A PNG of 8 x 8 pixels, of which only what the caller changes is wrong.
    fn encoded(color: ColorType, depth: BitDepth) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 8, 8);
        encoder.set_color(color);
        encoder.set_depth(depth);
        let bytes = vec![7; 8 * (8 * color.samples() * depth as usize).div_ceil(8)];
        encoder.write_header().unwrap().write_image_data(&bytes).unwrap();
        file
    }

    /// The bytes with another size in the header, and its checksum.
    fn claiming(width: u32, height: u32) -> Vec<u8> {
        let mut file = encoded(ColorType::Rgb, BitDepth::Eight);
        file[16..20].copy_from_slice(&width.to_be_bytes());
        file[20..24].copy_from_slice(&height.to_be_bytes());
        let sum = crc32(&file[12..29]);
        file[29..33].copy_from_slice(&sum.to_be_bytes());
        file
    }

    fn crc32(bytes: &[u8]) -> u32 {
        let mut sum = flate2::Crc::new();
        sum.update(bytes);
        sum.sum()
    }

    fn refused(bytes: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.png");
        fs::write(&path, bytes).unwrap();
        let error = read_png(&path).unwrap_err().to_string();
        assert!(error.contains("in.png") && error.contains("hint: "), "{error}");
        error
    }

    #[test]
    fn a_size_beyond_the_bound_is_refused_before_memory_is_taken() {
        for (width, height) in [(60_000, 60_000), (16_385, 1), (1, i32::MAX as u32)] {
            let error = refused(&claiming(width, height));
            assert!(error.contains(&format!("{width}x{height}, expected at most 16384x16384")), "{error}");
        }
        assert!(refused(&claiming(9, 8)).contains("cannot read the PNG"), "of rows that are too short");
    }

    #[test]
    fn a_file_that_is_cut_off_says_so() {
        let whole = encoded(ColorType::Rgb, BitDepth::Eight);
        for keep in [0, 7, 20, 40, whole.len() - 14] {
            let error = refused(&whole[..keep]);
            assert!(error.contains("cut off"), "at {keep}: {error}");
        }
    }

    #[test]
    fn other_kinds_of_pixels_are_named_with_a_remedy() {
        for (color, depth, words) in [
            (ColorType::Rgba, BitDepth::Eight, "8-bit Rgba"),
            (ColorType::Grayscale, BitDepth::One, "1-bit Grayscale"),
            (ColorType::Rgb, BitDepth::Sixteen, "16-bit Rgb"),
        ] {
            let error = refused(&encoded(color, depth));
            assert!(error.contains(words) && error.contains("PNG24:"), "{error}");
        }
        assert!(refused(b"\xff\xd8\xff\xe0 a JPEG file").contains("other formats are not read"));
    }
}
