//! Flags of `flux upscale`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use flux::engine::EnlargedSize;
use flux::upscaler::Tiles;
use flux::{Error, Result};

use super::values::{Size, path, whole};
use super::{DeviceArgs, INFORMATION, OUTPUT};

/// The smallest and the largest tile.
const TILES: std::ops::RangeInclusive<usize> = 16..=65536;

/// `--upscaler`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpscalerChoice {
    Lanczos,
    File(PathBuf),
}

impl UpscalerChoice {
    /// Returns the file; `None` for the filter.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Lanczos => None,
            Self::File(file) => Some(file),
        }
    }
}

impl FromStr for UpscalerChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "" => Err("expected a file, or lanczos".to_string()),
            "lanczos" => Ok(Self::Lanczos),
            file => Ok(Self::File(file.into())),
        }
    }
}

/// `flux upscale`
#[derive(Args)]
pub struct Upscale {
    /// Images, or folders of images: PNG, JPEG or WebP
    #[arg(value_name = "IMAGE", required = true, value_parser = path())]
    pub images: Vec<PathBuf>,
    /// Output file, or folder for several [default: NAME-upscaled]
    ///
    /// In a folder, an image has the name of its input. By default, images are written to the current folder.
    #[arg(help_heading = OUTPUT, short, long, value_name = "FILE", value_parser = path())]
    pub output: Option<PathBuf>,
    /// Upscaler: a .safetensors or .pth file, or lanczos
    #[arg(long, value_name = "FILE", default_value = "lanczos", alias = "model")]
    pub upscaler: UpscalerChoice,
    /// Factor of width and height [default: the upscaler's]
    #[arg(long, value_name = "FACTOR", value_parser = factor, alias = "scale")]
    pub by: Option<f64>,
    /// Size of the result, as in 3840x2160
    #[arg(long, value_name = "SIZE", conflicts_with = "by")]
    pub to: Option<Size>,
    /// Side of tiles, in pixels of the image [default: by memory]
    ///
    /// An image that does not fit into memory is enlarged in tiles. 0 never uses tiles. Pixels near the edges of tiles
    /// differ slightly from those of the whole image.
    #[arg(long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = whole(0..=*TILES.end()))]
    tile: Option<usize>,
    /// Pixels that neighbouring tiles share
    #[arg(long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = whole(0..=*TILES.end()))]
    #[arg(default_value = "32", requires = "tile")]
    tile_overlap: usize,
    /// JPEG quality, from 1 to 100 [default: 95]
    #[arg(help_heading = OUTPUT, long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=100_u8))]
    pub quality: Option<u8>,
    /// Never overwrite an existing file
    #[arg(help_heading = OUTPUT, long)]
    pub no_clobber: bool,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// Enlarge on a running `flux serve`, as in http://127.0.0.1:7860
    ///
    /// --upscaler is the name of one of the server's upscalers, or lanczos.
    #[cfg(feature = "server")]
    #[arg(help_heading = super::DEVICE, long, value_name = "URL", hide_short_help = true, conflicts_with = "tile")]
    server: Option<String>,
    /// Print one JSON object per image
    #[arg(help_heading = INFORMATION, long)]
    pub json: bool,
    /// Print more details, such as the device
    #[arg(help_heading = INFORMATION, short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print only errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
}

fn factor(text: &str) -> std::result::Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| *factor > 0.0 && *factor <= 64.0);
    factor.ok_or_else(|| "expected a factor above 0 and up to 64, such as 2 or 1.5".to_string())
}

impl Upscale {
    /// Returns the size of the results.
    ///
    /// Errors if no flag determines it.
    pub fn size(&self) -> Result<EnlargedSize> {
        match (self.by, self.to, &self.upscaler) {
            (Some(by), ..) => Ok(EnlargedSize::By(by)),
            (_, Some(size), _) => Ok(EnlargedSize::To([size.width, size.height])),
            (None, None, UpscalerChoice::File(_)) => Ok(EnlargedSize::Own),
            (None, None, UpscalerChoice::Lanczos) => Err(Error::usage("no upscaler and no size was passed")
                .at("--by")
                .hint("pass a factor as `--by 2`, a size as `--to 2048x2048`, or a file with `--upscaler`")),
        }
    }

    /// Returns the address of the server that enlarges the images, if any.
    ///
    /// Errors if it is invalid.
    #[cfg(feature = "server")]
    pub fn server(&self) -> Result<Option<&str>> {
        self.server.as_deref().map(|url| super::values::check_server(url, "--server").map(|()| url)).transpose()
    }

    /// Returns the choice of tiles.
    ///
    /// Errors if tiles are too small, or overlap too much.
    pub fn tiles(&self) -> Result<Tiles> {
        let (side, overlap) = match self.tile {
            None => return Ok(Tiles::Auto),
            Some(0) => return Ok(Tiles::Whole),
            Some(side) => (side, self.tile_overlap),
        };
        if !TILES.contains(&side) {
            return Err(Error::usage(format!("a tile has {side} pixels, expected at least {}", TILES.start()))
                .at("--tile")
                .hint("pass a larger tile, or 0 for none"));
        }
        if overlap > side / 2 {
            return Err(Error::usage(format!("tiles of {side} pixels cannot share {overlap}"))
                .at("--tile-overlap")
                .hint("pass at most half of `--tile`"));
        }
        Ok(Tiles::Of { side, overlap })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parsed(words: &[&str]) -> Option<Box<Upscale>> {
        let line = [&["flux", "upscale", "a.png"], words].concat();
        match Cli::try_parse_from(line).ok()?.command {
            Some(Command::Upscale(args)) => Some(args),
            _ => None,
        }
    }

    #[test]
    fn a_size_and_tiles_follow_from_the_flags() {
        let file = parsed(&["--upscaler", "x.pth"]).unwrap();
        assert_eq!((file.size().unwrap(), file.tiles().unwrap()), (EnlargedSize::Own, Tiles::Auto));
        assert!(parsed(&[]).unwrap().size().is_err());
        assert_eq!(parsed(&["--scale", "1.5"]).unwrap().size().unwrap(), EnlargedSize::By(1.5));
        assert_eq!(parsed(&["--to", "40x30"]).unwrap().size().unwrap(), EnlargedSize::To([40, 30]));
        let tiles = |words: &[&str]| parsed(words).unwrap().tiles();
        assert_eq!(tiles(&["--tile", "64"]).unwrap(), Tiles::Of { side: 64, overlap: 32 });
        assert_eq!(tiles(&["--tile", "0"]).unwrap(), Tiles::Whole);
        assert!(tiles(&["--tile", "8"]).is_err() && tiles(&["--tile", "64", "--tile-overlap", "33"]).is_err());
        for wrong in [&["--by", "0"][..], &["--by", "nan"], &["--by", "2", "--to", "8x8"], &["--tile-overlap", "8"]] {
            assert!(parsed(wrong).is_none(), "{wrong:?}");
        }
    }
}
