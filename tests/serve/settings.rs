//! The table `[serve]` of flux.toml.

use std::fs;

use super::*;
use crate::program::{Run, flux};

#[test]
fn flags_may_stand_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flux.toml");
    let text = "[serve]\nstrict_models = true\nmax-pixels = 16384\ncors = [\"https://friend.example\"]\n\
                listen = [\"unix:flux.sock\"]\nbatch_max = 2\nquiet = false\n";
    fs::write(&path, text).unwrap();
    let mut command = flux();
    command.env("FLUX_CONFIG", &path).args(["--device", "cpu"]);
    let mut serving = Serving::from_command(&mut command, &["--batch-exact"]);
    serving.hears("ready after");
    assert!(!folder.path().join("flux.sock").exists(), "`--listen` is over the file");
    let head = ["Origin: https://friend.example"];
    let allowed = serving.ask("GET", "/v1/models", &head, b"");
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://friend.example"));
    let error = |more: Value| serving.post("/v1/images/generations", &with(small("x"), more)).error().2;
    assert_eq!((error(json!({"model": "none"})), error(json!({"size": "256x256"}))), ("model".into(), "size".into()));
    drop(serving);
    let mut serving = Serving::from_command(&mut command, &["--max-pixels", "65536"]);
    serving.hears("ready after");
    assert_eq!(serving.post("/v1/images/generations", &with(small("x"), json!({"size": "256x256"}))).status, 200);
    let set = Run::new(flux().env("FLUX_CONFIG", &path).args(["config", "--json"])).succeeds();
    let set: Value = serde_json::from_str(&set.stdout).unwrap();
    assert_eq!(set["serve"]["max-pixels"]["value"], json!(["16384"]));
}

#[test]
fn what_is_wrong_in_a_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flux.toml");
    for (text, words) in [
        ("[serve]\nqueue_maxx = 3\n", &["queue_maxx", "line 2", "queue_max,"][..]),
        ("[serve]\n\nqueue_max = 0\n", &["--queue-max", "line 3"]),
        ("[serve]\nqueue_max = true\n", &["queue_max", "line 2"]),
        ("[serve]\nqueue_max = [1, 2]\n", &["queue_max", "list"]),
        ("[serve]\nverbose = 3\n", &["verbose", "true or false"]),
        ("[serve]\nkeys = {a = 1}\n", &["keys", "line 2"]),
        ("[serve]\nhelp = true\n", &["help"]),
        ("serve = 3\n", &["line 1"]),
    ] {
        fs::write(&path, text).unwrap();
        let run = Run::new(flux().env("FLUX_CONFIG", &path).args(["serve", "--listen", "127.0.0.1:0"]));
        run.fails(2, words);
    }
}
