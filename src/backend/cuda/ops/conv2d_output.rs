//! The output of a convolution and its residual: in device memory, or in host memory. Rows of a tensor in host memory
//! are on the device only while a convolution reads or writes them.

use std::ops::Range;

use super::conv2d_input::BAND_MULTIPLE;
use crate::backend::cuda::buffer::{Buffer, BufferKind};
use crate::backend::cuda::element::Element;
use crate::backend::cuda::gemm::{Matrix, Product};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

/// The alignment of memory from the driver, on which the choice of an algorithm depends.
const ALIGNMENT: u64 = 256;

/// Device memory for some rows of a tensor in host memory.
#[derive(Default)]
pub struct Stage(Option<Buffer>);

impl Stage {
    /// Returns device memory for `rows` rows like those of `host`, as aligned as `host`. Earlier rows are lost.
    pub fn room(&mut self, cuda: &Cuda, host: Matrix, rows: usize) -> Result<Matrix> {
        let past = host.address % ALIGNMENT;
        let bytes = rows * host.stride * Element::BYTES + past as usize;
        let buffer = match self.0.take().filter(|buffer| buffer.bytes() >= bytes) {
            Some(buffer) => buffer,
            None => Buffer::new(cuda.device(), BufferKind::Byte, bytes)?,
        };
        let address = buffer.address() + past;
        self.0 = Some(buffer);
        Ok(Matrix { address, ..host })
    }

    /// Copies rows of 16-bit values in host memory to the device, and returns their place. Earlier rows are lost.
    ///
    /// # Safety
    /// There are `rows` rows of `cols` values in a live buffer.
    pub unsafe fn load(&mut self, cuda: &Cuda, from: Matrix, [rows, cols]: [usize; 2]) -> Result<Matrix> {
        let to = self.room(cuda, from, rows)?;
        // SAFETY: `room` made memory for the rows; the caller promises the rest.
        unsafe { cuda.copy_host_rows(from, to, [rows, cols]) }?;
        Ok(to)
    }
}

/// The output of a convolution, and the residual that is added to it, which may be the same tensor.
pub struct Output<'a> {
    out: &'a Tensor<Cuda>,
    pub residual: Option<&'a Tensor<Cuda>>,
    stage: Stage,
    /// The open rows of an output in host memory, and their place on the device.
    open: Option<(Range<usize>, Matrix)>,
}

impl<'a> Output<'a> {
    pub fn new(out: &'a Tensor<Cuda>, residual: Option<&'a Tensor<Cuda>>) -> Self {
        Self { out, residual, stage: Stage::default(), open: None }
    }

    pub fn tensor(&self) -> &'a Tensor<Cuda> {
        self.out
    }

    /// Returns the max rows of pixels of a band, each with `pixels` rows of the output. It limits only bands of an
    /// output in host memory: these are of at most `bytes` bytes, but have at least BAND_MULTIPLE rows of pixels.
    pub fn max_band(&self, pixels: usize, bytes: usize) -> usize {
        if !self.out.buffer().is_on_host() {
            return usize::MAX;
        }
        band_within(bytes, pixels * self.out.stride() * Element::BYTES)
    }

    /// Returns the places of `rows` of the output, and of the residual. The rows of an output in host memory are on
    /// the device until [`Output::close`], and only one range of them at a time.
    pub fn open(&mut self, rows: Range<usize>) -> Result<(Matrix, Option<Matrix>)> {
        let cuda = self.out.backend();
        let own = Matrix::new(self.out).row(rows.start, Element::BYTES);
        let to = if self.out.buffer().is_on_host() {
            let to = self.stage.room(cuda, own, rows.len())?;
            self.open = Some((rows.clone(), to));
            to
        } else {
            own
        };
        let Some(residual) = self.residual else { return Ok((to, None)) };
        let from = Matrix::new(residual).row(rows.start, Element::BYTES);
        if !residual.buffer().is_on_host() {
            return Ok((to, Some(from)));
        }
        // The kernels accept a residual in the place of the output.
        // SAFETY: the residual has the rows, and `to` is memory for as many of the same columns.
        unsafe { cuda.copy_host_rows(from, to, [rows.len(), residual.cols()]) }?;
        Ok((to, Some(to)))
    }

    /// Returns `product` of `rows`, in their places; see [`Output::open`].
    pub fn open_product(&mut self, product: &Product, rows: Range<usize>) -> Result<Product> {
        let (out, residual) = self.open(rows.clone())?;
        Ok(Product { out, residual, ..product.rows(rows) })
    }

    /// Ends [`Output::open`]: copies rows of an output in host memory there.
    pub fn close(&mut self) -> Result<()> {
        let Some((rows, from)) = self.open.take() else { return Ok(()) };
        let to = Matrix::new(self.out).row(rows.start, Element::BYTES);
        // SAFETY: the output has the rows, and `open` made memory for as many of the same stride.
        unsafe { self.out.backend().copy_host_rows(from, to, [rows.len(), self.out.cols()]) }
    }
}

/// Returns the most rows of a band of at most `bytes` bytes, but at least BAND_MULTIPLE.
fn band_within(bytes: usize, row_bytes: usize) -> usize {
    (bytes / row_bytes.max(1) / BAND_MULTIPLE).max(1) * BAND_MULTIPLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_of_an_output_are_multiples_of_tiles() {
        assert_eq!([0, 1, 16, 47, 48].map(|bytes| band_within(bytes, 1)), [16, 16, 16, 32, 48]);
        assert_eq!(band_within(64 << 20, 4096 * 128 * 2), 64, "the last block of 4096 x 4096");
        assert_eq!(band_within(64 << 20, 4 * 2048 * 256 * 2), 16, "the upsampler before it");
    }
}
