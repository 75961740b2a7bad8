//! Weights on the GPU, which only products and convolutions take.

use std::sync::Arc;

use super::buffer::{Buffer, BufferKind};
use super::element::Element;
use super::slabs::Slabs;
use super::stored::Stored;
use crate::files::e4m3::MULTIPLE;
use crate::files::w4a8;

/// Rows and columns of 16-bit weights are padded with zeros to multiples of this, so that cuBLASLt's fast kernels fit
/// every size.
pub const PADDING: usize = 8;
/// Columns of 16 bits that are 256 bytes.
const COLUMNS: usize = 128;

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
    /// Columns of a matrix with rows of `stride` values, the first of which is `first`. There is no padding.
    Columns { buffer: Arc<Buffer>, first: usize, stride: usize },
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
            WeightLocation::Own(buffer) | WeightLocation::Columns { buffer, .. } => Some(buffer),
            WeightLocation::Slab { .. } => None,
        }
    }

    /// Whether columns `cols` of a matrix of 16 bits with so many rows can be weights, each of which begins on 256
    /// bytes: neither rows nor columns are padded.
    pub fn may_split(rows: usize, cols: &[usize]) -> bool {
        rows.is_multiple_of(PADDING) && cols.iter().all(|cols| cols.is_multiple_of(COLUMNS))
    }

    /// A matrix in 16 bits as weights of `cols` columns each, side by side, that [`Weight::may_split`] allows.
    pub fn split_cols(buffer: &Arc<Buffer>, rows: usize, cols: &[usize]) -> Vec<Self> {
        let (stride, mut first) = (cols.iter().sum(), 0);
        let split = cols.iter().map(|&cols| {
            let place = WeightLocation::Columns { buffer: Arc::clone(buffer), first, stride };
            first += cols;
            Self { place, rows, cols, stored: None, divided: None }
        });
        split.collect()
    }

    /// The matrix whose columns the weights are, from left to right, if they are all of one.
    pub fn adjacent_cols(weights: &[&Self]) -> Option<Self> {
        let WeightLocation::Columns { buffer: whole, stride, .. } = &weights.first()?.place else { return None };
        let mut end = 0;
        for weight in weights {
            match &weight.place {
                WeightLocation::Columns { buffer, first, .. } if Arc::ptr_eq(buffer, whole) && *first == end => {
                    end += weight.cols;
                }
                _ => return None,
            }
        }
        (end == *stride).then(|| Self::new(Arc::clone(whole), weights[0].rows, end))
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
        match &self.place {
            WeightLocation::Columns { stride, .. } => *stride,
            _ if self.is_w4a8() => w4a8::row_bytes(self.cols),
            _ => self.padded_cols(),
        }
    }

    /// Columns, with those that are zeros.
    pub fn padded_cols(&self) -> usize {
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
            WeightLocation::Columns { buffer, first, .. } => buffer.address() + (first * Element::BYTES) as u64,
            WeightLocation::Slab { slabs, slab, values, .. } => slabs.address(*slab) + values,
        }
    }

    /// What the values are where each row has a scale.
    pub fn quantised_kind(&self) -> Option<BufferKind> {
        match &self.place {
            WeightLocation::Own(buffer) => (buffer.scales() != 0).then(|| buffer.kind()),
            WeightLocation::Columns { .. } => None,
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
            WeightLocation::Columns { .. } => 0,
            WeightLocation::Slab { slabs, slab, scales, .. } => {
                scales.map_or(0, |(_, scales)| slabs.address(*slab) + scales)
            }
        }
    }
}

/// The weight of a convolution as a matrix [out, k * k * in], columns ordered (ky, kx, in), bf16 or fp16, padded as
/// [`Weight`].
pub struct ConvWeight(pub Weight);
