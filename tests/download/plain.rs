//! Mirrors without lists of files.

use super::*;
use crate::hub::first;

#[test]
fn a_mirror_without_a_list_is_asked_for_the_names_that_a_model_has() {
    for redirects in [false, true] {
        let breaks = first(2);
        let server = Hub::start(Content { redirects, ..Content::mirror(small().files) }, move |seen, _, reply| {
            if seen.method == "GET" && reply.body.len() > 5000 && breaks() {
                reply.cut = Some(5000);
            }
        });
        let home = Home::new();
        fs::create_dir_all(home.repository(KLEIN).join("refs")).unwrap();
        fs::create_dir_all(home.snapshot(KLEIN)).unwrap();
        fs::write(home.repository(KLEIN).join("refs/main"), COMMIT).unwrap();
        let run = Run::new(&mut home.download(&server, &["4b"])).succeeds();
        // Its files take precedence over files from elsewhere in the cache.
        let snapshot = home.repository(KLEIN).join("snapshots/main");
        let found = Run::new(home.flux().args(["download", "4b", "-q"]).env("HF_HUB_OFFLINE", "1")).succeeds();
        assert_eq!(found.stdout, format!("{}\n", snapshot.display()));
        assert_eq!(run.stdout, format!("{}\n", snapshot.display()));
        for (name, bytes) in small().files.iter().filter(|(name, _)| is_read(name)) {
            assert!(fs::read(snapshot.join(name)).unwrap() == *bytes, "{name}");
        }
        assert!(run.stderr.contains("licence: apache-2.0"), "by the table: {}", run.stderr);
        server.take_seen();
        Run::new(&mut home.download(&server, &["4b"])).succeeds();
        let seen = server.take_seen();
        assert!(seen.iter().all(|seen| seen.method == "HEAD" || seen.path.starts_with("/api/")), "{seen:?}");
    }
}

#[test]
fn the_checksums_of_a_manifest_count_more_than_tags() {
    let with_sum = |sum: &str| {
        let mut files = small().files;
        files.insert("SHA256SUMS".to_string(), format!("{sum}  model_index.json\n").into_bytes());
        Hub::start(Content::mirror(files), fine)
    };
    let home = Home::new();
    let server = with_sum(&"a".repeat(64));
    Run::new(&mut home.download(&server, &["4b"])).fails(1, &["model_index.json: wrong checksum"]);
    for sum in ["0", "\u{1b}[31m", &"g".repeat(64)] {
        let run = Run::new(&mut home.download(&with_sum(sum), &["4b"])).fails(1, &["SHA256SUMS has an invalid "]);
        assert!(!run.stderr.contains('\u{1b}'), "{}", run.stderr);
    }
}

#[test]
fn a_mirror_without_the_model_is_said_to_lack_it() {
    let server = Hub::start(Content::mirror(BTreeMap::new()), fine);
    Run::new(&mut Home::new().download(&server, &["4b"])).fails(1, &["(404)", "model_index.json", "HF_ENDPOINT"]);
    for size in ["08", "0x10", "1e3", "-1", "99999999999999999999", "1 2"] {
        let server = Hub::start(Content::mirror(small().files), move |seen, _, reply| {
            if seen.method == "HEAD" {
                reply.set("X-Linked-Size", size);
            }
        });
        Run::new(&mut Home::new().download(&server, &["4b"]))
            .fails(1, &["did not report the size of model_index.json", size]);
    }
}
