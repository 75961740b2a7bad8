//! `--upsample` and `flux upsample` from outside, with a stub of a language model.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use flux::input;
use serde_json::{Value, json};

use crate::chat_server::{Answer, ChatServer};
use crate::program::{Run, SMALL, flux, names};

const REQUEST: &str = "two red things";
const CAPTION: &str = "two red circles on a teal background";

/// Runs the program in `folder` for the smallest image.
fn draw(server: &ChatServer, folder: &Path, flags: &[&str]) -> Run {
    let mut command = flux();
    Run::new(server.isolate(command.current_dir(folder)).args(flags).args(SMALL))
}

/// Runs `flux upsample`.
fn upsample(server: &ChatServer, flags: &[&str]) -> Run {
    let mut command = flux();
    Run::new(server.isolate(&mut command).args(["upsample", REQUEST, &server.flag()]).args(flags))
}

/// Returns the recipe of an image.
fn recipe(file: &Path) -> Value {
    let json = input::said_by(file).unwrap().recipe.expect("a recipe");
    serde_json::from_str::<Value>(&json).unwrap()["recipe"].clone()
}

fn pixels(file: &Path) -> Vec<u8> {
    input::read(file).unwrap().bytes
}

#[test]
fn an_image_is_that_of_the_written_prompt_and_its_recipe_holds_both() {
    let (server, folder) = (ChatServer::with_text(CAPTION), tempfile::tempdir().unwrap());
    let at = |name: &str| folder.path().join(name);
    let run = draw(&server, folder.path(), &[REQUEST, "-S", "7", &server.flag(), "-o", "a.png"]).succeeds();
    assert!(run.stderr.contains(&format!("prompt: {CAPTION}")), "{}", run.stderr);
    let seen = server.take_seen();
    let system = seen[0].json()["messages"][0]["content"].as_str().unwrap().to_string();
    assert!(system.contains("60 to 120 words"), "{system}");
    let expected = json!({
        "chat_template_kwargs": {"enable_thinking": false}, "max_tokens": 3584, "messages": [
            {"content": system, "role": "system"}, {"content": format!("TARGET CANVAS: 1:1\n{REQUEST}"), "role": "user"},
        ], "model": "stub", "reasoning_effort": "none", "stream": false, "temperature": 0,
    });
    assert_eq!((seen.len(), seen[0].line.as_str()), (1, "POST /v1/chat/completions HTTP/1.1"));
    assert_eq!((seen[0].body.as_str(), &seen[0].authorization), (expected.to_string().as_str(), &None));

    draw(&server, folder.path(), &[CAPTION, "-S", "7", "-o", "b.png"]).succeeds();
    assert!(pixels(&at("a.png")) == pixels(&at("b.png")), "the image of the written prompt");
    let made = recipe(&at("a.png"));
    assert_eq!((&made["prompt"], &made["upsampled"]["request"]), (&json!(CAPTION), &json!(REQUEST)));
    assert_eq!(
        (&made["upsampled"]["model"], made["upsampled"]["system"].as_str().unwrap().len()),
        (&json!("stub"), 64)
    );
    assert!(!made.to_string().contains("127.0.0.1"), "{made}");
    let parameters = input::said_by(&at("a.png")).unwrap().parameters.unwrap();
    assert!(parameters.contains(&format!("Upsampled from: {REQUEST}")), "{parameters}");

    // The recipe needs no language model.
    draw(&server, folder.path(), &["again", "a.png", "-o", "c.png"]).succeeds();
    assert!(fs::read(at("a.png")).unwrap() == fs::read(at("c.png")).unwrap() && server.take_seen().is_empty());
    let other = ChatServer::with_text("a blue star");
    draw(&other, folder.path(), &["again", "a.png", &other.flag(), "-o", "d.png"]).succeeds();
    let made = recipe(&at("d.png"));
    assert_eq!((&made["prompt"], &made["upsampled"]["request"]), (&json!("a blue star"), &json!(REQUEST)));
    draw(&server, folder.path(), &["again", "a.png", "-p", "a cat", "-o", "e.png"]).succeeds();
    assert!(recipe(&at("e.png")).get("upsampled").is_none(), "another prompt has no request");
}

#[test]
fn words_are_chosen_before_the_language_model_writes() {
    let (server, folder) = (ChatServer::with_text(CAPTION), tempfile::tempdir().unwrap());
    let at = |name: &str| folder.path().join(name);
    let (template, flag) = ("two {0::blue|1::red} things", server.flag());
    let asked = || server.take_seen().iter().map(|seen| seen.body.contains(REQUEST)).collect::<Vec<_>>();
    let both = [template, "--expand", &flag, "-S", "7"];
    draw(&server, folder.path(), &[&both[..], &["-o", "a.png"]].concat()).succeeds();
    assert_eq!(asked(), [true]);
    let made = recipe(&at("a.png"));
    assert_eq!((&made["prompt"], &made["upsampled"]["request"]), (&json!(CAPTION), &json!(REQUEST)));
    assert_eq!(made["template"], template);

    // New words replace the rewritten prompt, and are rewritten if that is requested.
    let again = |flags: &[&str], name: &str| {
        draw(&server, folder.path(), &[&["again", "a.png", "-o", name], flags].concat()).succeeds();
        recipe(&at(name))
    };
    let plain = again(&["--expand"], "b.png");
    assert_eq!((&plain["prompt"], plain.get("upsampled"), asked()), (&json!(REQUEST), None, Vec::<bool>::new()));
    let written = again(&["--expand", &flag, "--upsample-no-cache"], "c.png");
    assert_eq!((&written, asked()), (&made, vec![true]));
    assert!(again(&["-p", "a cat"], "d.png").get("template").is_none());

    // Images with the same words have one prompt. Different words are an error.
    let two = |flags: &[&str]| {
        draw(&server, folder.path(), &[&["two {red|blue} things", &flag, "-n", "2", "-S", "7"], flags].concat())
    };
    two(&["--expand-seed", "1", "-o", "e.png"]).succeeds();
    assert_eq!(recipe(&at("e-7.png"))["upsampled"], recipe(&at("e-8.png"))["upsampled"]);
    two(&["--expand=all", "-o", "f.png"]).fails(2, &["--expand", "--upsample", "hint"]);

    // In a list, each image has a prompt of its own.
    fs::write(at("list.txt"), "two {red|blue} things\n").unwrap();
    server.take_seen();
    let list = ["batch", "list.txt", "out", "--expand=all", &flag, "--upsample-no-cache", "-S", "7"];
    draw(&server, folder.path(), &list).succeeds();
    assert_eq!((names(&at("out")).len(), asked().len()), (3, 2), "two images and a manifest");

    // A file without a recipe has neither prompt.
    draw(&server, folder.path(), &[&both[..], &["--no-recipe", "-o", "g.png"]].concat()).succeeds();
    let bytes = fs::read(at("g.png")).unwrap();
    let contains = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(![CAPTION, REQUEST, template].into_iter().any(contains));
}

#[test]
fn the_command_prints_the_prompt_alone_and_asks_once() {
    let server = ChatServer::with_text(CAPTION);
    let run = upsample(&server, &["--size", "768x512"]).succeeds();
    assert_eq!(run.stdout, format!("{CAPTION}\n"));
    assert!(server.take_seen()[0].body.contains("TARGET CANVAS: 3:2"));
    upsample(&server, &["--size", "768x512"]).succeeds();
    assert!(server.take_seen().is_empty(), "the answer is in the cache");
    upsample(&server, &["--size", "768x512", "--upsample-no-cache"]).succeeds();
    upsample(&server, &["--size", "768x512", "--upsample-model", "other"]).succeeds();
    assert_eq!(server.take_seen().len(), 2, "another model is another request");
    let run = upsample(&server, &["--json", "-q"]).succeeds();
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&json["prompt"], &json["upsampled"]["request"]), (&json!(CAPTION), &json!(REQUEST)));
}

#[test]
fn answers_are_cleaned_and_bad_ones_are_errors() {
    for (text, expected) in [
        (format!("<think>red?</think>\n{CAPTION}"), Ok(())),
        (format!("```\n\"{CAPTION}\"\n```"), Ok(())),
        (String::new(), Err("empty")),
        ("<think>red".to_string(), Err("empty")),
        ("x".repeat(70_000), Err("70000 bytes")),
    ] {
        let server = ChatServer::start(move |_, _| Answer::text(&text));
        match expected {
            Ok(()) => assert_eq!(upsample(&server, &[]).succeeds().stdout, format!("{CAPTION}\n")),
            Err(words) => drop(upsample(&server, &[]).fails(1, &[words, "in: --upsample"])),
        }
    }
    let answer = |answer: Answer| ChatServer::start(move |_, _| answer.clone());
    let fails = |server: &ChatServer, words: &[&str]| drop(upsample(server, &[]).fails(1, words));
    fails(&answer(Answer::ended("a", "length")), &["cut at 3584 tokens"]);
    fails(&answer(Answer::new(200, "", "x".repeat(2 << 20))), &["1 MiB"]);
    fails(&answer(Answer::new(200, "", "<html>")), &["not JSON"]);
    fails(&answer(Answer::new(500, "", r#"{"error": {"message": "no memory"}}"#)), &["500: no memory"]);
    fails(&answer(Answer::new(401, "", "{}")), &["401", "--upsample-key-file"]);
    let run = upsample(&ChatServer::with_text("I'm sorry, I can't help with that."), &[]).succeeds();
    assert!(run.stderr.contains("note: the language model seems to refuse"), "{}", run.stderr);
    let redirect = Answer::new(307, "Location: http://127.0.0.2:9/v1/chat/completions\r\n", "");
    fails(&answer(redirect), &["redirects to another server"]);
    let here = ChatServer::start(|seen, _| match seen.line.contains("/v1/here") {
        true => Answer::text(CAPTION),
        false => Answer::new(308, "Location: /v1/here\r\n", ""),
    });
    assert_eq!(upsample(&here, &[]).succeeds().stdout, format!("{CAPTION}\n"));
    assert_eq!(here.take_seen()[1].json()["model"], "stub", "a redirected request is sent whole");
}

#[test]
fn a_field_that_the_server_does_not_know_is_left_out() {
    let server = ChatServer::start(|seen, _| {
        let json = seen.json();
        let wrong =
            |field: &str| Answer::new(400, "", format!(r#"{{"error": {{"message": "unknown field `{field}`"}}}}"#));
        if json.get("chat_template_kwargs").is_some() {
            wrong("chat_template_kwargs")
        } else if json.get("max_tokens").is_some() {
            Answer::new(400, "", "'max_tokens' is not supported, use 'max_completion_tokens'")
        } else {
            Answer::text(CAPTION)
        }
    });
    assert_eq!(upsample(&server, &[]).succeeds().stdout, format!("{CAPTION}\n"));
    let seen = server.take_seen();
    assert_eq!((seen.len(), &seen[2].json()["max_completion_tokens"]), (3, &json!(3584)));
    let stubborn = ChatServer::start(|_, _| Answer::new(400, "", "unknown field `temperature`"));
    upsample(&stubborn, &[]).fails(1, &["400: unknown field `temperature`"]);
    assert_eq!(stubborn.take_seen().len(), 2, "a field is left out once");
}

#[test]
fn a_busy_server_is_asked_again_and_a_slow_one_given_up() {
    let busy = ChatServer::start(|_, number| match number {
        0 | 1 => Answer::new(429, "Retry-After: 0\r\n", "busy"),
        _ => Answer::text(CAPTION),
    });
    assert_eq!(upsample(&busy, &[]).succeeds().stdout, format!("{CAPTION}\n"));
    assert_eq!(busy.take_seen().len(), 3);
    let always = ChatServer::start(|_, _| Answer::new(503, "Retry-After: 0\r\n", "busy"));
    upsample(&always, &[]).fails(1, &["503: busy"]);
    assert_eq!(always.take_seen().len(), 3);
    let later = ChatServer::start(|_, _| Answer::new(429, "Retry-After: 1000\r\n", ""));
    upsample(&later, &[]).fails(1, &["1000 s"]);
    let slow = ChatServer::start(|_, _| Answer::text(CAPTION).after(Duration::from_secs(20)));
    let start = Instant::now();
    upsample(&slow, &["--upsample-timeout", "0.3"]).fails(1, &["within 0.3 s", "--upsample-timeout"]);
    assert!(start.elapsed() < Duration::from_secs(15));
    let run = upsample(&slow, &["--upsample-timeout", "0.3", "--upsample-fails", "plain"]).succeeds();
    assert_eq!(run.stdout, format!("{REQUEST}\n"));
    assert!(run.stderr.contains("note: the prompt is used as it is"), "{}", run.stderr);
}

#[test]
fn a_key_is_for_its_server_and_an_open_address_is_refused() {
    let server = ChatServer::with_text(CAPTION);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, "secret\n").unwrap();
    upsample(&server, &["--upsample-key-file", file.to_str().unwrap()]).succeeds();
    assert_eq!(server.take_seen()[0].authorization.as_deref(), Some("Bearer secret"));
    let with = |name: &str| {
        let mut command = flux();
        server.isolate(&mut command).env(name, "of-variable");
        Run::new(command.args(["upsample", REQUEST, &server.flag(), "--upsample-no-cache"])).succeeds();
        server.take_seen()[0].authorization.clone()
    };
    assert_eq!(with("FLUX_UPSAMPLE_KEY").as_deref(), Some("Bearer of-variable"));
    assert_eq!(with("OPENAI_API_KEY"), None, "it is for another server");
    let wrong = |flags: &[&str], words: &[&str]| {
        let mut command = flux();
        Run::new(server.isolate(&mut command).args(["upsample", REQUEST]).args(flags)).fails(2, words);
    };
    wrong(&[], &["--upsample=URL"]);
    wrong(&["--upsample=http://10.0.0.1/v1"], &["not encrypted", "--upsample-insecure"]);
    wrong(&["--upsample=x"], &["not the address"]);
    wrong(&[&server.flag(), "--upsample-extra", "3"], &["--upsample-extra"]);
    wrong(&[&server.flag(), "--upsample-extra", r#"{"stream": true}"#], &["`stream`"]);
    wrong(&[&server.flag(), "--upsample-system", "bfl"], &["flux download flux3-prompts"]);
    wrong(&[&server.flag(), "--box", "cat_1=0,0,9,9"], &["boxes", "FLUX.3"]);
    assert!(server.take_seen().is_empty(), "what is wrong is found before the network is used");
}

#[test]
fn an_edit_shows_the_images_and_a_file_has_the_system_prompt() {
    let (server, folder) = (ChatServer::with_text("make the circle blue"), tempfile::tempdir().unwrap());
    let reference = ["a red circle", "-S", "1", "-o", "a.png", "--size", "64", "-s", "1", "--device", "cpu"];
    Run::new(flux().current_dir(folder.path()).args(reference)).succeeds();
    fs::write(folder.path().join("system.txt"), "Be brief.\n").unwrap();
    let flags = ["bluer", "-i", "a.png", &server.flag(), "--upsample-system", "system.txt", "-o", "b.png"];
    draw(&server, folder.path(), &flags).succeeds();
    let json = server.take_seen()[0].json();
    assert_eq!(json["messages"][0]["content"], "Be brief.");
    let content = &json["messages"][1]["content"];
    let url = content[0]["image_url"]["url"].as_str().unwrap();
    assert!(url.starts_with("data:image/jpeg;base64,"), "{url}");
    let text = content[1]["text"].as_str().unwrap();
    assert!(text.contains("\nUser request: bluer\n") && !text.contains("CANVAS"), "{text}");
    assert_eq!(recipe(&folder.path().join("b.png"))["prompt"], "make the circle blue");
}

#[test]
fn a_batch_asks_ahead_for_equal_prompts_once() {
    let server = ChatServer::start(|seen, _| {
        let text = if seen.body.contains(REQUEST) { CAPTION } else { "a blue star on a red background" };
        Answer::text(text).after(Duration::from_millis(300))
    });
    let folder = tempfile::tempdir().unwrap();
    let mut list: String = (0..6).map(|seed| format!("{{\"prompt\": \"thing {seed}\", \"seed\": {seed}}}\n")).collect();
    list += &format!("{{\"prompt\": \"{REQUEST}\", \"seed\": 7, \"n\": 2}}\n");
    list += "{\"prompt\": \"a cat\", \"seed\": 1, \"upsample\": false}\n";
    fs::write(folder.path().join("list.jsonl"), list).unwrap();
    let batch = |flags: &[&str]| draw_batch(&server, folder.path(), flags);
    batch(&[&server.flag(), "--upsample-no-cache"]).succeeds();
    assert_eq!((server.take_seen().len(), server.at_once()), (7, 4), "two images of one prompt ask once");
    let images: Vec<_> = names(&folder.path().join("out")).into_iter().filter(|name| name.ends_with(".png")).collect();
    assert_eq!(images.len(), 9, "{images:?}");
    let prompts: Vec<_> =
        images.iter().map(|name| recipe(&folder.path().join("out").join(name))["prompt"].clone()).collect();
    assert_eq!(prompts.iter().filter(|prompt| **prompt == CAPTION).count(), 2);
    assert_eq!(prompts.iter().filter(|prompt| **prompt == "a cat").count(), 1);
    batch(&[&server.flag(), "--upsample-no-cache"]).succeeds();
    assert!(server.take_seen().is_empty(), "the images are there");
    let plain = batch(&[]).succeeds().stderr;
    assert!(plain.contains("8 generated") && plain.contains("1 already existed"), "{plain}");
}

fn draw_batch(server: &ChatServer, folder: &Path, flags: &[&str]) -> Run {
    let mut command = flux();
    server.isolate(command.current_dir(folder));
    Run::new(command.args(["batch", "list.jsonl", "out"]).args(flags).args(SMALL))
}

#[test]
fn the_table_of_a_config_sets_the_language_model() {
    let (server, folder) = (ChatServer::with_text(CAPTION), tempfile::tempdir().unwrap());
    let run = |config: &str, words: &[&str]| {
        fs::write(folder.path().join("flux.toml"), config).unwrap();
        let mut command = flux();
        server.isolate(command.current_dir(folder.path()).env_remove("FLUX_CONFIG"));
        Run::new(command.args(words))
    };
    let config = format!("[upsample]\nurl = \"{}\"\nmodel = \"own\"\n", server.url());
    assert_eq!(run(&config, &["upsample", REQUEST]).succeeds().stdout, format!("{CAPTION}\n"));
    assert_eq!(server.take_seen()[0].json()["model"], "own");
    let small = [&SMALL[..], &[REQUEST, "-S", "7", "-o", "a.png"]].concat();
    run(&config, &small).succeeds();
    assert!(server.take_seen().is_empty(), "a table switches nothing on");
    run("[upsample]\nurls = \"x\"\n", &["upsample", REQUEST]).fails(2, &["`urls` in [upsample]", "url, model, system"]);
}

#[test]
fn interactive_mode_switches_it_on_and_off() {
    let (server, folder) = (ChatServer::with_text(CAPTION), tempfile::tempdir().unwrap());
    let lines = format!("!upsample on\n{REQUEST}\n!upsample off\na cat\n");
    fs::write(folder.path().join("lines"), lines).unwrap();
    let mut command = flux();
    server.isolate(command.current_dir(folder.path())).args(["chat", "--upsample-url", &server.url()]).args(SMALL);
    Run::new(command.stdin(fs::File::open(folder.path().join("lines")).unwrap())).succeeds();
    let images: Vec<_> = names(folder.path()).into_iter().filter(|name| name.ends_with(".png")).collect();
    let prompts: Vec<_> = images.iter().map(|name| recipe(&folder.path().join(name))["prompt"].clone()).collect();
    assert_eq!((prompts, server.take_seen().len()), (vec![json!(CAPTION), json!("a cat")], 1));
}
