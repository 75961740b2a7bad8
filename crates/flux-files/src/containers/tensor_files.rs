//! The tensors of one component, by name.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::iter::Sum;
use std::path::Path;

use parking_lot::Mutex;

use crate::catalog::names::{FusedRows, LayerMap, Names};
use crate::containers::container::Container;
use crate::containers::safetensors::Safetensors;
use crate::formats::tensor_view::TensorView;
use flux_base::error::{Error, Result};

/// The opened files of one component. Every access names the shape that the config requires; another shape in the file
/// is an error that names the tensor, the file and both shapes.
pub struct TensorFiles {
    files: Vec<Container>,
    /// The locations of each tensor by its own name: one location, or several whose rows are concatenated.
    tensors: HashMap<String, Vec<TensorLocation>>,
    quantized: Option<Safetensors>,
    /// Tensors that [`TensorFiles::get`] returns in place of the files' tensors.
    replaced: HashMap<String, TensorView>,
    /// The layer names of the transformer.
    layers: &'static LayerMap,
    /// `true` if the files hold other tensors as well.
    is_part: bool,
    /// The names that have been requested.
    read: Mutex<HashSet<String>>,
}

/// A tensor that has not been requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread<'a> {
    /// The name that models use.
    pub name: &'a str,
    /// The name in the file.
    pub key: &'a str,
    /// `true` if another tensor of its layer has been requested, whose name differs only in the last word.
    pub is_of_layer: bool,
    /// The path of the file.
    pub path: &'a Path,
}

/// The location of rows: one of equal parts of a tensor in a file.
#[derive(Clone)]
struct TensorLocation {
    file: usize,
    key: String,
    /// The position among the locations of the tensor, from the top.
    index: usize,
    part: usize,
    of: usize,
}

/// The sums of the values and the bytes of pieces.
struct Sizes([u64; 2]);

impl Sum<[u64; 2]> for Sizes {
    fn sum<I: Iterator<Item = [u64; 2]>>(pieces: I) -> Self {
        Self(
            pieces
                .fold([0; 2], |[values, bytes], [more_values, more_bytes]| [values + more_values, bytes + more_bytes]),
        )
    }
}

impl TensorFiles {
    /// Collects the tensors of all `files`, which have the names that models use.
    ///
    /// Errors if two files have a tensor of the same name.
    pub fn new(files: Vec<Container>) -> Result<Self> {
        Self::named(files, &Names::OWN, |_| true)
    }

    /// Collects the `wanted` tensors of all `files`, by the names that models use.
    ///
    /// Errors if two files have a tensor of the same name, or one file has it twice.
    pub fn named(files: Vec<Container>, names: &Names, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let mut tensors: HashMap<String, Vec<TensorLocation>> = HashMap::new();
        let mut is_part = false;
        for (file, container) in files.iter().enumerate() {
            for key in container.names() {
                if !wanted(key) {
                    is_part = true;
                    continue;
                }
                for FusedRows { name, index, part, of } in names.pieces(key) {
                    let places = tensors.entry(name).or_default();
                    if let Some(other) = places.iter().find(|place| place.index == index) {
                        let twice = if other.file == file {
                            Error::new(format!("`{}` and `{key}` are the same tensor", other.key))
                                .hint("the file is damaged or malformed: fetch it again")
                        } else {
                            Error::new(format!("tensor `{key}` is in two files"))
                                .hint("files of two downloads are mixed: fetch the whole folder again")
                        };
                        return Err(twice.at_path(container.path()));
                    }
                    places.push(TensorLocation { file, key: key.to_string(), index, part, of });
                }
            }
        }
        tensors.values_mut().for_each(|places| places.sort_by_key(|place| place.index));
        // Opening a model reads the first values of each tensor.
        for place in tensors.values().flatten() {
            if let Ok(view) = files[place.file].tensor(&place.key) {
                view.file().read_ahead(view.start());
            }
        }
        let (quantized, replaced, read) = (None, HashMap::new(), Mutex::default());
        Ok(Self { files, tensors, quantized, replaced, layers: names.layers, is_part, read })
    }

    /// Returns the layer names of a transformer.
    pub fn layers(&self) -> &'static LayerMap {
        self.layers
    }

    /// Returns the files.
    pub fn files(&self) -> &[Container] {
        &self.files
    }

    /// Returns the bytes of the files, or of the collected tensors if the files hold others as well.
    pub fn bytes(&self) -> u64 {
        if !self.is_part {
            return self.files.iter().map(|file| file.bytes().as_slice().len() as u64).sum();
        }
        let views = self.tensors.values().flatten().filter_map(|place| {
            let view = self.files[place.file].tensor(&place.key).ok()?;
            Some(view.bytes_with_scales() as u64 / place.of.max(1) as u64)
        });
        views.sum()
    }

    /// Errors if the length of a file has changed since it was opened.
    pub fn check_lengths(&self) -> Result<()> {
        self.files.iter().try_for_each(Container::check_length)?;
        self.quantized.as_ref().map_or(Ok(()), Safetensors::check_length)
    }

    /// Errors with the name of a tensor that does not hold plain floats.
    pub fn check_floats(&self) -> Result<()> {
        for (file, name) in self.files.iter().flat_map(|file| file.names().map(move |name| (file, name))) {
            let format = file.tensor(name)?.format();
            if !format.is_float() {
                return Err(Error::new(format!("tensor `{name}` is in {format}, expected floats of 16 or 32 bits")));
            }
        }
        Ok(())
    }

    /// Errors with the name of a tensor that holds values that are not finite. Reads all files.
    pub fn check_finite(&self) -> Result<()> {
        self.files.iter().try_for_each(Container::check_finite)
    }

    /// Returns all names, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the tensors that have not been requested from [`TensorFiles::get`] or [`TensorFiles::parts`], sorted by
    /// their names in the files.
    pub fn unread(&self) -> Vec<Unread<'_>> {
        let read = self.read.lock();
        let layer = |name: &'_ str| name.rsplit_once('.').map(|(layer, _)| layer.to_string());
        let is_read = |(name, _): &(&String, &Vec<TensorLocation>)| read.contains(name.as_str());
        let (found, left): (Vec<_>, Vec<_>) = self.tensors.iter().partition(is_read);
        // Names in the file count as well, because a tensor of unknown name keeps its name in the file.
        let names = found.iter().flat_map(|(name, places)| places.iter().map(|place| &place.key).chain([*name]));
        let layers: HashSet<String> = names.filter_map(|name| layer(name)).collect();
        let all = left.iter().flat_map(|(name, places)| places.iter().map(move |place| (*name, place)));
        let unread = all.map(|(name, TensorLocation { key, file, .. })| {
            let is_of_layer =
                [name, key].into_iter().filter_map(|name| layer(name)).any(|layer| layers.contains(&layer));
            (key.as_str(), Unread { name, key, is_of_layer, path: self.files[*file].path() })
        });
        unread.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Returns the shape of the tensor `name`, if there is one.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let places = self.tensors.get(name)?;
        let first = places.first()?;
        let mut shape = self.files[first.file].shape(&first.key)?;
        if let Some(rows) = shape.first_mut() {
            *rows = (*rows / first.of).checked_mul(places.len())?;
        }
        Some(shape)
    }

    /// Returns the format and the number of values of the tensor `name`; `None` if it is missing or in a format that is
    /// not read.
    pub fn format(&self, name: &str) -> Option<(String, u64)> {
        let first = self.tensors.get(name)?.first()?;
        let view = self.files[first.file].tensor(&first.key).ok()?;
        let values = self.shape(name)?.iter().try_fold(1u64, |product, axis| product.checked_mul(*axis as u64))?;
        Some((format!("{:?}", view.format()).to_lowercase(), values))
    }

    /// Returns the number of values, and of bytes including scales, of each matrix whose name begins with `prefix` and
    /// that is not plain floats.
    pub fn quantized_matrices(&self, prefix: &str) -> Vec<[u64; 2]> {
        let sizes_of = |view: &TensorView| [view.elements() as u64, view.bytes_with_scales() as u64];
        let matrix = |(name, places): (&String, &Vec<TensorLocation>)| {
            if let Some(view) = self.replaced.get(name) {
                return (!view.format().is_float()).then(|| sizes_of(view));
            }
            let views = places.iter().map(|place| {
                let view = self.files[place.file].tensor(&place.key).ok()?;
                (view.shape().len() == 2 && !view.format().is_float()).then_some((view, place.of))
            });
            let sizes = views.map(|view| {
                let (view, of) = view?;
                Some(sizes_of(&view).map(|all| all / of.max(1) as u64))
            });
            sizes.sum::<Option<Sizes>>().map(|Sizes(sizes)| sizes)
        };
        self.tensors.iter().filter(|(name, _)| name.starts_with(prefix)).filter_map(matrix).collect()
    }

    /// Returns the length of an axis of the tensor `name`.
    ///
    /// Errors if there is no such tensor, or it has fewer axes.
    pub fn axis(&self, name: &str, axis: usize) -> Result<usize> {
        let shape = self.shape(name).ok_or_else(|| self.wrong(format!("tensor `{name}` is missing")))?;
        let length = shape.get(axis).copied();
        length.ok_or_else(|| self.wrong(format!("tensor `{name}` has shape {shape:?}, expected more axes")))
    }

    /// Returns an error that names the first file.
    fn wrong(&self, what: String) -> Error {
        let error = Error::new(what).hint("not a complete part of a klein model: fetch the file again, or use another");
        match self.files.first() {
            Some(file) => error.at_path(file.path()),
            None => error,
        }
    }

    /// Returns the number of blocks whose names begin with `prefix` and a number: the highest number plus one.
    pub fn blocks(&self, prefix: &str) -> usize {
        let number = |name: &str| name.strip_prefix(prefix)?.split('.').next()?.parse::<usize>().ok();
        self.names().filter_map(number).max().map_or(0, |highest| highest.saturating_add(1))
    }

    /// Returns the name, rows and columns of all float matrices that have values, sorted by name.
    pub fn matrices(&self) -> Vec<(String, [usize; 2])> {
        let stored: Vec<HashMap<&str, [usize; 2]>> =
            self.files.iter().map(|file| file.matrices().into_iter().collect()).collect();
        let matrix = |(name, places): (&String, &Vec<TensorLocation>)| {
            let is_matrix = |place: &TensorLocation| stored[place.file].contains_key(place.key.as_str());
            let shape = self.shape(name).filter(|_| places.iter().all(is_matrix))?;
            shape.try_into().ok().map(|shape: [usize; 2]| (name.clone(), shape))
        };
        let mut matrices: Vec<_> = self.tensors.iter().filter_map(matrix).collect();
        matrices.sort_unstable();
        matrices
    }

    /// Makes [`TensorFiles::get`] return the matrices in `quantized` in that form as well.
    pub fn set_quantized(&mut self, quantized: Safetensors) {
        self.quantized = Some(quantized);
    }

    /// Makes [`TensorFiles::get`] return `view`, which must have the same shape, for the tensor `name`.
    pub fn replace(&mut self, name: String, view: TensorView) {
        assert_eq!(self.shape(&name).as_deref(), Some(view.shape()), "`{name}` is another one");
        self.replaced.insert(name, view);
    }

    /// Returns one of the equal parts of the rows of the tensor `name`, whatever its shape, as the pieces stored in the
    /// files, from the top.
    ///
    /// Errors if it is missing, in a form that this program does not read, or a matrix of zeros.
    pub fn part_of(&self, name: &str, part: usize, of: usize) -> Result<Vec<TensorView>> {
        let shape = self.shape(name).ok_or_else(|| self.wrong(format!("tensor `{name}` is missing")))?;
        let rows = shape.first().copied().unwrap_or(1) / of;
        let mut wanted = part * rows..(part + 1) * rows;
        let mut found = Vec::new();
        for view in self.parts(name, &shape)? {
            let count = view.rows();
            let own = wanted.start.min(count)..wanted.end.min(count);
            if own.start < own.end {
                found.push(view.row_range(own));
            }
            wanted = wanted.start.saturating_sub(count)..wanted.end.saturating_sub(count);
        }
        Ok(found)
    }

    /// Returns the tensor `name`, which must have `shape` and be stored in one piece.
    ///
    /// Errors if it is missing, in a form that this program does not read, has another shape, or is a matrix of zeros.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<TensorView> {
        let mut parts = self.parts(name, shape)?;
        match (parts.pop(), parts.is_empty()) {
            (Some(only), true) => Ok(only),
            _ => Err(Error::new(format!("tensor `{name}` is stored in several pieces, expected one"))),
        }
    }

    /// Returns the tensor `name`, which must have `shape`, as the pieces stored in the files, from the top.
    ///
    /// Errors as [`TensorFiles::get`].
    pub fn parts(&self, name: &str, shape: &[usize]) -> Result<Vec<TensorView>> {
        let missing = || {
            let error = Error::new(format!("tensor `{name}` is missing"));
            self.files.first().map_or(error.clone(), |file| error.at_path(file.path()))
        };
        let places = self.tensors.get(name).ok_or_else(missing)?;
        self.read.lock().insert(name.to_string());
        if let Some(view) = self.replaced.get(name) {
            return if view.shape() == shape {
                Ok(vec![view.clone()])
            } else {
                Err(self.wrong(format!("tensor `{name}` has shape {:?}, expected {shape:?}", view.shape())))
            };
        }
        let mut parts = places.iter().map(|place| self.part(place, places.len(), shape)).collect::<Result<Vec<_>>>()?;
        if let (Some(file), &[rows, cols], [view]) = (&self.quantized, shape, &mut parts[..])
            && file.contains(name)
        {
            *view = view.clone().with_quantized(Some(file.e4m3_rows(name, &[rows, cols])?));
        }
        Ok(parts)
    }

    /// Returns the rows at one of `places` locations of a tensor of `shape`.
    fn part(&self, place: &TensorLocation, places: usize, shape: &[usize]) -> Result<TensorView> {
        let TensorLocation { file, key, part, of, .. } = place;
        let file = &self.files[*file];
        let mut own = shape.to_vec();
        own.iter_mut().take(1).for_each(|rows| *rows /= places);
        let mut stored = own.clone();
        stored.iter_mut().take(1).for_each(|rows| *rows = rows.saturating_mul(*of));
        // A convolution with a 1x1 kernel is a matrix multiplication.
        let axes = file.shape(key).unwrap_or_default();
        if axes.len() > stored.len() && axes[stored.len()..].iter().all(|axis| *axis == 1) {
            stored.resize(axes.len(), 1);
        }
        let view = file.get(key, &stored)?;
        let rows = view.rows() / of;
        let view = if *of > 1 { view.row_range(part * rows..(part + 1) * rows) } else { view };
        Ok(view.with_shape(&own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers::safetensors::tests::{Entry, container};
    use crate::formats::format::Format;
    use crate::testing::refused;

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
        refused(files.get("b", &[4]), &["`b`", "[3], expected [4]", "in: other"]);
        refused(files.get("count", &[]), &["`count`", "I64, expected BF16, F16 or F32", "in: one"]);
        refused(files.get("d", &[4]), &["tensor `d` is missing", "in: one"]);
        assert_eq!(files.matrices(), [("a".to_string(), [4, 4])]);
    }

    #[test]
    fn a_name_in_two_files_is_refused() {
        let [one, other] = ["one", "other"].map(|path| container(path, &[("a", "BF16", &[4], 8)]).unwrap());
        refused(files(vec![one, other]), &["tensor `a` is in two files", "in: other"]);
    }

    #[test]
    fn a_quantized_matrix_comes_with_its_scales_beside_the_floats() {
        let floats = || container("model", &[("w", "BF16", &[2, 5], 20), ("v", "BF16", &[2], 4)]).unwrap();
        let with = |entries: &[Entry<'_>]| {
            let mut files = files(vec![floats()]).unwrap();
            files.set_quantized(container("cache", entries).unwrap());
            files
        };
        let scales = ("w.scales", "F32", &[2][..], 8);
        let files = with(&[("w", "F8_E4M3", &[2, 16], 32), scales, ("v", "F8_E4M3", &[2], 2)]);
        let view = files.get("w", &[2, 5]).unwrap();
        let quantized = view.quantized().unwrap();
        assert_eq!((quantized.format(), quantized.shape()), (Format::E4m3Rows, &[2, 5][..]));
        assert_eq!((quantized.bytes().len(), quantized.row_scales().unwrap().shape()), (32, &[2][..]));
        assert!(files.get("v", &[2]).unwrap().quantized().is_none(), "not a matrix");

        let bad: [(&[Entry<'_>], &str); 5] = [
            (&[("w", "F8_E4M3", &[2, 5], 10), scales], "tensor `w` has shape [2, 5], expected [2, 16]"),
            (&[("w", "F8_E5M2", &[2, 16], 32), scales], "tensor `w` has dtype F8_E5M2, expected F8_E4M3"),
            (&[("w", "F8_E4M3", &[2, 16], 32)], "tensor `w.scales` is missing"),
            (
                &[("w", "F8_E4M3", &[2, 16], 32), ("w.scales", "F32", &[3], 12)],
                "tensor `w.scales` has shape [3], expected [2]",
            ),
            (&[("w", "F8_E4M3", &[2, 16], 32), ("w.scales", "F16", &[2], 4)], "tensor `w.scales` has dtype F16"),
        ];
        for (entries, words) in bad {
            refused(with(entries).get("w", &[2, 5]), &[words, "in: cache"]);
        }
    }
}
