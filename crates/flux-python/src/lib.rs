//! The extension module `flux._flux` of the Python package `flux`. Its classes are thin: `python/flux/` has the API
//! with names, types and documentation, and calls them. Start reading at [`engine::Engine`].
//!
//! Work runs without the GIL. A waiting main thread runs Python's signal handlers every 20 ms, so Ctrl-C cancels.

mod engine;
mod errors;
mod picture;
mod request;
mod ticket;
mod wait;

use std::ffi::OsString;
use std::path::PathBuf;

use flux::engine::ImageRecipe;
use flux::files::ModelPaths;
use flux::metadata::said_by;
use flux::model::Quantization;
use flux::pipeline::Summary;
use flux::{CancelFlag, Error, Field, Result};
use flux_hub::download::{Downloader, Options};
use flux_hub::{Named, PUBLISHED, Wanted};
use flux_runtime::progress::{Shown, Transfers, say};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::OrRaise;
use crate::wait::interruptible;

/// The pause before a download is tried again, in seconds.
const RETRY_WAIT: f64 = 1.0;

#[pymodule]
mod _flux {
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::picture::{Picture, Tensor};
    #[pymodule_export]
    use super::ticket::Ticket;
    #[pymodule_export]
    use super::wait::Flag;
    #[pymodule_export]
    use super::{download, info, recipe_in, run_program};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Runs the command line, which begins with the name of the program. Returns the exit code.
#[pyfunction]
fn run_program(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| flux_cli::run(arguments))
}

/// Returns facts about a model as JSON: a path, a name, or the built-in model.
#[pyfunction]
#[pyo3(signature = (model, quantize=None))]
fn info(py: Python<'_>, model: Option<PathBuf>, quantize: Option<String>) -> PyResult<String> {
    let read = move || {
        let wrong = |why| Error::usage(why).for_field(Field::Quantize);
        let formats = quantize.as_deref().map(|text| text.parse::<Quantization>().map_err(wrong)).transpose()?;
        let resolve = |path: PathBuf| flux_hub::resolve(&path, Wanted::Model);
        let paths = ModelPaths { model: model.map(resolve).transpose()?, ..ModelPaths::default() };
        let files = paths.open(flux::default_model::default_model).map_err(|e| e.for_field(Field::Model))?;
        let summary = Summary::read(&files, &formats.unwrap_or_default())?;
        serde_json::to_string(&summary).map_err(|e| Error::new(format!("cannot write the summary as JSON: {e}")))
    };
    interruptible(py, &CancelFlag::default(), read)
}

/// Returns the recipe in the bytes of an image file as JSON, and the files that it embeds.
#[pyfunction]
fn recipe_in<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<(String, Bound<'py, PyDict>)> {
    let read = || {
        let none = || {
            Error::usage("the image has no recipe of flux").hint("name an image that flux wrote and no program changed")
        };
        let made = ImageRecipe::from_json(&said_by(bytes)?.recipe.ok_or_else(none)?)?;
        let files = made.embedded_files()?;
        Ok((made, files))
    };
    let (made, files) = py.detach(read).or_raise(py)?;
    Ok((made.to_json(), picture::files(py, &files)?))
}

/// Downloads a model or an adapter. Returns its path.
#[pyfunction]
fn download(
    py: Python<'_>,
    name: String,
    folder: Option<PathBuf>,
    revision: Option<String>,
    verify: bool,
    quiet: bool,
) -> PyResult<PathBuf> {
    let cancel = CancelFlag::default();
    let flag = cancel.clone();
    let fetch = move || -> Result<PathBuf> {
        let named = Named::parse(&name).ok_or_else(|| {
            let known: Vec<&str> = PUBLISHED.iter().map(|model| model.name).collect();
            Error::usage(format!("unknown model: `{name}`"))
                .hint(format!("name {}, or a repository as in `owner/name` or `owner/name:FILE`", known.join(", ")))
        })?;
        let note = move |text: &str| {
            if !quiet {
                say(text)
            }
        };
        let downloader = Downloader::new(RETRY_WAIT, &flag, note)?;
        let plan = downloader.plan(&named, revision.as_deref())?;
        let options = Options { folder: folder.as_deref(), verify };
        Ok(downloader.fetch(&plan, &options, &mut Transfers::new(quiet, Shown::Auto))?.path)
    };
    interruptible(py, &cancel, fetch)
}
