//! Convolution: the inputs of a block of output pixels side by side (im2col), times the weight matrix.

use std::cell::RefCell;

use rayon::prelude::*;

use super::{Buffer, Cpu, Rows, gemm, pool};
use crate::ops::Conv;
use crate::tensor::Tensor;
use crate::weights::WeightView;

/// Output pixels of one task.
const BLOCK: usize = 256;

/// x [height * width, in], weight [out, k * k * in], bias [out] -> [out_height * out_width, out], dense.
pub(super) fn conv2d(x: Rows<'_>, weight: &Tensor<Cpu>, bias: &[f32], conv: Conv) -> Vec<f32> {
    thread_local!(static COLUMNS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    let Buffer::ConvWeight(view, reordered) = &**weight.buffer() else { panic!("not a convolution weight") };
    let weight = reordered.get_or_init(|| reorder(view));
    let (n, k) = (bias.len(), conv.kernel * conv.kernel * x.cols);
    let mut out = pool::zeros(conv.out_height() * conv.out_width() * n);
    out.par_chunks_mut(BLOCK * n).enumerate().for_each(|(task, out)| {
        COLUMNS.with_borrow_mut(|columns| {
            let pixels = out.len() / n;
            columns.resize(pixels * k, 0.0);
            for (i, taps) in columns.chunks_exact_mut(k).enumerate() {
                im2col(x, conv, task * BLOCK + i, taps);
            }
            gemm::dense(Rows { data: columns, rows: pixels, cols: k, stride: k }, weight, n, out);
        });
        out.chunks_exact_mut(n).for_each(|row| super::elementwise::add(row, bias));
    });
    out
}

/// The inputs that output pixel `pixel` sees, ordered (ky, kx, in).
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

/// [out, in, k, k] -> [out, k * k * in].
fn reorder(view: &WeightView) -> Vec<f32> {
    let &[cout, cin, kh, kw] = view.shape() else { panic!("a convolution weight has four axes") };
    let (values, taps) = (view.to_f32(), kh * kw);
    let mut out = vec![0.0; values.len()];
    for o in 0..cout {
        for i in 0..cin {
            for tap in 0..taps {
                out[(o * taps + tap) * cin + i] = values[(o * cin + i) * taps + tap];
            }
        }
    }
    out
}
