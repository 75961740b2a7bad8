//! Unix sockets, systemd socket activation, and sharing by users of one machine.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::program::{Run, flux, project, signal};
use crate::serving::{reply, request};

/// Sends a request over a Unix socket.
fn ask(path: &Path, method: &str, url: &str, body: &str) -> Reply {
    let mut stream = UnixStream::connect(path).expect("it listens");
    stream.write_all(&request(method, url, &["Content-Type: application/json"], body.as_bytes())).expect("it is taken");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    reply(&bytes)
}

fn place(path: &Path) -> String {
    format!("unix:{}", path.display())
}

#[test]
fn a_user_of_the_machine_asks_over_a_file_without_a_key_and_has_jobs_of_his_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flux.sock");
    let keys = folder.path().join("keys");
    fs::write(&keys, Run::new(flux().args(["key", "alice"])).succeeds().stdout).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let mut serving = Serving::start(&["--listen", &place(&path), "--api-keys", keys.to_str().unwrap()]);
    assert!(serving.said().contains(&place(&path)));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(serving.get("/v1/models").status, 401, "over the network a key is needed");
    let made = images(&ask(&path, "POST", "/v1/images/generations", &small("x").to_string()));
    let job = ask(&path, "POST", "/v1/jobs", &small("x").to_string());
    assert_eq!(job.status, 202, "{}", job.json());
    assert_eq!(ask(&path, "GET", "/v1/jobs", "").json()["data"].as_array().unwrap().len(), 1);

    // The command line can use the socket too, and writes the same file as without a server.
    let (here, there) = (folder.path().join("here.png"), folder.path().join("there.png"));
    let draw = |output: &Path, server: Option<&str>| {
        let mut command = flux();
        command.args(["x", "--size", "64", "--steps", "1", "--seed", "5", "--device", "cpu", "-o"]).arg(output);
        server.map(|server| command.env("FLUX_SERVER", server));
        Run::new(&mut command).succeeds();
    };
    draw(&here, None);
    draw(&there, Some(&place(&path)));
    let (here, there) = (fs::read(here).unwrap(), fs::read(there).unwrap());
    assert!(here == there && here == made[0]);

    Run::new(flux().args(["serve", "--device", "cpu", "--listen", &place(&path)])).fails(2, &["another server"]);
    serving.signal("TERM");
    assert_eq!(serving.end(), Some(0));
    assert!(!path.exists());
    let missing = flux().args(["x", "--server", &place(&path)]).current_dir(folder.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("the server does not answer"), "{missing:?}");
}

#[test]
fn a_client_has_only_so_much_waiting_and_asks_for_only_so_many_pixels() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flux.sock");
    let flags = ["--listen", &place(&path), "--batch-max", "1", "--max-per-client", "2"];
    let serving = Serving::start(&flags);
    let submit = || serving.post("/v1/jobs", &endless());
    assert_eq!(submit().status, 202);
    until("the engine has it", || work(&serving)[0] == 1);
    assert_eq!([submit().status, submit().status], [202, 202], "two wait");
    assert_eq!((submit().error().0, submit().error().1.as_str()), (429, "too_many_waiting"));
    assert_eq!(ask(&path, "POST", "/v1/jobs", &endless().to_string()).status, 202, "that is another one");
    let many = ask(&path, "POST", "/v1/jobs", &with(small("x"), json!({"n": 3})).to_string());
    assert_eq!(many.status, 429);
    drop(serving);

    let serving = Serving::start(&["--megapixels-per-minute", "1"]);
    let submit = |count: u64| serving.post("/v1/jobs", &with(endless(), json!({"n": count})));
    assert_eq!(submit(10).status, 202, "more than a minute's worth may be had at once");
    let limited = submit(1);
    assert_eq!((limited.error().0, limited.error().1.as_str()), (429, "rate_limited"));
    assert!(limited.header("retry-after").is_some());
}

/// Returns a command that starts the program like systemd, with a socket as descriptor 3.
fn activated(socket: OwnedFd, flags: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"", "sh"]);
    command.arg(flux().get_program()).args(["serve", "--device", "cpu"]).args(flags);
    command.stdin(Stdio::from(socket)).env("LISTEN_FDNAMES", "web").env_remove("FLUX_API_KEYS");
    command.env("RAYON_NUM_THREADS", "1");
    command
}

#[test]
fn a_socket_that_is_handed_over_is_listened_at_and_the_supervisor_hears_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("given.sock");
    let notified = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    notified.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let hears = |text: &str| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            let mut bytes = [0; 256];
            let read = notified.recv(&mut bytes).unwrap_or_else(|e| panic!("{text}: {e}"));
            if bytes[..read].starts_with(text.as_bytes()) {
                return;
            }
        }
        panic!("never: {text}");
    };
    let listener = UnixListener::bind(&path).unwrap();
    let mut command = activated(listener.into(), &[]);
    command.env("NOTIFY_SOCKET", folder.path().join("notify")).env("WATCHDOG_USEC", "400000");
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    hears("READY=1");
    hears("WATCHDOG=1");
    assert_eq!(ask(&path, "GET", "/readyz", "").status, 200);
    hears("WATCHDOG=1");
    signal(&child, "TERM");
    hears("STOPPING=1");
    assert!(child.wait().unwrap().success());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("`web`"), "{said}");
    assert!(!said.contains("7860"), "{said}");
    assert!(path.exists(), "the file is the supervisor's");
}

#[test]
fn a_socket_that_cannot_be_served_is_told() {
    let (connection, _other) = UnixStream::pair().unwrap();
    Run::new(&mut activated(connection.into(), &[])).fails(2, &["`web`", "not listening"]);
    let datagrams = UnixDatagram::unbound().unwrap();
    Run::new(&mut activated(datagrams.into(), &[])).fails(2, &["`web`", "ListenStream="]);
    let open = TcpListener::bind("0.0.0.0:0").unwrap();
    Run::new(&mut activated(open.into(), &[])).fails(2, &["open to other machines", "--api-keys"]);
}

/// Returns the installed units, of the system and of a user.
fn units() -> Vec<PathBuf> {
    let names = ["flux.service", "flux.socket"];
    ["scripts/systemd", "scripts/systemd/user"]
        .iter()
        .flat_map(|folder| names.map(|name| project(folder).join(name)))
        .collect()
}

#[test]
fn the_units_are_well_formed() {
    const SECTIONS: [&str; 4] = ["[Unit]", "[Service]", "[Socket]", "[Install]"];
    for unit in units() {
        let text = fs::read_to_string(&unit).unwrap();
        let mut sections = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if SECTIONS.contains(&line) {
                sections.push(line);
                continue;
            }
            let (key, _) = line.split_once('=').unwrap_or_else(|| panic!("{}: {line}", unit.display()));
            assert!(
                !sections.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric()),
                "{}: {line}",
                unit.display()
            );
        }
        let kind = if unit.extension().is_some_and(|kind| kind == "socket") { "[Socket]" } else { "[Service]" };
        assert_eq!(sections, ["[Unit]", kind, "[Install]"], "{}", unit.display());
        for needed in ["Type=notify", "WatchdogSec=", "NoNewPrivileges=yes", "Requires=flux.socket"] {
            assert!(kind == "[Socket]" || text.contains(needed), "{}: {needed}", unit.display());
        }
    }
    // If systemd is installed, it checks them.
    for (folder, of_user) in [("scripts/systemd", false), ("scripts/systemd/user", true)] {
        let units = ["flux.service", "flux.socket"].map(|name| project(folder).join(name));
        let scope = if of_user { "--user" } else { "--system" };
        let mut command = Command::new("systemd-analyze");
        let Ok(told) = command.args(["verify", "--man=no", scope]).args(units).output() else { return };
        let said = String::from_utf8_lossy(&told.stderr);
        let of_ours = said.lines().filter(|line| line.contains("flux.")).collect::<Vec<_>>();
        assert!(of_ours.is_empty(), "{of_ours:?}");
    }
}
