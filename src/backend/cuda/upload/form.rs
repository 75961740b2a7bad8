//! The form in which a weight is in memory.

use std::sync::Arc;

use crate::backend::Storage;
use crate::backend::cuda::buffer::{BufferKind, scales_offset};
use crate::backend::cuda::element::Element;
use crate::backend::cuda::stored::{Stored, e4m3_rows, int8_rows};
use crate::backend::cuda::weight::{Columns, PADDING};
use crate::error::{Error, Result};
use crate::files::e4m3::MULTIPLE;
use crate::files::int8::{MOST_TERMS, group_of, group_of_parts};
use crate::files::{Format, TensorView, w4a8};

/// Sizes of a weight [rows, cols] in memory, with its padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Form {
    pub rows: usize,
    pub cols: usize,
    pub storage: Storage,
    /// Columns that were rotated together, of int8; 1 otherwise.
    pub group: usize,
}

/// Where a weight comes from, and how it is held in memory.
pub struct UploadSource {
    /// Its rows, one part under the other.
    pub parts: Vec<TensorView>,
    /// The form in which products read it.
    pub form: Form,
    /// Where it stays in the format of its file: how it lies, instead of in that form.
    pub stored: Option<Arc<Stored>>,
    /// Where it is columns of a larger matrix.
    pub columns: Option<Columns>,
}

impl UploadSource {
    /// A weight in `storage`. What a file has in fewer bits stays so: e4m3 is read by products of fp8 where there are
    /// any (`has_fp8`), integers of 8 bits by those of int8 where these are wanted, all else is dequantised for each
    /// product, or quantised on its way.
    ///
    /// Errors when a file has parts in a form that they cannot be brought to.
    pub fn of(parts: &[TensorView], storage: Storage, has_fp8: bool) -> Result<Self> {
        let (read, quantised) = match storage {
            Storage::Native if !has_fp8 => (storage, None),
            Storage::Native | Storage::Fp8 => {
                (Storage::Fp8, parts.iter().map(e4m3_rows).collect::<Result<Option<Vec<_>>>>()?)
            }
            Storage::Int8 if rotated_in_file(parts).is_some() => {
                (storage, Some(parts.iter().map(int8_rows).collect::<Result<Vec<_>>>()?))
            }
            Storage::Int8 | Storage::W4a8 => (storage, None),
        };
        if let Some(quantised) = quantised {
            let beside = |(part, rows): (&TensorView, TensorView)| part.clone().with_quantised(Some(rows));
            let parts: Vec<_> = parts.iter().zip(quantised).map(beside).collect();
            return Ok(Self { form: Form::of(&parts, read)?, parts, stored: None, columns: None });
        }
        let stored = if storage == Storage::Native { Stored::of(parts)?.map(Arc::new) } else { None };
        // A cache of e4m3 may be beside the parts.
        let plain = |part: &TensorView| match storage {
            Storage::Int8 | Storage::W4a8 => part.clone().with_quantised(None),
            Storage::Native | Storage::Fp8 => part.clone(),
        };
        Ok(Self { parts: parts.iter().map(plain).collect(), form: Form::of(parts, storage)?, stored, columns: None })
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        self.stored.as_ref().map_or_else(|| self.form.bytes(), |stored| stored.bytes())
    }

    /// Weights of as many rows each as columns of one matrix, from left to right. They stay as they are where they are
    /// not in 16 bits in their files, of the type of products, or one would have padding.
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

    /// What is read of the files.
    pub fn views(&self) -> impl Iterator<Item = &TensorView> {
        let is_quantised = self.form.storage != Storage::Native;
        self.parts.iter().map(move |part| part.quantised().filter(|_| is_quantised).unwrap_or(part))
    }
}

impl Form {
    /// The form of a weight whose rows are the parts' rows, one part under the other.
    ///
    /// Errors when a file has parts in a form that they cannot be brought to.
    pub fn of(parts: &[TensorView], storage: Storage) -> Result<Self> {
        // Their bytes are not those of as many 16-bit values, which the memory is made for.
        if storage == Storage::Native && parts.iter().any(|part| part.format() == Format::E4m3Rows) {
            return Err(Error::new("e4m3 is taken as the quantised form of a weight only"));
        }
        let (rows, cols) = (parts.iter().map(TensorView::rows).sum(), parts.first().map_or(0, TensorView::cols));
        if matches!(storage, Storage::Int8 | Storage::W4a8) && cols > MOST_TERMS {
            return Err(Error::new(format!("rows of {cols} columns are too long for products in int8")));
        }
        Ok(match rotated_in_file(parts).filter(|_| storage == Storage::Int8) {
            Some(group) => Self { rows, cols, storage, group },
            None => Self::quantised_here(rows, cols, storage),
        })
    }

    /// The form of a weight that this program brings to `storage`.
    pub fn quantised_here(rows: usize, cols: usize, storage: Storage) -> Self {
        let (storage, group) = match storage {
            Storage::Native | Storage::Fp8 => (storage, 1),
            Storage::W4a8 if w4a8::takes(cols) => (storage, group_of(cols)),
            Storage::Int8 | Storage::W4a8 => (Storage::Int8, group_of(cols)),
        };
        Self { rows, cols, storage, group }
    }

    /// The same weight in 16 bits.
    pub fn native(self) -> Self {
        Self { storage: Storage::Native, group: 1, ..self }
    }

    /// What its values are where they are quantised.
    pub fn quantised_kind(&self) -> Option<BufferKind> {
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

    /// Rows, with those that are zeros.
    pub fn padded_rows(&self) -> usize {
        self.rows.next_multiple_of(self.multiple())
    }

    /// Values from one row to the next; bytes where they are in 4 bits.
    pub fn stride(&self) -> usize {
        if self.storage == Storage::W4a8 {
            return w4a8::row_bytes(self.cols);
        }
        self.cols.next_multiple_of(self.multiple())
    }

    /// Bytes of one value.
    pub fn value_bytes(&self) -> usize {
        self.quantised_kind().map_or(Element::BYTES, BufferKind::size)
    }

    /// Bytes from the first value to the first scale, where rows have scales.
    pub fn scales(&self) -> Option<usize> {
        (self.storage != Storage::Native).then(|| scales_offset(self.padded_rows() * self.stride()))
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        let values = self.padded_rows() * self.stride() * self.value_bytes();
        self.scales().map_or(values, |scales| scales + self.padded_rows() * BufferKind::F32.size())
    }
}

/// The group of columns in which the rows of all parts were rotated, where products of int8 read them as they lie in
/// their files; see [`group_of_parts`]. Of other lengths than those products take, rows are quantised anew.
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
        let of = |part: &TensorView, storage| UploadSource::of(std::slice::from_ref(part), storage, false).unwrap();
        let kept = of(&rotated, Storage::Int8);
        assert_eq!(kept.form.quantised_kind(), Some(BufferKind::Int8 { group: 64 }));
        assert_eq!(kept.views().next().unwrap().row_scales().unwrap().to_f32(), [0.5; 2]);
        assert!(of(&rotated, Storage::Native).stored.is_some(), "it is dequantised for each product");
        for other in [view(Format::E4m3, 256), view(Format::Int8, 24), view(Format::Int8Rotated { group: 1024 }, 1024)]
        {
            let source = of(&other, Storage::Int8);
            assert!(source.parts[0].quantised().is_none() && source.stored.is_none(), "{}", other.format());
            assert_eq!(source.form, Form::quantised_here(2, other.cols(), Storage::Int8));
        }
        assert_eq!(Form::quantised_here(2, 768, Storage::Int8).group, 256);
    }

    #[test]
    fn rows_in_4_bits_are_of_whole_steps_and_others_in_8() {
        let form = Form::quantised_here(17, 192, Storage::W4a8);
        assert_eq!((form.quantised_kind(), form.stride()), (Some(BufferKind::W4a8 { group: 64 }), 128));
        assert_eq!(form.scales(), Some((32 * 128_usize).next_multiple_of(256)));
        assert_eq!(Form::quantised_here(17, 200, Storage::W4a8).storage, Storage::Int8);
    }

    #[test]
    fn bytes_are_those_of_all_rows_with_their_padding_and_scales() {
        let native = Form { rows: 9, cols: 5, storage: Storage::Native, group: 1 };
        assert_eq!((native.padded_rows(), native.stride(), native.bytes(), native.scales()), (16, 8, 256, None));
        for storage in [Storage::Fp8, Storage::Int8] {
            let quantised = Form { storage, ..native };
            let (rows, values) = (quantised.padded_rows(), quantised.padded_rows() * quantised.stride());
            assert_eq!((rows % MULTIPLE, quantised.stride() % MULTIPLE), (0, 0));
            assert_eq!(quantised.scales(), Some(values.next_multiple_of(256)));
            assert_eq!(quantised.bytes(), values.next_multiple_of(256) + 4 * rows);
        }
    }
}
