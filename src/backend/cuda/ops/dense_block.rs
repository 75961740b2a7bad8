//! A dense block in one buffer: each convolution writes its result next to its input, so nothing is concatenated.
//! Launches the kernels of `conv2d`.

use super::conv2d::Epilogue;
use super::conv2d_input::{Input, Rows};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::ops::{self, Activation, DenseBlock};

/// Channels are read and written 16 bytes at a time.
const MULTIPLE: usize = 8;

impl Cuda {
    pub(crate) fn dense_block_op(&self, x: Tensor<Cuda>, block: &DenseBlock<'_, Cuda>) -> Result<Tensor<Cuda>> {
        if !fits(&x, block) {
            self.device().count_composed();
            return ops::dense_block::compose(self, x, block);
        }
        let [x, room] = self.widened(x, block)?;
        self.dense_block_beside(x, room, block)
    }

    /// Keeps x in its buffer next to the first block's results, so that it is never copied there.
    pub(crate) fn dense_block_sum_op(
        &self,
        x: Tensor<Cuda>,
        blocks: &[DenseBlock<'_, Cuda>],
        scale: &Tensor<Cuda>,
    ) -> Result<Tensor<Cuda>> {
        let Some((first, rest)) = blocks.split_first().filter(|(first, _)| fits(&x, first)) else {
            self.device().count_composed();
            return ops::dense_block::compose_sum(self, x, blocks, scale);
        };
        let [x, room] = self.widened(x, first)?;
        let z = self.dense_block_beside(x.row_view(0..x.rows()), room, first)?;
        let z = rest.iter().try_fold(z, |z, block| self.dense_block_op(z, block))?;
        self.gated_add_op(x, scale, &z)
    }

    /// Computes a block whose results go to `room`, the columns next to x in its buffer.
    fn dense_block_beside(
        &self,
        x: Tensor<Cuda>,
        mut room: Tensor<Cuda>,
        block: &DenseBlock<'_, Cuda>,
    ) -> Result<Tensor<Cuda>> {
        let (channels, grown, widest) = (x.cols(), block.slope.cols(), block.widest());
        // The result is in the first columns of such a buffer, so that the next block finds room next to its input.
        let [out, _] = self.empty(x.rows(), widest)?.split_cols([channels, widest - channels]);
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

    /// Returns x and the room for a block's results next to it: in its own buffer, if x is the result of an earlier
    /// block and nothing else uses it, else in a new one.
    fn widened(&self, x: Tensor<Cuda>, block: &DenseBlock<'_, Cuda>) -> Result<[Tensor<Cuda>; 2]> {
        let (channels, widest) = (x.cols(), block.widest());
        let all = x.into_all_columns(widest).or_else(|x| {
            let wide = self.empty(x.rows(), widest)?;
            // SAFETY: both have the rows, and `wide` at least as many columns; it is new.
            unsafe { self.copy_rows(x.address(), x.stride(), wide.address(), widest, x.rows(), channels) }?;
            Ok::<_, Error>(wide)
        })?;
        Ok(all.split_cols([channels, widest - channels]))
    }
}

/// Returns `true` if channels can be read and written 16 bytes at a time.
fn fits(x: &Tensor<Cuda>, block: &DenseBlock<'_, Cuda>) -> bool {
    x.cols().is_multiple_of(MULTIPLE) && block.slope.cols().is_multiple_of(MULTIPLE)
}
