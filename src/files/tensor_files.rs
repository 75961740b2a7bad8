//! The tensors of one component, by name.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::iter::Sum;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::container::Container;
use super::names::{FusedRows, LayerMap, Names};
use super::safetensors::Safetensors;
use super::tensor_view::TensorView;
use crate::error::{Error, Result};

/// The opened files of one component. Every access names the shape that the config asks for; another shape in the file
/// is an error that names tensor, file and both shapes.
pub struct TensorFiles {
    files: Vec<Container>,
    /// Where the tensor of each name lies: in one place, or in several, one under the other.
    tensors: HashMap<String, Vec<TensorLocation>>,
    quantised: Option<Safetensors>,
    /// What [`TensorFiles::get`] gives in place of what the files hold.
    replaced: HashMap<String, TensorView>,
    /// Names of the layers of a transformer.
    layers: &'static LayerMap,
    /// Whether the files hold other tensors as well.
    is_part: bool,
    /// The names that were asked for.
    read: Mutex<HashSet<String>>,
}

/// A tensor that nobody asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread<'a> {
    /// The name that models would ask for.
    pub name: &'a str,
    /// Its name in the file.
    pub key: &'a str,
    /// Whether another tensor of its layer, which differs in the last word of the name, was asked for.
    pub is_of_layer: bool,
    /// The file.
    pub path: &'a Path,
}

/// Rows of a tensor in a file: one of equal parts.
#[derive(Clone)]
struct TensorLocation {
    file: usize,
    key: String,
    /// Which of the places of its name it is, from the top.
    index: usize,
    part: usize,
    of: usize,
}

/// Values and bytes of pieces, which add up.
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
    /// The tensors of all `files`, which have the names that models ask for.
    ///
    /// Errors when two of them have a tensor of one name.
    pub fn new(files: Vec<Container>) -> Result<Self> {
        Self::named(files, &Names::OWN, |_| true)
    }

    /// The tensors of all `files` that are `wanted`, by the names that models ask for.
    ///
    /// Errors when two of them have a tensor of one name, or one of them has it twice.
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
                                .hint("the file is damaged or was put together wrongly: fetch it again")
                        } else {
                            Error::new(format!("tensor `{key}` is in two files"))
                                .hint("files of two downloads are mixed: fetch the folder again as a whole")
                        };
                        return Err(twice.at_path(container.path()));
                    }
                    places.push(TensorLocation { file, key: key.to_string(), index, part, of });
                }
            }
        }
        tensors.values_mut().for_each(|places| places.sort_by_key(|place| place.index));
        let (quantised, replaced, read) = (None, HashMap::new(), Mutex::default());
        Ok(Self { files, tensors, quantised, replaced, layers: names.layers, is_part, read })
    }

    /// Names of the layers, where it is a transformer.
    pub fn layers(&self) -> &'static LayerMap {
        self.layers
    }

    /// The files.
    pub fn files(&self) -> &[Container] {
        &self.files
    }

    /// Bytes of the files, or of these tensors where the files hold others as well.
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

    /// Errors when one of the files is not as long as when it was opened.
    pub fn check_lengths(&self) -> Result<()> {
        self.files.iter().try_for_each(Container::check_length)?;
        self.quantised.as_ref().map_or(Ok(()), Safetensors::check_length)
    }

    /// Errors with the name of a tensor that holds values that are not finite. Reads all files.
    pub fn check_finite(&self) -> Result<()> {
        self.files.iter().try_for_each(Container::check_finite)
    }

    /// All names, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensors that neither [`TensorFiles::get`] nor [`TensorFiles::parts`] was asked for, by their names in the
    /// files.
    pub fn unread(&self) -> Vec<Unread<'_>> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let layer = |name: &'_ str| name.rsplit_once('.').map(|(layer, _)| layer.to_string());
        let is_read = |(name, _): &(&String, &Vec<TensorLocation>)| read.contains(name.as_str());
        let (found, left): (Vec<_>, Vec<_>) = self.tensors.iter().partition(is_read);
        // By its names here and in the file: what is not known there is not known here.
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

    /// The shape of the tensor `name`, if there is one.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let places = self.tensors.get(name)?;
        let first = places.first()?;
        let mut shape = self.files[first.file].shape(&first.key)?;
        if let Some(rows) = shape.first_mut() {
            *rows = (*rows / first.of).checked_mul(places.len())?;
        }
        Some(shape)
    }

    /// The format of the tensor `name` and how many values it has; none where it is missing or in no format that is
    /// read.
    pub fn format(&self, name: &str) -> Option<(String, u64)> {
        let first = self.tensors.get(name)?.first()?;
        let view = self.files[first.file].tensor(&first.key).ok()?;
        let values = self.shape(name)?.iter().try_fold(1u64, |product, axis| product.checked_mul(*axis as u64))?;
        Some((format!("{:?}", view.format()).to_lowercase(), values))
    }

    /// The matrices whose names begin with `prefix` and that are no plain floats: how many values each has, and its
    /// bytes with its scales.
    pub fn quantised_matrices(&self, prefix: &str) -> Vec<[u64; 2]> {
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

    /// The length of an axis of the tensor `name`.
    ///
    /// Errors when there is no such tensor, or it has fewer axes.
    pub fn axis(&self, name: &str, axis: usize) -> Result<usize> {
        let shape = self.shape(name).ok_or_else(|| self.wrong(format!("tensor `{name}` is missing")))?;
        let length = shape.get(axis).copied();
        length.ok_or_else(|| self.wrong(format!("tensor `{name}` is {shape:?}, expected more axes")))
    }

    /// An error of the first file.
    fn wrong(&self, what: String) -> Error {
        let error = Error::new(what).hint("the file is no whole part of a klein model: fetch it again, or another one");
        match self.files.first() {
            Some(file) => error.at_path(file.path()),
            None => error,
        }
    }

    /// How many blocks there are whose names begin with `prefix` and a number: the highest number and one.
    pub fn blocks(&self, prefix: &str) -> usize {
        let number = |name: &str| name.strip_prefix(prefix)?.split('.').next()?.parse::<usize>().ok();
        self.names().filter_map(number).max().map_or(0, |highest| highest.saturating_add(1))
    }

    /// Name, rows and columns of all matrices of floats that have values, sorted by name.
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

    /// Makes [`TensorFiles::get`] give the matrices that are in `quantised` in that form as well.
    pub fn set_quantised(&mut self, quantised: Safetensors) {
        self.quantised = Some(quantised);
    }

    /// Makes [`TensorFiles::get`] give `view` for the tensor `name`, of its shape.
    pub fn replace(&mut self, name: String, view: TensorView) {
        assert_eq!(self.shape(&name).as_deref(), Some(view.shape()), "`{name}` is another one");
        self.replaced.insert(name, view);
    }

    /// One of the equal parts of the rows of the tensor `name`, whatever its shape, as the pieces in which it lies in
    /// the files, from the top.
    ///
    /// Errors when it is missing, in a form that this program does not read, or a matrix of zeros.
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

    /// The tensor `name`, which must have `shape` and lie in one place.
    ///
    /// Errors when it is missing, in a form that this program does not read, has another shape, or is a matrix of
    /// zeros.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<TensorView> {
        let mut parts = self.parts(name, shape)?;
        match (parts.pop(), parts.is_empty()) {
            (Some(only), true) => Ok(only),
            _ => Err(Error::new(format!("tensor `{name}` is in several pieces, expected one"))),
        }
    }

    /// The tensor `name`, which must have `shape`, as the pieces in which it lies in the files, from the top.
    ///
    /// Errors as [`TensorFiles::get`].
    pub fn parts(&self, name: &str, shape: &[usize]) -> Result<Vec<TensorView>> {
        let missing = || {
            let error = Error::new(format!("tensor `{name}` is missing"));
            self.files.first().map_or(error.clone(), |file| error.at_path(file.path()))
        };
        let places = self.tensors.get(name).ok_or_else(missing)?;
        self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_string());
        if let Some(view) = self.replaced.get(name) {
            return if view.shape() == shape {
                Ok(vec![view.clone()])
            } else {
                Err(self.wrong(format!("tensor `{name}` is {:?}, expected {shape:?}", view.shape())))
            };
        }
        let mut parts = places.iter().map(|place| self.part(place, places.len(), shape)).collect::<Result<Vec<_>>>()?;
        if let (Some(file), &[rows, cols], [view]) = (&self.quantised, shape, &mut parts[..])
            && file.contains(name)
        {
            *view = view.clone().with_quantised(Some(file.e4m3_rows(name, &[rows, cols])?));
        }
        Ok(parts)
    }

    /// One of the `places` of a tensor of `shape`.
    fn part(&self, place: &TensorLocation, places: usize, shape: &[usize]) -> Result<TensorView> {
        let TensorLocation { file, key, part, of, .. } = place;
        let file = &self.files[*file];
        let mut own = shape.to_vec();
        own.iter_mut().take(1).for_each(|rows| *rows /= places);
        let mut stored = own.clone();
        stored.iter_mut().take(1).for_each(|rows| *rows = rows.saturating_mul(*of));
        // A convolution with a kernel of one pixel is a product.
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
