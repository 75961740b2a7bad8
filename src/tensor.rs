//! [`Tensor`]: a matrix of rows x cols in the memory of a backend, with one row stride.
//!
//! Heads are a way to read columns (`[tokens, heads, head_dim]` is `[tokens, dim]`) and pixels are rows (`[height *
//! width, channels]`), so two axes are enough for every model and no kernel needs a transpose.
//!
//! Ownership controls overwriting. An op that takes `self` by value may write its result over the receiver; an op that
//! takes `&self` must not. [`Tensor::split_cols`] and [`Tensor::split_rows`] consume their parent, so their parts own
//! disjoint cells and stay writable. [`Tensor::row_view`] borrows cells of another tensor, so an op on it always
//! writes elsewhere.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::Memory;
use crate::error::{Error, Result};

/// The type of a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// Four exponent and three mantissa bits, with a float32 scale for each row.
    E4m3,
    /// Integers, with a float32 scale for each row.
    Int8,
    /// Bytes.
    U8,
}

/// A matrix of rows x cols; the last axis is dense. A vector is one row.
pub struct Tensor<B: Memory> {
    backend: B,
    buffer: Arc<B::Buffer>,
    offset: usize,
    rows: usize,
    cols: usize,
    stride: usize,
    writable: bool,
}

impl<B: Memory> Tensor<B> {
    /// Creates a dense tensor that owns the whole of `buffer`. For backends.
    pub fn from_buffer(backend: &B, buffer: B::Buffer, rows: usize, cols: usize) -> Self {
        Self { backend: backend.clone(), buffer: Arc::new(buffer), offset: 0, rows, cols, stride: cols, writable: true }
    }

    /// Returns the number of rows: tokens or pixels.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns: features or channels.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the number of elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Returns the number of elements from the start of the buffer to the first cell.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns `true` if an op that consumes this tensor may write over its cells.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Returns the type of its values.
    pub fn dtype(&self) -> Dtype {
        B::dtype(&self.buffer)
    }

    /// Returns the backend that holds the tensor.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Returns the buffer that it views, which other tensors may share.
    pub fn buffer(&self) -> &Arc<B::Buffer> {
        &self.buffer
    }

    /// Returns the buffer if this tensor views all of it and is its only owner; otherwise returns the tensor. For
    /// backends.
    pub fn into_buffer(self) -> std::result::Result<B::Buffer, Self> {
        if !self.writable || self.offset != 0 || self.stride != self.cols {
            return Err(self);
        }
        let Self { backend, buffer, offset, rows, cols, stride, writable } = self;
        Arc::try_unwrap(buffer).map_err(|buffer| Self { backend, buffer, offset, rows, cols, stride, writable })
    }

    /// Returns all columns of a buffer whose first columns this tensor views, if it is the only view and may write
    /// them; otherwise returns the tensor. For backends, which may use the memory next to a result.
    pub(crate) fn into_all_columns(self, cols: usize) -> std::result::Result<Self, Self> {
        let is_alone = self.writable && self.offset == 0 && self.stride == cols && Arc::strong_count(&self.buffer) == 1;
        if is_alone { Ok(Self { cols, ..self }) } else { Err(self) }
    }

    fn view(&self, offset: usize, rows: usize, cols: usize, writable: bool) -> Self {
        Self {
            backend: self.backend.clone(),
            buffer: Arc::clone(&self.buffer),
            offset,
            rows,
            cols,
            stride: self.stride,
            writable,
        }
    }

    /// Returns rows `range` for reading: an op never writes over them, even if it consumes the view.
    pub fn row_view(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        self.view(self.offset + range.start * self.stride, range.len(), self.cols, false)
    }

    /// Returns columns `range` for reading, as [`Tensor::row_view`].
    pub fn col_view(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.cols, "columns {range:?} of {}", self.cols);
        self.view(self.offset + range.start, self.rows, range.len(), false)
    }

    /// Returns the cells for reading, as a tensor of `backend`. For backends that can read each other's memory.
    pub(crate) fn view_on(&self, backend: &B) -> Self {
        Self { backend: backend.clone(), ..self.view(self.offset, self.rows, self.cols, false) }
    }

    /// Splits into the first `rows` rows and the rest, each as writable as the whole.
    pub fn split_rows(self, rows: usize) -> (Self, Self) {
        assert!(rows <= self.rows, "split at row {rows} of {}", self.rows);
        let top = self.view(self.offset, rows, self.cols, self.writable);
        let bottom = self.view(self.offset + rows * self.stride, self.rows - rows, self.cols, self.writable);
        (top, bottom)
    }

    /// Splits into adjacent columns of the given widths, each as writable as the whole.
    pub fn split_cols<const N: usize>(self, widths: [usize; N]) -> [Self; N] {
        assert_eq!(widths.iter().sum::<usize>(), self.cols, "widths {widths:?} do not add up to {} columns", self.cols);
        let mut start = self.offset;
        widths.map(|width| {
            let part = self.view(start, self.rows, width, self.writable);
            start += width;
            part
        })
    }

    /// Returns one tensor of the columns of `parts`, if they are adjacent in one buffer.
    pub fn adjacent_cols(parts: &[&Self]) -> Option<Self> {
        let first = parts.first()?;
        let follows = |pair: &[&Self]| {
            let [a, b] = pair else { return false };
            Arc::ptr_eq(&a.buffer, &b.buffer)
                && a.stride == b.stride
                && a.rows == b.rows
                && a.offset + a.cols == b.offset
        };
        let cols = parts.iter().map(|part| part.cols).sum();
        (parts.windows(2).all(follows) && cols <= first.stride)
            .then(|| first.view(first.offset, first.rows, cols, false))
    }

    /// Undoes [`Tensor::split_rows`] if `top` and `bottom` are still adjacent in one buffer; otherwise returns both.
    pub fn adjacent_rows(top: Self, bottom: Self) -> std::result::Result<Self, (Self, Self)> {
        let follows = Arc::ptr_eq(&top.buffer, &bottom.buffer)
            && top.stride == bottom.stride
            && top.cols == bottom.cols
            && top.offset + top.rows * top.stride == bottom.offset;
        if !follows {
            return Err((top, bottom));
        }
        let Self { backend, buffer, offset, rows, cols, stride, writable } = top;
        Ok(Self {
            backend,
            buffer,
            offset,
            rows: rows + bottom.rows,
            cols,
            stride,
            writable: writable && bottom.writable,
        })
    }

    pub(crate) fn expect_vec(&self, op: &str, name: &str, vector: &Self) -> Result<()> {
        expect(vector.rows == 1 && vector.cols == self.cols, op, || {
            format!(
                "x has shape [{}, {}], but {name} has shape [{}, {}], expected [1, {}]",
                self.rows, self.cols, vector.rows, vector.cols, self.cols
            )
        })
    }

    pub(crate) fn expect_same(&self, op: &str, name: &str, other: &Self) -> Result<()> {
        expect(other.rows == self.rows && other.cols == self.cols, op, || {
            format!("x has shape [{}, {}], but {name} has shape [{}, {}]", self.rows, self.cols, other.rows, other.cols)
        })
    }
}

/// Errors unless all operands of `op` are activations, on one device.
pub(crate) fn expect_activations<B: Memory>(op: &str, operands: &[&Tensor<B>]) -> Result<()> {
    operands.iter().try_for_each(|x| expect_activation(op, operands[0].backend(), x))
}

/// Errors unless `x`, an operand of `op`, is an activation on the device of `on`.
pub(crate) fn expect_activation<B: Memory>(op: &str, on: &B, x: &Tensor<B>) -> Result<()> {
    expect_dtype(op, on, x, on.activation_dtype())
}

/// Errors unless all operands of `op` are float32, as [`Memory::upload_f32`] makes them, on the device of `on`.
pub(crate) fn expect_f32<B: Memory>(op: &str, on: &B, operands: &[&Tensor<B>]) -> Result<()> {
    operands.iter().try_for_each(|x| expect_dtype(op, on, x, Dtype::F32))
}

fn expect_dtype<B: Memory>(op: &str, on: &B, x: &Tensor<B>, dtype: Dtype) -> Result<()> {
    expect(on.is_same_device(x.backend()), op, || {
        format!("the tensors are on different devices, {} and {}", x.backend().describe(), on.describe())
    })?;
    expect(x.dtype() == dtype, op, || format!("a tensor has type {:?}, expected {dtype:?}", x.dtype()))
}

/// Returns an error that names the op, unless `condition` holds.
pub(crate) fn expect(condition: bool, op: &str, what: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(Error::new(what()).at(format!("op `{op}`"))) }
}
