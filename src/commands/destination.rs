//! Where an image goes: a file, or standard output.

use std::io::{self, IsTerminal};
use std::path::Path;

use flux::engine::{ImageRecipe, JobImage, Recipe};
use flux::files::ModelPaths;
use flux::output::{ImageFormat, Target};
use flux::{Error, Result};

use super::print_bytes;
use crate::cli::Generate;

/// Where one image goes.
pub enum Destination {
    File(Target),
    /// A PNG.
    Stdout,
}

impl Destination {
    /// One for each image that `args` asks for, found to be writable. The first image has the seed `seed`.
    ///
    /// Errors when a file cannot be written, or standard output is a terminal, which would show bytes.
    pub fn all(args: &Generate, seed: u64) -> Result<Vec<Self>> {
        if args.to_stdout() {
            if io::stdout().is_terminal() {
                return Err(Error::usage("standard output is a terminal, which shows no image")
                    .at("--output")
                    .hint("send it to a file or a program, as with `-o - > image.png`"));
            }
            return Ok(vec![Self::Stdout]);
        }
        let file = |path: &Path| {
            let target = Target::new(path)?;
            Ok(Self::File(if args.no_clobber { target.without_overwriting()? } else { target }))
        };
        args.outputs(seed)?.iter().map(|path| file(path)).collect()
    }

    /// Its file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(target) => Some(target.path()),
            Self::Stdout => None,
        }
    }

    /// Errors when the file has no room for the recipe.
    pub fn check_room(&self, recipe: &Recipe, paths: &ModelPaths) -> Result<()> {
        match self {
            Self::File(target) => ImageRecipe::check_room(recipe, paths, target.format()),
            Self::Stdout => Ok(()),
        }
    }

    /// What to call it.
    pub fn name(&self) -> String {
        self.path().map_or_else(|| "standard output".to_string(), |path| path.display().to_string())
    }

    /// Writes the image, as [`JobImage::write`] does.
    pub fn write(&self, image: &JobImage) -> Result<()> {
        match self {
            Self::File(target) => image.write(target),
            Self::Stdout => print_bytes(&image.encode(ImageFormat::Png)?),
        }
    }
}
