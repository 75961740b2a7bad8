//! `flux chat`: a conversation, in which each line is a prompt or a command, and one model stays open.

mod editor;
mod input;
mod line;
mod talk;

use std::fs;
use std::io::{self, IsTerminal};
use std::time::Instant;

use flux::{Error, Result};

use self::editor::Entered;
use self::input::Input;
use self::talk::{Next, Talk};
use super::signals::Signals;
use crate::cli::Chat;
use crate::progress::say;

/// What is printed at the beginning, on a terminal.
const WELCOME: &str =
    "a line is a prompt; $1 in it is the first image, 512x768 a size; !help lists commands, Ctrl-D ends";

/// Talks until the input ends. Ctrl-C ends an image, and not the conversation.
pub fn run(args: &Chat, start: Instant, signals: &Signals) -> Result<()> {
    args.check()?;
    if let Some(folder) = &args.output {
        fs::create_dir_all(folder).map_err(|e| {
            Error::new(format!("cannot make the folder: {e}")).at_path(folder).hint("name one that you may write to")
        })?;
    }
    signals.listen_in_turn()?;
    let mut talk = Talk::new(args, signals, start)?;
    let someone_sits_there = io::stdin().is_terminal();
    if someone_sits_there {
        say(WELCOME);
    }
    let done = converse(&mut talk, signals);
    let failed = talk.failed();
    talk.end();
    done?;
    if failed > 0 && !someone_sits_there {
        return Err(Error::new(format!("{failed} lines failed")).hint("each is told above"));
    }
    Ok(())
}

/// Hears one line after the other.
fn converse(talk: &mut Talk<'_>, signals: &Signals) -> Result<()> {
    let mut input = Input::new()?;
    loop {
        match input.read(&talk.prompt(), talk.ahead(), signals)? {
            Entered::Line(line) => {
                if talk.hear(&line)? == Next::Quit {
                    return Ok(());
                }
            }
            Entered::Wrong(error) => talk.tell_failed(&error),
            Entered::Interrupt => say("Ctrl-D or !quit ends the conversation"),
            Entered::End => return Ok(()),
        }
    }
}
