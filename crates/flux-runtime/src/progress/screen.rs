//! An in-memory terminal, for tests of progress displays.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use indicatif::TermLike;
use parking_lot::Mutex;
use vt100::Parser;

/// An in-memory terminal. Clones share their content.
#[derive(Clone)]
pub struct Screen {
    columns: u16,
    parser: Arc<Mutex<Parser>>,
}

impl Screen {
    pub fn new(rows: u16, columns: u16) -> Self {
        Self { columns, parser: Arc::new(Mutex::new(Parser::new(rows, columns, 0))) }
    }

    /// Returns the visible text, without trailing white space.
    pub fn contents(&self) -> String {
        self.parser.lock().screen().contents().trim_end().to_string()
    }

    fn write(&self, text: &str) -> io::Result<()> {
        self.parser.lock().write_all(text.as_bytes())
    }

    fn move_cursor(&self, n: usize, direction: char) -> io::Result<()> {
        if n == 0 { Ok(()) } else { self.write(&format!("\x1b[{n}{direction}")) }
    }
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.contents())
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        self.columns
    }
    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'A')
    }
    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'B')
    }
    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'C')
    }
    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'D')
    }
    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write(&format!("{text}\r\n"))
    }
    fn write_str(&self, text: &str) -> io::Result<()> {
        self.write(text)
    }
    fn clear_line(&self) -> io::Result<()> {
        self.write("\r\x1b[2K")
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
