//! Readers that stall or disconnect, frames that are broken or have another size, streams that end anywhere.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{QUICK, SIDE, begun, frame, images, jpeg, raw, raw_flags, run, sized, still, told};
use crate::program::{Run, flux, signal};

/// Maximum time to end, in any state.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the result of a program that should end by itself.
fn ended(mut child: Child) -> Run {
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if start.elapsed() > PATIENCE => {
                child.kill().unwrap();
                panic!("it does not end");
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    Run { code: status.code(), stdout: String::new(), stderr }
}

#[test]
fn a_broken_frame_costs_no_other_and_another_size_is_brought_to_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut broken = jpeg(&frame(2));
    let half = broken.len() / 2;
    broken.truncate(half);
    let stream = [jpeg(&frame(1)), broken.clone(), jpeg(&sized(3, 128, 96)), jpeg(&frame(4))].concat();
    let flags = [&QUICK[..], &["--all", "--to", "rgb24", "--stats"]].concat();
    let (bytes, run) = run(folder.path(), &flags, stream);
    let run = run.succeeds();
    assert_eq!((images(&bytes).len(), &told(&run)["broken"]), (3, &1.into()));
    assert!(run.stderr.contains("broken frames: 1"), "{}", run.stderr);
    let last = flux::input::read_bytes(&jpeg(&frame(4))).unwrap();
    assert!(images(&bytes)[2] == still(folder.path(), &last, &[]));
    // The first one, too.
    let (bytes, run) = super::run(folder.path(), &flags, [broken, jpeg(&frame(4))].concat());
    assert!(told(&run.succeeds())["broken"] == 1 && images(&bytes) == [still(folder.path(), &last, &[])]);
}

#[test]
fn a_stream_that_ends_inside_a_frame_keeps_what_was_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = raw([1, 2]);
    bytes.truncate(bytes.len() - 100);
    let (out, ended) = run(folder.path(), &raw_flags(&["--all", "--stats"]), bytes);
    assert_eq!((images(&out).len(), &told(&ended.succeeds())["broken"]), (1, &1.into()));
}

#[test]
fn frames_in_front_of_a_damaged_one_become_images() {
    let folder = tempfile::tempdir().unwrap();
    let grey = |level: u8| [&b"FRAME\n"[..], &vec![level; SIDE * SIDE]].concat();
    let bytes = [&b"YUV4MPEG2 W64 H64 Cmono\n"[..], &grey(90), &grey(160), b"FRAMES are no more\n"].concat();
    let (out, ended) = run(folder.path(), &[&QUICK[..], &["--all", "--to", "rgb24"]].concat(), bytes.clone());
    assert_eq!(images(&out).len(), 2);
    ended.fails(1, &["no valid header"]);
    let (out, ended) = run(folder.path(), &[&QUICK[..], &["--to", "rgb24"]].concat(), bytes);
    assert!(!out.is_empty(), "the last one is there");
    ended.fails(1, &["no valid header"]);
}

#[test]
fn what_are_no_frames_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, bytes, code, words) in [
        (&QUICK[..], &b""[..], 1, "ended before the first frame"),
        (&QUICK[..], b"hello, these are no frames", 2, "neither Y4M nor MJPEG"),
        (&raw_flags(&[])[..], b"too short", 1, "ends inside a frame"),
        (&QUICK[..], b"\xff\xd8\xff\xe0 no JPEG", 1, "JPEG"),
        (&QUICK[..], b"YUV4MPEG2 W64 H64 C420p10\n", 2, "more than 8 bits"),
        (&QUICK[..], b"YUV4MPEG2 W64 H64 C444\nFRAM", 1, ""),
        (&QUICK[..], b"YUV4MPEG2 W8 H8 C444\nFRAME\n", 1, ""),
    ] {
        let (out, ended) = run(folder.path(), flags, bytes.to_vec());
        assert!(out.is_empty());
        if words.is_empty() {
            assert!(ended.code == Some(code) || ended.code == Some(0), "{}", ended.stderr);
        } else {
            ended.fails(code, &[words, "hint: "]);
        }
    }
    let flags = [&QUICK[..], &["--from", "rgb24"]].concat();
    run(folder.path(), &flags, raw([1])).1.fails(2, &["--size"]);
    let small = [&QUICK[..], &["--from", "rgb24", "--size", "32x32"]].concat();
    run(folder.path(), &small, raw([1])).1.fails(1, &["32x32", "at least 64"]);
    run(folder.path(), &raw_flags(&["--strength", "0.5", "--feedback", "0.5"]), raw([1])).1.fails(2, &["--feedback"]);
    run(folder.path(), &raw_flags(&["-i", "none.png"]), raw([1])).1.fails(1, &["none.png"]);
    run(folder.path(), &[&QUICK[..], &["--no-input"]].concat(), Vec::new()).1.fails(2, &["--to"]);
}

/// Starts it with some bytes of frames. Reads the image of a whole one, or else waits.
fn begun_with(folder: &Path, bytes: &[u8], wait: Duration) -> (Child, ChildStdin) {
    let mut child = begun(folder, &raw_flags(&[]));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(bytes).unwrap();
    if bytes.len() < raw([1]).len() {
        thread::sleep(wait);
    } else {
        child.stdout.as_mut().unwrap().read_exact(&mut vec![0; bytes.len()]).unwrap();
    }
    (child, stdin)
}

#[test]
fn a_reader_that_is_gone_ends_it_while_it_writes_and_while_it_waits() {
    let folder = tempfile::tempdir().unwrap();
    // Frames come all the time.
    let mut child = begun(folder.path(), &raw_flags(&[]));
    let mut stdin = child.stdin.take().unwrap();
    let feeder = thread::spawn(move || {
        while stdin.write_all(&raw([1])).is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    });
    let mut first = [0; 12];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    drop(child.stdout.take());
    ended(child).fails(1, &["standard output", "hint: "]);
    feeder.join().unwrap();
    // No frame, a part of a frame, or no second frame.
    for bytes in [vec![], vec![0; 100], raw([1])] {
        let (mut child, stdin) = begun_with(folder.path(), &bytes, Duration::from_millis(500));
        drop(child.stdout.take());
        ended(child).fails(1, &["the receiver of the images", "standard output"]);
        drop(stdin);
    }
}

#[test]
fn a_reader_that_stalls_stalls_all_and_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = begun(folder.path(), &raw_flags(&["--stats"]));
    let mut stdin = child.stdin.take().unwrap();
    let feeder = thread::spawn(move || {
        let frame = raw([1]);
        while stdin.write_all(&frame).is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    });
    let resident = |child: &Child| {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:").map(str::to_string));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0)
    };
    // One image is read, so that everything is loaded.
    let mut image = vec![0; raw([1]).len()];
    child.stdout.as_mut().unwrap().read_exact(&mut image).unwrap();
    thread::sleep(Duration::from_secs(4));
    let before = resident(&child);
    thread::sleep(Duration::from_secs(3));
    let after = resident(&child);
    assert!(after <= before + 8192, "{before} kB became {after} kB");
    // A signal ends it, although it waits for the reader.
    signal(&child, "TERM");
    let run = ended(child);
    assert_eq!(run.code, Some(143), "{}", run.stderr);
    feeder.join().unwrap();
}

#[test]
fn a_signal_ends_it_while_it_waits_for_frames() {
    let folder = tempfile::tempdir().unwrap();
    for bytes in [vec![], vec![0; 100], raw([1])] {
        // It handles signals before it reads.
        let (child, stdin) = begun_with(folder.path(), &bytes, Duration::from_secs(4));
        signal(&child, "INT");
        let run = ended(child);
        assert_eq!(run.code, Some(130), "{}", run.stderr);
        drop(stdin);
    }
}

#[test]
fn the_first_error_is_told_where_figures_cannot_be_written_either() {
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (_, ended) = run(folder.path(), &[&QUICK[..], &["--stats=/dev/full"]].concat(), b"no frames at all".to_vec());
    ended.fails(2, &["neither Y4M nor MJPEG"]);
    run(folder.path(), &raw_flags(&["--stats=/dev/full"]), raw([1])).1.fails(1, &["cannot write the statistics"]);
}

#[test]
fn a_terminal_is_no_place_for_frames() {
    // Without a terminal, the program cannot tell; `script` of tests/support/pty.rs tests its output.
    let run = Run::new(flux().args(QUICK).stdin(Stdio::null()));
    run.fails(1, &["ended before the first frame"]);
}
