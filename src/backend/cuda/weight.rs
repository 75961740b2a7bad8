//! Weights on the GPU, which only matrix multiplications and convolutions read.

use std::sync::Arc;

use super::buffer::{Buffer, BufferKind};
use super::element::Element;
use super::slabs::Slabs;
use super::stored::Stored;
use crate::files::e4m3::MULTIPLE;
use crate::files::w4a8;

/// Rows and columns of 16-bit weights are padded with zeros to multiples of this, so that cuBLASLt's fast kernels
/// support every size.
pub const PADDING: usize = 8;
/// The number of 16-bit columns in 256 bytes.
const COLUMNS: usize = 128;

/// Some columns of a matrix in 16 bits without padding: the first column, and the row stride in values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    pub first: usize,
    pub stride: usize,
}

impl Columns {
    /// Returns the columns of concatenated matrices with these rows and columns; `None` if there would be padding, or
    /// one would not be aligned to 256 bytes.
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
/// or e4m3 or integers with a float32 scale for each row, padded to multiples of [`MULTIPLE`]; or in a file's format,
/// which [`Cuda::ready`](super::Cuda::ready) dequantizes to 16 bits.
pub struct Weight {
    place: WeightLocation,
    rows: usize,
    cols: usize,
    /// Set if it is some columns of the matrix at this place.
    columns: Option<Columns>,
    stored: Option<Arc<Stored>>,
    divided: Option<Arc<Weight>>,
}

/// The location of the values of a weight.
#[derive(Clone)]
enum WeightLocation {
    /// Own memory, which other GPUs may be copying.
    Own(Arc<Buffer>),
    /// In a slab, where the values are present during the turn of the weight's block.
    Slab { slabs: Arc<Slabs>, slab: usize, values: u64, scales: Option<(BufferKind, u64)> },
}

impl WeightLocation {
    /// Returns `true` if both are the same place.
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
    /// Creates a weight from a matrix with the padding of this type.
    pub fn new(buffer: impl Into<Arc<Buffer>>, rows: usize, cols: usize) -> Self {
        Self { place: WeightLocation::Own(buffer.into()), rows, cols, columns: None, stored: None, divided: None }
    }

    /// Returns its memory; `None` if it is streamed.
    pub fn buffer(&self) -> Option<&Arc<Buffer>> {
        match &self.place {
            WeightLocation::Own(buffer) => Some(buffer),
            WeightLocation::Slab { .. } => None,
        }
    }

    /// Makes it some columns of the matrix at its place, if there are any.
    pub fn with_columns(self, columns: Option<Columns>) -> Self {
        Self { columns, ..self }
    }

    /// Returns the matrix with these weights as columns, from left to right, if they are all parts of one.
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

    /// Sets the file format of the weight at its place, if it is stored in one.
    pub fn with_stored(self, stored: Option<Arc<Stored>>) -> Self {
        Self { stored, ..self }
    }

    /// Returns its file format; `None` if it is in the layout that matrix multiplications read. In a file format it has
    /// no stride, padding or scales.
    pub fn stored(&self) -> Option<&Stored> {
        self.stored.as_deref()
    }

    /// Adds a variant with rows divided by the scales of the base weight, for a low-rank factor.
    pub fn with_divided(&self, divided: Weight) -> Self {
        let (place, stored) = (self.place.clone(), self.stored.clone());
        let Self { rows, cols, columns, .. } = *self;
        Self { place, rows, cols, columns, stored, divided: Some(Arc::new(divided)) }
    }

    /// See [`Weight::with_divided`].
    pub fn divided(&self) -> Option<&Weight> {
        self.divided.as_deref()
    }

    /// Creates a weight with the padding of this type, at an offset in a slab. Quantized weights also have the type of
    /// their values and the offset of their scales.
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

    /// Returns `true` if it is in memory only during the turn of its block.
    pub fn is_streamed(&self) -> bool {
        matches!(self.place, WeightLocation::Slab { .. })
    }

    /// Returns the output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    fn padding(&self) -> usize {
        if self.quantized_kind().is_some() { MULTIPLE } else { PADDING }
    }

    /// Returns the row stride in values; in bytes for 4-bit values.
    pub fn stride(&self) -> usize {
        match self.columns {
            Some(columns) => columns.stride,
            None if self.is_w4a8() => w4a8::row_bytes(self.cols),
            None => self.padded_cols(),
        }
    }

    /// Returns the columns, including padding.
    pub fn padded_cols(&self) -> usize {
        self.cols.next_multiple_of(self.padding())
    }

    /// Returns the rows, including padding.
    pub fn padded_rows(&self) -> usize {
        self.rows.next_multiple_of(self.padding())
    }

    /// Returns the device address of the first value, a multiple of 256.
    pub fn address(&self) -> u64 {
        let first = self.columns.map_or(0, |columns| columns.first * Element::BYTES) as u64;
        match &self.place {
            WeightLocation::Own(buffer) => buffer.address() + first,
            WeightLocation::Slab { slabs, slab, values, .. } => slabs.address(*slab) + values + first,
        }
    }

    /// Returns the type of the values if each row has a scale.
    pub fn quantized_kind(&self) -> Option<BufferKind> {
        match &self.place {
            WeightLocation::Own(buffer) => (buffer.scales() != 0).then(|| buffer.kind()),
            WeightLocation::Slab { scales, .. } => scales.map(|(kind, _)| kind),
        }
    }

    /// Returns `true` if the values are e4m3 with a scale for each row.
    pub fn is_e4m3(&self) -> bool {
        self.quantized_kind() == Some(BufferKind::E4m3)
    }

    /// Returns `true` if it is multiplied as integers with a scale for each row.
    pub fn is_int8(&self) -> bool {
        matches!(self.quantized_kind(), Some(BufferKind::Int8 { .. } | BufferKind::W4a8 { .. }))
    }

    /// Returns `true` if its integers have 4 bits.
    pub fn is_w4a8(&self) -> bool {
        matches!(self.quantized_kind(), Some(BufferKind::W4a8 { .. }))
    }

    /// Returns the device address of the scale of the first row, if rows have scales.
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
