//! The safetensors container: a JSON header that names the tensors, then their bytes.
//!
//! A tensor in few bits lies in several: [`quantised`] and [`bitsandbytes`] find what belongs together.

mod bitsandbytes;
mod declared;
pub(super) mod foreign;
mod quantised;
mod scalar;

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensors};

use self::declared::Declarations;
use super::bytes::Bytes;
use super::content;
use super::finite;
use super::format::Format;
use super::scales::{FileSlice, Scales};
use super::tensor_view::TensorView;
use crate::error::{Error, Result};

/// The longest header that is read.
const MOST_HEADER: u64 = 100_000_000;

/// A file whose header was checked against its size.
pub struct Safetensors {
    path: PathBuf,
    bytes: Arc<Bytes>,
    entries: HashMap<String, Entry>,
    metadata: HashMap<String, String>,
    declarations: Declarations,
    /// How the names of the tensors of each layer end.
    companions: OnceLock<HashMap<String, Vec<String>>>,
    /// Bytes behind the last tensor.
    trailing: usize,
}

struct Entry {
    range: Range<usize>,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// The tensor that holds the scales of an e4m3 matrix of the cache.
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
        let first = bytes.as_slice();
        // Any file may begin with a byte that is one of the length of a header, but then the header is not as long.
        let length = first.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let is_whole = first.get(8) == Some(&b'{') && length.is_some_and(|length| length <= MOST_HEADER);
        if let Some(error) = content::explain(&path, first).filter(|_| !is_whole) {
            return Err(error.at_path(&path));
        }
        let tensors = without_trailing(first).map_err(|why| broken(&why))?;
        let (header_len, header) = SafeTensors::read_metadata(tensors).map_err(|e| broken(&e))?;
        // The eight bytes of the header's length come before the header.
        let data_start = 8 + header_len;
        let trailing = first.len() - tensors.len();
        let entries = header.tensors().into_iter().map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let range = data_start + start..data_start + end;
            (name, Entry { range, dtype: info.dtype, shape: info.shape.clone() })
        });
        let entries: HashMap<String, Entry> = entries.collect();
        let metadata = header.metadata().clone().unwrap_or_default();
        let declarations = Declarations::of_header(&metadata, &entries).map_err(|why| broken(&why))?;
        let companions = OnceLock::new();
        Ok(Self { path, bytes: Arc::new(bytes), entries, metadata, declarations, companions, trailing })
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
        self.bytes.check_length().map_err(|e| e.at_path(&self.path))
    }

    /// Errors with the name of a tensor that holds infinities or values that are no numbers. Reads the whole file, on
    /// all cores.
    pub fn check_finite(&self) -> Result<()> {
        finite::check(self.names(), |name| self.tensor(name)).map_err(|e| e.at_path(&self.path))
    }

    /// What someone should know about the file.
    pub fn note(&self) -> Option<String> {
        let (path, trailing) = (self.path.display(), self.trailing);
        (trailing > 0).then(|| format!("`{path}` has {trailing} bytes behind its tensors, which are left out"))
    }

    /// The header's metadata.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The names of all tensors, in no order; what belongs to another tensor, such as its scales, has none.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str).filter(|name| !self.is_companion(name))
    }

    /// The shape of the values of a tensor, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let entry = self.entries.get(name)?;
        Some(self.tensor(name).map_or_else(|_| entry.shape.clone(), |view| view.shape().to_vec()))
    }

    /// The tensor `name`, whatever its shape and values, in the format in which the file has it.
    ///
    /// Errors when it is missing, or in a form that this program does not read.
    pub fn tensor(&self, name: &str) -> Result<TensorView> {
        let view = match self.entries.get(name) {
            None => Err(self.missing(name)),
            Some(entry) if self.is_bitsandbytes(name) => self.bitsandbytes_tensor(name, entry),
            Some(entry) => self.declared_tensor(name, entry),
        };
        view.map_err(|e| e.at_path(&self.path))
    }

    /// The e4m3 matrix `name`, which must have `shape`, in the form of the cache: with padded rows and scales of rows.
    ///
    /// Errors when it or its scales are missing, or have another shape or dtype.
    pub fn e4m3_rows(&self, name: &str, shape: &[usize; 2]) -> Result<TensorView> {
        let stored = [shape[0], shape[1].next_multiple_of(Format::E4m3Rows.block().values)];
        let values = self.expect(name, Dtype::F8_E4M3, &stored).map_err(|e| e.at_path(&self.path))?;
        let name_of_scales = scales_name(name);
        let scales = self.expect(&name_of_scales, Dtype::F32, &shape[..1]).map_err(|e| e.at_path(&self.path))?;
        self.view(name, values, Format::E4m3Rows, shape, Scales::Rows(Box::new(self.slice(scales))))
    }

    /// The entry `name`, which must have this dtype and shape.
    fn expect(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<&Entry> {
        let entry = self.entries.get(name).ok_or_else(|| missing(name))?;
        if entry.dtype != dtype {
            return Err(Error::new(format!("tensor `{name}` is of dtype {:?}, expected {dtype:?}", entry.dtype)));
        }
        if entry.shape != shape {
            return Err(Error::new(format!("tensor `{name}` is {:?}, expected {shape:?}", entry.shape)));
        }
        Ok(entry)
    }

    /// The bytes of an entry as a tensor.
    fn view(&self, name: &str, entry: &Entry, format: Format, shape: &[usize], scales: Scales) -> Result<TensorView> {
        TensorView::new(Arc::clone(&self.bytes), entry.range.clone(), format, shape.to_vec(), scales)
            .map_err(|why| Error::new(format!("tensor `{name}` {why}")).at_path(&self.path))
    }

    /// The bytes of an entry.
    fn slice(&self, entry: &Entry) -> FileSlice {
        FileSlice::new(Arc::clone(&self.bytes), entry.range.clone()).expect("the header was checked")
    }
}

/// The header and the tensors, without what is behind the last of them.
///
/// Errors with the reason when the file is cut off. Whether the header is right is not asked.
fn without_trailing(bytes: &[u8]) -> std::result::Result<&[u8], String> {
    let header = || {
        let length = usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()?;
        let start = length.checked_add(8)?;
        let header: Metadata = serde_json::from_slice(bytes.get(8..start)?).ok()?;
        Some((start, header.data_len()))
    };
    let Some((start, length)) = header() else { return Ok(bytes) };
    let end = start.checked_add(length);
    end.and_then(|end| bytes.get(..end)).ok_or_else(|| {
        format!("the header describes {length} bytes of tensors, the file holds {}", bytes.len() - start)
    })
}

fn missing(name: &str) -> Error {
    Error::new(format!("tensor `{name}` is missing"))
}

/// The format of plain floats of a dtype.
fn float_format(dtype: Dtype) -> Option<Format> {
    Format::find_layout(|layout| layout.dtype == dtype).filter(|format| format.is_float())
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::files::Container;

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
            Container::open(&path, "").unwrap().get("w", shape)
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
