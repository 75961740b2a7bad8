//! `trait WeightStore`: weights in the form in which products and convolutions read them.

use super::{AccessFrequency, Memory, Storage};
use crate::error::Result;
use crate::files::TensorView;
use crate::nn::{Linear, LowRank};
use crate::tensor::Tensor;

/// Loads weights from files, and keeps them.
pub trait WeightStore: Memory {
    /// The weight of a linear layer, in the form in which products read it.
    type Weight: Send + Sync;
    /// Memory in which weights of blocks take turns, and where they come from.
    type BlockStream: Default + Send + Sync;
    /// The weight of a convolution, in the form in which convolutions read it.
    type ConvWeight: Send + Sync;
    /// Weights that go up together.
    type Uploads: Sync;

    /// Runs `work`, and then uploads the weights that it loaded with what it is given. It computes nothing with them.
    /// `report` is called with the number of elements that were uploaded.
    fn load<T>(&self, work: impl FnOnce(&Self::Uploads) -> Result<T>, report: &mut dyn FnMut(u64)) -> Result<T>;
    /// Has this device copy the weights that it loads from here on out of the memory of `other`, where that one has
    /// them by then, instead of reading them from files. Returns whether it does: where both compute alike and are
    /// linked. A link that cannot be used is told by [`Device::remarks`](super::Device::remarks).
    ///
    /// Errors when the user's wish about links is none.
    fn copy_weights_from(&self, _other: &Self) -> Result<bool> {
        Ok(false)
    }
    /// A weight matrix whose rows are the parts' rows, one part under the other; all parts have the same number of
    /// columns. It is uploaded with others, or else at once.
    ///
    /// Errors when this backend does not multiply weights of this storage, or memory runs out.
    fn load_weight(
        &self,
        parts: &[TensorView],
        storage: Storage,
        uploads: Option<&Self::Uploads>,
    ) -> Result<Self::Weight>;
    /// Weights of as many rows each, as [`WeightStore::load_weight`] makes them, whose products are summed
    /// ([`Tensor::linear_sum`]). A backend may lay them side by side, so that one product gives the sum.
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
    /// As [`WeightStore::load_weight`], of a block that is streamed: its values are there between
    /// [`WeightStore::enter_block`] of its turn and [`WeightStore::leave_block`]. All weights come before
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
    /// Makes the memory in which the blocks of `stream` take turns, which are copied there so often.
    ///
    /// Errors when memory runs out.
    fn allocate_stream(&self, _stream: &Self::BlockStream, _passes: AccessFrequency) -> Result<()> {
        Ok(())
    }
    /// Work that is enqueued from here on finds the weights of block `turn` in their place.
    ///
    /// Errors when they cannot be copied there. Only one thread at a time is between this and
    /// [`WeightStore::leave_block`].
    fn enter_block(&self, _stream: &Self::BlockStream, _turn: usize) -> Result<()> {
        Ok(())
    }
    /// No work that is enqueued from here on reads the weights of block `turn`.
    fn leave_block(&self, _stream: &Self::BlockStream, _turn: usize) -> Result<()> {
        Ok(())
    }
    /// The weight of `base`, which is not quantised, with `up down` added: summed in float32, rounded once, and then
    /// stored as `storage` says. None where this backend computes the low-rank product beside that of the weight, and
    /// for a weight that is streamed, or in few bits in its file.
    ///
    /// Errors when memory runs out.
    fn merge_weight(
        &self,
        _base: &Linear<Self>,
        _low_rank: &LowRank<Self>,
        _storage: Storage,
    ) -> Result<Option<Self::Weight>> {
        Ok(None)
    }
    /// Factors of low rank as products read them beside the weight of `base`.
    ///
    /// Errors when memory runs out.
    fn factors_beside(&self, _base: &Linear<Self>, factors: LowRank<Self>) -> Result<LowRank<Self>> {
        Ok(factors)
    }
    /// The weight [out, in, k, k] of a convolution. It is uploaded with others, or else at once.
    fn load_conv_weight(&self, view: &TensorView, uploads: Option<&Self::Uploads>) -> Result<Self::ConvWeight>;
    /// Rows `ids` of a table [rows, cols] that stays on the host, as activations [ids, cols]. The ids are inside the
    /// table.
    fn embedding(&self, table: &TensorView, ids: &[usize]) -> Result<Tensor<Self>>;
    /// Releases what loading left behind, without waiting for the device.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
}
