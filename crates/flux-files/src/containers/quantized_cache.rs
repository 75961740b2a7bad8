//! A cache of matrices in e4m3, in a file next to the model: it halves the bytes to read and upload compared with bf16,
//! and makes quantization at load unnecessary.
//!
//! The cache is a safetensors file. A matrix [rows, cols] named NAME is stored as `NAME`, F8_E4M3 [rows, cols padded to
//! a multiple of 16], and `NAME.scales`, F32 \[rows\]. The header's metadata identifies the weights that the matrices
//! are made from; a file made from other weights is not used.

mod origin;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use half::bf16;
use rayon::prelude::*;
use serde_json::{Map, json};

use self::origin::{ORIGIN_KEY, Origin};
use crate::containers::safetensors::{Safetensors, scales_name};
use crate::containers::tensor_files::TensorFiles;
use crate::formats::dequantize::dequantize_rows;
use crate::formats::e4m3::{MULTIPLE, quantize_row};
use crate::formats::format::Format;
use crate::formats::tensor_view::TensorView;
use crate::io::atomic::AtomicFile;
use crate::io::regular;
use flux_base::error::{Error, ErrorKind, Field, Result};

/// The name of the cache in the model's folder.
pub const FILE: &str = "flux-fp8.safetensors";
/// Rows that one task quantizes.
const TASK_ROWS: usize = 16;

/// A matrix of the cache.
struct Matrix {
    name: String,
    /// The weights that the matrix is made from.
    view: TensorView,
}

/// The outcome of [`attach`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuantizedCache {
    /// The file exists and is used.
    Found,
    /// The file has been written; the text is the reason why an older one is not used.
    Made(PathBuf, Option<String>),
    /// The file cannot be written, for the reason in the text. The weights are used without it.
    NotMade(PathBuf, String),
}

impl QuantizedCache {
    /// Returns a line for the user, if there is something to report.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::Found => None,
            Self::Made(path, None) => {
                Some(format!("wrote the fp8 weights to `{}`, later runs load them from there", path.display()))
            }
            Self::Made(path, Some(why)) => Some(format!("replaced the fp8 weights in `{}`: {why}", path.display())),
            Self::NotMade(path, why) => {
                Some(format!("the fp8 weights are not cached, because `{}` cannot be written: {why}", path.display()))
            }
        }
    }
}

/// Makes `files` attach e4m3 copies to the matrices whose names `holds` accepts. The copies come from the cache in
/// `folder`, which is written if it is missing or made from other files. `report` is called with the elements written
/// so far and their total.
///
/// Errors if the file is damaged, the weights cannot be read, or `report` returns [`ErrorKind::Cancelled`], which stops
/// the writing and leaves no new file.
pub fn attach(
    folder: &Path,
    files: &mut TensorFiles,
    holds: impl Fn(&str) -> bool,
    report: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<QuantizedCache> {
    let path = folder.join(FILE);
    let held = files.matrices().into_iter().filter(|(name, _)| holds(name));
    let matrix = |(name, shape): (String, [usize; 2])| Ok(Matrix { view: files.get(&name, &shape)?, name });
    let matrices: Vec<Matrix> = held.map(matrix).collect::<Result<_>>()?;
    let origin = Origin::new(folder, files, &matrices)?;
    // A pipe or a device there is refused rather than replaced. A folder is not replaced either: the write fails.
    let there = regular::exists(&path) && !path.is_dir();
    let found = there.then(|| opened(&path)).transpose()?;
    let misfit = found.as_ref().map(|found| origin.misfit(found));
    let (opened, outcome) = match (found, misfit) {
        (Some(found), Some(None)) => (found, QuantizedCache::Found),
        (_, misfit) => {
            match write(&path, &matrices, &origin, report) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
                Err(error) => return Ok(QuantizedCache::NotMade(path, error.to_string())),
            }
            (opened(&path)?, QuantizedCache::Made(path, misfit.flatten()))
        }
    };
    for Matrix { name, view } in &matrices {
        opened.e4m3_rows(name, &[view.rows(), view.cols()]).map_err(|e| e.hint(remedy()))?;
    }
    files.set_quantized(opened);
    Ok(outcome)
}

/// Opens the file. Every error has the hint to delete the file, because the next run writes it again.
fn opened(path: &Path) -> Result<Safetensors> {
    let remedy = remedy();
    Safetensors::open(path, &remedy).map_err(|e| e.hint_instead(remedy))
}

fn remedy() -> String {
    format!("delete the file: the next run with `{}` creates it again", Field::Fp8Cache)
}

/// Writes the cache file.
///
/// Errors as `report` does, and if the file cannot be written; an existing file then stays unchanged.
fn write(
    path: &Path,
    matrices: &[Matrix],
    origin: &Origin,
    report: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let failed = |e: io::Error| Error::new(e.to_string());
    let mut file = AtomicFile::create(path).map_err(failed)?;
    let mut put = |bytes: &[u8]| file.write_all(bytes).map_err(failed);
    put(&header(matrices, origin)?)?;
    let total: u64 = matrices.iter().map(|matrix| matrix.view.elements() as u64).sum();
    let mut done = 0;
    report(done, total)?;
    for Matrix { view, .. } in matrices {
        let (values, scales) = quantize(view);
        put(&values)?;
        put(&scales.iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<u8>>())?;
        done += view.elements() as u64;
        report(done, total)?;
    }
    file.commit().map_err(failed)
}

/// Returns the length of the header and the header, which places the scales of each matrix right after its values.
fn header(matrices: &[Matrix], origin: &Origin) -> Result<Vec<u8>> {
    let failed = |e: serde_json::Error| Error::new(e.to_string());
    let metadata = BTreeMap::from([(ORIGIN_KEY, serde_json::to_string(origin).map_err(failed)?)]);
    let mut entries = Map::from_iter([("__metadata__".to_string(), json!(metadata))]);
    let mut end = 0;
    let mut place = |bytes: usize| {
        let start = end;
        end += bytes;
        json!([start, end])
    };
    for Matrix { name, view } in matrices {
        let (rows, stride) = (view.rows(), view.cols().next_multiple_of(MULTIPLE));
        entries.insert(
            name.clone(),
            json!({ "dtype": "F8_E4M3", "shape": [rows, stride], "data_offsets": place(rows * stride) }),
        );
        entries.insert(
            scales_name(name),
            json!({ "dtype": "F32", "shape": [rows], "data_offsets": place(rows * size_of::<f32>()) }),
        );
    }
    let mut text = serde_json::to_vec(&entries).map_err(failed)?;
    // The header is padded so that, with the 8 bytes of its length, the tensors begin at a multiple of 16, as their
    // rows do.
    text.resize((text.len() + 8).next_multiple_of(MULTIPLE) - 8, b' ');
    Ok([(text.len() as u64).to_le_bytes().as_slice(), &text].concat())
}

/// Returns the values, in rows padded with zeros, and a scale for each row. As on the GPU, values of other types are
/// rounded to bf16 first.
fn quantize(view: &TensorView) -> (Vec<u8>, Vec<f32>) {
    let (rows, cols, stride) = (view.rows(), view.cols(), view.cols().next_multiple_of(MULTIPLE));
    let (mut values, mut scales) = (vec![0; rows * stride], vec![0.0; rows]);
    let tasks = values.par_chunks_mut(TASK_ROWS * stride).zip(scales.par_chunks_mut(TASK_ROWS)).enumerate();
    tasks.for_each(|(task, (values, scales))| {
        let first = task * TASK_ROWS;
        let mut from = vec![0.0; scales.len() * cols];
        dequantize_rows(view, first..first + scales.len(), &mut from);
        if view.format() != Format::Bf16 {
            from.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
        }
        for ((row, out), scale) in from.chunks(cols).zip(values.chunks_mut(stride)).zip(scales) {
            *scale = quantize_row(row, out);
        }
    });
    (values, scales)
}
