//! Weights on the GPU, which only products and convolutions take.

use std::sync::Arc;

use super::buffer::{Buffer, BufferKind};
use super::slabs::Slabs;
use super::stored::Stored;
use crate::files::e4m3::MULTIPLE;
use crate::files::w4a8;

/// Rows and columns of 16-bit weights are padded with zeros to multiples of this, so that cuBLASLt's fast kernels fit
/// every size.
pub const PADDING: usize = 8;

/// The weight [rows, cols] of a linear layer, row-major: bf16 or fp16, padded with zeros to multiples of [`PADDING`],
/// or e4m3 or integers with a float32 scale for each row, padded to multiples of [`MULTIPLE`]; or as a file has it,
/// from which [`Cuda::ready`](super::Cuda::ready) makes 16 bits.
pub struct Weight {
    place: WeightLocation,
    rows: usize,
    cols: usize,
    stored: Option<Arc<Stored>>,
    divided: Option<Arc<Weight>>,
}

/// Where the values of a weight are.
#[derive(Clone)]
enum WeightLocation {
    /// Other GPUs may be copying it.
    Own(Arc<Buffer>),
    /// In a slab, where they are while the block of the weight has its turn.
    Slab { slabs: Arc<Slabs>, slab: usize, values: u64, scales: Option<(BufferKind, u64)> },
}

impl Weight {
    /// A matrix that was padded as above.
    pub fn new(buffer: impl Into<Arc<Buffer>>, rows: usize, cols: usize) -> Self {
        Self { place: WeightLocation::Own(buffer.into()), rows, cols, stored: None, divided: None }
    }

    /// Its memory; none where it is streamed.
    pub fn buffer(&self) -> Option<&Arc<Buffer>> {
        match &self.place {
            WeightLocation::Own(buffer) => Some(buffer),
            WeightLocation::Slab { .. } => None,
        }
    }

    /// The same place, which holds the weight in the format of its file, if there is one.
    pub fn with_stored(self, stored: Option<Arc<Stored>>) -> Self {
        Self { stored, ..self }
    }

    /// How it lies in its place, where that is not as products read it: then it has no stride, padding or scales.
    pub fn stored(&self) -> Option<&Stored> {
        self.stored.as_deref()
    }

    /// The same, beside what it is where its rows are divided by the scales of the weight that it is a factor beside.
    pub fn with_divided(&self, divided: Weight) -> Self {
        let (place, stored) = (self.place.clone(), self.stored.clone());
        Self { place, rows: self.rows, cols: self.cols, stored, divided: Some(Arc::new(divided)) }
    }

    /// See [`Weight::with_divided`].
    pub fn divided(&self) -> Option<&Weight> {
        self.divided.as_deref()
    }

    /// A matrix padded as above, so many bytes behind the start of a slab. If it is quantised: what its values are, and
    /// where its scales.
    pub fn in_slab(
        (slabs, slab): (Arc<Slabs>, usize),
        [rows, cols]: [usize; 2],
        values: u64,
        scales: Option<(BufferKind, u64)>,
    ) -> Self {
        Self { place: WeightLocation::Slab { slabs, slab, values, scales }, rows, cols, stored: None, divided: None }
    }

    /// Whether it is in memory only while its block has its turn.
    pub fn is_streamed(&self) -> bool {
        matches!(self.place, WeightLocation::Slab { .. })
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    fn padding(&self) -> usize {
        if self.quantised_kind().is_some() { MULTIPLE } else { PADDING }
    }

    /// Values from one row to the next; bytes where they are in 4 bits.
    pub fn stride(&self) -> usize {
        if self.is_w4a8() {
            return w4a8::row_bytes(self.cols);
        }
        self.cols.next_multiple_of(self.padding())
    }

    /// Rows, with those that are zeros.
    pub fn padded_rows(&self) -> usize {
        self.rows.next_multiple_of(self.padding())
    }

    /// Device address of the first value, a multiple of 256.
    pub fn address(&self) -> u64 {
        match &self.place {
            WeightLocation::Own(buffer) => buffer.address(),
            WeightLocation::Slab { slabs, slab, values, .. } => slabs.address(*slab) + values,
        }
    }

    /// What the values are where each row has a scale.
    pub fn quantised_kind(&self) -> Option<BufferKind> {
        match &self.place {
            WeightLocation::Own(buffer) => (buffer.scales() != 0).then(|| buffer.kind()),
            WeightLocation::Slab { scales, .. } => scales.map(|(kind, _)| kind),
        }
    }

    /// Whether the values are e4m3 with a scale for each row.
    pub fn is_e4m3(&self) -> bool {
        self.quantised_kind() == Some(BufferKind::E4m3)
    }

    /// Whether it is multiplied as integers with a scale for each row.
    pub fn is_int8(&self) -> bool {
        matches!(self.quantised_kind(), Some(BufferKind::Int8 { .. } | BufferKind::W4a8 { .. }))
    }

    /// Whether these are in 4 bits.
    pub fn is_w4a8(&self) -> bool {
        matches!(self.quantised_kind(), Some(BufferKind::W4a8 { .. }))
    }

    /// Device address of the scale of the first row, where rows have scales.
    pub fn scales(&self) -> u64 {
        match &self.place {
            WeightLocation::Own(buffer) => buffer.scales(),
            WeightLocation::Slab { slabs, slab, scales, .. } => {
                scales.map_or(0, |(_, scales)| slabs.address(*slab) + scales)
            }
        }
    }
}

/// The weight of a convolution as a matrix [out, k * k * in], columns ordered (ky, kx, in), bf16 or fp16, padded as
/// [`Weight`].
pub struct ConvWeight(pub Weight);
