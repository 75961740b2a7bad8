//! Downloads from Hugging Face, or a mirror of it: what a repository has, which of it `flux` reads, and the transfer of
//! each file to the cache or to a folder.
//!
//! A file gets its name once its size and checksum are right. What was fetched of it until a download ends is kept, and
//! the next one goes on from there.

mod address;
mod api;
mod check;
mod client;
mod environment;
mod plain;
mod refused;
mod remote;
mod select;
mod store;
mod text;
mod transfer;

use std::path::{Path, PathBuf};

use flux::Result;
use flux::error::Error;
use flux::hub::{Cache, Licence, Named, Repository};
use flux::stage::CancelFlag;

use self::client::Client;
use self::remote::RemoteFile;
use self::store::Store;
use crate::progress::Transfers;

pub use self::environment::is_offline;
pub use self::plain::missing_in;
pub use self::select::{INDEX, MODULAR_INDEX};

/// What to fetch, as the server has it now.
pub struct Plan {
    /// What was named.
    pub named: Named,
    /// The commit, or on a plain mirror the revision.
    pub commit: String,
    /// The licence, where the card or the table of short names tells it.
    pub licence: Option<Licence>,
    revision: String,
    files: Vec<RemoteFile>,
}

/// What is there after a download.
pub struct Done {
    /// The folder of the model, or the file that was named.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
}

/// Where to, and how carefully.
pub struct Options<'a> {
    /// A plain folder in place of the cache.
    pub folder: Option<&'a Path>,
    /// Whether the checksums of files that are there are computed once more.
    pub verify: bool,
}

/// A server, and what it may be asked for.
pub struct Downloader {
    client: Client,
    cancel: CancelFlag,
}

impl Plan {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// How many files there are.
    pub fn count(&self) -> usize {
        self.files.len()
    }
}

impl Downloader {
    /// The server that the environment names. `tell` gets the notes.
    ///
    /// Errors when its address is none, or the user's token has characters that no token has.
    pub fn new(retry_wait: f64, cancel: &CancelFlag, tell: impl Fn(&str) + 'static) -> Result<Self> {
        Ok(Self { client: Client::of_environment(retry_wait, cancel, Box::new(tell))?, cancel: cancel.clone() })
    }

    /// What there is to fetch of a model.
    ///
    /// Errors when the server cannot be reached, has no such repository, asks for a token, or what it says is no list
    /// of files.
    pub fn plan(&self, named: &Named, revision: Option<&str>) -> Result<Plan> {
        let revision = revision.unwrap_or("main").to_string();
        let repository = &named.repository;
        let card = api::card(&self.client, repository, &revision)?;
        let (commit, licence, mut files) = match card {
            Some(card) => {
                let all = api::files(&self.client, repository, &card.commit)?;
                let files = select::of_list(named, all, |index| {
                    let path = remote::path_of(repository, &card.commit, index);
                    text::text(&self.client, &path, remote::INDEX_BYTES, repository)
                })?;
                (card.commit, card.licence, files)
            }
            None => {
                let found = plain::files(&self.client, named, &revision)?;
                (found.commit, None, found.files)
            }
        };
        self.apply_manifest(repository, &commit, &mut files)?;
        let licence = licence.or_else(|| Some(named.published?.licence()));
        Ok(Plan { named: named.clone(), commit, licence, revision, files })
    }

    /// Has the checksums of a mirror's `SHA256SUMS` count, where there is one among the files.
    fn apply_manifest(&self, repository: &Repository, commit: &str, files: &mut Vec<RemoteFile>) -> Result<()> {
        let Some(place) = files.iter().position(|file| file.path == remote::MANIFEST) else { return Ok(()) };
        if files.len() == 1 {
            return Ok(()); // it was named itself
        }
        files.remove(place);
        let path = remote::path_of(repository, commit, remote::MANIFEST);
        let text = text::text(&self.client, &path, remote::MANIFEST_BYTES, repository)?;
        files.iter_mut().try_for_each(|file| file.apply_manifest(&text))
    }

    /// Fetches what is missing. `shown` shows how far it is.
    ///
    /// Errors when a file cannot be fetched or stored, or its checksum stays wrong; what was fetched of it is kept.
    pub fn fetch(&self, plan: &Plan, options: &Options<'_>, shown: &mut Transfers) -> Result<Done> {
        let repository = &plan.named.repository;
        let store = match options.folder {
            Some(folder) => Store::folder(folder, repository, &plan.commit)?,
            None => Store::cache(&Cache::of_environment()?, repository),
        };
        let mut missing = Vec::new();
        for file in &plan.files {
            self.cancel.check()?;
            if !store.has(file, options.verify, shown, &self.cancel)? {
                missing.push(file);
            }
        }
        let _whole = if missing.is_empty() { None } else { store.lock_whole(&self.cancel, shown)? };
        if !missing.is_empty() {
            store.check_space(&missing)?;
        }
        if !missing.is_empty() {
            shown.begin(missing.iter().map(|file| file.size).sum());
        }
        for file in missing {
            let _lock = store.lock(file, &self.cancel, shown)?;
            if store.has_now(file) {
                shown.advance(file.size); // another program has fetched it meanwhile
                continue;
            }
            let place = store.place(file)?;
            let address = remote::path_of(repository, &plan.commit, &file.path);
            transfer::fetch(&self.client, repository, &address, file, &place, shown)?;
            store.record(file);
        }
        shown.finish();
        let path = store.finish(&plan.files, &plan.revision, &plan.commit, plan.named.file.as_deref())?;
        Ok(Done { path, bytes: plan.bytes() })
    }
}

/// Checks what is in the cache by its checksums, without a server.
///
/// Errors when a file is damaged.
pub fn verify_cached(named: &Named, snapshot: &Path, shown: &mut Transfers, cancel: &CancelFlag) -> Result<()> {
    let damaged = store::damaged_in(snapshot, shown, cancel)?;
    match damaged.first() {
        None => Ok(()),
        Some(first) => Err(Error::new(format!("{} files have wrong checksums, such as `{first}`", damaged.len()))
            .at_path(snapshot)
            .hint(format!("`flux download {named} --verify` fetches them again, without HF_HUB_OFFLINE"))),
    }
}
