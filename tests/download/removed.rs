//! `flux rm`.

use super::*;

/// Creates a cache with two snapshots; the second has another VAE.
fn two_snapshots(home: &Home) -> PathBuf {
    let hub = Hub::start(small(), fine);
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    let repository = home.repository(KLEIN);
    let other = repository.join("snapshots").join("f".repeat(40));
    fs::create_dir_all(other.join("vae")).unwrap();
    let link =
        |name: &str, blob: &str| std::os::unix::fs::symlink(format!("../../blobs/{blob}"), other.join(name)).unwrap();
    let blob = home.snapshot(KLEIN).join("model_index.json").read_link().unwrap();
    link("model_index.json", blob.file_name().unwrap().to_str().unwrap());
    fs::write(repository.join("blobs").join("a".repeat(64)), noise(1234, 1)).unwrap();
    link("only-here", &"a".repeat(64));
    fs::write(repository.join("refs/other"), "f".repeat(40)).unwrap();
    repository
}

fn remove(home: &Home, arguments: &[&str]) -> Run {
    Run::new(home.flux().arg("rm").args(arguments))
}

#[test]
fn a_model_is_removed_as_a_whole_and_nothing_else() {
    let home = Home::new();
    let repository = two_snapshots(&home);
    let neighbour = home.repository("someone/else");
    fs::create_dir_all(neighbour.join("blobs")).unwrap();
    fs::write(neighbour.join("blobs/x"), "x").unwrap();
    let outside = home.path().join("outside");
    fs::write(&outside, "mine").unwrap();
    std::os::unix::fs::symlink(&outside, home.snapshot(KLEIN).join("mine")).unwrap();
    std::os::unix::fs::symlink(home.path(), repository.join("snapshots").join("b".repeat(40))).unwrap();
    fs::create_dir(repository.join("trees")).unwrap();
    fs::write(repository.join("trees/list.json"), "[]").unwrap();

    remove(&home, &["4b"]).fails(2, &["requires a terminal", "`flux rm --yes 4b`"]);
    assert!(repository.exists());
    let run = remove(&home, &["4b", "--yes"]).succeeds();
    assert!(run.stdout.is_empty() && run.stderr.contains("removed 4b: 3.3 MB"), "{}", run.stderr);
    assert!(neighbour.join("blobs/x").exists() && outside.exists());
    assert!(!repository.exists(), "with what other tools keep there, and links");
    remove(&home, &["9b", "--yes"]).fails(1, &["the cache has no `black-forest-labs/FLUX.2-klein-9B`", "flux list"]);
    remove(&home, &["../../x", "--yes"]).fails(2, &["unknown model"]);
}

#[test]
fn a_removed_revision_keeps_the_blobs_that_another_one_uses() {
    let home = Home::new();
    let repository = two_snapshots(&home);
    let shared = home.snapshot(KLEIN).join("model_index.json").canonicalize().unwrap();
    remove(&home, &["4b", "--revision", "none", "-y"]).fails(1, &["no such revision"]);
    let run = remove(&home, &["4b", "--revision", "main", "-y"]).succeeds();
    assert!(run.stderr.contains("removed 4b"), "{}", run.stderr);
    assert!(!home.snapshot(KLEIN).exists() && shared.exists());
    assert_eq!(names_in(&repository.join("blobs")).len(), 2);
    assert_eq!(names_in(&repository.join("refs")), ["other"]);
    let run = remove(&home, &["4b:only-here", "-y"]).succeeds();
    assert!(run.stderr.contains("1.2 kB"), "{}", run.stderr);
    assert_eq!(names_in(&repository.join("blobs")).len(), 1);
    remove(&home, &["4b:none", "-y"]).fails(1, &["no file `4b:none`"]);
    remove(&home, &["4b", "-y"]).succeeds();
    assert!(!repository.exists());
}

#[test]
fn links_in_place_of_a_repository_and_blobs_elsewhere_are_left_alone() {
    let home = Home::new();
    let elsewhere = home.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("blobs")).unwrap();
    fs::write(elsewhere.join("blobs/x"), "x").unwrap();
    fs::create_dir_all(home.path().join("hub")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, home.repository(KLEIN)).unwrap();
    remove(&home, &["4b", "-y"]).fails(1, &["this is a link"]);
    assert!(elsewhere.join("blobs/x").exists());

    fs::remove_file(home.repository(KLEIN)).unwrap();
    let repository = two_snapshots(&home);
    let blobs = repository.join("blobs");
    let moved = home.path().join("moved");
    fs::rename(&blobs, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &blobs).unwrap();
    let count = names_in(&moved).len();
    remove(&home, &["4b", "-y"]).succeeds();
    assert!(!repository.exists());
    assert_eq!(names_in(&moved).len(), count);
}

#[test]
fn what_lies_behind_links_in_the_cache_is_never_removed() {
    let home = Home::new();
    let repository = two_snapshots(&home);
    let snapshot = home.snapshot(KLEIN);
    let outside = home.path().join("outside");
    let link = |from: &Path| std::os::unix::fs::symlink(&outside, from).unwrap();

    // A folder of a snapshot.
    fs::rename(snapshot.join("vae"), &outside).unwrap();
    fs::write(outside.join("mine.txt"), "mine").unwrap();
    link(&snapshot.join("vae"));
    let kept = names_in(&outside);
    remove(&home, &["4b:vae/mine.txt", "-y"]).fails(1, &["this is a link", "in: ", "/vae"]);
    assert_eq!(names_in(&outside), kept);
    // The link itself belongs to the snapshot.
    remove(&home, &["4b:vae", "--revision", "main", "-y"]).succeeds();
    assert!(snapshot.join("vae").symlink_metadata().is_err() && names_in(&outside) == kept);

    // The blobs.
    fs::remove_dir_all(&outside).unwrap();
    fs::rename(repository.join("blobs"), &outside).unwrap();
    link(&repository.join("blobs"));
    let kept = names_in(&outside);
    for arguments in [&["4b", "--revision", "main", "-y"][..], &["4b:only-here", "-y"]] {
        remove(&home, arguments).fails(1, &["this is a link", "/blobs"]);
        assert!(names_in(&outside) == kept && snapshot.exists(), "{arguments:?}");
    }
    fs::remove_file(repository.join("blobs")).unwrap();
    fs::rename(&outside, repository.join("blobs")).unwrap();

    // The snapshots.
    fs::rename(repository.join("snapshots"), &outside).unwrap();
    fs::create_dir(outside.join("mine")).unwrap();
    fs::write(outside.join("mine/mine.txt"), "mine").unwrap();
    link(&repository.join("snapshots"));
    for name in ["4b", "4b:model_index.json"] {
        remove(&home, &[name, "-y"]).fails(1, &["this is a link", "/snapshots"]);
        assert!(outside.join("mine/mine.txt").exists() && outside.join(COMMIT).join("model_index.json").is_symlink());
    }
}

#[test]
fn a_folder_is_no_file_and_names_given_twice_are_one() {
    let home = Home::new();
    two_snapshots(&home);
    let run =
        remove(&home, &["4b:vae", "-y"]).fails(2, &["`4b:vae` is a folder, expected a file", "`4b` for the whole"]);
    assert!(!run.stderr.contains("write permission"), "{}", run.stderr);
    let run = remove(&home, &["4b:only-here", "4b", KLEIN, "4b", "-y", "--json"]).succeeds();
    assert_eq!(run.stdout.lines().count(), 1, "{}", run.stdout);
    assert!(!home.repository(KLEIN).exists());
    two_snapshots(&home);
    let file = "4b:only-here";
    let run = remove(&home, &[file, file, "-y"]).succeeds();
    assert_eq!(run.stderr.matches("removed").count(), 1, "{}", run.stderr);
}
