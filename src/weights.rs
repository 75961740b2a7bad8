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

use crate::e4m3::MULTIPLE;
use crate::error::{Error, Result};
use crate::model_dir::ModelDir;

/// The element types that weights come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// bfloat16
    Bf16,
    /// IEEE half precision
    F16,
    /// IEEE single precision
    F32,
    /// Bytes that stand for something else, see [`E4m3View`].
    U8,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 => 4,
            Dtype::U8 => 1,
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
    e4m3: Option<Box<E4m3View>>,
}

/// A matrix [rows, cols], or some of its rows, as e4m3 values with a scale for each row: what
/// [`e4m3::quantise_row`](crate::e4m3::quantise_row) makes of it.
#[derive(Clone)]
pub struct E4m3View {
    /// Bytes [rows, cols padded to a multiple of 16].
    pub values: WeightView,
    /// The bytes of float32 values, little-endian [rows, 4].
    pub scales: WeightView,
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

    /// The same values in e4m3, where a file beside the model holds them.
    pub fn e4m3(&self) -> Option<&E4m3View> {
        self.e4m3.as_deref()
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
        let range = start + rows.start * row_bytes..start + rows.end * row_bytes;
        let of_rows = |e4m3: &E4m3View| E4m3View {
            values: e4m3.values.row_range(rows.clone()),
            scales: e4m3.scales.row_range(rows.clone()),
        };
        let e4m3 = self.e4m3().map(|e4m3| Box::new(of_rows(e4m3)));
        Self { bytes: Arc::clone(&self.bytes), range, dtype: self.dtype, shape, e4m3 }
    }

    /// All elements in float32, exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes = self.bytes();
        match self.dtype {
            Dtype::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            Dtype::U8 => bytes.iter().map(|byte| f32::from(*byte)).collect(),
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
    /// What the headers say beside their tensors.
    metadata: HashMap<String, String>,
    e4m3: Option<Box<WeightFiles>>,
}

const FETCH_AGAIN: &str = "the file is damaged or its download was cut off: fetch it again";

/// The tensor that holds the scales of an e4m3 matrix.
pub fn scales_name(matrix: &str) -> String {
    format!("{matrix}.scales")
}

impl WeightFiles {
    /// Opens `<folder>/<stem>.safetensors`, or the shards that `<folder>/<stem>.safetensors.index.json` names, or the
    /// only safetensors file of the folder.
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
                    return Err(Error::new(format!(
                        "no weights: neither `{stem}.safetensors` nor `{stem}.safetensors.index.json`"
                    ))
                    .at(dir.display(folder))
                    .hint("is the download complete? `scripts/download_model.sh` resumes it"));
                }
            }
        };
        let mut opened = Self::empty();
        for name in names {
            opened.add(dir.path(&name), dir.bytes(&name)?, FETCH_AGAIN)?;
        }
        Ok(opened)
    }

    /// Opens one file; `remedy` is what to do about a damaged one.
    ///
    /// Errors when it is no safetensors file, cut off, or its header lies.
    pub fn open_file(path: &Path, remedy: &str) -> Result<Self> {
        let mut opened = Self::empty();
        opened.add(path.to_path_buf(), Bytes::map(path).map_err(|e| e.hint(remedy))?, remedy)?;
        Ok(opened)
    }

    fn empty() -> Self {
        Self { files: Vec::new(), entries: HashMap::new(), metadata: HashMap::new(), e4m3: None }
    }

    fn add(&mut self, path: PathBuf, bytes: Bytes, remedy: &str) -> Result<()> {
        let broken = |e: &dyn std::fmt::Display| {
            Error::new(format!("not a whole safetensors file: {e}")).at_path(&path).hint(remedy)
        };
        let (header_len, metadata) = SafeTensors::read_metadata(bytes.as_slice()).map_err(|e| broken(&e))?;
        // The eight bytes of the header's length come before the header.
        let data_start = 8 + header_len;
        let data_len = bytes.as_slice().len() - data_start;
        if metadata.data_len() != data_len {
            return Err(broken(&format!(
                "the header describes {} bytes of tensors, the file holds {data_len}",
                metadata.data_len()
            )));
        }
        let file = self.files.len();
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let entry = Entry {
                file,
                range: data_start + start..data_start + end,
                dtype: info.dtype,
                shape: info.shape.clone(),
            };
            if self.entries.insert(name.clone(), entry).is_some() {
                return Err(Error::new(format!("tensor `{name}` is in two files")).at_path(&path));
            }
        }
        self.metadata.extend(metadata.metadata().clone().unwrap_or_default());
        self.files.push((path, Arc::new(bytes)));
        Ok(())
    }

    /// The files and their bytes.
    pub fn files(&self) -> &[(PathBuf, Arc<Bytes>)] {
        &self.files
    }

    /// What the headers say beside their tensors.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }

    /// Name, rows and columns of all matrices of floats that have values, sorted by name.
    pub fn matrices(&self) -> Vec<(String, [usize; 2])> {
        let matrix = |(name, entry): (&'_ String, &'_ Entry)| match *entry.shape {
            [rows, cols] if rows > 0 && cols > 0 && float(entry.dtype).is_some() => Some((name.clone(), [rows, cols])),
            _ => None,
        };
        let mut matrices: Vec<_> = self.entries.iter().filter_map(matrix).collect();
        matrices.sort_unstable();
        matrices
    }

    /// Lets [`WeightFiles::get`] give matrices that `e4m3` holds too in that form as well.
    pub fn set_e4m3(&mut self, e4m3: WeightFiles) {
        self.e4m3 = Some(Box::new(e4m3));
    }

    /// The tensor `name`, which must have `shape`.
    ///
    /// Errors when it is missing, or has another shape or a dtype that is no float.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<WeightView> {
        let (path, entry) = self.entry(name, shape)?;
        let dtype = float(entry.dtype).ok_or_else(|| {
            Error::new(format!("tensor `{name}` is of dtype {:?}, expected BF16, F16 or F32", entry.dtype))
                .at_path(path)
        })?;
        let e4m3 = match (&self.e4m3, shape) {
            (Some(e4m3), &[rows, cols]) if e4m3.entries.contains_key(name) => {
                Some(Box::new(e4m3.get_e4m3(name, rows, cols)?))
            }
            _ => None,
        };
        Ok(WeightView { e4m3, ..self.view(entry, dtype, entry.shape.clone()) })
    }

    /// The matrix `name` [rows, cols] of a file of e4m3 values.
    ///
    /// Errors when it or its scales are missing, or of another shape or dtype.
    pub fn get_e4m3(&self, name: &str, rows: usize, cols: usize) -> Result<E4m3View> {
        let bytes = |name: &str, shape: &[usize], dtype: FileDtype, row_bytes: usize| {
            let (path, entry) = self.entry(name, shape)?;
            if entry.dtype != dtype {
                return Err(Error::new(format!("tensor `{name}` is of dtype {:?}, expected {dtype:?}", entry.dtype))
                    .at_path(path));
            }
            Ok(self.view(entry, Dtype::U8, vec![rows, row_bytes]))
        };
        let stride = cols.next_multiple_of(MULTIPLE);
        let values = bytes(name, &[rows, stride], FileDtype::F8_E4M3, stride)?;
        Ok(E4m3View { values, scales: bytes(&scales_name(name), &[rows], FileDtype::F32, size_of::<f32>())? })
    }

    /// The entry `name`, which must have `shape`, and the path of its file.
    fn entry(&self, name: &str, shape: &[usize]) -> Result<(&Path, &Entry)> {
        let first_file = || self.files.first().map(|(path, _)| path.display().to_string()).unwrap_or_default();
        let entry =
            self.entries.get(name).ok_or_else(|| Error::new(format!("tensor `{name}` is missing")).at(first_file()))?;
        let path = self.files[entry.file].0.as_path();
        if entry.shape != shape {
            return Err(Error::new(format!("tensor `{name}` is {:?}, expected {shape:?}", entry.shape)).at_path(path));
        }
        Ok((path, entry))
    }

    fn view(&self, entry: &Entry, dtype: Dtype, shape: Vec<usize>) -> WeightView {
        WeightView {
            bytes: Arc::clone(&self.files[entry.file].1),
            range: entry.range.clone(),
            dtype,
            shape,
            e4m3: None,
        }
    }
}

fn float(dtype: FileDtype) -> Option<Dtype> {
    match dtype {
        FileDtype::BF16 => Some(Dtype::Bf16),
        FileDtype::F16 => Some(Dtype::F16),
        FileDtype::F32 => Some(Dtype::F32),
        _ => None,
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
        return Err(
            Error::new(format!("the index names `{bad}`, which is no file beside it")).at(dir.display(index_name))
        );
    }
    if shards.is_empty() {
        return Err(Error::new("the index names no file").at(dir.display(index_name)));
    }
    Ok(shards.into_iter().map(|name| format!("{folder}/{name}")).collect())
}
