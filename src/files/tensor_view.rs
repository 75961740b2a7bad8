//! A tensor of a file, where it lies.

use std::ops::Range;
use std::sync::Arc;

use super::bytes::Bytes;
use super::format::Format;
use super::scales::Scales;

/// A tensor of a file, or some of its rows: where its bytes are, its format and shape, and what belongs to it.
#[derive(Clone)]
pub struct TensorView {
    bytes: Arc<Bytes>,
    range: Range<usize>,
    format: Format,
    shape: Vec<usize>,
    scales: Scales,
    is_weight_only: bool,
    /// The same values in fewer bits.
    quantised: Option<Box<TensorView>>,
}

impl TensorView {
    /// The tensor in `range` of a file, with the scales that its format needs.
    ///
    /// Errors with the reason when range, format, shape and scales do not fit each other.
    pub fn new(
        bytes: Arc<Bytes>,
        range: Range<usize>,
        format: Format,
        shape: Vec<usize>,
        scales: Scales,
    ) -> std::result::Result<Self, String> {
        if bytes.as_slice().get(range.clone()).is_none() {
            return Err(format!("is at bytes {range:?} of {}", bytes.as_slice().len()));
        }
        let needed = format.bytes(&shape).ok_or_else(|| format!("cannot be {shape:?} in {format}"))?;
        if range.len() != needed {
            return Err(format!("has {} bytes, expected {needed} for {shape:?} in {format}", range.len()));
        }
        if !((format.row().has)(&scales) && scales.fit(&shape, format.block().values)) {
            return Err(format!("in {format} does not have the scales that it needs"));
        }
        Ok(Self { bytes, range, format, shape, scales, is_weight_only: false, quantised: None })
    }

    /// The same tensor, with its values in fewer bits beside it.
    pub fn with_quantised(self, quantised: Option<TensorView>) -> Self {
        assert!(quantised.as_ref().is_none_or(|quantised| quantised.shape == self.shape), "of one shape");
        Self { quantised: quantised.map(Box::new), ..self }
    }

    /// The same values with other axes, of which the first is as long and the others have as many values.
    pub fn with_shape(self, shape: &[usize]) -> Self {
        let cols = |shape: &[usize]| shape.iter().skip(1).product::<usize>();
        assert!(shape.first() == self.shape.first() && cols(shape) == self.cols(), "rows stay what they are");
        Self { shape: shape.to_vec(), ..self }
    }

    /// The same tensor, for activations that are not rounded to its format if `is_weight_only`.
    pub fn with_weight_only(self, is_weight_only: bool) -> Self {
        Self { is_weight_only, ..self }
    }

    /// How its values lie in the file.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Axes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Length of the first axis; 1 for a scalar.
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

    /// The bytes as they lie in the file, little-endian and at any alignment.
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

    /// What its codes are multiplied by.
    pub fn scales(&self) -> &Scales {
        &self.scales
    }

    /// Float32 \[rows\], where there is a scale for each row.
    pub fn row_scales(&self) -> Option<TensorView> {
        let Scales::Rows(scales) = &self.scales else { return None };
        Self::new(Arc::clone(scales.file()), scales.range(), Format::F32, vec![self.rows()], Scales::None).ok()
    }

    /// Bytes of the values and of all that they are multiplied by, with a scale for each row where there is one for
    /// all.
    pub fn bytes_with_scales(&self) -> usize {
        let scales = match &self.scales {
            Scales::None => 0,
            Scales::Tensor(_) | Scales::Rows(_) | Scales::RowMaxima(_) => size_of::<f32>() * self.rows(),
            Scales::Blocks(scales) => scales.of_rows(self.rows()).map_or(0, |(slice, _)| slice.bytes().len()),
            Scales::Codebook(book) => size_of::<f32>() * (16 + self.elements().div_ceil(book.block())),
        };
        self.bytes().len() + scales
    }

    /// Whether the file says that activations stay as they are in products with it.
    pub fn is_weight_only(&self) -> bool {
        self.is_weight_only
    }

    /// The same values in fewer bits, where a file holds them.
    pub fn quantised(&self) -> Option<&TensorView> {
        self.quantised.as_deref()
    }

    /// Some of the rows. Those of a vector in blocks, whose rows are single values, begin and end between blocks.
    ///
    /// Panics when there are no such rows.
    pub fn row_range(&self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows(), "rows {rows:?} of {}", self.rows());
        let cols = self.cols();
        let mut shape = self.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = rows.len();
        }
        let place = |row: usize| self.range.start + self.offset(row);
        Self {
            bytes: Arc::clone(&self.bytes),
            range: place(rows.start)..place(rows.end),
            format: self.format,
            shape,
            scales: self.scales.row_range(rows.clone(), cols),
            is_weight_only: self.is_weight_only,
            quantised: self.quantised.as_ref().map(|view| Box::new(view.row_range(rows))),
        }
    }

    /// Bytes before a row.
    fn offset(&self, row: usize) -> usize {
        let bytes = match self.shape.len() {
            0 | 1 => self.format.row_bytes(row * self.cols()),
            _ => self.format.row_bytes(self.cols()).map(|bytes| row * bytes),
        };
        bytes.expect("rows begin between blocks")
    }
}

#[cfg(test)]
mod tests {
    use super::super::scales::FileSlice;
    use super::*;

    fn view(
        range: Range<usize>,
        format: Format,
        shape: &[usize],
        scales: Scales,
    ) -> std::result::Result<TensorView, String> {
        TensorView::new(bytes(), range, format, shape.to_vec(), scales)
    }

    fn bytes() -> Arc<Bytes> {
        static BYTES: [u8; 64] = [0; 64];
        Arc::new(Bytes::Embedded(&BYTES))
    }

    fn slice(range: Range<usize>) -> FileSlice {
        FileSlice::new(bytes(), range).unwrap()
    }

    fn refused(made: std::result::Result<TensorView, String>, reason: &str) {
        let why = made.err().unwrap();
        assert!(why.contains(reason), "{why}");
    }

    #[test]
    fn a_view_lies_in_its_file_and_has_the_bytes_of_its_shape() {
        assert_eq!(view(8..20, Format::Bf16, &[2, 3], Scales::None).unwrap().bytes().len(), 12);
        assert_eq!(view(60..64, Format::F32, &[], Scales::None).unwrap().rows(), 1);
        refused(view(56..68, Format::Bf16, &[2, 3], Scales::None), "is at bytes 56..68 of 64");
        refused(view(usize::MAX - 1..usize::MAX, Format::Bf16, &[1], Scales::None), "of 64");
        #[expect(clippy::reversed_empty_ranges)]
        let reversed = 12..0;
        refused(view(reversed, Format::Bf16, &[2, 3], Scales::None), "of 64");
        refused(view(0..10, Format::Bf16, &[2, 3], Scales::None), "has 10 bytes, expected 12");
        refused(view(0..12, Format::F32, &[2, 3], Scales::None), "expected 24");
        refused(view(0..0, Format::Bf16, &[usize::MAX, usize::MAX], Scales::None), "cannot be");
        refused(view(0..0, Format::Bf16, &[0, usize::MAX, 2], Scales::None), "cannot be");
    }

    #[test]
    fn scales_are_there_where_the_format_has_them_and_nowhere_else() {
        let scales = |rows: usize| Scales::Rows(Box::new(slice(0..4 * rows)));
        let rows = |scales| view(0..48, Format::E4m3Rows, &[3, 5], scales);
        let view_of_rows = rows(scales(3)).unwrap();
        assert_eq!((view_of_rows.bytes().len(), view_of_rows.elements()), (48, 15));
        refused(rows(Scales::None), "does not have the scales that it needs");
        refused(rows(scales(4)), "scales");
        refused(rows(Scales::Tensor(1.0)), "scales");
        refused(view(0..30, Format::Bf16, &[3, 5], scales(3)), "scales");
        refused(view(0..48, Format::E4m3Rows, &[48], scales(12)), "cannot be");
        refused(view(0..15, Format::Int8, &[3, 5], Scales::None), "scales");
        refused(view(0..15, Format::E4m3, &[3, 5], Scales::RowMaxima(Box::new(slice(0..12)))), "scales");
    }

    #[test]
    fn rows_of_a_view_are_rows_of_all_that_belongs_to_it() {
        let quantised = view(0..48, Format::E4m3Rows, &[3, 5], Scales::Rows(Box::new(slice(48..60)))).unwrap();
        let all = view(10..40, Format::Bf16, &[3, 5], Scales::None).unwrap().with_quantised(Some(quantised));
        let some = all.row_range(1..3);
        assert_eq!((some.shape(), some.start(), some.bytes().len()), (&[2, 5][..], 20, 20));
        let quantised = some.quantised().unwrap();
        assert_eq!((quantised.shape(), quantised.start(), quantised.bytes().len()), (&[2, 5][..], 16, 32));
        let scales = quantised.row_scales().unwrap();
        assert_eq!((scales.shape(), scales.start(), scales.bytes().len()), (&[2][..], 52, 8));
        assert!(all.row_range(3..3).to_f32().is_empty());
    }
}
