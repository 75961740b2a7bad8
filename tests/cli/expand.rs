//! Templates: prompts with choices.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use flux::input::read;
use serde_json::Value;

use super::{folder, texts};
use crate::program::{Run, SMALL, draw, flux, names, run};

/// Returns the prompt and the template in an image.
fn words(path: &Path) -> (String, Option<String>) {
    let texts = texts(path);
    let (_, recipe) = texts.iter().find(|(keyword, _)| keyword == "flux").expect("a recipe");
    let recipe: Value = serde_json::from_str(recipe).unwrap();
    let field = |name: &str| recipe["recipe"][name].as_str().map(str::to_string);
    (field("prompt").unwrap(), field("template"))
}

fn bytes(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn each_image_has_its_words_and_they_are_what_it_shows() {
    let folder = folder();
    let template = "a {red|blue} heart";
    let large = ["--size", "128", "--device", "cpu"];
    let many = ["-p", template, "--expand", "-n", "20", "-S", "1", "-o", "{n}.png"];
    let many = run(&folder, &[&many[..], &large].concat()).succeeds();
    assert!(many.stderr.contains("from `a red heart`") && many.stderr.contains("from `a blue heart`"));
    let mut seen = BTreeSet::new();
    for number in 1..=20 {
        let file = folder.join(format!("{number}.png"));
        let (prompt, own) = words(&file);
        assert_eq!(own.as_deref(), Some(template));
        // The average of the red and blue values that are far from grey.
        let image = read(&file).unwrap();
        let colored = image.bytes.chunks(3).map(|rgb| i64::from(rgb[0]) - i64::from(rgb[2])).filter(|x| x.abs() > 60);
        let is_red = colored.sum::<i64>() > 0;
        assert_eq!(prompt, if is_red { "a red heart" } else { "a blue heart" }, "{number}");
        seen.insert(is_red);
    }
    assert_eq!(seen.len(), 2);
    // A single image has the bytes of its place in the set, and the words alone give the same pixels.
    let one = ["-p", template, "--expand", "-S", "3", "-o", "one.png"];
    run(&folder, &[&one[..], &large].concat()).succeeds();
    assert!(bytes(&folder.join("one.png")) == bytes(&folder.join("3.png")));
    let (prompt, _) = words(&folder.join("3.png"));
    run(&folder, &[&["-p", &prompt, "-S", "3", "-o", "plain.png"][..], &large].concat()).succeeds();
    assert!(read(&folder.join("plain.png")).unwrap() == read(&folder.join("3.png")).unwrap());
}

#[test]
fn an_image_again_keeps_its_words_unless_new_ones_are_wanted() {
    let folder = folder();
    let template = "{a|b|c|d|e|f|g|h} {i|j|k|l|m|n|o|p}";
    draw(&folder, &["-p", template, "--expand", "-S", "1", "-o", "first.png"]).succeeds();
    let (first, _) = words(&folder.join("first.png"));
    let again = |flags: &[&str], name: &str| {
        let line = [&["again", "first.png", "--device", "cpu", "-o", name], flags].concat();
        run(&folder, &line).succeeds();
        words(&folder.join(name))
    };
    assert_eq!(again(&[], "same.png"), (first.clone(), Some(template.to_string())));
    assert!(bytes(&folder.join("same.png")) == bytes(&folder.join("first.png")));
    assert_eq!(again(&["-S", "2"], "kept.png").0, first);
    let (second, own) = again(&["-S", "2", "--expand"], "new.png");
    assert_eq!(own.as_deref(), Some(template));
    draw(&folder, &["-p", template, "--expand", "-S", "2", "-o", "second.png"]).succeeds();
    assert_eq!(second, words(&folder.join("second.png")).0);
    assert_ne!(second, first);
    assert_eq!(again(&["-p", "a cat"], "other.png"), ("a cat".to_string(), None));
    fs::write(folder.join("flux.toml"), "expand = true\n").unwrap();
    let mut configured = flux();
    let configured = configured.current_dir(&folder).env("FLUX_CONFIG", "flux.toml").args(SMALL);
    Run::new(configured.args(["-p", template, "-S", "1", "-o", "config.png"])).succeeds();
    assert!(bytes(&folder.join("config.png")) == bytes(&folder.join("first.png")));
}

#[test]
fn all_combinations_have_the_seed_and_names_of_their_own() {
    let folder = folder();
    let all = ["-p", "{red|blue} {cat|dog}", "--expand=all", "-S", "7", "-o", "out.png"];
    draw(&folder, &all).succeeds();
    let prompts: Vec<_> = (1..=4).map(|number| words(&folder.join(format!("out-{number}.png"))).0).collect();
    assert_eq!(prompts, ["red cat", "red dog", "blue cat", "blue dog"]);
    draw(&folder, &["-p", "red dog", "-S", "7", "-o", "alone.png"]).succeeds();
    let [alone, one] = ["alone.png", "out-2.png"].map(|name| read(&folder.join(name)).unwrap());
    assert!(alone == one);
    let ten = "{0|1|2|3|4|5|6|7|8|9}".repeat(4);
    draw(&folder, &["-p", &ten, "--expand=all"]).fails(2, &["10000, expected at most 1000", "in: --prompt"]);
    draw(&folder, &["-p", "a", "--expand", "all"]).fails(2, &["write `--expand=all`"]);
}

#[test]
fn wildcards_are_lines_of_files() {
    let folder = folder();
    fs::create_dir_all(folder.join("w/a")).unwrap();
    fs::write(folder.join("w/a/color.txt"), "# one\nred\n").unwrap();
    let drawn = |flags: &[&str]| draw(&folder, &[&["-S", "1", "-o", "out.png"], flags].concat());
    drawn(&["-p", "a __a/color__ cat", "--wildcards", "w"]).succeeds();
    assert_eq!(words(&folder.join("out.png")).0, "a red cat");
    drawn(&["-p", "__a/colour__", "--wildcards", "w"])
        .fails(2, &["column 1", "did you mean `__a/color__`?", "in: --prompt"]);
    drawn(&["-p", "__a/color__", "--expand"]).fails(2, &["no folder of wildcards", "--wildcards"]);
    drawn(&["-p", "{a|b", "--expand"]).fails(2, &["column 1 of the prompt: the brace is not closed"]);
    let plain = drawn(&["-p", "a {red|blue} cat"]).succeeds();
    assert!(plain.stderr.contains("--expand"), "{}", plain.stderr);
    assert_eq!(words(&folder.join("out.png")).0, "a {red|blue} cat");
    let table = r#"A cat <cat_1> [{"id": "cat_1", "bbox": [1,2,3,4]}]"#;
    let run = drawn(&["-p", table, "--expand"]).succeeds();
    assert!(!run.stderr.contains("from `"), "{}", run.stderr);
    assert_eq!(words(&folder.join("out.png")), (table.to_string(), None));
}

#[test]
fn lines_of_a_list_are_templates() {
    let folder = folder();
    fs::write(folder.join("list.txt"), "{a|b|c|d|e} cat\na dog\n").unwrap();
    fs::write(
        folder.join("list.jsonl"),
        "{\"prompt\": \"{a|b|c|d|e} cat\", \"seed\": 3, \"n\": 2, \"output\": \"{seed}.png\"}\n",
    )
    .unwrap();
    let batch = |words: &[&str]| run(&folder, &[&["batch"], words, &SMALL].concat());
    batch(&["list.txt", "out", "-S", "3", "--expand"]).succeeds();
    let files = names(&folder.join("out"));
    let (prompt, template) = words(&folder.join("out").join(&files[0]));
    assert_eq!(template.as_deref(), Some("{a|b|c|d|e} cat"));
    assert_eq!(files[0], format!("0001-{}.png", prompt.replace(' ', "-")));
    assert_eq!(words(&folder.join("out").join(&files[1])), ("a dog".to_string(), None));
    let again = batch(&["list.txt", "out", "-S", "3", "--expand"]).succeeds();
    assert!(again.stderr.contains("2 already"), "{}", again.stderr);
    batch(&["list.jsonl", "json", "--expand"]).succeeds();
    assert_eq!(words(&folder.join("json/3.png")).0, prompt);
    assert_eq!(words(&folder.join("json/4.png")).1.as_deref(), Some("{a|b|c|d|e} cat"));
    batch(&["list.txt", "all", "-S", "3", "--expand=all", "--name", "{index}-{n}.png"]).succeeds();
    assert_eq!(names(&folder.join("all")).len(), 7);
    // Without the flag, random seeds are kept, too.
    batch(&["list.txt", "random", "--expand"]).succeeds();
    let again = batch(&["list.txt", "random", "--expand"]).succeeds();
    assert!(again.stderr.contains("2 already"), "{}", again.stderr);
    let wrong = batch(&["list.txt", "out", "-S", "3", "--wildcards", "none", "--dry-run"]);
    assert_eq!(wrong.code, Some(0), "a folder that no line needs: {}", wrong.stderr);
}

#[test]
fn lines_of_a_conversation_are_templates() {
    let folder = folder();
    let mut command = flux();
    command.current_dir(&folder).arg("chat").args(SMALL).args(["-S", "1", "--expand"]);
    let stderr = Run::with_input(&mut command, b"{2$$ and $$red|blue} heart\n{red|\n!list\n").stderr;
    let (prompt, template) = words(&folder.join(&names(&folder)[0]));
    assert_eq!(template.as_deref(), Some("{2$$ and $$red|blue} heart"));
    assert!(["red and blue heart", "blue and red heart"].contains(&&*prompt), "{prompt}");
    assert!(stderr.contains(&format!("seed 1  {prompt}")) && stderr.contains("not closed"), "{stderr}");
}
