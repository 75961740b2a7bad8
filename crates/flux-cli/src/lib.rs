//! The command line program as a library: [`run`] parses arguments, runs the command and prints errors. The program
//! `flux` and the Python package call it.

mod cli;
mod commands;
mod report;
mod terminal;
mod version;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use flux::Result;
#[cfg(any(feature = "server", feature = "queue"))]
use flux::engine::EngineArgs;
use flux::error::ErrorKind;

use crate::cli::{Cli, Command, DrawArgs, Unread};
use crate::commands::signals::Signals;
use flux_runtime::progress::{open_log, say};
use flux_runtime::{allocator, build, bus_error, hardware_queues, panics, progress, threads};

/// The exit code for an invalid command line.
const WRONG_USAGE: u8 = 2;
/// The exit code for a failure.
const FAILURE: u8 = 1;

/// Runs the program with its command line, which begins with the name of the program. Returns the exit code.
/// Ends the process itself if the command line is invalid or requests help.
///
/// Call it once per process: it sets the number of threads, signal handlers and the allocator's parameters.
pub fn run(arguments: Vec<OsString>) -> u8 {
    cli::set_arguments(arguments);
    progress::name_fields(cli::flag);
    build::set(version::BUILD);
    let code = threads::with_stack(run_program).unwrap_or_else(|error| {
        say(&format!("error: {error}"));
        FAILURE
    });
    // In a process that is not a Rust program, nothing else does it.
    let _ = io::stdout().flush();
    code
}

fn run_program() -> u8 {
    let start = Instant::now();
    allocator::keep_tensors();
    bus_error::explain();
    let signals = Signals::default();
    let done = panics::caught(|| {
        let cli = parse();
        cli.log.as_deref().map_or(Ok(()), open_log)?;
        run_command(cli, start, &signals)
    });
    let Some(done) = done else { return panics::EXIT_CODE };
    let error = match done {
        Ok(code) => return code,
        Err(error) => error,
    };
    allocator::claim_exit();
    commands::json::print_error(&error);
    if error.kind() != ErrorKind::Cancelled {
        say(&format!("error: {}", error.shown_with(cli::flag)));
    }
    match error.kind() {
        ErrorKind::Usage => WRONG_USAGE,
        ErrorKind::Cancelled => {
            say(error.what());
            signals.exit_code()
        }
        _ => FAILURE,
    }
}

/// Parses the command line. Ends the program if the command line is invalid or requests help.
fn parse() -> Cli {
    let mut arguments = cli::arguments().to_vec();
    if arguments.len() < 2 {
        say(cli::OVERVIEW);
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            std::process::exit(WRONG_USAGE.into());
        }
        // On a terminal, the interactive mode asks for a prompt.
        arguments = ["flux", "chat"].map(OsString::from).to_vec();
    }
    let error = match Cli::read(&arguments) {
        Ok(cli) => return cli,
        Err(Unread::Explained(error)) => {
            commands::json::print_error(&error);
            say(&format!("error: {error}"));
            std::process::exit(WRONG_USAGE.into());
        }
        Err(Unread::ByClap(error)) => error,
    };
    if error.kind() == clap::error::ErrorKind::DisplayVersion && version::is_verbose(&arguments) {
        // Like clap, which prints the short form.
        let printed = commands::print(version::long().as_bytes());
        std::process::exit(i32::from(printed.is_err()));
    }
    let printed = error.print().and_then(|()| io::stdout().flush()); // with colours
    std::process::exit(if printed.is_err() && !error.use_stderr() { FAILURE.into() } else { error.exit_code() })
}

/// Runs the command. Returns the exit code, which only `flux verify` chooses.
fn run_command(cli: Cli, start: Instant, signals: &Signals) -> Result<u8> {
    cli::settings::load()?;
    let done = match cli.command {
        Some(Command::Verify(args)) => {
            let options = commands::verify::Options { json: args.json, remake: args.remake, trusted: args.trusted()? };
            let again = args.into_again();
            prepare(&again.draw, 1)?;
            return commands::verify::run(&again, &options, start, signals);
        }
        Some(Command::Strip(args)) => commands::strip::run(&args),
        Some(Command::Config { json }) => commands::config::run(json),
        Some(Command::Bench(args)) => {
            if args.on.device().count() == Some(1) {
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
        Some(Command::Chat(args)) => {
            prepare(&args.draw, 1)?;
            commands::chat::run(&args, start, signals)
        }
        Some(Command::Batch(args)) => {
            prepare(&args.draw, u64::MAX)?;
            commands::batch::run(&args, signals)
        }
        Some(Command::Upsample(args)) => {
            start_threads(None, true)?;
            commands::upsample::run(&args, signals)
        }
        Some(Command::Upscale(args)) => {
            hardware_queues::make_one();
            start_threads(args.on.threads, args.quiet)?;
            commands::upscale::run(&args, signals)
        }
        Some(Command::Again(args)) => {
            prepare(&args.draw, args.count)?;
            commands::again::run(&args, start, signals)
        }
        Some(Command::Compare(args)) => {
            start_threads(None, true)?;
            commands::compare::run(&args)
        }
        Some(Command::Live(args)) => {
            if args.on.device().count() == Some(1) {
                hardware_queues::make_one();
            }
            start_threads(args.on.threads, args.quiet)?;
            commands::live::run(&args, signals)
        }
        Some(Command::Grid(args)) => {
            prepare(&args.draw, 1)?;
            commands::grid::run(&args, start, signals)
        }
        Some(Command::Sheet(args)) => {
            start_threads(None, args.quiet)?;
            commands::sheet::run(&args)
        }
        Some(Command::Show(args)) => {
            start_threads(None, true)?;
            commands::show::run(&args, signals)
        }
        Some(Command::Devices(args)) => {
            start_threads(None, true)?;
            commands::devices::run(&args)
        }
        Some(Command::Selftest(args)) => {
            hardware_queues::make_one();
            start_threads(args.threads, args.json)?;
            commands::selftest::run(&args)
        }
        #[cfg(feature = "server")]
        Some(Command::Serve(args)) => {
            prepare_service(&args.engine()?, args.on.threads, args.quiet)?;
            commands::serve::run(&args, start, signals)
        }
        #[cfg(feature = "server")]
        Some(Command::Mcp(args)) => {
            hardware_queues::make_one();
            start_threads(args.on.threads, args.quiet)?;
            commands::serve::tools(&args, signals)
        }
        #[cfg(feature = "server")]
        Some(Command::Key(args)) => commands::serve::key(&args),
        #[cfg(feature = "queue")]
        Some(Command::Submit(args)) => commands::submit::run(&args, signals),
        #[cfg(feature = "queue")]
        Some(Command::Worker(args)) => {
            prepare_service(&args.engine()?, args.on.threads, args.quiet)?;
            commands::worker::run(&args, start, signals)
        }
        #[cfg(feature = "queue")]
        Some(Command::Queue(args)) => commands::queue::run(&args, signals),
        Some(Command::Completions(args)) => commands::pages::complete(&args),
        Some(Command::Man(args)) => commands::pages::write_man(&args),
        Some(Command::Download(args)) => commands::download::run(&args, signals),
        Some(Command::List(args)) => commands::list::run(&args),
        Some(Command::Rm(args)) => commands::remove::run(&args),
        None => {
            prepare(&cli.generate.draw, cli.generate.count)?;
            commands::generate::run(&cli.generate, start, signals)
        }
    };
    done.map(|()| 0)
}

/// Prepares the process before a GPU or a thread is used.
fn prepare(args: &DrawArgs, count: u64) -> Result<()> {
    if !args.may_share_images(count) {
        hardware_queues::make_one();
    }
    start_threads(args.on.threads, args.console.quiet)
}

/// [`prepare`] for services, which receive images one by one.
#[cfg(any(feature = "server", feature = "queue"))]
fn prepare_service(args: &EngineArgs, threads: Option<u64>, quiet: bool) -> Result<()> {
    if !args.parallel.may_share(args.device.count(), 1) {
        hardware_queues::make_one();
    }
    start_threads(threads, quiet)
}

/// Starts the compute threads before anything uses them.
fn start_threads(wanted: Option<u64>, quiet: bool) -> Result<()> {
    if let Some(note) = threads::start(wanted)?
        && !quiet
    {
        say(&format!("note: {note}"));
    }
    Ok(())
}
