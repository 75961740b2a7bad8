//! Pictures in the terminal.
//!
//! [`Terminal::detect`] asks the terminal once which protocol it knows, and finds none where it is to show text alone.
//! [`Terminal::show`] draws an image below what is there, and [`Terminal::replace`] draws over the last one.

mod answers;
mod ask;
mod blocks;
mod environment;
mod iterm2;
mod kitty;
mod place;
mod sixel;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};

use flux::input::resized;
use flux::metadata::Metadata;
use flux::output::{ImageFormat, Rgb, encode};
use flux::{Error, Result};
use rustix::stdio::stdout;
use rustix::termios::tcgetwinsize;

use self::answers::{Answers, questions};
pub use self::ask::restore;
use self::ask::{Unanswered, ask, can_ask};
use self::blocks::Colors;
use self::environment::{Environment, Multiplexer};
use self::place::{Cells, Placed, Room};

/// The pixels of a character where the terminal does not tell.
const USUAL_CELL: [usize; 2] = [8, 16];
/// The columns of what is no terminal.
const USUAL_COLUMNS: usize = 80;
/// Terminals that know iTerm2's protocol, by the beginning of what they call themselves.
const LIKE_ITERM2: [&str; 3] = ["iTerm2", "WezTerm", "mintty"];

/// How an image is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Kitty,
    Iterm2,
    Sixel,
    /// Characters of two colours, which every terminal shows.
    HalfBlocks,
}

/// The terminal that standard output is.
pub struct Terminal {
    protocol: Protocol,
    colors: Colors,
    /// Width and height of a character in pixels, where the terminal told.
    cell: Option<[usize; 2]>,
    in_tmux: bool,
    /// The columns of an image, where they are asked for.
    columns: Option<usize>,
    /// The number of the last image, by which the terminal knows it, and its rows.
    number: u32,
    last_rows: Option<usize>,
    /// Held until the terminal is done with.
    _unanswered: Option<Unanswered>,
}

impl Terminal {
    /// The terminal, and the best that it knows; none where standard output is no terminal, or one that is to show text
    /// alone: `TERM` is `dumb`, or `NO_COLOR` is set. Where standard input is a terminal too it is asked, once, for 200
    /// ms at most, or a second over ssh. Signals must be listened to before this.
    pub fn detect() -> Option<Self> {
        let environment = Environment::read();
        if environment.wants_text() || !io::stdout().is_terminal() {
            return None;
        }
        let multiplexer = environment.multiplexer();
        let (answers, unanswered) = if multiplexer == Some(Multiplexer::Screen) || !can_ask() {
            Default::default()
        } else {
            ask(&questions(multiplexer.is_none()), environment.ssh)
        };
        let mut found = Self::new(chosen(&answers, multiplexer), &environment);
        // Terminals that tell their version are younger than colours of 24 bits; tmux tells its own.
        if answers.version.is_some() && multiplexer.is_none() {
            found.colors = Colors::All;
        }
        Some(Self { cell: answers.cell, _unanswered: unanswered, ..found })
    }

    /// What standard output is, be it a terminal or not, taken to know a protocol. It is not asked.
    pub fn of(protocol: Protocol) -> Self {
        Self::new(protocol, &Environment::read())
    }

    fn new(protocol: Protocol, environment: &Environment) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let has_all_colors = environment.has_all_colors() || !is_terminal;
        Self {
            protocol,
            colors: if has_all_colors { Colors::All } else { Colors::Numbered },
            cell: None,
            in_tmux: is_terminal && environment.multiplexer() == Some(Multiplexer::Tmux),
            columns: None,
            // Of 24 bits, so that a colour can stand for it; other programs have other numbers.
            number: (std::process::id() << 8) & 0xff_ff00,
            last_rows: None,
            _unanswered: None,
        }
    }

    /// The same terminal, where images are so many columns wide, as far as there is room.
    pub fn with_columns(self, columns: Option<usize>) -> Self {
        Self { columns, ..self }
    }

    /// Draws an image, below which the cursor is then.
    ///
    /// Errors when it cannot be encoded, or standard output not be written.
    pub fn show(&mut self, image: &Rgb) -> Result<()> {
        write(&self.below(image)?)
    }

    /// Draws an image in place of the last one. Nothing else may have been written meanwhile that moves the cursor to
    /// another line.
    ///
    /// Errors as [`Terminal::show`].
    pub fn replace(&mut self, image: &Rgb) -> Result<()> {
        write(&self.over(image)?)
    }

    /// What shows an image below what is there.
    fn below(&mut self, image: &Rgb) -> Result<String> {
        self.number = (self.number + 1) & 0xff_ffff;
        let placed = self.placed(image);
        self.last_rows = Some(placed.cells.rows);
        picture(image, self.protocol, placed, self.colors, self.in_tmux, self.number)
    }

    /// What shows an image in place of the last one.
    fn over(&mut self, image: &Rgb) -> Result<String> {
        let Some(rows) = self.last_rows else { return self.below(image) };
        let placed = self.placed(image);
        self.last_rows = Some(placed.cells.rows);
        // All of a larger one goes away.
        let erase = if placed.cells.rows == rows { "" } else { "\x1b[J" };
        let drawing = picture(image, self.protocol, placed, self.colors, self.in_tmux, self.number)?;
        Ok(format!("\x1b[{rows}A\r{erase}{drawing}"))
    }

    /// How large an image is on the terminal as it is now: it may have been resized.
    fn placed(&self, image: &Rgb) -> Placed {
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let side = |pixels: u16, characters: u16| usize::from(pixels / characters);
        let told = size.map(|size| [side(size.ws_xpixel, size.ws_col), side(size.ws_ypixel, size.ws_row)]);
        let rows = size.map(|size| usize::from(size.ws_row).saturating_sub(1).max(1));
        let is_by_placeholders = self.in_tmux && self.protocol == Protocol::Kitty;
        let room = Room {
            columns: size.map_or(self.columns.unwrap_or(USUAL_COLUMNS), |size| size.ws_col.into()),
            rows: if is_by_placeholders { Some(rows.unwrap_or(usize::MAX).min(kitty::MOST_ROWS)) } else { rows },
            cell: self.cell.or(told).filter(|cell| !cell.contains(&0)).unwrap_or(USUAL_CELL),
        };
        room.place([image.width, image.height], self.columns)
    }
}

/// Writes to standard output.
fn write(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|e| Error::new(format!("cannot write to standard output: {e}")).hint("is what reads it still there?"))
}

/// The best that a terminal knows by its answers.
fn chosen(answers: &Answers, multiplexer: Option<Multiplexer>) -> Protocol {
    let version = answers.version.as_deref().unwrap_or_default();
    // What tmux answers it can do itself; all else would stay on the screen over other panes.
    if multiplexer.is_none() && LIKE_ITERM2.iter().any(|name| version.starts_with(name)) {
        Protocol::Iterm2
    } else if multiplexer.is_none() && answers.kitty {
        Protocol::Kitty
    } else if answers.sixel {
        Protocol::Sixel
    } else {
        Protocol::HalfBlocks
    }
}

/// What makes a terminal show an image at the cursor, which is at the beginning of a line, and then at the beginning of
/// the line below the image.
fn picture(
    image: &Rgb,
    protocol: Protocol,
    placed: Placed,
    colors: Colors,
    in_tmux: bool,
    number: u32,
) -> Result<String> {
    let Placed { cells, pixels } = placed;
    let scaled =
        |size: [usize; 2]| if size == [image.width, image.height] { image.clone() } else { resized(image, size) };
    // The terminal scales up by itself, from fewer bytes.
    let smaller = if pixels[0] < image.width { pixels } else { [image.width, image.height] };
    let png = || encode(&scaled(smaller), ImageFormat::Png, &Metadata::default());
    Ok(match protocol {
        Protocol::HalfBlocks => blocks::image(&scaled([cells.columns, 2 * cells.rows]), colors),
        Protocol::Kitty if in_tmux => {
            let sent: String = kitty::hidden_image(&png()?, cells, number).iter().map(|text| passed_on(text)).collect();
            format!("{sent}{}", kitty::placeholders(cells, number))
        }
        Protocol::Kitty => framed(cells, &kitty::image(&png()?, cells, number).concat()),
        Protocol::Iterm2 if in_tmux => framed(cells, &passed_on(&iterm2::image(&png()?, cells))),
        Protocol::Iterm2 => framed(cells, &iterm2::image(&png()?, cells)),
        Protocol::Sixel => framed(cells, &sixel::image(&scaled(pixels))),
    })
}

/// Makes room, draws in it, and puts the cursor below: wherever a protocol leaves it, and also where the terminal has
/// to scroll.
fn framed(Cells { rows, .. }: Cells, drawing: &str) -> String {
    let room = "\r\n".repeat(rows);
    format!("{room}\x1b[{rows}A\x1b7{drawing}\x1b8\x1b[{rows}B\r")
}

/// An escape sequence that tmux hands to the terminal, where it is allowed to.
fn passed_on(sequence: &str) -> String {
    format!("\x1bPtmux;{}\x1b\\", sequence.replace('\x1b', "\x1b\x1b"))
}
