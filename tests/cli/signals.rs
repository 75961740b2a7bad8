//! Signals that end the program, and files that are truncated while it runs.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use flux::input::read;

use super::folder;
use crate::model_copy;
use crate::program::{flux, names, signal, takes_long_form};

/// The running program, and the unread lines of its stderr.
struct Begun {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Begun {
    /// Starts the program, for images in `folder`.
    fn new(folder: &Path, flags: &[&str]) -> Self {
        let mut command = flux();
        command.current_dir(folder).args(["-p", "a cat", "-S", "1", "--device", "cpu", "-o", "out.png"]).args(flags);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        Self { child, lines }
    }

    /// Reads stderr up to a line that starts with `line`.
    fn until(mut self, line: &str) -> Self {
        assert!(self.lines.any(|said| said.expect("UTF-8").starts_with(line)), "`{line}` is never said");
        self
    }

    /// Waits until it handles SIGINT and SIGTERM, which it does just before it opens the model. Returns `false` if the
    /// system does not report this.
    fn listens(&self) -> bool {
        const WANTED: u64 = 1 << (2 - 1) | 1 << (15 - 1);
        let start = Instant::now();
        loop {
            let Ok(status) = fs::read_to_string(format!("/proc/{}/status", self.child.id())) else { return false };
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("Linux tells");
            if u64::from_str_radix(caught.trim(), 16).expect("a mask") & WANTED == WANTED {
                return true;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "it never listens");
        }
    }

    fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Waits until it has received the signals: of two pending signals, the system delivers the lower number first.
    fn until_heard(&self) {
        let waiting = |line: &str| {
            line.strip_prefix("ShdPnd:").is_some_and(|mask| mask.trim().bytes().any(|digit| digit != b'0'))
        };
        let status = || fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        while status().lines().any(waiting) {
            thread::sleep(Duration::from_millis(1));
        }
        // Its handler may be running now; if the system does not report pending signals, the signal may be on its way.
        thread::sleep(Duration::from_millis(50));
    }

    /// Returns its exit code, the rest of its output, and the time until its end.
    fn end(mut self) -> (Option<i32>, String, Duration) {
        let start = Instant::now();
        let said: Vec<_> = self.lines.map(|line| line.expect("UTF-8")).collect();
        (self.child.wait().expect("the program ends").code(), said.join("\n"), start.elapsed())
    }
}

#[test]
fn a_signal_ends_an_image_within_a_step_and_leaves_nothing() {
    let folder = folder();
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        // At once, while the prompt is encoded; and in one of the steps.
        for wait in [0, 500] {
            let begun = Begun::new(&folder, &["-s", "1000"]).until("seed 1");
            thread::sleep(Duration::from_millis(wait));
            begun.signal(signal);
            let (ended, said, took) = begun.end();
            assert_eq!((ended, said.as_str()), (Some(code), "cancelled"), "SIG{signal}");
            assert!(took < Duration::from_secs(5), "SIG{signal}: {took:?}");
            assert!(names(&folder).is_empty());
        }
    }
}

#[test]
fn a_signal_while_the_model_is_loaded_ends_the_program_and_leaves_nothing() {
    let (folder, model) = (folder(), model_copy::ModelCopy::new());
    // It takes long to read.
    model.change("tokenizer/tokenizer.json", |bytes| bytes.resize(bytes.len() + (60 << 20), b' '));
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let begun = Begun::new(&folder, &["-s", "1000", "-d", model.path().to_str().unwrap()]);
        if !begun.listens() {
            eprintln!("skipped: the system does not tell which signals a program handles");
            return;
        }
        begun.signal(signal);
        let (ended, said, took) = begun.end();
        assert_eq!((ended, said.lines().last()), (Some(code), Some("cancelled")), "SIG{signal}: {said}");
        assert!(took < Duration::from_secs(5), "SIG{signal}: {took:?}");
        assert!(names(&folder).is_empty());
    }
}

/// The weights of the steps are read in place, so the system raises SIGBUS.
#[test]
fn a_weight_file_that_is_cut_off_while_it_is_read_ends_the_program_with_a_message() {
    const WEIGHTS: &str = "transformer/diffusion_pytorch_model.safetensors";
    let (folder, model) = (folder(), model_copy::ModelCopy::new());
    model.change(WEIGHTS, |_| {});
    let begun = Begun::new(&folder, &["-s", "1000", "-d", model.path().to_str().unwrap()]).until("seed 1");
    // By then it is in one of the steps.
    thread::sleep(Duration::from_secs(1));
    fs::File::options().write(true).open(model.file(WEIGHTS)).unwrap().set_len(4096).unwrap();
    let (ended, said, _) = begun.end();
    assert_eq!(ended, Some(1), "{said}");
    assert!(said.starts_with("error: a model file was truncated") && said.contains("\n  hint: "), "{said}");
    assert_eq!(said.lines().count(), 2, "told once: {said}");
    assert!(names(&folder).is_empty());
}

#[test]
fn a_signal_at_any_time_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt;
    let folder = folder();
    for wait in (40..400).step_by(if takes_long_form() { 30 } else { 90 }) {
        let mut begun = Begun::new(&folder, &["-s", "1000"]);
        thread::sleep(Duration::from_millis(wait));
        begun.signal("INT");
        let status = begun.child.wait().expect("the program ends");
        // A shell reports 130 for both. The program handles signals once its flags are checked.
        let ended = status.code().or(status.signal().map(|signal| 128 + signal));
        assert_eq!(ended, Some(130), "after {wait} ms");
        assert!(names(&folder).is_empty(), "after {wait} ms");
    }
}

#[test]
fn a_signal_between_two_images_keeps_the_first() {
    let folder = folder();
    let begun = Begun::new(&folder, &["-n", "2", "-s", "1", "-W", "512", "-H", "512"]).until("wrote out-1.png");
    begun.signal("INT");
    let (ended, said, _) = begun.end();
    assert_eq!((ended, said.as_str()), (Some(130), "cancelled"));
    assert_eq!(names(&folder), ["out-1.png"]);
    assert_eq!(read(&folder.join("out-1.png")).unwrap().width, 512);
}

#[test]
fn a_second_signal_does_not_wait_for_the_step() {
    let folder = folder();
    // A step of this size takes seconds.
    let begun = Begun::new(&folder, &["-W", "1536", "-H", "1536", "-s", "1000"]).until("seed 1");
    thread::sleep(Duration::from_millis(1500));
    begun.signal("TERM");
    begun.until_heard();
    begun.signal("INT");
    let (ended, said, took) = begun.end();
    assert_eq!((ended, said.as_str()), (Some(130), ""));
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(names(&folder).is_empty());
}
