//! `flux list`: the installed models, components and adapters. It reads only configs and headers, and loads no weights.
//! Start reading at [`run`]; `walk` searches the folders.

mod found;
mod walk;

use flux::Result;
use flux::engine::devices::survey;
use flux::error::escaped;
use flux::files::Role;
use flux_hub::{Cache, PUBLISHED, folders};

use self::found::Entry;
pub use self::found::{bytes_below, licence_in};
use self::walk::{in_cache, in_folder};
use super::json::print_object;
use super::print;
use crate::cli::{List, NamesOf};
use flux_runtime::progress::{gigabytes, say};

/// Lists the contents of the cache, of `models` and of the folders in FLUX_MODELS.
pub fn run(args: &List) -> Result<()> {
    match args.names {
        Some(NamesOf::Published) => return PUBLISHED.iter().try_for_each(|model| print(model.name.as_bytes())),
        Some(NamesOf::Devices) => return devices().iter().try_for_each(|device| print(device.as_bytes())),
        _ => {}
    }
    let mut entries: Vec<Entry> = Vec::new();
    if let Ok(cache) = Cache::from_environment() {
        cache.repositories().iter().for_each(|cached| entries.extend(in_cache(&cache, cached)));
    }
    folders().iter().for_each(|folder| entries.extend(in_folder(folder)));
    if let Some(kind) = args.names {
        return names(&entries, kind).into_iter().try_for_each(|name| print(name.as_bytes()));
    }
    if entries.is_empty() {
        say("no models in the Hugging Face cache, in `models` or in FLUX_MODELS; run `flux download 4b` to get one");
        return Ok(());
    }
    if args.json {
        return entries.iter().try_for_each(print_object);
    }
    table(&entries).iter().try_for_each(|line| print(line.as_bytes()))
}

/// Returns the values that `--device` accepts on this machine.
fn devices() -> Vec<String> {
    let gpus = survey().map_or(0, |survey| survey.gpus.len());
    let cuda = (gpus > 0).then(|| "cuda".to_string());
    let each = (0..gpus).map(|gpu| format!("cuda:{gpu}"));
    ["auto", "cpu"].map(str::to_string).into_iter().chain(cuda).chain(each).collect()
}

/// Returns the names of `entries` that `--dir` or `--lora` accepts, without damaged ones. A name with a control
/// character is skipped, because it would not fit on one line.
fn names(entries: &[Entry], kind: NamesOf) -> Vec<&str> {
    let is_kind = |entry: &Entry| match kind {
        NamesOf::Models => ["model", Role::Transformer.title()].contains(&entry.kind),
        NamesOf::Adapters => entry.kind == "adapter",
        NamesOf::All | NamesOf::Published | NamesOf::Devices => true,
    };
    let is_one = |entry: &&Entry| entry.fault.is_none() && is_kind(entry) && !entry.name.contains(char::is_control);
    entries.iter().filter(is_one).map(|entry| entry.name.as_str()).collect()
}

/// Formats a row for each entry, in aligned columns. The path is last.
fn table(entries: &[Entry]) -> Vec<String> {
    let row = |entry: &Entry| {
        let licence = entry.licence.as_ref().map_or("-", |licence| licence.name.as_str());
        let cells = [&entry.name, entry.kind, &entry.format, &gigabytes(entry.bytes), licence, &entry.path];
        cells.map(|cell| if cell.is_empty() { "-".to_string() } else { escaped(cell).into_owned() })
    };
    let head = ["name", "kind", "format", "size", "licence", "path"].map(str::to_string);
    let rows: Vec<_> = [head].into_iter().chain(entries.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..5).map(width).collect();
    let line = |row: &[String; 6]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}  {}", cells.join("  "), row[5])
    };
    let mut lines = vec![line(&rows[0])];
    for (row, entry) in rows[1..].iter().zip(entries) {
        lines.push(line(row));
        lines.extend(entry.fault.as_ref().map(|fault| format!("  {}", escaped(fault))));
    }
    lines
}
