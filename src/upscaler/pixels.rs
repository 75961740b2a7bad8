//! Pixels at the input and output of a network.

use crate::backend::Backend;
use crate::error::Result;
use crate::rgb::Rgb;
use crate::tensor::Tensor;
use crate::tiles::Place;

/// Returns the pixels of a tile.
pub(super) fn crop(image: &Rgb, place: &Place) -> Rgb {
    let row = |y: usize| {
        let first = 3 * (y * image.width + place.columns.start);
        &image.bytes[first..first + 3 * place.columns.len()]
    };
    let bytes = place.rows.clone().map(row).collect::<Vec<_>>().concat();
    Rgb { width: place.columns.len(), height: place.rows.len(), bytes }
}

/// Returns values in 0..1, [height * width, 3 * side^2], and width and height: squares of `side` pixels become
/// channels `(c * side + dy) * side + dx`. The image is reflected at its right and lower edges to whole squares.
/// Source: PyTorch `pixel_unshuffle`, and BasicSR.
pub(super) fn unshuffled(image: &Rgb, side: usize) -> (Vec<f32>, [usize; 2]) {
    let [width, height] = [image.width, image.height].map(|length| length.div_ceil(side));
    // An image of a single pixel has nothing to reflect.
    let reflected = |at: usize, length: usize| {
        if at < length { at } else { (2 * length).saturating_sub(at + 2).min(length - 1) }
    };
    let mut values = Vec::with_capacity(width * height * 3 * side * side);
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        for (c, dy, dx) in (0..3).flat_map(|c| (0..side).flat_map(move |dy| (0..side).map(move |dx| (c, dy, dx)))) {
            let (row, column) = (reflected(y * side + dy, image.height), reflected(x * side + dx, image.width));
            values.push(f32::from(image.bytes[3 * (row * image.width + column) + c]) / 255.0);
        }
    }
    (values, [width, height])
}

/// Cuts the pixels of an image off to the size `to = [width, height]`.
pub(super) fn cut<B: Backend>(pixels: Tensor<B>, [width, height]: [usize; 2], to: [usize; 2]) -> Result<Tensor<B>> {
    if [width, height] == to {
        return Ok(pixels);
    }
    if width == to[0] {
        return Ok(pixels.row_view(0..to[1] * width));
    }
    let rows: Vec<_> = (0..to[1]).map(|row| row * width..row * width + to[0]).collect();
    pixels.copy_runs(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_become_channels_and_edges_are_reflected() {
        let image = Rgb { width: 3, height: 1, bytes: vec![0, 1, 2, 3, 4, 5, 6, 7, 8] };
        let (values, size) = unshuffled(&image, 2);
        let bytes: Vec<_> = values.iter().map(|value| (value * 255.0).round() as u8).collect();
        assert_eq!(size, [2, 1]);
        assert_eq!(bytes, [0, 3, 0, 3, 1, 4, 1, 4, 2, 5, 2, 5, 6, 3, 6, 3, 7, 4, 7, 4, 8, 5, 8, 5]);
    }
}
