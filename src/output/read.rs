//! Reads a PNG.

use std::fs;
use std::io::BufReader;
use std::path::Path;

use super::Rgb;
use crate::error::{Error, Result};

/// Reads an 8-bit RGB PNG.
///
/// Errors when the file cannot be read, is no PNG, or has another kind of pixels.
pub fn read_png(path: &Path) -> Result<Rgb> {
    let file = fs::File::open(path).map_err(|e| Error::new(format!("cannot open the image: {e}")).at_path(path))?;
    let invalid = |e: png::DecodingError| Error::new(format!("cannot read the PNG: {e}")).at_path(path);
    let mut reader = png::Decoder::new(BufReader::new(file)).read_info().map_err(invalid)?;
    if reader.output_color_type() != (png::ColorType::Rgb, png::BitDepth::Eight) {
        return Err(
            Error::new(format!("pixels are {:?}, expected 8-bit RGB", reader.output_color_type())).at_path(path)
        );
    }
    let size = reader.output_buffer_size().ok_or_else(|| Error::new("the image is too large").at_path(path))?;
    let mut bytes = vec![0; size];
    let info = reader.next_frame(&mut bytes).map_err(invalid)?;
    Ok(Rgb { width: info.width as usize, height: info.height as usize, bytes })
}
