//! What a hub says of a repository: its commit, its licence and its files.

use flux::Result;
use flux::error::Error;
use flux::hub::{Licence, Repository};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::client::{Client, Trouble};
use super::remote::{RemoteFile, encoded, wrong_server};
use super::text::find_text;

/// The longest answer, and how many of them a list of files may have.
const ANSWER_BYTES: u64 = 16 << 20;
const MOST_PAGES: usize = 100;
/// The most files of a repository.
const MOST_FILES: usize = 100_000;

/// The card of a repository.
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

/// The card of a repository as of a revision; none where the server has files alone.
///
/// Errors when there is no such repository or revision, or access is denied.
pub fn card(client: &Client, repository: &Repository, revision: &str) -> Result<Option<Card>> {
    let path = format!("/api/models/{repository}/revision/{}", encoded(revision, false));
    let Some(answer) = json::<ModelAnswer>(client, &path, repository)? else { return Ok(None) };
    let (ModelAnswer { sha, card }, _) = answer;
    if !matches!(sha.len(), 40 | 64) || !sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let what = format!("the server names the commit `{}`, which is none", flux::error::shortened(&sha, 80));
        return Err(Error::new(what).hint(wrong_server()));
    }
    let said = |key: &str| card.as_ref().and_then(|card| card.get(key)).and_then(|value| value.as_str());
    let licence = Licence::of_metadata(said("license"), said("license_name"), said("license_link"));
    Ok(Some(Card { commit: sha.to_ascii_lowercase(), licence }))
}

/// All files of a repository as of a commit.
///
/// Errors when the list is none, or names a file that would lie elsewhere.
pub fn files(client: &Client, repository: &Repository, commit: &str) -> Result<Vec<RemoteFile>> {
    let mut path = format!("/api/models/{repository}/tree/{commit}?recursive=true&expand=false");
    let mut files = Vec::new();
    for _ in 0..MOST_PAGES {
        let Some((entries, next)) = json::<Vec<Entry>>(client, &path, repository)? else {
            return Err(super::refused::not_there(client, &path));
        };
        for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
            files.push(remote_file(&entry)?);
        }
        match next {
            Some(next) if files.len() < MOST_FILES => path = own_path(client, &next)?,
            _ => return Ok(files),
        }
    }
    Err(Error::new(format!("the list of the files of `{repository}` does not end")).hint(wrong_server()))
}

fn remote_file(entry: &Entry) -> Result<RemoteFile> {
    match &entry.lfs {
        Some(Lfs { oid, size }) => RemoteFile::new(&entry.path, size.or(entry.size), oid.trim_start_matches("sha256:")),
        None => RemoteFile::new(&entry.path, entry.size, entry.oid.as_deref().unwrap_or_default()),
    }
}

/// An answer in JSON, and where its next page is; none where the server is no hub. An answer that is no JSON, or was
/// cut off, is asked for again.
fn json<T: DeserializeOwned>(client: &Client, path: &str, of: &Repository) -> Result<Option<(T, Option<String>)>> {
    client.persist(|_| {
        let Some((text, headers)) = find_text(client, path, ANSWER_BYTES, of)? else { return Ok(None) };
        let next = headers.get("link").and_then(|value| next_page(value.to_str().ok()?));
        match serde_json::from_str(&text) {
            Ok(answer) => Ok(Some((answer, next))),
            Err(error) => {
                let what = format!("the answer of {} about `{of}` is not what a hub says: {error}", client.endpoint());
                Err(Trouble::Passing(Error::new(what).hint(wrong_server()), None))
            }
        }
    })
}

/// The address of the next page in a header `Link`.
fn next_page(header: &str) -> Option<String> {
    let link = header.split(',').find(|link| link.split(';').any(|part| part.trim() == "rel=\"next\""))?;
    let address = link.trim().strip_prefix('<')?.split_once('>')?.0;
    Some(address.to_string())
}

/// The path on the server of the address of a page.
///
/// Errors when it is on another server.
fn own_path(client: &Client, address: &str) -> Result<String> {
    let path = match address.strip_prefix(client.endpoint()) {
        Some(path) => path,
        // Behind a mirror the hub still names itself.
        None => {
            address.find("/api/").map(|start| &address[start..]).filter(|_| !address.contains("..")).unwrap_or(address)
        }
    };
    if path.starts_with("/api/") {
        return Ok(path.to_string());
    }
    let what = format!("the list of files goes on at `{}`, which is elsewhere", flux::error::shortened(address, 200));
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
