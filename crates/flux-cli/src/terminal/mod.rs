//! Pictures in the terminal, without knowledge of models and generation.
//!
//! [`Terminal::detect`] asks the terminal once which protocol it supports, and returns `None` if it should show only
//! text. [`Terminal::show`] draws an image below the existing output, and [`Terminal::replace`] draws over the last
//! image. Start reading at these three.

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

/// The pixels of a character if the terminal does not report them.
const USUAL_CELL: [usize; 2] = [8, 16];
/// The columns if standard output is not a terminal.
const USUAL_COLUMNS: usize = 80;
/// Terminals with iTerm2's protocol, by prefix of their version reply.
const LIKE_ITERM2: [&str; 3] = ["iTerm2", "WezTerm", "mintty"];

/// An image protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Kitty,
    Iterm2,
    Sixel,
    /// Characters in two colours, which every terminal shows.
    HalfBlocks,
}

/// The terminal on standard output.
pub struct Terminal {
    protocol: Protocol,
    colors: Colors,
    /// Width and height of a character in pixels, if the terminal reported them.
    cell: Option<[usize; 2]>,
    in_tmux: bool,
    /// The requested columns of an image.
    columns: Option<usize>,
    /// The last image's number, which identifies it to the terminal, and its rows.
    number: u32,
    last_rows: Option<usize>,
    /// Discards late replies when the terminal is dropped.
    _unanswered: Option<Unanswered>,
}

impl Terminal {
    /// Detects the terminal and its best protocol. Returns `None` if standard output is not a terminal or should show
    /// only text: `TERM` is `dumb`, or `NO_COLOR` is set. If standard input is a terminal too, the terminal is queried
    /// once, for at most 200 ms, or a second over ssh. Signal handlers must be installed before.
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
        // Terminals that report a version support 24-bit colours. tmux reports its own version.
        if answers.version.is_some() && multiplexer.is_none() {
            found.colors = Colors::All;
        }
        Some(Self { cell: answers.cell, _unanswered: unanswered, ..found })
    }

    /// Uses a protocol for standard output without detection, even if it is not a terminal.
    pub fn with_protocol(protocol: Protocol) -> Self {
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
            // 24 bits, so that a colour can encode the number. The process id makes it differ from other programs'
            // numbers.
            number: (std::process::id() << 8) & 0xff_ff00,
            last_rows: None,
            _unanswered: None,
        }
    }

    /// Sets the columns of images, limited by the width of the terminal.
    pub fn with_columns(self, columns: Option<usize>) -> Self {
        Self { columns, ..self }
    }

    /// Draws an image and moves the cursor below it.
    ///
    /// Errors when the image cannot be encoded, or standard output cannot be written.
    pub fn show(&mut self, image: &Rgb) -> Result<()> {
        write(&self.below(image)?)
    }

    /// Draws an image in place of the last one. No other output may have moved the cursor to another line since.
    ///
    /// Errors as [`Terminal::show`].
    pub fn replace(&mut self, image: &Rgb) -> Result<()> {
        write(&self.over(image)?)
    }

    /// Returns the output that shows an image below the existing output.
    fn below(&mut self, image: &Rgb) -> Result<String> {
        self.number = (self.number + 1) & 0xff_ffff;
        let placed = self.placed(image);
        self.last_rows = Some(placed.cells.rows);
        picture(image, self.protocol, placed, self.colors, self.in_tmux, self.number)
    }

    /// Returns the output that shows an image in place of the last one.
    fn over(&mut self, image: &Rgb) -> Result<String> {
        let Some(rows) = self.last_rows else { return self.below(image) };
        let placed = self.placed(image);
        self.last_rows = Some(placed.cells.rows);
        // Erases the old image if its height differs.
        let erase = if placed.cells.rows == rows { "" } else { "\x1b[J" };
        let drawing = picture(image, self.protocol, placed, self.colors, self.in_tmux, self.number)?;
        Ok(format!("\x1b[{rows}A\r{erase}{drawing}"))
    }

    /// Returns the size of an image on the terminal at its current size, since it may have been resized.
    fn placed(&self, image: &Rgb) -> Placed {
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let side = |pixels: u16, characters: u16| usize::from(pixels / characters);
        let told = size.map(|size| [side(size.ws_xpixel, size.ws_col), side(size.ws_ypixel, size.ws_row)]);
        let rows = size.map(|size| usize::from(size.ws_row).saturating_sub(1).max(1));
        let is_by_placeholders = self.in_tmux && self.protocol == Protocol::Kitty;
        let room = Room {
            columns: size.map_or(self.columns.unwrap_or(USUAL_COLUMNS), |size| size.ws_col.into()),
            rows: if is_by_placeholders { Some(rows.unwrap_or(usize::MAX).min(kitty::MAX_ROWS)) } else { rows },
            cell: self.cell.or(told).filter(|cell| !cell.contains(&0)).unwrap_or(USUAL_CELL),
        };
        // Blocks are large: at its own size an image would be only a few of them.
        let fills = (self.protocol == Protocol::HalfBlocks).then_some(room.columns);
        room.place([image.width, image.height], self.columns.or(fills))
    }
}

/// Writes to standard output.
fn write(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|e| Error::new(format!("cannot write to standard output: {e}")).hint("check the reading program"))
}

/// Returns the best protocol according to the terminal's replies.
fn chosen(answers: &Answers, multiplexer: Option<Multiplexer>) -> Protocol {
    let version = answers.version.as_deref().unwrap_or_default();
    // Under tmux, only replies of tmux itself count: other protocols would draw over other panes.
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

/// Returns the output that shows an image at the cursor, which must be at the start of a line. Afterwards the cursor is
/// at the start of the line below the image.
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
    // The terminal scales up by itself, so fewer bytes are sent.
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

/// Reserves lines, draws into them, and moves the cursor below. This works with every protocol's final cursor position,
/// and if the terminal has to scroll.
fn framed(Cells { rows, .. }: Cells, drawing: &str) -> String {
    let room = "\r\n".repeat(rows);
    format!("{room}\x1b[{rows}A\x1b7{drawing}\x1b8\x1b[{rows}B\r")
}

/// Wraps an escape sequence for tmux, which passes it to the terminal if allowed.
fn passed_on(sequence: &str) -> String {
    format!("\x1bPtmux;{}\x1b\\", sequence.replace('\x1b', "\x1b\x1b"))
}
