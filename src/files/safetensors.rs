//! The safetensors container: a JSON header that names the tensors, then their bytes.

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use safetensors::{Dtype, SafeTensors};

use super::bytes::Bytes;
use super::format::Format;
use super::tensor_view::TensorView;
use crate::error::{Error, Result};

/// A file whose header was checked against its size.
pub struct Safetensors {
    path: PathBuf,
    bytes: Arc<Bytes>,
    entries: HashMap<String, Entry>,
    metadata: HashMap<String, String>,
}

struct Entry {
    range: Range<usize>,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// The tensor that holds the scales of an e4m3 matrix.
pub fn scales_name(matrix: &str) -> String {
    format!("{matrix}.scales")
}

impl Safetensors {
    /// Opens a file; `remedy` is what to do about a damaged one.
    ///
    /// Errors when it is no safetensors file, cut off, or its header is wrong.
    pub fn open(path: &Path, remedy: &str) -> Result<Self> {
        Self::new(path.to_path_buf(), Bytes::map(path).map_err(|e| e.hint(remedy))?, remedy)
    }

    /// As [`Safetensors::open`], for bytes that are already mapped or embedded.
    pub fn new(path: PathBuf, bytes: Bytes, remedy: &str) -> Result<Self> {
        let broken =
            |e: &dyn Display| Error::new(format!("not a whole safetensors file: {e}")).at_path(&path).hint(remedy);
        let (header_len, header) = SafeTensors::read_metadata(bytes.as_slice()).map_err(|e| broken(&e))?;
        // The eight bytes of the header's length come before the header.
        let data_start = 8 + header_len;
        let data_len = bytes.as_slice().len() - data_start;
        if header.data_len() != data_len {
            return Err(broken(&format!(
                "the header describes {} bytes of tensors, the file holds {data_len}",
                header.data_len()
            )));
        }
        let entries = header.tensors().into_iter().map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let range = data_start + start..data_start + end;
            (name, Entry { range, dtype: info.dtype, shape: info.shape.clone() })
        });
        let entries = entries.collect();
        let metadata = header.metadata().clone().unwrap_or_default();
        Ok(Self { path, bytes: Arc::new(bytes), entries, metadata })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes.
    pub fn bytes(&self) -> &Arc<Bytes> {
        &self.bytes
    }

    /// Errors when the file is not as long as when it was opened. Reading what was cut off would end the program.
    pub fn check_length(&self) -> Result<()> {
        let then = self.bytes.as_slice().len() as u64;
        let what = match self.bytes.length_now() {
            Ok(now) if now == then => return Ok(()),
            Ok(now) => format!("the file had {then} bytes when it was opened, and has {now} now"),
            Err(error) => format!("the file cannot be read any more: {error}"),
        };
        Err(Error::new(what)
            .at_path(&self.path)
            .hint("leave a model's files as they are while images are made; run again"))
    }

    /// Errors with the name of a tensor of floats that holds infinities or values that are no numbers. Reads the whole
    /// file, on all cores.
    pub fn check_finite(&self) -> Result<()> {
        let is_damaged = |(_, entry): &(&String, &Entry)| {
            let format = entry.format().filter(|format| Format::FLOATS.contains(format));
            let view = format.and_then(|format| {
                TensorView::new(Arc::clone(&self.bytes), entry.range.clone(), format, entry.shape.clone(), None).ok()
            });
            view.is_some_and(|view| !is_finite(&view))
        };
        match self.entries.par_iter().filter(is_damaged).map(|(name, _)| name).min() {
            Some(name) => Err(Error::new(format!("tensor `{name}` holds values that are not numbers, or infinite"))
                .at_path(&self.path)
                .hint("the file is damaged: fetch it again")),
            None => Ok(()),
        }
    }

    /// The header's metadata.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The shape of the tensor `name`, if there is one.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.entries.get(name).map(|entry| entry.shape.clone())
    }

    /// The names of all tensors, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Name, rows and columns of all matrices of floats that have values, in no order.
    pub fn matrices(&self) -> impl Iterator<Item = (&str, [usize; 2])> {
        self.entries.iter().filter_map(|(name, entry)| match (entry.format(), &*entry.shape) {
            (Some(format), &[rows, cols]) if Format::FLOATS.contains(&format) && rows > 0 && cols > 0 => {
                Some((name.as_str(), [rows, cols]))
            }
            _ => None,
        })
    }

    /// The tensor `name` of floats, whatever its shape and values.
    ///
    /// Errors when it is missing, or its dtype is no float.
    pub fn tensor(&self, name: &str) -> Result<TensorView> {
        let missing = || Error::new(format!("tensor `{name}` is missing")).at_path(&self.path);
        let entry = self.entries.get(name).ok_or_else(missing)?;
        let format = entry.format_of(name, &Format::FLOATS).map_err(|e| e.at_path(&self.path))?;
        TensorView::new(Arc::clone(&self.bytes), entry.range.clone(), format, entry.shape.clone(), None)
            .map_err(|why| Error::new(format!("tensor `{name}` {why}")).at_path(&self.path))
    }

    /// The tensor `name`, which must have `shape` and be in one of `formats`.
    ///
    /// Errors when it is missing, has another shape or dtype, or is a matrix of zeros.
    pub fn get(&self, name: &str, shape: &[usize], formats: &[Format]) -> Result<TensorView> {
        let entry = self
            .entries
            .get(name)
            .ok_or_else(|| Error::new(format!("tensor `{name}` is missing")).at_path(&self.path))?;
        let format = entry.format_of(name, formats).map_err(|e| e.at_path(&self.path))?;
        let stored = stored_shape(format, shape);
        if entry.shape != stored {
            return Err(
                Error::new(format!("tensor `{name}` is {:?}, expected {stored:?}", entry.shape)).at_path(&self.path)
            );
        }
        let scales = match shape.first() {
            Some(rows) if format.has_row_scales() => Some(self.get(&scales_name(name), &[*rows], &[Format::F32])?),
            _ => None,
        };
        let bytes = &self.bytes.as_slice()[entry.range.clone()];
        // No trained matrix is. This ends at the first other byte, which is nearly always among the first.
        if shape.len() > 1 && !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0) {
            return Err(Error::new(format!("tensor `{name}` is all zeros"))
                .at_path(&self.path)
                .hint("its download was cut off, or its disk has lost it: fetch the file again"));
        }
        TensorView::new(Arc::clone(&self.bytes), entry.range.clone(), format, shape.to_vec(), scales)
            .map_err(|why| Error::new(format!("tensor `{name}` {why}")).at_path(&self.path))
    }
}

impl Entry {
    /// The format of a dtype; none where no format has it.
    fn format(&self) -> Option<Format> {
        let mut known = Format::FLOATS.into_iter().chain([Format::E4m3Rows]);
        known.find(|format| dtype(*format) == self.dtype)
    }

    /// The format of the dtype of tensor `name`, which must be one of `formats`.
    fn format_of(&self, name: &str, formats: &[Format]) -> Result<Format> {
        self.format().filter(|format| formats.contains(format)).ok_or_else(|| {
            Error::new(format!("tensor `{name}` is of dtype {:?}, expected {}", self.dtype, one_of(formats)))
        })
    }
}

/// Whether all values of a tensor of floats are finite: in the others all bits of the exponent are set.
fn is_finite(view: &TensorView) -> bool {
    const BYTES_AT_ONCE: usize = 1 << 18;
    let all_finite = |bytes: &[u8]| match view.format() {
        Format::Bf16 => none(bytes, |value| u16::from_le_bytes(value) & 0x7f80 == 0x7f80),
        Format::F16 => none(bytes, |value| u16::from_le_bytes(value) & 0x7c00 == 0x7c00),
        Format::F32 => none(bytes, |value| u32::from_le_bytes(value) & 0x7f80_0000 == 0x7f80_0000),
        // It has no infinity, and two values that are no numbers.
        Format::E4m3Rows => none(bytes, |[value]| value & 0x7f == 0x7f),
    };
    view.bytes().par_chunks(BYTES_AT_ONCE).all(all_finite)
}

/// Whether no value of `N` bytes is `bad`. All are looked at, because the compiler then takes many at once.
fn none<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> bool {
    let (values, _) = bytes.as_chunks::<N>();
    !values.iter().fold(false, |found, value| found | bad(*value))
}

/// The dtypes of `formats`, as in "BF16, F16 or F32".
fn one_of(formats: &[Format]) -> String {
    let names: Vec<String> = formats.iter().map(|format| format!("{:?}", dtype(*format))).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// What the header calls a format.
fn dtype(format: Format) -> Dtype {
    match format {
        Format::Bf16 => Dtype::BF16,
        Format::F16 => Dtype::F16,
        Format::F32 => Dtype::F32,
        Format::E4m3Rows => Dtype::F8_E4M3,
    }
}

/// The shape of a tensor in the header, which includes its padding.
fn stored_shape(format: Format, shape: &[usize]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let [_, cols] = &mut shape[..] {
        *cols = cols.next_multiple_of(format.block().values);
    }
    shape
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Name, dtype, shape and number of bytes.
    pub type Entry<'a> = (&'a str, &'a str, &'a [u64], usize);

    /// A container of these entries.
    pub fn container(path: &str, entries: &[Entry<'_>]) -> Result<Safetensors> {
        let mut end = 0;
        let mut place = |bytes: usize| {
            end += bytes;
            [end - bytes, end]
        };
        let header: Value = entries
            .iter()
            .map(|(name, dtype, shape, bytes)| {
                let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": place(*bytes) });
                (name.to_string(), entry)
            })
            .collect();
        let header = header.to_string();
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![1; end]].concat();
        Safetensors::new(Path::new(path).to_path_buf(), Bytes::Embedded(bytes.leak()), "fetch it again")
    }

    #[track_caller]
    pub fn refused<T>(result: Result<T>, words: &[&str]) {
        let error = result.err().expect("refused").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }

    #[test]
    fn a_value_that_is_no_number_is_found_in_every_format() {
        for (dtype, damaged) in [
            ("BF16", &[0x80, 0x7f][..]),
            ("BF16", &[0xc0, 0xff]),
            ("F16", &[0x00, 0x7c]),
            ("F32", &[0x00, 0x00, 0x80, 0x7f]),
            ("F32", &[0x01, 0x00, 0x80, 0xff]),
        ] {
            let shape = [3, 4 / damaged.len() as u64];
            let mut file = container("model", &[("a", dtype, &shape, 12), ("b", dtype, &shape, 12)]).unwrap();
            file.check_finite().unwrap();
            let mut bytes = file.bytes.as_slice().to_vec();
            let end = bytes.len();
            bytes[end - damaged.len()..].copy_from_slice(damaged);
            file.bytes = Arc::new(Bytes::Embedded(bytes.leak()));
            refused(file.check_finite(), &["tensor `b` holds values that are not numbers", "in: model", "hint: "]);
        }
    }

    #[test]
    fn the_largest_numbers_are_finite_and_all_of_a_large_tensor_is_looked_at() {
        let largest = [("BF16", &[0x7f, 0x7f][..]), ("F16", &[0xff, 0xfb]), ("F32", &[0xff, 0xff, 0x7f, 0xff])];
        for (dtype, value) in largest {
            let count = (1 << 18) + 3;
            let mut file = container("model", &[("a", dtype, &[count as u64], count * value.len())]).unwrap();
            let mut bytes = file.bytes.as_slice().to_vec();
            let end = bytes.len();
            bytes[end - count * value.len()..].copy_from_slice(&value.repeat(count));
            file.bytes = Arc::new(Bytes::Embedded(bytes.clone().leak()));
            file.check_finite().unwrap();
            bytes[end - value.len()..].fill(0xff);
            file.bytes = Arc::new(Bytes::Embedded(bytes.leak()));
            refused(file.check_finite(), &["tensor `a` holds values that are not numbers"]);
        }
    }

    #[test]
    fn a_matrix_of_zeros_is_refused_and_a_vector_of_zeros_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let zeros = |shape: &[usize]| {
            let bytes = vec![0; 4 * shape.iter().product::<usize>()];
            let tensor = safetensors::tensor::TensorView::new(Dtype::F32, shape.to_vec(), &bytes).unwrap();
            safetensors::serialize_to_file([("w", tensor)], None, &path).unwrap();
            Safetensors::open(&path, "").unwrap().get("w", shape, &[Format::F32])
        };
        refused(zeros(&[4, 4]), &["tensor `w` is all zeros", "in: ", "hint: "]);
        assert!(zeros(&[4]).is_ok() && zeros(&[0, 4]).is_ok());
    }

    #[test]
    fn a_header_that_contradicts_itself_is_refused_with_the_remedy() {
        let broken = |entries: &[Entry<'_>]| {
            refused(
                container("model", entries),
                &["not a whole safetensors file", "in: model", "hint: fetch it again"],
            );
        };
        broken(&[("w", "BF16", &[4, 4], 30)]);
        broken(&[("w", "BF16", &[u64::MAX, u64::MAX], 32)]);
        broken(&[("w", "F32", &[1 << 63, 2], 0)]);
        broken(&[("w", "F4", &[3], 1)]);
        broken(&[("w", "NONE", &[4], 8)]);
    }
}
