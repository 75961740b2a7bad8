//! `flux compare`: differences between images, or between the images of two folders. It reads and prints;
//! [`flux::compare`] measures. Start reading at [`run`].

mod folders;
mod measured;

use std::path::PathBuf;

use flux::compare::amplified;
use flux::error::{ErrorKind, Field, named, shown};
use flux::input::read;
use flux::metadata::Metadata;
use flux::output::Target;
use flux::{Error, Result};
use serde::Serialize;

use self::measured::Measured;
use super::json::print_object;
use super::{claims, pictures, print};
use crate::cli::{Compare, flag};
use flux_runtime::progress::say;

/// Prints the differences.
///
/// Errors when an image cannot be read, sizes differ, PSNR is below `--min-psnr`, or the difference image cannot be
/// written.
pub fn run(args: &Compare) -> Result<()> {
    if let [a, b] = args.files.as_slice()
        && a.is_dir()
        && b.is_dir()
    {
        return folders::compare_folders(args, [a, b]);
    }
    match pictures::expanded(&args.files, args.diff.as_deref())?.as_slice() {
        [] | [_] => {
            Err(Error::usage("there is only one image, nothing to compare it with")
                .hint("name two images, or two folders"))
        }
        [a, b] => compare_two_images(args, [a, b]),
        files => folders::compare_images(args, files),
    }
}

/// The JSON report of two images.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    measured: Measured,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<Diff>,
}

#[derive(Serialize)]
struct Diff {
    file: String,
    factor: u8,
}

fn compare_two_images(args: &Compare, [a, b]: [&PathBuf; 2]) -> Result<()> {
    let place = b.display().to_string();
    let target = args.diff.as_deref().map(Target::new).transpose().map_err(|e| diff_error(&e))?;
    claims::check_comparison(args)?;
    let (a, b) = (read(a)?, read(b)?);
    let measured = Measured::compare(&a, &b)?;
    let mut diff = None;
    if let Some(target) = target {
        let made = amplified(&a, &b);
        target.write(&made.image, &Metadata::default()).map_err(|e| diff_error(&e))?;
        let file = target.path().display().to_string();
        say(&format!("wrote {}: the differences, amplified {} times", shown(&file), made.factor));
        diff = Some(Diff { file, factor: made.factor });
    }
    if args.json {
        print_object(&Report { measured, diff })?;
    } else {
        print(measured.line().as_bytes())?;
    }
    match args.min_psnr {
        Some(bound) if measured.psnr < bound => {
            Err(Error::new(format!("the PSNR of the images is {:.2} dB, expected at least {bound} dB", measured.psnr))
                .at(place))
        }
        _ => Ok(()),
    }
}

/// Converts an error about writing `--output` into one about `--diff`.
fn diff_error(error: &Error) -> Error {
    let what = named(error.what(), |field, form| if field == Field::Output { "--diff" } else { flag(field, form) });
    let made = if error.kind() == ErrorKind::Usage { Error::usage(what) } else { Error::new(what) };
    made.at("--diff").hint("name a writable file that ends with .png, .jpg, .jpeg or .webp")
}
