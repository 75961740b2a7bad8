//! A file of named tensors, of either kind.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use super::bytes::Bytes;
use super::finite;
use super::gguf::{self, Gguf};
use super::magnitude;
use super::safetensors::Safetensors;
use super::tensor_view::TensorView;
use super::zeros::is_zeros;
use crate::error::{Error, Result};

/// How the names of files of weights end, in any case.
const ENDINGS: [&str; 3] = ["safetensors", "sft", "gguf"];

/// Whether a file is one of weights, by its name.
pub fn is_weights(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// A file of named tensors whose header was checked against its size.
pub enum Container {
    /// A safetensors file.
    Safetensors(Safetensors),
    /// A GGUF file.
    Gguf(Gguf),
}

impl Container {
    /// Opens a file; `remedy` is what to do about a damaged one. Its first bytes say what it is.
    ///
    /// Errors when it is neither a safetensors nor a GGUF file, cut off, or its header is wrong.
    pub fn open(path: &Path, remedy: &str) -> Result<Self> {
        Self::new(path.to_path_buf(), Bytes::map(path).map_err(|e| e.hint(remedy))?, remedy)
    }

    /// As [`Container::open`], for bytes that are already mapped or embedded.
    pub fn new(path: PathBuf, bytes: Bytes, remedy: &str) -> Result<Self> {
        let first = bytes.as_slice();
        if first.starts_with(gguf::MAGIC) {
            return Gguf::new(path, bytes, remedy).map(Self::Gguf);
        }
        Safetensors::new(path, bytes, remedy).map(Self::Safetensors)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        match self {
            Self::Safetensors(file) => file.path(),
            Self::Gguf(file) => file.path(),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &Arc<Bytes> {
        match self {
            Self::Safetensors(file) => file.bytes(),
            Self::Gguf(file) => file.bytes(),
        }
    }

    /// What someone should know about the file.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::Safetensors(file) => file.note(),
            Self::Gguf(_) => None,
        }
    }

    /// Errors when the file is not as long as when it was opened.
    pub fn check_length(&self) -> Result<()> {
        self.bytes().check_length().map_err(|e| e.at_path(self.path()))
    }

    /// The names of all tensors, in no order; what belongs to another tensor, such as its scales, has none.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let (one, other) = match self {
            Self::Safetensors(file) => (Some(file.names()), None),
            Self::Gguf(file) => (None, Some(file.names())),
        };
        one.into_iter().flatten().chain(other.into_iter().flatten())
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::Safetensors(file) => file.contains(name),
            Self::Gguf(file) => file.contains(name),
        }
    }

    /// The shape of the values of a tensor, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self {
            Self::Safetensors(file) => file.shape(name),
            Self::Gguf(file) => file.shape(name).map(<[usize]>::to_vec),
        }
    }

    /// The tensor `name`, whatever its shape and values, in the format in which the file has it.
    ///
    /// Errors when it is missing, or in a form that this program does not read.
    pub fn tensor(&self, name: &str) -> Result<TensorView> {
        match self {
            Self::Safetensors(file) => file.tensor(name),
            Self::Gguf(file) => file.tensor(name),
        }
    }

    /// The tensor `name`, which must have `shape`.
    ///
    /// Errors as [`Container::tensor`], and when it has another shape or is a matrix of zeros.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<TensorView> {
        let view = self.tensor(name)?;
        if view.shape() != shape {
            let what = format!("tensor `{name}` is {:?}, expected {shape:?}", view.shape());
            return Err(Error::new(what).at_path(self.path()));
        }
        check_not_zeros(name, &view).map_err(|e| e.at_path(self.path()))?;
        Ok(view)
    }

    /// Name, rows and columns of all matrices of floats that have values, in no order.
    pub fn matrices(&self) -> Vec<(&str, [usize; 2])> {
        let matrix = |name| {
            let view = self.tensor(name).ok().filter(|view| view.format().is_float())?;
            let &[rows, cols] = view.shape() else { return None };
            (rows > 0 && cols > 0).then_some((name, [rows, cols]))
        };
        self.names().filter_map(matrix).collect()
    }

    /// Errors with the name of a tensor that holds infinities or values that are no numbers. Reads the whole file, on
    /// all cores. What is in no form that this program reads is passed over.
    pub fn check_finite(&self) -> Result<()> {
        finite::check(self.names(), |name| self.tensor(name)).map_err(|e| e.at_path(self.path()))
    }

    /// The largest magnitude of all values that are numbers. Reads the whole file, on all cores.
    pub fn largest(&self) -> f64 {
        let names: Vec<&str> = self.names().collect();
        let views = names.par_iter().filter_map(|name| self.tensor(name).ok());
        views.map(|view| magnitude::largest(&view)).reduce(|| 0.0, f64::max)
    }
}

/// Errors when a matrix is all zeros, which no trained one is.
fn check_not_zeros(name: &str, view: &TensorView) -> Result<()> {
    if view.shape().len() > 1 && view.elements() > 0 && is_zeros(view) {
        return Err(Error::new(format!("tensor `{name}` is all zeros"))
            .hint("its download was cut off, or its disk has lost it: fetch the file again"));
    }
    Ok(())
}
