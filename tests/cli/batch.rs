//! Many images from a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use flux::files::digest;
use flux::input::read;
use serde_json::Value;

use super::again::write_adapter;
use super::folder;
use crate::program::{Run, SMALL, draw, flux, names, signal, takes_long_form};

fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = flux();
    command.current_dir(folder).arg("batch").args(words).args(SMALL);
    command
}

fn batch(folder: &Path, words: &[&str]) -> Run {
    Run::new(&mut command(folder, words))
}

fn manifest(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("manifest.jsonl")).expect("a manifest");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Creates an image that is large enough to be an input.
fn input(folder: &Path, seed: &str, name: &str) {
    let words = ["-p", "a cat", "-S", seed, "-s", "1", "--size", "64", "--device", "cpu", "-q", "-o", name];
    Run::new(flux().current_dir(folder).args(words)).succeeds();
}

fn bytes(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn a_prompt_a_line_becomes_an_image_each_and_given_again_nothing_is_made() {
    let folder = &folder();
    fs::write(folder.join("prompts.txt"), "\u{feff}a cat\r\n\n# a note\nein Käse 🧀\na cat\n").unwrap();
    let first = batch(folder, &["prompts.txt", "out", "-S", "7"]).succeeds();
    assert!(first.stderr.contains("3 generated") && first.stdout.is_empty(), "{}", first.stderr);
    let images = ["0001-a-cat.png", "0002-ein-käse.png", "0003-a-cat.png"];
    assert_eq!(names(&folder.join("out")), [&images[..], &["manifest.jsonl"]].concat());
    draw(folder, &["-p", "ein Käse 🧀", "-S", "8", "-o", "alone.png"]).succeeds();
    let [made, alone] = ["out/0002-ein-käse.png", "alone.png"].map(|name| read(&folder.join(name)).unwrap());
    assert!(made == alone, "seeds follow that of the first line");
    let lines = manifest(&folder.join("out"));
    let name = "0001-a-cat.png";
    let line = lines.iter().find(|line| line["file"] == name).expect("a line of it");
    let hash = digest::hash_bytes(&bytes(&folder.join("out").join(name)));
    assert_eq!(line["sha256"].as_str(), hash.strip_prefix("sha256:"));
    let told = (line["line"].as_u64(), line["seed"].as_u64(), line["recipe"]["steps"].as_u64());
    assert_eq!(told, (Some(1), Some(7), Some(1)));
    assert!(line["seconds"].as_f64().is_some() && line["key"].is_string(), "{line}");
    let before = bytes(&folder.join("out/manifest.jsonl"));
    let again = batch(folder, &["prompts.txt", "out", "-S", "7"]).succeeds();
    assert!(again.stderr.contains("0 generated; 3 already existed"), "{}", again.stderr);
    assert!(bytes(&folder.join("out/manifest.jsonl")) == before);
    // Only missing images are made.
    fs::remove_file(folder.join("out/0003-a-cat.png")).unwrap();
    let third = batch(folder, &["prompts.txt", "out", "-S", "7"]).succeeds();
    assert!(third.stderr.contains("1 generated") && third.stderr.contains("2 already existed"), "{}", third.stderr);
}

#[test]
fn each_line_of_an_object_or_a_table_has_its_own_recipe_and_a_wrong_one_stops_no_other() {
    let folder = &folder();
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
    for words in [
        "line 2: cannot read the line: `steps`: ",
        "line 4: ",
        "none.png",
        "line 6: ",
        "3 of 7 images failed",
        "4 generated",
    ] {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
    assert_eq!(names(&folder.join("out")), ["0003-c-1.png", "0003-c-2.png", "a.webp", "below", "manifest.jsonl"]);
    assert_eq!(read(&folder.join("out/0003-c-2.png")).unwrap().width, 48);
    let failed: Vec<_> = manifest(&folder.join("out")).into_iter().filter(|line| !line["error"].is_null()).collect();
    let lines: Vec<_> = failed.iter().map(|line| line["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [2, 6, 4], "what is wrong without a look at files comes first");
    // Once fixed, it is made, and the others stay.
    input(folder, "1", "none.png");
    let list = jsonl.replace(r#""inputs": ["none.png"]"#, r#""inputs": ["none.png"], "size": 64"#);
    fs::write(folder.join("list.jsonl"), list).unwrap();
    let run = batch(folder, &["list.jsonl", "out"]);
    assert!(run.stderr.contains("1 generated") && run.stderr.contains("4 already existed"), "{}", run.stderr);

    fs::write(folder.join("list.csv"), "prompt,seed,output,size\n\"a cat, sitting\",5,x.png,64x32\nb,x,y.png,\n")
        .unwrap();
    let run = batch(folder, &["list.csv", "table"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("line 3: `seed` is `x`"), "{}", run.stderr);
    assert_eq!(read(&folder.join("table/x.png")).unwrap().width, 64);
}

#[test]
fn a_line_or_an_input_that_has_changed_is_made_anew_and_foreign_files_stay() {
    let folder = &folder();
    input(folder, "1", "in.png");
    let list = |prompt: &str| {
        let line = format!(r#"{{"prompt": "{prompt}", "inputs": ["in.png"], "seed": 1, "output": "a.png"}}"#);
        fs::write(folder.join("list.jsonl"), line).unwrap();
    };
    let run = || batch(folder, &["list.jsonl", "out"]).succeeds().stderr;
    list("one");
    assert!(run().contains("1 generated"));
    list("two");
    let made = run();
    assert!(made.contains("1 generated"), "{made}");
    assert!(run().contains("0 generated; 1 already existed"));
    input(folder, "2", "in.png");
    assert!(run().contains("1 generated"), "another input");
    // Without a manifest the image's metadata has its inputs.
    fs::remove_file(folder.join("out/manifest.jsonl")).unwrap();
    assert!(run().contains("0 generated; 1 already existed"));
    input(folder, "3", "in.png");
    assert!(run().contains("1 generated"), "another input");
    fs::write(folder.join("out/b.png"), "mine").unwrap();
    fs::write(folder.join("list.jsonl"), r#"{"prompt": "x", "output": "b.png"}"#).unwrap();
    let refused = batch(folder, &["list.jsonl", "out"]);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("is not the image that this list generates") && refused.stderr.contains("--force"),
        "{}",
        refused.stderr
    );
    assert_eq!(fs::read(folder.join("out/b.png")).unwrap(), b"mine");
    batch(folder, &["list.jsonl", "out", "--force"]).succeeds();
    assert_eq!(read(&folder.join("out/b.png")).unwrap().width, 32);
}

/// Makes a list of one line once, and returns the path of its image.
fn made_once(folder: &Path) -> PathBuf {
    fs::write(folder.join("list.jsonl"), r#"{"prompt": "x", "seed": 1, "output": "a.png"}"#).unwrap();
    batch(folder, &["list.jsonl", "out"]).succeeds();
    folder.join("out/a.png")
}

#[test]
fn a_file_that_another_program_changed_neither_counts_nor_is_overwritten() {
    let folder = &folder();
    let path = made_once(folder);
    let whole = bytes(&path);
    let time = path.metadata().unwrap().modified().unwrap();
    let mut same_length = whole.clone();
    *same_length.last_mut().unwrap() ^= 1;
    let changed = [same_length, vec![0; whole.len()], whole[..whole.len() / 2].to_vec(), Vec::new()];
    for prompt in ["x", "y"] {
        let list = format!(r#"{{"prompt": "{prompt}", "seed": 1, "output": "a.png"}}"#);
        fs::write(folder.join("list.jsonl"), list).unwrap();
        for changed in &changed {
            fs::write(&path, changed).unwrap();
            fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
            batch(folder, &["list.jsonl", "out"]).fails(1, &["is not the image that this list generates", "--force"]);
            assert!(bytes(&path) == *changed, "it stays");
        }
    }
    batch(folder, &["list.jsonl", "out", "--force"]).succeeds();
    assert!(read(&path).is_ok());
}

#[test]
fn no_line_of_a_manifest_leads_to_a_foreign_file() {
    let folder = &folder();
    let path = made_once(folder);
    let [line] = &manifest(&folder.join("out"))[..] else { panic!("one line") };
    // A line with the digest of a photograph, which another recipe would replace.
    fs::write(&path, "a photograph").unwrap();
    let mut forged = line.clone();
    forged["sha256"] = digest::sha256(b"a photograph").into();
    forged["bytes"] = 12.into();
    forged["key"] = "another".into();
    fs::write(folder.join("out/manifest.jsonl"), format!("{forged}\n")).unwrap();
    batch(folder, &["list.jsonl", "out"]).fails(1, &["is not the image that this list generates"]);
    assert_eq!(bytes(&path), b"a photograph");
    // Through links, instead of the file and of a folder, with --force too.
    let photo = folder.join("photo.png");
    fs::copy(&path, &photo).unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&photo, &path).unwrap();
    fs::create_dir(folder.join("away")).unwrap();
    std::os::unix::fs::symlink(folder.join("away"), folder.join("out/below")).unwrap();
    let lines = "{\"prompt\": \"x\", \"output\": \"a.png\"}\n{\"prompt\": \"x\", \"output\": \"below/b.png\"}\n";
    fs::write(folder.join("list.jsonl"), lines).unwrap();
    for flags in [&["list.jsonl", "out"][..], &["list.jsonl", "out", "--force"]] {
        batch(folder, flags).fails(1, &["2 of 2 images failed", "a link"]);
        assert_eq!((bytes(&photo), names(&folder.join("away")).len()), (b"a photograph".to_vec(), 0));
    }
}

#[test]
fn further_names_of_an_older_image_keep_it() {
    let folder = &folder();
    let path = made_once(folder);
    let (kept, before) = (folder.join("kept.png"), bytes(&path));
    fs::hard_link(&path, &kept).unwrap();
    fs::write(folder.join("list.jsonl"), r#"{"prompt": "y", "seed": 1, "output": "a.png"}"#).unwrap();
    batch(folder, &["list.jsonl", "out"]).succeeds();
    assert!(bytes(&kept) == before && bytes(&path) != before);
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let folder = &folder();
    made_once(folder);
    let (out, list) = (folder.join("out"), folder.join("list.jsonl"));
    let link = |to: &'static str| move |at: &Path| std::os::unix::fs::symlink(to, at).unwrap();
    let fifo = |at: &Path| assert!(Command::new("mkfifo").arg(at).status().unwrap().success());
    type Put<'a> = &'a dyn Fn(&Path);
    let puts: [Put<'_>; 5] =
        [&fifo, &|at: &Path| fs::create_dir(at).unwrap(), &link("/dev/zero"), &link("list.jsonl"), &link("none")];
    for (place, put) in puts.iter().enumerate() {
        for at in [out.join("manifest.jsonl"), out.join("manifest-2-of-3.jsonl"), out.join("a.png"), list.clone()] {
            // A list may be read through a link.
            if at == list && place > 2 {
                continue;
            }
            let aside = folder.join("aside");
            let was_there = fs::rename(&at, &aside).is_ok();
            put(&at);
            let start = Instant::now();
            let run = batch(folder, &["list.jsonl", "out", "-q"]);
            assert!(matches!(run.code, Some(1 | 2)), "{place} {}: {}", at.display(), run.stderr);
            assert!(start.elapsed() < Duration::from_secs(5));
            let _ = fs::remove_file(&at).or_else(|_| fs::remove_dir(&at));
            if was_there {
                fs::rename(&aside, &at).unwrap();
            }
        }
    }
    batch(folder, &["list.jsonl", "out"]).succeeds();
}

#[test]
fn one_run_at_a_time_writes_to_a_folder_and_the_rest_is_told_as_not_tried() {
    let folder = &folder();
    fs::write(folder.join("list.txt"), "a\n".repeat(400)).unwrap();
    let first = command(folder, &["list.txt", "out", "-S", "1"]).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while !folder.join("out/manifest.jsonl").metadata().is_ok_and(|found| found.len() > 0) {
        assert!(start.elapsed() < Duration::from_secs(20), "no image");
        thread::sleep(Duration::from_millis(10));
    }
    batch(folder, &["list.txt", "out", "-S", "1"]).fails(1, &["another `flux batch`"]);
    signal(&first, "INT");
    let Run { code, stderr, .. } = Run::from_output(first.wait_with_output().unwrap());
    let made = manifest(&folder.join("out")).len();
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains(&format!("0 failed, {} not tried", 400 - made)), "{stderr}");
    let go_on = stderr.lines().find_map(|line| line.strip_prefix("to continue: ")).expect("a command");
    let run = Run::new(Command::new("sh").current_dir(folder).args(["-c", &format!("{go_on} --dry-run")]));
    assert!(run.succeeds().stderr.contains(&format!("{made} already exist")));
}

#[test]
fn tables_of_spreadsheets_are_read_with_further_columns_and_names_of_them() {
    let folder = &folder();
    let utf16: Vec<u8> = "\u{feff}Prompt\tSeed\r\na\t5\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (name, bytes) in [
        ("semicolon.csv", &b"\xef\xbb\xbfprompt;seed\r\na;5\r\n"[..]),
        ("sep.csv", b"sep=;\r\nPrompt;Seed\r\na;5\r\n"),
        ("tab.tsv", b"prompt\tseed\na\t5\n"),
        ("utf16.csv", &utf16),
    ] {
        fs::write(folder.join(name), bytes).unwrap();
        batch(folder, &[name, name.split('.').next().unwrap()]).succeeds();
        let lines = manifest(&folder.join(name.split('.').next().unwrap()));
        assert_eq!((lines.len(), lines[0]["seed"].as_u64()), (1, Some(5)), "{name}");
    }
    fs::write(folder.join("list.csv"), "Prompt,Scene Nr,steps\na,../7,1\nb,8,\n").unwrap();
    let run = batch(folder, &["list.csv", "out", "--name", "{scene_nr}-{steps}-{prompt}.png"]).succeeds();
    assert!(run.stderr.contains("note: ") && run.stderr.contains("`Scene Nr`"), "{}", run.stderr);
    assert_eq!(names(&folder.join("out")), ["-7-1-a.png", "8-none-b.png", "manifest.jsonl"]);
    let lines = manifest(&folder.join("out"));
    assert!(lines.iter().any(|line| line["meta"]["Scene Nr"] == "8"), "{lines:?}");
    // A wrong header line is one error, and nothing is made.
    fs::write(folder.join("list.csv"), "promt,seed\na,1\nb,2\n").unwrap();
    let run = batch(folder, &["list.csv", "none"]).fails(2, &["line 1", "`promt`", "no_self_reference"]);
    assert!(run.stderr.matches("error: ").count() == 1 && !folder.join("none").exists(), "{}", run.stderr);
}

#[test]
fn lines_of_flags_are_read_or_refused_by_name_and_errors_of_one_kind_are_counted() {
    let folder = &folder();
    let text = "--prompt \"a red circle\" --seed 5 --steps 1\n--prompt \"a blue star\" --width 64\n";
    fs::write(folder.join("list.txt"), text).unwrap();
    batch(folder, &["list.txt", "out"]).succeeds();
    assert_eq!(names(&folder.join("out")), ["0001-a-red-circle.png", "0002-a-blue-star.png", "manifest.jsonl"]);
    assert_eq!(read(&folder.join("out/0002-a-blue-star.png")).unwrap().width, 64);
    let lines = (1..=100).map(|line| format!("--prompt x --sampler_name DDIM{line}\n")).collect::<String>();
    fs::write(folder.join("list.txt"), lines + "a cat --hires_fix 2\n").unwrap();
    let run =
        batch(folder, &["list.txt", "none"]).fails(1, &["--sampler_name", "--hires_fix", "97 more", "101 of 101"]);
    assert_eq!(run.stderr.matches("error: ").count(), 6, "{}", run.stderr);
    assert_eq!(manifest(&folder.join("none")).len(), 101);
}

#[test]
fn random_seeds_stay_what_they_were() {
    let folder = &folder();
    fs::write(folder.join("list.txt"), "a\nb\n").unwrap();
    batch(folder, &["list.txt", "out", "-n", "2"]).succeeds();
    let before: Vec<_> = manifest(&folder.join("out")).iter().map(|line| line["seed"].as_u64().unwrap()).collect();
    assert_eq!(before.len(), 4);
    let again = batch(folder, &["list.txt", "out", "-n", "2"]).succeeds();
    assert!(again.stderr.contains("0 generated; 4 already existed"), "{}", again.stderr);
    // Also if the name has the seed, for two equal lines, too.
    fs::write(folder.join("list.txt"), "a\na\n").unwrap();
    let named = ["list.txt", "named", "-n", "2", "--name", "{index}/{seed}.png"];
    batch(folder, &named).succeeds();
    let again = batch(folder, &named).succeeds();
    assert!(again.stderr.contains("0 generated; 4 already existed"), "{}", again.stderr);
    assert_eq!(names(&folder.join("named/1")).len() + names(&folder.join("named/2")).len(), 4);
}

#[test]
fn what_was_made_from_an_adapter_in_a_folder_is_made_anew_when_the_adapter_has_changed() {
    let folder = &folder();
    fs::create_dir(folder.join("style")).unwrap();
    let write = |scale| write_adapter(&folder.join("style/adapter_model.safetensors"), scale);
    write(0.3);
    let line = r#"{"prompt": "x", "seed": 1, "adapters": [{"file": "style", "strength": 1}]}"#;
    fs::write(folder.join("list.jsonl"), line).unwrap();
    let run = || batch(folder, &["list.jsonl", "out"]).succeeds().stderr;
    assert!(run().contains("1 generated"));
    assert!(run().contains("0 generated; 1 already existed"));
    write(0.2);
    assert!(run().contains("1 generated"));
}

#[test]
fn no_list_writes_over_what_another_has_just_made() {
    let folder = &folder();
    for (list, prompt) in [("a.jsonl", "a"), ("b.jsonl", "b")] {
        fs::write(folder.join(list), format!(r#"{{"prompt": "{prompt}", "output": "x.png"}}"#)).unwrap();
    }
    let runs =
        ["a.jsonl", "b.jsonl"].map(|list| command(folder, &[list, "out"]).stderr(Stdio::null()).spawn().unwrap());
    let codes = runs.map(|mut run| run.wait().unwrap().code());
    // The second run may also begin after the first has ended, and then regenerates its own image.
    let made = manifest(&folder.join("out")).iter().filter(|line| line.get("error").is_none()).count();
    assert!(codes.contains(&Some(0)) && (made == 1) == codes.contains(&Some(1)), "{codes:?}, {made}");
}

#[test]
fn a_dry_run_checks_every_line_and_writes_nothing() {
    let folder = &folder();
    let jsonl = "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"mask\": \"m.png\"}\n{\"prompt\": \"c\", \"width\": 9}\n\
                 {\"prompt\": \"d\", \"adapters\": [{\"file\": \"none.safetensors\", \"strength\": 1}]}\n";
    fs::write(folder.join("list.jsonl"), jsonl).unwrap();
    let mut command = flux();
    let run =
        Run::new(command.current_dir(folder).args(["batch", "list.jsonl", "out", "--dry-run", "--device", "cpu"]));
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for words in ["line 2: `mask` ", "line 3: ", "line 4: ", "none.safetensors", "1 to generate", "3 cannot be"] {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
    assert_eq!(names(folder), ["list.jsonl"]);
    fs::write(folder.join("list.jsonl"), "{\"prompt\": \"a\"}\n").unwrap();
    batch(folder, &["list.jsonl", "out", "--dry-run"]).succeeds();
    assert_eq!(names(folder), ["list.jsonl"]);
}

#[test]
fn parts_of_a_list_make_each_image_once() {
    let folder = &folder();
    fs::write(folder.join("list.txt"), "a\nb\nc\nd\ne\n").unwrap();
    let mut parts: Vec<_> = ["1/2", "2/2"]
        .iter()
        .map(|part| {
            command(folder, &["list.txt", "out", "-S", "1", "--shard", part]).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    assert!(parts.iter_mut().all(|part| part.wait().unwrap().success()));
    let all = batch(folder, &["list.txt", "out", "-S", "1"]).succeeds();
    assert!(all.stderr.contains("0 generated; 5 already existed"), "{}", all.stderr);
}

#[test]
fn lines_come_from_standard_input_and_tell_of_themselves_in_json() {
    let folder = &folder();
    let mut command = command(folder, &["-", "out", "--json", "-q"]);
    let lines = "{\"prompt\": \"a\", \"seed\": 1}\n{\"prompt\": 1}\n";
    let run = Run::with_input(&mut command, lines.as_bytes());
    assert_eq!(run.code, Some(1));
    let told: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!((told[0]["line"].as_u64(), told[0]["error"]["kind"].as_str()), (Some(2), Some("usage")));
    assert_eq!((told[1]["file"].as_str(), told[1]["seed"].as_u64()), (Some("0001-a.png"), Some(1)));
    assert!(told[2]["error"]["what"].as_str().unwrap().contains("1 of 2 images failed"));
}

#[test]
fn what_no_batch_can_do_is_refused_before_any_work() {
    let folder = &folder();
    fs::write(folder.join("list.txt"), "a\n").unwrap();
    fs::write(folder.join("list"), "a\n").unwrap();
    fs::write(folder.join("bad.txt"), b"a\n\xff\n").unwrap();
    for (words, told) in [
        (&["list.txt", "out", "--save-latents", "x"][..], "--save-latents"),
        (&["list", "out"], "--format"),
        (&["bad.txt", "out"], "line 2 is not valid UTF-8"),
        (&["list.txt", "out", "--name", "{sed}.png"], "`{sed}`"),
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
    assert!(same.stderr.contains("2 generated"), "{}", same.stderr);
    fs::write(folder.join("two.txt"), "a\nb\n").unwrap();
    let run = batch(folder, &["two.txt", "one", "--name", "x.png"]);
    assert!(run.code == Some(1) && run.stderr.contains("line 1"), "{}", run.stderr);
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
    let folder = &folder();
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
        let hash = digest::hash_bytes(&bytes(&file));
        assert_eq!(line["sha256"].as_str(), hash.strip_prefix("sha256:"), "{}", file.display());
    }
    let left: Vec<_> =
        names(&out).into_iter().filter(|name| !name.ends_with(".png") && name != "manifest.jsonl").collect();
    assert!(left.len() <= 6, "what was being written when it was killed: {left:?}");
    // A finished list is skipped quickly.
    let start = Instant::now();
    let again = batch(folder, &["list.txt", "out", "-S", "1"]).succeeds();
    assert!(again.stderr.contains(&format!("0 generated; {lines} already existed")), "{}", again.stderr);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
