//! Mirrors that have the files of a repository but no list of them: the files of a model are requested by name.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{Named, Repository};
use flux_base::Result;
use flux_base::error::{Error, shortened};
use flux_files::digest::sha256;
use flux_files::{Role, read_text};

use super::client::{Answer, Client, Follow, Length};
use super::refused::{not_there, refused};
use super::remote::{self, INDEX_BYTES, MANIFEST, RemoteFile, path_of};
use super::select::{INDEX, MODULAR_INDEX, shards};

/// Files that a model must have besides its weights.
const NEEDED: [&str; 5] = [
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "tokenizer/tokenizer.json",
    "transformer/config.json",
    "vae/config.json",
];
/// Files that other programs read, and files that state the licence.
const OPTIONAL: [&str; 10] = [
    MANIFEST,
    "LICENSE.md",
    "README.md",
    "text_encoder/generation_config.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer/vocab.json",
    "tokenizer/merges.txt",
    "tokenizer/added_tokens.json",
    "tokenizer/special_tokens_map.json",
    "tokenizer/chat_template.jinja",
];

/// The files found on a mirror.
pub struct Found {
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

/// Finds the files of a model on a mirror.
///
/// Errors if a needed file is missing.
pub fn files(client: &Client, named: &Named, revision: &str) -> Result<Found> {
    let of = &named.repository;
    let mut found = Found { commit: revision.replace('/', "-"), files: Vec::new() };
    let mut add = |file: &str, is_needed: bool| -> Result<bool> {
        let Some((remote, commit)) = head(client, of, revision, file)? else {
            return if is_needed { Err(not_there(client, &path_of(of, revision, file))) } else { Ok(false) };
        };
        found.files.push(remote);
        if let Some(commit) = commit {
            found.commit = commit;
        }
        Ok(true)
    };
    if let Some(file) = &named.file {
        add(file, true)?;
        add(MANIFEST, false)?;
        return Ok(found);
    }
    if !add(MODULAR_INDEX, false)? {
        add(INDEX, true)?;
    }
    for file in NEEDED {
        add(file, true)?;
    }
    for file in OPTIONAL {
        add(file, false)?;
    }
    let mut weights = BTreeSet::new();
    for role in Role::ALL {
        let stem = format!("{}/{}.safetensors", role.folder(), role.stem());
        let index = format!("{stem}.index.json");
        if add(&index, false)? {
            let text = super::text::text(client, &path_of(of, revision, &index), remote::INDEX_BYTES, of)?;
            weights.extend(shards(&index, &text)?);
        } else {
            weights.insert(stem);
        }
    }
    for file in &weights {
        add(file, true)?;
    }
    Ok(found)
}

/// Returns the files that a model in this folder needs but lacks.
pub fn missing_in(folder: &Path) -> Vec<String> {
    let is_missing = |file: &String| !folder.join(file).exists();
    let index = if folder.join(MODULAR_INDEX).exists() { MODULAR_INDEX } else { INDEX };
    let mut wanted: BTreeSet<String> = NEEDED.into_iter().chain([index]).map(String::from).collect();
    for role in Role::ALL {
        let stem = format!("{}/{}.safetensors", role.folder(), role.stem());
        let index = format!("{stem}.index.json");
        let text = read_text(&folder.join(&index), INDEX_BYTES as usize).ok().filter(|_| is_missing(&stem));
        match text.and_then(|text| shards(&index, &text).ok()) {
            Some(shards) => wanted.extend(shards),
            None => drop(wanted.insert(stem)),
        }
    }
    wanted.into_iter().filter(is_missing).collect()
}

/// Requests the description of a file, and the commit that it belongs to.
fn head(client: &Client, of: &Repository, revision: &str, file: &str) -> Result<Option<(RemoteFile, Option<String>)>> {
    let path = path_of(of, revision, file);
    let answer = client.persist(|_| {
        // Large files are on another server; this server describes them.
        let answer = client.request("HEAD", &path, &[], (Follow::Own, Length::Text))?;
        let is_linked = matches!(answer.status, 301..=308) && answer.header("x-linked-size").is_some();
        match answer.status {
            200 => Ok(Some(answer)),
            _ if is_linked => Ok(Some(answer)),
            301..=308 => Err(elsewhere(client, file).into()),
            404 => Ok(None),
            _ => Err(refused(client, &answer, of, &path)),
        }
    })?;
    let Some(answer) = answer else { return Ok(None) };
    let size = answer.header("x-linked-size").or_else(|| answer.header("content-length"));
    let size = size.map(|size| number(size, file)).transpose()?;
    let remote = RemoteFile::new(file, size, &tag(&answer, file, size))?;
    let commit = answer.header("x-repo-commit").filter(|commit| commit.bytes().all(|byte| byte.is_ascii_hexdigit()));
    Ok(Some((remote, commit.filter(|commit| (7..=64).contains(&commit.len())).map(str::to_string))))
}

/// Parses a size, which must consist of digits only.
fn number(text: &str, file: &str) -> Result<u64> {
    let is_plain = text == "0" || (text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain).ok_or_else(|| {
        Error::new(format!("the server did not report the size of {file}, but `{}`", shortened(text, 40)))
            .hint(remote::wrong_server())
    })
}

/// Returns the entity tag if it can be a file name; else a name made of the path, the time of change and the size.
fn tag(answer: &Answer, file: &str, size: Option<u64>) -> String {
    let tag = answer.header("x-linked-etag").or_else(|| answer.header("etag")).unwrap_or_default();
    let tag = tag.trim_start_matches("W/").trim_matches('"');
    if remote::is_name(tag) {
        return tag.to_string();
    }
    let modified = answer.header("last-modified").unwrap_or_default();
    let sum = sha256(format!("{file}\n{modified}").as_bytes());
    format!("plain-{}-{}", size.unwrap_or_default(), &sum[..32])
}

fn elsewhere(client: &Client, file: &str) -> Error {
    Error::new(format!("{} redirects to another server for {file}", client.endpoint())).hint(remote::wrong_server())
}
