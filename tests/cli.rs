//! The program from outside: exit codes, messages, files written.

#[path = "support/model_copy.rs"]
mod model_copy;
#[path = "support/program.rs"]
mod program;

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use flux::compare::difference;
use flux::output::read_png;
use program::{Run, SMALL, draw, flux, names, project};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// (keyword, text) of a PNG's UTF-8 text chunks.
fn texts(path: &Path) -> Vec<(String, String)> {
    let file = BufReader::new(fs::File::open(path).expect("the image is there"));
    let reader = png::Decoder::new(file).read_info().expect("a PNG");
    reader.info().utf8_text.iter().map(|chunk| (chunk.keyword.clone(), chunk.get_text().expect("UTF-8"))).collect()
}

#[test]
fn one_command_makes_an_image_and_says_its_seed() {
    let folder = folder();
    let run = draw(folder.path(), &["-p", "a red circle", "-S", "42", "-o", "out.png"]).succeeds();
    assert!(run.stderr.contains("seed 42") && run.stderr.contains("out.png"), "{}", run.stderr);
    assert_eq!(run.stdout, "");
    assert_eq!(names(folder.path()), ["out.png"]);
    let image = read_png(&folder.path().join("out.png")).unwrap();
    assert_eq!((image.width, image.height), (32, 32));
}

#[test]
fn same_seed_gives_the_same_png_and_another_seed_another() {
    let folder = folder();
    for (seed, name) in [("7", "a.png"), ("7", "b.png"), ("8", "c.png")] {
        draw(folder.path(), &["-p", "a cat", "-S", seed, "-o", name]).succeeds();
    }
    let bytes = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert_eq!(bytes("a.png"), bytes("b.png"));
    assert_ne!(bytes("a.png"), bytes("c.png"));
}

#[test]
fn a_seed_that_repeats_a_smaller_one_is_told() {
    let folder = folder();
    let drawn = |seed: &str, flags: &[&str]| {
        draw(folder.path(), &[&["-p", "a cat", "-o", "out.png", "-S", seed], flags].concat()).succeeds().stderr
    };
    let image = || read_png(&folder.path().join("out.png")).unwrap().bytes;
    assert!(!drawn("1", &[]).contains("2^32"));
    let small = image();
    let said = drawn("4294967297", &[]);
    assert!(said.contains("note: seed 4294967297 gives the image of seed 1: seeds repeat after 2^32"), "{said}");
    assert!(image() == small, "the note is true");
    assert!(!drawn("4294967295", &[]).contains("2^32"));
    let said = drawn("4294967295", &["-n", "2"]);
    assert!(said.contains("note: seed 4294967296 gives the image of seed 0"), "{said}");
}

#[test]
fn a_png_says_how_it_was_made() {
    let folder = folder();
    draw(folder.path(), &["-p", "ein Käse 🧀", "-S", "5", "-o", "out.png"]).succeeds();
    let version = concat!("flux ", env!("CARGO_PKG_VERSION"));
    let facts = [
        ("prompt", "ein Käse 🧀"),
        ("seed", "5"),
        ("steps", "1"),
        ("guidance", "1"),
        ("size", "32x32"),
        ("model", "tiny"),
        ("Software", version),
    ];
    assert_eq!(
        texts(&folder.path().join("out.png")),
        facts.map(|(keyword, text)| (keyword.to_string(), text.to_string()))
    );
}

#[test]
fn without_seed_and_output_the_random_seed_names_the_file() {
    let folder = folder();
    let run = draw(folder.path(), &["-p", "a cat", "--quiet", "--print-path"]).succeeds();
    let seed = run.stderr.trim().strip_prefix("seed ").expect("quiet still tells a random seed").to_string();
    assert_eq!(run.stdout, format!("flux-{seed}.png\n"));
    assert_eq!(names(folder.path()), [format!("flux-{seed}.png")]);
}

#[test]
fn one_command_makes_many_images_each_of_its_own_seed() {
    let folder = folder();
    let run = draw(folder.path(), &["-p", "a cat", "-S", "7", "-n", "3", "-o", "out.png", "--print-path"]).succeeds();
    assert_eq!(run.stdout, "out-7.png\nout-8.png\nout-9.png\n");
    assert!(run.stderr.contains("seeds 7 to 9") && run.stderr.contains("3 images as one batch"), "{}", run.stderr);
    assert_eq!(names(folder.path()), ["out-7.png", "out-8.png", "out-9.png"]);
    assert!(texts(&folder.path().join("out-9.png")).contains(&("seed".to_string(), "9".to_string())));
    for written in ["for the first time", "in place of the first"] {
        let run = draw(folder.path(), &["-p", "a cat", "-S", "8", "-o", "alone.png", "--print-path"]).succeeds();
        assert_eq!(run.stdout, "alone.png\n", "{written}");
    }
    let apart = difference(
        &read_png(&folder.path().join("out-8.png")).unwrap(),
        &read_png(&folder.path().join("alone.png")).unwrap(),
    )
    .unwrap();
    assert!(apart.max <= 1, "{apart:?}");

    let run = draw(folder.path(), &["-p", "a cat", "-S", "1", "-n", "10", "-q", "-o", "many.jpg", "--timings=json"])
        .succeeds();
    let reports: Vec<serde_json::Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |field: fn(&serde_json::Value) -> &serde_json::Value| {
        reports.iter().map(|r| field(r).as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of(|r| &r["plan"]["seed"]), (1..=10).collect::<Vec<_>>());
    assert_eq!(of(|r| &r["timings"]["images"]), [8, 8, 8, 8, 8, 8, 8, 8, 2, 2]);
    assert_eq!(of(|r| &r["timings"]["prompts_encoded"]), [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    draw(folder.path(), &["-p", "a cat", "-S", "18446744073709551615", "-n", "2"]).fails(2, &["--seed", "too large"]);
    draw(folder.path(), &["-p", "a cat", "-n", "0"]).fails(2, &["--count"]);
}

#[test]
fn quiet_prints_nothing_when_the_seed_is_known() {
    let folder = folder();
    let run = draw(folder.path(), &["-p", "a cat", "-S", "1", "-q", "-o", "out.png"]).succeeds();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", ""));
}

#[test]
fn the_extension_chooses_the_format() {
    let folder = folder();
    for (name, signature) in
        [("a.PNG", &b"\x89PNG"[..]), ("a.jpg", b"\xff\xd8\xff"), ("a.JPEG", b"\xff\xd8\xff"), ("a.webp", b"RIFF")]
    {
        draw(folder.path(), &["-p", "a cat", "-o", name]).succeeds();
        assert!(fs::read(folder.path().join(name)).unwrap().starts_with(signature), "{name}");
    }
}

#[test]
fn timings_as_json_are_one_object_on_stdout() {
    let folder = folder();
    let run = draw(folder.path(), &["-p", "a cat", "-S", "3", "-o", "out.png", "--timings=json"]).succeeds();
    let report: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(report["output"], "out.png");
    assert_eq!(report["plan"]["seed"], 3);
    assert_eq!(report["timings"]["steps_s"].as_array().map(Vec::len), Some(1));
    for time in ["load_s", "text_s", "decode_s"] {
        assert!(report["timings"][time].as_f64().is_some_and(|s| (0.0..60.0).contains(&s)), "{time}");
    }
    assert!(report["save_s"].as_f64() < report["total_s"].as_f64());
    draw(folder.path(), &["-p", "a cat", "--timings=json", "--print-path"]).fails(2, &["standard output", "`output`"]);
}

#[test]
fn timings_as_text_name_every_stage_on_stderr() {
    let folder = folder();
    let run = draw(folder.path(), &["-p", "a cat", "-o", "out.png", "--timings"]).succeeds();
    for stage in ["device", "open", "load", "text", "step 1", "decode", "save", "total", "host peak", "device peak"] {
        assert!(run.stderr.lines().any(|line| line.starts_with(stage)), "{stage} is not in: {}", run.stderr);
    }
    assert!(!run.stderr.contains("images share"), "{}", run.stderr);
    assert_eq!(run.stdout, "");
    let run = draw(folder.path(), &["-p", "a cat", "-n", "2", "-o", "out.png", "--timings"]).succeeds();
    assert_eq!(run.stderr.matches("2 images share the times").count(), 2, "{}", run.stderr);
}

#[test]
fn a_prompt_may_be_empty_or_come_from_standard_input() {
    let folder = folder();
    draw(folder.path(), &["-p", "", "-S", "1", "-o", "empty.png"]).succeeds();
    let piped = |bytes: &[u8]| {
        let mut child = flux();
        child.current_dir(folder.path()).args(SMALL).args(["-p", "-", "-o", "piped.png"]);
        let mut child = child.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        child.stdin.take().expect("a pipe").write_all(bytes).expect("the program reads");
        child.wait_with_output().expect("the program ends")
    };
    for bytes in [&b"two\nlines\n"[..], b"\xef\xbb\xbftwo\r\nlines\r\n\r\n"] {
        assert!(piped(bytes).status.success());
        assert_eq!(texts(&folder.path().join("piped.png"))[0].1, "two\nlines");
    }
    for (bytes, words) in [
        (&b"\xff\xfe"[..], "not valid UTF-8 from byte 1 on"),
        (b"", "the prompt is empty"),
        (b"\r\n", "the prompt is empty"),
        (b"a c\0t", "character 4 of the prompt is the control character U+0000"),
        (b"a cat\rand a dog", "character 6 of the prompt is the control character U+000D"),
    ] {
        let output = piped(bytes);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && said.contains("in: standard input"), "{said}");
    }
}

#[test]
fn a_prompt_that_is_no_text_is_refused() {
    let folder = folder();
    draw(folder.path(), &["-p", "line\n\ttab", "-o", "out.png"]).succeeds();
    for (prompt, words) in [
        ("a \u{1b}[31mcat", "character 3 of the prompt is the control character U+001B"),
        ("\u{7f}", "character 1 of the prompt is the control character U+007F"),
        ("Käse\u{85}", "character 5 of the prompt is the control character U+0085"),
    ] {
        draw(folder.path(), &["-p", prompt]).fails(2, &[words, "in: --prompt"]);
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let latin = std::ffi::OsStr::from_bytes(b"a k\xe4se");
        Run::of(flux().args(SMALL).arg("-p").arg(latin)).fails(2, &["UTF-8", "from byte 4 on", "in: --prompt"]);
    }
    assert_eq!(names(folder.path()), ["out.png"]);
}

#[test]
fn a_prompt_that_is_cut_off_is_told_with_its_first_words() {
    let folder = folder();
    let prompt = "a cat ".repeat(400) + "and a dog";
    let run = draw(folder.path(), &["-p", &prompt, "-S", "1", "-o", "out.png"]).succeeds();
    let note = run.stderr.lines().find(|line| line.contains("cut off")).expect("a note");
    assert!(note.starts_with("note: the prompt is ") && note.contains(" tokens longer than the model reads"), "{note}");
    assert!(note.contains(", from `cat a cat") || note.contains(", from `a cat a"), "{note}");
    assert!(note.ends_with("...` on") && note.len() < 180, "{note}");
}

#[cfg(target_os = "linux")]
#[test]
fn someone_at_a_terminal_is_asked_for_the_prompt() {
    let folder = folder();
    let line = format!("{} -p - {} -S 1 -o out.png", env!("CARGO_BIN_EXE_flux"), SMALL.join(" "));
    let mut command = Command::new("script"); // gives the program a terminal
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).current_dir(folder.path());
    let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("skipped: no `script`");
        return;
    };
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.expect("UTF-8").contains("type the prompt; Ctrl-D")), "nothing is asked");
    child.stdin.take().expect("a pipe").write_all(b"a cat\n\x04").expect("the terminal takes the prompt");
    assert!(lines.any(|line| line.expect("UTF-8").contains("wrote out.png")));
    assert!(child.wait().expect("the program ends").success());
    assert_eq!(texts(&folder.path().join("out.png"))[0].1, "a cat");
}

#[test]
fn a_size_is_rounded_down_with_a_note() {
    let folder = folder();
    let run = draw(folder.path(), &["-p", "a cat", "-o", "out.png", "--steps=1"]);
    run.fails(2, &["--steps"]); // twice the same flag
    let args = ["-p", "a cat", "-o", "out.png", "--device", "cpu", "-s", "1", "-W", "47", "-H", "32"];
    let run = Run::of(flux().current_dir(folder.path()).args(args)).succeeds();
    assert!(run.stderr.contains("note: width 47 is rounded down to 32"), "{}", run.stderr);
    assert_eq!(read_png(&folder.path().join("out.png")).unwrap().width, 32);
}

#[test]
fn impossible_numbers_are_usage_errors_that_name_the_flag() {
    let folder = folder();
    let flags: [&[&str]; 20] = [
        &["--width", "0"],
        &["--width", "8"],
        &["--height", "100000"],
        &["--height", "18446744073709551615"],
        &["--height", "18446744073709551616"],
        &["--width", "12abc"],
        &["--width=-64"],
        &["--width", "64.0"],
        &["--width", ""],
        &["--steps", "0"],
        &["--steps", "1000000000"],
        &["--steps=-1"],
        &["--seed", "abc"],
        &["--seed=-2"],
        &["--guidance", "NaN"],
        &["--guidance=-inf"],
        &["--guidance=-1"],
        &["--gpu-memory", "0"],
        &["--device", "gpu"],
        &["--precision", "f16"],
    ];
    for flags in flags {
        let name = flags[0].split('=').next().unwrap();
        let mut command = flux();
        command.current_dir(folder.path()).args(["-p", "a cat"]).args(flags);
        if name != "--device" {
            command.args(["--device", "cpu"]);
        }
        Run::of(&mut command).fails(2, &[name]);
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_prompt_without_a_flag_and_a_size_draw_the_same_image() {
    let folder = folder();
    let drawn = |flags: &[&str]| {
        let flags = [&["-S", "7", "-s", "1", "--device", "cpu", "--quiet", "-o", "out.png"], flags].concat();
        let run = Run::of(flux().current_dir(folder.path()).args(flags)).succeeds();
        assert_eq!(run.stderr, "");
        fs::read(folder.path().join("out.png")).unwrap()
    };
    assert_eq!(drawn(&["five cats", "--size", "48x32"]), drawn(&["-p", "five cats", "-W", "48", "-H", "32"]));
    assert_eq!(drawn(&["--size", "32", "--", "-5 degrees"]), drawn(&["-p", "-5 degrees", "--size", "32X32"]));
    let run = |flags: &[&str]| Run::of(flux().current_dir(folder.path()).args(flags));
    run(&["a", "red", "circle"]).fails(2, &["`a` and `red`", "in quotes"]);
    run(&["a cat", "--timings", "json"]).fails(2, &["`--timings=json`"]);
    let help = |flags: &[&str]| run(flags).succeeds().stdout;
    assert_eq!(help(&["help"]), help(&["--help"]), "the word is no prompt");
}

#[test]
fn wrong_usage_ends_with_2() {
    let folder = folder();
    let run = |flags: &[&str]| Run::of(flux().current_dir(folder.path()).args(flags));
    run(&["-S", "1"]).fails(2, &["--prompt"]);
    run(&["-p", "a cat", "--colour"]).fails(2, &["--colour"]);
    run(&["-p", "a cat", "extra"]).fails(2, &["extra"]);
    run(&["-p", "a cat", "-q", "-v"]).fails(2, &["--quiet", "--verbose"]);
    run(&["-p", "a cat", "--device", "cpu", "--gpu-memory", "4"]).fails(2, &["--gpu-memory"]);
    for precision in ["auto", "f32", "bf16"] {
        run(&["-p", "a cat", "--fp8-cache", "--precision", precision]).fails(2, &["--fp8-cache", "--precision fp8"]);
    }
    run(&["-p", "a cat", "--fp8-cache", "--precision", "fp8"]).fails(2, &["--fp8-cache", "built-in model", "`-d`"]);
    assert_eq!(run(&[]).code, Some(2));
    assert!(names(folder.path()).is_empty());
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_model_is_read() {
    let folder = folder();
    fs::create_dir(folder.path().join("folder.png")).unwrap();
    // The model is missing too: the error about the output comes first.
    let refused = |output: &str, code: i32, words: &[&str]| {
        draw(folder.path(), &["-d", "no-model", "-p", "a cat", "-o", output]).fails(code, words);
    };
    refused("out.gif", 2, &["`out.gif`", ".png, .jpg, .jpeg or .webp", "--output"]);
    refused("out", 2, &["`out`"]);
    refused("folder.png", 2, &["is a folder"]);
    refused("none/out.png", 1, &["no such folder: `none`", "mkdir -p none"]);
    refused(&format!("{}.png", "x".repeat(300)), 1, &["shorter"]);
    #[cfg(target_os = "linux")] // nobody, not even root, makes files there
    refused("/sys/out.png", 1, &["cannot write the image", "/sys/out.png"]);
    assert_eq!(names(folder.path()), ["folder.png"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    let folder = folder();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    // A disk of 16 KiB that only this command sees. An image of noise does not fit.
    let script = format!(
        "mount -t tmpfs -o size=16k none {disk} || exit 77; {flux} -p x -W 256 -H 256 -s 1 -S 1 --device cpu -o {disk}/out.png; code=$?; ls -A {disk} >&2; exit $code",
        disk = disk.display(),
        flux = env!("CARGO_BIN_EXE_flux")
    );
    let run = Run::of(Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", &script]));
    if run.code == Some(77) || run.stderr.contains("unshare") {
        eprintln!("skipped: no right to mount a disk: {}", run.stderr.trim());
        return;
    }
    let run = run.fails(1, &["cannot write the image", "No space left", "out.png", "free some space"]);
    assert!(!run.stderr.contains(".part"), "{}", run.stderr);
}

/// The program while it runs, and the lines of its stderr that were not read yet.
#[cfg(unix)]
struct Begun {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

#[cfg(unix)]
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

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.expect("kill is there").success());
    }

    /// Its exit code, what else it said, and how long that took.
    fn end(mut self) -> (Option<i32>, String, Duration) {
        let start = Instant::now();
        let said: Vec<_> = self.lines.map(|line| line.expect("UTF-8")).collect();
        (self.child.wait().expect("the program ends").code(), said.join("\n"), start.elapsed())
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_an_image_within_a_step_and_leaves_nothing() {
    let folder = folder();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        // At once, while the prompt is encoded; and in one of the steps.
        for wait in [0, 500] {
            let begun = Begun::new(folder.path(), &["-s", "1000"]).until("seed 1");
            thread::sleep(Duration::from_millis(wait));
            begun.signal(signal);
            let (ended, said, took) = begun.end();
            assert_eq!((ended, said.as_str()), (Some(code), "cancelled"), "SIG{signal}");
            assert!(took < Duration::from_secs(5), "SIG{signal}: {took:?}");
            assert!(names(folder.path()).is_empty());
        }
    }
}

#[cfg(unix)]
#[test]
fn a_signal_while_the_model_is_loaded_ends_the_program_and_leaves_nothing() {
    let (folder, model) = (folder(), model_copy::ModelCopy::new());
    let tokenizer = model.file("tokenizer/tokenizer.json");
    let bytes = fs::read(&tokenizer).unwrap();
    model.remove("tokenizer/tokenizer.json");
    if !Command::new("mkfifo").arg(&tokenizer).status().is_ok_and(|made| made.success()) {
        eprintln!("skipped: no mkfifo");
        return;
    }
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let begun = Begun::new(folder.path(), &["-s", "1000", "-d", model.path().to_str().unwrap()]);
        // The pipe opens when the program does so too. It reads the tokenizer until the pipe is closed.
        let mut pipe = fs::File::options().write(true).open(&tokenizer).unwrap();
        begun.signal(signal);
        thread::sleep(Duration::from_millis(50));
        let _ = pipe.write_all(&bytes); // an error where the program has ended already
        drop(pipe);
        let (ended, said, took) = begun.end();
        assert_eq!((ended, said.lines().last()), (Some(code), Some("cancelled")), "SIG{signal}: {said}");
        assert!(took < Duration::from_secs(5), "SIG{signal}: {took:?}");
        assert!(names(folder.path()).is_empty());
    }
}

#[cfg(unix)]
#[test]
fn a_signal_at_any_time_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt;
    let folder = folder();
    for wait in (40..400).step_by(30) {
        let mut begun = Begun::new(folder.path(), &["-s", "1000"]);
        thread::sleep(Duration::from_millis(wait));
        begun.signal("INT");
        let status = begun.child.wait().expect("the program ends");
        // A shell tells 130 of both. The program listens to signals once its flags are checked.
        let ended = status.code().or(status.signal().map(|signal| 128 + signal));
        assert_eq!(ended, Some(130), "after {wait} ms");
        assert!(names(folder.path()).is_empty(), "after {wait} ms");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_between_two_images_keeps_the_first() {
    let folder = folder();
    let begun = Begun::new(folder.path(), &["-n", "2", "-s", "1", "-W", "512", "-H", "512"]).until("wrote out-1.png");
    begun.signal("INT");
    let (ended, said, _) = begun.end();
    assert_eq!((ended, said.as_str()), (Some(130), "cancelled"));
    assert_eq!(names(folder.path()), ["out-1.png"]);
    assert_eq!(read_png(&folder.path().join("out-1.png")).unwrap().width, 512);
}

#[cfg(unix)]
#[test]
fn a_second_signal_does_not_wait_for_the_step() {
    let folder = folder();
    // A step of this size takes seconds.
    let begun = Begun::new(folder.path(), &["-W", "1536", "-H", "1536", "-s", "1000"]).until("seed 1");
    thread::sleep(Duration::from_millis(1500));
    begun.signal("TERM");
    begun.signal("INT");
    let (ended, said, took) = begun.end();
    assert_eq!((ended, said.as_str()), (Some(130), ""));
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_prompt_that_is_too_long_is_refused_at_once() {
    let folder = folder();
    draw(folder.path(), &["-p", &"x".repeat(70_000), "-o", "out.png"]).fails(2, &["70000 bytes", "65536", "--prompt"]);
    let start = Instant::now();
    let mut child = flux();
    child.current_dir(folder.path()).args(SMALL).args(["-p", "-", "-o", "out.png"]);
    let mut child = child.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    // The program ends before it has read all, so the pipe breaks.
    let written = child.stdin.take().expect("a pipe").write_all(&vec![b'x'; 20_000_000]);
    let output = child.wait_with_output().expect("the program ends");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(written.is_err() && output.status.code() == Some(2), "{said}");
    assert!(
        said.contains("65537 bytes long or more") && said.contains("65536") && said.contains("standard input"),
        "{said}"
    );
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(names(folder.path()).is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn a_stderr_that_is_full_costs_no_image_and_a_full_stdout_is_told() {
    let folder = folder();
    let run = |redirect: &str| {
        let flags = SMALL.join(" ");
        let line = format!("{} -p x {flags} --print-path -o out.png {redirect}", env!("CARGO_BIN_EXE_flux"));
        Run::of(Command::new("sh").args(["-c", &line]).current_dir(folder.path()).env_remove("FLUX_MODEL"))
    };
    assert_eq!(run("2>/dev/full").succeeds().stdout, "out.png\n");
    run(">/dev/full").fails(1, &["cannot write to standard output"]);
    assert_eq!(names(folder.path()), ["out.png"]);
}

#[cfg(unix)]
#[test]
fn a_path_is_printed_as_it_is() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    let name = std::ffi::OsStr::from_bytes(b"k\xe4se.png"); // Latin-1
    let output = flux()
        .current_dir(folder.path())
        .args(SMALL)
        .args(["-p", "x", "--print-path", "-o"])
        .arg(name)
        .output()
        .expect("the program starts");
    assert_eq!(output.stdout, b"k\xe4se.png\n");
    assert!(folder.path().join(name).exists());
}

#[test]
fn a_missing_model_folder_is_named_with_a_remedy() {
    let folder = folder();
    draw(folder.path(), &["-p", "a cat", "-d", "none"]).fails(
        1,
        &[
            "no such model folder: `none`",
            "in: --dir",
            "scripts/download_model.sh 4b",
            "flux's source folder",
            "`black-forest-labs/FLUX.2-klein-4B`",
        ],
    );
    draw(folder.path(), &["-p", "a cat", "-d", "."]).fails(1, &["not a model folder", "model_index.json"]);
    draw(folder.path(), &["-p", "a cat", "-d", ""]).fails(2, &["--dir"]);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn the_model_folder_comes_from_the_flag_then_from_the_environment() {
    let folder = folder();
    let run = |model: &str, flags: &[&str]| {
        Run::of(
            flux()
                .current_dir(folder.path())
                .env("FLUX_MODEL", model)
                .args(SMALL)
                .args(["-p", "a cat", "-S", "1", "-o"])
                .args(flags),
        )
    };
    run("none", &["a.png"]).fails(1, &["no such model folder: `none`", "in: FLUX_MODEL"]);
    run("", &["a.png"]).succeeds();
    let tiny = project("models/tiny");
    run("none", &["b.png", "-d", tiny.to_str().unwrap()]).succeeds();
    run(tiny.to_str().unwrap(), &["c.png"]).succeeds();
    let bytes = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert_eq!(bytes("a.png"), bytes("b.png"), "the built-in model is models/tiny");
    assert_eq!(bytes("a.png"), bytes("c.png"));
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_and_auto_says_why_it_uses_the_cpu() {
    let folder = folder();
    let run = |flags: &[&str]| {
        Run::of(
            flux()
                .current_dir(folder.path())
                .args(["-p", "a cat", "-W", "32", "-H", "32", "-s", "1", "-o", "out.png"])
                .args(flags),
        )
    };
    run(&["--device", "cuda:99"]).fails(1, &["--device cuda:99", "hint: "]);
    run(&["--device", "cuda", "--precision", "f32"]).fails(2, &["--precision", "--device cpu"]);
    run(&["--device", "cpu", "--precision", "fp8"]).fails(2, &["--precision", "not in fp8", "--device cuda"]);
    let auto = run(&[]).succeeds();
    if run(&["--device", "cuda"]).code == Some(0) {
        eprintln!("skipped: this machine has a GPU");
    } else {
        assert!(auto.stderr.contains("note: using the CPU: "), "{}", auto.stderr);
        let fp8 = run(&["--precision", "fp8"]).fails(1, &["--precision fp8", "hint: "]);
        assert!(!fp8.stderr.contains("--device cpu"), "the CPU has no fp8: {}", fp8.stderr);
    }
}

#[test]
fn compare_measures_and_holds_to_its_bound() {
    let folder = folder();
    for (seed, name) in [("1", "a.png"), ("2", "b.png")] {
        draw(folder.path(), &["-p", "a cat", "-S", seed, "-o", name]).succeeds();
    }
    let compare = |args: &[&str]| Run::of(flux().current_dir(folder.path()).arg("compare").args(args));
    assert_eq!(compare(&["a.png", "a.png", "--min-psnr", "60"]).succeeds().stdout, "max 0 mean 0.0000 psnr inf dB\n");
    let apart = compare(&["a.png", "b.png", "--min-psnr", "60"]);
    assert_eq!(apart.code, Some(1));
    assert!(apart.stdout.starts_with("max ") && apart.stderr.contains("expected at least 60 dB"), "{}", apart.stderr);
    compare(&["a.png", "none.png"]).fails(1, &["none.png"]);
    fs::write(folder.path().join("text.png"), "no image").unwrap();
    compare(&["a.png", "text.png"]).fails(1, &["cannot read the PNG", "text.png"]);
}

#[test]
fn bench_measures_every_stage_and_op_beside_the_ceilings() {
    let tiny = project("models/tiny");
    let bench = |args: &[&str]| {
        Run::of(flux().arg("bench").args(["--device", "cpu", "--runs", "1"]).args(args).arg("-d").arg(&tiny))
    };
    // Rounded down, and each once.
    let run = bench(&["--json", "--size", "32,48,47,48", "--steps", "1", "--batch", "2"]).succeeds();
    let rows: Vec<serde_json::Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let named = |start: &str| {
        rows.iter().filter(|row| row["name"].as_str().is_some_and(|name| name.starts_with(start))).collect::<Vec<_>>()
    };
    for (size, row) in [32, 48].into_iter().zip(named("stages/")) {
        assert_eq!((row["size"].as_u64(), row["batch"].as_u64()), (Some(size), Some(2)));
        for field in ["text_ms", "step_ms", "step_tflop_s", "decode_ms", "png_ms", "png_bytes"] {
            assert!(row[field].as_f64().is_some_and(|value| value > 0.0), "{field}: {row}");
        }
        let parts: f64 =
            ["text_ms", "prepare_ms", "step_ms", "decode_ms"].iter().map(|part| row[part].as_f64().unwrap()).sum();
        assert!(row["total_ms"].as_f64().unwrap() > 0.9 * parts, "{row}");
    }
    assert_eq!((named("stages/").len(), named("ceiling/").len()), (2, 3));
    let fused = [
        "gated_add",
        "swiglu",
        "adaln",
        "qk_norm_rope",
        "group_norm_silu",
        "conv2d_add",
        "norm_conv2d",
        "gated_add_adaln",
        "upsample_conv2d",
    ];
    for op in ["add", "rms_norm", "linear", "attention", "conv2d"].iter().chain(&fused) {
        let rows = named(&format!("ops/{op} "));
        assert!(!rows.is_empty(), "{op}");
        for row in rows {
            assert!(row["ms"].as_f64().is_some_and(|ms| ms > 0.0) && row["of_ceiling"].as_f64().is_some(), "{row}");
            assert_eq!(row["composed"].as_f64().is_some(), fused.contains(op), "{row}");
        }
    }
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert!(names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)), "each once: {names:?}");

    let table = bench(&["--size", "32", "adaln", "rms_norm"]).succeeds().stdout;
    let starts: Vec<_> = table.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(
        starts,
        ["CPU,", "ceiling/copy", "ceiling/add", "ceiling/linear", "ops/adaln", "ops/gated_add_adaln", "ops/rms_norm"],
        "{table}"
    );
    assert!(table.contains("GB/s") && table.contains("of ceiling") && table.contains("composed"), "{table}");
    assert!(!table.contains("in a row"), "{table}");

    // Ops that write over what they read, and ops that do not.
    let run =
        bench(&["--json", "--size", "32", "--in-a-row", "0.01", "ops/add", "ops/attention", "ops/rms_norm"]).succeeds();
    let rows: Vec<serde_json::Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(
        rows.len() >= 6 && rows.iter().all(|row| row["in_a_row_ms"].as_f64().is_some_and(|ms| ms > 0.0)),
        "{}",
        run.stdout
    );
    assert!(bench(&["--size", "32", "--in-a-row", "0.01", "adaln"]).succeeds().stdout.contains("in a row"));

    // One image that is not counted, and one that is.
    let start = Instant::now();
    let run = bench(&["--json", "--size", "16", "--steps", "1", "--pause", "1", "stages/"]).succeeds();
    let row: serde_json::Value = serde_json::from_str(run.stdout.trim()).expect("JSON");
    assert!(
        start.elapsed() >= Duration::from_secs(2) && row["total_ms"].as_f64().is_some_and(|ms| ms < 1000.0),
        "{row}"
    );
}

#[test]
fn bench_takes_the_shapes_of_klein_4b_without_a_model_and_refuses_what_it_cannot_measure() {
    let bench = |args: &[&str]| Run::of(flux().arg("bench").args(["--device", "cpu", "--runs", "1"]).args(args));
    let table = bench(&["--size", "16", "rms_norm"]).succeeds().stdout;
    assert!(table.contains("ops/rms_norm 512x2560 "), "{table}");
    assert!(bench(&["--size", "16", "--steps", "1", "stages/"]).succeeds().stdout.contains("stages/16x16 PNG"));
    assert!(bench(&["swigloo"]).stderr.contains("`swigloo`"));
    assert_eq!(bench(&["swigloo"]).code, Some(2));
    bench(&["--size", "8"]).fails(2, &["--size"]);
    bench(&["--runs", "0"]).fails(2, &["--runs"]);
    bench(&["--in-a-row", "61"]).fails(2, &["--in-a-row"]);
    bench(&["--pause", "61"]).fails(2, &["--pause"]);
    bench(&["-d", "none"]).fails(1, &["no such model folder: `none`", "--dir"]);
}

#[test]
fn version_and_help_are_as_they_were() {
    let version = Run::of(flux().arg("-V")).succeeds();
    assert_eq!(version.stdout, concat!("flux ", env!("CARGO_PKG_VERSION"), "\n"));
    let help = Run::of(flux().arg("--help").env_remove("COLUMNS")).succeeds().stdout;
    let snapshot = project("tests/snapshots/help.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&snapshot, &help).unwrap();
    }
    assert_eq!(
        help,
        fs::read_to_string(&snapshot).unwrap(),
        "if the change is meant: UPDATE_SNAPSHOTS=1 cargo test --release --test cli"
    );
}

#[test]
fn help_fits_the_terminal_and_groups_the_flags() {
    let help = |flags: &[&str], columns: &str| Run::of(flux().args(flags).env("COLUMNS", columns)).succeeds().stdout;
    let too_long = |text: &str, most: usize| text.lines().find(|line| line.chars().count() > most).map(String::from);
    for flags in [&["-h"][..], &["--help"], &["bench", "-h"], &["bench", "--help"]] {
        assert_eq!(too_long(&help(flags, "200"), 80), None, "{flags:?}");
    }
    assert_eq!(too_long(&help(&["bench", "--help"], "60"), 60), None, "a narrow terminal");
    let text = help(&["-h"], "80");
    let headings: Vec<_> = text.lines().filter(|line| line.ends_with(':') && !line.starts_with(' ')).collect();
    let expected = [
        "Commands:",
        "What to draw:",
        "Output:",
        "Size and sampling:",
        "Model:",
        "Device:",
        "Information:",
        "Examples:",
    ];
    assert_eq!(headings, expected);
    let bench = help(&["bench", "-h"], "80");
    let own = bench.split("\nOptions:\n").nth(1).expect("its own flags").split("\n\n").next().unwrap_or_default();
    assert!(own.contains("--batch") && own.contains("--json") && !own.contains("--device"), "{bench}");
}

#[test]
fn an_image_larger_than_the_memory_is_refused_before_anything_runs() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    // 8192 x 8192 pixels of the default model take 40 GiB.
    if total_kib.is_none_or(|kib| kib > 36 << 20) {
        println!("skipped: this machine has the memory");
        return;
    }
    let folder = folder();
    let mut command = flux();
    command
        .current_dir(folder.path())
        .args(["-p", "a cat", "--device", "cpu", "-W", "8192", "-H", "8192", "-o", "out.png"]);
    let run = Run::of(&mut command);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("8192 x 8192 image needs") && run.stderr.contains("MiB"), "{}", run.stderr);
    assert!(!folder.path().join("out.png").exists());
}

#[test]
fn a_precision_that_the_processor_lacks_is_told() {
    let folder = folder();
    let run = draw(folder.path(), &["-p", "a cat", "--precision", "bf16", "-o", "out.png"]).succeeds();
    assert_eq!(run.stderr.contains("no AMX-BF16"), !flux::backend::cpu::amx::available(), "{}", run.stderr);
}
