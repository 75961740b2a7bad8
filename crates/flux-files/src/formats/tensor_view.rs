//! A tensor in a file, without a copy of its bytes.

use std::ops::Range;
use std::sync::Arc;

use crate::formats::format::Format;
use crate::formats::scales::Scales;
use crate::io::bytes::Bytes;

/// A tensor in a file, or some of its rows: the place of its bytes, its format and shape, and its scales.
#[derive(Clone)]
pub struct TensorView {
    bytes: Arc<Bytes>,
    range: Range<usize>,
    format: Format,
    shape: Vec<usize>,
    scales: Scales,
    is_weight_only: bool,
    /// The same values, quantized.
    quantized: Option<Box<TensorView>>,
}

impl TensorView {
    /// Creates the tensor in `range` of a file, with the scales that its format needs.
    ///
    /// Errors with the reason if range, format, shape and scales do not match.
    pub fn new(
        bytes: Arc<Bytes>,
        range: Range<usize>,
        format: Format,
        shape: Vec<usize>,
        scales: Scales,
    ) -> std::result::Result<Self, String> {
        if bytes.as_slice().get(range.clone()).is_none() {
            return Err(format!("is at bytes {range:?}, but the file has {}", bytes.as_slice().len()));
        }
        let needed = format.bytes(&shape).ok_or_else(|| format!("cannot have shape {shape:?} in {format}"))?;
        if range.len() != needed {
            return Err(format!("has {} bytes, expected {needed} for {shape:?} in {format}", range.len()));
        }
        if !((format.row().has)(&scales) && scales.fit(&shape, format.block().values)) {
            return Err(format!("in {format} does not have the required scales"));
        }
        Ok(Self { bytes, range, format, shape, scales, is_weight_only: false, quantized: None })
    }

    /// Returns the tensor with its quantized values attached.
    pub fn with_quantized(self, quantized: Option<TensorView>) -> Self {
        assert!(quantized.as_ref().is_none_or(|quantized| quantized.shape == self.shape), "the same shape");
        Self { quantized: quantized.map(Box::new), ..self }
    }

    /// Returns the tensor with other axes: the first one must be as long, and the others must have as many values.
    pub fn with_shape(self, shape: &[usize]) -> Self {
        let cols = |shape: &[usize]| shape.iter().skip(1).product::<usize>();
        assert!(shape.first() == self.shape.first() && cols(shape) == self.cols(), "rows keep their length");
        Self { shape: shape.to_vec(), ..self }
    }

    /// Returns the tensor with this setting: activations are not rounded to its format if `is_weight_only`.
    pub fn with_weight_only(self, is_weight_only: bool) -> Self {
        Self { is_weight_only, ..self }
    }

    /// Returns the format of the values in the file.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the axes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the length of the first axis; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the number of values per row: the product of the other axes.
    pub fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Returns the number of values.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the bytes as they are in the file, little-endian and at any alignment.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes.as_slice()[self.range.clone()]
    }

    /// Returns the file that contains the tensor.
    pub fn file(&self) -> &Arc<Bytes> {
        &self.bytes
    }

    /// Returns the offset of the tensor in the file.
    pub fn start(&self) -> usize {
        self.range.start
    }

    /// Returns the scales of the codes.
    pub fn scales(&self) -> &Scales {
        &self.scales
    }

    /// Returns float32 \[rows\], if there is a scale for each row.
    pub fn row_scales(&self) -> Option<TensorView> {
        let Scales::Rows(scales) = &self.scales else { return None };
        Self::new(Arc::clone(scales.file()), scales.range(), Format::F32, vec![self.rows()], Scales::None).ok()
    }

    /// Returns the bytes of the values and all their scales. A scale of the whole tensor counts once per row.
    pub fn bytes_with_scales(&self) -> usize {
        let scales = match &self.scales {
            Scales::None => 0,
            Scales::Tensor(_) | Scales::Rows(_) | Scales::RowMaxima(_) => size_of::<f32>() * self.rows(),
            Scales::Blocks(scales) => scales.bytes_for_rows(self.rows()).map_or(0, |(slice, _)| slice.bytes().len()),
            Scales::Tiles(scales) => size_of::<f32>() * self.rows() * self.cols().div_ceil(scales.columns()),
            Scales::Codebook(book) => size_of::<f32>() * (16 + self.elements().div_ceil(book.block())),
        };
        self.bytes().len() + scales
    }

    /// Returns `true` if the file keeps activations unquantized in matrix multiplications with this tensor.
    pub fn is_weight_only(&self) -> bool {
        self.is_weight_only
    }

    /// Returns the same values quantized, if a file holds them.
    pub fn quantized(&self) -> Option<&TensorView> {
        self.quantized.as_deref()
    }

    /// Returns some of the rows. In a vector in blocks, whose rows are single values, they must begin and end between
    /// blocks.
    ///
    /// Panics if there are no such rows.
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
            quantized: self.quantized.as_ref().map(|view| Box::new(view.row_range(rows))),
        }
    }

    /// Returns the number of bytes before a row.
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
    use super::*;
    use crate::formats::scales::FileSlice;

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
        refused(view(56..68, Format::Bf16, &[2, 3], Scales::None), "is at bytes 56..68, but the file has 64");
        refused(view(usize::MAX - 1..usize::MAX, Format::Bf16, &[1], Scales::None), "file has 64");
        #[expect(clippy::reversed_empty_ranges)]
        let reversed = 12..0;
        refused(view(reversed, Format::Bf16, &[2, 3], Scales::None), "file has 64");
        refused(view(0..10, Format::Bf16, &[2, 3], Scales::None), "10 bytes, expected 12");
        refused(view(0..12, Format::F32, &[2, 3], Scales::None), "expected 24");
        refused(view(0..0, Format::Bf16, &[usize::MAX, usize::MAX], Scales::None), "[18446744073709551615, ");
        refused(view(0..0, Format::Bf16, &[0, usize::MAX, 2], Scales::None), "[0, 18446744073709551615, 2]");
    }

    #[test]
    fn scales_are_there_where_the_format_has_them_and_nowhere_else() {
        let scales = |rows: usize| Scales::Rows(Box::new(slice(0..4 * rows)));
        let rows = |scales| view(0..48, Format::E4m3Rows, &[3, 5], scales);
        let view_of_rows = rows(scales(3)).unwrap();
        assert_eq!((view_of_rows.bytes().len(), view_of_rows.elements()), (48, 15));
        refused(rows(Scales::None), "required scales");
        refused(rows(scales(4)), "scales");
        refused(rows(Scales::Tensor(1.0)), "scales");
        refused(view(0..30, Format::Bf16, &[3, 5], scales(3)), "scales");
        refused(view(0..48, Format::E4m3Rows, &[48], scales(12)), "[48]");
        refused(view(0..15, Format::Int8, &[3, 5], Scales::None), "scales");
        refused(view(0..15, Format::E4m3, &[3, 5], Scales::RowMaxima(Box::new(slice(0..12)))), "scales");
    }

    #[test]
    fn rows_of_a_view_are_rows_of_all_that_belongs_to_it() {
        let quantized = view(0..48, Format::E4m3Rows, &[3, 5], Scales::Rows(Box::new(slice(48..60)))).unwrap();
        let all = view(10..40, Format::Bf16, &[3, 5], Scales::None).unwrap().with_quantized(Some(quantized));
        let some = all.row_range(1..3);
        assert_eq!((some.shape(), some.start(), some.bytes().len()), (&[2, 5][..], 20, 20));
        let quantized = some.quantized().unwrap();
        assert_eq!((quantized.shape(), quantized.start(), quantized.bytes().len()), (&[2, 5][..], 16, 32));
        let scales = quantized.row_scales().unwrap();
        assert_eq!((scales.shape(), scales.start(), scales.bytes().len()), (&[2][..], 52, 8));
        assert!(all.row_range(3..3).to_f32().is_empty());
    }
}
