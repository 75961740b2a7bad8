//! The command line through a running server.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::cli::again::write_adapter;
use crate::program::{Run, flux, signal};
use crate::requests;

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
        Run::new(&mut command).succeeds()
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
        "a-cat --size 64 --no-recipe",
        "green -i red.png --no-recipe",
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
        |flags: &[&str]| Run::new(flux().current_dir(folder.path()).args(["-p", "x", "-o", "out.png"]).args(flags));
    run(&["--server", &url, "--size", "128"]).fails(2, &["4096 pixels", &url]);
    run(&["--server", &url, "--lora", "none"]).fails(2, &["none"]);
    run(&["--server", "localhost"]).fails(2, &["not a valid address", "http://"]);
    for flag in ["--timings", "--precision=bf16", "--attention=bf16", "--vae=x", "--text-encoder=x", "--variant=base"] {
        let name = flag.split('=').next().unwrap_or_default();
        run(&["--server", &url, flag]).fails(2, &[&format!("`{name}` cannot be used with a server")]);
    }
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
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    until("the server is free", || work(&serving) == [0, 0]);
    assert!(crate::program::names(folder.path()).is_empty());
}

/// A server with responses chosen by a test: status, header lines and body by method and path.
struct Foreign {
    port: u16,
    /// Method, path, and `true` if the request had a key.
    seen: Arc<Mutex<Vec<(String, String, bool)>>>,
}

impl Foreign {
    fn start(answer: impl Fn(&str, &str) -> (u16, String, Vec<u8>) + Send + Sync + 'static) -> Self {
        let (listener, port) = requests::bind();
        let seen = Arc::<Mutex<Vec<_>>>::default();
        let log = Arc::clone(&seen);
        requests::serve(listener, move |request, stream| {
            let [method, path] = request.target();
            let (status, head, body) = answer(&method, &path);
            log.lock().unwrap().push((method, path, request.header("authorization").is_some()));
            write!(stream, "HTTP/1.1 {status} X\r\nConnection: close\r\n{head}\r\n")?;
            stream.write_all(&body)?;
            Ok(false)
        });
        Self { port, seen }
    }

    /// Starts a server whose job is done, with this image.
    fn with_image(image: Vec<u8>) -> Self {
        Self::start(move |method, path| match (method, path.ends_with("/events")) {
            ("POST", _) => (200, String::new(), job("").into_bytes()),
            (_, true) => (200, String::new(), b"data: {\"type\": \"done\"}\n\n".to_vec()),
            _ => (200, String::new(), image.clone()),
        })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn seen(&self) -> Vec<(String, String, bool)> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

/// Returns a job whose addresses are at `origin`.
fn job(origin: &str) -> String {
    let url = format!("{origin}/v1/jobs/job-1");
    format!(r#"{{"id": "job-1", "size": "64x64", "steps": 1, "model": "m", "notes": [], "urls": {{"self": "{url}"}}}}"#)
}

/// Generates one image by a server into an empty folder.
fn by(url: &str, variables: &[(&str, &str)]) -> (Run, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = flux();
    command.current_dir(folder.path()).args(["x", "--size", "64", "-o", "out.png", "--server", url]);
    command.env("FLUX_API_KEY", "secret").envs(variables.iter().copied());
    (Run::new(&mut command), crate::program::names(folder.path()))
}

#[test]
fn only_a_whole_image_of_the_requested_format_is_written() {
    let image = png(64, 64, [9, 9, 9]);
    let (run, files) = by(&Foreign::with_image(image.clone()).url(), &[]);
    run.succeeds();
    assert_eq!(files, ["out.png"]);
    let grey = Rgb { width: 64, height: 64, bytes: vec![9; 64 * 64 * 3] };
    let jpeg = encode(&grey, ImageFormat::Jpeg, &flux::metadata::Metadata::default()).unwrap();
    for (case, body) in [
        ("nothing", Vec::new()),
        ("HTML", b"<!doctype html><html><body>Sign in</body></html>".to_vec()),
        ("a script", b"#!/bin/sh\nrm -rf ~\n".to_vec()),
        ("half an image", image[..image.len() / 2].to_vec()),
        ("the magic alone", image[..8].to_vec()),
        ("another format", jpeg),
    ] {
        let (run, files) = by(&Foreign::with_image(body).url(), &[]);
        run.fails(1, &["as png"]);
        assert!(files.is_empty(), "{case}: {files:?}");
    }
}

#[test]
fn neither_addresses_in_an_answer_nor_redirections_lead_to_another_server() {
    let other = Foreign::with_image(png(64, 64, [9, 9, 9]));
    let origin = other.url();
    let lures = Foreign::start(move |method, path| match (method, path.ends_with("/events")) {
        ("POST", _) => (200, String::new(), job(&origin).into_bytes()),
        (_, true) => (200, String::new(), b"data: {\"type\": \"done\"}\n\n".to_vec()),
        _ => (200, String::new(), png(64, 64, [1, 1, 1])),
    });
    by(&lures.url(), &[]).0.succeeds();
    assert_eq!(other.seen(), [], "the addresses in a job are not used");
    for path in ["/v1/jobs", "/v1/jobs/job-1/events", "/v1/jobs/job-1/images/0"] {
        let to = format!("Location: {}{path}\r\n", other.url());
        let redirects = Foreign::start(move |method, asked| match (method, asked.ends_with("/events")) {
            _ if asked == path => (307, to.clone(), Vec::new()),
            ("POST", _) => (200, String::new(), job("").into_bytes()),
            _ => (200, String::new(), b"data: {\"type\": \"done\"}\n\n".to_vec()),
        });
        let (run, files) = by(&redirects.url(), &[]);
        run.fails(1, &["redirects to"]);
        assert!(files.is_empty() && other.seen().is_empty(), "{path}");
    }
    for id in ["../../evil", "", "a?b", "http://evil"] {
        let server = Foreign::start(move |_, _| (200, String::new(), format!(r#"{{"id": "{id}"}}"#).into_bytes()));
        by(&server.url(), &[]).0.fails(1, &["not a job"]);
        assert_eq!(server.seen().len(), 1, "{id}");
    }
    let moved = Foreign::start(|method, path| match (method, path) {
        (_, path) if !path.starts_with("/flux") => (308, format!("Location: /flux{path}\r\n"), Vec::new()),
        ("POST", _) => (200, String::new(), job("").into_bytes()),
        (_, path) if path.ends_with("/events") => (200, String::new(), b"data: {\"type\": \"done\"}\n\n".to_vec()),
        _ => (200, String::new(), png(64, 64, [9, 9, 9])),
    });
    by(&moved.url(), &[]).0.succeeds();
}

#[test]
fn no_proxy_sees_what_a_server_of_this_machine_gets() {
    let proxy = Foreign::start(|_, _| (502, String::new(), Vec::new()));
    let serving = Serving::start(&[]);
    let variables =
        ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"].map(|name| (name, proxy.url()));
    let variables: Vec<_> = variables.iter().map(|(name, url)| (*name, url.as_str())).collect();
    for host in ["127.0.0.1", "localhost"] {
        let (run, files) = by(&format!("http://{host}:{}", serving.address.port()), &variables);
        let run = run.succeeds();
        assert!(!run.stderr.contains("unencrypted"), "{}", run.stderr);
        assert_eq!((files.len(), proxy.seen()), (1, Vec::new()), "{host}");
    }
    // For another machine the proxy is used.
    let (run, _) = by("http://flux.invalid:7860", &variables);
    run.fails(1, &["unencrypted"]);
    assert!(!proxy.seen().is_empty());
}

#[test]
fn answers_and_events_without_an_end_are_given_up() {
    let endless = |what: &'static str, size: usize| {
        let text = what.repeat(size / what.len());
        Foreign::start(move |method, path| match (method, path.ends_with("/events")) {
            ("POST", _) => (200, String::new(), job("").into_bytes()),
            (_, true) => (200, String::new(), text.clone().into_bytes()),
            _ => (200, String::new(), Vec::new()),
        })
    };
    for (what, size) in [(": keep-alive\n\n", 2 << 20), ("data: aaaaaaaa", 2 << 20), ("data: {}\n", 2 << 20)] {
        let (run, files) = by(&endless(what, size).url(), &[]);
        run.fails(1, &["events of the job"]);
        assert!(files.is_empty());
    }
    let long = Foreign::start(|_, _| (200, String::new(), vec![b' '; 2 << 20]));
    by(&long.url(), &[]).0.fails(1, &["not a job"]);
    by("http://127.0.0.1:9", &[("FLUX_SERVER_TIMEOUT", "soon")]).0.fails(2, &["FLUX_SERVER_TIMEOUT"]);
    // A server that sends something every tenth of a second, but no news.
    let (listener, port) = requests::bind();
    requests::serve(listener, |request, stream| {
        write!(stream, "HTTP/1.1 200 X\r\nConnection: close\r\n\r\n")?;
        if request.line.starts_with("POST ") {
            stream.write_all(job("").as_bytes())?;
            return Ok(false);
        }
        loop {
            stream.write_all(b"data: {\"type\": \"queued\", \"position\": 1}\n\n")?;
            thread::sleep(std::time::Duration::from_millis(100));
        }
    });
    by(&format!("http://127.0.0.1:{port}"), &[("FLUX_SERVER_TIMEOUT", "1")]).0.fails(1, &["no progress"]);
}
