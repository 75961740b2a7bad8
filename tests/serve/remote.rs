//! The command line through a running server.

use std::fs;
use std::path::Path;

use super::*;
use crate::cli::again::write_adapter;
use crate::program::{Run, flux};

#[test]
fn a_server_makes_the_bytes_that_the_command_makes_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_adapter(&path.join("ink.safetensors"), 0.3);
    fs::write(path.join("red.png"), png(64, 64, [200, 30, 30])).unwrap();
    fs::write(path.join("mask.png"), png(64, 64, [255; 3])).unwrap();
    let serving = Serving::start(&["--lora", &format!("ink.safetensors={}", path.join("ink.safetensors").display())]);
    let url = format!("http://{}", serving.address);
    let draw = |flags: &str, server: bool| {
        let mut command = flux();
        command.current_dir(path).args(flags.split(' ')).args(["--device", "cpu", "-s", "2", "-S", "5"]);
        if server {
            command.env("FLUX_SERVER", &url);
        }
        Run::of(&mut command).succeeds()
    };
    for (number, flags) in [
        "a-cat --size 64",
        "a-cat --size 96x64 --guidance 2 --schedule linear --rng portable",
        "green -i red.png",
        "green -i red.png -i red.png --size 64",
        "green -i red.png --strength 0.7",
        "green -i red.png --mask mask.png --feather 2",
        "a-cat --size 64 --lora ink.safetensors:0.5",
        "a-cat --size 64 -n 2",
    ]
    .iter()
    .enumerate()
    {
        let ending = ["png", "jpg", "webp"][number % 3];
        let told = draw(&format!("{flags} -o remote.{ending}"), true);
        assert!(told.stderr.contains("wrote remote"), "{}", told.stderr);
        draw(&format!("{flags} -o local.{ending}"), false);
        let read = |begins: &str| {
            let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
            let mut files: Vec<_> = entries.filter(|file| name(file).starts_with(begins)).collect();
            files.sort();
            files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>()
        };
        assert!(!read("remote").is_empty() && read("remote") == read("local"), "{flags}: the same bytes");
        for file in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
            if name(&file).starts_with("remote") || name(&file).starts_with("local") {
                fs::remove_file(file).unwrap();
            }
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn what_a_server_refuses_or_cannot_do_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start(&["--max-pixels", "4096"]);
    let url = format!("http://{}", serving.address);
    let run =
        |flags: &[&str]| Run::of(flux().current_dir(folder.path()).args(["-p", "x", "-o", "out.png"]).args(flags));
    run(&["--server", &url, "--size", "128"]).fails(2, &["4096 pixels", &url]);
    run(&["--server", &url, "--lora", "none"]).fails(2, &["none"]);
    run(&["--server", "localhost"]).fails(2, &["is no address", "http://"]);
    run(&["--server", &url, "--timings"]).fails(2, &["--timings", "server"]);
    run(&["--server", "http://127.0.0.1:9", "--size", "64"]).fails(1, &["does not answer", "flux serve"]);
    assert!(crate::program::names(folder.path()).is_empty(), "nothing is left");
}

#[test]
fn a_command_that_is_ended_ends_its_work() {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start(&[]);
    let url = format!("http://{}", serving.address);
    let mut command = flux();
    command.current_dir(folder.path()).args(["-p", "x", "--size", "512", "-s", "1000", "--server", &url]);
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    until("it runs", || work(&serving)[0] == 1);
    let sent = std::process::Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    until("the server is free", || work(&serving) == [0, 0]);
    assert!(crate::program::names(folder.path()).is_empty());
}
