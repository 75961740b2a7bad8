//! The commands of docs/live.md, with ffmpeg.

use std::process::Command;

use super::shell;
use crate::readme::commands_in;

/// Parts of the book's commands, and their replacements in the test: an available camera and screen, and less work.
const INSTEAD: [(&str, &str); 14] = [
    ("-f v4l2 -input_format mjpeg -i /dev/video0 -c copy", "-f lavfi -i testsrc=size=96x96:rate=4:duration=1 -q:v 3"),
    ("-f v4l2 -i /dev/video0", "-f lavfi -i testsrc=size=96x96:rate=4:duration=1"),
    ("-f v4l2 /dev/video10", "-f null -"),
    ("ffplay -v error -f mjpeg -", "ffmpeg -v error -f mjpeg -i - -f null -"),
    ("ffplay -v error -", "ffmpeg -v error -f yuv4mpegpipe -i - -f null -"),
    ("ffplay -v error -f rawvideo -pixel_format rgb24 -video_size 512x512 -", ""),
    ("clip.mp4", "clip.y4m"),
    ("painted.mp4", "painted.avi"),
    ("scale=512:512", "scale=64:64"),
    ("scale=256:256", "scale=64:64"),
    ("512x512", "64x64"),
    ("-d 4b ", ""),
    ("-s 2 ", "-s 1 "),
    ("flux live", "flux live --device cpu -q"),
];

#[test]
fn every_command_of_the_page_runs() {
    if !Command::new("ffmpeg").arg("-version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no ffmpeg");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let clip =
        "ffmpeg -v error -f lavfi -i testsrc=size=64x64:rate=4:duration=1 -pix_fmt yuv444p -f yuv4mpegpipe clip.y4m";
    shell(folder.path(), clip).succeeds();
    let lines: Vec<String> =
        commands_in("docs/live.md").into_iter().filter(|line| line.contains("flux live")).collect();
    assert!(lines.len() >= 6, "{lines:?}");
    for line in lines {
        let mut run = line.clone();
        INSTEAD.iter().for_each(|(book, here)| run = run.replace(book, here));
        assert!(!run.contains("/dev/video") && !run.contains("ffplay"), "{run}");
        let ended = shell(folder.path(), &format!("set -o pipefail; {run}"));
        assert_eq!(ended.code, Some(0), "{line}\n{run}\n{}", ended.stderr);
    }
}
