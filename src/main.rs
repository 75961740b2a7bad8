//! The command line program: parse, run the command, print the error.

mod allocator;
mod bench;
mod bus_error;
mod cli;
mod commands;
mod hardware_queues;
mod panics;
mod progress;
mod report;
mod threads;

use std::borrow::Cow;
use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use flux::Result;
use flux::error::{ErrorKind, MOST_SHOWN, escaped, shown};

use crate::cli::{Cli, Command, Unread};
use crate::commands::signals::Signals;
use crate::progress::{fits, say};

/// The exit code of a command line that is wrong.
const WRONG_USAGE: i32 = 2;

#[global_allocator]
static ALLOCATOR: allocator::OrExit = allocator::OrExit;

fn main() -> ExitCode {
    let start = Instant::now();
    bus_error::explain();
    let signals = Signals::default();
    let done = panics::caught(|| run(parse(), start, &signals));
    let Some(done) = done else { return ExitCode::from(panics::EXIT_CODE) };
    let Err(error) = done else { return ExitCode::SUCCESS };
    allocator::claim_exit();
    if error.kind() != ErrorKind::Cancelled {
        say(&format!("error: {}", error.shown_with(cli::flag)));
    }
    match error.kind() {
        ErrorKind::Failure => ExitCode::from(1),
        ErrorKind::Usage => ExitCode::from(2),
        ErrorKind::Cancelled => {
            say(error.what());
            ExitCode::from(signals.exit_code())
        }
    }
}

/// The command line; ends the program where it is wrong, or asks for help.
fn parse() -> Cli {
    let arguments: Vec<_> = env::args_os().collect();
    if arguments.len() < 2 {
        say(cli::OVERVIEW);
        std::process::exit(WRONG_USAGE);
    }
    let error = match Cli::read(&arguments) {
        Ok(cli) => return cli,
        Err(Unread::Explained(error)) => {
            say(&format!("error: {error}"));
            std::process::exit(WRONG_USAGE);
        }
        Err(Unread::ByClap(error)) => error,
    };
    let text = error.render().to_string();
    // Help is as wide as the terminal, and errors are as long as what is wrong.
    if text.lines().all(|line| line.len() <= MOST_SHOWN && matches!(escaped(line), Cow::Borrowed(_)))
        && (!error.use_stderr() || fits(&text))
    {
        error.exit(); // in colour
    }
    say(&text.lines().map(shown).collect::<Vec<_>>().join("\n"));
    std::process::exit(error.exit_code())
}

fn run(cli: Cli, start: Instant, signals: &Signals) -> Result<()> {
    match cli.command {
        Some(Command::Bench(args)) => {
            if args.on.device.count() == Some(1) {
                hardware_queues::make_one();
            }
            start_threads(args.on.threads, false)?;
            commands::bench::run(&args)
        }
        Some(Command::Convert(args)) => {
            start_threads(args.threads, args.quiet)?;
            commands::convert::run(&args, signals)
        }
        Some(Command::Info(args)) => commands::info::run(&args),
        Some(Command::Compare { a, b, min_psnr }) => commands::compare::run(&a, &b, min_psnr),
        None => {
            if !cli.generate.may_share_images() {
                hardware_queues::make_one();
            }
            start_threads(cli.generate.on.threads, cli.generate.quiet)?;
            commands::generate::run(Arc::new(cli.generate), start, signals)
        }
    }
}

/// Starts the threads that compute, before anything uses them.
fn start_threads(wanted: Option<u64>, quiet: bool) -> Result<()> {
    if let Some(note) = threads::start(wanted)?
        && !quiet
    {
        say(&format!("note: {note}"));
    }
    Ok(())
}
