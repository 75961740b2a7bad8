//! `trait Backend`: the devices that hold tensors and run ops.
//!
//! A backend combines [`Device`], [`Group`], [`WeightStore`] and [`Ops`], on [`Memory`], and knows nothing about
//! models. [`cpu::Cpu`] inherits most of the fused ops; [`cuda::Cuda`] replaces them with kernels that are tested
//! against the compositions. Start reading at [`Ops`].

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

pub use costs::{Bands, Costs, GEMM_WORKSPACE_BYTES, IM2COL_BYTES, SCORES_BYTES};
pub use device::Device;
pub use graph_cache::{GraphCache, RepeatedWork};
pub use group::Group;
pub use memory::Memory;
pub use ops::Ops;
pub use reservations::{Claim, Claimant, Promised, Reservation, Reservations};
pub use slab_schedule::{SLABS, SlabSchedule, slab_bytes, slab_of};
pub use weight_store::WeightStore;

use crate::error::{Error, Result};

/// The memory of a backend, and counters of its work. Backends on the host report zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Bytes of device memory in use now.
    pub memory_bytes: u64,
    /// The peak of the bytes in use.
    pub peak_memory_bytes: u64,
    /// Kernels, library calls and copies enqueued on the device.
    pub launches: u64,
    /// Times the host waited for the device.
    pub waits: u64,
    /// Copies between host and device.
    pub copies: u64,
    /// Device allocations.
    pub allocations: u64,
    /// Fused ops that ran as their composition because no kernel supports the shape.
    pub composed: u64,
    /// Launches of graphs; the work inside a graph is not counted elsewhere.
    pub graph_launches: u64,
    /// Pieces of work that could not be captured; see [`Device::remarks`].
    pub uncaptured: u64,
}

/// The ranks of a group that take part in a piece of work. For a backend without a group both are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Participants {
    /// All ranks, at the same time: the work may contain collectives.
    All,
    /// A single rank.
    One,
}

/// The access frequency of a component's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessFrequency {
    /// Once for each new prompt.
    Seldom,
    /// At every step of an image.
    Often,
}

/// The storage of the weight of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// As in the file, or in the backend's compute type.
    Native,
    /// e4m3 with a float32 scale for each output feature.
    Fp8,
    /// 8-bit integers with a float32 scale for each output feature, with input features that may be rotated; see
    /// [`crate::files::int8`].
    Int8,
    /// 4-bit integers, multiplied as integers; see [`crate::files::w4a8`]. Rows that can't be stored so are stored as
    /// `Int8`.
    W4a8,
}

/// A note for the user about how a backend works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// Shown in verbose output only.
    Detail(String),
    /// Always shown.
    Warning(String),
}

/// A complete backend, which holds tensors and runs ops.
pub trait Backend: Device + Group + WeightStore + Ops {}

impl<B: Device + Group + WeightStore + Ops> Backend for B {}

/// The message for an image with a pixel that is NaN.
pub const NOT_NUMBERS: &str = "the model computed pixels that are not numbers";

/// Returns the error for an image with [`NOT_NUMBERS`].
fn not_a_number() -> Error {
    Error::new(NOT_NUMBERS).hint("the weights are damaged: fetch the model again")
}

/// Errors unless there are three `bytes` per pixel.
fn expect_rgb8(bytes: &[u8], height: usize, width: usize) -> Result<()> {
    if height.checked_mul(width).and_then(|pixels| pixels.checked_mul(3)) == Some(bytes.len()) {
        return Ok(());
    }
    Err(Error::new(format!("{} bytes are not {height} x {width} RGB pixels", bytes.len())).at("op `upload_rgb8`"))
}

/// Returns the error for host values that don't fit their shape.
fn wrong_length(len: usize, rows: usize, cols: usize) -> Error {
    Error::new(format!("{len} values do not fit shape [{rows}, {cols}]")).at("op `upload`")
}
