//! The progress display of a run.

use std::time::{Duration, Instant};

use super::folder;
use crate::program::{Run, SMALL, draw, flux};
use crate::pty::watch;

/// Returns the lines about stages.
fn stages(run: &Run) -> Vec<String> {
    let names = ["load", "text", "encode", "denoise", "decode", "quantize"];
    let first = |line: &str| line.split([' ', ',']).next().unwrap_or_default().to_string();
    run.stderr.lines().map(first).filter(|word| names.contains(&word.as_str())).collect()
}

#[test]
fn stages_are_lines_bars_or_nothing_as_is_asked_for() {
    let folder = folder();
    let run =
        |flags: &[&str]| draw(&folder, &[&["-p", "a cat", "-S", "1", "-o", "out.png"], flags].concat()).succeeds();
    let plain = run(&["--progress", "plain"]);
    let mut each = stages(&plain);
    assert!(plain.stderr.contains("denoise 1/1, ") && each.contains(&"text".to_string()), "{}", plain.stderr);
    each.sort();
    let count = each.len();
    each.dedup();
    assert_eq!(each.len(), count, "each once: {}", plain.stderr);
    for flags in [&["--progress", "none"][..], &["--progress", "plain", "-q"], &[], &["--progress", "auto"]] {
        let start = Instant::now();
        let shown = stages(&run(flags));
        // On a busy machine the run may be long enough for progress lines.
        assert!(shown.is_empty() || start.elapsed() > Duration::from_secs(10) && !flags.contains(&"none"), "{flags:?}");
    }
    let bars = run(&["--progress", "bar"]);
    assert!(
        bars.stderr.contains("note: standard error is not a terminal") && !stages(&bars).is_empty(),
        "{}",
        bars.stderr
    );
    draw(&folder, &["-p", "a cat", "--progress", "dots"]).fails(2, &["--progress", "auto, bar, plain, none"]);
    let convert = ["convert", "x.gguf", "--format", "q8_0", "--progress", "plain"];
    let tiny = crate::program::project("models/tiny");
    let mut command = flux();
    let run = Run::new(command.current_dir(&folder).args(&convert[..1]).arg(&tiny).args(&convert[1..])).succeeds();
    assert_eq!(stages(&run), ["quantize"]);
}

/// Returns the output on a terminal of 40 columns.
fn on_a_terminal(folder: &std::path::Path, flags: &[&str]) -> String {
    watch(flux().current_dir(folder).args(SMALL).args(flags).env("TERM", "xterm"), 40).shown
}

/// Returns the rows of a terminal that is never full: text, line ends, and erased rows.
fn rows(shown: &str) -> Vec<String> {
    let row = |text: &str| {
        let mut row = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '\r' => row.clear(),
                '\u{1b}' => {
                    let end = rest.find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |end| end + 1);
                    if rest[..end].ends_with('K') {
                        row.clear();
                    }
                    rest = &rest[end..];
                }
                _ => row.push(c),
            }
        }
        row
    };
    shown.replace("\r\n", "\n").split('\n').map(row).collect()
}

#[test]
fn at_40_columns_nothing_breaks_inside_a_word_and_no_bar_is_left() {
    let folder = folder();
    let flags = ["-p", "ein roter Kreis <lora:x>", "-S", "4294967297", "-o", "out.png"];
    let shown = on_a_terminal(&folder, &flags);
    assert!(shown.contains("denoise"), "bars are drawn: {shown:?}");
    let rows = rows(&shown);
    let words = rows.iter().flat_map(|row| row.split_whitespace()).collect::<Vec<_>>().join(" ");
    for note in [
        "note: `<lora:x>` is read as part of the prompt; to use an adapter, pass `--lora x.safetensors:1`",
        "note: seed 4294967297 generates the same image as seed 1: seeds repeat after 2^32, as in the reference",
        "wrote out.png in",
    ] {
        assert!(words.contains(note), "{words}");
    }
    let long = rows.iter().find(|row| row.chars().count() > 40);
    assert_eq!(long, None, "{shown:?}");
    assert!(!rows.iter().any(|row| row.contains("denoise") || row.contains("decode")), "{rows:?}");
    // Errors, too.
    let error = on_a_terminal(&folder, &["-p", "x", "--fp8-cache"]);
    assert!(rows_are_within(&error, 40) && error.contains("hint: "), "{error:?}");
    let clap = on_a_terminal(&folder, &["-p", "x", "--precision", "f16"]);
    assert!(rows_are_within(&clap, 40) && clap.contains("expected one"), "{clap:?}");
}

fn rows_are_within(shown: &str, columns: usize) -> bool {
    rows(shown).iter().all(|row| row.chars().count() <= columns)
}
