//! `trait Device`: the device that computes: what it tells of itself, its events and its graphs.

use std::sync::Arc;
use std::time::Duration;

use super::{Bands, Costs, Memory, Participants, Remark, Stats, Storage};
use crate::error::Result;
use crate::tensor::Tensor;

/// A device that computes, in the order in which work is enqueued.
pub trait Device: Memory {
    /// A point in the order of enqueued work.
    type Event;
    /// A piece of work that [`Device::run_graph`] captures and then launches as a whole; the default has captured
    /// nothing.
    type Graph: Default + Send;

    /// Counters since the backend was made.
    fn stats(&self) -> Stats;
    /// What [`Memory::describe`] says, told apart from machines that may round otherwise, and from nothing else.
    fn machine(&self) -> String {
        self.describe()
    }
    /// Whether an image of a batch may be another by rounding than the same image alone: products of other sizes are
    /// summed in other orders.
    fn rounds_by_batch(&self) -> bool {
        true
    }
    /// What the user may want to know about how the backend works on this machine.
    fn remarks(&self) -> Vec<Remark> {
        Vec::new()
    }
    /// Does the preparations that the first op would otherwise make; may run while weights are loaded.
    fn warm_up(&self) -> Result<()> {
        Ok(())
    }
    /// What values take in its memory.
    fn costs(&self) -> Costs;
    /// Has images normed in such bands from here on, where the backend makes them in bands.
    fn use_bands(&self, _bands: Bands) {}
    /// An event after all work enqueued so far.
    fn event(&self) -> Result<Self::Event>;
    /// Whether the work before `event` is done; does not wait.
    fn is_done(&self, event: &Self::Event) -> Result<bool>;
    /// Waits for the work before `event`.
    fn wait(&self, event: &Self::Event) -> Result<()>;
    /// Time from one event to another; both are done.
    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration>;
    /// Has the device multiply values of this storage and do nothing else, in `steps` steps, by the instructions that
    /// kernels for all GPUs use: their ceiling. Returns how many operations that are; none where there are no such
    /// kernels.
    fn multiply_alone(&self, _storage: Storage, _steps: usize) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Runs `work(reads, inputs)`, which may be captured as a graph and from then on launched as a whole.
    ///
    /// `graph` belongs to this piece of work, which does the same each time, with inputs of the same shapes. Everything
    /// else that the work reads is in `reads`: the graph holds it as long as it lives, and nothing writes to it
    /// meanwhile. The work computes on the device only: no upload, download or event. The result owns its memory.
    /// `doers` says which ranks of a group do the work.
    ///
    /// Errors as the work does, and when a captured graph gets inputs of other shapes, or other `reads`. Work that ends
    /// as [`Kind::Cancelled`](crate::error::ErrorKind::Cancelled) says nothing about whether it can be captured: the
    /// next call tries again.
    fn run_graph<R: Send + Sync + 'static, const N: usize>(
        &self,
        _graph: &mut Self::Graph,
        _doers: Participants,
        reads: &Arc<R>,
        inputs: [&Tensor<Self>; N],
        work: impl Fn(&R, [&Tensor<Self>; N]) -> Result<Tensor<Self>>,
    ) -> Result<Tensor<Self>> {
        work(reads, inputs)
    }
}
