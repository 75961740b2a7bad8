//! Requests to a hub about a repository: its commit, its licence and its files.

use crate::{Licence, Repository};
use flux_base::Result;
use flux_base::error::Error;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::client::{Client, Trouble};
use super::remote::{RemoteFile, encoded, wrong_server};
use super::text::find_text;

/// The max bytes of a response, and the max number of responses for a list of files.
const ANSWER_BYTES: u64 = 16 << 20;
const MAX_PAGES: usize = 100;
/// The max number of files of a repository.
const MAX_FILES: usize = 100_000;

/// The commit of a repository, and the licence on its card.
pub struct Card {
    pub commit: String,
    pub licence: Option<Licence>,
}

#[derive(Deserialize)]
struct ModelAnswer {
    sha: String,
    #[serde(default, rename = "cardData")]
    card: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    oid: Option<String>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: Option<u64>,
}

/// Requests the card of a repository at a revision; `None` if the server has only files.
///
/// Errors if there is no such repository or revision, or access is denied.
pub fn card(client: &Client, repository: &Repository, revision: &str) -> Result<Option<Card>> {
    let path = format!("/api/models/{repository}/revision/{}", encoded(revision, false));
    let Some(answer) = json::<ModelAnswer>(client, &path, repository)? else { return Ok(None) };
    let (ModelAnswer { sha, card }, _) = answer;
    if !matches!(sha.len(), 40 | 64) || !sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let what = format!("the server sent an invalid commit: `{}`", flux_base::error::shortened(&sha, 80));
        return Err(Error::new(what).hint(wrong_server()));
    }
    let said = |key: &str| card.as_ref().and_then(|card| card.get(key)).and_then(|value| value.as_str());
    let licence = Licence::from_metadata(said("license"), said("license_name"), said("license_link"));
    Ok(Some(Card { commit: sha.to_ascii_lowercase(), licence }))
}

/// Requests the list of all files of a repository at a commit.
///
/// Errors if the response is not such a list, or names a file that would be elsewhere.
pub fn files(client: &Client, repository: &Repository, commit: &str) -> Result<Vec<RemoteFile>> {
    let mut path = format!("/api/models/{repository}/tree/{commit}?recursive=true&expand=false");
    let mut files = Vec::new();
    for _ in 0..MAX_PAGES {
        let Some((entries, next)) = json::<Vec<Entry>>(client, &path, repository)? else {
            return Err(super::refused::not_there(client, &path));
        };
        for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
            files.push(remote_file(&entry)?);
        }
        match next {
            Some(next) if files.len() < MAX_FILES => path = own_path(client, &next)?,
            _ => return Ok(files),
        }
    }
    Err(Error::new(format!("the file list of `{repository}` is too long")).hint(wrong_server()))
}

fn remote_file(entry: &Entry) -> Result<RemoteFile> {
    match &entry.lfs {
        Some(Lfs { oid, size }) => RemoteFile::new(&entry.path, size.or(entry.size), oid.trim_start_matches("sha256:")),
        None => RemoteFile::new(&entry.path, entry.size, entry.oid.as_deref().unwrap_or_default()),
    }
}

/// Requests JSON, and returns it with the address of the next page; `None` if the server is not a hub. The request is
/// repeated if the response is not JSON or is cut off.
fn json<T: DeserializeOwned>(client: &Client, path: &str, of: &Repository) -> Result<Option<(T, Option<String>)>> {
    client.persist(|_| {
        let Some((text, headers)) = find_text(client, path, ANSWER_BYTES, of)? else { return Ok(None) };
        let next = headers.get("link").and_then(|value| next_page(value.to_str().ok()?));
        match serde_json::from_str(&text) {
            Ok(answer) => Ok(Some((answer, next))),
            Err(error) => {
                let what = format!("{} sent an invalid response about `{of}`: {error}", client.endpoint());
                Err(Trouble::Passing(Error::new(what).hint(wrong_server()), None))
            }
        }
    })
}

/// Returns the address of the next page in a `Link` header.
fn next_page(header: &str) -> Option<String> {
    let link = header.split(',').find(|link| link.split(';').any(|part| part.trim() == "rel=\"next\""))?;
    let address = link.trim().strip_prefix('<')?.split_once('>')?.0;
    Some(address.to_string())
}

/// Returns the path on the server of a page's address.
///
/// Errors if the page is on another server.
fn own_path(client: &Client, address: &str) -> Result<String> {
    let path = match address.strip_prefix(client.endpoint()) {
        Some(path) => path,
        // A hub behind a mirror still names its own address.
        None => {
            address.find("/api/").map(|start| &address[start..]).filter(|_| !address.contains("..")).unwrap_or(address)
        }
    };
    if path.starts_with("/api/") {
        return Ok(path.to_string());
    }
    let what =
        format!("the next page of the file list is on another server: `{}`", flux_base::error::shortened(address, 200));
    Err(Error::new(what).hint(wrong_server()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_in_a_header() {
        for (header, next) in [
            ("<https://a/b?cursor=x>; rel=\"next\"", Some("https://a/b?cursor=x")),
            ("<https://a/1>; rel=\"prev\", <https://a/2>; rel=\"next\"", Some("https://a/2")),
            ("<https://a/1>; rel=\"last\"", None),
            ("", None),
            ("https://a/1; rel=\"next\"", None),
        ] {
            assert_eq!(next_page(header).as_deref(), next, "{header}");
        }
    }
}
