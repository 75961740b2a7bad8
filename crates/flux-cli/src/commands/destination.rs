//! The destination of an image: a file or standard output.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use flux::engine::{Image, ImageRecipe, Inputs, Recipe};
use flux::files::ModelPaths;
use flux::output::{Encoding, ImageFormat, Target};
use flux::{Error, Result};

use super::outputs::Outputs;
use super::print_bytes;

/// The destination of one image.
pub enum Destination {
    File(Target),
    Stdout(ImageFormat, Option<u8>),
}

impl Destination {
    /// Returns a destination for each image, checked to be writable. Without files, this is standard output.
    ///
    /// Errors when a file cannot be written or its name contradicts its format, or if standard output is a terminal.
    pub fn all(outputs: &Outputs) -> Result<Vec<Self>> {
        if outputs.images.is_empty() {
            if io::stdout().is_terminal() {
                return Err(Error::usage("standard output is a terminal, which cannot show an image")
                    .at("--output")
                    .hint("redirect it to a file or a program, as with `-o - > image.png`"));
            }
            let Encoding { format, quality } = outputs.encoding;
            let format = format.or(quality.map(|_| ImageFormat::Jpeg));
            let format = Encoding { format, quality }.format(None)?;
            return Ok(vec![Self::Stdout(format, quality)]);
        }
        let file = |path: &PathBuf| {
            let target = Target::with_encoding(path, outputs.encoding)?;
            Ok(Self::File(if outputs.no_clobber { target.without_overwriting()? } else { target }))
        };
        outputs.images.iter().map(file).collect()
    }

    /// Returns the path, if the destination is a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(target) => Some(target.path()),
            Self::Stdout(..) => None,
        }
    }

    /// Errors when the file format cannot hold the image.
    pub fn check_format(&self, recipe: &Recipe) -> Result<()> {
        recipe.check_format(self.format())
    }

    /// Errors when the file format has no room for the recipe.
    pub fn check_room(&self, recipe: &Recipe, paths: &ModelPaths, inputs: &Inputs) -> Result<()> {
        ImageRecipe::check_room(recipe, paths, inputs, self.format())
    }

    fn format(&self) -> ImageFormat {
        match self {
            Self::File(target) => target.format(),
            Self::Stdout(format, _) => *format,
        }
    }

    /// Returns the name for messages.
    pub fn name(&self) -> String {
        self.path().map_or_else(|| "standard output".to_string(), |path| path.display().to_string())
    }

    /// Returns the format and the requested quality.
    #[cfg(feature = "server")]
    pub fn encoding(&self) -> (ImageFormat, Option<u8>) {
        match self {
            Self::File(target) => (target.format(), target.quality()),
            Self::Stdout(format, quality) => (*format, *quality),
        }
    }

    /// Writes the encoded bytes of an image.
    ///
    /// Errors as [`Target::write_bytes`].
    #[cfg(feature = "server")]
    pub fn write_bytes(&self, file: &[u8]) -> Result<()> {
        match self {
            Self::File(target) => target.write_bytes(file),
            Self::Stdout(..) => print_bytes(file),
        }
    }

    /// Encodes and writes the image, as [`Image::write`].
    pub fn write(&self, image: &Image) -> Result<()> {
        match self {
            Self::File(target) => image.write(target),
            Self::Stdout(_, Some(quality)) => print_bytes(&image.encode_jpeg(*quality)?),
            Self::Stdout(format, None) => print_bytes(&image.encode(*format)?),
        }
    }
}
