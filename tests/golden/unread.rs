//! Every file and tensor in tests/golden is read by a test.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::support::{GOLDEN_LOG, Golden, root};

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Runs the other tests of this module again, and compares the data that they read with the existing data.
#[test]
fn every_file_and_every_tensor_is_read_by_a_test() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let own_name = "every_file_and_every_tensor_is_read_by_a_test";
    let mut others = Command::new(std::env::current_exe().unwrap());
    let run = others.args(["golden::", "--skip", own_name]).env(GOLDEN_LOG, &log).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
    let log = std::fs::read_to_string(log).unwrap();
    let read: BTreeSet<String> = log.lines().map(String::from).collect();

    let is_golden = |name: &String| {
        !name.ends_with(".rs") && !["README.md", "default-model", "editing", "flux3"].contains(&name.as_str())
    };
    let mut there: BTreeSet<String> = names(&root().join("tests/golden")).into_iter().filter(is_golden).collect();
    let of_edits = names(&root().join("tests/golden/editing")).into_iter().map(|name| format!("editing/{name}"));
    let of_flux3 = names(&root().join("tests/golden/flux3")).into_iter().map(|name| format!("flux3/{name}"));
    let is_of_case = |name: &String| name.ends_with(".safetensors") || name.ends_with(".png");
    there.extend(of_flux3.filter(is_of_case));
    // tests/editing.rs reads the other files there.
    there.extend(of_edits.filter(|name| name.ends_with(".safetensors")));
    for file in there.clone().iter().filter(|name| name.ends_with(".safetensors")) {
        let tensors = Golden::open_path(&root().join("tests/golden").join(file)).names();
        there.extend(tensors.iter().map(|tensor| format!("{file}:{tensor}")));
    }
    assert!(there.len() > 100);
    let unread: Vec<_> = there.difference(&read).collect();
    assert!(unread.is_empty(), "no test reads {unread:#?}");
}

/// tests/default_model.rs generates each image of the index.
#[test]
fn every_image_of_the_default_model_is_in_the_index() {
    #[derive(serde::Deserialize)]
    struct Index {
        images: Vec<Image>,
    }
    #[derive(serde::Deserialize)]
    struct Image {
        file: String,
    }
    let folder = root().join("tests/golden/default-model");
    let index: Index = serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let listed = index.images.into_iter().map(|image| image.file).chain(["index.json".to_string()]);
    assert_eq!(names(&folder), listed.collect());
}
