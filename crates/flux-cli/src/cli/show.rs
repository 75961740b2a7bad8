//! Flags of `flux show`, and of previews in the terminal.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use flux::engine::{Decodes, PreviewDecoder};

use super::OUTPUT;
use super::settings::settings;
use super::values::{path, whole};

/// `--protocol`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProtocolChoice {
    /// The protocol that the terminal reports.
    Auto,
    /// PNG in kitty's graphics protocol.
    Kitty,
    /// PNG as inline images of iTerm2.
    Iterm2,
    /// Sixels with 252 colours.
    Sixel,
    /// Two pixels per character.
    Blocks,
}

/// `flux show`
#[derive(Args)]
pub struct Show {
    /// Images (PNG, JPEG, WebP) or folders of images
    #[arg(value_name = "FILE", required = true, value_parser = path())]
    pub files: Vec<PathBuf>,
    /// Terminal graphics protocol
    ///
    /// A named protocol is used without detection, even if standard output is not a terminal.
    #[arg(long, value_name = "NAME", value_enum, default_value_t = ProtocolChoice::Auto)]
    pub protocol: ProtocolChoice,
    /// Columns of an image
    ///
    /// [default: its own size; for blocks, the width of the terminal]
    #[arg(long, value_name = "COLUMNS", value_parser = whole(1..=1000usize))]
    pub width: Option<usize>,
}

/// Flags for previews in the terminal.
#[derive(Args, Clone, Default)]
pub struct ShowArgs {
    /// Show the images in the terminal
    ///
    /// A named protocol is used without detection.
    #[arg(help_heading = OUTPUT, long, value_name = "PROTOCOL", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "auto", hide_short_help = true)]
    pub show: Option<ProtocolChoice>,
    /// Also show a preview of each step
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub show_steps: bool,
    /// With --show-steps: TAEF2 file that decodes previews
    ///
    /// TAEF2 is the tiny autoencoder of FLUX.2 [default: a linear map].
    #[arg(help_heading = OUTPUT, long, value_name = "FILE", value_parser = path(), requires = "show_steps")]
    #[arg(hide_short_help = true)]
    preview_decoder: Option<PathBuf>,
}

/// Returns the preview decoder of a flag, otherwise of the settings. A decoder from the settings may be for another
/// model.
pub fn preview_decoder(flag: Option<&Path>) -> Option<PreviewDecoder> {
    let of_flag = flag.map(|file| PreviewDecoder { file: file.to_path_buf(), decodes: Decodes::Steps });
    of_flag.or_else(|| {
        let file = settings().preview_decoder()?;
        Some(PreviewDecoder { file, decodes: Decodes::StepsIfItFits })
    })
}

impl ShowArgs {
    /// Returns the protocol if images are shown. `--show-steps` implies `--show`.
    pub fn protocol(&self) -> Option<ProtocolChoice> {
        self.show.or(self.show_steps.then_some(ProtocolChoice::Auto))
    }

    /// Returns the preview decoder if steps are shown: from the flag, otherwise from the settings.
    pub fn preview_decoder(&self) -> Option<PreviewDecoder> {
        self.show_steps.then(|| preview_decoder(self.preview_decoder.as_deref())).flatten()
    }
}
