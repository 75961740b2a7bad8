//! `trait WeightStore`: weights in the layouts that linear layers and convolutions read.

use super::{AccessFrequency, Memory, Storage};
use crate::error::Result;
use crate::files::TensorView;
use crate::nn::{Linear, LowRank};
use crate::tensor::Tensor;

/// Loads weights from files, and keeps them.
pub trait WeightStore: Memory {
    /// The weight of a linear layer, in the layout that matrix multiplications read.
    type Weight: Send + Sync;
    /// Memory that the weights of blocks use in turn, and the sources of these weights.
    type BlockStream: Default + Send + Sync;
    /// The weight of a convolution, in the layout that convolutions read.
    type ConvWeight: Send + Sync;
    /// A batch of weights to upload together.
    type Uploads: Sync;

    /// Runs `work`, then uploads the weights that `work` added to its batch. `work` computes nothing with them.
    /// `report` gets the number of elements that were uploaded.
    fn load<T>(&self, work: impl FnOnce(&Self::Uploads) -> Result<T>, report: &mut dyn FnMut(u64)) -> Result<T>;
    /// Makes this device copy later weights from the memory of `other`, if loaded there by then, instead of reading
    /// them from files. Returns `true` if it does: both compute alike and are linked.
    /// [`Device::remarks`](super::Device::remarks) reports a link that can't be used.
    ///
    /// Errors if the user's setting for links is invalid.
    fn copy_weights_from(&self, _other: &Self) -> Result<bool> {
        Ok(false)
    }
    /// Loads a weight matrix with the concatenated rows of `parts`, which have equal numbers of columns. It is uploaded
    /// with `uploads`, or else at once.
    ///
    /// Errors if this backend doesn't multiply weights of this storage, or memory runs out.
    fn load_weight(
        &self,
        parts: &[TensorView],
        storage: Storage,
        uploads: Option<&Self::Uploads>,
    ) -> Result<Self::Weight>;
    /// Loads weights with equal numbers of rows, as [`WeightStore::load_weight`] does, for a sum of matrix
    /// multiplications ([`Tensor::linear_sum`]). A backend may concatenate their columns, so that one matrix
    /// multiplication computes the sum.
    ///
    /// Errors as [`WeightStore::load_weight`].
    fn load_summed_weights(
        &self,
        weights: &[Vec<TensorView>],
        storage: Storage,
        uploads: Option<&Self::Uploads>,
    ) -> Result<Vec<Self::Weight>> {
        weights.iter().map(|parts| self.load_weight(parts, storage, uploads)).collect()
    }
    /// As [`WeightStore::load_weight`], for a block that is streamed: its values are present between
    /// [`WeightStore::enter_block`] of its turn and [`WeightStore::leave_block`]. All weights must be added before
    /// [`WeightStore::allocate_stream`].
    ///
    /// Errors as [`WeightStore::load_weight`].
    fn stream_weight(
        &self,
        _stream: &Self::BlockStream,
        _turn: usize,
        parts: &[TensorView],
        storage: Storage,
    ) -> Result<Self::Weight> {
        self.load_weight(parts, storage, None)
    }
    /// As [`WeightStore::load_summed_weights`] and [`WeightStore::stream_weight`].
    ///
    /// Errors as [`WeightStore::load_weight`].
    fn stream_summed_weights(
        &self,
        stream: &Self::BlockStream,
        turn: usize,
        weights: &[Vec<TensorView>],
        storage: Storage,
    ) -> Result<Vec<Self::Weight>> {
        weights.iter().map(|parts| self.stream_weight(stream, turn, parts, storage)).collect()
    }
    /// Allocates the memory that the blocks of `stream` use in turn; `_passes` is how often they are copied there.
    ///
    /// Errors if memory runs out.
    fn allocate_stream(&self, _stream: &Self::BlockStream, _passes: AccessFrequency) -> Result<()> {
        Ok(())
    }
    /// Makes the weights of block `turn` present for work that is enqueued from here on.
    ///
    /// Errors if they can't be copied. Only one thread at a time may be between this call and
    /// [`WeightStore::leave_block`].
    fn enter_block(&self, _stream: &Self::BlockStream, _turn: usize) -> Result<()> {
        Ok(())
    }
    /// Ends the reads of block `turn`: no work that is enqueued from here on reads its weights.
    fn leave_block(&self, _stream: &Self::BlockStream, _turn: usize) -> Result<()> {
        Ok(())
    }
    /// Returns the weight of `base`, which is not quantized, plus `up down`: accumulated in float32, rounded once, and
    /// then stored as `storage`. `None` if this backend computes the low-rank product separately, and for a weight that
    /// is streamed or quantized in its file.
    ///
    /// Errors if memory runs out.
    fn merge_weight(
        &self,
        _base: &Linear<Self>,
        _low_rank: &LowRank<Self>,
        _storage: Storage,
    ) -> Result<Option<Self::Weight>> {
        Ok(None)
    }
    /// Converts low-rank factors to the layout that matrix multiplications with the weight of `base` read.
    ///
    /// Errors if memory runs out.
    fn factors_for(&self, _base: &Linear<Self>, factors: LowRank<Self>) -> Result<LowRank<Self>> {
        Ok(factors)
    }
    /// Loads the weight [out, in, k, k] of a convolution. It is uploaded with `uploads`, or else at once.
    fn load_conv_weight(&self, view: &TensorView, uploads: Option<&Self::Uploads>) -> Result<Self::ConvWeight>;
    /// Returns rows `ids` of a table [rows, cols] that stays on the host, as activations [ids, cols]. The ids must be
    /// within the table.
    fn embedding(&self, table: &TensorView, ids: &[usize]) -> Result<Tensor<Self>>;
    /// Releases leftovers of loading, without waiting for the device.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
}
