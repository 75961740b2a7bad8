//! `flux chat`, the interactive mode: each line is a prompt or a command, and the model stays open. It does not know
//! how images are generated: `talk` passes recipes to `crate::commands::studio`. Start reading at [`run`], then `talk`.

mod editor;
mod input;
mod line;
mod talk;

use std::io::{self, IsTerminal};
use std::time::Instant;

use flux::{Error, Result};

use self::editor::Entered;
use self::input::Input;
use self::talk::{Next, Talk};
use super::create_folder;
use super::signals::Signals;
use crate::cli::Chat;
use flux_runtime::progress::say;

/// The text printed at the start, on a terminal.
const WELCOME: &str =
    "type a prompt; $1 means the first image, 512x768 sets a size; !help lists the commands, Ctrl-D quits";

/// Runs the session until the input ends. Ctrl-C cancels an image, not the session.
pub fn run(args: &Chat, start: Instant, signals: &Signals) -> Result<()> {
    args.check()?;
    if let Some(folder) = &args.output {
        create_folder(folder)?;
    }
    signals.listen_in_turn()?;
    let mut talk = Talk::new(args, signals, start)?;
    let is_interactive = io::stdin().is_terminal();
    if is_interactive {
        say(WELCOME);
    }
    let done = converse(&mut talk, signals);
    let failed = talk.failed();
    talk.end();
    done?;
    if failed > 0 && !is_interactive {
        return Err(Error::new(format!("{failed} of the lines failed")).hint("see the errors above"));
    }
    Ok(())
}

/// Reads and runs one line after the other.
fn converse(talk: &mut Talk<'_>, signals: &Signals) -> Result<()> {
    let mut input = Input::new()?;
    loop {
        match input.read(&talk.prompt(), talk.ahead(), signals)? {
            Entered::Line(line) => {
                if talk.run_line(&line)? == Next::Quit {
                    return Ok(());
                }
            }
            Entered::Wrong(error) => talk.print_error(&error),
            Entered::Interrupt => say("use Ctrl-D or !quit to quit"),
            Entered::End => return Ok(()),
        }
    }
}
