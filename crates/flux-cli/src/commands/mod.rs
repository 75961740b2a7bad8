//! The commands: one module for each subcommand, and `generate` for none. They parse no flags, which `crate::cli` does,
//! and compute nothing, which the library does. Start reading at `generate`, then `studio` and `drawing`.

pub mod again;
mod ahead;
mod ask;
pub mod batch;
pub mod bench;
pub mod chat;
mod claims;
pub mod compare;
pub mod config;
pub mod convert;
mod destination;
pub mod devices;
pub mod download;
mod drawing;
mod foreign;
pub mod generate;
pub mod grid;
mod image_info;
pub mod info;
pub mod json;
pub mod list;
pub mod live;
pub mod names;
mod outputs;
pub mod pages;
mod pictures;
mod prompt_notes;
#[cfg(feature = "queue")]
pub mod queue;
#[cfg(feature = "server")]
mod remote;
pub mod remove;
mod screen;
pub mod selftest;
#[cfg(feature = "server")]
pub mod serve;
pub mod sheet;
pub mod show;
pub mod signals;
mod source;
pub mod strip;
mod studio;
#[cfg(feature = "queue")]
pub mod submit;
mod tensors;
#[cfg(feature = "server")]
mod unix_transport;
pub mod upsample;
pub mod upscale;
pub mod verify;
#[cfg(feature = "queue")]
pub mod worker;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flux::default_model::default_model;
use flux::files::{ModelFiles, ModelPaths};
use flux::{Error, Result};

use crate::cli::{ConsoleArgs, ModelArgs, ProgressChoice, flag};
use flux_runtime::progress::{Console, Shown, say};

/// Opens the model that flags or environment name, if any.
fn named_model(args: &ModelArgs) -> Result<Option<ModelFiles>> {
    let (paths, place) = args.paths(None);
    (paths != ModelPaths::default()).then(|| model_at(&paths, place.as_deref())).transpose()
}

/// Opens the model that flags or environment name, otherwise the default model.
fn model(args: &ModelArgs) -> Result<ModelFiles> {
    named_model(args)?.map_or_else(default_model, Ok)
}

/// Opens the model at these paths, or the default model if there are none; `place` is the flag or variable for errors.
/// A path can also be the name of a model in the cache, or of one that the user agrees to download.
fn model_at(paths: &ModelPaths, place: Option<&str>) -> Result<ModelFiles> {
    let found =
        |path: &Option<PathBuf>, place: &str| path.as_deref().map(names::model).transpose().map_err(|e| e.at(place));
    let named = paths;
    let paths = ModelPaths {
        model: found(&paths.model, place.unwrap_or_default())?,
        text_encoder: found(&paths.text_encoder, "--text-encoder")?,
        vae: found(&paths.vae, "--vae")?,
        ..paths.clone()
    };
    let opened = paths.open(default_model).map_err(|e| match place {
        Some(place) => e.at(place),
        None => e,
    });
    // Metadata keeps the name, because the resolved path is specific to this machine.
    opened.map(|files| files.named_as(named.clone()))
}

/// Returns the console for stderr, as the flags configure it.
/// Creates a folder and its parents.
///
/// Errors if that fails.
fn create_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| {
        Error::new(format!("cannot create the folder: {e}"))
            .at_path(folder)
            .hint("name a folder that you can write to with `-o`")
    })
}

fn console(args: &ConsoleArgs) -> Console {
    Console::new(args.quiet, args.verbose, shown_as(args.progress))
}

/// Converts the flag for progress display.
fn shown_as(progress: ProgressChoice) -> Shown {
    match progress {
        ProgressChoice::Auto => Shown::Auto,
        ProgressChoice::Bar => Shown::Bars,
        ProgressChoice::Plain => Shown::Lines,
        ProgressChoice::None => Shown::Nothing,
    }
}

/// Returns the last of the errors of independent images, and prints the others.
fn all_or_last(mut errors: Vec<Error>) -> Result<()> {
    let last = errors.pop();
    errors.iter().for_each(|error| say(&format!("error: {}", error.shown_with(flag))));
    last.map_or(Ok(()), Err)
}

/// Writes a line to stdout.
pub fn print(line: &[u8]) -> Result<()> {
    print_bytes(&[line, b"\n"].concat())
}

/// Writes bytes to stdout.
fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|e| Error::new(format!("cannot write to standard output: {e}")))
        .map_err(|e| e.hint("check that the program that reads it is running and the disk is not full"))
}
