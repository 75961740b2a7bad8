//! A copy of the default model with a fault: links to the real files, except for the files that a test changes.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The default model's folder.
pub fn tiny() -> PathBuf {
    crate::support::root().join("models/tiny")
}

/// A model folder of its own, removed on drop.
pub struct ModelCopy {
    folder: tempfile::TempDir,
}

impl ModelCopy {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        link_all(&tiny(), folder.path());
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) {
        fs::remove_file(self.file(name)).expect("the file is a link of ours");
    }

    /// Changes the bytes of a file.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.file(name)).expect("the model has this file");
        change(&mut bytes);
        self.remove(name);
        fs::write(self.file(name), bytes).expect("a temporary folder is writable");
    }

    /// Changes a JSON object in a file.
    pub fn change_json(&self, name: &str, change: impl FnOnce(&mut Map<String, Value>)) {
        self.change(name, |bytes| {
            let mut object = serde_json::from_slice(bytes).expect("a JSON object");
            change(&mut object);
            *bytes = serde_json::to_vec(&object).expect("JSON");
        });
    }

    /// Changes the header of a safetensors file; the tensors' bytes stay.
    pub fn change_header(&self, name: &str, change: impl FnOnce(&mut Map<String, Value>)) {
        self.change(name, |bytes| {
            let end = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
            let mut header = serde_json::from_slice(&bytes[8..end]).expect("a JSON header");
            change(&mut header);
            let header = serde_json::to_vec(&header).expect("JSON");
            let mut file = (header.len() as u64).to_le_bytes().to_vec();
            file.extend(header);
            file.extend(&bytes[end..]);
            *bytes = file;
        });
    }
}

/// Links all files below `from` in `to`.
pub fn link_all(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a folder that is there") {
        let entry = entry.expect("a readable folder");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir(&target).expect("a temporary folder is writable");
            link_all(&entry.path(), &target);
        } else {
            std::os::unix::fs::symlink(entry.path(), &target).expect("a temporary folder takes links");
        }
    }
}
