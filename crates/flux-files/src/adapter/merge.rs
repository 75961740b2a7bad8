//! Merging of changes into weights, in float32.

use std::ops::Range;

use super::change::{Change, Delta, LowRank, Magnitude, add_scaled, rows_of};

/// The norms of the columns of W + delta, which DoRA scales to its magnitudes.
pub struct ColumnLengths(Vec<f64>);

impl Change {
    /// Adds `strength` times the rows `rows` of the change to `out`. `base` and `out` are these rows of the weight,
    /// [rows, in], contiguous. A change depends on `base` alone, so several changes may be added to `out` in any order.
    /// `lengths` is the result of [`Change::column_lengths`].
    pub fn add_to(
        &self,
        base: &[f32],
        rows: Range<usize>,
        strength: f32,
        lengths: Option<&ColumnLengths>,
        out: &mut [f32],
    ) {
        let cols = self.shape[1];
        match (&self.delta, &self.magnitude) {
            (Delta::Replacement(view), _) => {
                let of_file = rows_of(view, rows);
                out.iter_mut()
                    .zip(of_file.iter().zip(base))
                    .for_each(|(out, (new, old))| *out += strength * (new - old));
            }
            (delta, None) => delta.add_to(rows, cols, strength, out),
            (delta, Some(magnitude)) => {
                let mut sum = base.to_vec();
                delta.add_to(rows.clone(), cols, 1.0, &mut sum);
                magnitude.apply(&mut sum, rows, cols, lengths);
                out.iter_mut().zip(sum.iter().zip(base)).for_each(|(out, (new, old))| *out += strength * (new - old));
            }
        }
    }

    /// Returns the norms of the columns of the sum of weight and change, if the change needs them. `base` returns rows
    /// of the whole module.
    pub fn column_lengths(&self, base: impl Fn(Range<usize>) -> Vec<f32>) -> Option<ColumnLengths> {
        const ROWS_AT_ONCE: usize = 64;
        let Some(Magnitude::OfCols(_)) = &self.magnitude else { return None };
        let [rows, cols] = self.shape;
        let mut squares = vec![0.0; cols];
        for first in (0..rows).step_by(ROWS_AT_ONCE) {
            let some = first..rows.min(first + ROWS_AT_ONCE);
            let mut sum = base(some.clone());
            self.delta.add_to(some, cols, 1.0, &mut sum);
            for row in sum.chunks_exact(cols) {
                squares.iter_mut().zip(row).for_each(|(square, value)| *square += f64::from(*value).powi(2));
            }
        }
        Some(ColumnLengths(squares.into_iter().map(f64::sqrt).collect()))
    }
}

impl Delta {
    /// Adds `strength` times some rows of the delta to `out` [rows, cols].
    pub(super) fn add_to(&self, rows: Range<usize>, cols: usize, strength: f32, out: &mut [f32]) {
        match self {
            Self::LowRank(low_rank) => low_rank.add_to(rows, cols, strength * low_rank.scale, out),
            Self::Kronecker { left, right, scale } => {
                for (row, out) in rows.zip(out.chunks_exact_mut(cols)) {
                    let (left, right) = (left.row(row / right.rows()), right.row(row % right.rows()));
                    for (factor, out) in left.iter().zip(out.chunks_exact_mut(right.len())) {
                        add_scaled(out, strength * scale * factor, right);
                    }
                }
            }
            Self::Hadamard { first, second, scale } => {
                let product = |of: &LowRank| {
                    let mut values = vec![0.0; out.len()];
                    of.add_to(rows.clone(), cols, 1.0, &mut values);
                    values
                };
                let (first, second) = (product(first), product(second));
                let products = first.iter().zip(&second).map(|(a, b)| a * b);
                out.iter_mut().zip(products).for_each(|(out, product)| *out += strength * scale * product);
            }
            // A replacement is not a sum: `Change::add_to` handles it before.
            Self::Difference(view) | Self::Replacement(view) => add_scaled(out, strength, &rows_of(view, rows)),
        }
    }
}

impl LowRank {
    fn add_to(&self, rows: Range<usize>, cols: usize, factor: f32, out: &mut [f32]) {
        let rank = self.rank();
        let up = rows_of(&self.up, rows);
        // A few rows of `down` at a time stay in the cache while all rows of `out` pass.
        const DOWN_ROWS: usize = 16;
        for first in (0..rank).step_by(DOWN_ROWS) {
            let some = first..rank.min(first + DOWN_ROWS);
            let down = rows_of(&self.down, some.clone());
            for (up, out) in up.chunks_exact(rank).zip(out.chunks_exact_mut(cols)) {
                for (up, down) in up[some.clone()].iter().zip(down.chunks_exact(cols)) {
                    add_scaled(out, factor * up, down);
                }
            }
        }
    }
}

impl Magnitude {
    /// Scales rows or columns of `sum`, the rows `rows` of the module, to their magnitudes.
    fn apply(&self, sum: &mut [f32], rows: Range<usize>, cols: usize, lengths: Option<&ColumnLengths>) {
        match self {
            Self::OfRows(magnitudes) => {
                for (row, magnitude) in sum.chunks_exact_mut(cols).zip(&magnitudes[rows]) {
                    let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
                    let factor = stretch(*magnitude, length);
                    row.iter_mut().for_each(|value| *value *= factor);
                }
            }
            Self::OfCols(magnitudes) => {
                let lengths = lengths.map_or(&[][..], |ColumnLengths(lengths)| lengths);
                let factors: Vec<f32> =
                    magnitudes.iter().zip(lengths).map(|(m, length)| stretch(*m, *length)).collect();
                for row in sum.chunks_exact_mut(cols) {
                    row.iter_mut().zip(&factors).for_each(|(value, factor)| *value *= factor);
                }
            }
        }
    }
}

/// Returns the factor that brings a vector of this length to its magnitude; 1 for a vector of zeros.
fn stretch(magnitude: f32, length: f64) -> f32 {
    if length > 0.0 { (f64::from(magnitude) / length) as f32 } else { 1.0 }
}
