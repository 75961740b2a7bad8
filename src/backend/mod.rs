//! `trait Backend`: where tensors live and ops run.
//!
//! It is the sum of [`Device`], [`Group`], [`WeightStore`] and [`Ops`], on [`Memory`]. [`cpu::Cpu`] inherits most of
//! the fused ops; [`cuda::Cuda`] replaces them with kernels that are tested against what they stand for.

mod costs;
pub mod cpu;
pub mod cuda;
mod device;
mod graph_cache;
mod group;
mod member;
mod memory;
mod ops;
mod reservations;
mod slab_schedule;
mod weight_store;

pub use costs::{Bands, Costs, GEMM_WORKSPACE_BYTES, IM2COL_BYTES};
pub use device::Device;
pub use graph_cache::{GraphCache, RepeatedWork};
pub use group::Group;
pub use memory::Memory;
pub use ops::Ops;
pub use reservations::{Claim, Claimant, Promised, Reservation, Reservations};
pub use slab_schedule::{SLABS, SlabSchedule, slab_bytes, slab_of};
pub use weight_store::WeightStore;

use crate::error::{Error, Result};

/// The memory that a backend holds, and counts of what it did. Backends on the host report zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Bytes of device memory in use now.
    pub memory_bytes: u64,
    /// The most that was in use at once.
    pub peak_memory_bytes: u64,
    /// Kernels, library calls and copies on the device that were enqueued.
    pub launches: u64,
    /// Times the host waited for the device.
    pub waits: u64,
    /// Copies between host and device.
    pub copies: u64,
    /// Device allocations.
    pub allocations: u64,
    /// Fused ops that ran as their composition because no kernel covers the shape.
    pub composed: u64,
    /// Launches of graphs; the work inside a graph is counted nowhere else.
    pub graph_launches: u64,
    /// Pieces of work that could not be captured; [`Device::remarks`] says why.
    pub uncaptured: u64,
}

/// Which ranks of a group do a piece of work. A backend that is in no group is all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Participants {
    /// All, at the same time: it may have collectives.
    All,
    /// One alone.
    One,
}

/// How often the blocks of a component are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessFrequency {
    /// For a new prompt.
    Seldom,
    /// At every step of an image.
    Often,
}

/// How a backend stores the weight of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// As the file has it, or in the type in which the backend computes.
    Native,
    /// e4m3 with a float32 scale for each output feature.
    Fp8,
    /// 8-bit integers with a float32 scale for each output feature, whose input features may be rotated; see
    /// [`crate::files::int8`].
    Int8,
    /// 4 bits that are multiplied as such integers: see [`crate::files::w4a8`]. Rows that do not suit it are in `Int8`.
    W4a8,
}

/// Something about how a backend works that the user may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// For the curious.
    Detail(String),
    /// For everybody.
    Warning(String),
}

/// All of a backend: a place where tensors live and ops run.
pub trait Backend: Device + Group + WeightStore + Ops {}

impl<B: Device + Group + WeightStore + Ops> Backend for B {}

/// What is wrong with an image that has a pixel that is NaN.
pub const NOT_NUMBERS: &str = "the model computed pixels that are not numbers";

/// The error for such an image.
fn not_a_number() -> Error {
    Error::new(NOT_NUMBERS).hint("the weights are damaged: fetch the model again")
}

/// Errors unless `bytes` are three for each pixel.
fn expect_rgb8(bytes: &[u8], height: usize, width: usize) -> Result<()> {
    if height.checked_mul(width).and_then(|pixels| pixels.checked_mul(3)) == Some(bytes.len()) {
        return Ok(());
    }
    Err(Error::new(format!("{} bytes do not make {height} x {width} pixels of RGB", bytes.len()))
        .at("op `upload_rgb8`"))
}

/// The error for host values whose number does not fit their shape.
fn wrong_length(len: usize, rows: usize, cols: usize) -> Error {
    Error::new(format!("{len} values do not make [{rows}, {cols}]")).at("op `upload`")
}
