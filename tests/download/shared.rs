//! The cache in the state that other tools leave.

use super::*;

#[test]
fn blobs_and_parts_of_other_tools_are_taken_over() {
    let hub = Hub::start(small(), fine);
    let home = Home::new();
    let files = &hub.content().files;
    let blobs = home.repository(KLEIN).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    let encoder = &files["text_encoder/model.safetensors"];
    fs::write(blobs.join(sha256(encoder)), encoder).unwrap();
    fs::write(home.partial(&files[LARGE]), &files[LARGE][..1_000_000]).unwrap();
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    let seen = hub.take_seen();
    assert!(seen.iter().all(|seen| !seen.path.ends_with("text_encoder/model.safetensors")));
    assert!(seen.iter().any(|seen| seen.range.as_deref() == Some("bytes=1000000-")));
    home.has(&hub, is_read);
}

#[test]
fn the_variables_of_other_tools_say_where_the_cache_is() {
    let hub = Hub::start(small(), fine);
    let home = Home::new();
    let own = home.path().join("own");
    Run::new(home.download(&hub, &["4b:README.md"]).env("HF_HUB_CACHE", &own)).succeeds();
    assert!(own.join("models--black-forest-labs--FLUX.2-klein-4B/snapshots").join(COMMIT).join("README.md").exists());
    let xdg = home.path().join("xdg");
    Run::new(home.download(&hub, &["4b:README.md"]).env_remove("HF_HOME").env("XDG_CACHE_HOME", &xdg)).succeeds();
    assert!(xdg.join("huggingface/hub").is_dir());
    let someone = home.path().join("someone");
    Run::new(home.download(&hub, &["4b:README.md"]).env_remove("HF_HOME").env("HOME", &someone)).succeeds();
    assert!(someone.join(".cache/huggingface/hub").is_dir());
}
