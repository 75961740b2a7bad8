//! `flux sheet`: images side by side in one file.

mod labels;

use flux::error::ErrorKind;
use flux::input::read;
use flux::metadata::Metadata;
use flux::output::Target;
use flux::sheet::{Cell, Style, check_size, fitted, sheet};
use flux::{Error, Result};

use self::labels::Labels;
use super::claims;
use super::json::print_object;
use crate::cli::{Label, Sheet};
use crate::progress::{Console, Shown};

/// Writes the sheet.
///
/// Errors, before an image is read, when the file cannot be written or is one of the images, and when the sheet would
/// be too large; and when an image cannot be read.
pub fn run(args: &Sheet) -> Result<()> {
    let target = Target::new(&args.output)?;
    let target = if args.no_clobber { target.without_overwriting()? } else { target };
    claims::of_sheet(args)?;
    let console = Console::new(args.quiet, false, Shown::Nothing);
    let style = Style {
        columns: args.columns,
        gap: args.gap,
        background: args.background,
        title: args.title.clone().filter(|title| !title.is_empty()),
    };
    let (labels, notes) = Labels::read(&args.label, &args.files)?;
    notes.iter().for_each(|note| console.note(note));
    let labels = labels.lines();
    let lines = labels.iter().map(Vec::len).max().unwrap_or_default();
    check_size(args.files.len(), args.cell, lines, &style).map_err(|e| too_large(e, args))?;
    let mut cells = Vec::with_capacity(args.files.len());
    for (file, label) in args.files.iter().zip(labels) {
        let image = read(file)?;
        // Nothing else is kept of an image, so thousands take as much memory as the sheet.
        cells.push(Cell { image: fitted(&image, args.cell, args.enlarge).into_owned(), label });
    }
    write(&target, &cells, &style, args.json, &console)
}

/// Makes a sheet, writes it, and tells of it: as an object on standard output where `json` is asked for.
///
/// Errors when it cannot be written.
pub fn write(target: &Target, cells: &[Cell], style: &Style, json: bool, console: &Console) -> Result<()> {
    let made = sheet(cells, style)?;
    target.write(&made, &Metadata::default())?;
    let (count, path) = (cells.len(), target.path().display());
    if json {
        return print_object(&serde_json::json!({
            "output": path.to_string(), "images": count, "width": made.width, "height": made.height,
        }));
    }
    let images = if count == 1 { "image" } else { "images" };
    console.info(&format!("wrote {path}: {count} {images}, {}x{}", made.width, made.height));
    Ok(())
}

/// A sheet that is too large, with the flags that change that.
fn too_large(error: Error, args: &Sheet) -> Error {
    debug_assert_eq!(error.kind(), ErrorKind::Failure);
    let error = Error::usage(error.what().to_string()).at("--cell");
    let label = if args.label == Label::None { "" } else { ", leave the labels out with `--label none`" };
    error.hint(format!("make the images smaller with `--cell`{label}, or change `--columns`"))
}
