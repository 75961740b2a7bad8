//! Downloads from Hugging Face or a mirror: the list of a repository's files, the selection of the files that `flux`
//! reads, and the transfer of each file to the cache or to a folder. Start at [`Downloader`].
//!
//! A file gets its final name once its size and checksum are right. If a download ends early, the partial file is kept,
//! and the next download resumes it.

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

use crate::{Cache, Licence, Named, Repository};
use flux_base::Result;
use flux_base::error::Error;
use flux_base::error::shell::word;
use flux_base::stage::CancelFlag;

use self::client::Client;
use self::remote::RemoteFile;
use self::store::Store;
use flux_runtime::progress::Transfers;

pub use self::environment::is_offline;
pub use self::plain::missing_in;
pub use self::select::{INDEX, MODULAR_INDEX};

/// The files to download, as the server has them now.
pub struct Plan {
    /// The name that the user passed.
    pub named: Named,
    /// The commit; on a plain mirror, the revision.
    pub commit: String,
    /// The licence, if the model card or the table of short names states it.
    pub licence: Option<Licence>,
    revision: String,
    files: Vec<RemoteFile>,
}

/// The result of a download.
pub struct Done {
    /// The folder of the model, or the file that was named.
    pub path: PathBuf,
    /// The bytes of its files.
    pub bytes: u64,
}

/// The target of a download, and the checks of existing files.
pub struct Options<'a> {
    /// A plain folder in place of the cache.
    pub folder: Option<&'a Path>,
    /// `true` to compute the checksums of existing files again.
    pub verify: bool,
}

/// A client of a server, and the flag that cancels its downloads.
pub struct Downloader {
    client: Client,
    cancel: CancelFlag,
}

impl Plan {
    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Returns the number of files.
    pub fn count(&self) -> usize {
        self.files.len()
    }
}

impl Downloader {
    /// Creates a downloader for the server that the environment names. `report` receives the notes.
    ///
    /// Errors if the address is invalid, or the user's token has characters that no token has.
    pub fn new(retry_wait: f64, cancel: &CancelFlag, report: impl Fn(&str) + 'static) -> Result<Self> {
        Ok(Self { client: Client::from_environment(retry_wait, cancel, Box::new(report))?, cancel: cancel.clone() })
    }

    /// Returns the files to download for a model.
    ///
    /// Errors if the server cannot be reached, has no such repository, requires a token, or does not return a list of
    /// files.
    pub fn plan(&self, named: &Named, revision: Option<&str>) -> Result<Plan> {
        let revision = revision.unwrap_or("main").to_string();
        let repository = &named.repository;
        let card = api::card(&self.client, repository, &revision)?;
        let (commit, licence, mut files) = match card {
            Some(card) => {
                let all = api::files(&self.client, repository, &card.commit)?;
                let files = select::select_files(named, all, |index| {
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

    /// Uses the checksums of a mirror's `SHA256SUMS`, if it is among the files.
    fn apply_manifest(&self, repository: &Repository, commit: &str, files: &mut Vec<RemoteFile>) -> Result<()> {
        let Some(place) = files.iter().position(|file| file.path == remote::MANIFEST) else { return Ok(()) };
        if files.len() == 1 {
            return Ok(()); // the user named the list itself
        }
        files.remove(place);
        let path = remote::path_of(repository, commit, remote::MANIFEST);
        let text = text::text(&self.client, &path, remote::MANIFEST_BYTES, repository)?;
        files.iter_mut().try_for_each(|file| file.apply_manifest(&text))
    }

    /// Downloads the missing files. `shown` displays the progress.
    ///
    /// Errors if a file cannot be downloaded or stored, or its checksum stays wrong; the downloaded part is kept.
    pub fn fetch(&self, plan: &Plan, options: &Options<'_>, shown: &mut Transfers) -> Result<Done> {
        let repository = &plan.named.repository;
        let store = match options.folder {
            Some(folder) => Store::folder(folder, repository, &plan.commit)?,
            None => Store::cache(&Cache::from_environment()?, repository)?,
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
                shown.advance(file.size); // another program has downloaded it meanwhile
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

/// Checks the checksums of the files in the cache, without a server.
///
/// Errors if a file is damaged.
pub fn verify_cached(named: &Named, snapshot: &Path, shown: &mut Transfers, cancel: &CancelFlag) -> Result<()> {
    let damaged = store::damaged_in(snapshot, shown, cancel)?;
    match damaged.first() {
        None => Ok(()),
        Some(first) => Err(Error::new(format!("{} files have wrong checksums, such as `{first}`", damaged.len()))
            .at_path(snapshot)
            .hint(format!(
                "unset HF_HUB_OFFLINE, and download them again with `flux download {} --verify`",
                word(&named.to_string())
            ))),
    }
}
