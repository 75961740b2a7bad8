//! `flux batch`: many images from a file, with one process and one model.
//!
//! ```text
//! FILE -> lines -> items -> (those that are there are passed) -> jobs of the engine -> writers -> files, manifest
//! ```

mod drawing;
mod items;
pub mod lines;
mod manifest;
mod table;
mod told;
mod writers;

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use flux::engine::Recipe;
use flux::error::KEYS;
use flux::files::open_regular;
use flux::{Error, Result};

use self::drawing::Run;
use self::items::{Items, Todo};
use self::lines::Defaults;
use self::manifest::Manifest;
use super::signals::Signals;
use super::{console, model_at};
use crate::cli::{Batch, BatchFormat, Seed, flag};

/// Makes the images of a file that are not there yet.
pub fn run(args: &Batch, signals: &Signals) -> Result<()> {
    args.check()?;
    let bytes = read(&args.file)?;
    let format = args.format.map_or_else(|| lines::format_of(&args.file, &bytes), Ok)?;
    let seed = args.draw.recipe.seed.filter(|seed| !seed.is_random()).map(Seed::value);
    let recipe = Recipe { seed: 0, ..args.draw.recipe.apply(Recipe::default())? };
    let defaults = Defaults { recipe, seed, count: args.count as usize };
    let lines = lines::read(&bytes, format, &defaults).map_err(|e| e.at_path(&args.file))?;
    let model = args.draw.model(None)?;
    let files = model_at(&model.paths, model.place.as_deref())?;
    let manifest = args.folder.is_dir().then(|| Manifest::read(&args.folder)).transpose()?;
    let items = Items::new(lines, args, &model, files.name(), manifest.as_ref())?;
    let mut console = console(&args.draw.console);
    let manifest = if args.dry_run {
        manifest
    } else {
        fs::create_dir_all(&args.folder).map_err(|e| cannot_make(&args.folder, &e))?;
        Some(manifest.map_or_else(|| Manifest::read(&args.folder), Ok)?.open(args.shard)?)
    };
    let todo = Todo::of(items, manifest.as_ref(), args);
    if let Some(damaged) = manifest.as_ref().map(|manifest| manifest.damaged).filter(|damaged| *damaged > 0) {
        console.note(&format!("{damaged} lines of the manifest are damaged and are left out"));
    }
    signals.listen()?;
    // What a prompt lacks, flags say.
    let names = if format == BatchFormat::Txt { flag } else { KEYS };
    let run = Run { args, model, signals, folder: &args.folder, names };
    match manifest {
        _ if args.dry_run => run.check(files, todo, &mut console),
        Some(manifest) => run.draw(files, todo, &manifest, &mut console),
        None => Err(cannot_make(&args.folder, &io::ErrorKind::NotADirectory.into())),
    }
}

/// The bytes of the file; `-` is standard input.
///
/// Errors when it cannot be read.
pub fn read(file: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = lines::MAX_FILE as u64 + 1;
    let read = if file == Path::new("-") {
        io::stdin().take(limit).read_to_end(&mut bytes)
    } else {
        open_regular(file, "name a file of prompts or recipes")?.take(limit).read_to_end(&mut bytes)
    };
    read.map_err(|e| Error::usage(format!("cannot read the lines: {e}")).at_path(file))?;
    Ok(bytes)
}

fn cannot_make(folder: &Path, e: &io::Error) -> Error {
    Error::new(format!("cannot make the folder: {e}")).at_path(folder).hint("name a folder that you may write to")
}

/// A recipe with these values in place of its own, as a table has them.
///
/// Errors when there is no such field, or a value is not of its kind.
pub fn varied(base: &Recipe, values: &[(&str, &str)]) -> Result<Recipe> {
    lines::varied(base, values)
}
