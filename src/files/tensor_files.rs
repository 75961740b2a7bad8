//! The tensors of one component, by name.

use std::collections::HashMap;

use super::container::Container;
use super::safetensors::Safetensors;
use super::tensor_view::TensorView;
use crate::error::{Error, Result};

/// The opened files of one component. Every access names the shape that the config asks for; another shape in the file
/// is an error that names tensor, file and both shapes.
pub struct TensorFiles {
    files: Vec<Container>,
    /// The file of each tensor.
    places: HashMap<String, usize>,
    quantised: Option<Safetensors>,
}

impl TensorFiles {
    /// The tensors of all `files`.
    ///
    /// Errors when two of them have a tensor of one name.
    pub fn new(files: Vec<Container>) -> Result<Self> {
        let mut places = HashMap::new();
        for (index, file) in files.iter().enumerate() {
            for name in file.names() {
                if places.insert(name.to_string(), index).is_some() {
                    return Err(Error::new(format!("tensor `{name}` is in two files"))
                        .at_path(file.path())
                        .hint("files of two downloads are mixed: fetch the folder again as a whole"));
                }
            }
        }
        Ok(Self { files, places, quantised: None })
    }

    /// The files.
    pub fn files(&self) -> &[Container] {
        &self.files
    }

    /// Errors when one of the files is not as long as when it was opened.
    pub fn check_lengths(&self) -> Result<()> {
        self.files.iter().try_for_each(Container::check_length)?;
        self.quantised.as_ref().map_or(Ok(()), Safetensors::check_length)
    }

    /// Errors with the name of a tensor that holds values that are not finite. Reads all files.
    pub fn check_finite(&self) -> Result<()> {
        self.files.iter().try_for_each(Container::check_finite)
    }

    /// Name, rows and columns of all matrices of floats that have values, sorted by name.
    pub fn matrices(&self) -> Vec<(String, [usize; 2])> {
        let matrices = self.files.iter().flat_map(Container::matrices);
        let mut matrices: Vec<_> = matrices.map(|(name, shape)| (name.to_string(), shape)).collect();
        matrices.sort_unstable();
        matrices
    }

    /// Makes [`TensorFiles::get`] give the matrices that are in `quantised` in that form as well.
    pub fn set_quantised(&mut self, quantised: Safetensors) {
        self.quantised = Some(quantised);
    }

    /// The tensor `name`, which must have `shape`.
    ///
    /// Errors when it is missing, in a form that this program does not read, has another shape, or is a matrix of zeros.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<TensorView> {
        // A name that is in no file is looked up in the first one, whose error names that file.
        let place = self.places.get(name).copied().unwrap_or(0);
        let file = self.files.get(place).ok_or_else(|| Error::new(format!("tensor `{name}` is missing")))?;
        let view = file.get(name, shape)?;
        let quantised = match (&self.quantised, shape) {
            (Some(file), &[rows, cols]) if file.contains(name) => Some(file.e4m3_rows(name, &[rows, cols])?),
            _ => None,
        };
        Ok(view.with_quantised(quantised))
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::Format;
    use super::super::safetensors::tests::{Entry, container, refused};
    use super::*;

    fn files(files: Vec<Safetensors>) -> Result<TensorFiles> {
        TensorFiles::new(files.into_iter().map(Container::Safetensors).collect())
    }

    #[test]
    fn tensors_are_found_in_all_files_and_errors_name_the_file() {
        let one = container("one", &[("a", "BF16", &[4, 4], 32), ("count", "I64", &[], 8)]).unwrap();
        let other = container("other", &[("b", "F32", &[3], 12), ("c", "F16", &[2, 0], 0)]).unwrap();
        let files = files(vec![one, other]).unwrap();
        assert_eq!(files.get("a", &[4, 4]).unwrap().format(), Format::Bf16);
        assert_eq!(files.get("b", &[3]).unwrap().to_f32(), [f32::from_le_bytes([1; 4]); 3]);
        refused(files.get("b", &[4]), &["tensor `b` is [3], expected [4]", "in: other"]);
        refused(files.get("count", &[]), &["tensor `count` is of dtype I64, expected BF16, F16 or F32", "in: one"]);
        refused(files.get("d", &[4]), &["tensor `d` is missing", "in: one"]);
        assert_eq!(files.matrices(), [("a".to_string(), [4, 4])]);
    }

    #[test]
    fn a_name_in_two_files_is_refused() {
        let [one, other] = ["one", "other"].map(|path| container(path, &[("a", "BF16", &[4], 8)]).unwrap());
        refused(files(vec![one, other]), &["tensor `a` is in two files", "in: other"]);
    }

    #[test]
    fn a_quantised_matrix_comes_with_its_scales_beside_the_floats() {
        let floats = || container("model", &[("w", "BF16", &[2, 5], 20), ("v", "BF16", &[2], 4)]).unwrap();
        let with = |entries: &[Entry<'_>]| {
            let mut files = files(vec![floats()]).unwrap();
            files.set_quantised(container("cache", entries).unwrap());
            files
        };
        let scales = ("w.scales", "F32", &[2][..], 8);
        let files = with(&[("w", "F8_E4M3", &[2, 16], 32), scales, ("v", "F8_E4M3", &[2], 2)]);
        let view = files.get("w", &[2, 5]).unwrap();
        let quantised = view.quantised().unwrap();
        assert_eq!((quantised.format(), quantised.shape()), (Format::E4m3Rows, &[2, 5][..]));
        assert_eq!((quantised.bytes().len(), quantised.row_scales().unwrap().shape()), (32, &[2][..]));
        assert!(files.get("v", &[2]).unwrap().quantised().is_none(), "no matrix");

        let bad: [(&[Entry<'_>], &str); 5] = [
            (&[("w", "F8_E4M3", &[2, 5], 10), scales], "tensor `w` is [2, 5], expected [2, 16]"),
            (&[("w", "F8_E5M2", &[2, 16], 32), scales], "tensor `w` is of dtype F8_E5M2, expected F8_E4M3"),
            (&[("w", "F8_E4M3", &[2, 16], 32)], "tensor `w.scales` is missing"),
            (
                &[("w", "F8_E4M3", &[2, 16], 32), ("w.scales", "F32", &[3], 12)],
                "tensor `w.scales` is [3], expected [2]",
            ),
            (&[("w", "F8_E4M3", &[2, 16], 32), ("w.scales", "F16", &[2], 4)], "tensor `w.scales` is of dtype F16"),
        ];
        for (entries, words) in bad {
            refused(with(entries).get("w", &[2, 5]), &[words, "in: cache"]);
        }
    }
}
