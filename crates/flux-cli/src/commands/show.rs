//! `flux show`: images in the terminal.

use std::io::{self, IsTerminal};

use flux::error::escaped;
use flux::input::read;
use flux::{Error, Result};

use super::signals::Signals;
use super::{pictures, print};
use crate::cli::{ProtocolChoice, Show};
use crate::terminal::{Protocol, Terminal};

/// Shows the images one below the other; several images are shown with their names.
///
/// Errors when standard output is not a terminal that shows pictures, unless a protocol is named, and when an image
/// cannot be read.
pub fn run(args: &Show, signals: &Signals) -> Result<()> {
    // Restores the terminal before a signal ends the program.
    signals.listen()?;
    let cancel = signals.cancel_flag();
    let mut terminal = terminal(args.protocol)?.with_columns(args.width);
    let files = pictures::expanded(&args.files, None)?;
    for file in &files {
        cancel.check()?;
        let image = read(file)?;
        if files.len() > 1 {
            print(escaped(&file.display().to_string()).as_bytes())?;
        }
        terminal.show(&image)?;
    }
    cancel.check()
}

/// Opens the terminal on standard output, with the detected or the named protocol. Signal handlers must be installed
/// before.
///
/// Errors if no protocol is named and the terminal supports no pictures.
pub(super) fn terminal(protocol: ProtocolChoice) -> Result<Terminal> {
    let protocol = match protocol {
        ProtocolChoice::Auto => return Terminal::detect().ok_or_else(no_terminal),
        ProtocolChoice::Kitty => Protocol::Kitty,
        ProtocolChoice::Iterm2 => Protocol::Iterm2,
        ProtocolChoice::Sixel => Protocol::Sixel,
        ProtocolChoice::Blocks => Protocol::HalfBlocks,
    };
    Ok(Terminal::with_protocol(protocol))
}

/// Returns the error for a standard output that shows no pictures.
fn no_terminal() -> Error {
    let what = if io::stdout().is_terminal() {
        "the terminal can show only text: `TERM` is `dumb` or not set, or `NO_COLOR` is set"
    } else {
        "standard output is not a terminal that could show the images"
    };
    Error::usage(what).hint("choose how to send the images, as with `--protocol blocks`")
}
