//! Model folders with one wrong file.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::mutate;
use super::rng::Rng;

/// Returns the files below a folder, sorted.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of ours") {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Replaces a link by a file, with bytes changed by `change`.
pub fn change(path: &Path, change: impl FnOnce(&[u8]) -> Vec<u8>) {
    let bytes = change(&fs::read(path).expect("a file of ours"));
    fs::remove_file(path).expect("a link of ours");
    fs::write(path, bytes).expect("a temporary folder is writable");
}

/// Damages the contents of a file according to its kind.
pub fn damage(path: &Path, rng: &mut Rng) {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => change(path, |bytes| mutate::json(bytes, rng)),
        Some("safetensors") => change(path, |bytes| mutate::safetensors(bytes, rng)),
        _ => change(path, |bytes| mutate::damaged(bytes, rng)),
    }
}

/// Replaces a file by something else, and returns a description.
pub fn replace(path: &Path, rng: &mut Rng) -> &'static str {
    fs::remove_file(path).expect("a link of ours");
    let link = |to: &str| symlink(to, path).expect("a temporary folder takes links");
    match rng.below(11) {
        0 => "nothing",
        1 => {
            fs::create_dir(path).expect("a temporary folder is writable");
            "a folder"
        }
        2 => {
            fifo(path);
            "a FIFO"
        }
        3 => {
            link("/dev/zero");
            "/dev/zero"
        }
        4 => {
            link("/dev/null");
            "/dev/null"
        }
        5 => {
            link("none");
            "a dangling link"
        }
        6 => {
            symlink(path, path).expect("a temporary folder takes links");
            "a link to itself"
        }
        7 => {
            fs::write(path, b"").expect("a temporary folder is writable");
            "an empty file"
        }
        8 => {
            let file = fs::File::create(path).expect("a temporary folder is writable");
            file.set_len(1 << (20 + rng.below(16))).expect("a file with a hole");
            "a file of zeros"
        }
        9 => {
            link("/proc/self/environ");
            "a file of /proc"
        }
        _ => {
            fs::write(path, b"{}").expect("a temporary folder is writable");
            fs::set_permissions(path, fs::Permissions::from_mode(0o000)).expect("a file of ours");
            "an unreadable file"
        }
    }
}

#[allow(unsafe_code)]
fn fifo(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path without NUL");
    // SAFETY: the name is a string that ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}
