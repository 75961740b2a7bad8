//! `flux download`: models from Hugging Face.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{process, thread};

use flux::Result;
use flux::error::{Error, ErrorKind, shell_word, shown};
use flux::files::{ModelFiles, partial};
use flux::hub::{Cache, Licence, Named, PUBLISHED, Snapshot, is_plain};
use flux::model::Quantisation;
use flux::pipeline::Summary;
use flux::stage::CancelFlag;
use serde::Serialize;

use super::json::print_object;
use super::signals::{self, Signals};
use super::{print, shown_as};
use crate::cli::{Download, ProgressChoice};
use crate::download::{Done, Downloader, INDEX, MODULAR_INDEX, Options, Plan, is_offline, missing_in, verify_cached};
use crate::progress::{Transfers, gigabytes, say};

/// How often a signal is looked for, and how long after it the program ends at the latest.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const END_AFTER: Duration = Duration::from_millis(500);

/// What `--json` prints of a model.
#[derive(Serialize)]
struct Fetched<'a> {
    name: String,
    repository: &'a str,
    commit: &'a str,
    path: String,
    bytes: u64,
    licence: Option<&'a Licence>,
}

/// Fetches the models, one after the other. A signal ends it, and what was fetched is kept.
pub fn run(args: &Download, signals: &Signals) -> Result<()> {
    let names = args.names.iter().map(|name| named(name)).collect::<Result<Vec<_>>>()?;
    if let Some(revision) = args.revision.as_ref().filter(|revision| !is_plain(revision)) {
        return Err(Error::usage(format!("`{revision}` is no name of a revision")).at("--revision"));
    }
    if args.folder.is_some() && names.len() > 1 {
        return Err(Error::usage("one folder takes one model").at("--folder").hint("fetch them one by one"));
    }
    signals.listen()?;
    let cancel = signals.cancel_flag();
    let is_done = AtomicBool::new(false);
    let done = thread::scope(|scope| {
        scope.spawn(|| end_when_cancelled(&is_done, signals, args.quiet));
        let done = names.iter().try_for_each(|named| fetch_one(args, named, &cancel));
        is_done.store(true, Ordering::SeqCst);
        done
    });
    if done.as_ref().is_err_and(|error| error.kind() == ErrorKind::Cancelled) {
        tell_kept(args.quiet);
    }
    done
}

/// Ends the program some time after a signal: a server that says nothing would hold it up. What is written at any
/// moment is what the next download goes on with.
fn end_when_cancelled(is_done: &AtomicBool, signals: &Signals, quiet: bool) {
    let cancel = signals.cancel_flag();
    while cancel.check().is_ok() {
        if is_done.load(Ordering::SeqCst) {
            return;
        }
        thread::sleep(LOOK_EVERY);
    }
    thread::sleep(END_AFTER);
    if !is_done.load(Ordering::SeqCst) {
        tell_kept(quiet);
        say(Error::cancelled().what());
        partial::remove_all();
        process::exit(signals.exit_code().into());
    }
}

fn tell_kept(quiet: bool) {
    if !quiet {
        say("what was fetched is kept: the same command goes on from there");
    }
}

/// What a text names.
///
/// Errors when it has not the form of a name.
pub fn named(text: &str) -> Result<Named> {
    Named::parse(text).ok_or_else(|| {
        let known: Vec<&str> = PUBLISHED.iter().map(|model| model.name).collect();
        Error::usage(format!("unknown model: `{text}`"))
            .hint(format!("name {}, or a repository as in `owner/name` or `owner/name:FILE`", known.join(", ")))
    })
}

fn fetch_one(args: &Download, named: &Named, cancel: &CancelFlag) -> Result<()> {
    let mut transfers = Transfers::new(args.quiet, shown_as(args.progress));
    if is_offline() {
        return from_cache(args, named, &mut transfers, cancel);
    }
    let quiet = args.quiet;
    let downloader = Downloader::new(args.retry_wait, cancel, move |note| tell(quiet, note))?;
    let plan = downloader.plan(named, args.revision.as_deref())?;
    if !quiet {
        say(&shown(&summary(&plan)));
    }
    let options = Options { folder: args.folder.as_deref(), verify: args.verify };
    let Done { path, bytes } = downloader.fetch(&plan, &options, &mut transfers)?;
    tell_result(args, named, &plan.commit, &path, bytes, plan.licence.as_ref())
}

/// What is in the cache, where the network is not to be used.
fn from_cache(args: &Download, named: &Named, transfers: &mut Transfers, cancel: &CancelFlag) -> Result<()> {
    let offline = |what: String| Error::new(what).hint("HF_HUB_OFFLINE forbids the network: leave it out to fetch it");
    if args.folder.is_some() {
        return Err(offline("nothing is put into a folder without the network".to_string()));
    }
    let cached = Cache::of_environment()?.repository(&named.repository);
    let snapshot = cached.snapshot(args.revision.as_deref());
    let found = snapshot.and_then(|snapshot| {
        let path = named.file.as_ref().map_or_else(|| snapshot.path.clone(), |file| snapshot.path.join(file));
        path.exists().then_some((snapshot, path))
    });
    let Some((snapshot, path)) = found else { return Err(offline(format!("`{named}` is not in the cache"))) };
    if named.file.is_none() {
        check_whole(named, &snapshot).map_err(|what| offline(what).at_path(&snapshot.path))?;
    }
    if args.verify {
        verify_cached(named, &snapshot.path, transfers, cancel)?;
        transfers.finish();
    }
    let licence = named.published.map(|published| published.licence());
    let bytes = super::list::bytes_below(&path);
    tell_result(args, named, &snapshot.commit, &path, bytes, licence.as_ref())
}

/// Errors with what a snapshot lacks of the model that it is named for.
fn check_whole(named: &Named, snapshot: &Snapshot) -> std::result::Result<(), String> {
    let path = &snapshot.path;
    if named.published.is_none()
        && [INDEX, MODULAR_INDEX].iter().all(|name| path.join(name).symlink_metadata().is_err())
    {
        let has_weights = snapshot.weights().iter().any(|file| file.exists());
        return if has_weights { Ok(()) } else { Err(format!("the cache has no weights of `{named}`")) };
    }
    let missing = missing_in(path);
    // Other tools may have left out what this program can do without.
    let opens = || ModelFiles::open(path).and_then(|files| Summary::read(&files, &Quantisation::default())).is_ok();
    match missing.first() {
        Some(first) if !opens() => {
            let (count, are) = (missing.len(), if missing.len() == 1 { "file is" } else { "files are" });
            Err(format!("`{named}` is not whole in the cache: {count} {are} missing, such as `{first}`"))
        }
        _ => Ok(()),
    }
}

fn tell_result(
    args: &Download,
    named: &Named,
    commit: &str,
    path: &Path,
    bytes: u64,
    licence: Option<&Licence>,
) -> Result<()> {
    let path = path.display().to_string();
    if !args.json {
        return print(path.as_bytes());
    }
    let repository = named.repository.as_str();
    let fetched = Fetched { name: named.to_string(), repository, commit, path, bytes, licence };
    print_object(&fetched)
}

fn tell(quiet: bool, note: &str) {
    if !quiet {
        say(&shown(&format!("note: {note}")));
    }
}

/// What is fetched, and under which licence.
fn summary(plan: &Plan) -> String {
    let licence = plan.licence.as_ref().map_or("unknown, see its page".to_string(), Licence::to_string);
    format!("{}: {} in {} files; licence: {licence}", plan.named.repository, gigabytes(plan.bytes()), plan.count())
}

/// Asks whether to fetch a model that is not in the cache, and fetches it.
///
/// Errors when there is nobody to ask, the answer is no, or it cannot be fetched.
pub fn ask_and_fetch(named: &Named) -> Result<()> {
    if is_offline() || !super::ask::can_ask() {
        return Err(named.missing());
    }
    let cancel = signals::cancel_flag();
    let downloader = Downloader::new(1.0, &cancel, |note| tell(false, note))?;
    let plan = downloader.plan(named, None).map_err(|e| e.prefixed(&format!("`{named}` is not in the cache")))?;
    if !super::ask::agrees(&format!("`{named}` is not in the cache. {}. Fetch it?", summary(&plan))) {
        let command = format!("flux download {}", shell_word(Path::new(&named.to_string())));
        return Err(Error::new(format!("`{named}` is not in the cache")).hint(format!("`{command}` fetches it later")));
    }
    let mut transfers = Transfers::new(false, shown_as(ProgressChoice::Auto));
    downloader.fetch(&plan, &Options { folder: None, verify: false }, &mut transfers).map(drop)
}
