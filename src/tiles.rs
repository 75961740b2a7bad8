//! Overlapping tiles of an image, and the weights with which their results are averaged.

use std::ops::Range;

/// A tile: its columns and rows in the image, and the image's width and height.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Columns of the image.
    pub columns: Range<usize>,
    /// Rows of the image.
    pub rows: Range<usize>,
    of: [usize; 2],
}

impl Place {
    /// Returns the weights of the tile's columns and rows, with each column and row repeated `scale` times. They rise
    /// linearly over the overlap, if there is a neighbour.
    pub fn ramps(&self, overlap: usize, scale: usize) -> [Vec<f32>; 2] {
        [(&self.columns, self.of[0]), (&self.rows, self.of[1])].map(|(range, length)| {
            let overlap = overlap.min(range.len()) * scale;
            ramp(&(range.start * scale..range.end * scale), length * scale, overlap)
        })
    }
}

/// Returns the tiles of an image of this width and height, row by row. All have one size, and the last ones end with
/// the image.
pub fn places(of: [usize; 2], (side, overlap): (usize, usize)) -> Vec<Place> {
    let [columns, rows] = of.map(|length| starts(length, side, overlap));
    let range = |start: usize, length: usize| start..start + side.min(length);
    rows.iter()
        .flat_map(|row| {
            let rows = range(*row, of[1]);
            columns.iter().map(move |column| Place { columns: range(*column, of[0]), rows: rows.clone(), of })
        })
        .collect()
}

/// Returns the number of [`places`].
pub fn count(of: [usize; 2], (side, overlap): (usize, usize)) -> usize {
    of.map(|length| if length <= side { 1 } else { (length - overlap).div_ceil(side - overlap) }).iter().product()
}

/// Returns the places at which tiles begin.
fn starts(length: usize, side: usize, overlap: usize) -> Vec<usize> {
    match count([length, 1], (side, overlap)) {
        1 => vec![0],
        count => (0..count).map(|i| i * (length - side) / (count - 1)).collect(),
    }
}

/// Returns the weights of `range` of an axis of this length, which may be less than twice the overlap.
fn ramp(range: &Range<usize>, length: usize, overlap: usize) -> Vec<f32> {
    let rise = |i: usize| (i as f32 + 0.5) / overlap as f32;
    let weight = |i: usize| {
        let from_end = range.len() - 1 - i;
        let before = if range.start > 0 && i < overlap { rise(i) } else { 1.0 };
        let after = if range.end < length && from_end < overlap { rise(from_end) } else { 1.0 };
        before.min(after)
    };
    (0..range.len()).map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_image_and_overlap() {
        for (length, side, overlap) in [(40, 16, 8), (28, 16, 8), (17, 16, 8), (16, 16, 8), (1, 16, 8), (1000, 64, 32)]
        {
            let starts = starts(length, side, overlap);
            assert_eq!((starts[0], starts.len()), (0, count([length, side], (side, overlap))));
            assert_eq!(starts[starts.len() - 1] + side.min(length), length);
            assert!(starts.windows(2).all(|pair| pair[0] + side >= pair[1] + overlap && pair[0] < pair[1]), "{length}");
        }
        assert_eq!(starts(40, 16, 8), [0, 8, 16, 24]);
        assert_eq!(starts(256, 64, 8), [0, 48, 96, 144, 192]);
        assert_eq!(ramp(&(0..4), 8, 2), [1.0, 1.0, 0.75, 0.25]);
        assert_eq!(ramp(&(4..8), 8, 2), [0.25, 0.75, 1.0, 1.0]);
        // The overlap of a neighbour on both sides is longer than half of the tile.
        assert_eq!(ramp(&(2..6), 9, 4), [0.125, 0.375, 0.375, 0.125]);
    }

    #[test]
    fn all_tiles_have_one_size() {
        let places = places([40, 20], (16, 8));
        assert_eq!(places.len(), count([40, 20], (16, 8)));
        assert!(places.iter().all(|place| (place.columns.len(), place.rows.len()) == (16, 16)));
        let [across, down] = places[1].ramps(2, 2);
        assert_eq!((across.len(), down.len()), (32, 32));
        assert_eq!((across[0], down[0], down[31]), (0.125, 1.0, 0.125));
    }
}
