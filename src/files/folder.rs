//! The files of a model: in a folder on disk, or carried in the program.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::bytes::Bytes;
use super::regular;
use super::safetensors::Safetensors;
use super::tensor_files::TensorFiles;
use crate::error::{Error, Result};

const FETCH_AGAIN: &str = "the file is damaged or its download was cut off: fetch it again";
const NAME_ANOTHER: &str = "this is a fault of the program: name a model folder with `-d` instead";
/// The longest config; those of the published models have 2 kB.
const CONFIG_BYTES: usize = 1 << 20;
/// The longest list of shards.
const INDEX_BYTES: usize = 16 << 20;

/// How to get a model. An installed program has no scripts beside it.
pub const FETCH_A_MODEL: &str = "fetch `black-forest-labs/FLUX.2-klein-4B` from Hugging Face, in flux's source folder \
                                 with `scripts/download_model.sh 4b`";

/// A file that the program carries: its name in the model folder, and its bytes.
pub type EmbeddedFile = (&'static str, &'static [u8]);

/// Where the files of a model are.
#[derive(Debug, Clone)]
pub enum ModelFiles {
    /// A folder in the diffusers layout.
    Folder(PathBuf),
    /// Files that the program carries.
    Embedded(&'static [EmbeddedFile]),
}

impl ModelFiles {
    /// A folder on disk.
    ///
    /// Errors when it is no folder, or has no `model_index.json`.
    pub fn open(path: &Path) -> Result<Self> {
        let hint = || format!("{FETCH_A_MODEL}, or leave out `-d` for the default model");
        match path.metadata() {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(regular::closed_folder(&error, path)),
            Ok(found) if found.is_dir() => {}
            _ => return Err(Error::new(format!("no such model folder: `{}`", path.display())).hint(hint())),
        }
        if !regular::exists(&path.join("model_index.json")) {
            return Err(Error::new("not a model folder: `model_index.json` is missing").at_path(path).hint(hint()));
        }
        Ok(Self::Folder(path.to_path_buf()))
    }

    /// The folder, if the model is in one.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(root) => Some(root),
            Self::Embedded(_) => None,
        }
    }

    /// The path of a file, for reading or for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Folder(root) => root.join(name),
            Self::Embedded(_) => Path::new("<default model>").join(name),
        }
    }

    /// The path of a file as text.
    pub fn display(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A short name of the model, for display.
    pub fn name(&self) -> String {
        match self {
            Self::Folder(root) => {
                let full = root.canonicalize().unwrap_or_else(|_| root.clone());
                full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned()
            }
            Self::Embedded(_) => "tiny".to_string(),
        }
    }

    /// Whether there is a file of this name, or something else in its place.
    fn exists(&self, name: &str) -> bool {
        match self {
            Self::Folder(root) => regular::exists(&root.join(name)),
            Self::Embedded(files) => files.iter().any(|(file, _)| *file == name),
        }
    }

    /// Names in `folder` that end with `suffix`, sorted.
    pub fn list(&self, folder: &str, suffix: &str) -> Vec<String> {
        let mut names: Vec<String> = match self {
            Self::Folder(root) => {
                let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
                entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
            }
            Self::Embedded(files) => files
                .iter()
                .filter_map(|(file, _)| file.strip_prefix(folder)?.strip_prefix('/'))
                .map(String::from)
                .collect(),
        };
        names.retain(|name| name.ends_with(suffix));
        names.sort();
        names
    }

    /// The bytes of a file, mapped.
    pub fn bytes(&self, name: &str) -> Result<Bytes> {
        match self {
            Self::Folder(root) => Bytes::map(&root.join(name)),
            Self::Embedded(files) => {
                let found = files.iter().find(|(file, _)| *file == name);
                found.map(|(_, bytes)| Bytes::Embedded(bytes)).ok_or_else(|| {
                    Error::new("the built-in model lacks this file").at(self.display(name)).hint(NAME_ANOTHER)
                })
            }
        }
    }

    /// The bytes of a file that is at most `limit` bytes long.
    ///
    /// Errors when it is longer, cannot be read, or is no regular file.
    pub fn read(&self, name: &str, limit: usize) -> Result<Vec<u8>> {
        match self {
            Self::Folder(root) => regular::read(&root.join(name), limit),
            Self::Embedded(_) => Ok(self.bytes(name)?.as_slice().to_vec()),
        }
    }

    /// A config, in JSON.
    ///
    /// Errors when it cannot be read, is longer than any config, is no JSON, or lacks a key.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.json_within(name, CONFIG_BYTES)
    }

    fn json_within<T: DeserializeOwned>(&self, name: &str, limit: usize) -> Result<T> {
        serde_json::from_slice(&self.read(name, limit)?)
            .map_err(|e| Error::new(format!("invalid JSON: {e}")).at(self.display(name)).hint(FETCH_AGAIN))
    }

    /// The error of a config that is wrong.
    pub fn wrong_config(&self, name: &str, what: impl Into<String>) -> Error {
        let hint = "this is not the config of a klein model: fetch the whole folder again";
        Error::new(what).at(self.display(name)).hint(hint)
    }

    /// Errors with the name of the first size of a config that is not in its range.
    pub fn check_sizes(&self, name: &str, sizes: &[(&str, usize, RangeInclusive<usize>)]) -> Result<()> {
        match sizes.iter().find(|(_, size, range)| !range.contains(size)) {
            Some((key, size, range)) => {
                let what = format!("{key} is {size}, expected {} to {}", range.start(), range.end());
                Err(self.wrong_config(name, what))
            }
            None => Ok(()),
        }
    }

    /// The tensors of a component: those of `<folder>/<stem>.safetensors`, or of the shards that
    /// `<folder>/<stem>.safetensors.index.json` names, or of the only safetensors file of the folder.
    ///
    /// Errors when a file is missing, no safetensors file, cut off, or its header is wrong.
    pub fn tensors(&self, folder: &str, stem: &str) -> Result<TensorFiles> {
        let index_name = format!("{folder}/{stem}.safetensors.index.json");
        let single_name = format!("{folder}/{stem}.safetensors");
        let names = if self.exists(&single_name) {
            vec![single_name]
        } else if self.exists(&index_name) {
            self.shard_names(folder, &index_name)?
        } else {
            match self.list(folder, ".safetensors").as_slice() {
                [only] => vec![format!("{folder}/{only}")],
                _ => {
                    return Err(Error::new(format!(
                        "no weights: neither `{stem}.safetensors` nor `{stem}.safetensors.index.json`"
                    ))
                    .at(self.display(folder))
                    .hint(regular::DOWNLOAD_AGAIN));
                }
            }
        };
        let open = |name: &String| Safetensors::new(self.path(name), self.bytes(name)?, FETCH_AGAIN);
        TensorFiles::new(names.iter().map(open).collect::<Result<_>>()?)
    }

    /// The shards that an index names, each once.
    fn shard_names(&self, folder: &str, index_name: &str) -> Result<Vec<String>> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: HashMap<String, String>,
        }
        let index: Index = self.json_within(index_name, INDEX_BYTES)?;
        let mut shards: Vec<String> = index.weight_map.into_values().collect();
        shards.sort();
        shards.dedup();
        // A name with a separator could point anywhere on this machine.
        if let Some(bad) = shards.iter().find(|name| name.contains(['/', '\\']) || name.starts_with('.')) {
            return Err(Error::new(format!("the index names `{bad}`, which is no file beside it"))
                .at(self.display(index_name))
                .hint(FETCH_AGAIN));
        }
        if shards.is_empty() {
            return Err(Error::new("the index names no file").at(self.display(index_name)).hint(FETCH_AGAIN));
        }
        Ok(shards.into_iter().map(|name| format!("{folder}/{name}")).collect())
    }
}
