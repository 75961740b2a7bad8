//! Which images to show in the terminal, and how.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use flux::engine::{Decodes, PreviewDecoder};

use super::OUTPUT;
use super::settings::settings;
use super::values::{path, whole};

/// `--protocol`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProtocolChoice {
    /// What the terminal says that it knows.
    Auto,
    /// PNG by kitty's graphics protocol.
    Kitty,
    /// PNG by iTerm2's inline images.
    Iterm2,
    /// 252 colours.
    Sixel,
    /// Two pixels a character.
    Blocks,
}

/// `flux show`
#[derive(Args)]
pub struct Show {
    /// The images (PNG, JPEG, WebP)
    #[arg(value_name = "FILE", required = true, value_parser = path())]
    pub files: Vec<PathBuf>,
    /// How the images are sent; one that is named is taken to be known, also where standard output is no terminal
    #[arg(long, value_name = "NAME", value_enum, default_value_t = ProtocolChoice::Auto)]
    pub protocol: ProtocolChoice,
    /// Columns of an image [default: its own size, and no more than the terminal has]
    #[arg(long, value_name = "COLUMNS", value_parser = whole(1..=1000usize))]
    pub width: Option<usize>,
}

/// Pictures in the terminal while images are made.
#[derive(Args, Clone, Default)]
pub struct ShowArgs {
    /// Show the images in the terminal, too; a protocol that is named is taken to be known
    #[arg(help_heading = OUTPUT, long, value_name = "PROTOCOL", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "auto", hide_short_help = true)]
    pub show: Option<ProtocolChoice>,
    /// Show also what each step leads to
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub show_steps: bool,
    /// With --show-steps: a file of TAEF2, the tiny autoencoder of FLUX.2, that draws what steps lead to [default: a
    /// linear map does]
    #[arg(help_heading = OUTPUT, long, value_name = "FILE", value_parser = path(), requires = "show_steps")]
    #[arg(hide_short_help = true)]
    preview_decoder: Option<PathBuf>,
}

/// The decoder of a flag, else what is set, which may be for another model.
pub fn preview_decoder(flag: Option<&Path>) -> Option<PreviewDecoder> {
    let of_flag = flag.map(|file| PreviewDecoder { file: file.to_path_buf(), decodes: Decodes::Steps });
    of_flag.or_else(|| {
        let file = settings().preview_decoder()?;
        Some(PreviewDecoder { file, decodes: Decodes::StepsIfItFits })
    })
}

impl ShowArgs {
    /// How images are shown, where they are: --show-steps alone shows them, too.
    pub fn protocol(&self) -> Option<ProtocolChoice> {
        self.show.or(self.show_steps.then_some(ProtocolChoice::Auto))
    }

    /// The file of the decoder that draws steps, where they are shown: what the flag says, else what is set.
    pub fn preview_decoder(&self) -> Option<PreviewDecoder> {
        self.show_steps.then(|| preview_decoder(self.preview_decoder.as_deref())).flatten()
    }
}
