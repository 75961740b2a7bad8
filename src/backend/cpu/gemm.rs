//! Matrix multiplications: activations in float32, weights in the layout of the file.
//!
//! The portable path widens a panel of weight rows to float32 and multiplies with the crate `gemm`; it runs on every
//! CPU and is the reference for other paths. If the processor has a unit for bfloat16 ([`super::tiles`]), that
//! multiplies bfloat16 weights, including those of convolutions ([`super::conv_tiles`]), and quantized weights
//! ([`super::split_weights`]).

#![allow(unsafe_code)]

use std::cell::{OnceCell, RefCell};

use rayon::prelude::*;

use super::split_weights::SplitPacked;
use super::tiles::{self, Bf16Unit, Output, Packed, WeightRows};
use super::{Precision, Rows, math};
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
pub(super) fn describe(precision: Precision) -> String {
    let rest = match unit(precision) {
        Some(unit) if exact_terms(precision) == 1 => format!("bfloat16 activations ({})", unit.name),
        Some(unit) => format!("float32 ({}, three terms)", unit.name),
        None => "float32".to_string(),
    };
    match precision {
        Precision::F32 => rest,
        Precision::Bf16 if unit(precision).is_none() => format!("{rest} (no bfloat16 instructions)"),
        Precision::Bf16 => rest,
        Precision::Int8 => format!("int8 ({}), and {rest}", tiles::int8().name),
        Precision::W4a8 => format!("w4a8 ({}), and {rest}", tiles::int8().name),
    }
}

/// Returns the unit for bfloat16 weights; `None` if the portable path is used.
pub(super) fn unit(precision: Precision) -> Option<&'static Bf16Unit> {
    tiles::bf16().filter(|unit| match precision {
        Precision::F32 => unit.is_fast_in_terms,
        Precision::Bf16 => true,
        Precision::Int8 | Precision::W4a8 => (unit.is_fast)(),
    })
}

/// Returns the unit, and the number of bfloat16 terms of an activation, for this bfloat16 weight; `None` if the
/// portable path is used.
pub(super) fn terms(precision: Precision, weight: &TensorView) -> Option<(&'static Bf16Unit, usize)> {
    let unit = unit(precision).filter(|_| weight.format() == Format::Bf16)?;
    Some((unit, exact_terms(precision)))
}

fn exact_terms(precision: Precision) -> usize {
    if precision == Precision::F32 { EXACT_TERMS } else { 1 }
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
    match unit(precision) {
        Some(unit) if parts.iter().all(is_for_tiles) => on_tiles(unit, precision, xs, parts, rows, out),
        _ => {
            let mut col = 0;
            for x in xs {
                portable(*x, parts, col, rows, out, col > 0);
                col += x.cols;
            }
        }
    }
}

/// Computes [`linear`] on tiles: the activations are packed once for all parts.
fn on_tiles(unit: &Bf16Unit, precision: Precision, xs: &[Rows<'_>], parts: &[TensorView], n: usize, out: &mut [f32]) {
    let xs: Vec<_> =
        xs.iter().map(|x| tiles::Rows { values: x.data, rows: x.rows, cols: x.cols, stride: x.stride }).collect();
    let (packed, split) = (OnceCell::new(), OnceCell::new());
    let mut first = 0;
    for part in parts {
        let out = Output { values: &mut out[first..], stride: n, add: false, integers: None };
        if part.format() == Format::Bf16 {
            let packed = packed.get_or_init(|| Packed::new(&xs, exact_terms(precision)));
            (unit.multiply)(
                packed,
                WeightRows { bytes: part.bytes(), rows: part.rows(), stride: 2 * part.cols() },
                out,
            );
        } else {
            split.get_or_init(|| SplitPacked::new(&xs, precision)).multiply(part, out, unit.multiply);
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
        widened(&parts[*part].row_range(rows.clone()), needs_rows(m, rows.len()), |panel, [row_stride, col_stride]| {
            let weight = (&panel[col * col_stride..], [row_stride, col_stride]);
            // SAFETY: out has x.rows rows of n values (`linear` checked); only this task writes rows m0..m0 + m,
            // columns n0..n0 + rows.len(). Panels cover disjoint columns inside n, blocks disjoint rows inside x.rows.
            unsafe { product(x, m0..m0 + m, weight, rows.len(), (out.at(m0 * n + n0), n), accumulate) };
        });
    });
}

/// Returns `true` if `gemm` multiplies m rows by n weight rows in a way that depends on the layout of the weight: dot
/// products of its rows. Otherwise it copies the weight column by column, unless columns are contiguous: for 2 rows by
/// 256 x 3072 that takes 2.4 of 2.5 ms. [`transpose`] takes 0.2 ms, and the result is the same.
fn needs_rows(m: usize, n: usize) -> bool {
    m <= 1 || n <= 1 || m * n <= 256
}

/// Computes `out = x weight` for a dense float32 weight [k, n], on this thread.
pub(super) fn dense(x: Rows<'_>, weight: &[f32], n: usize, out: &mut [f32]) {
    let k = x.cols;
    assert!(weight.len() >= n * k && out.len() >= x.rows * n);
    let rows: Vec<f32>;
    let weight = if needs_rows(x.rows, n) {
        rows = (0..n * k).map(|i| weight[i % k * n + i / k]).collect();
        (rows.as_slice(), [k, 1])
    } else {
        (weight, [1, n])
    };
    // SAFETY: out has x.rows rows of n values and is borrowed for this call.
    unsafe { product(x, 0..x.rows, weight, n, (out.as_mut_ptr(), n), false) };
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
        multiply(
            [m, n, k],
            (out.as_mut_ptr(), out_stride, accumulate),
            (a.0.as_ptr(), a.1),
            (b.0.as_ptr(), [b_row, b_col]),
            beta,
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

/// Calls `f` with the view's values in float32 and the strides of its rows and columns: by rows, in place if the file
/// has float32, or else by columns. Other values are in buffers of this thread.
fn widened(view: &TensorView, by_rows: bool, f: impl FnOnce(&[f32], [usize; 2])) {
    thread_local!(static PANELS: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) });
    let (n, k) = (view.rows(), view.cols());
    let in_place = match view.format() {
        Format::F32 => bytemuck::try_cast_slice(view.bytes()).ok(),
        _ => None,
    };
    if let Some(values) = in_place.filter(|_| by_rows) {
        return f(values, [k, 1]);
    }
    PANELS.with_borrow_mut(|[rows, columns]| {
        if by_rows {
            widen(view, rows);
            return f(rows, [k, 1]);
        }
        columns.resize(n * k, 0.0);
        for first in (0..n).step_by(16) {
            let last = n.min(first + 16);
            let some = match in_place {
                Some(values) => &values[first * k..last * k],
                None => {
                    widen(&view.row_range(first..last), rows);
                    rows.as_slice()
                }
            };
            transpose(some, k, &mut columns[first..], n);
        }
        f(columns, [1, n]);
    });
}

/// Replaces `values` by the view's values in float32.
fn widen(view: &TensorView, values: &mut Vec<f32>) {
    values.resize(view.elements(), 0.0);
    match view.format() {
        Format::Bf16 => math::widen_bf16(view.bytes(), values),
        Format::F16 => math::widen_f16(view.bytes(), values),
        // Float32 is copied too if the file's header makes its tensors unaligned.
        _ => math::dequantize(view, values),
    }
}

/// Writes rows of k values, at most 16, as columns: each value of a row `stride` values after the one before.
fn transpose(rows: &[f32], k: usize, columns: &mut [f32], stride: usize) {
    let count = rows.len().checked_div(k).unwrap_or(0);
    assert!(count <= 16.min(stride) && (k == 0 || columns.len() >= (k - 1) * stride + count));
    let whole = if count == 16 { k / 16 * 16 } else { 0 };
    for col in (0..whole).step_by(16) {
        // SAFETY: 16 rows have 16 values from this column on, and so have 16 of the columns.
        unsafe {
            tiles::transpose(rows.as_ptr().add(col).cast(), k, columns.as_mut_ptr().add(col * stride).cast(), stride)
        }
    }
    for col in whole..k {
        for row in 0..count {
            columns[col * stride + row] = rows[row * k + col];
        }
    }
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

/// Computes `out[i, j] (+)= sum_k x[rows.start + i, k] weight[j, k]`; the weight has strides of rows and columns, out
/// rows are `out_stride` apart.
///
/// # Safety
/// `out` is valid for rows.len() rows of n values, and nothing else accesses these cells meanwhile.
unsafe fn product(
    x: Rows<'_>,
    rows: std::ops::Range<usize>,
    (weight, [row_stride, col_stride]): (&[f32], [usize; 2]),
    n: usize,
    (out, out_stride): (*mut f32, usize),
    accumulate: bool,
) {
    let k = x.cols;
    assert!(rows.end <= x.rows && (k == 0 || weight.len() > (n - 1) * row_stride + (k - 1) * col_stride));
    let (x, x_stride) = (&x.data[rows.start * x.stride..], x.stride);
    assert!(x.len() >= (rows.len() - 1) * x_stride + k);
    // SAFETY: x and weight were checked to reach their last element, out by the caller.
    unsafe {
        let weight = (weight.as_ptr(), [col_stride, row_stride]);
        multiply([rows.len(), n, k], (out, out_stride, accumulate), (x.as_ptr(), x_stride), weight, 1.0);
    }
}

/// Computes `out = beta · a·b`, plus `out` if `accumulate` is set: `a` [m, k] and `out` [m, n] have a stride between
/// rows, and `b` [k, n] has strides between rows and between columns.
///
/// # Safety
///
/// All elements that the strides reach must be in memory, and no other thread may access those of `out`.
unsafe fn multiply(
    [m, n, k]: [usize; 3],
    (out, out_stride, accumulate): (*mut f32, usize, bool),
    (a, a_stride): (*const f32, usize),
    (b, b_strides): (*const f32, [usize; 2]),
    beta: f32,
) {
    let (out_stride, a_stride) = (out_stride as isize, a_stride as isize);
    let [b_row, b_col] = b_strides.map(|stride| stride as isize);
    let product = gemm_f32::gemm::f32::get_gemm_fn();
    let one_thread = gemm_common::Parallelism::None;
    // SAFETY: as the caller promises. The kernels write columns, so rows are written as columns of the transpose.
    unsafe {
        if out_stride > 1 {
            product(
                n, m, k, out, out_stride, 1, accumulate, b, b_row, b_col, a, a_stride, 1, 1.0, beta, false, false,
                false, one_thread,
            );
        } else {
            product(
                m, n, k, out, 1, out_stride, accumulate, a, 1, a_stride, b, b_col, b_row, 1.0, beta, false, false,
                false, one_thread,
            );
        }
    }
}
