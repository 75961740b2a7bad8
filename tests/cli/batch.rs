//! Many images from a file.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use flux::files::digest;
use flux::input::read;
use serde_json::Value;

use super::again::write_adapter;
use super::folder;
use crate::program::{Run, SMALL, draw, flux, names, takes_long_form};

fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = flux();
    command.current_dir(folder).arg("batch").args(words).args(SMALL);
    command
}

fn batch(folder: &Path, words: &[&str]) -> Run {
    Run::of(&mut command(folder, words))
}

fn manifest(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("manifest.jsonl")).expect("a manifest");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// An image that is large enough to be drawn from.
fn input(folder: &Path, seed: &str, name: &str) {
    let words = ["-p", "a cat", "-S", seed, "-s", "1", "--size", "64", "--device", "cpu", "-q", "-o", name];
    Run::of(flux().current_dir(folder).args(words)).succeeds();
}

fn bytes(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn a_prompt_a_line_becomes_an_image_each_and_given_again_nothing_is_made() {
    let folder = folder();
    let folder = folder.path();
    fs::write(folder.join("prompts.txt"), "\u{feff}a cat\r\n\n# a note\nein Käse 🧀\na cat\n").unwrap();
    let first = batch(folder, &["prompts.txt", "out", "-S", "7"]).succeeds();
    assert!(first.stderr.contains("3 made") && first.stdout.is_empty(), "{}", first.stderr);
    let images = ["0001-a-cat.png", "0002-ein-käse.png", "0003-a-cat.png"];
    assert_eq!(names(&folder.join("out")), [&images[..], &["manifest.jsonl"]].concat());
    draw(folder, &["-p", "ein Käse 🧀", "-S", "8", "-o", "alone.png"]).succeeds();
    let [made, alone] = ["out/0002-ein-käse.png", "alone.png"].map(|name| read(&folder.join(name)).unwrap());
    assert!(made == alone, "seeds follow that of the first line");
    let lines = manifest(&folder.join("out"));
    let name = "0001-a-cat.png";
    let line = lines.iter().find(|line| line["file"] == name).expect("a line of it");
    let hash = digest::of_bytes(&bytes(&folder.join("out").join(name)));
    assert_eq!(line["sha256"].as_str(), hash.strip_prefix("sha256:"));
    let told = (line["line"].as_u64(), line["seed"].as_u64(), line["recipe"]["steps"].as_u64());
    assert_eq!(told, (Some(1), Some(7), Some(1)));
    assert!(line["seconds"].as_f64().is_some() && line["key"].is_string(), "{line}");
    let before = bytes(&folder.join("out/manifest.jsonl"));
    let again = batch(folder, &["prompts.txt", "out", "-S", "7"]).succeeds();
    assert!(again.stderr.contains("0 made; 3 there already"), "{}", again.stderr);
    assert!(bytes(&folder.join("out/manifest.jsonl")) == before);
    // What is missing is made, and nothing else.
    fs::remove_file(folder.join("out/0003-a-cat.png")).unwrap();
    let third = batch(folder, &["prompts.txt", "out", "-S", "7"]).succeeds();
    assert!(third.stderr.contains("1 made") && third.stderr.contains("2 there already"), "{}", third.stderr);
}

#[test]
fn each_line_of_an_object_or_a_table_has_its_own_recipe_and_a_wrong_one_stops_no_other() {
    let folder = folder();
    let folder = folder.path();
    input(folder, "1", "in.png");
    let jsonl = r#"{"prompt": "a cat", "seed": 1, "output": "a.webp"}
{"prompt": "b", "steps": "many"}
{"prompt": "c", "seed": 2, "size": "48x32", "n": 2}
{"prompt": "d", "inputs": ["none.png"]}
{"prompt": "e", "inputs": ["in.png"], "strength": 0.5, "seed": 3, "size": 64, "output": "below/e.jpg"}
{"prompt": "f", "output": "../f.png"}
"#;
    fs::write(folder.join("list.jsonl"), jsonl).unwrap();
    let run = batch(folder, &["list.jsonl", "out"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for words in
        ["line 2: the line cannot be read", "line 4: ", "none.png", "line 6: ", "3 of 7 images failed", "4 made"]
    {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
    assert_eq!(names(&folder.join("out")), ["0003-c-1.png", "0003-c-2.png", "a.webp", "below", "manifest.jsonl"]);
    assert_eq!(read(&folder.join("out/0003-c-2.png")).unwrap().width, 48);
    let failed: Vec<_> = manifest(&folder.join("out")).into_iter().filter(|line| !line["error"].is_null()).collect();
    let lines: Vec<_> = failed.iter().map(|line| line["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [2, 6, 4], "what is wrong without a look at files comes first");
    // Mended, it is made, and the others stay.
    input(folder, "1", "none.png");
    let list = jsonl.replace(r#""inputs": ["none.png"]"#, r#""inputs": ["none.png"], "size": 64"#);
    fs::write(folder.join("list.jsonl"), list).unwrap();
    let run = batch(folder, &["list.jsonl", "out"]);
    assert!(run.stderr.contains("1 made") && run.stderr.contains("4 there already"), "{}", run.stderr);

    fs::write(folder.join("list.csv"), "prompt,seed,output,size\n\"a cat, sitting\",5,x.png,64x32\nb,x,y.png,\n")
        .unwrap();
    let run = batch(folder, &["list.csv", "table"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("line 3: `seed` is `x`"), "{}", run.stderr);
    assert_eq!(read(&folder.join("table/x.png")).unwrap().width, 64);
}

#[test]
fn a_line_or_an_input_that_has_changed_is_made_anew_and_foreign_files_stay() {
    let folder = folder();
    let folder = folder.path();
    input(folder, "1", "in.png");
    let list = |prompt: &str| {
        let line = format!(r#"{{"prompt": "{prompt}", "inputs": ["in.png"], "seed": 1, "output": "a.png"}}"#);
        fs::write(folder.join("list.jsonl"), line).unwrap();
    };
    let run = || batch(folder, &["list.jsonl", "out"]).succeeds().stderr;
    list("one");
    assert!(run().contains("1 made"));
    list("two");
    let made = run();
    assert!(made.contains("1 made"), "{made}");
    assert!(run().contains("0 made; 1 there already"));
    input(folder, "2", "in.png");
    assert!(run().contains("1 made"), "another input");
    // Without a manifest the image says itself what it was made from.
    fs::remove_file(folder.join("out/manifest.jsonl")).unwrap();
    assert!(run().contains("0 made; 1 there already"));
    input(folder, "3", "in.png");
    assert!(run().contains("1 made"), "another input");
    fs::write(folder.join("out/b.png"), "mine").unwrap();
    fs::write(folder.join("list.jsonl"), r#"{"prompt": "x", "output": "b.png"}"#).unwrap();
    let refused = batch(folder, &["list.jsonl", "out"]);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("is not what this list made") && refused.stderr.contains("--force"),
        "{}",
        refused.stderr
    );
    assert_eq!(fs::read(folder.join("out/b.png")).unwrap(), b"mine");
    batch(folder, &["list.jsonl", "out", "--force"]).succeeds();
    assert_eq!(read(&folder.join("out/b.png")).unwrap().width, 32);
}

#[test]
fn random_seeds_stay_what_they_were() {
    let folder = folder();
    let folder = folder.path();
    fs::write(folder.join("list.txt"), "a\nb\n").unwrap();
    batch(folder, &["list.txt", "out", "-n", "2"]).succeeds();
    let before: Vec<_> = manifest(&folder.join("out")).iter().map(|line| line["seed"].as_u64().unwrap()).collect();
    assert_eq!(before.len(), 4);
    let again = batch(folder, &["list.txt", "out", "-n", "2"]).succeeds();
    assert!(again.stderr.contains("0 made; 4 there already"), "{}", again.stderr);
    // Also where the name has the seed, of two lines that ask for the same, too.
    fs::write(folder.join("list.txt"), "a\na\n").unwrap();
    let named = ["list.txt", "named", "-n", "2", "--name", "{index}/{seed}.png"];
    batch(folder, &named).succeeds();
    let again = batch(folder, &named).succeeds();
    assert!(again.stderr.contains("0 made; 4 there already"), "{}", again.stderr);
    assert_eq!(names(&folder.join("named/1")).len() + names(&folder.join("named/2")).len(), 4);
}

#[test]
fn what_was_made_from_an_adapter_in_a_folder_is_made_anew_when_the_adapter_has_changed() {
    let folder = folder();
    let folder = folder.path();
    fs::create_dir(folder.join("style")).unwrap();
    let write = |scale| write_adapter(&folder.join("style/adapter_model.safetensors"), scale);
    write(0.3);
    let line = r#"{"prompt": "x", "seed": 1, "adapters": [{"file": "style", "strength": 1}]}"#;
    fs::write(folder.join("list.jsonl"), line).unwrap();
    let run = || batch(folder, &["list.jsonl", "out"]).succeeds().stderr;
    assert!(run().contains("1 made"));
    assert!(run().contains("0 made; 1 there already"));
    write(0.2);
    assert!(run().contains("1 made"));
}

#[test]
fn no_list_writes_over_what_another_has_just_made() {
    let folder = folder();
    let folder = folder.path();
    for (list, prompt) in [("a.jsonl", "a"), ("b.jsonl", "b")] {
        fs::write(folder.join(list), format!(r#"{{"prompt": "{prompt}", "output": "x.png"}}"#)).unwrap();
    }
    let runs =
        ["a.jsonl", "b.jsonl"].map(|list| command(folder, &[list, "out"]).stderr(Stdio::null()).spawn().unwrap());
    let codes = runs.map(|mut run| run.wait().unwrap().code());
    // The second may also begin after the first has ended, and then make its own image anew.
    let made = manifest(&folder.join("out")).iter().filter(|line| line.get("error").is_none()).count();
    assert!(codes.contains(&Some(0)) && (made == 1) == codes.contains(&Some(1)), "{codes:?}, {made}");
}

#[test]
fn a_dry_run_checks_every_line_and_writes_nothing() {
    let folder = folder();
    let folder = folder.path();
    let jsonl = "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"mask\": \"m.png\"}\n{\"prompt\": \"c\", \"width\": 9}\n\
                 {\"prompt\": \"d\", \"adapters\": [{\"file\": \"none.safetensors\", \"strength\": 1}]}\n";
    fs::write(folder.join("list.jsonl"), jsonl).unwrap();
    let mut command = flux();
    let run = Run::of(command.current_dir(folder).args(["batch", "list.jsonl", "out", "--dry-run", "--device", "cpu"]));
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for words in
        ["line 2: `mask` has no meaning", "line 3: ", "line 4: ", "none.safetensors", "1 to make", "3 cannot be made"]
    {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
    assert_eq!(names(folder), ["list.jsonl"]);
    fs::write(folder.join("list.jsonl"), "{\"prompt\": \"a\"}\n").unwrap();
    batch(folder, &["list.jsonl", "out", "--dry-run"]).succeeds();
    assert_eq!(names(folder), ["list.jsonl"]);
}

#[test]
fn parts_of_a_list_make_each_image_once() {
    let folder = folder();
    let folder = folder.path();
    fs::write(folder.join("list.txt"), "a\nb\nc\nd\ne\n").unwrap();
    let mut parts: Vec<_> = ["1/2", "2/2"]
        .iter()
        .map(|part| {
            command(folder, &["list.txt", "out", "-S", "1", "--shard", part]).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    assert!(parts.iter_mut().all(|part| part.wait().unwrap().success()));
    let all = batch(folder, &["list.txt", "out", "-S", "1"]).succeeds();
    assert!(all.stderr.contains("0 made; 5 there already"), "{}", all.stderr);
}

#[test]
fn lines_come_from_standard_input_and_tell_of_themselves_in_json() {
    let folder = folder();
    let folder = folder.path();
    let mut command = command(folder, &["-", "out", "--json", "-q"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = "{\"prompt\": \"a\", \"seed\": 1}\n{\"prompt\": 1}\n";
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!((told[0]["line"].as_u64(), told[0]["error"]["kind"].as_str()), (Some(2), Some("usage")));
    assert_eq!((told[1]["file"].as_str(), told[1]["seed"].as_u64()), (Some("0001-a.png"), Some(1)));
    assert!(told[2]["error"]["what"].as_str().unwrap().contains("1 of 2 images failed"));
}

#[test]
fn what_no_batch_can_do_is_refused_before_any_work() {
    let folder = folder();
    let folder = folder.path();
    fs::write(folder.join("list.txt"), "a\n").unwrap();
    fs::write(folder.join("list"), "a\n").unwrap();
    fs::write(folder.join("bad.txt"), b"a\n\xff\n").unwrap();
    for (words, told) in [
        (&["list.txt", "out", "--save-latents", "x"][..], "--save-latents"),
        (&["list", "out"], "--format"),
        (&["bad.txt", "out"], "line 2 is not valid UTF-8"),
        (&["list.txt", "out", "--name", "{sed}.png"], "no field"),
        (&["list.txt", "out", "--shard", "3/2"], "1/4"),
        (&["none.txt", "out"], "none.txt"),
        (&["list.txt", "out", "-d", "none"], "none"),
        (&["list.txt", "list.txt"], "folder"),
    ] {
        let run = batch(folder, words);
        assert!(matches!(run.code, Some(1 | 2)) && run.stderr.contains(told), "{words:?}: {}", run.stderr);
    }
    assert!(!folder.join("out").exists());
    let same = batch(folder, &["list.txt", "out", "--name", "x.png", "-n", "2"]).succeeds();
    assert!(same.stderr.contains("2 made"), "{}", same.stderr);
    fs::write(folder.join("two.txt"), "a\nb\n").unwrap();
    let run = batch(folder, &["two.txt", "one", "--name", "x.png"]);
    assert!(run.code == Some(1) && run.stderr.contains("is the name of another image, of line 1"), "{}", run.stderr);
}

/// Begins a list, and ends it by a signal after a while.
fn ended(folder: &Path, signal: &str, after: Duration) {
    let mut command = command(folder, &["list.txt", "out", "-S", "1", "-q"]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    thread::sleep(after);
    let _ = Command::new("kill").args([signal, &child.id().to_string()]).status();
    child.wait().unwrap();
}

#[test]
fn a_list_that_was_killed_goes_on_and_makes_each_image_once() {
    let lines = if takes_long_form() { 1_000 } else { 40 };
    let folder = folder();
    let folder = folder.path();
    let list: String = (0..lines).map(|line| format!("prompt {line}\n")).collect();
    fs::write(folder.join("list.txt"), list).unwrap();
    let ends = [("-KILL", 400), ("-INT", 600), ("-TERM", 500), ("-KILL", 900), ("-KILL", 700), ("-KILL", 1100)];
    for (signal, after) in &ends[..if takes_long_form() { 6 } else { 3 }] {
        ended(folder, signal, Duration::from_millis(*after));
    }
    batch(folder, &["list.txt", "out", "-S", "1", "-q"]).succeeds();
    let out = folder.join("out");
    let made = manifest(&out);
    assert_eq!(made.len(), lines, "a line for each image");
    let mut files: Vec<_> = made.iter().map(|line| line["file"].as_str().unwrap().to_string()).collect();
    files.sort();
    files.dedup();
    assert_eq!(files.len(), lines);
    for line in &made {
        let file = out.join(line["file"].as_str().unwrap());
        let hash = digest::of_bytes(&bytes(&file));
        assert_eq!(line["sha256"].as_str(), hash.strip_prefix("sha256:"), "{}", file.display());
    }
    let left: Vec<_> =
        names(&out).into_iter().filter(|name| !name.ends_with(".png") && name != "manifest.jsonl").collect();
    assert!(left.len() <= 6, "what was being written when it was killed: {left:?}");
    // A list that is done is passed over quickly.
    let start = Instant::now();
    let again = batch(folder, &["list.txt", "out", "-S", "1"]).succeeds();
    assert!(again.stderr.contains(&format!("0 made; {lines} there already")), "{}", again.stderr);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
