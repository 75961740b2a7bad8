//! The GGUF container: typed values by key, tensor names, then tensor data.

#[cfg(test)]
mod tests;
pub(super) mod values;

use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::values::Value;
use crate::containers::cursor::Cursor;
use crate::formats::format::{Format, Row};
use crate::formats::scales::Scales;
use crate::formats::tensor_view::TensorView;
use crate::io::bytes::Bytes;
use flux_base::error::{Error, Result};

/// The magic bytes at the beginning of a file.
pub const MAGIC: &[u8] = b"GGUF";
/// The key of the tensor alignment.
const ALIGNMENT: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u32 = 32;
/// The error for a file that ends too early.
const CUT_OFF: &str = "it ends before its tensors do";
/// The max number of axes of a tensor.
const MAX_AXES: u32 = 4;
const USE_INSTEAD: &str =
    "use a file in Q8_0, Q6_K, Q5_K, Q4_K, Q3_K or Q2_K, which are as small or as accurate, or in bf16";

/// A GGUF file whose keys and tensors are checked against its size.
pub struct Gguf {
    path: PathBuf,
    bytes: Arc<Bytes>,
    values: HashMap<String, Value>,
    tensors: HashMap<String, Entry>,
}

enum Entry {
    Tensor(TensorView),
    /// The type id and shape of a tensor whose type this program does not read.
    Unknown(u32, Vec<usize>),
}

impl Gguf {
    /// Opens a file; `remedy` is the error's hint for a damaged file.
    ///
    /// Errors if it is not a GGUF file of version 2 or 3, is cut off, or contradicts itself.
    pub fn open(path: &Path, remedy: &str) -> Result<Self> {
        Self::new(path.to_path_buf(), Bytes::map(path).map_err(|e| e.hint(remedy))?, remedy)
    }

    /// As [`Gguf::open`], for bytes that are already mapped or embedded.
    pub fn new(path: PathBuf, bytes: Bytes, remedy: &str) -> Result<Self> {
        let bytes = Arc::new(bytes);
        let broken = |e: &dyn Display| Error::new(format!("not a valid GGUF file: {e}")).at_path(&path).hint(remedy);
        let (values, tensors) = parse(&bytes).map_err(|e| broken(&e))?;
        Ok(Self { path, bytes, values, tensors })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> &Arc<Bytes> {
        &self.bytes
    }

    /// Returns `true` if there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the names of all tensors, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the shape of a tensor, outermost axis first, even if this program does not read its type.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(match self.tensors.get(name)? {
            Entry::Tensor(view) => view.shape(),
            Entry::Unknown(_, shape) => shape,
        })
    }

    /// Returns the tensor `name`.
    ///
    /// Errors if it is missing, or of a type that this program does not read.
    pub fn tensor(&self, name: &str) -> Result<TensorView> {
        match self.tensors.get(name) {
            Some(Entry::Tensor(view)) => Ok(view.clone()),
            Some(Entry::Unknown(id, _)) => {
                let what = format!("tensor `{name}` has type {}, which is not supported", type_name(*id));
                Err(Error::new(what).at_path(&self.path).hint(USE_INSTEAD))
            }
            None => Err(Error::new(format!("tensor `{name}` is missing")).at_path(&self.path)),
        }
    }

    /// Returns `true` if there is a value for this key.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Returns all keys, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Returns an unsigned integer; the file may use any integer type if the value fits.
    ///
    /// Errors if the key is missing, or its value has another type.
    pub fn u32(&self, key: &str) -> Result<u32> {
        self.get(key, "an unsigned 32-bit integer", |value, bytes| value.u32(bytes))
    }

    /// Returns a float.
    ///
    /// Errors if the key is missing, or its value has another type.
    pub fn f64(&self, key: &str) -> Result<f64> {
        self.get(key, "a float", |value, bytes| value.f64(bytes))
    }

    /// Returns a string.
    ///
    /// Errors if the key is missing, or its value has another type.
    pub fn string(&self, key: &str) -> Result<&str> {
        self.get(key, "a string", |value, bytes| value.string(bytes))
    }

    /// Returns an array of strings.
    ///
    /// Errors if the key is missing, or its value has another type.
    pub fn strings(&self, key: &str) -> Result<Vec<&str>> {
        self.get(key, "an array of strings", |value, bytes| value.strings(bytes))
    }

    /// Returns an array of 32-bit integers.
    ///
    /// Errors if the key is missing, or its value has another type.
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>> {
        self.get(key, "an array of 32-bit integers", |value, bytes| value.i32s(bytes))
    }

    fn get<'a, T>(&'a self, key: &str, kind: &str, get: impl FnOnce(&'a Value, &'a [u8]) -> Option<T>) -> Result<T> {
        let hint = "use a file for this kind of model, written by a program that includes this key";
        let value = self.values.get(key).ok_or_else(|| format!("the file has no key `{key}`"));
        let got = value.and_then(|value| {
            get(value, self.bytes.as_slice()).ok_or_else(|| format!("`{key}` is {}, expected {kind}", value.kind()))
        });
        got.map_err(|what| Error::new(what).at_path(&self.path).hint(hint))
    }
}

/// Reads a length-prefixed UTF-8 string.
fn string<'a>(cursor: &mut Cursor<'a>) -> std::result::Result<&'a str, String> {
    let len = usize::try_from(cursor.u64()?).map_err(|_| CUT_OFF)?;
    std::str::from_utf8(cursor.take(len)?).map_err(|_| "it has a string that is not UTF-8".to_string())
}

type Parsed = (HashMap<String, Value>, HashMap<String, Entry>);

/// The header entry of a tensor.
struct Info {
    name: String,
    /// Outermost axis first.
    shape: Vec<usize>,
    type_id: u32,
    offset: u64,
}

/// Parses the keys and tensors of a file. The error is the reason why the file is not a whole GGUF file.
fn parse(bytes: &Arc<Bytes>) -> std::result::Result<Parsed, String> {
    let mut cursor = Cursor::new(bytes.as_slice(), 0, CUT_OFF);
    if cursor.take(MAGIC.len())? != MAGIC {
        return Err("it does not begin with `GGUF`".to_string());
    }
    match cursor.u32()? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 1..=3) => return Err("it is for big-endian machines".to_string()),
        version => return Err(format!("it has version {version}, expected 2 or 3")),
    }
    // No memory is reserved for these counts, because a damaged file may claim any number of entries.
    let (tensor_count, value_count) = (cursor.u64()?, cursor.u64()?);
    let mut values = HashMap::new();
    for _ in 0..value_count {
        let key = string(&mut cursor)?.to_string();
        let value = Value::read(&mut cursor).map_err(|why| format!("key `{key}`: {why}"))?;
        if values.insert(key.clone(), value).is_some() {
            return Err(format!("key `{key}` occurs twice"));
        }
    }
    let mut infos = Vec::new();
    for _ in 0..tensor_count {
        infos.push(Info::read(&mut cursor)?);
    }
    let alignment = alignment(&values, bytes.as_slice())?;
    let start = cursor.place().checked_next_multiple_of(alignment).ok_or("its header is too long")?;
    let mut tensors = HashMap::new();
    for info in infos {
        let name = info.name.clone();
        let entry = info.entry(bytes, start, alignment).map_err(|why| format!("tensor `{name}` {why}"))?;
        if tensors.insert(name.clone(), entry).is_some() {
            return Err(format!("tensor `{name}` occurs twice"));
        }
    }
    Ok((values, tensors))
}

fn alignment(values: &HashMap<String, Value>, bytes: &[u8]) -> std::result::Result<usize, String> {
    let alignment = match values.get(ALIGNMENT) {
        None => DEFAULT_ALIGNMENT,
        Some(value) => value.u32(bytes).ok_or_else(|| format!("`{ALIGNMENT}` is {}", value.kind()))?,
    };
    if !alignment.is_power_of_two() {
        return Err(format!("`{ALIGNMENT}` is {alignment}, expected a power of two"));
    }
    usize::try_from(alignment).map_err(|e| e.to_string())
}

impl Info {
    fn read(cursor: &mut Cursor<'_>) -> std::result::Result<Self, String> {
        let name = string(cursor)?.to_string();
        let axes = cursor.u32()?;
        if !(1..=MAX_AXES).contains(&axes) {
            return Err(format!("tensor `{name}` has {axes} axes, expected 1 to {MAX_AXES}"));
        }
        let mut shape = Vec::new();
        for _ in 0..axes {
            let axis = cursor.u64()?;
            shape.push(usize::try_from(axis).map_err(|_| format!("tensor `{name}` has an axis of length {axis}"))?);
        }
        // The file stores the innermost axis first.
        shape.reverse();
        Ok(Self { name, shape, type_id: cursor.u32()?, offset: cursor.u64()? })
    }

    /// Creates the tensor; its offset counts from `start`.
    fn entry(self, bytes: &Arc<Bytes>, start: usize, alignment: usize) -> std::result::Result<Entry, String> {
        let Self { shape, type_id, offset, .. } = self;
        let of_type = |row: &Row| row.gguf.is_some_and(|gguf| gguf.type_id == type_id);
        let Some(format) = Format::find(of_type) else { return Ok(Entry::Unknown(type_id, shape)) };
        if shape.last().is_some_and(|len| !len.is_multiple_of(format.block().values)) {
            return Err(format!("has rows that are not whole blocks of {} values: {shape:?}", format.block().values));
        }
        let len = format.bytes(&shape).ok_or_else(|| format!("has shape {shape:?}, which is too large for a file"))?;
        let offset = usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(alignment));
        let offset = offset.ok_or_else(|| format!("does not begin at a multiple of {alignment}"))?;
        let end = start.checked_add(offset).and_then(|first| Some((first, first.checked_add(len)?)));
        let (first, end) = end.ok_or("ends past the end of the file")?;
        TensorView::new(Arc::clone(bytes), first..end, format, shape, Scales::None).map(Entry::Tensor)
    }
}

/// Returns the name of a type that this program does not read.
fn type_name(type_id: u32) -> String {
    let name = match type_id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        _ => return format!("number {type_id}"),
    };
    name.to_string()
}
