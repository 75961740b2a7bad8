//! `flux live`: frames from standard input, images to standard output, and setting changes in between. It only connects
//! streams, control and statistics to [`crate::live`], and does not know how frames are generated. Start reading at
//! [`run`].

mod control;
mod reporter;
mod streams;

use std::io::{self, IsTerminal};
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;

use flux::engine::{Engine, EngineArgs};
use flux::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::control::{Control, watch_prompt};
use self::reporter::Reporter;
use self::streams::streams;
use super::signals::Signals;
use super::{model_at, names};
use crate::cli;
use flux_live::{Live, Setting, Settings, Stats};
use flux_runtime::progress::{Console, Shown};

/// Generates images from frames until the input or a signal ends it.
pub fn run(args: &cli::Live, signals: &Signals) -> Result<()> {
    args.check()?;
    check_terminals(args)?;
    let mut recipe = args.recipe()?;
    if let Some(file) = &args.prompt_file {
        recipe.prompt = control::prompt_of(file)?;
    }
    let recipe = names::with_adapters(&recipe)?;
    // Validated before a model is opened.
    let setting = Setting::new(recipe, args.feedback, !args.no_input)?.with_reuse(args.reuse())?;
    let (paths, place) = args.model.paths(None);
    let files = model_at(&paths, place.as_deref())?;
    let mut console = Console::new(args.quiet, args.verbose, Shown::Auto);
    files.notes().iter().chain(args.quantize.notes()).for_each(|note| console.note(note));
    let reporter = Reporter::open(args)?;
    // Opened first, so that clients can write to it while the model loads.
    let control = args.control.as_deref().map(Control::open).transpose()?;
    signals.listen()?;
    let engine_args = EngineArgs {
        adapters: setting.recipe.adapters.iter().map(|used| used.file.clone()).collect(),
        ..args.engine()
    };
    let engine = Engine::open(files, &engine_args, None, &mut console, &signals.cancel_flag())?;
    // Waits for devices that open in the background, so that the list is complete.
    engine.wait_for_devices()?;
    engine.devices(usize::MAX).iter().for_each(|(name, about)| console.detail(&format!("device: {name}: {about}")));
    if args.reuse().is_some() && engine.stats().devices > 1 {
        return Err(Error::usage("frames cannot be reused on several devices")
            .at("--reuse")
            .hint("use one device, as in `--device cuda:0`, or leave it out"));
    }
    let setting = setting.with_adapters(&engine)?.with_frame_size(args.frame_size());
    setting.check_with(&engine)?;
    if args.seed_is_random() {
        console.info(&format!("seed {}", setting.recipe.seed));
    }
    let (engine, settings, stats) = (Arc::new(engine), Settings::new(setting), Arc::new(Stats::new(0)));
    let checks = {
        let engine = Arc::clone(&engine);
        move |setting: &Setting| setting.check_with(&engine)
    };
    let _control = control.map(|control| control.start(&settings, checks.clone())).transpose()?;
    if let Some(file) = &args.prompt_file {
        watch_prompt(file.clone(), &settings, checks)?;
    }
    let (source, sink) = streams(args)?;
    let live = Live {
        engine: Arc::clone(&engine),
        settings,
        stats: Arc::clone(&stats),
        every: args.every,
        keeps_all: args.all,
        rate: args.fps,
        cancel: signals.cancel_flag(),
    };
    let mut reporter = reporter;
    let done = live.run(source, sink, &mut || reporter.tick(&stats).and_then(|()| check_reader()));
    let ended = reporter.end(&stats, &console);
    // The system reclaims all memory at once.
    mem::forget(engine);
    // Keeps the first of two errors.
    done.and(ended)
}

/// Errors when standard input or output is a terminal.
fn check_terminals(args: &cli::Live) -> Result<()> {
    let hint = "as in `ffmpeg .. -f yuv4mpegpipe - | flux live .. | ffplay -`";
    if !args.no_input && io::stdin().is_terminal() {
        return Err(Error::usage("standard input is a terminal, expected frames").at("standard input").hint(hint));
    }
    if io::stdout().is_terminal() {
        return Err(Error::usage("standard output is a terminal, which cannot show frames")
            .at("standard output")
            .hint(hint));
    }
    Ok(())
}

/// Errors when the reader of the output has closed it, even if nothing is being written.
fn check_reader() -> Result<()> {
    if is_unread(io::stdout()) {
        return Err(Error::new("the receiver of the images has gone")
            .at("standard output")
            .hint("check the output of the program that read them"));
    }
    Ok(())
}

/// Returns `true` if the reader has closed its end: a pipe reports an error, a socket a hang-up. If polling fails, the
/// next write reports it.
fn is_unread(to: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&to, PollFlags::empty())];
    let is_told = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok();
    is_told && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_pipe_and_a_socket_that_nobody_reads_are_known() {
        let (reader, writer) = io::pipe().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        assert!(!is_unread(&writer) && !is_unread(&near));
        drop((reader, far));
        assert!(is_unread(&writer) && is_unread(&near));
        assert!(!is_unread(tempfile::tempfile().unwrap()), "a file has no reader");
    }
}
