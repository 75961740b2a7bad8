//! Means and variances of a tensor's channels in pieces, which a convolution returns for a group norm that may follow.

use super::Cuda;
use super::buffer::{Buffer, BufferKind};
use super::pieces::RowChunk;
use crate::error::Result;

/// Of each channel and each of some splits of the rows: mean, and sum of squares about it; and the number of rows of
/// each split.
pub struct ChannelStatistics {
    /// [splits, channels] pairs, then \[splits\].
    buffer: Buffer,
    splits: usize,
    channels: usize,
}

impl ChannelStatistics {
    /// Room for them, not initialised.
    pub fn new(cuda: &Cuda, splits: usize, channels: usize) -> Result<Self> {
        Ok(Self { buffer: Buffer::new(cuda.device(), BufferKind::F32, (2 * channels + 1) * splits)?, splits, channels })
    }

    /// Splits of the rows.
    pub fn splits(&self) -> usize {
        self.splits
    }

    /// Channels that there are statistics of.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Device address of `float2 [splits, channels]`: (mean, sum of squares about it).
    pub fn partial(&self) -> u64 {
        self.buffer.address()
    }

    /// Device address of `float [splits]`: rows of each split, which may be none.
    pub fn counts(&self) -> u64 {
        self.buffer.address() + (2 * self.channels * self.splits * BufferKind::F32.size()) as u64
    }

    /// Both, for other ranks: [splits, 2 * channels] and [splits, 1].
    pub fn pieces(&self) -> [RowChunk; 2] {
        let dense = |address, cols| RowChunk::dense(address, [self.splits, cols], BufferKind::F32.size());
        [dense(self.partial(), 2 * self.channels), dense(self.counts(), 1)]
    }
}
