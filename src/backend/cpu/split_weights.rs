//! Multiplication of quantized weights by a unit that multiplies bfloat16.
//!
//! Panels of weight rows are converted to float32 and split into two bfloat16 terms, as activations are. The product of
//! both second terms is left out: it is below the rounding of the others. So a matrix multiplication costs as much as
//! one of a bfloat16 weight with activations in three terms, and has a relative root mean square error of 4e-6: `cargo
//! test --profile quick --lib split_weights -- --nocapture`. With activations in one term, the weight is rounded to
//! one as well.

use std::cell::Cell;

use rayon::prelude::*;

use super::tiles::{Multiply, Output, Packed, Rows, WeightRows};
use super::{Precision, math};
use crate::files::TensorView;

/// Values of a panel: with two terms 16 MiB, enough rows for the tasks of all cores.
const PANEL_VALUES: usize = 4 << 20;
/// Rows of a panel are a multiple of this, which fills tiles.
const PANEL_MULTIPLE: usize = 128;
/// Rows that one task converts.
const TASK_ROWS: usize = 8;

/// Activations for each term of a weight.
pub struct SplitPacked(Vec<Packed>);

impl SplitPacked {
    /// Packs the concatenated columns of `xs`.
    pub fn new(xs: &[Rows<'_>], precision: Precision) -> Self {
        let terms: &[usize] = match precision {
            Precision::F32 => &[2, 1],
            Precision::Bf16 | Precision::Int8 | Precision::W4a8 => &[1],
        };
        Self(terms.iter().map(|terms| Packed::new(xs, *terms)).collect())
    }

    /// Computes `out = x weight^T` for the columns of `out` of this weight; `multiply` is the unit's multiplication.
    pub fn multiply(&self, weight: &TensorView, out: Output<'_>, multiply: Multiply) {
        thread_local!(static PANEL: Cell<Vec<u16>> = const { Cell::new(Vec::new()) });
        let (rows, cols, terms) = (weight.rows(), weight.cols(), self.0.len());
        let rows_at_once = (PANEL_VALUES / cols.max(1)).next_multiple_of(PANEL_MULTIPLE);
        // Not borrowed: this thread may run other work of the pool, which may be a matrix multiplication as well.
        let mut panel = PANEL.take();
        for first in (0..rows).step_by(rows_at_once) {
            let some = weight.row_range(first..(first + rows_at_once).min(rows));
            panel.resize(panel.len().max(some.rows() * terms * cols), 0);
            split(&some, terms, &mut panel);
            for (term, packed) in self.0.iter().enumerate() {
                let bytes = bytemuck::cast_slice(&panel[term * cols..some.rows() * terms * cols]);
                let weight = WeightRows { bytes, rows: some.rows(), stride: 2 * terms * cols };
                let values = &mut out.values[first..];
                multiply(
                    packed,
                    weight,
                    Output { values, stride: out.stride, add: out.add || term > 0, integers: None },
                );
            }
        }
        PANEL.set(panel);
    }
}

/// Writes the rows of a weight to `panel` [rows, terms, cols]. In parallel.
fn split(weight: &TensorView, terms: usize, panel: &mut [u16]) {
    let (rows, cols) = (weight.rows(), weight.cols());
    let panel = &mut panel[..rows * terms * cols];
    if panel.is_empty() {
        return;
    }
    panel.par_chunks_mut(TASK_ROWS * terms * cols).enumerate().for_each_init(Vec::new, |values, (task, panel)| {
        let first = task * TASK_ROWS;
        let some = weight.row_range(first..(first + TASK_ROWS).min(rows));
        values.resize(some.elements(), 0.0);
        math::dequantize(&some, values);
        for (values, panel) in values.chunks_exact_mut(cols).zip(panel.chunks_exact_mut(terms * cols)) {
            panel.chunks_exact_mut(cols).for_each(|term| math::take_bf16(values, term));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::values;
    use super::super::tiles::multiply_emulated;
    use super::*;
    use crate::files::{Bytes, Format, Scales};

    /// Returns a weight in Q8_0, with scales of about a hundredth.
    fn weight(rows: usize, cols: usize) -> TensorView {
        let block = |(index, values): (usize, &[f32])| {
            let scale = half::f16::from_f32(0.01 + index as f32 * 1e-5).to_le_bytes();
            scale.into_iter().chain(values.iter().map(|value| (value * 63.0) as i8 as u8)).collect::<Vec<_>>()
        };
        let bytes: Vec<u8> = values(7, rows * cols).chunks(32).enumerate().flat_map(block).collect();
        let range = 0..bytes.len();
        let bytes = Arc::new(Bytes::Embedded(bytes.leak()));
        TensorView::new(bytes, range, Format::Q8_0, vec![rows, cols], Scales::None).unwrap()
    }

    /// Returns the root mean square error of a matrix multiplication relative to the exact one.
    fn error(precision: Precision, rows: usize, cols: usize, weight_rows: usize) -> f64 {
        let (x, weight) = (values(1, rows * cols), weight(weight_rows, cols));
        let packed = SplitPacked::new(&[Rows { values: &x, rows, cols, stride: cols }], precision);
        let stride = weight_rows + 3;
        let mut out = vec![f32::NAN; rows * stride];
        packed.multiply(&weight, Output { values: &mut out, stride, add: false, integers: None }, multiply_emulated);
        let wide = weight.to_f32();
        let (mut off, mut all) = (0.0, 0.0);
        for (x, out) in x.chunks(cols).zip(out.chunks(stride)) {
            for (weight, got) in wide.chunks(cols).zip(out) {
                let exact: f64 = x.iter().zip(weight).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                off += (f64::from(*got) - exact).powi(2);
                all += exact.powi(2);
            }
            assert!(out[weight_rows..].iter().all(|value| value.is_nan()), "columns outside the weight stay");
        }
        (off / all).sqrt()
    }

    #[test]
    fn products_are_as_near_as_the_head_says() {
        let (float32, bf16) = (error(Precision::F32, 40, 3072, 70), error(Precision::Bf16, 40, 3072, 70));
        println!("relative error: {float32:.1e} in float32, {bf16:.1e} in bfloat16");
        assert!(float32 < 5e-6 && bf16 > 1e-4 && bf16 < 4e-3);
    }

    #[test]
    fn a_weight_of_several_panels_is_multiplied_whole() {
        let cols = PANEL_VALUES / PANEL_MULTIPLE;
        assert!(error(Precision::F32, 1, cols, PANEL_MULTIPLE + 5) < 5e-6);
    }
}
