//! Partial means and variances of a tensor's channels, which a convolution returns for a group norm that may follow.

use super::Cuda;
use super::buffer::{Buffer, BufferKind};
use super::pieces::RowChunk;
use crate::error::Result;

/// The mean and the sum of squares about the mean, for each channel and each split of the rows, with the number of rows
/// of each split.
pub struct ChannelStatistics {
    /// [splits, channels] pairs, then \[splits\].
    buffer: Buffer,
    /// The number of splits of the rows.
    pub splits: usize,
    channels: usize,
}

impl ChannelStatistics {
    /// Allocates uninitialized statistics.
    pub fn new(cuda: &Cuda, splits: usize, channels: usize) -> Result<Self> {
        Ok(Self { buffer: Buffer::new(cuda.device(), BufferKind::F32, (2 * channels + 1) * splits)?, splits, channels })
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns the device address of `float2 [splits, channels]`: (mean, sum of squares about it).
    pub fn partial(&self) -> u64 {
        self.buffer.address()
    }

    /// Returns the device address of `float [splits]`: rows of each split, which may be zero.
    pub fn counts(&self) -> u64 {
        self.buffer.address() + (2 * self.channels * self.splits * BufferKind::F32.size()) as u64
    }

    /// Returns both arrays as chunks for other ranks: [splits, 2 * channels] and [splits, 1].
    pub fn pieces(&self) -> [RowChunk; 2] {
        let dense = |address, cols| RowChunk::dense(address, [self.splits, cols], BufferKind::F32.size());
        [dense(self.partial(), 2 * self.channels), dense(self.counts(), 1)]
    }
}
