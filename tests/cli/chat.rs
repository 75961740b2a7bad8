//! Interactive mode with lines from a pipe, or from a terminal.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use flux::input::read;

use super::folder;
use crate::program::{Run, SMALL, draw, flux, names, signal};
use crate::pty::{Step, converse, sends, types};

fn talk(folder: &Path, lines: &str, flags: &[&str]) -> Run {
    let mut command = flux();
    command.current_dir(folder).arg("chat").args(flags).args(["--device", "cpu"]);
    Run::with_input(&mut command, lines.as_bytes())
}

#[test]
fn each_line_is_an_image_of_what_is_set() {
    let folder = &folder();
    let lines = "!seed 7\n!size 32\n!steps 1\na cat\n\na dog 48x32\n!again\n!list\n!quit\nnever drawn\n";
    let run = talk(folder, lines, &[]).succeeds();
    let files = ["chat-001-a-cat.png", "chat-002-a-dog.png", "chat-003-a-dog.png"];
    assert_eq!(run.stdout.lines().collect::<Vec<_>>(), files);
    assert_eq!(names(folder), files);
    draw(folder, &["-p", "a cat", "-S", "7", "-o", "alone.png"]).succeeds();
    assert!(fs::read(folder.join(files[0])).unwrap() == fs::read(folder.join("alone.png")).unwrap());
    assert_eq!(read(&folder.join(files[2])).unwrap().width, 48);
    assert!(run.stderr.contains("$2  chat-002-a-dog.png  seed 7  a dog"), "{}", run.stderr);
    // Another conversation overwrites nothing.
    let other = talk(folder, "a cat\n", &SMALL[..6]).succeeds();
    assert_eq!(other.stdout.trim(), "chat-004-a-cat.png");
}

#[test]
fn regions_are_those_of_the_next_images() {
    let folder = &folder();
    let region = "0,0,1000,500:a red circle";
    let lines = format!("!region {region}\na wall\n!region\na wall\n!region nowhere\n");
    let run = talk(folder, &lines, &[&SMALL[..6], &["-S", "7"]].concat());
    assert!(run.stderr.contains("1 regions") && run.stderr.contains("MASK.png:TEXT"), "{}", run.stderr);
    draw(folder, &["-p", "a wall", "-S", "7", "--region", region, "-o", "region.png"]).succeeds();
    draw(folder, &["-p", "a wall", "-S", "7", "-o", "none.png"]).succeeds();
    let bytes = |name: &str| fs::read(folder.join(name)).unwrap();
    let [region, none] = ["region.png", "none.png"].map(bytes);
    assert!(bytes("chat-001-a-wall.png") == region && bytes("chat-002-a-wall.png") == none && region != none);
}

#[test]
fn earlier_images_are_drawn_from_and_others_are_loaded_explored_and_forgotten() {
    let folder = &folder();
    let lines = "!seed 3\n!steps 1\na blue square 64x64\n!load out/chat-001-a-blue-square.png\nmake $1 red\n!strength 0.5\n\
                 make $2 green\n!explore 3\n!keep $6\n!undo\n!save copy.png 1\n!list\n";
    let run = talk(folder, lines, &["-o", "out"]).succeeds();
    let left = ["chat-001-a-blue-square.png", "chat-003-make-red.png", "chat-004-make-green.png"];
    assert_eq!(names(&folder.join("out")), left, "{}", run.stderr);
    assert!(folder.join("copy.png").exists());
    let seeds: Vec<_> = run.stdout.lines().filter(|line| line.contains("chat-005")).collect();
    assert_eq!(seeds.len(), 3, "{}", run.stdout);
    assert!(seeds[1].ends_with("-4.png"), "the seeds follow: {seeds:?}");
    let edited = read(&folder.join("out/chat-003-make-red.png")).unwrap();
    assert_eq!((edited.width, edited.height), (64, 64));
}

#[test]
fn a_line_that_is_wrong_is_told_and_the_conversation_goes_on() {
    let folder = folder();
    let lines = "!sead 3\n!steps x\n!again\nmake $3 blue\n!device tpu\n!lora none.safetensors\n!load none.png\n!undo\n\
                 !keep 1\n!save x.png\n!steps 0\na cat\n!steps 1\na cat 32x32\n";
    let run = talk(&folder, lines, &[]);
    assert_eq!(run.code, Some(1));
    for words in [
        "did you mean `!seed`?",
        "expected `!steps [N]`",
        "there is no prompt yet",
        "there is no image yet",
        "expected auto, cpu, cuda",
        "the adapter does not exist",
        "none.png",
        "no image to forget",
        "steps",
        "11 of the lines failed",
    ] {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
    assert_eq!(run.stdout.trim(), "chat-001-a-cat.png");
    Run::new(flux().current_dir(&folder).args(["chat", "--save-latents", "x"])).fails(2, &["--save-latents"]);
}

#[test]
fn what_is_removed_numbered_and_kept_is_said() {
    let folder = &folder();
    draw(folder, &["-p", "a cat", "-S", "1", "-o", "photo.png"]).succeeds();
    let lines = "!size 32\n!steps 1\n!seed 4\na cat\n!explore 3\n!load photo.png\n!keep $3\n!undo\n!undo\n";
    let run = talk(folder, lines, &[]).succeeds();
    let said: Vec<_> = run.stderr.lines().collect();
    for words in [
        "size 32x32 for the next images",
        "seed 4 for the next images",
        "$1 is chat-001-a-cat.png",
        "$3 is chat-002-a-cat-5.png",
        "removed chat-002-a-cat-4.png",
        "removed chat-002-a-cat-6.png",
        "$2 is now chat-002-a-cat-5.png",
        "$3 is now photo.png",
        "seed 5 for the next images",
        "removed photo.png from the list; its file is kept",
        "removed chat-002-a-cat-5.png",
    ] {
        assert!(said.iter().any(|line| line.starts_with(words)), "{words}: {}", run.stderr);
    }
    assert_eq!(names(folder), ["chat-001-a-cat.png", "photo.png"]);
    assert!(!talk(folder, "!size 32\n!steps 1\na cat\nexit\na dog\n", &["-q"]).stderr.contains("for the next"));
    assert!(!names(folder).iter().any(|name| name.contains("dog") || name.contains("exit")));
}

#[test]
fn only_what_was_drawn_here_is_ever_removed() {
    let folder = &folder();
    draw(folder, &["-p", "a cat", "-S", "1", "-o", "photo.png"]).succeeds();
    let photo = fs::read(folder.join("photo.png")).unwrap();
    let lines =
        "!size 32\n!steps 1\na red circle\n!explore 2\n!load photo.png\n!keep 4\n!keep 3\n!list\n!undo\n!undo\n";
    let run = talk(folder, lines, &[]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("$2 to $3") && run.stderr.contains("1 of the lines"), "{}", run.stderr);
    assert!(run.stderr.contains("$3  photo.png  loaded"), "{}", run.stderr);
    assert_eq!(names(folder), ["chat-001-a-red-circle.png", "photo.png"]);
    assert!(fs::read(folder.join("photo.png")).unwrap() == photo);
}

/// A conversation that is answered line by line: its input stays open.
struct Held {
    child: Child,
    stdin: ChildStdin,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Held {
    fn new(folder: &Path, flags: &[&str]) -> Self {
        Self::begin(flux().current_dir(folder).arg("chat").args(flags).args(["--device", "cpu"]))
    }

    fn begin(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdin, stderr) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
        Self { child, stdin, stderr: BufReader::new(stderr).lines() }
    }

    fn say(&mut self, lines: &str) {
        self.stdin.write_all(lines.as_bytes()).unwrap();
    }

    /// Waits for a line of stderr.
    fn until(&mut self, words: &str) {
        assert!(self.stderr.any(|line| line.unwrap().contains(words)), "`{words}` is never said");
    }

    /// Waits until all lines so far are processed, and the program waits for the next one.
    fn until_it_waits(&mut self) {
        self.say("!nothing\n");
        self.until("unknown command");
        thread::sleep(Duration::from_millis(200));
    }

    fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Returns its exit code, and the rest of stderr. Its input stays open until it has ended.
    fn end(mut self) -> (Option<i32>, String) {
        let said: Vec<_> = self.stderr.map(|line| line.unwrap()).collect();
        let code = self.child.wait().unwrap().code();
        drop(self.stdin);
        (code, said.join("\n"))
    }
}

#[test]
fn a_signal_ends_a_conversation_that_waits_for_a_line() {
    let folder = folder();
    for (signal, code) in [("TERM", 143), ("HUP", 129), ("INT", 130)] {
        let mut held = Held::new(&folder, &[]);
        held.until_it_waits();
        held.signal(signal);
        assert_eq!(held.end(), (Some(code), String::new()), "{signal}");
    }
}

#[test]
fn a_signal_ends_an_image_and_a_second_one_the_conversation() {
    let folder = &folder();
    let mut held = Held::new(folder, &["--size", "32", "-s", "1", "-S", "1"]);
    held.say("!steps 1000\na cat\n");
    held.until("seed 1, 32x32, 1000 steps");
    held.signal("INT");
    held.until("cancelled");
    held.say("!steps 1\na dog\n");
    held.until("wrote chat-001-a-dog.png");
    // A step of this size takes seconds.
    held.say("a cat 1536x1536\n");
    held.until("seed 1, 1536x1536");
    thread::sleep(Duration::from_millis(1500));
    held.signal("INT");
    thread::sleep(Duration::from_millis(100));
    held.signal("INT");
    assert_eq!(held.end(), (Some(130), String::new()));
    let mut held = Held::new(folder, &["--size", "32", "-s", "1000", "-S", "1"]);
    held.say("a cat\n");
    held.until("seed 1, 32x32, 1000 steps");
    held.signal("TERM");
    assert_eq!(held.end(), (Some(143), "cancelled".to_string()));
    assert_eq!(names(folder), ["chat-001-a-dog.png"]);
}

#[test]
fn images_that_were_written_before_a_cancel_are_in_the_list() {
    let folder = &folder();
    let mut held = Held::new(folder, &["--size", "64", "-s", "1", "-S", "5"]);
    held.say("a cat\n!explore 64\n");
    held.until("wrote chat-002-a-cat-5.png");
    held.signal("INT");
    held.until("cancelled");
    held.say("!list\n!keep 2\n");
    held.until("$2  chat-002-a-cat-5.png  seed 5");
    held.until_it_waits();
    assert_eq!(names(folder), ["chat-001-a-cat.png", "chat-002-a-cat-5.png"]);
    held.say("!undo\n!undo\n!quit\n");
    held.end();
    assert!(names(folder).is_empty());
}

#[test]
fn images_that_are_gone_or_changed_are_left_alone() {
    let folder = &folder();
    let mut held = Held::new(folder, &["--size", "32", "-s", "1", "-S", "5"]);
    held.say("a cat\n!explore 4\n");
    held.until_it_waits();
    fs::remove_file(folder.join("chat-002-a-cat-6.png")).unwrap();
    fs::write(folder.join("chat-002-a-cat-7.png"), "mine").unwrap();
    held.say("!keep 2\n!list\n");
    held.until("chat-002-a-cat-7.png was changed in the meantime, and is kept");
    held.until("$2  chat-002-a-cat-5.png");
    held.until_it_waits();
    assert_eq!(names(folder), ["chat-001-a-cat.png", "chat-002-a-cat-5.png", "chat-002-a-cat-7.png"]);
    // Images that cannot be removed stay in the list.
    fs::remove_file(folder.join("chat-002-a-cat-5.png")).unwrap();
    held.say("!undo\n!list\n");
    held.until("$1  chat-001-a-cat.png");
    held.say("!undo\n!undo\n!quit\n");
    held.until("no image to forget");
    held.end();
    assert_eq!(names(folder), ["chat-002-a-cat-7.png"]);
}

#[test]
fn a_copy_is_whole_and_written_over_nothing() {
    let folder = &folder();
    fs::write(folder.join("there.png"), "mine").unwrap();
    std::os::unix::fs::symlink("nowhere.png", folder.join("link.png")).unwrap();
    let lines = "!size 32\n!steps 1\na cat\n!save there.png\n!save link.png\n!save none/copy.png\n!save copy.png\n";
    let run = talk(folder, lines, &[]);
    assert_eq!(run.stderr.matches("the file already exists").count(), 2, "{}", run.stderr);
    assert!(run.stderr.contains("cannot write the copy") && run.stderr.contains("3 of the lines"), "{}", run.stderr);
    assert_eq!(names(folder), ["chat-001-a-cat.png", "copy.png", "link.png", "there.png"]);
    let bytes = |name: &str| fs::read(folder.join(name)).unwrap();
    assert!(bytes("copy.png") == bytes("chat-001-a-cat.png") && bytes("there.png") == b"mine");
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_of_a_line() {
    let folder = folder();
    let line = format!("ulimit -f 1; exec {} chat --device cpu -s 1 -q", env!("CARGO_BIN_EXE_flux"));
    let mut command = Command::new("bash");
    command.args(["-c", &line]).current_dir(&folder).env_remove("FLUX_MODEL").env("FLUX_CONFIG", "");
    let mut held = Held::begin(&mut command);
    held.say("a cat 256x256\n");
    held.until("cannot write the image");
    held.until_it_waits();
    assert!(names(&folder).is_empty());
    held.say("!quit\n");
    assert_eq!(held.end().0, Some(1));
}

#[test]
fn a_line_that_is_too_long_is_an_error_of_its_own() {
    let folder = folder();
    let lines = format!("{}\n!size 32\n!steps 1\na cat\n", "x".repeat(1 << 20));
    let run = talk(&folder, &lines, &[]);
    assert!(run.stderr.contains("the line is longer than") && run.stderr.contains("1 of the lines"), "{}", run.stderr);
    assert_eq!(names(&folder), ["chat-001-a-cat.png"]);
}

/// Returns a command for a conversation on a terminal, without the user's history.
fn on_terminal(folder: &Path, flags: &[&str]) -> Command {
    let mut command = flux();
    command.current_dir(folder).env("XDG_STATE_HOME", folder.join("state")).env("TERM", "xterm-256color");
    command.arg("chat").args(flags).args(["--device", "cpu"]);
    command
}

#[test]
fn a_signal_while_a_line_is_edited_ends_the_conversation_and_the_terminal_is_as_it_was() {
    let folder = folder();
    for (signal, code) in [("TERM", 143), ("HUP", 129)] {
        let begun = types("a cat");
        let steps: [Step<'_>; 2] = [("1> ", &begun), ("cat", &sends(signal))];
        let played = converse(&mut on_terminal(&folder, &[]), None, &steps);
        assert_eq!((played.code, played.mode_is_kept), (Some(code), true), "{signal}: {}", played.shown);
        assert!(played.shown.contains("\x1b[?2004l"), "{}", played.shown);
    }
    // Ctrl-C, from any source, ends neither the conversation nor the next image.
    let steps: [Step<'_>; 4] =
        [("1> ", &sends("INT")), ("1> ", &types("\x03")), ("1> ", &types("a cat 32x32\r")), ("2> ", &types("\x04"))];
    let played = converse(&mut on_terminal(&folder, &["-s", "1"]), None, &steps);
    assert_eq!((played.code, played.mode_is_kept), (Some(0), true), "{}", played.shown);
    assert!(folder.join("chat-001-a-cat.png").exists(), "{}", played.shown);
}

#[test]
fn nothing_draws_over_the_prompt_once_an_image_is_cancelled() {
    let folder = folder();
    let slow = |typed: &mut fs::File, _: &Child| {
        thread::sleep(Duration::from_millis(2500));
        typed.write_all(b"\x04").unwrap();
    };
    let steps: [Step<'_>; 4] =
        [("1> ", &types("a cat 256x256\r")), ("denoise", &types("\x03")), ("cancelled", &types("")), ("1> ", &slow)];
    let played = converse(&mut on_terminal(&folder, &["-s", "1000"]), None, &steps);
    assert_eq!(played.code, Some(0), "{}", played.shown);
    let (_, after) = played.shown.rsplit_once("cancelled").unwrap();
    assert!(!after.contains("denoise"), "{after}");
}

#[test]
fn only_results_go_to_a_file_or_pipe_instead_of_a_terminal() {
    let folder = &folder();
    let out = fs::File::create(folder.join("out")).unwrap();
    let steps: [Step<'_>; 2] = [("1> ", &types("a cat 32x32\n")), ("2> ", &types("!quit\n"))];
    let played = converse(&mut on_terminal(folder, &["-s", "1"]), Some(out.into()), &steps);
    assert_eq!((played.code, played.mode_is_kept), (Some(0), true), "{}", played.shown);
    assert_eq!(fs::read_to_string(folder.join("out")).unwrap(), "chat-001-a-cat.png\n");
}
