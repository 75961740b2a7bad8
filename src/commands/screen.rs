//! Pictures in the terminal while images are made.

use flux::Result;
use flux::rgb::Rgb;

use super::show::terminal;
use crate::cli::ShowArgs;
use crate::progress::Console;
use crate::terminal::Terminal;

/// Where pictures are shown, if anywhere.
#[derive(Default)]
pub struct Screen {
    terminal: Option<Terminal>,
    steps: bool,
    /// Whether what is shown last is of a step.
    shows_step: bool,
}

impl Screen {
    /// The terminal that the flags ask for. Signals must be listened to before this.
    ///
    /// Errors when standard output is no terminal that shows pictures.
    pub fn new(args: &ShowArgs) -> Result<Self> {
        let terminal = args.protocol().map(terminal).transpose()?;
        Ok(Self { steps: args.show_steps && terminal.is_some(), terminal, shows_step: false })
    }

    /// Whether steps are shown.
    pub fn wants_steps(&self) -> bool {
        self.steps
    }

    /// Shows what a step leads to, over what the step before led to.
    ///
    /// Errors when standard output cannot be written.
    pub fn step(&mut self, image: &Rgb, console: &mut Console) -> Result<()> {
        self.draw(image, console, true)
    }

    /// Shows an image, over what its steps led to.
    ///
    /// Errors when standard output cannot be written.
    pub fn image(&mut self, image: &Rgb, console: &mut Console) -> Result<()> {
        self.draw(image, console, false)
    }

    fn draw(&mut self, image: &Rgb, console: &mut Console, is_step: bool) -> Result<()> {
        let Some(terminal) = &mut self.terminal else { return Ok(()) };
        // The bar stands below the picture, and would be drawn into it.
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
