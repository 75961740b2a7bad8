//! Tensors that users pass or receive: a safetensors file of a few float tensors, read and written as a whole.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::io::overwrite::{already_there, cannot_write};
use crate::models::identity::check_replaceable;
use crate::{io::atomic, io::content, io::near, io::overwrite, io::regular};
use flux_base::error::{Error, Field, Result};

/// The max size of a file: twice the latents of eight images of 8192 x 8192 pixels in float32.
const MAX_BYTES: u64 = 2 << 30;
const NAME_SAFETENSORS: &str = "name a file that ends with .safetensors";

/// A tensor in float32.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// The lengths of the axes; the last axis is contiguous.
    pub shape: Vec<usize>,
    /// The values, row-major. All are finite, in bfloat16 too.
    pub values: Vec<f32>,
}

impl Array {
    /// Creates a tensor.
    ///
    /// Errors if the number of values does not match the shape, or if a value is not finite.
    pub fn new(shape: Vec<usize>, values: Vec<f32>) -> Result<Self> {
        let count = shape.iter().try_fold(1usize, |product, side| product.checked_mul(*side));
        if count != Some(values.len()) {
            return Err(Error::usage(format!("a tensor of shape {shape:?} cannot have {} values", values.len()))
                .hint("pass as many values as the product of the axis lengths"));
        }
        // Devices store them in bfloat16.
        if let Some(place) = values.iter().position(|value| !bf16::from_f32(*value).is_finite()) {
            let (number, count, value) = (place + 1, values.len(), values[place]);
            let overflows = if value.is_finite() { ", which overflows bfloat16" } else { "" };
            return Err(Error::usage(format!("value {number} of {count} is {value:e}{overflows}"))
                .hint("create the tensor again with finite values only"));
        }
        Ok(Self { shape, values })
    }
}

/// The bytes of a file with a checked header.
pub struct ArrayFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl ArrayFile {
    /// Reads a file.
    ///
    /// Errors if the file cannot be read, is no safetensors file, or is longer than 2 GiB.
    pub fn read(path: &Path) -> Result<Self> {
        let file = regular::open(path, &near::hint_for(path, "name an existing file"))?;
        let unreadable = |e: io::Error| {
            Error::new(format!("cannot read it: {e}")).at_path(path).hint("check the disk that stores the file")
        };
        let length = file.metadata().map_err(unreadable)?.len();
        if length > MAX_BYTES {
            return Err(Error::new(format!("the file has {length} bytes, expected at most {MAX_BYTES}"))
                .at_path(path)
                .hint(format!(
                    "name a file with latents, noise or embeddings; pass model weights with `{}`",
                    Field::Model
                )));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
        Self::from_bytes(path, bytes)
    }

    /// Creates a file from its bytes; `path` is its name in errors.
    ///
    /// Errors if the bytes are no safetensors file.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self> {
        let read = Self { path: path.to_path_buf(), bytes };
        read.tensors()?;
        Ok(read)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the header's metadata.
    pub fn metadata(&self) -> HashMap<String, String> {
        let header = SafeTensors::read_metadata(&self.bytes);
        header.ok().and_then(|(_, header)| header.metadata().clone()).unwrap_or_default()
    }

    /// Returns the tensor `name`, or the only tensor of the file under any name. Its dtype is float32, float16 or
    /// bfloat16.
    ///
    /// Errors if there is none, it has another dtype, or a value is not finite.
    pub fn get_or_only(&self, name: &str) -> Result<Array> {
        let tensors = self.tensors()?;
        let names = tensors.names();
        let name = if let [only] = names[..] { only } else { name };
        self.get(name)?.ok_or_else(|| {
            let names: Vec<String> = names.iter().take(3).map(|name| format!("`{name}`")).collect();
            Error::new(format!("the file has no tensor `{name}`, but {} others: {}", tensors.len(), names.join(", ")))
                .at_path(&self.path)
                .hint("name a file with this tensor")
        })
    }

    /// Returns the tensor `name`, if the file has it.
    ///
    /// Errors if it has another dtype, or a value is not finite.
    pub fn get(&self, name: &str) -> Result<Option<Array>> {
        let tensors = self.tensors()?;
        let Ok(tensor) = tensors.tensor(name) else { return Ok(None) };
        let values = floats(&tensor).ok_or_else(|| {
            Error::new(format!("tensor `{name}` has dtype {:?}, expected F32, F16 or BF16", tensor.dtype()))
                .at_path(&self.path)
                .hint("convert it to F32")
        })?;
        Array::new(tensor.shape().to_vec(), values)
            .map(Some)
            .map_err(|e| Error::new(format!("tensor `{name}`: {}", e.what())).at_path(&self.path))
            .map_err(|e| e.hint("create the file again with finite values only"))
    }

    fn tensors(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.bytes).map_err(|e| {
            let is_header = self.bytes.get(8) == Some(&b'{');
            let other = content::explain(&self.path, &self.bytes).filter(|_| !is_header);
            let what = other.map_or(format!("not a valid safetensors file: {e}"), |other| other.what().to_string());
            Error::new(what).at_path(&self.path).hint("name a valid safetensors file")
        })
    }
}

/// Returns the values in float32, or `None` if they are not floats of 32 or 16 bits.
fn floats(tensor: &TensorView<'_>) -> Option<Vec<f32>> {
    let bytes = tensor.data();
    let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    Some(match tensor.dtype() {
        Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dtype::F16 => pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
        Dtype::BF16 => pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
        _ => return None,
    })
}

/// Returns the bytes of a file of tensors in float32.
///
/// Errors if a shape does not match its values.
pub fn encode(arrays: &[(&str, &Array)], metadata: HashMap<String, String>) -> Result<Vec<u8>> {
    let bytes: Vec<Vec<u8>> =
        arrays.iter().map(|(_, array)| array.values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = arrays.iter().zip(&bytes).map(|((name, array), bytes)| {
        TensorView::new(Dtype::F32, array.shape.clone(), bytes).map(|view| (name.to_string(), view))
    });
    let file = views.collect::<std::result::Result<Vec<_>, _>>();
    let file = file.and_then(|views| safetensors::serialize(views, Some(metadata)));
    file.map_err(|e| Error::new(format!("cannot write the tensors: {e}")))
}

/// A checked path to write tensors to.
#[derive(Debug, Clone)]
pub struct ArrayTarget {
    path: PathBuf,
    /// `true` if an existing file must stay as it is.
    keeps: bool,
}

impl ArrayTarget {
    /// Checks `path` before any work is done for it. If `keeps` is set, an existing file is an error.
    ///
    /// Errors if the path has another extension than `.safetensors` or `.sft`; if it is a folder, a device, a pipe or a
    /// socket, or weights of a model or adapter; if the file is not writable; or if the folder does not exist or takes
    /// no file.
    pub fn new(path: &Path, keeps: bool) -> Result<Self> {
        check_ending(path)?;
        // Links are followed, as in any program that writes to an open file. A dangling link stays as it is.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        match fs::symlink_metadata(&path) {
            Ok(_) if keeps => return Err(already_there(&path)),
            Ok(found) if !found.is_file() => {
                return Err(
                    Error::usage(format!("`{}` exists and is not a file", path.display())).hint(NAME_SAFETENSORS)
                );
            }
            Ok(_) => {
                check_replaceable(&path, None)?;
                overwrite::check(&path).map_err(|e| cannot_write("tensors", &path, &e))?;
            }
            _ => overwrite::check(&path).map_err(|e| cannot_write("tensors", &path, &e))?,
        }
        Ok(Self { path, keeps })
    }

    /// Returns the path of the file that [`ArrayTarget::write`] creates.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file in float32. A reader sees the whole file or none.
    ///
    /// Errors if the file cannot be written.
    pub fn write(&self, arrays: &[(&str, &Array)], metadata: HashMap<String, String>) -> Result<()> {
        let file = encode(arrays, metadata).map_err(|e| e.at_path(&self.path))?;
        let written =
            if self.keeps { atomic::write_new(&self.path, &file) } else { overwrite::write(&self.path, &file) };
        written.map_err(|e| cannot_write("tensors", &self.path, &e))
    }
}

/// Errors if the name is not that of a safetensors file, because readers would take it for another kind of file.
fn check_ending(path: &Path) -> Result<()> {
    let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
    if ending.is_some_and(|ending| ending == "safetensors" || ending == "sft") {
        return Ok(());
    }
    Err(Error::usage(format!("tensors are written as safetensors, but `{}` has another extension", path.display()))
        .hint(NAME_SAFETENSORS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn write(path: &Path, entries: &[(&str, Dtype, &[usize], &[u8])]) {
        let views = entries
            .iter()
            .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap()));
        safetensors::serialize_to_file(views, None, path).unwrap();
    }

    #[track_caller]
    fn refused<T>(result: Result<T>, words: &[&str]) {
        testing::refused(result, &[words, &["hint: "]].concat());
    }

    #[test]
    fn what_is_written_is_read_with_its_metadata() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let array = Array::new(vec![1, 2, 2], vec![1.0, -2.5, 0.0, 1e-20]).unwrap();
        let metadata = HashMap::from([("prompt".to_string(), "Käse".to_string())]);
        let target = ArrayTarget::new(&path, false).unwrap();
        for _ in 0..2 {
            target.write(&[("a", &array), ("b", &array)], metadata.clone()).unwrap();
        }
        let file = ArrayFile::read(&path).unwrap();
        assert_eq!(file.get("a").unwrap().as_ref(), Some(&array));
        assert_eq!(file.get("c").unwrap(), None);
        assert_eq!(file.metadata(), metadata);
        refused(file.get_or_only("c"), &["no tensor `c`", "`a`", "`b`", "a.safetensors"]);
        refused(ArrayTarget::new(&path, true), &["already exists"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn floats_of_16_bits_are_read_and_other_values_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let get = |dtype, bytes: &[u8]| {
            write(&path, &[("a", dtype, &[2], bytes)]);
            ArrayFile::read(&path).unwrap().get_or_only("whatever its name")
        };
        assert_eq!(get(Dtype::F16, &[0, 0x3c, 0, 0xc0]).unwrap().values, [1.0, -2.0]);
        assert_eq!(get(Dtype::BF16, &[0x80, 0x3f, 0, 0xc0]).unwrap().values, [1.0, -2.0]);
        refused(get(Dtype::I16, &[0; 4]), &["dtype I16", "F32, F16 or BF16"]);
        refused(get(Dtype::F16, &[0, 0, 0, 0x7c]), &["value 2 of 2 is inf", "a.safetensors"]);
        refused(Array::new(vec![2], vec![1e38, -3.4e38]), &["value 2 ", "-3.4e38", "bfloat16"]);
        refused(Array::new(vec![2, usize::MAX], vec![0.0]), &["1 values"]);
    }

    #[test]
    fn files_that_are_damaged_or_too_long_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        refused(ArrayFile::read(&path), &["cannot read"]);
        fs::write(&path, "not one").unwrap();
        refused(ArrayFile::read(&path), &["the file is text"]);
        fs::write(&path, [&u64::MAX.to_le_bytes()[..], b"{}"].concat()).unwrap();
        refused(ArrayFile::read(&path), &["not a valid safetensors file"]);
        fs::File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        refused(ArrayFile::read(&path), &["2147483648"]);
        refused(ArrayFile::read(folder.path()), &["not a regular file"]);
        fs::create_dir(folder.path().join("b.safetensors")).unwrap();
        refused(ArrayTarget::new(&folder.path().join("b.safetensors"), false), &["not a file"]);
        refused(ArrayTarget::new(&folder.path().join("none/a.safetensors"), false), &["mkdir"]);
    }

    #[test]
    fn tensors_go_to_safetensors_files_alone_and_over_no_weights() {
        let folder = tempfile::tempdir().unwrap();
        let target = |name: &str| ArrayTarget::new(&folder.path().join(name), false);
        for name in ["a", "a.png", "a.gguf", "a.safetensors.png", "safetensors", ".safetensors", "a."] {
            refused(target(name), &["tensors are written as safetensors", "ends with .safetensors"]);
        }
        for name in ["a.safetensors", "a.SafeTensors", "a.sft"] {
            assert!(target(name).is_ok(), "{name}");
        }
        for (tensor, what) in [
            ("decoder.mid_block.resnets.0.conv1.weight", "a VAE"),
            ("transformer.single_transformer_blocks.0.attn.to_out.lora_A.weight", "an adapter"),
            ("double_blocks.0.img_mod.lin.weight", "a transformer of FLUX.1"),
        ] {
            write(&folder.path().join("w.safetensors"), &[(tensor, Dtype::F32, &[1], &[0; 4])]);
            refused(target("w.safetensors"), &["w.safetensors", what, "is never overwritten", "remove this one"]);
        }
        write(&folder.path().join("w.safetensors"), &[("latents", Dtype::F32, &[1], &[0; 4])]);
        assert!(target("w.safetensors").is_ok());
    }
}
