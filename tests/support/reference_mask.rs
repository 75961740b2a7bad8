//! The latents that the reference regenerates under a mask. The program decides differently, because the reference
//! loses small details: tests that compare with the reference's images use this.

use std::io::Cursor;

use flux::input::{lanczos, read_bytes};
use png::{BitDepth, ColorType, Decoder};

/// Returns the brightness of the mask in a PNG, [height, width], in another size. It is scaled in colour; masks with a
/// palette or one bit are scaled without intermediate values.
pub fn grey(png: &[u8], [width, height]: [usize; 2]) -> Vec<u8> {
    let image = read_bytes(png).expect("a mask");
    let header = Decoder::new(Cursor::new(png)).read_info().expect("a PNG");
    let indexed = header.info().color_type == ColorType::Indexed || header.info().bit_depth == BitDepth::One;
    let bytes = if indexed {
        let (columns, rows) = (places(image.width, width), places(image.height, height));
        let pixels = rows.iter().flat_map(|y| columns.iter().map(move |x| 3 * (y * image.width + x)));
        pixels.flat_map(|at| &image.bytes[at..at + 3]).copied().collect()
    } else {
        lanczos::resize::<3>(&image.bytes, [image.width, image.height], [width, height])
    };
    bytes.chunks_exact(3).map(brightness).collect()
}

/// Returns the white share of each cell's middle, row by row, for cells of 16 x 16 pixels. Pixels count as white from
/// 128 on, and the middle is the four pixels around the center, because the reference shrinks the mask by bilinear
/// interpolation.
pub fn cells(grey: &[u8], width: usize) -> Vec<f32> {
    let white = |x: usize, y: usize| u8::from(grey[y * width + x] >= 128);
    let of = |x: usize, y: usize| white(x, y) + white(x + 1, y) + white(x, y + 1) + white(x + 1, y + 1);
    let rows = (7..grey.len() / width).step_by(16);
    rows.flat_map(|y| (7..width).step_by(16).map(move |x| f32::from(of(x, y)) / 4.0)).collect()
}

/// Returns the brightness of a pixel. Source: ITU-R BT.601, in the integer arithmetic of Pillow.
fn brightness(pixel: &[u8]) -> u8 {
    let [red, green, blue] = [0, 1, 2].map(|channel| u32::from(pixel[channel]));
    ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16) as u8
}

/// Returns the input pixel of each of `outputs` pixels, among `inputs`.
fn places(inputs: usize, outputs: usize) -> Vec<usize> {
    let scale = inputs as f64 / outputs as f64;
    // Pillow adds up the positions, and their rounding decides between two equally near pixels.
    let mut place = scale * 0.5;
    let mut next = || {
        let found = place as usize;
        place += scale;
        found.min(inputs - 1)
    };
    (0..outputs).map(|_| next()).collect()
}
