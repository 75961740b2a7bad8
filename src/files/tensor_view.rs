//! A tensor of a file, where it lies.

use std::ops::Range;
use std::sync::Arc;

use super::bytes::Bytes;
use super::format::{Format, dequantise_rows};

/// A tensor of a file, or some of its rows: where its bytes are, and its format and shape.
#[derive(Clone)]
pub struct TensorView {
    bytes: Arc<Bytes>,
    range: Range<usize>,
    format: Format,
    shape: Vec<usize>,
    /// Float32 [rows], where the format has a scale for each row.
    scales: Option<Box<TensorView>>,
    /// The same values in fewer bits.
    quantised: Option<Box<TensorView>>,
}

impl TensorView {
    /// The tensor in `range` of a file. `scales` [rows] are those of a format that has a scale for each row.
    ///
    /// Errors with the reason when these do not fit each other.
    pub fn new(
        bytes: Arc<Bytes>,
        range: Range<usize>,
        format: Format,
        shape: Vec<usize>,
        scales: Option<TensorView>,
    ) -> std::result::Result<Self, String> {
        if bytes.as_slice().get(range.clone()).is_none() {
            return Err(format!("is at bytes {range:?} of {}", bytes.as_slice().len()));
        }
        let needed = format.bytes(&shape).ok_or_else(|| format!("cannot be {shape:?} in {format:?}"))?;
        if range.len() != needed {
            return Err(format!("has {} bytes, expected {needed} for {shape:?} in {format:?}", range.len()));
        }
        match (&scales, format.has_row_scales()) {
            (None, false) => {}
            (Some(scales), true) if scales.format == Format::F32 && *scales.shape == shape[..1] => {}
            _ => return Err(format!("in {format:?} does not have the scales that it needs")),
        }
        Ok(Self { bytes, range, format, shape, scales: scales.map(Box::new), quantised: None })
    }

    /// The same tensor, with its values in fewer bits beside it.
    pub fn with_quantised(self, quantised: Option<TensorView>) -> Self {
        assert!(quantised.as_ref().is_none_or(|quantised| quantised.shape == self.shape), "of one shape");
        Self { quantised: quantised.map(Box::new), ..self }
    }

    /// How its values lie in the file.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Axes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Length of the first axis; 1 of a scalar.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Values of one row: the product of the other axes.
    pub fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Number of values.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of one row, in [`TensorView::bytes`].
    pub fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.cols()).expect("checked when the view was made")
    }

    /// The bytes as they lie in the file, little-endian; of any alignment.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes.as_slice()[self.range.clone()]
    }

    /// The file that holds it.
    pub fn file(&self) -> &Arc<Bytes> {
        &self.bytes
    }

    /// Where in the file it starts.
    pub fn start(&self) -> usize {
        self.range.start
    }

    /// Float32 [rows], where the format has a scale for each row.
    pub fn scales(&self) -> Option<&TensorView> {
        self.scales.as_deref()
    }

    /// The same values in fewer bits, where a file holds them.
    pub fn quantised(&self) -> Option<&TensorView> {
        self.quantised.as_deref()
    }

    /// Some of the rows.
    pub fn row_range(&self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows(), "rows {rows:?} of {}", self.rows());
        let row_bytes = self.row_bytes();
        let mut shape = self.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = rows.len();
        }
        let start = self.range.start;
        let of_rows = |view: &Option<Box<TensorView>>| view.as_ref().map(|view| Box::new(view.row_range(rows.clone())));
        Self {
            bytes: Arc::clone(&self.bytes),
            range: start + rows.start * row_bytes..start + rows.end * row_bytes,
            format: self.format,
            shape,
            scales: of_rows(&self.scales),
            quantised: of_rows(&self.quantised),
        }
    }

    /// All values in float32, exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        dequantise_rows(self, 0..self.rows(), &mut values);
        values
    }
}
