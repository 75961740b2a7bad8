//! `flux sheet`: images side by side in one file. It reads images and labels; [`flux::sheet`] draws. Start reading at
//! [`run`].

mod labels;

use flux::error::ErrorKind;
use flux::input::read;
use flux::metadata::Metadata;
use flux::output::Target;
use flux::sheet::{Cell, Style, check_size, fitted, sheet};
use flux::{Error, Result};

use self::labels::Labels;
use super::json::print_object;
use super::{claims, pictures};
use crate::cli::{Label, Sheet};
use flux_runtime::progress::{Console, Shown};

/// Creates the sheet and writes it.
///
/// Errors before an image is read if the output cannot be written or is one of the images, or if the sheet would be too
/// large. Errors if an image cannot be read.
pub fn run(args: &Sheet) -> Result<()> {
    let target = Target::new(&args.output)?;
    let target = if args.no_clobber { target.without_overwriting()? } else { target };
    let files = pictures::expanded(&args.files, Some(&args.output))?;
    claims::check_sheet(args, &files)?;
    let console = Console::new(args.quiet, false, Shown::Nothing);
    let style = Style {
        columns: args.columns,
        gap: args.gap,
        background: args.background,
        title: args.title.clone().filter(|title| !title.is_empty()),
    };
    let (labels, notes) = Labels::read(&args.label, &files)?;
    notes.iter().for_each(|note| console.note(note));
    let labels = labels.lines();
    let lines = labels.iter().map(Vec::len).max().unwrap_or_default();
    check_size(files.len(), args.cell, lines, &style).map_err(|e| too_large(e, args))?;
    let mut cells = Vec::with_capacity(files.len());
    for (file, label) in files.iter().zip(labels) {
        let image = read(file)?;
        // Only the fitted image is kept, so thousands of images need no more memory than the sheet.
        cells.push(Cell { image: fitted(&image, args.cell, args.enlarge).into_owned(), label });
    }
    write(&target, &cells, &style, args.json, &console)
}

/// Creates and writes a sheet, and reports it: with `json`, as an object on standard output.
///
/// Errors if the file cannot be written.
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

/// Returns the error for a sheet that is too large, with the flags that make it smaller.
fn too_large(error: Error, args: &Sheet) -> Error {
    debug_assert_eq!(error.kind(), ErrorKind::Failure);
    let error = Error::usage(error.what().to_string()).at("--cell");
    let label = if args.label == Label::None { "" } else { ", leave the labels out with `--label none`" };
    error.hint(format!("make the images smaller with `--cell`{label}, or change `--columns`"))
}
