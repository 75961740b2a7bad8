//! What the program does: one file for each subcommand, and one for none.

pub mod bench;
mod claims;
pub mod compare;
pub mod convert;
mod destination;
mod drawing;
pub mod generate;
pub mod info;
mod prompt_notes;
pub mod signals;
mod tensors;

use std::io::{self, Write};
use std::path::PathBuf;

use flux::default_model::default_model;
use flux::files::{ModelFiles, ModelPaths, Variant};
use flux::{Error, Result};

use crate::cli::{ModelArgs, ProgressChoice, VariantChoice};
use crate::progress::{Console, Shown};

/// The model that the flags or the environment name, if they do.
fn named_model(args: &ModelArgs) -> Result<Option<ModelFiles>> {
    let names_part = args.text_encoder.is_some() || args.vae.is_some() || args.tokenizer.is_some();
    let names = args.dir().is_some() || names_part || args.variant.is_some();
    let place = if args.names_dir() { Some("--dir") } else { args.dir().map(|_| "FLUX_MODEL") };
    names.then(|| model_at(args, args.dir(), place)).transpose()
}

/// The model that the flags or the environment name, else the default model.
fn model(args: &ModelArgs) -> Result<ModelFiles> {
    named_model(args)?.map_or_else(default_model, Ok)
}

/// The model at `path`, which `place` names, else the default model, with the parts that the flags name.
fn model_at(args: &ModelArgs, path: Option<PathBuf>, place: Option<&str>) -> Result<ModelFiles> {
    let paths = ModelPaths {
        model: path,
        text_encoder: args.text_encoder.clone(),
        vae: args.vae.clone(),
        tokenizer: args.tokenizer.clone(),
        variant: args.variant.map(|variant| match variant {
            VariantChoice::Distilled => Variant::Distilled,
            VariantChoice::Base => Variant::Base,
            VariantChoice::Kv => Variant::Kv,
        }),
    };
    paths.open(default_model).map_err(|e| match place {
        Some(place) => e.at(place),
        None => e,
    })
}

/// stderr, as the flags ask for it.
fn console(quiet: bool, verbose: bool, progress: ProgressChoice) -> Console {
    let shown = match progress {
        ProgressChoice::Auto => Shown::Auto,
        ProgressChoice::Bar => Shown::Bars,
        ProgressChoice::Plain => Shown::Lines,
        ProgressChoice::None => Shown::Nothing,
    };
    Console::new(quiet, verbose, shown)
}

/// Writes a line to stdout.
fn print(line: &[u8]) -> Result<()> {
    print_bytes(&[line, b"\n"].concat())
}

/// Writes to stdout.
fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|e| Error::new(format!("cannot write to standard output: {e}")))
        .map_err(|e| e.hint("is what reads it still there, and its disk not full?"))
}
