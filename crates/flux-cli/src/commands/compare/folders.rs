//! Comparison of several pairs of images: files of the same name in two folders, or one image with several others.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use flux::error::{escaped, shown};
use flux::input::read;
use flux::{Error, Result};
use serde::Serialize;

use super::measured::Measured;
use super::print;
use crate::cli::Compare;
use crate::commands::json::print_object;
use crate::commands::pictures::images_in_folder;
use flux_runtime::progress::say;

const HEAD: [&str; 6] = ["image", "max", "mean", "psnr", "ssim", "differing"];

/// Two images with the same name.
#[derive(Serialize)]
struct Pair {
    name: String,
    /// The reason if the images cannot be compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
}

/// The JSON report of two folders.
#[derive(Serialize)]
struct Report {
    pairs: Vec<Pair>,
    only_in_a: Vec<String>,
    only_in_b: Vec<String>,
    summary: Summary,
}

/// A summary of all pairs that can be compared.
#[derive(Serialize, Default)]
struct Summary {
    compared: usize,
    equal: usize,
    max: u8,
    /// The mean over all images, not weighted by size.
    mean: f64,
    /// `None` if all images are equal.
    lowest_psnr_db: Option<f64>,
    lowest_ssim: Option<f64>,
}

/// Compares the images of two folders: prints a row for each pair, and a summary.
///
/// Errors when a folder cannot be read, there is no pair, a pair cannot be compared, or a PSNR is below `--min-psnr`.
pub fn compare_folders(args: &Compare, [first, second]: [&PathBuf; 2]) -> Result<()> {
    check_diff(args)?;
    let (a, b) = (images_of(first)?, images_of(second)?);
    let names: Vec<_> = a.intersection(&b).collect();
    if names.is_empty() {
        return Err(Error::new(format!("it has no image with the same name as one in `{}`", second.display()))
            .at_path(first)
            .hint("name two folders whose images have the same file names"));
    }
    let text = |name: &OsString| name.to_string_lossy().into_owned();
    let pair = |name: &OsString| Pair::new(text(name), &first.join(name), &second.join(name));
    let pairs: Vec<_> = names.into_iter().map(pair).collect();
    let report = Report {
        summary: Summary::new(&pairs),
        only_in_a: a.difference(&b).map(text).collect(),
        only_in_b: b.difference(&a).map(text).collect(),
        pairs,
    };
    report.print(args)?;
    if !args.json {
        for (folder, names) in [(first, &report.only_in_a), (second, &report.only_in_b)] {
            if !names.is_empty() {
                say(&shown(&format!("note: only in `{}`: {}", folder.display(), names.join(", "))));
            }
        }
    }
    report.check(args.min_psnr)
}

/// Compares the first image with each of the others: prints a row for each pair, and a summary.
///
/// Errors as [`compare_folders`].
pub fn compare_images(args: &Compare, files: &[PathBuf]) -> Result<()> {
    check_diff(args)?;
    let Some((first, others)) = files.split_first() else { return Ok(()) };
    let pair = |other: &PathBuf| Pair::new(other.display().to_string(), first, other);
    let pairs: Vec<_> = others.iter().map(pair).collect();
    let report = Report { summary: Summary::new(&pairs), only_in_a: Vec::new(), only_in_b: Vec::new(), pairs };
    report.print(args)?;
    report.check(args.min_psnr)
}

fn check_diff(args: &Compare) -> Result<()> {
    match args.diff {
        None => Ok(()),
        Some(_) => Err(Error::usage("a difference image requires exactly two images")
            .at("--diff")
            .hint("leave it out, or name two images")),
    }
}

/// Returns the file names of the images in a folder.
fn images_of(folder: &Path) -> Result<BTreeSet<OsString>> {
    let images = images_in_folder(folder, None)?;
    Ok(images.iter().filter_map(|image| image.file_name()).map(OsString::from).collect())
}

impl Pair {
    fn new(name: String, a: &Path, b: &Path) -> Self {
        let measured = read(a).and_then(|a| Measured::compare(&a, &read(b)?));
        let error = measured.as_ref().err().map(|e| e.what().to_string());
        Self { name, error, measured: measured.ok() }
    }
}

impl Summary {
    fn new(pairs: &[Pair]) -> Self {
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
    fn print(&self, args: &Compare) -> Result<()> {
        if args.json { print_object(self) } else { print(self.lines().join("\n").as_bytes()) }
    }

    /// Formats a table of the pairs, with the summary.
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

    /// Errors when a pair cannot be compared, or its PSNR is below the limit.
    fn check(&self, bound: Option<f64>) -> Result<()> {
        let count = self.pairs.len();
        if let Some((name, error)) = self.pairs.iter().find_map(|pair| Some((&pair.name, pair.error.as_ref()?))) {
            let failed = count - self.summary.compared;
            return Err(Error::new(format!("{failed} of {count} pairs cannot be compared; the first: {error}"))
                .at(name.clone())
                .hint("compare readable images of the same size"));
        }
        let Some(bound) = bound else { return Ok(()) };
        let apart = || self.pairs.iter().filter_map(|pair| Some((&pair.name, pair.measured?.psnr)));
        let worst = apart().filter(|(_, psnr)| *psnr < bound).min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((name, psnr)) = worst else { return Ok(()) };
        let failed = apart().filter(|(_, psnr)| *psnr < bound).count();
        Err(Error::new(format!("{failed} of {count} pairs have a PSNR below {bound} dB; `{name}` has {psnr:.2} dB")))
    }
}
