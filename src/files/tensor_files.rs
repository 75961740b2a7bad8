//! The tensors of one component, by name.

use std::collections::HashMap;

use super::format::Format;
use super::safetensors::Safetensors;
use super::tensor_view::TensorView;
use crate::error::{Error, Result};

/// The opened files of one component. Every access names the shape that the config asks for; what the file holds
/// instead is an error that names tensor, file and both shapes.
pub struct TensorFiles {
    files: Vec<Safetensors>,
    /// The file of each tensor.
    places: HashMap<String, usize>,
    quantised: Option<Safetensors>,
}

impl TensorFiles {
    /// The tensors of all `files`.
    ///
    /// Errors when two of them have a tensor of one name.
    pub fn new(files: Vec<Safetensors>) -> Result<Self> {
        let mut places = HashMap::new();
        for (index, file) in files.iter().enumerate() {
            for name in file.names() {
                if places.insert(name.to_string(), index).is_some() {
                    return Err(Error::new(format!("tensor `{name}` is in two files")).at_path(file.path()));
                }
            }
        }
        Ok(Self { files, places, quantised: None })
    }

    /// The files.
    pub fn files(&self) -> &[Safetensors] {
        &self.files
    }

    /// Name, rows and columns of all matrices of floats that have values, sorted by name.
    pub fn matrices(&self) -> Vec<(String, [usize; 2])> {
        let of_file = |file| Safetensors::matrices(file).map(|(name, shape)| (name.to_string(), shape));
        let mut matrices: Vec<_> = self.files.iter().flat_map(of_file).collect();
        matrices.sort_unstable();
        matrices
    }

    /// Lets [`TensorFiles::get`] give the matrices that `quantised` holds too in that form as well.
    pub fn set_quantised(&mut self, quantised: Safetensors) {
        self.quantised = Some(quantised);
    }

    /// The tensor `name`, which must have `shape`.
    ///
    /// Errors when it is missing, or has another shape or a dtype that is no float.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<TensorView> {
        // A name that no file has is an error of the first one.
        let place = self.places.get(name).copied().unwrap_or(0);
        let file = self.files.get(place).ok_or_else(|| Error::new(format!("tensor `{name}` is missing")))?;
        let view = file.get(name, shape, &Format::FLOATS)?;
        let quantised = match (&self.quantised, shape) {
            (Some(file), [_, _]) if file.contains(name) => Some(file.get(name, shape, &[Format::E4m3Rows])?),
            _ => None,
        };
        Ok(view.with_quantised(quantised))
    }
}
