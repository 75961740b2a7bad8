//! Changes between frames.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command};
use std::thread;
use std::time::{Duration, Instant};

use flux::metadata::Metadata;
use flux::output::{ImageFormat, Rgb, encode};
use serde_json::{Value, json};

use super::{QUICK, SIDE, begun, frame, jpeg, raw, raw_flags, result, run, sized};
use crate::program::{Run, signal};

/// A program that makes an image of each frame.
struct Live {
    child: Child,
    stdin: ChildStdin,
}

impl Live {
    fn begun(folder: &Path, flags: &[&str]) -> Self {
        Self::with(folder, &raw_flags(flags))
    }

    /// Starts the program with all of these flags.
    fn with(folder: &Path, flags: &[&str]) -> Self {
        let mut child = begun(folder, flags);
        let stdin = child.stdin.take().unwrap();
        Self { child, stdin }
    }

    /// Returns the image of a frame.
    fn image(&mut self, number: usize) -> Rgb {
        self.stdin.write_all(&frame(number).bytes).unwrap();
        self.next()
    }

    fn next(&mut self) -> Rgb {
        let mut bytes = vec![0; 3 * SIDE * SIDE];
        self.child.stdout.as_mut().unwrap().read_exact(&mut bytes).expect("an image");
        Rgb { width: SIDE, height: SIDE, bytes }
    }

    fn end(self) -> Run {
        drop(self.stdin);
        result(self.child.wait_with_output().unwrap()).1.succeeds()
    }
}

fn wait_for(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "it does not come");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a line, and returns the answer.
fn ask(socket: &mut BufReader<UnixStream>, line: &str) -> Value {
    socket.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn a_socket_takes_changes_and_answers_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let mut live = Live::begun(folder.path(), &["--all", "--control", "control"]);
    let first = live.image(1);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut socket = BufReader::new(UnixStream::connect(&path).unwrap());
    assert_eq!(ask(&mut socket, r#"{"seed": 8}"#), json!({"ok": true}));
    let second = live.image(1);
    assert!(second != first);
    for (line, word) in [
        ("{", "not a valid change"),
        (r#"{"promt": "x"}"#, "promt"),
        (r#"{"strength": 2}"#, "strength is 2"),
        (r#"{"references": ["none.png"]}"#, "none.png"),
    ] {
        let answer = ask(&mut socket, line);
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(word)), "{answer}");
    }
    assert!(live.image(1) == second, "what was refused changes nothing");
    // Another client, and back to the first settings.
    let mut other = BufReader::new(UnixStream::connect(&path).unwrap());
    assert_eq!(ask(&mut other, r#"{"seed": 7, "prompt": "a red circle"}"#), json!({"ok": true}));
    assert!(live.image(1) == first);
    assert_eq!(ask(&mut socket, r#"{"strength": 0.5, "steps": 2}"#), json!({"ok": true}));
    let changed = live.image(1);
    assert_eq!(ask(&mut socket, r#"{"strength": null, "steps": 1}"#), json!({"ok": true}));
    assert!(changed != first && live.image(1) == first);
    live.end();
    assert!(!path.exists(), "the socket leaves with the program");
}

#[test]
fn a_fifo_takes_changes_of_one_writer_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("control");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut live = Live::begun(folder.path(), &["--all", "--control", "control"]);
    let first = live.image(1);
    for (line, is_first) in [("{\"seed\": 8}\n", false), ("{\"seed\"\n{\"seed\": 7}\n", true)] {
        fs::write(&fifo, line).unwrap();
        wait_for(|| (live.image(1) == first) == is_first);
    }
    assert!(live.end().stderr.contains("the settings are unchanged"));
    let other = folder.path().join("file");
    fs::write(&other, "").unwrap();
    let (_, ended) = run(folder.path(), &raw_flags(&["--control", "file"]), raw([1]));
    ended.fails(2, &["neither a FIFO nor a socket", "--control", "hint: "]);
}

#[test]
fn a_file_with_the_prompt_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = folder.path().join("prompt.txt");
    fs::write(&prompt, "a red circle\n").unwrap();
    let flags = [&QUICK[..7], &["--prompt-file", "prompt.txt", "--from", "rgb24", "--size", "64x64", "--all"]].concat();
    let mut live = Live::with(folder.path(), &flags);
    let first = live.image(1);
    fs::write(&prompt, "a blue star").unwrap();
    wait_for(|| live.image(1) != first);
    // A file that is no prompt changes nothing.
    fs::write(&prompt, b"\xff\xfe").unwrap();
    fs::remove_file(&prompt).unwrap();
    fs::write(&prompt, "a red circle").unwrap();
    wait_for(|| live.image(1) == first);
    live.end();
}

#[test]
fn without_frames_each_change_is_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--no-input", "--to", "rgb24", "--size", "64x64", "--control", "control"];
    let mut live = Live::with(folder.path(), &[&QUICK[..], &flags].concat());
    let first = live.next();
    let mut socket = BufReader::new(UnixStream::connect(folder.path().join("control")).unwrap());
    ask(&mut socket, r#"{"prompt": "a blue star"}"#);
    let second = live.next();
    ask(&mut socket, r#"{"prompt": "a red circle"}"#);
    assert!(second != first && live.next() == first);
    signal(&live.child, "TERM");
    assert_eq!(live.child.wait().unwrap().code(), Some(143));
}

#[test]
fn feedback_gives_way_to_strength_between_two_frames() {
    let folder = tempfile::tempdir().unwrap();
    let mut live = Live::begun(folder.path(), &["--all", "--feedback", "0.3", "--control", "control"]);
    live.image(1);
    let mut socket = BufReader::new(UnixStream::connect(folder.path().join("control")).unwrap());
    assert_eq!(ask(&mut socket, r#"{"feedback": 0, "strength": 0.5, "steps": 2}"#), json!({"ok": true}));
    live.image(1);
    live.image(1);
    live.end();
}

#[test]
fn a_change_that_does_not_suit_the_size_of_frames_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let control = ["--strength", "0.5", "--no-self-reference", "--all", "--to", "rgb24", "--control", "control"];
    let mut child = begun(folder.path(), &[&QUICK[..3], &["-s", "2"], &QUICK[5..], &control].concat());
    let mut stdin = child.stdin.take().unwrap();
    let mut image = |stdin: &mut ChildStdin| {
        stdin.write_all(&jpeg(&sized(1, 48, 48))).unwrap();
        let mut bytes = vec![0; 3 * 48 * 48];
        child.stdout.as_mut().unwrap().read_exact(&mut bytes).expect("an image");
        bytes
    };
    let first = image(&mut stdin);
    let mut socket = BufReader::new(UnixStream::connect(folder.path().join("control")).unwrap());
    let answer = ask(&mut socket, r#"{"strength": null}"#);
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("at least 64")), "{answer}");
    assert!(image(&mut stdin) == first);
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_change_that_alters_the_size_of_images_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, width) in [("narrow.png", 64), ("wide.png", 128)] {
        let file = encode(&sized(1, width, 64), ImageFormat::Png, &Metadata::default()).unwrap();
        fs::write(folder.path().join(name), file).unwrap();
    }
    let flags = ["--no-input", "--to", "rgb24", "-i", "narrow.png", "--control", "control"];
    let mut live = Live::with(folder.path(), &[&QUICK[..], &flags].concat());
    let first = live.next();
    let mut socket = BufReader::new(UnixStream::connect(folder.path().join("control")).unwrap());
    let answer = ask(&mut socket, r#"{"references": ["wide.png"]}"#);
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("128x64")), "{answer}");
    assert_eq!(ask(&mut socket, r#"{"seed": 8}"#), json!({"ok": true}));
    assert!(live.next() != first);
    live.child.kill().unwrap();
    live.child.wait().unwrap();
}
