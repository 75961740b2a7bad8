//! Weight files: mapped safetensors, one file or shards with an index, checked before any use.
//!
//! [`WeightFiles`] are opened once per component. [`Weights`] is a view of them under a key prefix, as the
//! checkpoint nests its names: `weights.at("transformer_blocks.0").at("attn")`. Every access names the shape that the
//! config asks for; what the file holds instead is an error that names tensor, file and both shapes.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::{Dtype as FileDtype, SafeTensors};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::model_dir::ModelDir;
use crate::tensor::Tensor;

/// The element types that weights come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// bfloat16
    Bf16,
    /// IEEE half precision
    F16,
    /// IEEE single precision
    F32,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 => 4,
        }
    }
}

/// The bytes of a file: mapped, or part of the program.
pub enum Bytes {
    /// A mapped file.
    Mapped(memmap2::Mmap),
    /// Bytes that the program carries.
    Embedded(&'static [u8]),
}

impl Bytes {
    /// Maps a file.
    ///
    /// Errors when it cannot be opened or mapped.
    #[allow(unsafe_code)]
    pub fn map(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::new(format!("cannot open the weights: {e}")).at_path(path))?;
        // SAFETY: the map is read-only and private to this value. If another process truncates the file while we run,
        // reading past its new end raises SIGBUS and ends the program; if it writes, we compute with what it wrote.
        // Neither breaks memory safety of what we hand out: plain numbers, every bit pattern of which is valid.
        let map = unsafe { memmap2::Mmap::map(&file) };
        map.map(Bytes::Mapped).map_err(|e| Error::new(format!("cannot map the weights: {e}")).at_path(path))
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Embedded(bytes) => bytes,
        }
    }
}

/// One tensor of a file, or some of its rows: where its bytes are, its dtype and shape.
#[derive(Clone)]
pub struct WeightView {
    bytes: Arc<Bytes>,
    range: Range<usize>,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl WeightView {
    /// Element type in the file.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Axes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Length of the first axis.
    pub fn rows(&self) -> usize {
        self.shape[0]
    }

    /// Elements of one row: the product of the other axes.
    pub fn cols(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes as they lie in the file, little-endian; of any alignment.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes.as_slice()[self.range.clone()]
    }

    /// The file that holds it.
    pub fn file(&self) -> &Arc<Bytes> {
        &self.bytes
    }

    /// Where in the file it starts.
    pub fn start(&self) -> usize {
        self.range.start
    }

    /// Some of the rows.
    pub fn row_range(&self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows(), "rows {rows:?} of {}", self.rows());
        let row_bytes = self.cols() * self.dtype.size();
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        let start = self.range.start;
        Self { bytes: Arc::clone(&self.bytes), range: start + rows.start * row_bytes..start + rows.end * row_bytes, dtype: self.dtype, shape }
    }

    /// All elements in float32, exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes = self.bytes();
        match self.dtype {
            Dtype::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        }
    }
}

struct Entry {
    file: usize,
    range: Range<usize>,
    dtype: FileDtype,
    shape: Vec<usize>,
}

/// The opened files of one component.
pub struct WeightFiles {
    files: Vec<(PathBuf, Arc<Bytes>)>,
    entries: HashMap<String, Entry>,
}

impl WeightFiles {
    /// Opens `<folder>/<stem>.safetensors`, or the shards that `<folder>/<stem>.safetensors.index.json` names, or the only
    /// safetensors file of the folder.
    ///
    /// Errors when a file is missing, no safetensors file, cut off, or its header lies.
    pub fn open(dir: &ModelDir, folder: &str, stem: &str) -> Result<Self> {
        let index_name = format!("{folder}/{stem}.safetensors.index.json");
        let single_name = format!("{folder}/{stem}.safetensors");
        let names = if dir.exists(&single_name) {
            vec![single_name]
        } else if dir.exists(&index_name) {
            shard_names(dir, folder, &index_name)?
        } else {
            match dir.list(folder, ".safetensors").as_slice() {
                [only] => vec![format!("{folder}/{only}")],
                _ => {
                    return Err(Error::new(format!("no weights: neither `{stem}.safetensors` nor `{stem}.safetensors.index.json`"))
                        .at(dir.display(folder))
                        .hint("is the download complete? `scripts/download_model.sh` resumes it"));
                }
            }
        };
        let mut opened = Self { files: Vec::new(), entries: HashMap::new() };
        for name in names {
            opened.add(dir.path(&name), dir.bytes(&name)?)?;
        }
        Ok(opened)
    }

    fn add(&mut self, path: PathBuf, bytes: Bytes) -> Result<()> {
        let broken = |e: &dyn std::fmt::Display| {
            Error::new(format!("not a whole safetensors file: {e}"))
                .at_path(&path)
                .hint("the file is damaged or its download was cut off: fetch it again")
        };
        let (header_len, metadata) = SafeTensors::read_metadata(bytes.as_slice()).map_err(|e| broken(&e))?;
        // The eight bytes of the header's length come before the header.
        let data_start = 8 + header_len;
        let data_len = bytes.as_slice().len() - data_start;
        if metadata.data_len() != data_len {
            return Err(broken(&format!("the header describes {} bytes of tensors, the file holds {data_len}", metadata.data_len())));
        }
        let file = self.files.len();
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let entry = Entry { file, range: data_start + start..data_start + end, dtype: info.dtype, shape: info.shape.clone() };
            if self.entries.insert(name.clone(), entry).is_some() {
                return Err(Error::new(format!("tensor `{name}` is in two files")).at_path(&path));
            }
        }
        self.files.push((path, Arc::new(bytes)));
        Ok(())
    }

    /// The tensor `name`, which must have `shape`.
    ///
    /// Errors when it is missing, or has another shape or a dtype that is no float.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<WeightView> {
        let first_file = || self.files.first().map(|(path, _)| path.display().to_string()).unwrap_or_default();
        let entry = self.entries.get(name).ok_or_else(|| Error::new(format!("tensor `{name}` is missing")).at(first_file()))?;
        let (path, bytes) = &self.files[entry.file];
        if entry.shape != shape {
            return Err(Error::new(format!("tensor `{name}` is {:?}, expected {shape:?}", entry.shape)).at_path(path));
        }
        let dtype = match entry.dtype {
            FileDtype::BF16 => Dtype::Bf16,
            FileDtype::F16 => Dtype::F16,
            FileDtype::F32 => Dtype::F32,
            other => return Err(Error::new(format!("tensor `{name}` is of dtype {other:?}, expected BF16, F16 or F32")).at_path(path)),
        };
        Ok(WeightView { bytes: Arc::clone(bytes), range: entry.range.clone(), dtype, shape: entry.shape.clone() })
    }
}

/// The shards that an index names, each once.
fn shard_names(dir: &ModelDir, folder: &str, index_name: &str) -> Result<Vec<String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let index: Index = dir.json(index_name)?;
    let mut shards: Vec<String> = index.weight_map.into_values().collect();
    shards.sort();
    shards.dedup();
    // A name with a separator could point anywhere on this machine.
    if let Some(bad) = shards.iter().find(|name| name.contains(['/', '\\']) || name.starts_with('.')) {
        return Err(Error::new(format!("the index names `{bad}`, which is no file beside it")).at(dir.display(index_name)));
    }
    if shards.is_empty() {
        return Err(Error::new("the index names no file").at(dir.display(index_name)));
    }
    Ok(shards.into_iter().map(|name| format!("{folder}/{name}")).collect())
}

/// The weights under a key prefix, for a backend.
pub struct Weights<'a, B: Backend> {
    backend: &'a B,
    files: &'a WeightFiles,
    prefix: String,
    narrow: bool,
}

impl<'a, B: Backend> Weights<'a, B> {
    /// All weights of `files`.
    pub fn new(backend: &'a B, files: &'a WeightFiles) -> Self {
        Self { backend, files, prefix: String::new(), narrow: false }
    }

    /// The same weights, of which matrices may be kept and multiplied in fewer bits where the backend computes so.
    pub fn narrow(&self) -> Self {
        Self { prefix: self.prefix.clone(), narrow: true, ..*self }
    }

    /// The backend that tensors are loaded to.
    pub fn backend(&self) -> &'a B {
        self.backend
    }

    /// The weights whose keys go on with `name`.
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: self.key(name), ..*self }
    }

    fn key(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    /// A tensor as it lies in the file.
    pub fn view(&self, name: &str, shape: &[usize]) -> Result<WeightView> {
        self.files.get(&self.key(name), shape)
    }

    /// `<name>.weight` [rows, cols].
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor<B>> {
        self.weight(&[self.view(&format!("{name}.weight"), &[rows, cols])?])
    }

    /// A matrix of the parts' rows, one part under the other.
    pub fn weight(&self, parts: &[WeightView]) -> Result<Tensor<B>> {
        if self.narrow { self.backend.narrow_weight(parts) } else { self.backend.weight(parts) }
    }

    /// `<name>.weight` of each name, [rows, cols], one under the other.
    pub fn stacked(&self, names: &[&str], rows: usize, cols: usize) -> Result<Tensor<B>> {
        let views: Vec<_> = names.iter().map(|name| self.view(&format!("{name}.weight"), &[rows, cols])).collect::<Result<_>>()?;
        self.weight(&views)
    }

    /// A vector [n] as [1, n].
    pub fn vector(&self, name: &str, n: usize) -> Result<Tensor<B>> {
        let view = self.view(name, &[n])?;
        self.backend.upload(&view.to_f32(), 1, n)
    }

    /// `<name>.weight` [out, in, kernel, kernel], ordered for [`Tensor::conv2d`].
    pub fn conv(&self, name: &str, cin: usize, cout: usize, kernel: usize) -> Result<Tensor<B>> {
        self.backend.conv_weight(&self.view(&format!("{name}.weight"), &[cout, cin, kernel, kernel])?)
    }
}
