//! Launches cuda/dequantise.cu: a weight that stays in the format of its file, as products read it.

use std::ops::Deref;

use cudarc::driver::result;

use super::quantise;
use crate::backend::cuda::buffer::Buffer;
use crate::backend::cuda::capability::HOPPER;
use crate::backend::cuda::driver::failed;
use crate::backend::cuda::element::Element;
use crate::backend::cuda::stored::Stored;
use crate::backend::cuda::weight::{PADDING, Weight};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::{Error, Field, Result};
use crate::nn::Linear;

/// A weight as products read it.
pub(crate) enum Ready<'a> {
    /// As it is in memory.
    There(&'a Weight),
    /// In bf16, in memory that is freed behind the product.
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
    /// The weight as products read it: what is in the format of a file becomes bf16, rounded once.
    ///
    /// Errors when memory runs out.
    pub(crate) fn ready<'a>(&self, weight: &'a Weight) -> Result<Ready<'a>> {
        match weight.stored() {
            Some(stored) => {
                let buffer = self.dequantised(weight, stored)?;
                Ok(Ready::Made(Weight::new(buffer, weight.rows(), weight.cols())))
            }
            None => Ok(Ready::There(weight)),
        }
    }

    /// Rows of bf16, padded with zeros to a multiple of [`PADDING`]. Columns are of whole blocks, which need none.
    fn dequantised(&self, weight: &Weight, stored: &Stored) -> Result<Buffer> {
        let (device, rows, row_bytes) = (self.device(), weight.rows(), weight.cols() * Element::BYTES);
        let padding = (rows.next_multiple_of(PADDING) - rows) * row_bytes;
        let buffer = Buffer::new(device, self.element().kind(), rows.next_multiple_of(PADDING) * weight.cols())?;
        if padding > 0 {
            let (stream, behind) = (device.stream(), buffer.address() + (rows * row_bytes) as u64);
            let _submission = device.submit(stream)?;
            // SAFETY: the buffer was made with room for the padding behind its rows.
            unsafe { result::memset_d8_async(behind, 0, padding, stream.raw()) }
                .map_err(|e| failed("cannot clear GPU memory", e))?;
        }
        // SAFETY: the weight lies at its address, and the buffer was made for all of its values.
        unsafe { stored.dequantise(device, weight.address(), buffer.address()) }?;
        Ok(buffer)
    }

    /// A weight that stays in the format of its file as bf16 [rows, cols].
    ///
    /// Products do this themselves: this is for tests and tools. Errors when the weight is in another form.
    pub fn dequantise(&self, weight: &Linear<Cuda>) -> Result<Tensor<Cuda>> {
        let (held, name) = (weight.weight(), weight.name());
        if self.element() != Element::Bf16 {
            return Err(Error::new("a weight in fp16 is no tensor, because activations are in other units"));
        }
        let stored = held.stored().ok_or_else(|| Error::new(format!("`{name}` is not in the format of a file")))?;
        let (rows, cols) = (held.rows(), held.cols());
        let buffer = self.dequantised(held, stored)?;
        let (x, _) = Tensor::from_buffer(self, buffer, rows.next_multiple_of(PADDING), cols).split_rows(rows);
        Ok(x)
    }

    /// Whether products read e4m3 of files as it is, unless weights are to be in another form: where cuBLASLt
    /// multiplies it. By mma.sync it has to be asked for.
    pub(crate) fn has_fp8(&self) -> bool {
        self.device().capability() == HOPPER && quantise::check_fp8(self.device(), Field::Precision).is_ok()
    }
}
