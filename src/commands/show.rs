//! `flux show`: images in the terminal.

use std::io::{self, IsTerminal};

use flux::error::escaped;
use flux::input::read;
use flux::{Error, Result};

use super::print;
use super::signals::Signals;
use crate::cli::{ProtocolChoice, Show};
use crate::terminal::{Protocol, Terminal};

/// Shows the images, one below the other, several of them with their names.
///
/// Errors when standard output is no terminal that shows pictures, unless a protocol is named, and when an image cannot
/// be read.
pub fn run(args: &Show, signals: &Signals) -> Result<()> {
    // The terminal is set back before a signal ends the program.
    signals.listen()?;
    let cancel = signals.cancel_flag();
    let mut terminal = terminal(args.protocol)?.with_columns(args.width);
    for file in &args.files {
        cancel.check()?;
        let image = read(file)?;
        if args.files.len() > 1 {
            print(escaped(&file.display().to_string()).as_bytes())?;
        }
        terminal.show(&image)?;
    }
    cancel.check()
}

/// The terminal that standard output is, by the protocol of its choice or by the one that is named. Signals must be
/// listened to before this.
///
/// Errors when it has the choice, and is none that shows pictures.
pub(super) fn terminal(protocol: ProtocolChoice) -> Result<Terminal> {
    let protocol = match protocol {
        ProtocolChoice::Auto => return Terminal::detect().ok_or_else(no_terminal),
        ProtocolChoice::Kitty => Protocol::Kitty,
        ProtocolChoice::Iterm2 => Protocol::Iterm2,
        ProtocolChoice::Sixel => Protocol::Sixel,
        ProtocolChoice::Blocks => Protocol::HalfBlocks,
    };
    Ok(Terminal::of(protocol))
}

/// The error of a standard output that shows no pictures.
fn no_terminal() -> Error {
    let what = if io::stdout().is_terminal() {
        "the terminal is to show text alone: `TERM` is `dumb` or not set, or `NO_COLOR` is set"
    } else {
        "standard output is no terminal, which would show the images"
    };
    Error::usage(what).hint("name how the images are to be sent, as with `--protocol blocks`")
}
