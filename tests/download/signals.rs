//! Downloads that are interrupted, full disks, caches that are not writable, and concurrent downloads.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// Slows a response in the middle of the large file.
fn slow(seen: &Seen, _: usize, reply: &mut Reply) {
    if seen.path.starts_with("/cdn/") && seen.path.ends_with(LARGE) {
        reply.pause = Duration::from_millis(40);
    }
}

/// Starts a download, and ends it in the middle of the large file.
fn ended(home: &Home, hub: &Hub, signal: &str) -> Run {
    let mut command = home.download(hub, &["4b"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let partial = home.partial(&hub.content().files[LARGE]);
    while fs::metadata(&partial).map_or(0, |found| found.len()) < 500_000 {
        thread::sleep(Duration::from_millis(5));
    }
    crate::program::signal(&child, signal);
    Run::from_output(child.wait_with_output().expect("it ends"))
}

#[test]
fn what_was_fetched_before_a_signal_is_not_fetched_again() {
    for (signal, code) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        let hub = Hub::start(small(), slow);
        let home = Home::new();
        let run = ended(&home, &hub, signal);
        assert_eq!((run.code, run.stdout.as_str()), (code, ""), "{}", run.stderr);
        assert_eq!(run.stderr.contains("the downloaded part is kept"), signal != "KILL", "{}", run.stderr);
        let partial = home.partial(&hub.content().files[LARGE]);
        let have = fs::metadata(&partial).unwrap().len();
        assert!((500_000..LARGE_BYTES as u64).contains(&have));
        hub.take_seen();
        Run::new(&mut home.download(&hub, &["4b"])).succeeds();
        let seen = hub.take_seen();
        let fetched: Vec<_> = seen.iter().filter(|seen| seen.path.starts_with("/cdn/")).collect();
        assert_eq!(fetched[0].range, Some(format!("bytes={have}-")), "{signal}");
        assert!(fetched.iter().all(|seen| !seen.path.contains("/text_encoder/")), "whole files are not fetched again");
        home.has(&hub, is_read);
    }
}

#[test]
fn each_file_is_fetched_by_one_of_two_downloads_at_once() {
    let hub = Hub::start(small(), slow);
    let home = Home::new();
    let runs = thread::scope(|scope| {
        let run = || scope.spawn(|| Run::new(&mut home.download(&hub, &["4b"])).succeeds());
        [run(), run()].map(|run| run.join().expect("a run that succeeds"))
    });
    assert!(runs.iter().any(|run| run.stderr.contains("waiting for another download")), "{}", runs[0].stderr);
    assert_eq!(ranges(&hub, LARGE), [""]);
    home.has(&hub, is_read);
}

/// The system's limit on the size of a file simulates a full disk.
#[test]
fn a_full_disk_is_called_so_and_the_download_goes_on_later() {
    let hub = Hub::start(small(), fine);
    let home = Home::new();
    let inner = home.download(&hub, &["4b"]);
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -f 1000; exec \"$@\"", "bash"]).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Run::new(command.current_dir(home.path()))
        .fails(1, &["cannot write it", "are missing", "are free", "free some space"]);
    let have = fs::metadata(home.partial(&hub.content().files[LARGE])).unwrap().len();
    assert_eq!(have, 1000 * 1024);
    hub.take_seen();
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    assert_eq!(ranges(&hub, LARGE), [format!("bytes={have}-")]);
}

#[test]
fn what_does_not_fit_the_disk_is_not_begun() {
    let hub = Hub::start(small(), |seen, _, reply| {
        if seen.path.contains("/tree/") {
            let text = String::from_utf8(reply.body.clone()).unwrap();
            reply.body = text.replace("3000000", "90000000000000").into_bytes();
        }
    });
    let home = Home::new();
    Run::new(&mut home.download(&hub, &["4b"])).fails(1, &["the download needs", "are free", "HF_HUB_CACHE"]);
    assert!(hub.take_seen().iter().all(|seen| seen.path.starts_with("/api/")));
}

#[test]
fn a_cache_that_cannot_be_written_serves_what_it_has() {
    let hub = Hub::start(small(), fine);
    let home = Home::new();
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    let mut folders = vec![home.path().join("hub")];
    let mut all = folders.clone();
    while let Some(folder) = folders.pop() {
        let inner = names_in(&folder).into_iter().map(|name| folder.join(name));
        folders.extend(inner.filter(|path| path.symlink_metadata().is_ok_and(|found| found.is_dir())));
        all.extend(folders.last().cloned());
    }
    all.sort();
    let mode = |mode| {
        all.iter().rev().for_each(|folder| drop(fs::set_permissions(folder, fs::Permissions::from_mode(mode))));
    };
    mode(0o555);
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    // The tests may run as root, who may write everywhere.
    if fs::write(home.path().join("hub/probe"), "").is_err() {
        Run::new(&mut home.download(&hub, &["9b"])).fails(1, &["404"]);
        fs::remove_file(home.snapshot(KLEIN).join("README.md")).unwrap_err();
    }
    mode(0o755);

    // Even root cannot write into a file in place of a folder.
    let home = Home::new();
    fs::write(home.path().join("hub"), "").unwrap();
    Run::new(&mut home.download(&hub, &["4b"])).fails(1, &["cannot write it", "HF_HUB_CACHE"]);
    fs::write(home.path().join("file"), "").unwrap();
    Run::new(&mut home.download(&hub, &["4b", "--folder", "file"])).fails(1, &["cannot write it", "--folder"]);
}

#[test]
fn a_server_that_says_nothing_does_not_hold_up_a_signal() {
    let hub = Hub::start(small(), |seen, _, reply| {
        if seen.path.contains("/tree/") {
            reply.delay = Duration::from_secs(20);
        }
    });
    let home = Home::new();
    let mut command = home.download(&hub, &["4b"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    while hub.take_seen().iter().all(|seen| !seen.path.contains("/tree/")) {
        thread::sleep(Duration::from_millis(5));
    }
    let start = Instant::now();
    crate::program::signal(&child, "INT");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
