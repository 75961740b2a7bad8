//! Convolution in float32: the inputs of a block of output pixels as rows (im2col), times the weight matrix. If the
//! processor multiplies bfloat16, weights in bfloat16 take another path: [`super::conv_tiles`].

use std::cell::RefCell;
use std::sync::OnceLock;

use rayon::prelude::*;

use super::tiles::Packed;
use super::{Rows, gemm};
use crate::files::TensorView;
use crate::ops::Conv;

/// Output pixels of one task.
const BLOCK: usize = 256;

/// A convolution weight [out, in, k, k] in the mapped file, with cached copies in the orders used so far.
pub struct Weight {
    pub(super) view: TensorView,
    /// [k * k * in, out]
    reordered: OnceLock<Vec<f32>>,
    /// For [`super::conv_tiles`].
    pub(super) packed: OnceLock<Packed>,
    /// For [`super::conv_tiles`] of an image that is upsampled twofold.
    pub(super) packed_doubled: OnceLock<[Packed; 4]>,
}

impl Weight {
    pub(super) fn new(view: TensorView) -> Self {
        Self { view, reordered: OnceLock::new(), packed: OnceLock::new(), packed_doubled: OnceLock::new() }
    }
}

/// Computes x [height * width, in], weight [out, in, k, k], bias \[out\] -> out [out_height * out_width, out], dense.
pub(super) fn conv2d(x: Rows<'_>, weight: &Weight, bias: &[f32], conv: Conv, out: &mut [f32]) {
    thread_local!(static COLUMNS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    let columns_of_weight = weight.reordered.get_or_init(|| reorder(&weight.view));
    let (n, k) = (bias.len(), conv.kernel * conv.kernel * x.cols);
    out.par_chunks_mut(BLOCK * n).enumerate().for_each(|(task, out)| {
        COLUMNS.with_borrow_mut(|columns| {
            let pixels = out.len() / n;
            columns.resize(pixels * k, 0.0);
            for (i, taps) in columns.chunks_exact_mut(k).enumerate() {
                im2col(x, conv, task * BLOCK + i, taps);
            }
            gemm::dense(Rows { data: columns, rows: pixels, cols: k, stride: k }, columns_of_weight, n, out);
        });
        out.chunks_exact_mut(n).for_each(|row| super::elementwise::add(row, bias));
    });
}

/// Copies the inputs of output pixel `pixel`, ordered (ky, kx, in).
fn im2col(x: Rows<'_>, conv: Conv, pixel: usize, taps: &mut [f32]) {
    let (oy, ox) = (pixel / conv.out_width(), pixel % conv.out_width());
    for (tap, values) in taps.chunks_exact_mut(x.cols).enumerate() {
        let y = (oy * conv.stride + tap / conv.kernel).wrapping_sub(conv.pad_before);
        let column = (ox * conv.stride + tap % conv.kernel).wrapping_sub(conv.pad_before);
        if y < conv.height && column < conv.width {
            values.copy_from_slice(x.row(y * conv.width + column));
        } else {
            values.fill(0.0);
        }
    }
}

/// Reorders [out, in, k, k] -> [k * k * in, out].
fn reorder(view: &TensorView) -> Vec<f32> {
    let &[cout, cin, kh, kw] = view.shape() else { panic!("expected a convolution weight with four axes") };
    let (values, taps) = (view.to_f32(), kh * kw);
    let mut out = vec![0.0; values.len()];
    for o in 0..cout {
        for i in 0..cin {
            for tap in 0..taps {
                out[(tap * cin + i) * cout + o] = values[(o * cin + i) * taps + tap];
            }
        }
    }
    out
}
