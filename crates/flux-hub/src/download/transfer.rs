//! The transfer of one file: it resumes an earlier transfer, and ends with a file whose checksum is right.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};

use crate::Repository;
use flux_base::Result;
use flux_base::error::Error;

use super::check::Running;
use super::client::{Answer, Client, Follow, Length, Pace, Trouble};
use super::refused::refused;
use super::remote::{RemoteFile, Sum};
use super::store::{Place, free_bytes, open_partial, unwritable};
use flux_runtime::progress::Transfers;

/// Bytes per read.
const PIECE: usize = 1 << 18;
/// The number of new bytes from which on a transfer counts as progress.
const FURTHER: u64 = 1 << 20;
/// The max number of restarts of a transfer.
const MAX_RESTARTS: u32 = 10;

/// Downloads a file to its place.
///
/// Errors if the server refuses the file, breaks off or sends something else too often, or if the disk is full. The
/// downloaded part is kept, unless its checksum is wrong.
pub fn fetch(
    client: &Client,
    of: &Repository,
    address: &str,
    file: &RemoteFile,
    place: &Place,
    shown: &mut Transfers,
) -> Result<()> {
    let mut partial = Partial {
        file: open_partial(&place.partial)?,
        running: Running::new(&file.sum, file.size),
        have: 0,
        max_bytes: 0,
        restarts: 0,
        remote: file,
        place,
        tag: None,
    };
    shown.file(&file.path, file.size);
    partial.take_over(client, shown)?;
    client.persist(|got_further| partial.attempt(client, of, address, shown, got_further))?;
    // On a network disk, the sync rather than the write reports a full disk.
    partial.file.sync_all().map_err(|e| partial.unwritable(&e))?;
    drop(partial.file);
    fs::rename(&place.partial, &place.whole).map_err(|e| unwritable(&e, &place.whole))?;
    shown.fetched(&file.path, file.sum != Sum::None);
    Ok(())
}

/// A file that is partly downloaded.
struct Partial<'a> {
    file: File,
    /// The checksum of the downloaded part.
    running: Running,
    have: u64,
    /// The most bytes so far: after a restart there is no progress until there are more.
    max_bytes: u64,
    restarts: u32,
    remote: &'a RemoteFile,
    place: &'a Place,
    /// The server's tag of the content that the part belongs to, if this run began the part or the part is named by the
    /// tag. Empty for a file without bytes.
    tag: Option<String>,
}

impl Partial<'_> {
    /// Resumes the part that an earlier download has left.
    fn take_over(&mut self, client: &Client, shown: &mut Transfers) -> Result<()> {
        let length = self.file.metadata().map_err(|e| self.unwritable(&e))?.len();
        if length > self.remote.size || (length == self.remote.size && self.remote.sum == Sum::None) {
            return self.begin_again(shown);
        }
        self.have = self.running.update_from(&mut self.file, &self.place.partial, client.cancel())?;
        self.max_bytes = self.have;
        if self.have > 0 && self.remote.sum == Sum::None {
            // Without a checksum, only the tag tells whether the rest belongs to the part. The part is named by the
            // tag.
            self.tag = Some(format!("\"{}\"", self.remote.blob));
        }
        shown.advance(self.have);
        if self.have > 0 && self.have < self.remote.size {
            shown.line(&format!("{}: resuming after {} of {} bytes", self.remote.path, self.have, self.remote.size));
        }
        Ok(())
    }

    /// Restarts the transfer. Errors after too many restarts.
    fn begin_again(&mut self, shown: &mut Transfers) -> Result<()> {
        self.restarts += u32::from(self.have > 0);
        if self.restarts > MAX_RESTARTS {
            let what = format!("{}: the transfer was restarted {MAX_RESTARTS} times", self.remote.path);
            return Err(Error::new(what).hint(
                "the server interrupts transfers without resuming them, or its file keeps changing: try again later, \
                 or set HF_ENDPOINT to another server",
            ));
        }
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|e| self.unwritable(&e))?;
        shown.go_back(self.have);
        self.have = 0;
        self.running = Running::new(&self.remote.sum, self.remote.size);
        self.tag = None;
        Ok(())
    }

    fn attempt(
        &mut self,
        client: &Client,
        of: &Repository,
        address: &str,
        shown: &mut Transfers,
        got_further: &mut bool,
    ) -> std::result::Result<(), Trouble> {
        if self.have < self.remote.size || (self.remote.size == 0 && self.tag.is_none()) {
            let before = self.max_bytes;
            let done = self.transfer(client, of, address, shown);
            *got_further = self.max_bytes - before >= FURTHER;
            done?;
        }
        let running = std::mem::replace(&mut self.running, Running::None);
        if running.is(&self.remote.sum) {
            return Ok(());
        }
        *got_further = false;
        self.begin_again(shown)?;
        let error = Error::new(format!("{}: wrong checksum, downloading it from the start", self.remote.path))
            .hint("the file on the server is damaged or has changed: run the same command again");
        Err(Trouble::Passing(error, Some(std::time::Duration::ZERO)))
    }

    /// Sends one request and receives its body.
    fn transfer(
        &mut self,
        client: &Client,
        of: &Repository,
        address: &str,
        shown: &mut Transfers,
    ) -> std::result::Result<(), Trouble> {
        let mut headers = Vec::new();
        if self.have > 0 && self.tag.is_none() && self.remote.sum == Sum::None {
            self.begin_again(shown)?; // the rest may belong to other content
        }
        if self.have > 0 {
            headers.push(("range", format!("bytes={}-", self.have)));
            // Without a tag of this run, the checksum tells whether both parts are of one file. The server of the
            // content has its own tags, and does not know the name of a blob that has a checksum.
            headers.extend(self.tag.clone().map(|tag| ("if-range", tag)));
        }
        let answer = client.request("GET", address, &headers, (Follow::All, Length::File))?;
        match answer.status {
            206 if self.have > 0 => {
                self.check_range(&answer, shown)?;
                self.check_tag(&answer, shown)?;
            }
            200 => {
                self.begin_again(shown)?;
                self.check_length(&answer)?;
                self.tag = strong_tag(&answer);
            }
            416 if self.have > 0 => {
                self.begin_again(shown)?;
                let what = format!("{}: the server cannot resume the transfer", self.remote.path);
                return Err(Trouble::Passing(Error::new(what), Some(std::time::Duration::ZERO)));
            }
            // The address of a redirect expires after a while: the next attempt requests a new one.
            403 if self.have > 0 && answer.header("x-error-code").is_none() && self.tag.is_some() => {
                let what = format!("{}: the server denies access to the rest of the file (403)", self.remote.path);
                return Err(Trouble::Passing(Error::new(what), None));
            }
            _ => return Err(refused(client, &answer, of, address)),
        }
        self.receive(client, answer, address, shown)
    }

    /// Errors if a response is not the requested part.
    fn check_range(&mut self, answer: &Answer, shown: &mut Transfers) -> std::result::Result<(), Trouble> {
        let range = answer.header("content-range").unwrap_or_default().to_string();
        let parts = range.strip_prefix("bytes ").and_then(|rest| rest.split_once('/'));
        let start = parts.and_then(|(range, _)| range.split_once('-')?.0.trim().parse::<u64>().ok());
        let is_size = parts.is_some_and(|(_, total)| total == "*" || total.parse() == Ok(self.remote.size));
        if start == Some(self.have) && is_size {
            return Ok(());
        }
        let what = format!(
            "{}: the server sends `{}`, expected bytes from {} of {}",
            self.remote.path,
            flux_base::error::shortened(&range, 80),
            self.have,
            self.remote.size
        );
        self.begin_again(shown)?;
        Err(Trouble::Passing(Error::new(what).hint(super::remote::wrong_server()), None))
    }

    /// Errors if the rest of a file has, or may have, other content than its beginning.
    fn check_tag(&mut self, answer: &Answer, shown: &mut Transfers) -> std::result::Result<(), Trouble> {
        let (told, has_sum) = (strong_tag(answer), self.remote.sum != Sum::None);
        // If the response has no tag, the checksum decides.
        if self.tag.is_none() || told == self.tag || (told.is_none() && has_sum) {
            return Ok(());
        }
        self.begin_again(shown)?;
        let what = format!("{}: the file on the server has changed, downloading it from the start", self.remote.path);
        Err(Trouble::Passing(Error::new(what), Some(std::time::Duration::ZERO)))
    }

    /// Errors if a response is not as long as the file.
    fn check_length(&self, answer: &Answer) -> std::result::Result<(), Trouble> {
        let length = answer.header("content-length").and_then(|text| text.parse::<u64>().ok());
        match length.filter(|length| *length != self.remote.size) {
            None => Ok(()),
            Some(length) => Err(Trouble::Passing(self.other_size(&length.to_string()), None)),
        }
    }

    fn other_size(&self, sent: &str) -> Error {
        let RemoteFile { path, size, .. } = self.remote;
        Error::new(format!("{path}: the server sends {sent} bytes, but reported {size}"))
            .hint("the file has changed, or a proxy answers instead of the server: run the same command again")
    }

    /// Writes the body of a response, but no more than the size of the file.
    fn receive(
        &mut self,
        client: &Client,
        answer: Answer,
        address: &str,
        shown: &mut Transfers,
    ) -> std::result::Result<(), Trouble> {
        let mut body = answer.body.into_reader();
        let mut piece = vec![0; PIECE];
        let mut pace = Pace::new(self.have);
        loop {
            client.check()?;
            client.check_speed(&mut pace, self.have)?;
            let count = match body.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(client.broken(&error, address)),
            };
            if count as u64 > self.remote.size - self.have {
                self.begin_again(shown)?;
                return Err(Trouble::Passing(self.other_size("more"), None));
            }
            self.file.write_all(&piece[..count]).map_err(|e| self.unwritable(&e))?;
            self.running.update(&piece[..count]);
            self.have += count as u64;
            self.max_bytes = self.max_bytes.max(self.have);
            shown.advance(count as u64);
        }
        if self.have == self.remote.size {
            self.tag.get_or_insert_default();
            return Ok(());
        }
        let what =
            format!("{}: the transfer ended after {} of {} bytes", self.remote.path, self.have, self.remote.size);
        Err(Trouble::Passing(Error::new(what).hint("run the same command again to resume"), None))
    }

    fn unwritable(&self, error: &std::io::Error) -> Error {
        let path = &self.place.partial;
        let free = free_bytes(path.parent().unwrap_or(path)).map_or(String::new(), |free| format!(", {free} are free"));
        let missing = self.remote.size.saturating_sub(self.have);
        unwritable(error, path).prefixed(&format!("{missing} bytes of {} are missing{free}", self.remote.path))
    }
}

/// Returns the entity tag of a response if it is strong, so that equal tags mean equal bytes.
fn strong_tag(answer: &Answer) -> Option<String> {
    answer.header("etag").filter(|tag| tag.starts_with('"')).map(str::to_string)
}
