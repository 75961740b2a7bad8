//! Launches cuda/dequantize.cu: dequantizes a weight that stays in the format of its file for a matrix multiplication.

use std::ops::Deref;

use cudarc::driver::result;

use super::quantize;
use crate::backend::cuda::buffer::Buffer;
use crate::backend::cuda::capability::HOPPER;
use crate::backend::cuda::driver::failed;
use crate::backend::cuda::element::Element;
use crate::backend::cuda::stored::Stored;
use crate::backend::cuda::weight::{PADDING, Weight};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::{Error, Field, Result};
use crate::nn::Linear;

/// A weight in the layout that matrix multiplications read.
pub(crate) enum Ready<'a> {
    /// The weight in memory.
    There(&'a Weight),
    /// A bf16 copy in memory that is freed behind the matrix multiplication.
    Made(Weight),
}

impl Deref for Ready<'_> {
    type Target = Weight;

    fn deref(&self) -> &Weight {
        match self {
            Self::There(weight) => weight,
            Self::Made(weight) => weight,
        }
    }
}

impl Cuda {
    /// Returns the weight in the layout that matrix multiplications read: a file format is dequantized to bf16, rounded
    /// once.
    ///
    /// Errors if memory runs out.
    pub(crate) fn ready<'a>(&self, weight: &'a Weight) -> Result<Ready<'a>> {
        match weight.stored() {
            Some(stored) => {
                let buffer = self.dequantized(weight, stored)?;
                Ok(Ready::Made(Weight::new(buffer, weight.rows(), weight.cols())))
            }
            None => Ok(Ready::There(weight)),
        }
    }

    /// Returns rows of bf16, padded with zeros to a multiple of [`PADDING`]. Columns are whole blocks, which need no
    /// padding.
    fn dequantized(&self, weight: &Weight, stored: &Stored) -> Result<Buffer> {
        let (device, rows, row_bytes) = (self.device(), weight.rows(), weight.cols() * Element::BYTES);
        let padding = (rows.next_multiple_of(PADDING) - rows) * row_bytes;
        let buffer = Buffer::new(device, self.element().kind(), rows.next_multiple_of(PADDING) * weight.cols())?;
        if padding > 0 {
            let (stream, behind) = (device.stream, buffer.address() + (rows * row_bytes) as u64);
            let _submission = device.submit(stream)?;
            // SAFETY: the buffer has room for the padding behind its rows.
            unsafe { result::memset_d8_async(behind, 0, padding, stream.raw()) }
                .map_err(|e| failed("cannot clear GPU memory", e))?;
        }
        // SAFETY: the weight is at its address, and the buffer has room for all of its values.
        unsafe { stored.dequantize(device, weight.address(), buffer.address()) }?;
        Ok(buffer)
    }

    /// Returns a weight that stays in the format of its file as bf16 [rows, cols].
    ///
    /// Matrix multiplications do this themselves: this is for tests and tools. Errors if the weight is in another form.
    pub fn dequantize(&self, weight: &Linear<Cuda>) -> Result<Tensor<Cuda>> {
        let (held, name) = (weight.weight(), weight.name());
        if self.element() != Element::Bf16 {
            return Err(Error::new("an fp16 weight cannot be read as a tensor, because activations use other units"));
        }
        let stored = held.stored().ok_or_else(|| Error::new(format!("`{name}` is not stored in a file's format")))?;
        let (rows, cols) = (held.rows(), held.cols());
        let buffer = self.dequantized(held, stored)?;
        let (x, _) = Tensor::from_buffer(self, buffer, rows.next_multiple_of(PADDING), cols).split_rows(rows);
        Ok(x)
    }

    /// Returns `true` if matrix multiplications read e4m3 of files as it is, if not configured otherwise: on GPUs with
    /// e4m3 in cuBLASLt. With mma.sync, e4m3 must be requested.
    pub(crate) fn has_fp8(&self) -> bool {
        self.device().capability == HOPPER && quantize::check_fp8(self.device(), Field::Precision).is_ok()
    }
}
