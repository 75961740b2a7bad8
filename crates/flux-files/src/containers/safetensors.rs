//! The safetensors container: a JSON header that names the tensors, then tensor data.
//!
//! A quantized tensor consists of several tensors in the file: [`quantized`] and [`bitsandbytes`] assemble it.

mod bitsandbytes;
mod declared;
pub(crate) mod foreign;
mod quantized;
mod scalar;

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensors};

use self::declared::Declarations;
use crate::formats::format::Format;
use crate::formats::scales::{FileSlice, Scales};
use crate::formats::tensor_view::TensorView;
use crate::formats::values;
use crate::io::bytes::Bytes;
use crate::io::content;
use flux_base::error::{Error, Result};

/// The max bytes of a header.
const MAX_HEADER: u64 = 100_000_000;

/// A safetensors file whose header is checked against its size.
pub struct Safetensors {
    path: PathBuf,
    bytes: Arc<Bytes>,
    entries: HashMap<String, Entry>,
    metadata: HashMap<String, String>,
    declarations: Declarations,
    /// Endings of the tensor names of each layer.
    companions: OnceLock<HashMap<String, Vec<String>>>,
    /// Bytes after the last tensor.
    trailing: usize,
}

/// The location of a tensor. The scale of a layer in this file may be in another file.
struct Entry {
    bytes: Arc<Bytes>,
    range: Range<usize>,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// Returns the name of the tensor with the scales of an e4m3 matrix in the cache.
pub fn scales_name(matrix: &str) -> String {
    format!("{matrix}.scales")
}

impl Safetensors {
    /// Opens a file; `remedy` is the error's hint for a damaged file.
    ///
    /// Errors if it is not a safetensors file, is cut off, or has an invalid header.
    pub fn open(path: &Path, remedy: &str) -> Result<Self> {
        Self::new(path.to_path_buf(), Bytes::map(path).map_err(|e| e.hint(remedy))?, remedy)
    }

    /// As [`Safetensors::open`], for bytes that are already mapped or embedded.
    pub fn new(path: PathBuf, bytes: Bytes, remedy: &str) -> Result<Self> {
        let broken =
            |e: &dyn Display| Error::new(format!("not a valid safetensors file: {e}")).at_path(&path).hint(remedy);
        let bytes = Arc::new(bytes);
        let first = bytes.as_slice();
        // A file of another kind does not begin with a plausible header length and a `{`.
        let length = first.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let is_whole = first.get(8) == Some(&b'{') && length.is_some_and(|length| length <= MAX_HEADER);
        if let Some(error) = content::explain(&path, first).filter(|_| !is_whole) {
            return Err(error.at_path(&path));
        }
        let tensors = without_trailing(first).map_err(|why| broken(&why))?;
        let (header_len, header) = SafeTensors::read_metadata(tensors).map_err(|e| broken(&e))?;
        // The header follows the eight bytes of its length.
        let data_start = 8 + header_len;
        let trailing = first.len() - tensors.len();
        let entries = header.tensors().into_iter().map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let range = data_start + start..data_start + end;
            (name, Entry { bytes: Arc::clone(&bytes), range, dtype: info.dtype, shape: info.shape.clone() })
        });
        let entries: HashMap<String, Entry> = entries.collect();
        let metadata = header.metadata().clone().unwrap_or_default();
        let declarations = Declarations::from_header(&metadata, &entries).map_err(|why| broken(&why))?;
        let companions = OnceLock::new();
        Ok(Self { path, bytes, entries, metadata, declarations, companions, trailing })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> &Arc<Bytes> {
        &self.bytes
    }

    /// Errors if the length of the file has changed since it was opened. Reading a part that was cut off would end the
    /// program.
    pub fn check_length(&self) -> Result<()> {
        self.bytes.check_length().map_err(|e| e.at_path(&self.path))
    }

    /// Errors with the name of a tensor that holds infinities or NaN. Reads the whole file, on all cores.
    pub fn check_finite(&self) -> Result<()> {
        values::check_finite(self.names(), |name| self.tensor(name)).map_err(|e| e.at_path(&self.path))
    }

    /// Returns notes on the file for the user.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let (path, trailing) = (self.path.display(), self.trailing);
        let behind = || format!("`{path}` has {trailing} bytes after its tensors, which are ignored");
        (trailing > 0).then(behind).into_iter().chain(self.bytes.note(&self.path))
    }

    /// Returns the header's metadata.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }

    /// Returns `true` if there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Returns the names of all tensors, in no particular order, without tensors that belong to another one, such as
    /// scales.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str).filter(|name| !self.is_companion(name))
    }

    /// Moves scales to the file that holds their layer, among the files of one component. Files are split by size, so a
    /// layer's tensors may be in different files.
    pub fn gather_companions(files: &mut [&mut Self]) {
        for index in 0..files.len() {
            let weight = |name: &String| Some(format!("{}.weight", quantized::layer_of_companion(name)?));
            let apart = files[index].entries.keys().filter_map(|name| Some((name.clone(), weight(name)?)));
            let apart: Vec<_> = apart.filter(|(_, weight)| !files[index].contains(weight)).collect();
            for (name, weight) in apart {
                let Some(home) = files.iter().position(|file| file.contains(&weight)) else { continue };
                let entry = files[index].entries.remove(&name).expect("the key is from this map");
                files[home].entries.insert(name, entry);
            }
        }
    }

    /// Returns the shape of a tensor's values, if there is a tensor of this name.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let entry = self.entries.get(name)?;
        Some(self.tensor(name).map_or_else(|_| entry.shape.clone(), |view| view.shape().to_vec()))
    }

    /// Returns the tensor `name`, whatever its shape and values, in the format of the file.
    ///
    /// Errors if it is missing, or in a form that this program does not read.
    pub fn tensor(&self, name: &str) -> Result<TensorView> {
        let view = match self.entries.get(name) {
            None => Err(self.missing(name)),
            Some(entry) if self.is_bitsandbytes(name) => self.bitsandbytes_tensor(name, entry),
            Some(entry) => self.declared_tensor(name, entry),
        };
        view.map_err(|e| e.at_path(&self.path))
    }

    /// Returns the e4m3 matrix `name` of the cache, with padded rows and scales of rows. The matrix must have `shape`.
    ///
    /// Errors if the matrix or its scales are missing, or have another shape or dtype.
    pub fn e4m3_rows(&self, name: &str, shape: &[usize; 2]) -> Result<TensorView> {
        let stored = [shape[0], shape[1].next_multiple_of(Format::E4m3Rows.block().values)];
        let values = self.expect(name, Dtype::F8_E4M3, &stored).map_err(|e| e.at_path(&self.path))?;
        let name_of_scales = scales_name(name);
        let scales = self.expect(&name_of_scales, Dtype::F32, &shape[..1]).map_err(|e| e.at_path(&self.path))?;
        self.view(name, values, Format::E4m3Rows, shape, Scales::Rows(Box::new(self.slice(scales))))
    }

    /// Returns the entry `name`, which must have this dtype and shape.
    fn expect(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<&Entry> {
        let entry = self.entries.get(name).ok_or_else(|| missing(name))?;
        if entry.dtype != dtype {
            return Err(Error::new(format!("tensor `{name}` has dtype {:?}, expected {dtype:?}", entry.dtype)));
        }
        if entry.shape != shape {
            return Err(Error::new(format!("tensor `{name}` has shape {:?}, expected {shape:?}", entry.shape)));
        }
        Ok(entry)
    }

    /// Returns the bytes of an entry as a tensor.
    fn view(&self, name: &str, entry: &Entry, format: Format, shape: &[usize], scales: Scales) -> Result<TensorView> {
        TensorView::new(Arc::clone(&entry.bytes), entry.range.clone(), format, shape.to_vec(), scales)
            .map_err(|why| Error::new(format!("tensor `{name}` {why}")).at_path(&self.path))
    }

    /// Returns the bytes of an entry.
    fn slice(&self, entry: &Entry) -> FileSlice {
        FileSlice::new(Arc::clone(&entry.bytes), entry.range.clone()).expect("the header was checked")
    }
}

/// Returns the header and the tensors, without the bytes after the last tensor.
///
/// Errors with the reason if the file is cut off. An invalid header is not an error here.
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
        format!("the header describes {length} bytes of tensors, but the file contains {}", bytes.len() - start)
    })
}

fn missing(name: &str) -> Error {
    Error::new(format!("tensor `{name}` is missing"))
}

/// Returns the plain float format of a dtype.
fn float_format(dtype: Dtype) -> Option<Format> {
    Format::find_layout(|layout| layout.dtype == dtype).filter(|format| format.is_float())
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Container;
    use crate::testing::refused;

    /// Name, dtype, shape and number of bytes.
    pub type Entry<'a> = (&'a str, &'a str, &'a [u64], usize);

    /// Creates a container of these entries.
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

    /// Replaces the bytes of a file, also for its tensors.
    fn replace_bytes(file: &mut Safetensors, bytes: Vec<u8>) {
        file.bytes = Arc::new(Bytes::Embedded(bytes.leak()));
        file.entries.values_mut().for_each(|entry| entry.bytes = Arc::clone(&file.bytes));
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
            replace_bytes(&mut file, bytes);
            refused(file.check_finite(), &["tensor `b` contains NaN", "in: model", "hint: "]);
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
            replace_bytes(&mut file, bytes.clone());
            file.check_finite().unwrap();
            bytes[end - value.len()..].fill(0xff);
            replace_bytes(&mut file, bytes);
            refused(file.check_finite(), &["tensor `a` contains NaN"]);
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
                &["not a valid safetensors file", "in: model", "hint: fetch it again"],
            );
        };
        broken(&[("w", "BF16", &[4, 4], 30)]);
        broken(&[("w", "BF16", &[u64::MAX, u64::MAX], 32)]);
        broken(&[("w", "F32", &[1 << 63, 2], 0)]);
        broken(&[("w", "F4", &[3], 1)]);
        broken(&[("w", "NONE", &[4], 8)]);
    }
}
