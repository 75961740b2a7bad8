//! Flags for the output of images.

use std::path::{Path, PathBuf};

use clap::Args;
use flux::output::{Encoding, ImageFormat};
use flux::{Error, Result};

use super::settings::settings;
use super::values::{image_format, whole};
use super::{ConsoleArgs, OUTPUT, ShowArgs};

/// Flags for the output of images.
#[derive(Args)]
pub struct OutputArgs {
    /// Output file [default: flux-SEED.png]
    ///
    /// The extension is .png, .jpg, .jpeg or .webp. The name may have fields: {seed}, {prompt:40}, {model}, {date},
    /// %03d. For a folder, the file is flux-SEED.png in it. `-` writes a PNG to standard output.
    #[arg(help_heading = OUTPUT, short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// File format [default: by extension, else png]
    ///
    /// The default name gets this extension. A name with the extension of another format is an error.
    #[arg(help_heading = OUTPUT, long, value_name = "FORMAT", value_parser = image_format(), hide_short_help = true)]
    format: Option<ImageFormat>,
    /// JPEG quality, from 1 to 100 [default: 95]
    #[arg(help_heading = OUTPUT, long, value_name = "N", hide_short_help = true, allow_negative_numbers = true)]
    #[arg(value_parser = whole(1..=100_u8))]
    quality: Option<u8>,
    /// Never overwrite an existing file
    ///
    /// If an output file exists, the command fails before any work.
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub no_clobber: bool,
    /// Overwrite an image or tensors that are also inputs of this run
    ///
    /// They are overwritten after they have been read.
    #[arg(help_heading = OUTPUT, long, hide_short_help = true, conflicts_with = "no_clobber")]
    pub force: bool,
    /// Print the path of the image to stdout
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub print_path: bool,
}

impl OutputArgs {
    /// Creates arguments for a file or name template that must not overwrite a file.
    pub fn new_file(path: PathBuf) -> Self {
        Self { output: Some(path), format: None, quality: None, no_clobber: true, force: false, print_path: false }
    }

    /// Sets the quality of a JPEG.
    pub fn with_quality(self, quality: Option<u8>) -> Self {
        Self { quality, ..self }
    }

    /// Allows overwriting a file.
    pub fn with_force(self) -> Self {
        Self { no_clobber: false, force: true, ..self }
    }

    /// Returns the output path from the flag, otherwise from the settings.
    pub fn path(&self) -> Option<PathBuf> {
        self.output.clone().or_else(|| settings().output())
    }

    /// Returns the encoding that the flags request.
    pub fn encoding(&self) -> Encoding {
        Encoding { format: self.format, quality: self.quality }
    }

    /// Returns `true` if the image is written to standard output.
    pub fn to_stdout(&self) -> bool {
        self.output.as_deref() == Some(Path::new("-"))
    }

    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self, count: u64, console: &ConsoleArgs, show: &ShowArgs) -> Result<()> {
        let other = console.on_stdout();
        if let Some(other) = other.filter(|_| self.print_path) {
            return Err(Error::usage(format!("`--print-path` and `{other}` both write to standard output"))
                .hint("leave out `--print-path`: the JSON names the file under `output`"));
        }
        let shows = show.protocol().map(|_| if show.show_steps { "--show-steps" } else { "--show" });
        if let (Some(shows), Some(other)) = (shows, other.or(self.print_path.then_some("--print-path"))) {
            return Err(Error::usage(format!("`{shows}` and `{other}` both write to standard output"))
                .hint("leave one of them out"));
        }
        if !self.to_stdout() {
            return Ok(());
        }
        let flag = other.or(shows).or(self.print_path.then_some("--print-path")).or((count > 1).then_some("--count"));
        match flag {
            Some(flag) => Err(Error::usage(format!("`{flag}` cannot be used with an image on standard output"))
                .at("--output")
                .hint(format!("leave out `{flag}`, or name a file with `-o`"))),
            None => Ok(()),
        }
    }
}
