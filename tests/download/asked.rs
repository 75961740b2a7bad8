//! Questions on a terminal.

use super::*;
use crate::pty::{Step, converse, types, watch};

/// Answers the question of a command on a terminal. Returns its exit code and the content of the terminal.
fn asked(command: &mut Command, question: &str, answer: &'static str) -> (Option<i32>, String) {
    let played = converse(command, None, &[(question, &types(answer))]);
    (played.code, played.shown.replace('\r', ""))
}

#[test]
fn a_model_that_is_not_there_is_fetched_where_someone_agrees() {
    let hub = Hub::start(tiny(KLEIN), fine);
    let home = Home::new();
    let info = || {
        let mut info = home.flux();
        info.env("HF_ENDPOINT", hub.url()).args(["info", "4b"]);
        info
    };
    let (code, shown) = asked(&mut info(), "[y/N]", "n\n");
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("`4b` is not in the cache") && shown.contains("licence: apache-2.0"), "{shown}");
    assert!(shown.contains("Download it? [y/N]") && shown.contains("`flux download 4b`"), "{shown}");
    assert!(hub.take_seen().iter().all(|seen| seen.path.starts_with("/api/")), "nothing was fetched");
    let (code, shown) = asked(&mut info(), "[y/N]", "y\n");
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("distilled model"), "{shown}");
    let shown = watch(&mut info(), 80).shown;
    assert!(!shown.contains("Download it?"), "it is there: {shown}");

    let rm = || {
        let mut rm = home.flux();
        rm.args(["rm", "4b"]);
        rm
    };
    let (code, shown) = asked(&mut rm(), "[y/N]", "\n");
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("Remove 4b from the cache") && shown.contains("nothing was removed"), "{shown}");
    assert!(home.snapshot(KLEIN).exists());
    let (code, shown) = asked(&mut rm(), "[y/N]", "yes\n");
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("removed 4b") && !home.repository(KLEIN).exists(), "{shown}");
}

#[test]
fn a_download_on_a_terminal_shows_one_bar() {
    let hub = Hub::start(small(), |seen, _, reply| {
        if seen.path.ends_with(LARGE) {
            reply.pause = std::time::Duration::from_millis(20);
        }
    });
    let home = Home::new();
    let played = watch(&mut home.download(&hub, &["4b"]), 80);
    let shown = played.shown;
    assert_eq!(played.code, Some(0), "{shown}");
    assert!(shown.contains(" left") && shown.contains("MiB") && !shown.contains("fetched and checked"), "{shown}");
    home.has(&hub, is_read);
}

#[test]
fn ctrl_c_in_a_conversation_is_no_to_a_question_and_ends_a_download() {
    let hub = Hub::start(small(), |seen, _, reply| {
        if seen.path.starts_with("/cdn/") && seen.path.ends_with(LARGE) {
            reply.pause = std::time::Duration::from_millis(500);
        }
    });
    let home = Home::new();
    let mut chat = home.flux();
    chat.env("HF_ENDPOINT", hub.url()).env("TERM", "xterm-256color").args(["chat", "-d", "4b", "--device", "cpu"]);
    let steps: [Step<'_>; 6] = [
        ("1> ", &types("a cat\r")),
        ("[y/N] ", &types("\x03")),
        ("run `flux download 4b` to download it later", &types("")),
        ("1> ", &types("a cat\r")),
        ("[y/N] ", &types("y\n")),
        (" left", &types("\x03")),
    ];
    let ends: [Step<'_>; 2] = [("cancelled", &types("")), ("1> ", &types("\x04"))];
    let played = converse(&mut chat, None, &[steps.as_slice(), &ends].concat());
    assert_eq!((played.code, played.mode_is_kept), (Some(0), true), "{}", played.shown);
    assert!(!home.snapshot(KLEIN).join(LARGE).exists(), "{}", played.shown);
}
