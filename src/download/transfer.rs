//! The transfer of one file: it goes on where an earlier one ended, and ends with a file whose checksum is right.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};

use flux::Result;
use flux::error::Error;
use flux::hub::Repository;

use super::check::Running;
use super::client::{Answer, Client, Follow, Length, Trouble};
use super::refused::refused;
use super::remote::{RemoteFile, Sum};
use super::store::{Place, free_bytes, unwritable};
use crate::progress::Transfers;

/// Bytes that are read at once.
const PIECE: usize = 1 << 18;
/// A transfer that has come so far is not counted as one that fails again.
const FURTHER: u64 = 1 << 20;
/// How often a transfer may begin again from the start.
const MOST_RESTARTS: u32 = 10;

/// Fetches a file to its place.
///
/// Errors when the server refuses it, breaks off or sends something else too often, or the disk is full. What was
/// fetched is kept, unless its checksum is wrong.
pub fn fetch(
    client: &Client,
    of: &Repository,
    address: &str,
    file: &RemoteFile,
    place: &Place,
    shown: &mut Transfers,
) -> Result<()> {
    let options = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&place.partial);
    let mut partial = Partial {
        file: options.map_err(|e| unwritable(&e, &place.partial))?,
        running: Running::new(&file.sum, file.size),
        have: 0,
        most: 0,
        restarts: 0,
        remote: file,
        place,
        tag: None,
    };
    shown.file(&file.path, file.size);
    partial.take_over(client, shown)?;
    client.persist(|got_further| partial.attempt(client, of, address, shown, got_further))?;
    // The sync, not the write, reports a full disk on the network.
    partial.file.sync_all().map_err(|e| partial.unwritable(&e))?;
    drop(partial.file);
    fs::rename(&place.partial, &place.whole).map_err(|e| unwritable(&e, &place.whole))?;
    shown.fetched(&file.path, file.sum != Sum::None);
    Ok(())
}

/// A file of which a part is there.
struct Partial<'a> {
    file: File,
    /// The checksum of what is there.
    running: Running,
    have: u64,
    /// The most that was ever there: who begins again has got no further until there is more.
    most: u64,
    restarts: u32,
    remote: &'a RemoteFile,
    place: &'a Place,
    /// What the server called the content of which this is a part: where this run has begun it, or where the part is
    /// named by it. It is empty for a file without bytes.
    tag: Option<String>,
}

impl Partial<'_> {
    /// Goes on with what an earlier download has left.
    fn take_over(&mut self, client: &Client, shown: &mut Transfers) -> Result<()> {
        let length = self.file.metadata().map_err(|e| self.unwritable(&e))?.len();
        if length > self.remote.size || (length == self.remote.size && self.remote.sum == Sum::None) {
            return self.begin_again(shown);
        }
        self.have = self.running.update_from(&mut self.file, &self.place.partial, client.cancel())?;
        self.most = self.have;
        if self.have > 0 && self.remote.sum == Sum::None {
            // No checksum will tell whether the rest belongs to it. The part is named by the tag.
            self.tag = Some(format!("\"{}\"", self.remote.blob));
        }
        shown.advance(self.have);
        if self.have > 0 && self.have < self.remote.size {
            shown.line(&format!("{}: {} of {} bytes are there", self.remote.path, self.have, self.remote.size));
        }
        Ok(())
    }

    /// Errors when it was begun too often.
    fn begin_again(&mut self, shown: &mut Transfers) -> Result<()> {
        self.restarts += u32::from(self.have > 0);
        if self.restarts > MOST_RESTARTS {
            let what = format!("{}: the transfer was begun again {MOST_RESTARTS} times", self.remote.path);
            return Err(Error::new(what).hint(
                "the server breaks off and cannot go on, or sends something else each time: try again later, or name \
                 another one with HF_ENDPOINT",
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
            let before = self.most;
            let done = self.transfer(client, of, address, shown);
            *got_further = self.most - before >= FURTHER;
            done?;
        }
        let running = std::mem::replace(&mut self.running, Running::None);
        if running.is(&self.remote.sum) {
            return Ok(());
        }
        *got_further = false;
        self.begin_again(shown)?;
        let error = Error::new(format!("{}: wrong checksum, fetching it from the start", self.remote.path))
            .hint("the file on the server is damaged, or was changed meanwhile: run the same command again");
        Err(Trouble::Passing(error, Some(std::time::Duration::ZERO)))
    }

    /// One request, and its body.
    fn transfer(
        &mut self,
        client: &Client,
        of: &Repository,
        address: &str,
        shown: &mut Transfers,
    ) -> std::result::Result<(), Trouble> {
        let mut headers = Vec::new();
        if self.have > 0 && self.tag.is_none() && self.remote.sum == Sum::None {
            self.begin_again(shown)?; // nothing tells whether the rest would belong to it
        }
        if self.have > 0 {
            headers.push(("range", format!("bytes={}-", self.have)));
            // Without a tag of this run the checksum tells whether both parts are of one file. The server of the
            // content has tags of its own, so the name of a blob that has a checksum is none that it knows.
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
                let what = format!("{}: the server cannot go on in the middle", self.remote.path);
                return Err(Trouble::Passing(Error::new(what), Some(std::time::Duration::ZERO)));
            }
            // The address that a server sends us on to ends after a while: the next attempt asks for a new one.
            403 if self.have > 0 && answer.header("x-error-code").is_none() && self.tag.is_some() => {
                let what = format!("{}: the server denies access in the middle (403)", self.remote.path);
                return Err(Trouble::Passing(Error::new(what), None));
            }
            _ => return Err(refused(client, &answer, of, address)),
        }
        self.receive(client, answer, address, shown)
    }

    /// Errors when an answer is not the part that was asked for.
    fn check_range(&mut self, answer: &Answer, shown: &mut Transfers) -> std::result::Result<(), Trouble> {
        let range = answer.header("content-range").unwrap_or_default().to_string();
        let parts = range.strip_prefix("bytes ").and_then(|rest| rest.split_once('/'));
        let start = parts.and_then(|(range, _)| range.split_once('-')?.0.trim().parse::<u64>().ok());
        let is_size = parts.is_some_and(|(_, total)| total == "*" || total.parse() == Ok(self.remote.size));
        if start == Some(self.have) && is_size {
            return Ok(());
        }
        let what = format!(
            "{}: the server sends `{}`, expected the bytes from {} of {}",
            self.remote.path,
            flux::error::shortened(&range, 80),
            self.have,
            self.remote.size
        );
        self.begin_again(shown)?;
        Err(Trouble::Passing(Error::new(what).hint(super::remote::wrong_server()), None))
    }

    /// Errors when the rest of a file is of another content than its beginning, or may be.
    fn check_tag(&mut self, answer: &Answer, shown: &mut Transfers) -> std::result::Result<(), Trouble> {
        let (told, has_sum) = (strong_tag(answer), self.remote.sum != Sum::None);
        // An answer that is silent is one for the checksum.
        if self.tag.is_none() || told == self.tag || (told.is_none() && has_sum) {
            return Ok(());
        }
        self.begin_again(shown)?;
        let what = format!("{}: the server has another file by now, fetching it from the start", self.remote.path);
        Err(Trouble::Passing(Error::new(what), Some(std::time::Duration::ZERO)))
    }

    /// Errors when an answer is not as long as the file.
    fn check_length(&self, answer: &Answer) -> std::result::Result<(), Trouble> {
        let length = answer.header("content-length").and_then(|text| text.parse::<u64>().ok());
        match length.filter(|length| *length != self.remote.size) {
            None => Ok(()),
            Some(length) => Err(Trouble::Passing(self.other_size(&length.to_string()), None)),
        }
    }

    fn other_size(&self, sent: &str) -> Error {
        let RemoteFile { path, size, .. } = self.remote;
        Error::new(format!("{path}: the server sends {sent} bytes, and had told of {size}")).hint(
            "the file was changed meanwhile, or a proxy answers in the place of the server: run the command again",
        )
    }

    /// Writes what comes, and no more than the file has.
    fn receive(
        &mut self,
        client: &Client,
        answer: Answer,
        address: &str,
        shown: &mut Transfers,
    ) -> std::result::Result<(), Trouble> {
        let mut body = answer.body.into_reader();
        let mut piece = vec![0; PIECE];
        loop {
            client.check()?;
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
            self.most = self.most.max(self.have);
            shown.advance(count as u64);
        }
        if self.have == self.remote.size {
            self.tag.get_or_insert_default();
            return Ok(());
        }
        let what =
            format!("{}: the transfer ended after {} of {} bytes", self.remote.path, self.have, self.remote.size);
        Err(Trouble::Passing(Error::new(what).hint("the same command goes on where this one ended"), None))
    }

    fn unwritable(&self, error: &std::io::Error) -> Error {
        let path = &self.place.partial;
        let free = free_bytes(path.parent().unwrap_or(path)).map_or(String::new(), |free| format!(", {free} are free"));
        let missing = self.remote.size.saturating_sub(self.have);
        unwritable(error, path).prefixed(&format!("{missing} bytes of {} are missing{free}", self.remote.path))
    }
}

/// The entity tag of an answer, where equal tags mean equal bytes.
fn strong_tag(answer: &Answer) -> Option<String> {
    answer.header("etag").filter(|tag| tag.starts_with('"')).map(str::to_string)
}
