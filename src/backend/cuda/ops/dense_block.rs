//! A dense block in one buffer: each convolution writes its result next to its input, so nothing is concatenated.
//! Launches the kernels of `conv2d`.

use super::conv2d::Epilogue;
use super::conv2d_input::{Input, Rows};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::{self, Activation, DenseBlock};

/// Channels are read and written 16 bytes at a time.
const MULTIPLE: usize = 8;

impl Cuda {
    pub(crate) fn dense_block_op(&self, x: Tensor<Cuda>, block: &DenseBlock<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let (channels, grown, widest) = (x.cols(), block.slope.cols(), block.widest());
        if !(channels.is_multiple_of(MULTIPLE) && grown.is_multiple_of(MULTIPLE)) {
            self.device().count_composed();
            return ops::dense_block::compose(self, x, block);
        }
        let rows = x.rows();
        // The result is in the first columns of such a buffer, so that the next block finds room next to its input.
        let [out, _] = self.empty(rows, widest)?.split_cols([channels, widest - channels]);
        let [x, mut room] = self.widened(x, widest)?.split_cols([channels, widest - channels]);
        let mut parts = vec![x];
        for (i, (weight, bias)) in block.convs.iter().enumerate() {
            let seen = Tensor::adjacent_cols(&parts.iter().collect::<Vec<_>>()).expect("parts of one buffer");
            let conv = block.conv(weight);
            let input = Input::Image(Rows::new(&seen, None, conv, self.band_bytes())?);
            if i + 1 == block.convs.len() {
                let epilogue = Epilogue { residual: Some(parts.swap_remove(0)), activation: None, out: Some(out) };
                return Ok(self.convolve(input, weight, bias, conv, epilogue)?.pixels);
            }
            let rest = room.cols() - grown;
            let [own, after] = room.split_cols([grown, rest]);
            let epilogue =
                Epilogue { residual: None, activation: Some(Activation::LeakyRelu(block.slope)), out: Some(own) };
            parts.push(self.convolve(input, weight, bias, conv, epilogue)?.pixels);
            room = after;
        }
        Ok(parts.swap_remove(0))
    }

    /// Returns a buffer of `cols` columns that begins with x: its own, if x is the result of an earlier block and
    /// nothing else uses it, else a new one.
    fn widened(&self, x: Tensor<Cuda>, cols: usize) -> Result<Tensor<Cuda>> {
        let x = match x.into_all_columns(cols) {
            Ok(all) => return Ok(all),
            Err(x) => x,
        };
        let wide = self.empty(x.rows(), cols)?;
        // SAFETY: both have the rows, and `wide` at least as many columns; it is new.
        unsafe { self.copy_rows(x.address(), x.stride(), wide.address(), cols, x.rows(), x.cols()) }?;
        Ok(wide)
    }
}
