//! The layout of a weight in memory.

use std::sync::Arc;

use crate::backend::Storage;
use crate::backend::cuda::buffer::{BufferKind, scales_offset};
use crate::backend::cuda::element::Element;
use crate::backend::cuda::stored::{Stored, e4m3_rows, int8_rows};
use crate::backend::cuda::weight::{Columns, PADDING};
use crate::error::{Error, Result};
use crate::files::e4m3::MULTIPLE;
use crate::files::int8::{MAX_TERMS, group_of, group_of_parts};
use crate::files::{Format, TensorView, w4a8};

/// The sizes of a weight [rows, cols] in memory, including its padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Form {
    pub rows: usize,
    pub cols: usize,
    pub storage: Storage,
    /// Columns that were rotated together, for int8; 1 otherwise.
    pub group: usize,
}

/// The source of a weight, and its layout in memory.
pub struct UploadSource {
    /// The parts with its rows, concatenated.
    pub parts: Vec<TensorView>,
    /// The layout that matrix multiplications read.
    pub form: Form,
    /// The layout in the format of its file, used instead of `form` if set.
    pub stored: Option<Arc<Stored>>,
    /// Set if it is some columns of a larger matrix.
    pub columns: Option<Columns>,
}

impl UploadSource {
    /// Returns the source of a weight in `storage`. A weight that its file has in fewer bits stays so: fp8 matrix
    /// multiplications read e4m3 if supported (`has_fp8`), int8 ones read 8-bit integers if requested, and other
    /// formats are dequantized for each matrix multiplication, or quantized during the upload.
    ///
    /// Errors if a file has parts in a format that can't be converted.
    pub fn new(parts: &[TensorView], storage: Storage, has_fp8: bool) -> Result<Self> {
        let (read, quantized) = match storage {
            Storage::Native if !has_fp8 => (storage, None),
            Storage::Native | Storage::Fp8 => {
                (Storage::Fp8, parts.iter().map(e4m3_rows).collect::<Result<Option<Vec<_>>>>()?)
            }
            Storage::Int8 if rotated_in_file(parts).is_some() => {
                (storage, Some(parts.iter().map(int8_rows).collect::<Result<Vec<_>>>()?))
            }
            Storage::Int8 | Storage::W4a8 => (storage, None),
        };
        if let Some(quantized) = quantized {
            let beside = |(part, rows): (&TensorView, TensorView)| part.clone().with_quantized(Some(rows));
            let parts: Vec<_> = parts.iter().zip(quantized).map(beside).collect();
            return Ok(Self { form: Form::for_parts(&parts, read)?, parts, stored: None, columns: None });
        }
        let stored = if storage == Storage::Native { Stored::from_parts(parts)?.map(Arc::new) } else { None };
        // A cache of e4m3 may accompany the parts.
        let plain = |part: &TensorView| match storage {
            Storage::Int8 | Storage::W4a8 => part.clone().with_quantized(None),
            Storage::Native | Storage::Fp8 => part.clone(),
        };
        Ok(Self {
            parts: parts.iter().map(plain).collect(),
            form: Form::for_parts(parts, storage)?,
            stored,
            columns: None,
        })
    }

    /// Returns its total bytes.
    pub fn bytes(&self) -> usize {
        self.stored.as_ref().map_or_else(|| self.form.bytes(), |stored| stored.bytes())
    }

    /// Makes weights with equal numbers of rows the columns of one matrix, from left to right. They stay separate if
    /// their files don't have them in the 16-bit type of matrix multiplications, or if one would have padding.
    pub fn side_by_side(sources: Vec<Self>, element: Element) -> Vec<Self> {
        let format = match element {
            Element::Bf16 => Format::Bf16,
            Element::F16 => Format::F16,
        };
        let rows = sources.first().map_or(0, |source| source.form.rows);
        let is_plain = |source: &Self| {
            source.form.rows == rows
                && source.form.storage == Storage::Native
                && source.stored.is_none()
                && source.parts.iter().all(|part| part.format() == format)
        };
        let cols: Vec<_> = sources.iter().map(|source| source.form.cols).collect();
        match Columns::side_by_side(rows, &cols).filter(|_| sources.iter().all(is_plain)) {
            Some(columns) => {
                let with = |(source, columns)| Self { columns: Some(columns), ..source };
                sources.into_iter().zip(columns).map(with).collect()
            }
            None => sources,
        }
    }

    /// Returns the parts that are read from the files.
    pub fn views(&self) -> impl Iterator<Item = &TensorView> {
        let is_quantized = self.form.storage != Storage::Native;
        self.parts.iter().map(move |part| part.quantized().filter(|_| is_quantized).unwrap_or(part))
    }
}

impl Form {
    /// Returns the layout of a weight with the concatenated rows of the parts.
    ///
    /// Errors if a file has parts in a format that can't be converted.
    pub fn for_parts(parts: &[TensorView], storage: Storage) -> Result<Self> {
        // They have other bytes than as many 16-bit values, for which the memory is allocated.
        if storage == Storage::Native && parts.iter().any(|part| part.format() == Format::E4m3Rows) {
            return Err(Error::new("e4m3 is supported only as the quantized form of a weight"));
        }
        let (rows, cols) = (parts.iter().map(TensorView::rows).sum(), parts.first().map_or(0, TensorView::cols));
        if matches!(storage, Storage::Int8 | Storage::W4a8) && cols > MAX_TERMS {
            return Err(Error::new(format!("rows of {cols} columns are too long for int8 matrix multiplications")));
        }
        Ok(match rotated_in_file(parts).filter(|_| storage == Storage::Int8) {
            Some(group) => Self { rows, cols, storage, group },
            None => Self::quantized_here(rows, cols, storage),
        })
    }

    /// Returns the layout of a weight that this program quantizes to `storage`.
    pub fn quantized_here(rows: usize, cols: usize, storage: Storage) -> Self {
        let (storage, group) = match storage {
            Storage::Native | Storage::Fp8 => (storage, 1),
            Storage::W4a8 if w4a8::takes(cols) => (storage, group_of(cols)),
            Storage::Int8 | Storage::W4a8 => (Storage::Int8, group_of(cols)),
        };
        Self { rows, cols, storage, group }
    }

    /// Returns the layout of the weight in 16 bits.
    pub fn native(self) -> Self {
        Self { storage: Storage::Native, group: 1, ..self }
    }

    /// Returns the type of its values if they are quantized.
    pub fn quantized_kind(&self) -> Option<BufferKind> {
        match self.storage {
            Storage::Native => None,
            Storage::Fp8 => Some(BufferKind::E4m3),
            Storage::Int8 => Some(BufferKind::Int8 { group: self.group }),
            Storage::W4a8 => Some(BufferKind::W4a8 { group: self.group }),
        }
    }

    fn multiple(&self) -> usize {
        if self.storage == Storage::Native { PADDING } else { MULTIPLE }
    }

    /// Returns the rows, including padding.
    pub fn padded_rows(&self) -> usize {
        self.rows.next_multiple_of(self.multiple())
    }

    /// Returns the row stride in values; in bytes for 4-bit values.
    pub fn stride(&self) -> usize {
        if self.storage == Storage::W4a8 {
            return w4a8::row_bytes(self.cols);
        }
        self.cols.next_multiple_of(self.multiple())
    }

    /// Returns the bytes of one value.
    pub fn value_bytes(&self) -> usize {
        self.quantized_kind().map_or(Element::BYTES, BufferKind::size)
    }

    /// Returns the bytes from the first value to the first scale, if rows have scales.
    pub fn scales(&self) -> Option<usize> {
        (self.storage != Storage::Native).then(|| scales_offset(self.padded_rows() * self.stride()))
    }

    /// Returns its total bytes.
    pub fn bytes(&self) -> usize {
        let values = self.padded_rows() * self.stride() * self.value_bytes();
        self.scales().map_or(values, |scales| scales + self.padded_rows() * BufferKind::F32.size())
    }
}

/// Returns the group of columns in which the rows of all parts were rotated, if int8 matrix multiplications can read
/// them as in their files; see [`group_of_parts`]. Rows of unsupported lengths are quantized again.
fn rotated_in_file(parts: &[TensorView]) -> Option<usize> {
    group_of_parts(parts).filter(|_| parts.iter().all(|part| part.cols().is_multiple_of(MULTIPLE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Bytes, Scales};

    fn view(format: Format, cols: usize) -> TensorView {
        let bytes = Arc::new(Bytes::Embedded(&[1; 4096]));
        TensorView::new(bytes, 0..2 * cols, format, vec![2, cols], Scales::Tensor(0.5)).unwrap()
    }

    #[test]
    fn integers_of_a_file_stay_as_they_are_where_products_take_them() {
        let rotated = view(Format::Int8Rotated { group: 64 }, 256);
        let of = |part: &TensorView, storage| UploadSource::new(std::slice::from_ref(part), storage, false).unwrap();
        let kept = of(&rotated, Storage::Int8);
        assert_eq!(kept.form.quantized_kind(), Some(BufferKind::Int8 { group: 64 }));
        assert_eq!(kept.views().next().unwrap().row_scales().unwrap().to_f32(), [0.5; 2]);
        assert!(of(&rotated, Storage::Native).stored.is_some(), "it is dequantized for each matrix multiplication");
        for other in [view(Format::E4m3, 256), view(Format::Int8, 24), view(Format::Int8Rotated { group: 1024 }, 1024)]
        {
            let source = of(&other, Storage::Int8);
            assert!(source.parts[0].quantized().is_none() && source.stored.is_none(), "{}", other.format());
            assert_eq!(source.form, Form::quantized_here(2, other.cols(), Storage::Int8));
        }
        assert_eq!(Form::quantized_here(2, 768, Storage::Int8).group, 256);
    }

    #[test]
    fn rows_in_4_bits_are_of_whole_steps_and_others_in_8() {
        let form = Form::quantized_here(17, 192, Storage::W4a8);
        assert_eq!((form.quantized_kind(), form.stride()), (Some(BufferKind::W4a8 { group: 64 }), 128));
        assert_eq!(form.scales(), Some((32 * 128_usize).next_multiple_of(256)));
        assert_eq!(Form::quantized_here(17, 200, Storage::W4a8).storage, Storage::Int8);
    }

    #[test]
    fn bytes_are_those_of_all_rows_with_their_padding_and_scales() {
        let native = Form { rows: 9, cols: 5, storage: Storage::Native, group: 1 };
        assert_eq!((native.padded_rows(), native.stride(), native.bytes(), native.scales()), (16, 8, 256, None));
        for storage in [Storage::Fp8, Storage::Int8] {
            let quantized = Form { storage, ..native };
            let (rows, values) = (quantized.padded_rows(), quantized.padded_rows() * quantized.stride());
            assert_eq!((rows % MULTIPLE, quantized.stride() % MULTIPLE), (0, 0));
            assert_eq!(quantized.scales(), Some(values.next_multiple_of(256)));
            assert_eq!(quantized.bytes(), values.next_multiple_of(256) + 4 * rows);
        }
    }
}
