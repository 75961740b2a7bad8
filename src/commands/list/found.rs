//! One line of the list: a model, a part of one or an adapter.

use std::fs;
use std::path::{Path, PathBuf};

use flux::error::Error;
use flux::files::{Content, ModelFiles, Role, read_text, survey};
use flux::hub::Licence;
use flux::model::Quantisation;
use flux::pipeline::Summary;
use serde::Serialize;

/// The longest card that is read.
const CARD_BYTES: usize = 1 << 20;
/// The most files of a model that are counted.
const MOST_FILES: usize = 10_000;

/// What is listed.
#[derive(Debug, Serialize)]
pub struct Entry {
    /// What `--dir` or `--lora` takes for it.
    pub name: String,
    /// What it is; `damaged` where that cannot be told.
    pub kind: &'static str,
    /// The format of most of its weights.
    pub format: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Its licence, where its card or the table of short names tells it.
    pub licence: Option<Licence>,
    /// Where it is.
    pub path: String,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl Entry {
    /// A model in folders.
    pub fn of_model(name: String, path: &Path, licence: Option<Licence>) -> Self {
        let read = ModelFiles::open(path).and_then(|files| Summary::read(&files, &Quantisation::default()));
        let (kind, format, fault) = match read {
            Ok(summary) => {
                let transformer = summary.components.iter().find(|part| part.role == Role::Transformer);
                let most = transformer.and_then(|part| part.formats.iter().max_by_key(|(_, values)| **values));
                ("model", most.map(|(format, _)| format.clone()).unwrap_or_default(), None)
            }
            Err(error) => ("damaged", String::new(), Some(fault(&error))),
        };
        Self { name, kind, format, bytes: bytes_below(path), licence, path: path.display().to_string(), fault }
    }

    /// A file of weights, or the shards of one; none where it is nothing that this program runs.
    pub fn of_files(name: String, files: &[PathBuf], path: &Path, licence: Option<Licence>) -> Option<Self> {
        let (kind, format, fault) = match survey(files) {
            Ok(found) => {
                let kind = match found.content {
                    Content::Part(role) => role.title(),
                    Content::Model => "model",
                    Content::Adapter => "adapter",
                    Content::Other => return None,
                };
                (kind, found.format, None)
            }
            Err(error) => ("damaged", String::new(), Some(fault(&error))),
        };
        let bytes = files.iter().map(|file| bytes_below(file)).sum();
        Some(Self { name, kind, format, bytes, licence, path: path.display().to_string(), fault })
    }

    /// A repository whose download did not end.
    pub fn unfinished(name: String, path: &Path, licence: Option<Licence>) -> Self {
        let fault = Some(format!("its download did not end; `flux download {name}` goes on with it"));
        let (bytes, path) = (bytes_below(path), path.display().to_string());
        Self { name, kind: "damaged", format: String::new(), bytes, licence, path, fault }
    }
}

/// An error in one line.
fn fault(error: &Error) -> String {
    error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

/// What the card in a folder says of the licence.
pub fn licence_in(folder: &Path) -> Option<Licence> {
    Licence::of_card(&read_text(&folder.join("README.md"), CARD_BYTES).ok()?)
}

/// Bytes of a file, or of the files in a folder, behind links.
pub fn bytes_below(path: &Path) -> u64 {
    let (mut paths, mut bytes, mut left) = (vec![path.to_path_buf()], 0, MOST_FILES);
    while let Some(path) = paths.pop() {
        let Ok(found) = path.metadata() else { continue };
        if found.is_file() {
            bytes += found.len();
            continue;
        }
        // A link to a folder may lead back.
        for entry in fs::read_dir(&path).into_iter().flatten().flatten().take(left) {
            left -= 1;
            let is_linked_folder = entry.file_type().is_ok_and(|kind| kind.is_symlink()) && entry.path().is_dir();
            if !is_linked_folder {
                paths.push(entry.path());
            }
        }
    }
    bytes
}
