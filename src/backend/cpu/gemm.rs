//! Matrix multiplications: activations in float32, weights in the layout of the file.
//!
//! The portable path widens a panel of weight rows to float32 and multiplies with the crate `gemm`; it runs on every
//! CPU and is the reference for other paths. If the processor has AMX-BF16 tiles, they multiply bfloat16 weights,
//! including those of convolutions ([`super::conv_tiles`]), and quantized weights ([`super::split_weights`]).

#![allow(unsafe_code)]

use std::cell::{OnceCell, RefCell};

use rayon::prelude::*;

use super::split_weights::SplitPacked;
use super::{Precision, Rows, amx, math};
use crate::files::{Format, TensorView};

/// Weight rows that are widened at once: 256 rows of 3072 in float32 are 3 MiB, which stays in the cache of a core and
/// is long enough for the multiplication to reach its full speed.
const PANEL_ROWS: usize = 256;
/// Panels of a small matrix, which has smaller panels so that every core has a task. The split determines the order of
/// sums in `gemm`, so it depends only on the matrix and never on the number of threads.
const PANELS: usize = 16;
/// Activation rows of one task, so that a tall multiplication with few weight rows still uses all cores.
const BLOCK_ROWS: usize = 512;

/// Terms of bfloat16 that hold a float32 activation exactly: the products are exact and only sums round.
const EXACT_TERMS: usize = 3;

/// Returns one line on the arithmetic of matrix multiplications.
pub(super) fn describe(precision: Precision) -> &'static str {
    match (precision, amx::available()) {
        (Precision::F32, true) => "float32 (AMX-BF16 tiles, three terms)",
        (Precision::F32, false) => "float32",
        (Precision::Int8, true) => "int8, and float32 (AMX-BF16 tiles, three terms)",
        (Precision::Int8, false) => "int8 and float32",
        (Precision::W4a8, true) => "w4a8, and float32 (AMX-BF16 tiles, three terms)",
        (Precision::W4a8, false) => "w4a8 and float32",
        (Precision::Bf16, true) => "bfloat16 activations (AMX-BF16 tiles)",
        (Precision::Bf16, false) => "float32 (no AMX-BF16)",
    }
}

/// Returns the number of bfloat16 terms of an activation on AMX tiles with this bfloat16 weight; `None` if the portable
/// path is used.
pub(super) fn terms(precision: Precision, weight: &TensorView) -> Option<usize> {
    let on_tiles = amx::available() && weight.format() == Format::Bf16;
    on_tiles.then(|| exact_terms(precision))
}

fn exact_terms(precision: Precision) -> usize {
    if precision == Precision::Bf16 { 1 } else { EXACT_TERMS }
}

/// Returns `true` if tiles multiply this weight: wider floats would lose their additional bits.
fn is_for_tiles(weight: &TensorView) -> bool {
    weight.format() == Format::Bf16 || !weight.format().is_float()
}

/// Computes `out = [x_0 | x_1 | ..] weight^T`, with concatenated columns of the x and concatenated rows of the parts;
/// out is dense.
pub(super) fn linear(precision: Precision, xs: &[Rows<'_>], parts: &[TensorView], out: &mut [f32]) {
    let rows = parts.iter().map(TensorView::rows).sum();
    assert_eq!(out.len(), xs[0].rows * rows);
    assert_eq!(xs.iter().map(|x| x.cols).sum::<usize>(), parts[0].cols());
    if out.is_empty() {
        return; // tiles don't support empty operands
    }
    if amx::available() && parts.iter().all(is_for_tiles) {
        tiles(precision, xs, parts, rows, out);
    } else {
        let mut col = 0;
        for x in xs {
            portable(*x, parts, col, rows, out, col > 0);
            col += x.cols;
        }
    }
}

/// Computes [`linear`] on AMX tiles: the activations are packed once for all parts.
fn tiles(precision: Precision, xs: &[Rows<'_>], parts: &[TensorView], n: usize, out: &mut [f32]) {
    let xs: Vec<_> =
        xs.iter().map(|x| amx::Rows { values: x.data, rows: x.rows, cols: x.cols, stride: x.stride }).collect();
    let (packed, split) = (OnceCell::new(), OnceCell::new());
    let mut first = 0;
    for part in parts {
        let out = amx::Output { values: &mut out[first..], stride: n, add: false };
        if part.format() == Format::Bf16 {
            let packed = packed.get_or_init(|| amx::Packed::new(&xs, exact_terms(precision)));
            let weight = amx::Bf16Rows { bytes: part.bytes(), rows: part.rows(), stride: 2 * part.cols() };
            amx::multiply(packed, weight, out);
        } else {
            split.get_or_init(|| SplitPacked::new(&xs, precision)).multiply(part, out, amx::multiply);
        }
        first += part.rows();
    }
}

/// Computes `out (+)= x weight[:, col..col + x.cols]^T`, with the parts' n rows as weight; out is dense [x.rows, n].
fn portable(x: Rows<'_>, parts: &[TensorView], col: usize, n: usize, out: &mut [f32], accumulate: bool) {
    let panels = panels(parts, n);
    let out = Shared(out.as_mut_ptr());
    let blocks = x.rows.div_ceil(BLOCK_ROWS);
    // Neighbouring tasks share a panel, so that it is read from memory once.
    (0..panels.len() * blocks).into_par_iter().for_each(|task| {
        let (part, rows, n0) = &panels[task / blocks];
        let m0 = task % blocks * BLOCK_ROWS;
        let m = BLOCK_ROWS.min(x.rows - m0);
        widened(&parts[*part].row_range(rows.clone()), |panel| {
            let k = parts[*part].cols();
            // SAFETY: out has x.rows rows of n values (`linear` checked); only this task writes rows m0..m0 + m,
            // columns n0..n0 + rows.len(). Panels cover disjoint columns inside n, blocks disjoint rows inside x.rows.
            unsafe { product(x, m0..m0 + m, (&panel[col..], k), rows.len(), (out.at(m0 * n + n0), n), accumulate) };
        });
    });
}

/// Computes `out = x weight^T` for dense float32 weights [n, k], on this thread.
pub(super) fn dense(x: Rows<'_>, weight: &[f32], n: usize, out: &mut [f32]) {
    assert!(weight.len() >= n * x.cols && out.len() >= x.rows * n);
    // SAFETY: out has x.rows rows of n values and is borrowed for this call.
    unsafe { product(x, 0..x.rows, (weight, x.cols), n, (out.as_mut_ptr(), n), false) };
}

/// Computes `out = alpha * out + beta * a b` for row-major views given by (first element, row stride), on this thread;
/// `b` is read as its transpose if `b_transposed`.
pub(super) fn small(
    (m, n, k): (usize, usize, usize),
    (out, out_stride): (&mut [f32], usize),
    accumulate: bool,
    a: (&[f32], usize),
    b: (&[f32], usize),
    b_transposed: bool,
    beta: f32,
) {
    let last = |rows: usize, cols: usize, stride: usize| if rows * cols == 0 { 0 } else { (rows - 1) * stride + cols };
    let (b_rows, b_cols) = if b_transposed { (n, k) } else { (k, n) };
    assert!(
        out.len() >= last(m, n, out_stride) && a.0.len() >= last(m, k, a.1) && b.0.len() >= last(b_rows, b_cols, b.1)
    );
    let (b_row, b_col) = if b_transposed { (1, b.1) } else { (b.1, 1) };
    // SAFETY: the assertion above keeps every element that the strides reach inside its slice.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            accumulate,
            a.0.as_ptr(),
            1,
            a.1 as isize,
            b.0.as_ptr(),
            b_col as isize,
            b_row as isize,
            1.0,
            beta,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Splits the parts into panels, by their shapes only: (part, its rows, first output column).
fn panels(parts: &[TensorView], n: usize) -> Vec<(usize, std::ops::Range<usize>, usize)> {
    let size = PANEL_ROWS.min(n.div_ceil(PANELS).next_multiple_of(32));
    let mut first = 0;
    let mut panels = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        for start in (0..part.rows()).step_by(size) {
            let rows = start..(start + size).min(part.rows());
            panels.push((index, rows.clone(), first + start));
        }
        first += part.rows();
    }
    panels
}

/// Calls `f` with the view's values in float32: in place if the file has float32, else from a buffer of this thread.
fn widened(view: &TensorView, f: impl FnOnce(&[f32])) {
    thread_local!(static PANEL: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    if view.format() == Format::F32
        && let Ok(values) = bytemuck::try_cast_slice(view.bytes())
    {
        return f(values);
    }
    PANEL.with_borrow_mut(|panel| {
        panel.resize(view.elements(), 0.0);
        match view.format() {
            Format::Bf16 => math::widen_bf16(view.bytes(), panel),
            Format::F16 => math::widen_f16(view.bytes(), panel),
            // Float32 is copied too if the file's header makes its tensors unaligned.
            _ => math::dequantize(view, panel),
        }
        f(panel);
    });
}

/// A pointer that tasks share; each writes other cells.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: the pointer is only written through in `portable`, whose tasks write disjoint cells.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    /// # Safety
    /// `offset` is inside the allocation.
    unsafe fn at(self, offset: usize) -> *mut f32 {
        // SAFETY: as the caller promises.
        unsafe { self.0.add(offset) }
    }
}

/// Computes `out[i, j] (+)= sum_k x[rows.start + i, k] weight[j, k]`; weight rows are `weight_stride` apart, out rows
/// `out_stride`.
///
/// # Safety
/// `out` is valid for rows.len() rows of n values, and nothing else accesses these cells meanwhile.
unsafe fn product(
    x: Rows<'_>,
    rows: std::ops::Range<usize>,
    (weight, weight_stride): (&[f32], usize),
    n: usize,
    (out, out_stride): (*mut f32, usize),
    accumulate: bool,
) {
    let k = x.cols;
    assert!(rows.end <= x.rows && weight.len() >= (n - 1) * weight_stride + k);
    let (x, x_stride) = (&x.data[rows.start * x.stride..], x.stride);
    assert!(x.len() >= (rows.len() - 1) * x_stride + k);
    // SAFETY: x and weight were checked to reach their last element, out by the caller.
    unsafe {
        gemm::gemm(
            rows.len(),
            n,
            k,
            out,
            1,
            out_stride as isize,
            accumulate,
            x.as_ptr(),
            1,
            x_stride as isize,
            weight.as_ptr(),
            weight_stride as isize,
            1,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
