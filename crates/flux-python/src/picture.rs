//! Pixels and tensors that numpy reads without a copy.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use flux::error::named;
use flux::files::Array;
use flux::metadata::Metadata;
use flux::output::{Encoding, Target, encode, encode_jpeg};
use flux::{Error, Image, ImageFormat, Result, Rgb};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{OrRaise, keyword};

/// Files in memory by their names in a recipe.
pub type Files = Arc<BTreeMap<PathBuf, Vec<u8>>>;

/// The pixels of an image or of a preview.
#[pyclass(frozen, module = "flux._flux")]
pub struct Picture {
    source: Source,
    /// An edited image over its original, made when it is first used.
    composite: OnceLock<Rgb>,
    files: Files,
}

enum Source {
    Image(Arc<Image>),
    Preview(Rgb),
}

impl Picture {
    /// Creates the picture of an image, and keeps the files in memory that its recipe names.
    pub fn from_image(image: Image, files: &Files) -> Self {
        Self { source: Source::Image(Arc::new(image)), composite: OnceLock::new(), files: Arc::clone(files) }
    }

    /// Creates the picture of a preview.
    pub fn from_preview(rgb: Rgb) -> Self {
        Self { source: Source::Preview(rgb), composite: OnceLock::new(), files: Files::default() }
    }

    /// Returns the image; `None` for a preview.
    pub fn image(&self) -> Option<&Arc<Image>> {
        match &self.source {
            Source::Image(image) => Some(image),
            Source::Preview(_) => None,
        }
    }

    fn pixels(&self) -> Result<&Rgb> {
        let image = match &self.source {
            Source::Preview(rgb) => return Ok(rgb),
            Source::Image(image) => image,
        };
        if let Some(pixels) = self.composite.get() {
            return Ok(pixels);
        }
        Ok(match image.pixels()? {
            Cow::Borrowed(pixels) => pixels,
            Cow::Owned(pixels) => self.composite.get_or_init(|| pixels),
        })
    }

    fn encoded(&self, format: ImageFormat, quality: Option<u8>) -> Result<Vec<u8>> {
        Encoding { format: Some(format), quality }.format(None)?;
        match (&self.source, quality) {
            (Source::Image(image), None) => image.encode(format),
            (Source::Image(image), Some(quality)) => image.encode_jpeg(quality),
            (Source::Preview(rgb), None) => encode(rgb, format, &Metadata::default()),
            (Source::Preview(rgb), Some(quality)) => encode_jpeg(rgb, quality, &Metadata::default()),
        }
    }
}

#[pymethods]
impl Picture {
    /// Width and height in pixels.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let pixels = py.detach(|| self.pixels()).or_raise(py)?;
        Ok((pixels.width, pixels.height))
    }

    /// uint8 [height, width, 3], read-only.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Rgb { width, height, bytes } = py.detach(|| self.pixels()).or_raise(py)?;
        interface(py, "|u1", (*height, *width, 3), bytes.as_ptr() as usize, true)
    }

    /// The bytes of an image file with the recipe.
    #[pyo3(signature = (format, quality=None))]
    fn encode<'py>(&self, py: Python<'py>, format: &str, quality: Option<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let format = named_format(format).or_raise(py)?;
        let bytes = py.detach(|| self.encoded(format, quality)).or_raise(py)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Writes an image file, in the format of its extension.
    #[pyo3(signature = (path, quality=None))]
    fn save(&self, py: Python<'_>, path: PathBuf, quality: Option<u8>) -> PyResult<()> {
        let save = || {
            let target = Target::with_encoding(&path, Encoding { format: None, quality })?;
            target.write_bytes(&self.encoded(target.format(), quality).map_err(|e| e.at_path(&path))?)
        };
        py.detach(save).or_raise(py)
    }

    /// The recipe in JSON with the model and the device; `None` for a preview. Waits for the digests of the model.
    fn recipe(&self, py: Python<'_>) -> Option<String> {
        let image = self.image()?;
        py.detach(|| image.recipe().map(|made| made.to_json()))
    }

    /// The files in memory that the recipe names.
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        files(py, &self.files)
    }

    /// True for a preview, which has no recipe.
    #[getter]
    fn is_preview(&self) -> bool {
        self.image().is_none()
    }

    /// Notes for the user: a size that was rounded, an option without effect.
    fn notes(&self) -> Vec<String> {
        let notes = self.image().map_or(&[][..], |image| &image.plan.notes);
        notes.iter().map(|note| named(note, keyword)).collect()
    }

    /// The seed of the noise.
    #[getter]
    fn seed(&self) -> Option<u64> {
        self.image().map(|image| image.plan.seed)
    }
}

/// Returns files by their names.
pub fn files<'py>(py: Python<'py>, files: &BTreeMap<PathBuf, Vec<u8>>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    files.iter().try_for_each(|(name, bytes)| dict.set_item(name.as_os_str(), PyBytes::new(py, bytes)))?;
    Ok(dict)
}

fn named_format(name: &str) -> Result<ImageFormat> {
    let formats = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Webp];
    formats.into_iter().find(|format| format.to_string().eq_ignore_ascii_case(name)).ok_or_else(|| {
        Error::usage(format!("`{name}` is not a format")).at("format").hint("use `png`, `jpeg` or `webp`")
    })
}

/// A tensor in float32.
#[pyclass(frozen, module = "flux._flux")]
pub struct Tensor(Array);

impl From<Array> for Tensor {
    fn from(array: Array) -> Self {
        Self(array)
    }
}

#[pymethods]
impl Tensor {
    /// float32, writable: nothing else uses the values.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let shape = pyo3::types::PyTuple::new(py, &self.0.shape)?;
        interface(py, "<f4", shape, self.0.values.as_ptr() as usize, false)
    }
}

/// Returns the dictionary of numpy's array interface. The object that returns the dictionary owns the memory.
fn interface<'py>(
    py: Python<'py>,
    dtype: &str,
    shape: impl IntoPyObject<'py>,
    address: usize,
    is_read_only: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("version", 3)?;
    dict.set_item("typestr", dtype)?;
    dict.set_item("shape", shape)?;
    dict.set_item("data", (address, is_read_only))?;
    Ok(dict)
}
