//! `flux live`: frames in, images out, and the reactions if one side stalls, breaks or ends.

mod book;
mod changes;
mod ends;
mod reuse;
mod tiny;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use flux::input::read;
use flux::metadata::Metadata;
use flux::output::{ImageFormat, Rgb, encode, encode_jpeg};
use serde_json::Value;

use crate::program::{Run, flux};

/// Pixels on a side of frames: the minimum of a reference.
const SIDE: usize = 64;
/// Flags for an image in about a tenth of a second.
const QUICK: [&str; 9] = ["live", "--device", "cpu", "-s", "1", "-S", "7", "-p", "a red circle"];

/// Returns a frame that differs from those of other numbers.
fn frame(number: usize) -> Rgb {
    sized(number, SIDE, SIDE)
}

fn sized(number: usize, width: usize, height: usize) -> Rgb {
    let level = |i: usize| [40 * (number % 6) + i % width, i / width * 3, 200 - 30 * (number % 6)];
    let bytes = (0..width * height).flat_map(|i| level(i).map(|level| level as u8)).collect();
    Rgb { width, height, bytes }
}

fn raw(frames: impl IntoIterator<Item = usize>) -> Vec<u8> {
    frames.into_iter().flat_map(|number| frame(number).bytes).collect()
}

fn jpeg(frame: &Rgb) -> Vec<u8> {
    encode_jpeg(frame, 95, &Metadata::default()).expect("a JPEG")
}

/// Returns the flags of `flux live` on raw frames, with further flags.
fn raw_flags<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    [&QUICK[..], &["--from", "rgb24", "--size", "64x64"], flags].concat()
}

/// Starts the program with pipes at its ends.
fn begun(folder: &Path, flags: &[&str]) -> Child {
    let mut command = flux();
    command.current_dir(folder).args(flags);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Runs the program on these bytes, and returns its standard output and its result.
fn run(folder: &Path, flags: &[&str], bytes: Vec<u8>) -> (Vec<u8>, Run) {
    let mut child = begun(folder, flags);
    let mut stdin = child.stdin.take().expect("a pipe");
    // A program that refuses the input does not read all of it.
    let feeder = thread::spawn(move || drop(stdin.write_all(&bytes)));
    let output = child.wait_with_output().expect("it ends");
    feeder.join().expect("no panic");
    result(output)
}

/// Returns the standard output and the result of a program.
fn result(output: Output) -> (Vec<u8>, Run) {
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    (output.stdout, Run { code: output.status.code(), stdout: String::new(), stderr })
}

/// Reads images of 64 x 64 from raw bytes.
fn images(bytes: &[u8]) -> Vec<Rgb> {
    let image = |bytes: &[u8]| Rgb { width: SIDE, height: SIDE, bytes: bytes.to_vec() };
    assert_eq!(bytes.len() % (3 * SIDE * SIDE), 0, "whole images");
    bytes.chunks_exact(3 * SIDE * SIDE).map(image).collect()
}

/// Returns the image that `flux` makes of a frame, with flags in addition to [`QUICK`].
fn still(folder: &Path, frame: &Rgb, flags: &[&str]) -> Rgb {
    fs::write(folder.join("frame.png"), encode(frame, ImageFormat::Png, &Metadata::default()).unwrap()).unwrap();
    let mut command = flux();
    command.current_dir(folder).args(&QUICK[1..]).args(["-i", "frame.png", "-o", "still.png", "-q"]).args(flags);
    Run::new(&mut command).succeeds();
    read(&folder.join("still.png")).expect("an image")
}

/// Returns the figures at the end with `--stats`.
fn told(run: &Run) -> Value {
    let line = run.stderr.lines().rfind(|line| line.starts_with('{')).expect("figures");
    serde_json::from_str(line).expect("JSON")
}

#[test]
fn a_frame_becomes_the_image_that_flux_makes_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.png");
    fs::write(&other, encode(&sized(3, 96, 80), ImageFormat::Png, &Metadata::default()).unwrap()).unwrap();
    for flags in [
        &[][..],
        &["--strength", "0.5", "-s", "2"],
        &["--strength", "0.5", "-s", "2", "--no-self-reference"],
        &["-i", "other.png"],
    ] {
        // Repeated flags are those of the program, too.
        let steps: Vec<&str> = if flags.contains(&"-s") { QUICK[5..].to_vec() } else { QUICK[3..].to_vec() };
        let live = [&QUICK[..3], &steps, &["--from", "rgb24", "--size", "64x64", "--all"], flags].concat();
        let (bytes, ended) = run(folder.path(), &live, raw([1, 2]));
        ended.succeeds();
        let images = images(&bytes);
        assert_eq!(images.len(), 2, "{flags:?}");
        for (number, image) in [1, 2].into_iter().zip(&images) {
            fs::write(
                folder.path().join("frame.png"),
                encode(&frame(number), ImageFormat::Png, &Metadata::default()).unwrap(),
            )
            .unwrap();
            let line =
                [&["--device", "cpu"], &steps[..], &["-i", "frame.png"], flags, &["-o", "still.png", "-q"]].concat();
            Run::new(flux().current_dir(&folder).args(line)).succeeds();
            let still = read(&folder.path().join("still.png")).unwrap();
            assert!(*image == still, "{flags:?}, frame {number}");
        }
    }
}

#[test]
fn formats_go_in_and_out_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mjpeg: Vec<u8> = (1..4).flat_map(|number| jpeg(&frame(number))).collect();
    let flags = [&QUICK[..], &["--all", "--to", "rgb24"]].concat();
    let (bytes, ended) = run(folder.path(), &flags, mjpeg.clone());
    ended.succeeds();
    let of_jpeg = images(&bytes);
    assert_eq!(of_jpeg.len(), 3);
    let first = flux::input::read_bytes(&jpeg(&frame(1))).unwrap();
    assert!(of_jpeg[0] == still(folder.path(), &first, &[]) && of_jpeg[1] != of_jpeg[2]);
    // The same as Y4M, and back.
    let (y4m, ended) = run(folder.path(), &[&QUICK[..], &["--all", "--to", "y4m"]].concat(), mjpeg.clone());
    ended.succeeds();
    assert!(y4m.starts_with(b"YUV4MPEG2 W64 H64 F25:1 C444\nFRAME\n"), "{:?}", &y4m[..40]);
    let (bytes, ended) = run(folder.path(), &[&QUICK[..], &["--all", "--to", "rgb24"]].concat(), y4m);
    ended.succeeds();
    assert_eq!(images(&bytes).len(), 3);
    let (out, ended) = run(folder.path(), &[&QUICK[..], &["--all"]].concat(), mjpeg);
    ended.succeeds();
    assert!(out.starts_with(b"\xff\xd8") && out.ends_with(b"\xff\xd9"));
}

/// Returns the frame as cameras send it, without its Huffman tables.
fn without_tables(frame: &[u8]) -> Vec<u8> {
    let mut out = frame.to_vec();
    while let Some(at) = out.windows(2).position(|marker| marker == [0xff, 0xc4]) {
        let length = usize::from(u16::from_be_bytes([out[at + 2], out[at + 3]]));
        out.drain(at..at + 2 + length);
    }
    out
}

#[test]
fn frames_of_a_camera_that_sends_no_huffman_tables_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let flags = [&QUICK[..], &["--all", "--to", "rgb24"]].concat();
    let made = |frames: Vec<u8>| {
        let (bytes, ended) = run(folder.path(), &flags, frames);
        ended.succeeds();
        bytes
    };
    let frames = |of: fn(&[u8]) -> Vec<u8>| (1..3).flat_map(|number| of(&jpeg(&frame(number)))).collect();
    assert!(made(frames(without_tables)) == made(frames(<[u8]>::to_vec)));
}

#[test]
fn the_newest_frame_wins_and_the_last_is_never_lost() {
    let folder = tempfile::tempdir().unwrap();
    let count = 60;
    let (bytes, ended) = run(folder.path(), &raw_flags(&["--stats"]), raw((0..count).chain([5])));
    let ended = ended.succeeds();
    let (images, told) = (images(&bytes), told(&ended));
    let number = |key: &str| told[key].as_u64().unwrap();
    assert_eq!((number("made"), number("written")), (images.len() as u64, images.len() as u64));
    assert_eq!(number("read"), count as u64 + 1);
    assert_eq!(number("replaced") + number("made"), number("read"), "{told}");
    assert!(images.len() < count / 2, "{} of {count}", images.len());
    assert!(*images.last().unwrap() == still(folder.path(), &frame(5), &[]));
}

#[test]
fn one_of_so_many_frames_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, ended) = run(folder.path(), &raw_flags(&["--every", "3", "--all", "--stats"]), raw(0..7));
    let told = told(&ended.succeeds());
    assert_eq!((images(&bytes).len(), &told["left_out"]), (3, &Value::from(4)));
    let (all, ended) = run(folder.path(), &raw_flags(&["--all"]), raw([0, 3, 6]));
    ended.succeeds();
    assert!(bytes == all);
}

#[test]
fn paced_images_are_written_again_until_there_are_newer_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = begun(folder.path(), &raw_flags(&["--fps", "50", "--stats"]));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&raw([1])).unwrap();
    let mut first = vec![0; 3 * SIDE * SIDE];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    thread::sleep(std::time::Duration::from_secs(2));
    drop(stdin);
    let (rest, run) = result(child.wait_with_output().unwrap());
    let images = images(&[first, rest].concat());
    assert!(images.len() > 5 && images.iter().all(|image| *image == images[0]), "{}", images.len());
    assert_eq!(told(&run.succeeds())["made"], 1);
}

#[test]
fn feedback_begins_with_a_part_of_the_image_before() {
    let folder = tempfile::tempdir().unwrap();
    let of = |feedback: &str| {
        let (bytes, ended) = run(folder.path(), &raw_flags(&["--all", "--feedback", feedback]), raw([1, 1, 1]));
        ended.succeeds();
        images(&bytes)
    };
    let (without, with) = (of("0"), of("0.4"));
    assert!(without[0] == without[1], "the same frame, noise and prompt");
    assert!(with[0] == without[0], "there is no image before the first");
    assert!(with[1] != with[0] && of("0.4") == with);
    let refused = flux().args(raw_flags(&["--feedback", "1"])).stdin(Stdio::null()).output().unwrap();
    result(refused).1.fails(2, &["the feedback is 1", "hint: "]);
}

/// Runs a line of a shell in a folder with the program.
fn shell(folder: &Path, line: &str) -> Run {
    let link = folder.join("flux");
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_flux"), link).unwrap();
    }
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.args(["-c", line]).current_dir(folder).env("PATH", path).env_remove("FLUX_MODEL").env("FLUX_CONFIG", "");
    Run::new(&mut command)
}
