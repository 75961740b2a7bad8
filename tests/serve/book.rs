//! The commands of the book.

use std::process::Command;

use super::*;
use crate::program::{Run, flux, project};
use crate::readme::commands_in;

/// Prints the web page's command for the prompt in its argument.
const PAGE_COMMAND: &str = "
import { readFileSync } from 'node:fs';
const source = readFileSync(process.argv[1], 'utf8');
const { commands } = await import(`data:text/javascript,${encodeURIComponent(source)}`);
const recipe = { prompt: process.argv[2], seed: 7, width: 64, height: 64 };
const inputs = ['-a b.png'];
process.stdout.write(commands({ recipe, inputs }, 'http://127.0.0.1:7860', false).flux);
";

#[test]
fn the_command_of_the_page_is_read_by_every_shell() {
    if Command::new("node").arg("--version").output().is_err() {
        println!("skipped: no node");
        return;
    }
    let page = project("crates/flux-server/src/page/commands.js");
    for prompt in ["a'\\''; touch pwned #\u{7}", "two\nlines", "-x", "$(touch pwned) `x` !y \\ \"", "=ls", "", "~"] {
        let mut node = Command::new("node");
        let run = node.args(["--input-type=module", "-e", PAGE_COMMAND]).arg(&page).arg(prompt).output().unwrap();
        let command = String::from_utf8(run.stdout).unwrap();
        let words = command.strip_prefix("flux").unwrap_or_else(|| panic!("{prompt}: {command}"));
        for shell in ["sh", "dash", "bash", "zsh"] {
            let printed = Command::new(shell).args(["-c", &format!("printf '%s\\0' {words}")]).output();
            let Ok(printed) = printed.map(|run| String::from_utf8(run.stdout).unwrap()) else { continue };
            let words: Vec<_> = printed.split('\0').take(4).collect();
            assert_eq!(words, ["-p", prompt, "-i", "./-a b.png"], "{shell}: {command}");
        }
    }
}

#[test]
fn the_commands_of_serving_images_work() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(project("docs"), folder.path().join("docs")).unwrap();
    let model = project("models/tiny");
    let mut serving = None;
    let pages = ["serving", "http-api", "a1111", "comfyui", "deploying"];
    let lines: Vec<String> = pages.iter().flat_map(|page| commands_in(&format!("docs/{page}.md"))).collect();
    for line in lines.iter().filter(|line| !line.is_empty()) {
        let words = shlex::split(line).expect("words");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["flux", "serve", "-d", _] => serving = Some(Serving::start(&["-d", model.to_str().unwrap()])),
            ["flux", "key", name, ">>", file] => {
                let line = Run::new(flux().args(["key", name])).succeeds().stdout;
                std::fs::write(folder.path().join(file), line).unwrap();
            }
            ["chmod", ..] => {
                Run::new(Command::new("sh").args(["-c", line]).current_dir(folder.path())).succeeds();
            }
            ["flux", "serve", "--listen", _, "--api-keys", keys] => {
                let keys = folder.path().join(keys);
                serving = Some(Serving::start(&["--api-keys", keys.to_str().unwrap()]));
                assert_eq!(serving.as_ref().map(|serving| serving.get("/v1/models").status), Some(401));
            }
            ["flux", "serve", "--listen", place, ref flags @ ..] if place.starts_with("unix:") => {
                let place = place.replace("unix:", &format!("unix:{}/", folder.path().display()));
                serving = Some(Serving::start(&[&["--listen", &place], flags].concat()));
            }
            ["flux", ref flags @ .., "--server", place] if place.starts_with("unix:") => {
                Run::new(flux().current_dir(folder.path()).args(flags).args(["--server", place])).succeeds();
                assert!(folder.path().join("shared.png").exists());
            }
            ["flux", ref flags @ .., "--server", _] => {
                let url = format!("http://{}", serving.as_ref().expect("a server").address);
                let command = &mut flux();
                Run::new(command.current_dir(folder.path()).args(flags).args(["--server", &url])).succeeds();
                assert!(folder.path().join("circle.png").exists());
            }
            ["curl", ref flags @ ..] => {
                let address = serving.as_ref().expect("a server").address.to_string();
                let flags = flags.iter().map(|word| word.replace("127.0.0.1:7860", &address));
                let run = Run::new(Command::new("curl").arg("--fail-with-body").args(flags).current_dir(folder.path()));
                let answer = run.succeeds().stdout;
                assert!(!answer.is_empty() && !answer.contains("\"error\":{"), "{line}: {answer}");
            }
            _ => panic!("nothing runs this command: {line}"),
        }
    }
}
