//! Flags of `flux strip` and `flux verify`.

use std::path::PathBuf;

use clap::{Args, Parser};
use flux::error::Field;
use flux::{Error, Result};

use super::values::path;
use super::{Again, DeviceArgs, ModelArgs};

/// `flux strip`
#[derive(Args)]
pub struct Strip {
    /// Images: PNG, JPEG or WebP
    #[arg(value_name = "IMAGE", required = true, value_parser = path())]
    pub images: Vec<PathBuf>,
    /// Output file [default: each image is replaced]
    #[arg(short, long, value_name = "FILE", value_parser = path())]
    pub output: Option<PathBuf>,
    /// Also remove the AI mark and all other metadata
    ///
    /// Only the colour profile and the orientation stay.
    #[arg(long)]
    pub all: bool,
    /// Print only errors
    #[arg(short, long)]
    pub quiet: bool,
}

impl Strip {
    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        match self.output {
            Some(_) if self.images.len() > 1 => Err(Error::usage("one output was passed for several images")
                .at("--output")
                .hint("leave it out to replace each image, or strip the images one by one")),
            _ => Ok(()),
        }
    }
}

/// `flux verify`
#[derive(Args)]
pub struct Verify {
    /// Images: PNG, JPEG or WebP
    #[arg(value_name = "IMAGE", required = true, value_parser = path())]
    pub images: Vec<PathBuf>,
    /// Also generate each image again, and compare the pixels
    ///
    /// A model, file or machine that differs from the original is an error, as for `flux again` with --exact.
    #[arg(long)]
    pub remake: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// Certificates of trusted authorities for C2PA manifests, in PEM
    ///
    /// This needs a program that was built with the feature `c2pa`. Without certificates, a manifest whose signature
    /// holds is untrusted.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub trust: Option<PathBuf>,
    /// Print one JSON object per image
    #[arg(long)]
    pub json: bool,
}

impl Verify {
    /// Returns the certificates of trusted authorities, in PEM.
    ///
    /// Errors if the file cannot be read, or if the program was built without the feature `c2pa`.
    pub fn trusted(&self) -> Result<Option<String>> {
        match &self.trust {
            None => Ok(None),
            #[cfg(feature = "c2pa")]
            Some(path) => std::fs::read_to_string(path)
                .map(Some)
                .map_err(|e| Error::new(format!("cannot read the file: {e}")).at_path(path).for_field(Field::Trust)),
            #[cfg(not(feature = "c2pa"))]
            Some(_) => Err(super::sign::without_c2pa(Field::Trust)),
        }
    }

    /// Returns the flags of `flux again --exact` for the same images, without a progress display.
    pub fn into_again(self) -> Again {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            again: Again,
        }
        let Self { images, model, on, .. } = self;
        let mut again = Flags::parse_from(["flux", "--quiet", "--exact", "IMAGE"]).again;
        (again.images, again.draw.model, again.draw.on) = (images, model, on);
        again
    }
}
