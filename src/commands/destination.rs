//! Where an image goes: a file, or standard output.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use flux::engine::{ImageRecipe, Inputs, JobImage, Recipe};
use flux::files::ModelPaths;
use flux::output::{ImageFormat, Target};
use flux::{Error, Result};

use super::outputs::Outputs;
use super::print_bytes;

/// Where one image goes.
pub enum Destination {
    File(Target),
    /// A PNG.
    Stdout,
}

impl Destination {
    /// One for each image, found to be writable; standard output where there is no file.
    ///
    /// Errors when a file cannot be written, or standard output is a terminal, which would show bytes.
    pub fn all(outputs: &Outputs) -> Result<Vec<Self>> {
        if outputs.images.is_empty() {
            if io::stdout().is_terminal() {
                return Err(Error::usage("standard output is a terminal, which shows no image")
                    .at("--output")
                    .hint("send it to a file or a program, as with `-o - > image.png`"));
            }
            return Ok(vec![Self::Stdout]);
        }
        let file = |path: &PathBuf| {
            let target = Target::new(path)?;
            Ok(Self::File(if outputs.no_clobber { target.without_overwriting()? } else { target }))
        };
        outputs.images.iter().map(file).collect()
    }

    /// Its file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(target) => Some(target.path()),
            Self::Stdout => None,
        }
    }

    /// Errors when the file has no room for the recipe.
    pub fn check_room(&self, recipe: &Recipe, paths: &ModelPaths, inputs: &Inputs) -> Result<()> {
        match self {
            Self::File(target) => ImageRecipe::check_room(recipe, paths, inputs, target.format()),
            Self::Stdout => Ok(()),
        }
    }

    /// What to call it.
    pub fn name(&self) -> String {
        self.path().map_or_else(|| "standard output".to_string(), |path| path.display().to_string())
    }

    /// The format that its name asks for.
    #[cfg(feature = "server")]
    pub fn format(&self) -> ImageFormat {
        match self {
            Self::File(target) => target.format(),
            Self::Stdout => ImageFormat::Png,
        }
    }

    /// Writes the bytes of an image's file.
    ///
    /// Errors as [`Target::write_bytes`].
    #[cfg(feature = "server")]
    pub fn write_bytes(&self, file: &[u8]) -> Result<()> {
        match self {
            Self::File(target) => target.write_bytes(file),
            Self::Stdout => print_bytes(file),
        }
    }

    /// Writes the image, as [`JobImage::write`] does.
    pub fn write(&self, image: &JobImage) -> Result<()> {
        match self {
            Self::File(target) => image.write(target),
            Self::Stdout => print_bytes(&image.encode(ImageFormat::Png)?),
        }
    }
}
