//! A folder of files, on disk or embedded in the program.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::catalog::fetch::complete_the_download;
use crate::containers::container::{Container, is_weights};
use crate::containers::safetensors::Safetensors;
use crate::containers::tensor_files::TensorFiles;
use crate::io::bytes::Bytes;
use crate::io::content;
use crate::io::regular;
use flux_base::error::{Error, Field, Result};

pub(crate) const FETCH_AGAIN: &str = "the file is damaged or its download was cut off: fetch it again";
/// The max size of a config, in bytes. The configs of published models have 2 kB.
const CONFIG_BYTES: usize = 1 << 20;
/// The max size of a list of shards, in bytes.
const INDEX_BYTES: usize = 16 << 20;

/// A file that is embedded in the program: its name in the model folder, and its bytes.
pub type EmbeddedFile = (&'static str, &'static [u8]);

/// A folder of files.
#[derive(Debug, Clone)]
pub enum Folder {
    /// A folder on disk.
    Disk(PathBuf),
    /// Embedded files below a path.
    Embedded(&'static [EmbeddedFile], String),
}

impl Folder {
    /// Returns the folder `name` in this one.
    pub fn sub(&self, name: &str) -> Self {
        match self {
            Self::Disk(root) => Self::Disk(root.join(name)),
            Self::Embedded(files, below) => Self::Embedded(files, format!("{below}{name}/")),
        }
    }

    /// Returns the path, if the folder is on disk.
    pub fn on_disk(&self) -> Option<&Path> {
        match self {
            Self::Disk(root) => Some(root),
            Self::Embedded(..) => None,
        }
    }

    /// Returns the path of a file, for reading or for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Disk(root) => root.join(name),
            Self::Embedded(_, below) => Path::new("<default model>").join(below).join(name),
        }
    }

    /// Returns the path of a file as text.
    pub fn display(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Returns `true` if there is a file of this name, or something else in its place.
    pub fn exists(&self, name: &str) -> bool {
        match self {
            Self::Disk(root) => regular::exists(&root.join(name)),
            Self::Embedded(..) => self.embedded(name).is_some(),
        }
    }

    /// Returns the bytes of an embedded file.
    fn embedded(&self, name: &str) -> Option<&'static [u8]> {
        let Self::Embedded(files, below) = self else { return None };
        files.iter().find(|(file, _)| file.strip_prefix(below.as_str()) == Some(name)).map(|(_, bytes)| *bytes)
    }

    /// Returns the names of files that are `wanted`, sorted.
    pub fn list(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let mut names: Vec<String> = match self {
            Self::Disk(root) => {
                let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
                entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
            }
            Self::Embedded(files, below) => {
                files.iter().filter_map(|(file, _)| file.strip_prefix(below.as_str())).map(String::from).collect()
            }
        };
        names.retain(|name| wanted(name));
        names.sort();
        names
    }

    /// Returns the bytes of a file, mapped.
    ///
    /// Errors if the file does not exist or cannot be mapped or read.
    pub fn bytes(&self, name: &str) -> Result<Bytes> {
        match self {
            Self::Disk(root) => Bytes::map_or(&root.join(name), &complete_the_download()),
            Self::Embedded(..) => self.embedded(name).map(Bytes::Embedded).ok_or_else(|| {
                let hint = format!("this is a bug: pass a model folder with `{}` instead", Field::Model);
                Error::new("the built-in model lacks this file").at(self.display(name)).hint(hint)
            }),
        }
    }

    /// Reads a file of at most `limit` bytes.
    ///
    /// Errors if it is longer, cannot be read, or is not a regular file.
    pub fn read(&self, name: &str, limit: usize) -> Result<Vec<u8>> {
        match self {
            Self::Disk(root) => regular::read(&root.join(name), limit),
            Self::Embedded(..) => Ok(self.bytes(name)?.as_slice().to_vec()),
        }
    }

    /// Reads a config in JSON.
    ///
    /// Errors if it cannot be read, is longer than any config, is no JSON, or lacks a key.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.json_within(name, CONFIG_BYTES)
    }

    /// Returns the class that a config in JSON names.
    ///
    /// Errors as [`Folder::json`].
    pub(crate) fn class(&self, name: &str) -> Result<Option<String>> {
        #[derive(serde::Deserialize)]
        struct Class {
            #[serde(rename = "_class_name")]
            name: Option<String>,
        }
        self.json(name).map(|class: Class| class.name)
    }

    fn json_within<T: DeserializeOwned>(&self, name: &str, limit: usize) -> Result<T> {
        let bytes = self.read(name, limit)?;
        serde_json::from_slice(&bytes).map_err(|e| {
            let damage = content::damage(&bytes);
            damage.unwrap_or_else(|| Error::new(format!("invalid JSON: {e}"))).at(self.display(name)).hint(FETCH_AGAIN)
        })
    }

    /// Opens the weights in the folder: `<stem>.safetensors`, or the shards that `<stem>.safetensors.index.json` names,
    /// or the only file of weights in the folder.
    ///
    /// Errors if a file is missing, is no file of weights, is cut off, or has a wrong header.
    pub fn weights(&self, stem: &str) -> Result<Vec<Container>> {
        let index_name = format!("{stem}.safetensors.index.json");
        let single_name = format!("{stem}.safetensors");
        let names = if self.exists(&single_name) {
            vec![single_name]
        } else if self.exists(&index_name) {
            self.shard_names(&index_name)?
        } else {
            match self.list(|name| is_weights(name.as_ref())).as_slice() {
                [only] => vec![only.clone()],
                _ => {
                    return Err(Error::new(format!(
                        "no weights: neither `{stem}.safetensors` nor `{stem}.safetensors.index.json` exists"
                    ))
                    .at(self.path("").components().as_path().display().to_string())
                    .hint(complete_the_download()));
                }
            }
        };
        let open = |name: &String| Container::new(self.path(name), self.bytes(name)?, FETCH_AGAIN);
        let mut files = names.iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut shards: Vec<&mut Safetensors> = files.iter_mut().filter_map(Container::as_safetensors_mut).collect();
        Safetensors::gather_companions(&mut shards);
        Ok(files)
    }

    /// Opens the weights as [`Folder::weights`]. Their names must be the ones that models use.
    ///
    /// Errors as [`Folder::weights`], and if two files have a tensor of the same name.
    pub fn tensors(&self, stem: &str) -> Result<TensorFiles> {
        TensorFiles::new(self.weights(stem)?)
    }

    /// Returns the shards that an index names, each once.
    fn shard_names(&self, index_name: &str) -> Result<Vec<String>> {
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
            return Err(Error::new(format!("the index names `{bad}`, which is not a file next to it"))
                .at(self.display(index_name))
                .hint(FETCH_AGAIN));
        }
        if shards.is_empty() {
            return Err(Error::new("the index names no files").at(self.display(index_name)).hint(FETCH_AGAIN));
        }
        Ok(shards)
    }
}
