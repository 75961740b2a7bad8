//! Pixels and latents on their way in and out of the VAE.

use super::Rows;

/// Values in -1..1 as bytes; none where one is not a number.
pub(super) fn rgb8(x: Rows<'_>) -> Option<Vec<u8>> {
    if (0..x.rows).any(|row| x.row(row).iter().any(|v| v.is_nan())) {
        return None;
    }
    let byte = |v: &f32| ((v * 0.5 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
    Some((0..x.rows).flat_map(|row| x.row(row).iter().map(byte)).collect())
}

/// Pixel `row` of the VAE latents of packed latents with `width` tokens a row.
pub(super) fn unpatchify(latents: Rows<'_>, mean: &[f32], std: &[f32], width: usize, row: usize, out: &mut [f32]) {
    let (py, px) = (row / (2 * width), row % (2 * width));
    let token = latents.row(py / 2 * width + px / 2);
    let corner = py % 2 * 2 + px % 2;
    for (c, value) in out.iter_mut().enumerate() {
        let packed = 4 * c + corner;
        *value = token[packed] * std[packed] + mean[packed];
    }
}
