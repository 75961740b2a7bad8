//! Prompts: from arguments and from standard input, invalid ones and long ones.

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{folder, texts};
use crate::program::{Run, SMALL, draw, flux, names};
use crate::pty::{converse, types};

#[test]
fn a_prompt_may_be_empty_or_come_from_standard_input() {
    let folder = folder();
    draw(&folder, &["-p", "", "-S", "1", "-o", "empty.png"]).succeeds();
    let piped = |bytes: &[u8]| {
        let mut child = flux();
        child.current_dir(&folder).args(SMALL).args(["-p", "-", "-o", "piped.png"]);
        Run::with_input(&mut child, bytes)
    };
    for bytes in [&b"two\nlines\n"[..], b"\xef\xbb\xbftwo\r\nlines\r\n\r\n"] {
        piped(bytes).succeeds();
        assert_eq!(texts(&folder.join("piped.png"))[0].1, "two\nlines");
    }
    // The same prompt as an argument.
    for prompt in ["two\nlines\n", "two\r\nlines\r\n\r\n", "\u{feff}two\r\nlines"] {
        draw(&folder, &["-p", prompt, "-o", "given.png"]).succeeds();
        assert_eq!(texts(&folder.join("given.png"))[0].1, "two\nlines", "{prompt:?}");
    }
    draw(&folder, &["-p", "a cat\rand a dog"]).fails(2, &["control character U+000D", "in: --prompt"]);
    for (bytes, words) in [
        (&b"\xff\xfe"[..], "not valid UTF-8 from byte 1 on"),
        (b"", "the prompt is empty"),
        (b"\r\n", "the prompt is empty"),
        (b"a c\0t", "character 4 of the prompt is the control character U+0000"),
        (b"a cat\rand a dog", "character 6 of the prompt is the control character U+000D"),
    ] {
        piped(bytes).fails(2, &[words, "in: standard input"]);
    }
}

#[test]
fn a_prompt_that_is_no_text_is_refused() {
    let folder = folder();
    draw(&folder, &["-p", "line\n\ttab", "-o", "out.png"]).succeeds();
    for (prompt, words) in [
        ("a \u{1b}[31mcat", "character 3 of the prompt is the control character U+001B"),
        ("\u{7f}", "character 1 of the prompt is the control character U+007F"),
        ("Käse\u{85}", "character 5 of the prompt is the control character U+0085"),
    ] {
        draw(&folder, &["-p", prompt]).fails(2, &[words, "in: --prompt"]);
    }
    let latin = std::ffi::OsStr::from_bytes(b"a k\xe4se");
    Run::new(flux().args(SMALL).arg("-p").arg(latin)).fails(2, &["UTF-8", "from byte 4 on", "in: --prompt"]);
    assert_eq!(names(&folder), ["out.png"]);
}

#[test]
fn a_prompt_that_is_cut_off_is_told_with_its_first_words() {
    let folder = folder();
    let prompt = "a cat ".repeat(400) + "and a dog";
    let run = draw(&folder, &["-p", &prompt, "-S", "1", "-o", "out.png"]).succeeds();
    let note = run.stderr.lines().find(|line| line.contains("cut off")).expect("a note");
    assert!(note.starts_with("note: the prompt is ") && note.contains(" tokens longer than the model reads"), "{note}");
    assert!(note.contains(", from `cat a cat") || note.contains(", from `a cat a"), "{note}");
    assert!(note.ends_with("...` on") && note.len() < 180, "{note}");
}

#[test]
fn someone_at_a_terminal_is_asked_for_the_prompt() {
    let folder = folder();
    let mut command = flux();
    command.current_dir(&folder).args(SMALL).args(["-p", "-", "-S", "1", "-o", "out.png"]);
    let played = converse(&mut command, None, &[("type the prompt, then press Ctrl-D", &types("a cat\n\x04"))]);
    assert!(played.code == Some(0) && played.shown.contains("wrote out.png"), "{}", played.shown);
    assert_eq!(texts(&folder.join("out.png"))[0].1, "a cat");
}

#[test]
fn a_prompt_without_a_flag_and_a_size_draw_the_same_image() {
    let folder = folder();
    let drawn = |flags: &[&str]| {
        let flags = [&["-S", "7", "-s", "1", "--device", "cpu", "--quiet", "-o", "out.png"], flags].concat();
        let run = Run::new(flux().current_dir(&folder).args(flags)).succeeds();
        assert_eq!(run.stderr, "");
        fs::read(folder.join("out.png")).unwrap()
    };
    assert_eq!(drawn(&["five cats", "--size", "48x32"]), drawn(&["-p", "five cats", "-W", "48", "-H", "32"]));
    assert_eq!(drawn(&["--size", "32", "--", "-5 degrees"]), drawn(&["-p", "-5 degrees", "--size", "32X32"]));
    let run = |flags: &[&str]| Run::new(flux().current_dir(&folder).args(flags));
    run(&["a", "red", "circle"]).fails(2, &["`a` and `red`", "in quotes"]);
    run(&["a cat", "--timings", "json"]).fails(2, &["`--timings=json`"]);
    let help = |flags: &[&str]| run(flags).succeeds().stdout;
    assert_eq!(help(&["help"]), help(&["--help"]), "the word is no prompt");
}

#[test]
fn a_prompt_that_is_too_long_is_refused_at_once() {
    let folder = folder();
    draw(&folder, &["-p", &"x".repeat(70_000), "-o", "out.png"]).fails(2, &["70000 bytes", "65536", "--prompt"]);
    let start = Instant::now();
    let mut child = flux();
    child.current_dir(&folder).args(SMALL).args(["-p", "-", "-o", "out.png"]);
    let mut child = child.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    // The program ends before it has read everything, so the pipe breaks.
    let written = child.stdin.take().expect("a pipe").write_all(&vec![b'x'; 20_000_000]);
    let output = child.wait_with_output().expect("the program ends");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(written.is_err() && output.status.code() == Some(2), "{said}");
    assert!(said.contains("65537 bytes") && said.contains("65536") && said.contains("standard input"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(names(&folder).is_empty());
}
