//! The images of two folders, by their names.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use flux::error::{escaped, shown};
use flux::input::{is_image, read};
use flux::{Error, Result};
use serde::Serialize;

use super::measured::Measured;
use super::print;
use crate::cli::Compare;
use crate::commands::json::print_object;
use crate::progress::say;

/// The most images of a folder.
const MOST_IMAGES: usize = 100_000;
const HEAD: [&str; 6] = ["image", "max", "mean", "psnr", "ssim", "differing"];

/// Images of one name.
#[derive(Serialize)]
struct Pair {
    name: String,
    /// What is wrong where they cannot be compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
}

/// Two folders as JSON.
#[derive(Serialize)]
struct Report {
    pairs: Vec<Pair>,
    only_in_a: Vec<String>,
    only_in_b: Vec<String>,
    summary: Summary,
}

/// All pairs that can be compared.
#[derive(Serialize, Default)]
struct Summary {
    compared: usize,
    equal: usize,
    max: u8,
    /// Of all images, whatever their sizes.
    mean: f64,
    /// Nothing where all images are equal.
    lowest_psnr_db: Option<f64>,
    lowest_ssim: Option<f64>,
}

/// Prints a row of each pair, and a summary.
///
/// Errors when a folder cannot be read, there is no pair, one cannot be compared, or one is further apart than
/// `--min-psnr`.
pub fn run(args: &Compare) -> Result<()> {
    if args.diff.is_some() {
        return Err(Error::usage("an image of the differences is of two images, not of two folders")
            .at("--diff")
            .hint("leave it out, or name two images"));
    }
    let (a, b) = (images_of(&args.a)?, images_of(&args.b)?);
    let names: Vec<_> = a.intersection(&b).collect();
    if names.is_empty() {
        return Err(Error::new(format!("it has no image of a name that one in `{}` has", args.b.display()))
            .at_path(&args.a)
            .hint("name two folders whose images have the same file names"));
    }
    let pairs: Vec<_> = names.into_iter().map(|name| Pair::of(args, name)).collect();
    let text = |name: &OsString| name.to_string_lossy().into_owned();
    let report = Report {
        summary: Summary::of(&pairs),
        only_in_a: a.difference(&b).map(text).collect(),
        only_in_b: b.difference(&a).map(text).collect(),
        pairs,
    };
    if args.json {
        print_object(&report)?;
    } else {
        print(report.lines().join("\n").as_bytes())?;
        for (folder, names) in [(&args.a, &report.only_in_a), (&args.b, &report.only_in_b)] {
            if !names.is_empty() {
                say(&shown(&format!("note: only in `{}`: {}", folder.display(), names.join(", "))));
            }
        }
    }
    report.check(args.min_psnr)
}

/// The names of the images in a folder.
fn images_of(folder: &Path) -> Result<BTreeSet<OsString>> {
    let failed = |e| Error::new(format!("cannot read the folder: {e}")).at_path(folder).hint("may you read it?");
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // A pipe would be waited for.
        if entry.path().is_file() && is_image(&entry.path()) {
            names.insert(entry.file_name());
        }
        if names.len() > MOST_IMAGES {
            return Err(Error::new(format!("there are more than {MOST_IMAGES} images"))
                .at_path(folder)
                .hint("compare folders of fewer images"));
        }
    }
    Ok(names)
}

impl Pair {
    fn of(args: &Compare, name: &OsString) -> Self {
        let measured = read(&args.a.join(name)).and_then(|a| Measured::of(&a, &read(&args.b.join(name))?));
        let error = measured.as_ref().err().map(|e| e.what().to_string());
        Self { name: name.to_string_lossy().into_owned(), error, measured: measured.ok() }
    }
}

impl Summary {
    fn of(pairs: &[Pair]) -> Self {
        let measured: Vec<_> = pairs.iter().filter_map(|pair| pair.measured).collect();
        let least = |values: &mut dyn Iterator<Item = f64>| values.min_by(f64::total_cmp);
        Self {
            compared: measured.len(),
            equal: measured.iter().filter(|found| found.max == 0).count(),
            max: measured.iter().map(|found| found.max).max().unwrap_or_default(),
            mean: measured.iter().map(|found| found.mean).sum::<f64>() / measured.len().max(1) as f64,
            lowest_psnr_db: least(&mut measured.iter().map(|found| found.psnr).filter(|psnr| psnr.is_finite())),
            lowest_ssim: least(&mut measured.iter().filter_map(|found| found.ssim)),
        }
    }

    fn line(&self) -> String {
        let Self { compared, equal, max, mean, lowest_psnr_db, lowest_ssim } = self;
        let pairs = if *compared == 1 { "pair" } else { "pairs" };
        let psnr = lowest_psnr_db.map_or("inf".to_string(), |psnr| format!("{psnr:.2}"));
        let ssim = lowest_ssim.map_or("-".to_string(), |ssim| format!("{ssim:.5}"));
        format!(
            "{compared} {pairs}, {equal} equal: max {max}, mean {mean:.4}, lowest psnr {psnr} dB, lowest ssim {ssim}"
        )
    }
}

impl Report {
    /// A table of the pairs, and the summary.
    fn lines(&self) -> Vec<String> {
        let row = |pair: &Pair| -> (String, Vec<String>) {
            let cells = match (&pair.measured, &pair.error) {
                (Some(measured), _) => measured.cells().to_vec(),
                (None, error) => vec![escaped(error.as_deref().unwrap_or_default()).into_owned()],
            };
            (escaped(&pair.name).into_owned(), cells)
        };
        let head = (HEAD[0].to_string(), HEAD[1..].iter().map(ToString::to_string).collect());
        let rows: Vec<_> = std::iter::once(head).chain(self.pairs.iter().map(row)).collect();
        let wide = |cell: &String| cell.chars().count();
        let names = rows.iter().map(|(name, _)| wide(name)).max().unwrap_or_default();
        let columns: Vec<_> = (0..HEAD.len() - 1)
            .map(|column| {
                let cells = rows.iter().filter(|(_, cells)| cells.len() > 1).map(|(_, cells)| wide(&cells[column]));
                cells.max().unwrap_or_default()
            })
            .collect();
        let line = |(name, cells): &(String, Vec<String>)| {
            let cells: Vec<_> = match cells.as_slice() {
                [error] => vec![error.clone()],
                cells => cells.iter().zip(&columns).map(|(cell, columns)| format!("{cell:>columns$}")).collect(),
            };
            format!("{name:names$}  {}", cells.join("  "))
        };
        rows.iter().map(line).chain([self.summary.line()]).collect()
    }

    /// Errors when a pair cannot be compared, or is too far apart.
    fn check(&self, bound: Option<f64>) -> Result<()> {
        let count = self.pairs.len();
        if let Some((name, error)) = self.pairs.iter().find_map(|pair| Some((&pair.name, pair.error.as_ref()?))) {
            let failed = count - self.summary.compared;
            return Err(Error::new(format!("{failed} of {count} pairs cannot be compared; of the first, {error}"))
                .at(name.clone())
                .hint("compare images of one size that can be read"));
        }
        let Some(bound) = bound else { return Ok(()) };
        let apart = || self.pairs.iter().filter_map(|pair| Some((&pair.name, pair.measured?.psnr)));
        let worst = apart().filter(|(_, psnr)| *psnr < bound).min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((name, psnr)) = worst else { return Ok(()) };
        let failed = apart().filter(|(_, psnr)| *psnr < bound).count();
        Err(Error::new(format!(
            "{failed} of {count} pairs are further apart than {bound} dB; `{name}` is at {psnr:.2} dB"
        )))
    }
}
