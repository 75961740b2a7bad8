//! File systems that cannot map files.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::again::write_adapter;
use super::folder;
use crate::program::{Run, SMALL, flux, project};
use crate::support::copy_folder;

/// Builds a library that refuses to map files below `$NO_MAPS`.
fn library(folder: &Path) -> PathBuf {
    let library = folder.join("refuse_maps.so");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(project("tests/support/refuse_maps.c"))
        .arg("-ldl")
        .status();
    assert!(made.expect("a C compiler").success());
    library
}

#[test]
fn a_file_system_without_maps_gives_the_same_image_and_a_note_if_files_are_read() {
    let folder = folder();
    let library = library(&folder);
    let share = folder.canonicalize().unwrap().join("share");
    copy_folder(&project("models/tiny"), &share.join("tiny"));
    write_adapter(&share.join("style.safetensors"), 0.3);
    let flags = ["-p", "a red circle", "-S", "7", "-d", "share/tiny", "--lora", "share/style.safetensors"];
    let made = |name: &str, refused: &[(&str, &str)]| {
        let mut command = flux();
        command.current_dir(&folder).args(SMALL).args(flags);
        command.args(["-o", name]).envs(refused.iter().copied());
        let run = Run::new(&mut command).succeeds();
        (std::fs::read(folder.join(name)).unwrap(), run.stderr)
    };
    let (usual, said) = made("usual.png", &[]);
    assert!(!said.contains("into memory"), "{said}");
    let preload = ("LD_PRELOAD", library.to_str().unwrap());
    let below = ("NO_MAPS", share.to_str().unwrap());
    let (private, said) = made("private.png", &[preload, below, ("NO_SHARED_MAPS", "1")]);
    assert!(private == usual && !said.contains("into memory"), "{said}");
    let (read, said) = made("read.png", &[preload, below]);
    assert!(read == usual, "{said}");
    for file in ["model.safetensors` was read into memory", "style.safetensors` was read into memory"] {
        assert!(said.contains(file), "{said}");
    }
}
