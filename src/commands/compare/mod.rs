//! `flux compare`: how far two images are apart, or the images of two folders.

mod folders;
mod measured;

use flux::compare::amplified;
use flux::error::{ErrorKind, Field, named, shown};
use flux::input::read;
use flux::metadata::Metadata;
use flux::output::Target;
use flux::{Error, Result};
use serde::Serialize;

use self::measured::Measured;
use super::json::print_object;
use super::{claims, print};
use crate::cli::{Compare, flag};
use crate::progress::say;

/// Prints the differences.
///
/// Errors when an image cannot be read, their sizes differ, they are further apart than `--min-psnr`, or the image of
/// the differences cannot be written.
pub fn run(args: &Compare) -> Result<()> {
    match (args.a.is_dir(), args.b.is_dir()) {
        (true, true) => folders::run(args),
        (false, false) => of_two_images(args),
        (is_folder, _) => {
            let (folder, image) = if is_folder { (&args.a, &args.b) } else { (&args.b, &args.a) };
            Err(Error::usage(format!("it is a folder, and `{}` is not", image.display()))
                .at_path(folder)
                .hint("name two images, or two folders"))
        }
    }
}

/// Two images as JSON.
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

fn of_two_images(args: &Compare) -> Result<()> {
    let target = args.diff.as_deref().map(Target::new).transpose().map_err(|e| of_diff(&e))?;
    claims::of_comparison(args)?;
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let measured = Measured::of(&a, &b)?;
    let mut diff = None;
    if let Some(target) = target {
        let made = amplified(&a, &b);
        target.write(&made.image, &Metadata::default()).map_err(|e| of_diff(&e))?;
        let file = target.path().display().to_string();
        say(&format!("wrote {}: the differences, {} times as large", shown(&file), made.factor));
        diff = Some(Diff { file, factor: made.factor });
    }
    if args.json {
        print_object(&Report { measured, diff })?;
    } else {
        print(measured.line().as_bytes())?;
    }
    match args.min_psnr {
        Some(bound) if measured.psnr < bound => {
            Err(Error::new(format!("the images are {:.2} dB apart, expected at least {bound} dB", measured.psnr))
                .at(args.b.display().to_string()))
        }
        _ => Ok(()),
    }
}

/// An error of an image that is written, which is not that of `--output` here.
fn of_diff(error: &Error) -> Error {
    let what = named(error.what(), |field, form| if field == Field::Output { "--diff" } else { flag(field, form) });
    let made = if error.kind() == ErrorKind::Usage { Error::usage(what) } else { Error::new(what) };
    made.at("--diff").hint("name a file that you may write and that ends with .png, .jpg, .jpeg or .webp")
}
