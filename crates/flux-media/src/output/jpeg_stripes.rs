//! JPEG encoding in stripes on several cores: each stripe begins with a restart marker, so it is independent of the
//! previous ones.

use jpeg_encoder::{ColorType, Encoder, EncodingError, SamplingFactor};
use rayon::prelude::*;

use super::does_not_fit;
use crate::metadata::parts::{SCAN, jpeg_segments};
use crate::rgb::Rgb;
use flux_base::error::{Error, Result};

/// Pixels on a side of a block. Colours have the resolution of brightness, so one block of each makes an MCU.
const BLOCK: usize = 8;
/// Rows of a stripe. The file does not depend on the number of cores.
const ROWS: usize = 8 * BLOCK;
const FRAME_HEADER: u8 = 0xc0;
const RESTART: u8 = 0xd0;
const END: [u8; 2] = [0xff, 0xd9];
const QUANTIZATION: u8 = 0xdb;

/// Encodes a JPEG of a quality from 1 to 100, without metadata.
///
/// Errors if the format cannot hold the size, or if the image does not have the bytes of its size.
pub fn encode(image: &Rgb, quality: u8) -> Result<Vec<u8>> {
    let side = |pixels: usize| u16::try_from(pixels).ok().filter(|side| *side > 0).ok_or_else(|| does_not_fit(image));
    let [width, height] = [side(image.width)?, side(image.height)?];
    if image.bytes.len() != 3 * image.width * image.height {
        return Err(Error::new(format!("an image of {width} x {height} pixels has {} bytes", image.bytes.len())));
    }
    let failed = |e: EncodingError| Error::new(format!("cannot encode the image: {e}"));
    // The file format stores the interval in 16 bits.
    let interval = u16::try_from(image.width.div_ceil(BLOCK) * (ROWS / BLOCK)).ok();
    let Some(interval) = interval.filter(|_| image.height > ROWS) else {
        return stripe(&image.bytes, [width, height], quality, None).map_err(failed);
    };
    let stripes: Vec<&[u8]> = image.bytes.chunks(3 * image.width * ROWS).collect();
    let encode = |bytes: &&[u8]| {
        let rows = (bytes.len() / (3 * image.width)) as u16;
        stripe(bytes, [width, rows], quality, Some(interval))
    };
    let files = stripes.par_iter().map(encode).collect::<std::result::Result<Vec<_>, _>>().map_err(failed)?;
    joined(&files, height).ok_or_else(|| Error::new("cannot encode the image: a stripe is not a valid JPEG"))
}

/// Encodes these rows as a JPEG of their own.
fn stripe(
    bytes: &[u8],
    [width, rows]: [u16; 2],
    quality: u8,
    interval: Option<u16>,
) -> std::result::Result<Vec<u8>, EncodingError> {
    let mut file = Vec::with_capacity(bytes.len() / 2);
    let mut encoder = Encoder::new(&mut file, quality);
    // Colours at full resolution, because subsampling is visible at edges between strong colours.
    encoder.set_sampling_factor(SamplingFactor::F_1_1);
    interval.into_iter().for_each(|interval| encoder.set_restart_interval(interval));
    encoder.encode(bytes, width, rows, ColorType::Rgb)?;
    Ok(file)
}

/// Joins the scan data of all files to the first file, of `height` rows. `None` if one is no JPEG.
fn joined(files: &[Vec<u8>], height: u16) -> Option<Vec<u8>> {
    let mut whole = Vec::with_capacity(files.iter().map(Vec::len).sum());
    for (number, file) in files.iter().enumerate() {
        let (frame, scan) = headers(file)?;
        let coded = file.get(scan..)?.strip_suffix(&END)?;
        if number == 0 {
            whole.extend_from_slice(&file[..scan]);
            // The height follows the marker, the length and the precision.
            whole[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
        } else {
            whole.extend([0xff, RESTART + ((number - 1) % 8) as u8]);
        }
        whole.extend_from_slice(coded);
    }
    whole.extend(END);
    Some(whole)
}

/// Returns the start of a JPEG's frame header, and the end of its scan header.
fn headers(file: &[u8]) -> Option<(usize, usize)> {
    let frame = jpeg_segments(file).find(|segment| segment.marker == FRAME_HEADER)?;
    let scan = jpeg_segments(file).find(|segment| segment.marker == SCAN)?;
    Some((frame.at, scan.end()))
}

/// Returns the quality of a JPEG from [`encode`], by its quantization tables. `None` if they are of another program.
pub fn jpeg_quality(file: &[u8]) -> Option<u8> {
    let tables = |file: &[u8]| {
        let tables = jpeg_segments(file).filter(|segment| segment.marker == QUANTIZATION);
        tables.map(|table| table.data.to_vec()).collect::<Vec<_>>()
    };
    let own = tables(file);
    (1..=100).rev().find(|quality| stripe(&[0; 3], [1, 1], *quality, None).is_ok_and(|file| tables(&file) == own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;
    use crate::output::encode_jpeg;

    /// Decodes a JPEG.
    fn decoded(file: &[u8]) -> Rgb {
        crate::input::read_bytes(file).unwrap()
    }

    #[test]
    fn stripes_hold_the_pixels_of_a_file_without_them() {
        for (width, height) in [(1, 1), (40, 64), (40, 65), (33, 128), (24, 200), (16, 700), (8, 1200)] {
            let value = |i: usize| (i * i % 251) as u8 / 2 + (i / 97 % 120) as u8;
            let image = Rgb { width, height, bytes: (0..3 * width * height).map(value).collect() };
            let whole = stripe(&image.bytes, [width as u16, height as u16], 90, None).unwrap();
            let file = encode_jpeg(&image, 90, &Metadata::default()).unwrap();
            assert!(decoded(&file) == decoded(&whole), "{width} x {height}");
            let restarts = file.windows(2).filter(|bytes| bytes[0] == 0xff && (0xd0..0xd8).contains(&bytes[1])).count();
            assert_eq!(restarts, (height - 1) / ROWS, "{width} x {height}");
        }
    }

    #[test]
    fn a_file_says_of_itself_what_one_without_stripes_does() {
        let image = Rgb { width: 16, height: 80, bytes: vec![7; 3 * 16 * 80] };
        let metadata = Metadata { recipe: Some("a program".to_string()), ..Metadata::default() };
        let file = encode_jpeg(&image, 90, &metadata).unwrap();
        assert_eq!(decoded(&file).height, 80);
        assert!(file.windows(9).any(|bytes| bytes == b"a program"));
    }

    #[test]
    fn the_quality_of_a_file_is_read_from_its_tables() {
        let image = Rgb { width: 16, height: 80, bytes: vec![7; 3 * 16 * 80] };
        for quality in [1, 50, 87, 95, 100] {
            assert_eq!(jpeg_quality(&encode(&image, quality).unwrap()), Some(quality));
        }
        assert_eq!(jpeg_quality(b"\xff\xd8"), None);
    }

    #[test]
    fn an_image_without_pixels_does_not_fit() {
        let nothing = Rgb { width: 0, height: 5, bytes: Vec::new() };
        assert!(encode_jpeg(&nothing, 90, &Metadata::default()).is_err());
        let wide = Rgb { width: 70_000, height: 1, bytes: vec![0; 3 * 70_000] };
        assert!(encode_jpeg(&wide, 90, &Metadata::default()).unwrap_err().to_string().contains("does not fit"));
    }

    #[test]
    fn an_image_has_the_bytes_of_its_size() {
        for (rows, bytes) in [(80, 0), (80, 3 * 16 * 79), (80, 3 * 16 * 81), (8, 0)] {
            let image = Rgb { width: 16, height: rows, bytes: vec![0; bytes] };
            assert!(encode_jpeg(&image, 90, &Metadata::default()).is_err(), "{rows} rows, {bytes} bytes");
        }
    }
}
