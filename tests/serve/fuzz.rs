//! Thousands of hostile requests. Each is answered or its connection ends in time, other clients are served meanwhile,
//! and the server retains nothing of them.
//!
//! `FLUX_FUZZ_REQUESTS` is their number, `FLUX_FUZZ_SEED` chooses them, and `FLUX_FUZZ_FIRST` is the number of the
//! first.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::hostile_requests::{Sent, hostile};
use super::*;
use crate::program::{flux, takes_long_form};

/// Number of concurrent clients.
const CLIENTS: usize = 8;
/// Connections that are open for longer hang. The server closes silent ones after 30 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum wait of another client.
const OTHERS_WAIT: Duration = Duration::from_secs(30);
/// The number of requests that are repeated, and of repetitions. After these, the server's caches are full. Then the
/// requests are repeated as often again.
const AGAIN: [u64; 2] = [50, 4];
/// Maximum memory growth during the second repetitions, in MiB.
const MAX_EXTRA: u64 = 24;
/// Number of requests between progress lines.
const PROGRESS: usize = 100_000;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// Returns the fault in the server's reaction to a request.
fn finding(serving: &Serving, sent: &Sent) -> Option<String> {
    let start = Instant::now();
    let Ok(mut stream) = TcpStream::connect(serving.address) else {
        return Some("it takes no connections".to_string());
    };
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    // A server that refuses the request need not read all of it.
    let _ = stream.write_all(&sent.bytes);
    if sent.goes {
        return None;
    }
    if !sent.is_whole {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    if start.elapsed() >= PATIENCE {
        return Some(format!("it hangs: {read:?}"));
    }
    let text = String::from_utf8_lossy(&answer[..answer.len().min(2000)]).into_owned();
    let status: Option<u16> = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    match status {
        None if answer.is_empty() && !sent.is_whole => None,
        None => Some(format!("no answer: {text:?}")),
        // /readyz reports this in its body, which responses to HEAD lack.
        Some(503) if text.contains("\"status\":\"queue_full\"") || sent.bytes.starts_with(b"HEAD ") => None,
        Some(500..) => Some(format!("an answer of a failure: {text:?}")),
        Some(_) => None,
    }
}

/// Returns the server's MiB of anonymous memory, and its open files.
fn held(serving: &Serving) -> (u64, usize) {
    let status = fs::read_to_string(format!("/proc/{}/status", serving.id())).expect("it runs");
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
    let files = fs::read_dir(format!("/proc/{}/fd", serving.id())).expect("it runs").count();
    (kib.unwrap_or(0_u64) / 1024, files)
}

/// Starts a server whose memory shows its contents: the allocator returns freed memory, instead of keeping it in
/// thread pools, whose size depends on timing.
fn serving() -> Serving {
    let mut command = flux();
    command.args(["--device", "cpu"]);
    for (name, value) in [("ARENA_MAX", "1"), ("MMAP_THRESHOLD_", "65536"), ("TRIM_THRESHOLD_", "131072")] {
        command.env(format!("MALLOC_{name}"), value);
    }
    let mut serving =
        Serving::from_command(&mut command, &["--max-pixels", "16384", "--keep-mib", "1", "--queue-max", "64"]);
    serving.hears("ready after");
    // The first image of the largest size leaves caches.
    let body = json!({"prompt": "warm", "size": "128x128", "steps": 4});
    assert_eq!(serving.post("/v1/images/generations", &body).status, 200);
    serving
}

/// Sends requests from several clients, while others query the server's state. Returns the maximum wait of these.
fn ask(serving: &Serving, seed: u64, numbers: impl Iterator<Item = u64> + Send) -> Duration {
    let (numbers, is_over) = (Mutex::new(numbers.enumerate()), AtomicBool::new(false));
    let (findings, slowest) = (Mutex::new(Vec::new()), Mutex::new(Duration::ZERO));
    let start = Instant::now();
    thread::scope(|scope| {
        let client = || {
            loop {
                let next = numbers.lock().expect("no panic").next();
                let Some((turn, number)) = next.filter(|_| findings.lock().expect("no panic").len() <= 20) else {
                    break;
                };
                if turn > 0 && turn.is_multiple_of(PROGRESS) {
                    println!("{turn}: {:?}, {:?}", start.elapsed(), held(serving));
                }
                if let Some(found) = finding(serving, &hostile(seed, number)) {
                    let again = format!("FLUX_FUZZ_SEED={seed} FLUX_FUZZ_FIRST={number} FLUX_FUZZ_REQUESTS=1");
                    findings.lock().expect("no panic").push(format!("{again}: {found}"));
                }
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                assert_eq!(serving.get("/healthz").status, 200);
                assert_eq!(serving.get("/v1/models").status, 200);
                let mut slowest = slowest.lock().expect("no panic");
                *slowest = start.elapsed().max(*slowest);
                thread::sleep(Duration::from_millis(100));
            }
        });
        clients.into_iter().for_each(|client| client.join().expect("no panic"));
        is_over.store(true, Ordering::Relaxed);
    });
    let findings = findings.into_inner().expect("no panic");
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    until("nothing is left of the work", || work(serving) == [0, 0]);
    slowest.into_inner().expect("no panic")
}

#[test]
fn hostile_requests_are_answered_and_nothing_is_left_of_them() {
    let (seed, first) = (number("FLUX_FUZZ_SEED", 1), number("FLUX_FUZZ_FIRST", 0));
    let requests = number("FLUX_FUZZ_REQUESTS", if takes_long_form() { 2000 } else { 300 });
    let mut serving = serving();
    let start = Instant::now();
    let [count, times] = AGAIN;
    let some = first..first + requests.min(count);
    let again = || (0..times).flat_map(|_| some.clone());
    let slowest = ask(&serving, seed, (first..first + requests).chain(again()));
    let (warm_mib, warm_files) = held(&serving);
    ask(&serving, seed, again());
    let (mib, files) = held(&serving);
    println!(
        "{requests} requests, and {} twice again, in {:.0} s; memory {warm_mib} MiB in between, {mib} MiB at the end; {files} \
         files, {warm_files} in between; others waited up to {slowest:.2?}",
        count * times,
        start.elapsed().as_secs_f64()
    );
    assert!(slowest < OTHERS_WAIT, "others waited {slowest:?}");
    assert!(mib <= warm_mib + MAX_EXTRA, "{warm_mib} MiB became {mib}");
    until("all connections are closed", || held(&serving).1 <= 24);
    assert!(!serving.said().contains("panicked"), "{}", serving.said());
}
