//! Conversion of pixels and latents at the input and output of the VAE.

use super::Rows;

/// Converts values in -1..1 to bytes; `None` if one is NaN.
pub(super) fn rgb8(x: Rows<'_>) -> Option<Vec<u8>> {
    if (0..x.rows).any(|row| x.row(row).iter().any(|v| v.is_nan())) {
        return None;
    }
    let byte = |v: &f32| ((v * 0.5 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
    Some((0..x.rows).flat_map(|row| x.row(row).iter().map(byte)).collect())
}

/// Converts bytes to values in -1..1.
pub(super) fn from_rgb8(bytes: &[u8], out: &mut [f32]) {
    out.iter_mut().zip(bytes).for_each(|(value, byte)| *value = 2.0 * (f32::from(*byte) / 255.0) - 1.0);
}

/// Computes pixel `row` of an image whose pixels are squares of `scale` x `scale` channels of x, with `width` pixels
/// per row.
pub(super) fn shuffle(x: Rows<'_>, base: Option<Rows<'_>>, [scale, width]: [usize; 2], row: usize, out: &mut [f32]) {
    let (y, column) = (row / (width * scale), row % (width * scale));
    let from = y / scale * width + column / scale;
    let corner = y % scale * scale + column % scale;
    for (c, value) in out.iter_mut().enumerate() {
        *value = x.row(from)[c * scale * scale + corner] + base.map_or(0.0, |base| base.row(from)[c]);
    }
}

/// Computes token `row` of the packed latents of VAE latents with `width` tokens per row.
pub(super) fn patchify(x: Rows<'_>, mean: &[f32], std: &[f32], width: usize, row: usize, out: &mut [f32]) {
    let (y, column) = (row / width, row % width);
    for corner in 0..4 {
        let pixel = x.row((2 * y + corner / 2) * 2 * width + 2 * column + corner % 2);
        for (c, value) in pixel.iter().enumerate() {
            let packed = 4 * c + corner;
            out[packed] = (value - mean[packed]) / std[packed];
        }
    }
}

/// Computes pixel `row` of the VAE latents of packed latents with `width` tokens per row.
pub(super) fn unpatchify(latents: Rows<'_>, mean: &[f32], std: &[f32], width: usize, row: usize, out: &mut [f32]) {
    let (py, px) = (row / (2 * width), row % (2 * width));
    let token = latents.row(py / 2 * width + px / 2);
    let corner = py % 2 * 2 + px % 2;
    for (c, value) in out.iter_mut().enumerate() {
        let packed = 4 * c + corner;
        *value = token[packed] * std[packed] + mean[packed];
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Memory;
    use crate::backend::cpu::{Cpu, Precision};

    #[test]
    fn every_byte_comes_back() {
        let b = Cpu::new(Precision::F32);
        let bytes: Vec<u8> = (0..=255).chain(0..=43).collect();
        let pixels = b.upload_rgb8(&bytes, 4, 25).unwrap();
        assert_eq!((pixels.rows(), pixels.cols()), (100, 3));
        let values = b.download(&pixels).unwrap();
        assert_eq!((values[0], values[255], values[51]), (-1.0, 1.0, 2.0 * (51.0 / 255.0) - 1.0));
        assert_eq!(b.take_rgb8(b.rgb8(&pixels).unwrap()).unwrap(), bytes);
    }

    #[test]
    fn bytes_that_are_not_three_a_pixel_are_refused() {
        let b = Cpu::new(Precision::F32);
        for (len, height, width) in [(5, 1, 2), (6, 2, 2), (3, usize::MAX, 2), (0, 1, 1)] {
            let error = b.upload_rgb8(&vec![0; len], height, width).map(drop).unwrap_err().to_string();
            assert!(error.contains(&format!("{len} bytes")) && error.contains("upload_rgb8"), "{error}");
        }
    }
}
