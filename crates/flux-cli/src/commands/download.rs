//! `flux download`: models from Hugging Face.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{process, thread};

use flux::Result;
use flux::error::{Error, ErrorKind, shell, shown};
use flux::files::near::ignoring_case;
use flux::files::{ModelFiles, partial};
use flux::model::Quantization;
use flux::pipeline::Summary;
use flux::stage::CancelFlag;
use flux_hub::{Cache, Licence, Named, PUBLISHED, Snapshot, is_plain};
use serde::Serialize;

use super::json::print_object;
use super::signals::{self, Signals};
use super::{print, shown_as};
use crate::cli::{Download, ProgressChoice};
use flux_hub::download::{
    Done, Downloader, INDEX, MODULAR_INDEX, Options, Plan, is_offline, missing_in, verify_cached,
};
use flux_runtime::progress::{Transfers, gigabytes, say};

/// The poll interval for signals, and the grace period after one before the program is ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const END_AFTER: Duration = Duration::from_millis(500);

/// The JSON object that `--json` prints for each model.
#[derive(Serialize)]
struct Fetched<'a> {
    name: String,
    repository: &'a str,
    commit: &'a str,
    path: String,
    bytes: u64,
    licence: Option<&'a Licence>,
}

/// Downloads the models one by one. A signal stops the download and keeps the bytes that were received.
pub fn run(args: &Download, signals: &Signals) -> Result<()> {
    let names = args.names.iter().map(|name| named(name)).collect::<Result<Vec<_>>>()?;
    if let Some(revision) = args.revision.as_ref().filter(|revision| !is_plain(revision)) {
        return Err(Error::usage(format!("`{revision}` is not a valid revision name")).at("--revision"));
    }
    if args.folder.is_some() && names.len() > 1 {
        return Err(Error::usage("one folder can hold only one model").at("--folder").hint("download them one by one"));
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
        print_kept(args.quiet);
    }
    done
}

/// Ends the program shortly after a signal, because a silent server would block the download. The partial file is valid
/// at any moment: the next download resumes from it.
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
        print_kept(quiet);
        say(Error::cancelled().what());
        partial::remove_all();
        process::exit(signals.exit_code().into());
    }
}

fn print_kept(quiet: bool) {
    if !quiet {
        say("the downloaded part is kept: run the same command to resume");
    }
}

/// Parses the name of a model or repository.
///
/// Errors when the text is not a valid name.
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
    let downloader = Downloader::new(args.retry_wait, cancel, move |note| print_note(quiet, note))?;
    let plan = downloader.plan(named, args.revision.as_deref())?;
    if !quiet {
        say(&shown(&summary(&plan)));
    }
    let options = Options { folder: args.folder.as_deref(), verify: args.verify };
    let Done { path, bytes } = downloader.fetch(&plan, &options, &mut transfers)?;
    print_result(args, named, &plan.commit, &path, bytes, plan.licence.as_ref())
}

/// Takes a model from the cache, without using the network.
fn from_cache(args: &Download, named: &Named, transfers: &mut Transfers, cancel: &CancelFlag) -> Result<()> {
    let offline = |what: String| Error::new(what).hint("HF_HUB_OFFLINE forbids network access: unset it to download");
    if args.folder.is_some() {
        return Err(offline("downloading to a folder requires network access".to_string()));
    }
    let cached = Cache::from_environment()?.repository(&named.repository)?;
    let snapshot = cached.snapshot(args.revision.as_deref());
    let path = match (&snapshot, &named.file) {
        (Some(snapshot), Some(file)) => ignoring_case(&snapshot.path, file)?,
        (Some(snapshot), None) => Some(snapshot.path.clone()),
        (None, _) => None,
    };
    let Some((snapshot, path)) = snapshot.zip(path.filter(|path| path.exists())) else {
        return Err(offline(format!("`{named}` is not in the cache")));
    };
    if named.file.is_none() {
        check_whole(named, &snapshot).map_err(|what| offline(what).at_path(&snapshot.path))?;
    }
    if args.verify {
        verify_cached(named, &snapshot.path, transfers, cancel)?;
        transfers.finish();
    }
    let licence = named.published.map(|published| published.licence());
    let bytes = super::list::bytes_below(&path);
    print_result(args, named, &snapshot.commit, &path, bytes, licence.as_ref())
}

/// Errors with the first missing file if the snapshot is not a complete model.
fn check_whole(named: &Named, snapshot: &Snapshot) -> std::result::Result<(), String> {
    let path = &snapshot.path;
    if named.published.is_none()
        && [INDEX, MODULAR_INDEX].iter().all(|name| path.join(name).symlink_metadata().is_err())
    {
        let has_weights = snapshot.weights().iter().any(|file| file.exists());
        return if has_weights { Ok(()) } else { Err(format!("the cache has no weights of `{named}`")) };
    }
    let missing = missing_in(path);
    // Other tools may have skipped files that this program does not need.
    let opens = || ModelFiles::open(path).and_then(|files| Summary::read(&files, &Quantization::default())).is_ok();
    match missing.first() {
        Some(first) if !opens() => {
            let (count, are) = (missing.len(), if missing.len() == 1 { "file is" } else { "files are" });
            Err(format!("`{named}` is incomplete in the cache: {count} {are} missing, such as `{first}`"))
        }
        _ => Ok(()),
    }
}

fn print_result(
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

fn print_note(quiet: bool, note: &str) {
    if !quiet {
        say(&shown(&format!("note: {note}")));
    }
}

/// Returns a line with the repository, its size and its licence.
fn summary(plan: &Plan) -> String {
    let licence = plan.licence.as_ref().map_or("unknown, see its page".to_string(), Licence::to_string);
    format!("{}: {} in {} files; licence: {licence}", plan.named.repository, gigabytes(plan.bytes()), plan.count())
}

/// Asks whether to download a model that is not in the cache, and downloads it.
///
/// Errors when there is no terminal to ask on, the answer is no, or the download fails.
pub fn ask_and_fetch(named: &Named) -> Result<()> {
    if is_offline() || !super::ask::can_ask() {
        return Err(named.missing());
    }
    let cancel = signals::cancel_flag();
    let downloader = Downloader::new(1.0, &cancel, |note| print_note(false, note))?;
    let plan = downloader.plan(named, None).map_err(|e| e.prefixed(&format!("`{named}` is not in the cache")))?;
    if !super::ask::agrees(&format!("`{named}` is not in the cache. {}. Download it?", summary(&plan))) {
        let command = format!("flux download {}", shell::word(&named.to_string()));
        return Err(
            Error::new(format!("`{named}` is not in the cache")).hint(format!("run `{command}` to download it later"))
        );
    }
    let mut transfers = Transfers::new(false, shown_as(ProgressChoice::Auto));
    downloader.fetch(&plan, &Options { folder: None, verify: false }, &mut transfers).map(drop)
}
