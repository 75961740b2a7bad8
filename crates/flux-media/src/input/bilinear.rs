//! Resizes one channel with a bilinear filter, which does not leave the range of its input.

/// Resizes values [height, width] of size `from = [width, height]` to the size `to`. No size may be 0.
pub fn resize(values: &[u8], from: [usize; 2], to: [usize; 2]) -> Vec<u8> {
    assert!(from.iter().chain(&to).all(|side| *side > 0), "an image has pixels");
    let [columns, rows] = [0, 1].map(|axis| taps(from[axis], to[axis]));
    let value = |(y, below, down): (usize, usize, f32), (x, after, across): (usize, usize, f32)| {
        let row = |y: usize| {
            let [left, right] = [x, after].map(|x| f32::from(values[y * from[0] + x]));
            left + (right - left) * across
        };
        let (upper, lower) = (row(y), row(below));
        (upper + (lower - upper) * down).round() as u8
    };
    rows.iter().flat_map(|row| columns.iter().map(|column| value(*row, *column))).collect()
}

/// Returns the two input values of each output value, and the share of the second one.
fn taps(from: usize, to: usize) -> Vec<(usize, usize, f32)> {
    let tap = |i: usize| {
        let place = ((i as f64 + 0.5) * from as f64 / to as f64 - 0.5).clamp(0.0, (from - 1) as f64);
        let first = place as usize;
        (first, (first + 1).min(from - 1), (place - first as f64) as f32)
    };
    (0..to).map(tap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_interpolated_between_the_centres_of_pixels() {
        assert_eq!(resize(&[0, 100], [2, 1], [4, 1]), [0, 25, 75, 100]);
        assert_eq!(resize(&[0, 100, 100, 200], [2, 2], [1, 1]), [100]);
        assert_eq!(resize(&[7], [1, 1], [3, 2]), [7; 6]);
        let image: Vec<u8> = (0..12).collect();
        assert_eq!(resize(&image, [4, 3], [4, 3]), image);
    }
}
