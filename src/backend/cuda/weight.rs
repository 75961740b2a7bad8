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

/// Some columns of a matrix in 16 bits that has no padding: the first, and the values from one row of it to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    pub first: usize,
    pub stride: usize,
}

impl Columns {
    /// Those of matrices side by side, with so many rows and columns; none where there would be padding, or one would
    /// not begin on 256 bytes.
    pub fn side_by_side(rows: usize, cols: &[usize]) -> Option<Vec<Self>> {
        let fits = rows.is_multiple_of(PADDING) && cols.iter().all(|cols| cols.is_multiple_of(COLUMNS));
        let (stride, mut first) = (cols.iter().sum(), 0);
        let place = |cols: &usize| {
            first += cols;
            Self { first: first - cols, stride }
        };
        fits.then(|| cols.iter().map(place).collect())
    }
}

/// The weight [rows, cols] of a linear layer, row-major: bf16 or fp16, padded with zeros to multiples of [`PADDING`],
/// or e4m3 or integers with a float32 scale for each row, padded to multiples of [`MULTIPLE`]; or as a file has it,
/// from which [`Cuda::ready`](super::Cuda::ready) makes 16 bits.
pub struct Weight {
    place: WeightLocation,
    rows: usize,
    cols: usize,
    /// Where it is columns of the matrix in its place.
    columns: Option<Columns>,
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

impl WeightLocation {
    /// Whether it is the same place.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Own(buffer), Self::Own(other)) => Arc::ptr_eq(buffer, other),
            (
                Self::Slab { slabs, slab, values, .. },
                Self::Slab { slabs: other, slab: other_slab, values: other_values, .. },
            ) => Arc::ptr_eq(slabs, other) && (slab, values) == (other_slab, other_values),
            _ => false,
        }
    }
}

impl Weight {
    /// A matrix that was padded as above.
    pub fn new(buffer: impl Into<Arc<Buffer>>, rows: usize, cols: usize) -> Self {
        Self { place: WeightLocation::Own(buffer.into()), rows, cols, columns: None, stored: None, divided: None }
    }

    /// Its memory; none where it is streamed.
    pub fn buffer(&self) -> Option<&Arc<Buffer>> {
        match &self.place {
            WeightLocation::Own(buffer) => Some(buffer),
            WeightLocation::Slab { .. } => None,
        }
    }

    /// The same place, of which it is some columns, if it is.
    pub fn with_columns(self, columns: Option<Columns>) -> Self {
        Self { columns, ..self }
    }

    /// The matrix whose columns the weights are, from left to right, if they are all of one.
    pub fn adjacent_cols(weights: &[&Self]) -> Option<Self> {
        let first = weights.first()?;
        let (stride, mut end) = (first.columns?.stride, 0);
        for weight in weights {
            if weight.columns != Some(Columns { first: end, stride }) || !weight.place.is(&first.place) {
                return None;
            }
            end += weight.cols;
        }
        let place = first.place.clone();
        (end == stride).then_some(Self {
            place,
            rows: first.rows,
            cols: end,
            columns: None,
            stored: None,
            divided: None,
        })
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
        let Self { rows, cols, columns, .. } = *self;
        Self { place, rows, cols, columns, stored, divided: Some(Arc::new(divided)) }
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
        Self {
            place: WeightLocation::Slab { slabs, slab, values, scales },
            rows,
            cols,
            columns: None,
            stored: None,
            divided: None,
        }
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
        match self.columns {
            Some(columns) => columns.stride,
            None if self.is_w4a8() => w4a8::row_bytes(self.cols),
            None => self.padded_cols(),
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
        let first = self.columns.map_or(0, |columns| columns.first * Element::BYTES) as u64;
        match &self.place {
            WeightLocation::Own(buffer) => buffer.address() + first,
            WeightLocation::Slab { slabs, slab, values, .. } => slabs.address(*slab) + values + first,
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
