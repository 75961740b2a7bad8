//! A file of named tensors, in safetensors or GGUF, or pickled by PyTorch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use crate::containers::gguf::{self, Gguf};
use crate::containers::pickle::{FETCH, Pickle, is_pickled};
use crate::containers::safetensors::Safetensors;
use crate::formats::tensor_view::TensorView;
use crate::formats::values::{self, is_zeros};
use crate::io::bytes::Bytes;
use flux_base::error::{Error, Result};

/// Extensions of files of weights, compared without case.
const ENDINGS: [&str; 3] = ["safetensors", "sft", "gguf"];

/// Returns `true` if a file's name is that of a file of weights.
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
    /// A file of PyTorch; only [`open_pickled_weights`] opens one.
    Pickle(Pickle),
}

/// Opens a file of weights in any format, also one that PyTorch pickled.
///
/// Errors as [`open_weights`](crate::open_weights), and if a pickle has other contents than dictionaries of tensors in
/// floats of 16 or 32 bits.
pub fn open_pickled_weights(path: &Path) -> Result<Container> {
    let bytes = Bytes::map(path).map_err(|e| e.hint(FETCH))?;
    if is_pickled(bytes.as_slice()) {
        return Pickle::new(path.to_path_buf(), bytes).map(Container::Pickle);
    }
    Container::new(path.to_path_buf(), bytes, FETCH)
}

impl Container {
    /// Opens a file, whose first bytes tell its kind. `remedy` is the hint for a damaged file.
    ///
    /// Errors if the file is neither a safetensors nor a GGUF file, is cut off, or has a wrong header.
    pub fn open(path: &Path, remedy: &str) -> Result<Self> {
        Self::new(path.to_path_buf(), Bytes::map(path).map_err(|e| e.hint(remedy))?, remedy)
    }

    /// Opens bytes that are already mapped or embedded, as [`Container::open`].
    pub fn new(path: PathBuf, bytes: Bytes, remedy: &str) -> Result<Self> {
        let first = bytes.as_slice();
        if first.starts_with(gguf::MAGIC) {
            return Gguf::new(path, bytes, remedy).map(Self::Gguf);
        }
        Safetensors::new(path, bytes, remedy).map(Self::Safetensors)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Safetensors(file) => file.path(),
            Self::Gguf(file) => file.path(),
            Self::Pickle(file) => file.path(),
        }
    }

    /// Returns the file, if it is a safetensors file.
    pub(crate) fn as_safetensors(&self) -> Option<&Safetensors> {
        match self {
            Self::Safetensors(file) => Some(file),
            Self::Gguf(_) | Self::Pickle(_) => None,
        }
    }

    /// Returns the file, if it is a safetensors file.
    pub(crate) fn as_safetensors_mut(&mut self) -> Option<&mut Safetensors> {
        match self {
            Self::Safetensors(file) => Some(file),
            Self::Gguf(_) | Self::Pickle(_) => None,
        }
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> &Arc<Bytes> {
        match self {
            Self::Safetensors(file) => file.bytes(),
            Self::Gguf(file) => file.bytes(),
            Self::Pickle(file) => file.bytes(),
        }
    }

    /// Returns notes on the file.
    pub fn notes(&self) -> Vec<String> {
        match self {
            Self::Safetensors(file) => file.notes().collect(),
            Self::Gguf(_) | Self::Pickle(_) => self.bytes().note(self.path()).into_iter().collect(),
        }
    }

    /// Errors if the file's length has changed since it was opened.
    pub fn check_length(&self) -> Result<()> {
        self.bytes().check_length().map_err(|e| e.at_path(self.path()))
    }

    /// Returns the names of all tensors, unordered. Tensors that belong to another one, such as scales, are left out.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let (one, other, third) = match self {
            Self::Safetensors(file) => (Some(file.names()), None, None),
            Self::Gguf(file) => (None, Some(file.names()), None),
            Self::Pickle(file) => (None, None, Some(file.names())),
        };
        one.into_iter().flatten().chain(other.into_iter().flatten()).chain(third.into_iter().flatten())
    }

    /// Returns `true` if there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::Safetensors(file) => file.contains(name),
            Self::Gguf(file) => file.contains(name),
            Self::Pickle(file) => file.shape(name).is_some(),
        }
    }

    /// Returns the shape of a tensor's values, if there is a tensor of this name.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self {
            Self::Safetensors(file) => file.shape(name),
            Self::Gguf(file) => file.shape(name).map(<[usize]>::to_vec),
            Self::Pickle(file) => file.shape(name).map(<[usize]>::to_vec),
        }
    }

    /// Returns the tensor `name` with any shape and values, in the format of the file.
    ///
    /// Errors if it is missing, or in a form that this program does not read.
    pub fn tensor(&self, name: &str) -> Result<TensorView> {
        match self {
            Self::Safetensors(file) => file.tensor(name),
            Self::Gguf(file) => file.tensor(name),
            Self::Pickle(file) => file.tensor(name),
        }
    }

    /// Returns the tensor `name`, which must have `shape`.
    ///
    /// Errors as [`Container::tensor`], and if it has another shape or is a matrix of zeros.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<TensorView> {
        let view = self.tensor(name)?;
        if view.shape() != shape {
            let what = format!("tensor `{name}` has shape {:?}, expected {shape:?}", view.shape());
            return Err(Error::new(what).at_path(self.path()));
        }
        check_not_zeros(name, &view).map_err(|e| e.at_path(self.path()))?;
        Ok(view)
    }

    /// Returns name, rows and columns of all float matrices that are not empty, unordered.
    pub fn matrices(&self) -> Vec<(&str, [usize; 2])> {
        let matrix = |name| {
            let view = self.tensor(name).ok().filter(|view| view.format().is_float())?;
            let &[rows, cols] = view.shape() else { return None };
            (rows > 0 && cols > 0).then_some((name, [rows, cols]))
        };
        self.names().filter_map(matrix).collect()
    }

    /// Errors with the name of a tensor that holds infinities or NaN. Reads the whole file, on all cores. Skips tensors
    /// in a form that this program does not read.
    pub fn check_finite(&self) -> Result<()> {
        values::check_finite(self.names(), |name| self.tensor(name)).map_err(|e| e.at_path(self.path()))
    }

    /// Returns the largest magnitude of all values that are numbers. Reads the whole file, on all cores.
    pub fn largest(&self) -> f64 {
        let names: Vec<&str> = self.names().collect();
        let views = names.par_iter().filter_map(|name| self.tensor(name).ok());
        views.map(|view| values::largest(&view)).reduce(|| 0.0, f64::max)
    }
}

/// Errors if a matrix is all zeros, which no trained matrix is.
fn check_not_zeros(name: &str, view: &TensorView) -> Result<()> {
    if view.shape().len() > 1 && view.elements() > 0 && is_zeros(view) {
        return Err(Error::new(format!("tensor `{name}` is all zeros"))
            .hint("its download was cut off, or its disk lost data: fetch the file again"));
    }
    Ok(())
}
