//! `trait Device`: the device that computes, with its metadata, events and graphs.

use std::sync::Arc;
use std::time::Duration;

use super::{Bands, Costs, Memory, Participants, Remark, Stats, Storage};
use crate::error::Result;
use crate::tensor::Tensor;

/// A device that computes, in the order in which work is enqueued.
pub trait Device: Memory {
    /// A point in the order of enqueued work.
    type Event;
    /// Work that [`Device::run_graph`] captures once and then launches as a whole; the default is not captured yet.
    type Graph: Default + Send;

    /// Returns the counters since the backend was created.
    fn stats(&self) -> Stats;
    /// Returns [`Memory::describe`], in a form that differs exactly between machines that may round differently.
    fn machine(&self) -> String {
        self.describe()
    }
    /// Returns `true` if a batched image may differ from a single one by rounding: matrix multiplications of other
    /// sizes accumulate in another order.
    fn rounds_by_batch(&self) -> bool {
        true
    }
    /// Returns notes for the user about how the backend works on this machine.
    fn remarks(&self) -> Vec<Remark> {
        Vec::new()
    }
    /// Prepares what the first op would otherwise have to; may run while weights are loaded.
    fn warm_up(&self) -> Result<()> {
        Ok(())
    }
    /// Returns the memory costs of the device.
    fn costs(&self) -> Costs;
    /// Sets the bands of later normed convolutions, if the backend uses bands.
    fn use_bands(&self, _bands: Bands) {}
    /// Runs `work`, in which convolutions leave outputs of more than `bytes` bytes in host memory, if the device has
    /// memory of its own. Ops on them copy some rows at a time to the device. This changes the memory and not the
    /// results. No graph may capture such work.
    fn with_max_resident<T>(&self, _bytes: u64, work: impl FnOnce() -> T) -> T {
        work()
    }
    /// Returns the bytes of host memory that such outputs take now.
    fn host_bytes(&self) -> u64 {
        0
    }
    /// Returns an event after all work enqueued so far.
    fn event(&self) -> Result<Self::Event>;
    /// Returns `true` if the work before `event` is done; does not wait.
    fn is_done(&self, event: &Self::Event) -> Result<bool>;
    /// Waits for the work before `event`.
    fn wait(&self, event: &Self::Event) -> Result<()>;
    /// Returns the time between two events that are both done.
    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration>;
    /// Runs only matrix multiplications of this storage, in `steps` steps, with the instructions of the kernels for all
    /// GPUs: their ceiling. Returns the number of operations; `None` without such kernels.
    fn multiply_alone(&self, _storage: Storage, _steps: usize) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Runs `work(reads, inputs)`, which may be captured as a graph and launched as a whole in later calls.
    ///
    /// `graph` belongs to this work, which does the same each time, with inputs of the same shapes. All other operands
    /// are in `reads`: the graph holds them as long as it lives, and they are not written meanwhile. The work computes
    /// on the device only: no upload, download or event. The result owns its memory. `doers` are the ranks of the group
    /// that do the work.
    ///
    /// Errors as the work does, and if a captured graph gets inputs of other shapes or other `reads`. Work that ends as
    /// [`Kind::Cancelled`](crate::error::ErrorKind::Cancelled) doesn't count as impossible to capture: the next call
    /// tries again.
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
