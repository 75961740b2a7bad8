//! Previews in the terminal while images are generated.

use flux::Result;
use flux::rgb::Rgb;

use super::show::terminal;
use crate::cli::ShowArgs;
use crate::terminal::Terminal;
use flux_runtime::progress::Console;

/// The terminal that shows pictures, if any.
#[derive(Default)]
pub struct Screen {
    terminal: Option<Terminal>,
    steps: bool,
    /// True if the last picture shown is a preview of a step.
    shows_step: bool,
}

impl Screen {
    /// Opens the terminal that the flags request. Signal handlers must be installed before.
    ///
    /// Errors when standard output is not a terminal that supports images.
    pub fn new(args: &ShowArgs) -> Result<Self> {
        let terminal = args.protocol().map(terminal).transpose()?;
        Ok(Self { steps: args.show_steps && terminal.is_some(), terminal, shows_step: false })
    }

    /// Returns `true` if each step is previewed.
    pub fn wants_steps(&self) -> bool {
        self.steps
    }

    /// Shows the preview of a step in place of the previous one.
    ///
    /// Errors when standard output cannot be written.
    pub fn step(&mut self, image: &Rgb, console: &mut Console) -> Result<()> {
        self.draw(image, console, true)
    }

    /// Shows an image in place of its preview.
    ///
    /// Errors when standard output cannot be written.
    pub fn image(&mut self, image: &Rgb, console: &mut Console) -> Result<()> {
        self.draw(image, console, false)
    }

    fn draw(&mut self, image: &Rgb, console: &mut Console, is_step: bool) -> Result<()> {
        let Some(terminal) = &mut self.terminal else { return Ok(()) };
        // The progress bar is below the picture and would be drawn into it.
        console.finish();
        if self.shows_step {
            terminal.replace(image)?
        } else {
            terminal.show(image)?
        }
        self.shows_step = is_step;
        Ok(())
    }
}
