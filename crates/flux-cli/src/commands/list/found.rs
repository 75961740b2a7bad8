//! One entry of the list: a model, a component of a model, or an adapter.

use std::fs;
use std::path::{Path, PathBuf};

use flux::error::Error;
use flux::error::shell::word;
use flux::files::{Content, ModelFiles, Role, read_text, survey};
use flux::model::Quantization;
use flux::pipeline::Summary;
use flux_hub::Licence;
use serde::Serialize;

/// Maximum size of a model card, in bytes.
const CARD_BYTES: usize = 1 << 20;
/// Maximum number of files of a model that are counted.
const MAX_FILES: usize = 10_000;

/// An entry of the list.
#[derive(Debug, Serialize)]
pub struct Entry {
    /// The value of `--dir` or `--lora` that selects it.
    pub name: String,
    /// The kind; `damaged` if it cannot be determined.
    pub kind: &'static str,
    /// The format of most of its weights.
    pub format: String,
    /// The size of its files, in bytes.
    pub bytes: u64,
    /// The licence, if the model card or the table of published models names one.
    pub licence: Option<Licence>,
    /// The path of the file or folder.
    pub path: String,
    /// The fault, if it is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl Entry {
    /// Returns the entry of a model folder.
    pub fn for_model(name: String, path: &Path, licence: Option<Licence>) -> Self {
        let read = ModelFiles::open(path).and_then(|files| Summary::read(&files, &Quantization::default()));
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

    /// Returns the entry of a weights file or its shards. `None` if this program cannot use it.
    pub fn for_files(name: String, files: &[PathBuf], path: &Path, licence: Option<Licence>) -> Option<Self> {
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

    /// Returns the entry of a repository with an incomplete download.
    pub fn unfinished(name: String, path: &Path, licence: Option<Licence>) -> Self {
        let fault = Some(format!("incomplete download; run `flux download {}` to resume it", word(&name)));
        let (bytes, path) = (bytes_below(path), path.display().to_string());
        Self { name, kind: "damaged", format: String::new(), bytes, licence, path, fault }
    }
}

/// Formats an error as one line.
fn fault(error: &Error) -> String {
    error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

/// Returns the licence in a folder's model card.
pub fn licence_in(folder: &Path) -> Option<Licence> {
    Licence::from_card(&read_text(&folder.join("README.md"), CARD_BYTES).ok()?)
}

/// Returns the size of a file, or of all files in a folder, following links.
pub fn bytes_below(path: &Path) -> u64 {
    let (mut paths, mut bytes, mut left) = (vec![path.to_path_buf()], 0, MAX_FILES);
    while let Some(path) = paths.pop() {
        let Ok(found) = path.metadata() else { continue };
        if found.is_file() {
            bytes += found.len();
            continue;
        }
        // A linked folder could form a cycle.
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
