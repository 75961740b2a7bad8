//! `flux strip`: removes metadata from image files.

use std::path::Path;

use flux::error::escaped;
use flux::metadata::{Stripped, strip};
use flux::output::{Encoding, ImageFormat, Target};
use flux::{Error, Result, input};

use super::all_or_last;
use crate::cli::Strip;
use flux_runtime::progress::say;

/// Strips each image, and prints what was removed. An image that cannot be stripped leaves no prompt in the others.
pub fn run(args: &Strip) -> Result<()> {
    args.check()?;
    all_or_last(args.images.iter().filter_map(|image| strip_image(args, image).err()).collect())
}

fn strip_image(args: &Strip, image: &Path) -> Result<()> {
    let file = input::read_file(image).map_err(|e| e.at_path(image))?;
    let Stripped { file: stripped, removed } = strip(&file, args.all).map_err(|e| e.at_path(image))?;
    let output = args.output.as_deref().unwrap_or(image);
    if args.output.is_some() || stripped != file {
        let format = ImageFormat::from_magic(&file).ok_or_else(|| Error::new("unknown format").at_path(image))?;
        target(output, format)?.write_bytes(&stripped)?;
    }
    if !args.quiet {
        let removed = if removed.is_empty() { "nothing".to_string() } else { removed.join(", ") };
        say(&escaped(&format!("{}: removed {removed}", output.display())));
    }
    Ok(())
}

/// Returns the target for a file of this format.
///
/// Errors if there is a file of another kind, or if the name has the extension of another format.
fn target(output: &Path, format: ImageFormat) -> Result<Target> {
    if let Some(other) = ImageFormat::from_path(output).ok().filter(|other| *other != format) {
        let what = format!("`{}` has the extension of a {other} file, but the image is a {format}", output.display());
        return Err(Error::usage(what).hint(format!("name another file with `-o NAME.{}`", format.ending())));
    }
    if output.is_file() {
        let existing = input::read_file(output).map_err(|e| e.at_path(output))?;
        if ImageFormat::from_magic(&existing) != Some(format) {
            return Err(Error::usage(format!("`{}` exists, and is not a {format}", output.display()))
                .hint("name another file with `-o`"));
        }
    }
    Target::with_encoding(output, Encoding { format: Some(format), quality: None })
}
