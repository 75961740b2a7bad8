//! The commands of the book.

use std::process::Command;

use super::*;
use crate::program::{Run, flux, project};
use crate::readme::commands_in;

#[test]
fn the_commands_of_serving_images_work() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(project("docs"), folder.path().join("docs")).unwrap();
    let model = project("models/tiny");
    let mut serving = None;
    for line in commands_in("docs/serving.md").iter().filter(|line| !line.is_empty()) {
        let words = shlex::split(line).expect("words");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["flux", "serve", "-d", _] => serving = Some(Serving::start(&["-d", model.to_str().unwrap()])),
            ["flux", "key", name, ">>", file] => {
                let line = Run::of(flux().args(["key", name])).succeeds().stdout;
                std::fs::write(folder.path().join(file), line).unwrap();
            }
            ["chmod", ..] => {
                Run::of(Command::new("sh").args(["-c", line]).current_dir(folder.path())).succeeds();
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
                Run::of(flux().current_dir(folder.path()).args(flags).args(["--server", place])).succeeds();
                assert!(folder.path().join("shared.png").exists());
            }
            ["flux", ref flags @ .., "--server", _] => {
                let url = format!("http://{}", serving.as_ref().expect("a server").address);
                let command = &mut flux();
                Run::of(command.current_dir(folder.path()).args(flags).args(["--server", &url])).succeeds();
                assert!(folder.path().join("circle.png").exists());
            }
            ["curl", ref flags @ ..] => {
                let address = serving.as_ref().expect("a server").address.to_string();
                let flags = flags.iter().map(|word| word.replace("127.0.0.1:7860", &address));
                let run = Run::of(Command::new("curl").arg("--fail-with-body").args(flags).current_dir(folder.path()));
                let answer = run.succeeds().stdout;
                assert!(!answer.is_empty() && !answer.contains("\"error\":{"), "{line}: {answer}");
            }
            _ => panic!("nothing runs this command: {line}"),
        }
    }
}
