//! `flux batch`: many images from a file, with one process and one model.
//!
//! ```text
//! FILE -> lines -> items -> (existing images are skipped) -> jobs of the engine -> writers -> files, manifest
//! ```
//!
//! It does not know how images are computed: `drawing` passes requests to the engine. Start reading at [`run`].

pub mod alike;
mod drawing;
mod fields;
mod flags;
mod inputs;
mod items;
pub mod lines;
mod manifest;
mod place;
mod report;
mod table;
mod text;
mod writers;

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use flux::engine::Recipe;
use flux::error::KEYS;
use flux::files::open_regular;
use flux::output::NameTemplate;
use flux::{Error, Result};

use self::drawing::Run;
pub use self::drawing::prepare;
use self::items::{Items, Todo};
pub use self::lines::varied;
use self::lines::{Defaults, List};
use self::manifest::Manifest;
use super::signals::Signals;
use super::{console, model_at};
use crate::cli::{Batch, BatchFormat, Seed, flag};

/// Generates the images of a file that do not exist yet.
pub fn run(args: &Batch, signals: &Signals) -> Result<()> {
    args.check()?;
    let bytes = read(&args.file)?;
    let format = args.format.map_or_else(|| lines::format_of(&args.file, &bytes), Ok)?;
    let seed = args.draw.recipe.seed.filter(|seed| !seed.is_random()).map(Seed::value);
    let recipe = Recipe { seed: 0, ..args.draw.recipe.apply(Recipe::default())? };
    let (no_recipe, upsample) = (args.draw.no_recipe, args.draw.upsample.is_on());
    let defaults = Defaults { recipe, no_recipe, seed, count: args.count as usize, upsample };
    let List { lines, columns, meta } = lines::read(&bytes, format, &defaults).map_err(|e| e.at_path(&args.file))?;
    let model = args.draw.model(None)?;
    let files = model_at(&model.paths, model.place.as_deref())?;
    let name = NameTemplate::parse_with(&args.name, &columns).map_err(|e| e.at("--name"))?;
    let manifest = if args.dry_run {
        args.folder.is_dir().then(|| Manifest::read(&args.folder)).transpose()?
    } else {
        fs::create_dir_all(&args.folder).map_err(|e| cannot_make(&args.folder, &e))?;
        Some(Manifest::open(&args.folder, args.shard)?)
    };
    let items = Items::new(lines, args, name, (&model, files.name()), manifest.as_ref())?;
    let mut console = console(&args.draw.console);
    if !meta.is_empty() {
        let names = meta.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        console.note(&format!("not recipe fields, kept as `meta` in the manifest: {names}"));
    }
    let todo = Todo::new(items, manifest.as_ref(), args);
    if let Some(damaged) = manifest.as_ref().map(|manifest| manifest.damaged).filter(|damaged| *damaged > 0) {
        console.note(&format!("{damaged} lines of the manifest are damaged and were ignored"));
    }
    signals.listen()?;
    // In a text file, missing settings come from flags.
    let names = if format == BatchFormat::Txt { flag } else { KEYS };
    let run = Run { args, model, signals, folder: &args.folder, names };
    match manifest {
        _ if args.dry_run => run.check(files, todo, &mut console),
        Some(manifest) => run.draw(files, todo, &manifest, &mut console),
        None => Err(cannot_make(&args.folder, &io::ErrorKind::NotADirectory.into())),
    }
}

/// Reads the file; `-` is standard input.
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
    if folder.exists() {
        return Error::usage(format!("`{}` is a file, not a folder", folder.display())).hint("name another folder");
    }
    Error::new(format!("cannot create the folder: {e}")).at_path(folder).hint("name a folder that you can write to")
}
