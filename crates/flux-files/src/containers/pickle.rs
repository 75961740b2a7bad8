//! Weights that PyTorch pickled: a zip archive of `torch.save`, or the stream of PyTorch before 1.6.
//!
//! A pickle is a program that may call any function. [`machine`] runs only the opcodes that `torch.save` writes for a
//! dictionary of tensors, and calls nothing but the few functions of [`Global`](value::Global). Everything else is an
//! error. Only upscalers are read from such files: see
//! [`open_pickled_weights`](crate::open_pickled_weights).

mod archive;
mod machine;
mod tensors;
mod value;

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::archive::Archive;
use self::machine::Machine;
use self::value::Value;
use crate::containers::cursor::Cursor;
use crate::formats::scales::Scales;
use crate::formats::tensor_view::TensorView;
use crate::io::bytes::Bytes;
use flux_base::error::{Error, Result};

/// The hint for a damaged file.
pub(super) const FETCH: &str = "fetch the file again";
/// The first number of a stream of PyTorch before 1.6, and the version of its layout.
const LEGACY_MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const LEGACY_VERSION: i64 = 1001;

/// A file of pickled weights, with the place of each tensor.
pub struct Pickle {
    path: PathBuf,
    bytes: Arc<Bytes>,
    /// By the keys of nested dictionaries, joined with dots.
    tensors: HashMap<String, TensorView>,
}

/// Returns `true` for a zip archive, and for a stream that begins with the magic number of `torch.save`.
pub(super) fn is_pickled(bytes: &[u8]) -> bool {
    bytes.starts_with(archive::MAGIC) || bytes.get(2..).is_some_and(|rest| rest.starts_with(&[0x8a, 10]))
}

impl Pickle {
    /// Reads the tensors in `bytes`, without copying them.
    ///
    /// Errors if the pickle has an opcode, a function or contents that are not allowed, or is damaged.
    pub fn new(path: PathBuf, bytes: Bytes) -> Result<Self> {
        let bytes = Arc::new(bytes);
        let all = bytes.as_slice();
        let read = if all.starts_with(archive::MAGIC) { from_archive(all) } else { from_stream(all) };
        let places = read.map_err(|why| Error::new(format!("not a readable file of PyTorch: {why}")));
        let tensors = places.and_then(|places| places.into_iter().map(|place| place.view(&bytes)).collect());
        let error = |e: Error| e.at_path(&path).hint(format!("{FETCH}, or use the same weights as a safetensors file"));
        Ok(Self { tensors: tensors.map_err(error)?, path, bytes })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> &Arc<Bytes> {
        &self.bytes
    }

    /// Returns the names of all tensors, unordered.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the shape of a tensor, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(TensorView::shape)
    }

    /// Returns the tensor `name`.
    ///
    /// Errors if it is missing.
    pub fn tensor(&self, name: &str) -> Result<TensorView> {
        let missing = || Error::new(format!("tensor `{name}` is missing")).at_path(&self.path);
        self.tensors.get(name).cloned().ok_or_else(missing)
    }
}

/// Returns a cursor at a position.
fn cursor_at(bytes: &[u8], at: usize) -> Cursor<'_> {
    Cursor::new(bytes, at, "it is cut off")
}

/// A tensor in the file.
struct Place {
    name: String,
    tensor: value::Tensor,
    /// The bytes of its storage in the file.
    storage: Range<usize>,
}

impl Place {
    fn view(self, bytes: &Arc<Bytes>) -> Result<(String, TensorView)> {
        let Self { name, tensor, storage } = self;
        let error = |why: String| Error::new(format!("tensor `{name}` {why}"));
        let range = tensor.range(storage).map_err(error)?;
        let view = TensorView::new(Arc::clone(bytes), range, tensor.format(), tensor.shape.clone(), Scales::None);
        Ok((name.clone(), view.map_err(error)?))
    }
}

/// Reads a zip archive of `torch.save`.
fn from_archive(all: &[u8]) -> std::result::Result<Vec<Place>, String> {
    let archive = Archive::read(all)?;
    if archive.find("byteorder").is_some_and(|order| &all[order] != b"little") {
        return Err("its numbers are not little-endian".to_string());
    }
    let program = archive.find("data.pkl").ok_or("the archive has no `data.pkl`")?;
    let root = Machine::run(&mut cursor_at(&all[program], 0))?;
    let place = |(name, tensor): (String, value::Tensor)| {
        let record = format!("data/{}", tensor.storage.key);
        let storage = archive.find(&record).ok_or_else(|| format!("the archive has no `{record}`"))?;
        Ok(Place { name, tensor, storage })
    };
    tensors::flatten(&root)?.into_iter().map(place).collect()
}

/// Reads a stream of PyTorch before 1.6: a magic number, a version, facts about the machine, the object, the keys of
/// the storages, and the storages, each behind its length.
fn from_stream(all: &[u8]) -> std::result::Result<Vec<Place>, String> {
    let mut cursor = cursor_at(all, 0);
    if !matches!(Machine::run(&mut cursor)?, Value::Long(digits) if *digits == LEGACY_MAGIC) {
        return Err("it does not begin with the number of `torch.save`".to_string());
    }
    if !matches!(Machine::run(&mut cursor)?, Value::Int(LEGACY_VERSION)) {
        return Err("its stream has an unknown version".to_string());
    }
    let machine = Machine::run(&mut cursor)?;
    if machine.at("little_endian").is_some_and(|little| !matches!(little, Value::Bool(true))) {
        return Err("its numbers are not little-endian".to_string());
    }
    let root = Machine::run(&mut cursor)?;
    let Value::List(keys) = Machine::run(&mut cursor)? else {
        return Err("it has no list of storages".to_string());
    };
    let tensors = tensors::flatten(&root)?;
    let sizes: HashMap<&str, usize> =
        tensors.iter().map(|(_, tensor)| (tensor.storage.key.as_str(), tensor.storage.kind.bytes())).collect();
    let mut storages = HashMap::new();
    for key in keys {
        let Value::Text(key) = key else { return Err("a storage has no name".to_string()) };
        let size = *sizes.get(key.as_ref()).ok_or_else(|| format!("no tensor uses storage `{key}`"))?;
        let length = cursor.u64()?;
        let bytes = usize::try_from(length).ok().and_then(|length| length.checked_mul(size));
        let bytes = bytes.ok_or_else(|| format!("storage `{key}` has {length} values"))?;
        storages.insert(key.to_string(), cursor.skip(bytes)?);
    }
    let place = |(name, tensor): (String, value::Tensor)| {
        let storage = storages.get(&tensor.storage.key).cloned();
        let storage = storage.ok_or_else(|| format!("storage `{}` is missing", tensor.storage.key))?;
        Ok(Place { name, tensor, storage })
    };
    tensors.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests;
