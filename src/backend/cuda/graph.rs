//! CUDA graphs: repeated work, captured once and then launched as a whole.
//!
//! The first run allocates from the arena (see [`memory`](super::memory)), loads kernels and makes plans. Right after
//! it the work is captured at the same addresses, while the device computes. Each later run is one launch: inputs are
//! copied to the addresses that the graph reads, its output to a new tensor; [`gemm`](super::gemm) clears counters
//! before the launch. All graphs share the arena, because one stream runs them one after the other. `FLUX_GRAPH=0`
//! disables graphs.
//!
//! Ranks of a group capture work together, because the captured kernels write into each other's memory, and launch only
//! graphs that were captured together.

use std::any::Any;
use std::env;
use std::ffi::OsStr;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::buffer::Buffer;
use super::capture::Captured;
use super::device::Device;
use super::driver::failed;
use super::event::Event;
use super::gemm::{Cleared, Gemm, TileCounters};
use super::group::Rank;
use super::{Cuda, Tensor};
use crate::backend::Participants;
use crate::error::{self, Error, Result};

const VARIABLE: &str = "FLUX_GRAPH";
/// Many times the size of the graph of a step of a large model.
const MAX_GRAPH_BYTES: u64 = 64 << 20;

/// The state of work between its runs.
#[derive(Default)]
pub enum Graph {
    /// Not captured yet.
    #[default]
    New,
    /// Launched as a whole.
    Captured(Executable),
    /// Could not be captured, or needs more memory than there is.
    Refused,
}

/// A captured graph, with its share of the arena and all other memory that it reads.
pub struct Executable {
    exec: sys::CUgraphExec,
    /// Counters to clear before each launch.
    cleared: Cleared,
    reads: Arc<dyn Any + Send + Sync>,
    /// Device memory that the driver uses for it.
    bytes: u64,
    /// The capture number, equal on all ranks of a group that captured it together; 0 for a capture by one rank.
    together: u64,
    /// Address, rows and columns, each dense.
    inputs: Vec<(u64, usize, usize)>,
    out: Cells,
    device: Arc<Device>,
}

/// Captured work; the fields are as in [`Executable`].
struct Recorded {
    captured: Captured,
    together: u64,
    inputs: Vec<(u64, usize, usize)>,
    out: Cells,
}

/// The address and shape of a tensor's cells, without the tensor.
#[derive(Clone, Copy)]
struct Cells {
    address: u64,
    rows: usize,
    cols: usize,
    stride: usize,
}

// SAFETY: the driver's handle is a plain address that any thread may use once the context is current there; `&mut`
// ensures one user at a time.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        let done = Event::new(&self.device, self.device.stream).and_then(|event| event.wait());
        if done.is_ok() {
            // SAFETY: the handle is destroyed once, after its last launch is done. Errors have been reported to callers
            // before.
            let _ = unsafe { result::graph::exec_destroy(self.exec) };
        }
        self.device.budget.release_outside(self.bytes);
        self.device.leave_arena();
    }
}

/// Returns `true` if the user wants graphs.
fn wanted(value: Option<&OsStr>) -> Result<bool> {
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("" | "1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => {
            Err(Error::usage(format!("`{other}` is neither 0 nor 1")).at(VARIABLE).hint("`0` turns CUDA graphs off"))
        }
    }
}

/// Makes all ranks act alike: they launch graphs that were captured together, or capture the work, or neither.
fn agree(rank: &Rank, graph: &mut Graph) -> Result<()> {
    const REFUSED: u64 = u64::MAX;
    let own = match graph {
        Graph::New => 0,
        Graph::Captured(executable) => executable.together,
        Graph::Refused => REFUSED,
    };
    let all = rank.member.exchange("a graph", vec![own; rank.member.world()])?;
    if all.contains(&REFUSED) {
        *graph = Graph::Refused;
    } else if all.iter().any(|other| *other != own) {
        *graph = Graph::New;
    }
    Ok(())
}

impl Cuda {
    /// See [`crate::backend::Device::run_graph`].
    pub(super) fn run_graph_op<R: Send + Sync + 'static, const N: usize>(
        &self,
        graph: &mut Graph,
        doers: Participants,
        reads: &Arc<R>,
        inputs: [&Tensor<Cuda>; N],
        work: impl Fn(&R, [&Tensor<Cuda>; N]) -> Result<Tensor<Cuda>>,
    ) -> Result<Tensor<Cuda>> {
        if !wanted(env::var_os(VARIABLE).as_deref())? {
            return work(reads, inputs);
        }
        // Graphs share the arena, so the copies of one must not run between the copies and the launch of another.
        let _one_at_a_time = self.0.graph_order.lock();
        let group = self.group_rank().filter(|_| doers == Participants::All);
        if let Some(rank) = group {
            agree(rank, graph)?;
        }
        match graph {
            Graph::New => match self.run_and_capture(group, reads, inputs, &|inputs| work(reads, inputs)) {
                Ok((out, captured)) => {
                    *graph = captured;
                    Ok(out)
                }
                Err(error) if error.kind() == error::ErrorKind::Cancelled => Err(error),
                // A failure with another cause occurs again in `work`.
                Err(error) => {
                    *graph = self.refused(&error);
                    // The other ranks wait for the rest of the failed work, so it can't be restarted.
                    if group.is_some() { Err(error) } else { work(reads, inputs) }
                }
            },
            Graph::Captured(graph) => {
                let captured: *const () = Arc::as_ptr(&graph.reads).cast();
                if captured != Arc::as_ptr(reads).cast() {
                    return Err(Error::new("the CUDA graph was captured with different inputs"));
                }
                self.launch_graph(graph, inputs)
            }
            Graph::Refused => work(reads, inputs),
        }
    }

    fn refused(&self, error: &Error) -> Graph {
        self.device().counters.uncaptured.add(1);
        let mut remark = self.0.uncaptured.lock();
        remark.get_or_insert_with(|| {
            format!(
                "kernels are launched one by one, because they could not be captured in a CUDA graph: {}",
                error.what()
            )
        });
        Graph::Refused
    }

    /// Runs `work`, and returns its result and a graph of it, or the reason that there is no graph.
    fn run_and_capture<const N: usize>(
        &self,
        group: Option<&Rank>,
        reads: &Arc<impl Send + Sync + 'static>,
        inputs: [&Tensor<Cuda>; N],
        work: &impl Fn([&Tensor<Cuda>; N]) -> Result<Tensor<Cuda>>,
    ) -> Result<(Tensor<Cuda>, Graph)> {
        let arena = ArenaGuard::enter(self.device())?;
        let out = {
            let fixed = self.fixed(inputs)?;
            let result = work(fixed.each_ref())?;
            if !result.is_activation() {
                return Err(Error::new("results of captured work must be activations"));
            }
            arena.suspend();
            self.copy_out(Cells::new(&result))?
        };
        let graph = match self.capture(arena, group, reads, inputs, work) {
            Ok(graph) => Graph::Captured(graph),
            Err(error) if error.kind() == error::ErrorKind::Cancelled => Graph::New,
            Err(error) => self.refused(&error),
        };
        Ok((out, graph))
    }

    /// Captures `work` as a graph, at the addresses of its first run.
    fn capture<const N: usize>(
        &self,
        arena: ArenaGuard<'_>,
        group: Option<&Rank>,
        reads: &Arc<impl Send + Sync + 'static>,
        inputs: [&Tensor<Cuda>; N],
        work: &impl Fn([&Tensor<Cuda>; N]) -> Result<Tensor<Cuda>>,
    ) -> Result<Executable> {
        arena.repeat();
        let recorded = self.record(group, inputs, work).inspect_err(|error| {
            // Other ranks may wait for the rest of the work to capture, but for nothing after it.
            if error.kind() != error::ErrorKind::Cancelled {
                group.iter().for_each(|rank| rank.member.abort(error));
            }
        });
        let Recorded { captured, together, inputs, out } = recorded?;
        // The counters of this thread's capture: while this thread is in the arena, there is no other capture.
        let cleared = self.tile_counters().map_or(Ok(Cleared::default()), |counters| counters.take_over(&captured))?;
        let (exec, bytes) = self.instantiate(&captured)?;
        // From here on the graph owns `exec`, the counted bytes, and a share of the arena.
        let reads = Arc::clone(reads) as _;
        Ok(Executable { exec, cleared, reads, bytes, together, inputs, out, device: arena.share() })
    }

    /// Captures `work` with inputs at fixed addresses, without running it.
    fn record<const N: usize>(
        &self,
        group: Option<&Rank>,
        inputs: [&Tensor<Cuda>; N],
        work: &impl Fn([&Tensor<Cuda>; N]) -> Result<Tensor<Cuda>>,
    ) -> Result<Recorded> {
        let device = self.device();
        let fixed = self.fixed_places(inputs)?;
        let (launches, composed) = (&device.counters.launches, &device.counters.composed);
        let together = group.map_or(Ok(0), Rank::next_capture)?;
        let capture = device.begin_capture()?;
        if let Some(counters) = self.tile_counters() {
            counters.begin_capture();
        }
        let before = (launches.get(), composed.get());
        let out = work(fixed.each_ref()).map(|out| Cells::new(&out));
        // Captured launches were not enqueued. No other thread enqueues before the capture ends.
        launches.reset(before.0);
        composed.reset(before.1);
        let captured = capture.end();
        // The error of the work is more specific than that of the capture that it broke.
        let (out, captured) = (out?, captured?);
        let inputs = fixed.iter().map(|x| (x.address(), x.rows(), x.cols())).collect();
        Ok(Recorded { captured, together, inputs, out })
    }

    /// Returns the tile counters of this handle's matrix multiplications, if it has run any.
    fn tile_counters(&self) -> Option<&TileCounters> {
        self.0.gemm.get().map(Gemm::tile_counters)
    }

    /// Creates an executable graph and uploads it, so that its first launch doesn't have to. Returns the bytes of
    /// device memory that it takes.
    fn instantiate(&self, captured: &Captured) -> Result<(sys::CUgraphExec, u64)> {
        let device = self.device();
        let _submission = device.submit(device.stream)?;
        let before = device.free_or_pooled_bytes()?;
        // SAFETY: the graph was captured, and lives; the executable doesn't need it afterwards.
        let exec = unsafe { result::graph::instantiate(captured.raw(), sys::CUgraphInstantiate_flags(0)) };
        let exec = exec.map_err(|e| failed("cannot create a CUDA graph", e))?;
        // SAFETY: both handles live.
        let uploaded = unsafe { result::graph::upload(exec, device.stream.raw()) };
        let counted = uploaded.map_err(|e| failed("cannot upload a CUDA graph to the GPU", e)).and_then(|()| {
            // Other processes may allocate and free memory meanwhile, so limit the count to the max of a graph.
            let bytes = before.saturating_sub(device.free_or_pooled_bytes()?).min(MAX_GRAPH_BYTES);
            if device.budget.reserve_outside(bytes) { Ok(bytes) } else { Err(device.budget.full(bytes)) }
        });
        let bytes = counted.inspect_err(|_| {
            // SAFETY: created above, and never launched.
            let _ = unsafe { result::graph::exec_destroy(exec) };
        })?;
        Ok((exec, bytes))
    }

    fn launch_graph<const N: usize>(&self, graph: &Executable, inputs: [&Tensor<Cuda>; N]) -> Result<Tensor<Cuda>> {
        let device = self.device();
        let fits = graph.inputs.len() == N
            && graph.inputs.iter().zip(inputs).all(|((_, rows, cols), x)| (*rows, *cols) == (x.rows(), x.cols()));
        if !fits {
            return Err(Error::new("the inputs have a different shape than the captured ones"));
        }
        for ((address, rows, cols), x) in graph.inputs.iter().zip(inputs) {
            // SAFETY: x is a live tensor with the shape of the input, which is dense in the arena.
            unsafe { self.copy_rows(x.address(), x.stride(), *address, *cols, *rows, *cols) }?;
        }
        let _submission = device.submit(device.stream)?;
        self.tile_counters().map_or(Ok(()), |counters| counters.clear(device, graph.cleared))?;
        // SAFETY: the graph's kernels use the arena, which the graph holds and no other work on this stream uses
        // meanwhile, and memory that the caller of `Device::run_graph` promised to keep.
        unsafe { result::graph::launch(graph.exec, device.stream.raw()) }
            .map_err(|e| failed("cannot launch a CUDA graph", e))?;
        device.counters.graph_launches.add(1);
        self.copy_out(graph.out)
    }

    /// Allocates dense tensors with the shapes of `inputs` in the arena.
    fn fixed_places<const N: usize>(&self, inputs: [&Tensor<Cuda>; N]) -> Result<[Tensor<Cuda>; N]> {
        if inputs.iter().any(|x| !x.is_activation()) {
            return Err(Error::new("inputs of captured work must be activations"));
        }
        let fixed = inputs.iter().map(|x| self.empty(x.rows(), x.cols())).collect::<Result<Vec<_>>>()?;
        Ok(fixed.try_into().unwrap_or_else(|_| unreachable!("one tensor per input")))
    }

    /// Copies `inputs` to dense tensors in the arena.
    fn fixed<const N: usize>(&self, inputs: [&Tensor<Cuda>; N]) -> Result<[Tensor<Cuda>; N]> {
        let fixed = self.fixed_places(inputs)?;
        for (to, x) in fixed.iter().zip(inputs) {
            self.copy_cells(x, to)?;
        }
        Ok(fixed)
    }

    /// Copies cells to a new tensor, including the gaps between rows, so that one contiguous copy is enough.
    fn copy_out(&self, Cells { address, rows, cols, stride }: Cells) -> Result<Tensor<Cuda>> {
        let buffer = Buffer::new(self.device(), self.element().kind(), rows * stride)?;
        if rows > 0 {
            let dense = (rows - 1) * stride + cols;
            // SAFETY: the cells belong to a tensor that the work just wrote, which the arena holds; `buffer` has room.
            unsafe { self.copy_rows(address, dense, buffer.address(), dense, 1, dense) }?;
        }
        let [out, _] = Tensor::from_buffer(self, buffer, rows, stride).split_cols([cols, stride - cols]);
        Ok(out)
    }
}

impl Cells {
    fn new(x: &Tensor<Cuda>) -> Self {
        Self { address: x.address(), rows: x.rows(), cols: x.cols(), stride: x.stride().max(x.cols()) }
    }
}

/// Makes this thread allocate from the arena while it lives, except when suspended. It holds a share of the arena.
struct ArenaGuard<'a>(&'a Arc<Device>);

impl<'a> ArenaGuard<'a> {
    /// Errors if another thread uses the arena.
    fn enter(device: &'a Arc<Device>) -> Result<Self> {
        device.arena.lock().enter()?;
        Ok(Self(device))
    }

    fn suspend(&self) {
        self.0.arena.lock().suspend();
    }

    /// Returns the places of the first run again, in order.
    fn repeat(&self) {
        self.0.arena.lock().repeat();
    }

    /// Returns a share of the arena that outlives this guard.
    fn share(&self) -> Arc<Device> {
        self.0.arena.lock().share();
        Arc::clone(self.0)
    }
}

impl Drop for ArenaGuard<'_> {
    fn drop(&mut self) {
        self.0.arena.lock().exit();
        self.0.leave_arena();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_0_or_1_or_an_error() {
        let wanted = |value: &str| wanted(Some(OsStr::new(value)));
        assert_eq!([wanted("").unwrap(), wanted("1").unwrap(), wanted("0").unwrap()], [true, true, false]);
        let message = wanted("no").unwrap_err().to_string();
        assert!(message.contains("`no`") && message.contains("FLUX_GRAPH"), "{message}");
    }
}
