//! The form in which a weight is in memory.

use std::sync::Arc;

use crate::backend::Storage;
use crate::backend::cuda::buffer::{BufferKind, scales_offset};
use crate::backend::cuda::element::Element;
use crate::backend::cuda::stored::{Stored, e4m3_rows};
use crate::backend::cuda::weight::PADDING;
use crate::error::{Error, Result};
use crate::files::e4m3::MULTIPLE;
use crate::files::{Format, TensorView};

/// Sizes of a weight [rows, cols] in memory, with its padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Form {
    pub rows: usize,
    pub cols: usize,
    pub storage: Storage,
}

/// Where a weight comes from, and how it is held in memory.
pub struct UploadSource {
    /// Its rows, one part under the other.
    pub parts: Vec<TensorView>,
    /// The form in which products read it.
    pub form: Form,
    /// Where it stays in the format of its file: how it lies, instead of in that form.
    pub stored: Option<Arc<Stored>>,
}

impl UploadSource {
    /// A weight in `storage`. What a file has in fewer bits stays so: e4m3 is read by products of fp8 where there are
    /// any (`has_fp8`), all else is dequantised for each product.
    ///
    /// Errors when a file has parts in a form that they cannot be brought to.
    pub fn of(parts: &[TensorView], storage: Storage, has_fp8: bool) -> Result<Self> {
        let quantised = match storage == Storage::Fp8 || has_fp8 {
            true => parts.iter().map(e4m3_rows).collect::<Result<Option<Vec<_>>>>()?,
            false => None,
        };
        if let Some(quantised) = quantised {
            let beside = |(part, rows): (&TensorView, TensorView)| part.clone().with_quantised(Some(rows));
            let parts: Vec<_> = parts.iter().zip(quantised).map(beside).collect();
            return Ok(Self { form: Form::of(&parts, Storage::Fp8)?, parts, stored: None });
        }
        let stored = if storage == Storage::Native { Stored::of(parts)?.map(Arc::new) } else { None };
        Ok(Self { parts: parts.to_vec(), form: Form::of(parts, storage)?, stored })
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        self.stored.as_ref().map_or_else(|| self.form.bytes(), |stored| stored.bytes())
    }

    /// What is read of the files.
    pub fn views(&self) -> impl Iterator<Item = &TensorView> {
        let fp8 = self.form.storage == Storage::Fp8;
        self.parts.iter().map(move |part| part.quantised().filter(|_| fp8).unwrap_or(part))
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
        let rows = parts.iter().map(TensorView::rows).sum();
        Ok(Self { rows, cols: parts.first().map_or(0, TensorView::cols), storage })
    }

    fn multiple(&self) -> usize {
        if self.storage == Storage::Fp8 { MULTIPLE } else { PADDING }
    }

    /// Rows, with those that are zeros.
    pub fn padded_rows(&self) -> usize {
        self.rows.next_multiple_of(self.multiple())
    }

    /// Values from one row to the next.
    pub fn stride(&self) -> usize {
        self.cols.next_multiple_of(self.multiple())
    }

    /// Bytes of one value.
    pub fn value_bytes(&self) -> usize {
        if self.storage == Storage::Fp8 { BufferKind::E4m3.size() } else { Element::BYTES }
    }

    /// Bytes from the first value to the first scale, where rows have scales.
    pub fn scales(&self) -> Option<usize> {
        (self.storage == Storage::Fp8).then(|| scales_offset(self.padded_rows() * self.stride()))
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        let values = self.padded_rows() * self.stride() * self.value_bytes();
        self.scales().map_or(values, |scales| scales + self.padded_rows() * BufferKind::F32.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_all_rows_with_their_padding_and_scales() {
        let native = Form { rows: 9, cols: 5, storage: Storage::Native };
        assert_eq!((native.padded_rows(), native.stride(), native.bytes(), native.scales()), (16, 8, 256, None));
        let fp8 = Form { storage: Storage::Fp8, ..native };
        let (rows, values) = (fp8.padded_rows(), fp8.padded_rows() * fp8.stride());
        assert_eq!((rows % MULTIPLE, fp8.stride() % MULTIPLE), (0, 0));
        assert_eq!(fp8.scales(), Some(values.next_multiple_of(256)));
        assert_eq!(fp8.bytes(), values.next_multiple_of(256) + 4 * rows);
    }
}
