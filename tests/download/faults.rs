//! Servers that break off, send wrong data, are busy, or redirect.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

fn is_large(seen: &Seen) -> bool {
    seen.path.starts_with("/cdn/") && seen.path.ends_with(LARGE)
}

/// Starts a server that changes its answers to requests for the large file.
fn of_large(change: impl Fn(&Seen, usize, &mut Reply) + Send + Sync + 'static) -> Hub {
    Hub::start(small(), move |seen, count, reply| {
        if is_large(seen) {
            change(seen, count, reply);
        }
    })
}

#[test]
fn a_transfer_that_breaks_off_goes_on_where_it_was() {
    let hub = of_large(|_, count, reply| {
        if count < 3 {
            reply.cut = Some(900_000);
        }
    });
    let home = Home::new();
    let run = Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    assert!(run.stderr.contains("was interrupted"), "{}", run.stderr);
    home.has(&hub, is_read);
    assert_eq!(ranges(&hub, LARGE), ["", "bytes=900000-", "bytes=1800000-", "bytes=2700000-"]);
}

#[test]
fn what_an_earlier_run_has_left_is_not_fetched_again() {
    let hub = of_large(|_, count, reply| {
        if count < 5 {
            reply.cut = Some(1000);
        }
    });
    let home = Home::new();
    Run::new(&mut home.download(&hub, &["4b"])).fails(1, &["was interrupted", "again to resume"]);
    let content = &hub.content().files[LARGE];
    assert_eq!(fs::read(home.partial(content)).unwrap(), content[..5000]);
    assert!(!home.snapshot(KLEIN).exists(), "what is not whole has no name");
    hub.take_seen();
    let run = Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    assert!(run.stderr.contains("5000 of 3000000 bytes"), "{}", run.stderr);
    assert_eq!(ranges(&hub, LARGE), ["bytes=5000-"]);
    home.has(&hub, is_read);
}

#[test]
fn a_part_that_is_damaged_or_too_long_is_fetched_from_the_start() {
    let hub = Hub::start(small(), fine);
    let content = hub.content().files[LARGE].clone();
    for (part, asked) in [
        (vec![0; 1000], vec!["bytes=1000-", ""]),
        ([&content[..], b"more"].concat(), vec![""]),
        (content.clone(), vec![]),
        (vec![0; content.len()], vec![""]),
    ] {
        let home = Home::new();
        fs::create_dir_all(home.repository(KLEIN).join("blobs")).unwrap();
        fs::write(home.partial(&content), part).unwrap();
        hub.take_seen();
        Run::new(&mut home.download(&hub, &["4b"])).succeeds();
        assert_eq!(ranges(&hub, LARGE), asked);
        home.has(&hub, is_read);
    }
}

#[test]
fn servers_that_ignore_or_refuse_ranges_serve_from_the_start() {
    for status in [200, 416, 0] {
        let hub = of_large(move |seen, count, reply| {
            if count == 0 {
                reply.cut = Some(500_000);
            } else if seen.range.is_some() {
                match status {
                    200 => *reply = Reply { status, body: noise(LARGE_BYTES, 3), ..Reply::default() },
                    416 => *reply = Reply::new(416, &[], ""),
                    _ => reply.set("Content-Range", "bytes 1-2999999/3000000"),
                }
            }
        });
        let home = Home::new();
        Run::new(&mut home.download(&hub, &["4b"])).succeeds();
        home.has(&hub, is_read);
        let asked = ranges(&hub, LARGE);
        assert_eq!(asked[1], "bytes=500000-", "{status}");
        assert_eq!(asked.len(), if status == 200 { 2 } else { 3 }, "{status}");
    }
}

#[test]
fn a_file_that_changes_meanwhile_is_not_put_together_of_two() {
    let hub = of_large(|seen, count, reply| {
        if count == 0 {
            reply.cut = Some(500_000);
            reply.set("ETag", "\"before\"");
        } else if seen.if_range.as_deref() == Some("\"before\"") {
            *reply = Reply { status: 200, body: noise(LARGE_BYTES, 77), ..Reply::default() };
        } else {
            panic!("asked without the tag: {seen:?}");
        }
    });
    let home = Home::new();
    let run = Run::new(&mut home.download(&hub, &["4b"]));
    // The resumed data have another checksum; the next requests have no range.
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let seen = hub.take_seen();
    let second = seen.iter().filter(|seen| is_large(seen)).nth(1).unwrap();
    assert_eq!((second.range.as_deref(), second.if_range.as_deref()), (Some("bytes=500000-"), Some("\"before\"")));
    assert!(!home.snapshot(KLEIN).exists());
}

/// Starts a mirror without a list, with tags that are no checksums.
fn without_sums(seed: u32, change: impl Fn(&Seen, usize, &mut Reply) + Send + Sync + 'static) -> Hub {
    let mut content = Content { redirects: false, ..small() };
    content.files.insert(LARGE.to_string(), noise(LARGE_BYTES, seed));
    Hub::start(content, move |seen, count, reply| {
        if seen.path.starts_with("/api/") {
            *reply = Reply::new(404, &[], "");
        } else if seen.method == "GET" && seen.path.ends_with(LARGE) {
            change(seen, count, reply);
        }
    })
}

/// Returns the requested range and tag of each GET of the large file.
fn asked(hub: &Hub) -> Vec<(Option<String>, Option<String>)> {
    let gets = hub.take_seen().into_iter().filter(|seen| seen.method == "GET" && seen.path.ends_with(LARGE));
    gets.map(|seen| (seen.range, seen.if_range)).collect()
}

#[test]
fn without_a_checksum_two_versions_are_never_put_together() {
    let name = format!("4b:{LARGE}");
    let breaks = |_: &Seen, _: usize, reply: &mut Reply| reply.cut = Some(500_000);
    let tag = format!("\"tag-{}\"", &sha256(&noise(LARGE_BYTES, 3))[..8]);
    for arguments in [&[name.as_str()][..], &[&name, "--folder", "x"]] {
        let home = Home::new();
        let got = |hub: &Hub| {
            let run = Run::new(&mut home.download(hub, arguments)).succeeds();
            fs::read(home.path().join(run.stdout.trim_end())).unwrap()
        };
        // An earlier run's partial file is resumed by its tag, and never with another version.
        Run::new(&mut home.download(&without_sums(3, breaks), arguments)).fails(1, &["was interrupted"]);
        let other = without_sums(77, fine);
        assert!(got(&other) == noise(LARGE_BYTES, 77));
        assert_eq!(asked(&other), [(None, None)]);
        let first = without_sums(3, fine);
        assert!(got(&first) == noise(LARGE_BYTES, 3));
        assert_eq!(asked(&first), [(Some("bytes=2500000-".to_string()), Some(tag.clone()))]);
    }
    // The file changes in the middle, on servers that ignore the tag.
    for told in [None, Some("\"other\""), Some("W/\"other\"")] {
        let hub = without_sums(3, move |seen, count, reply| {
            if count == 0 {
                reply.cut = Some(500_000);
                return;
            }
            let start = if seen.range.is_some() { 500_000 } else { 0 };
            *reply = Reply { status: 200, body: noise(LARGE_BYTES, 77)[start..].to_vec(), ..Reply::default() };
            if start > 0 {
                reply.status = 206;
                reply.set("Content-Range", "bytes 500000-2999999/3000000");
            }
            told.into_iter().for_each(|tag| reply.set("ETag", tag));
        });
        let home = Home::new();
        let run = Run::new(&mut home.download(&hub, &[&name])).succeeds();
        assert!(fs::read(run.stdout.trim_end()).unwrap() == noise(LARGE_BYTES, 77), "{told:?}");
        assert!(run.stderr.contains("the file on the server has changed"), "{}", run.stderr);
    }
    // Without a tag no range can be requested.
    let hub = without_sums(3, |_, count, reply| {
        reply.headers.clear();
        reply.cut = (count == 0).then_some(500_000);
    });
    let run = Run::new(&mut Home::new().download(&hub, &[&name, "--folder", "x"])).succeeds();
    assert_eq!((run.stdout.trim_end(), asked(&hub)), (&*format!("x/{LARGE}"), vec![(None, None); 2]));
}

#[test]
fn a_server_that_gets_no_further_is_asked_a_few_times() {
    for (kind, words) in [("damaged", "wrong checksum"), ("416", "cannot resume"), ("range", "1-2999999")] {
        let hub = of_large(move |seen, _, reply| match &seen.range {
            None => {
                reply.body[7] ^= u8::from(kind == "damaged");
                reply.cut = Some(1_500_000);
            }
            Some(_) if kind == "416" => *reply = Reply::new(416, &[], ""),
            Some(_) if kind == "range" => reply.set("Content-Range", "bytes 1-2999999/3000000"),
            Some(_) => {}
        });
        let run = Run::new(&mut Home::new().download(&hub, &["4b"]));
        assert!(run.stderr.contains(words), "{}", run.stderr);
        run.fails(1, &[]);
        assert!(ranges(&hub, LARGE).len() <= 6, "{kind}");
    }
    // Each attempt gets a bit further, from the start.
    let hub = of_large(|_, count, reply| {
        let body = noise(LARGE_BYTES, 3);
        let cut = Some(100_000 * (count + 1));
        *reply = Reply { status: 200, body, cut, ..Reply::default() };
    });
    Run::new(&mut Home::new().download(&hub, &["4b"])).fails(1, &["was interrupted"]);
}

/// Starts a server whose first response never ends; it closes all other connections.
fn endless(first: &'static str, again: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let mut streams = listener.incoming().flatten();
        let mut stream: TcpStream = streams.next().expect("a connection");
        std::thread::spawn(move || {
            let mut sent = stream.write_all(first.as_bytes());
            while sent.is_ok() {
                std::thread::sleep(Duration::from_millis(100));
                sent = stream.write_all(again.as_bytes());
            }
        });
        streams.for_each(drop);
    });
    url
}

#[test]
fn answers_that_go_on_and_on_are_given_up() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
    for (first, again) in [(head, " "), ("", "HTTP/1.1 100 Continue\r\n\r\n"), ("HTTP/1.1 200 OK\r\n", "X: y\r\n")] {
        let start = Instant::now();
        let mut download = Home::new().download_from(&endless(first, again), &["4b"]);
        Run::new(download.env("HF_HUB_DOWNLOAD_TIMEOUT", "1").current_dir("/")).fails(1, &["timeout", "HF_ENDPOINT"]);
        assert!(start.elapsed() < Duration::from_secs(30), "{first:?} {again:?}");
    }
}

#[test]
fn a_server_on_this_machine_is_asked_without_a_proxy() {
    let proxy = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", proxy.local_addr().expect("an address"));
    let secret = "hf_secret";
    for name in ["HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"] {
        let hub = Hub::start(Content { token: Some(secret), ..small() }, fine);
        let url = hub.url().replace("127.0.0.1", "LocalHost");
        let home = Home::new();
        Run::new(home.download_from(&url, &["4b"]).env("HF_TOKEN", secret).env(name, &address)).succeeds();
        home.has(&hub, is_read);
    }
    proxy.set_nonblocking(true).unwrap();
    let asked = proxy.accept().map(|(stream, _)| {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).map(|_| line)
    });
    assert!(asked.is_err(), "{asked:?}");
}

#[test]
fn a_wrong_checksum_is_fetched_again_and_never_gets_a_name() {
    for file in [LARGE, "model_index.json"] {
        for times in [1, usize::MAX] {
            let hub = Hub::start(small(), move |seen, count, reply| {
                if seen.path.ends_with(file) && reply.body.len() > 10 && count < times {
                    reply.body[7] ^= 1;
                }
            });
            let home = Home::new();
            let run = Run::new(&mut home.download(&hub, &["4b"]));
            assert!(run.stderr.contains(&format!("{file}: wrong checksum")), "{}", run.stderr);
            if times == 1 {
                run.succeeds();
                home.has(&hub, is_read);
            } else {
                run.fails(1, &["wrong checksum", "hint: the file on the server is damaged"]);
                assert!(!home.snapshot(KLEIN).exists(), "{file}");
            }
        }
    }
}

#[test]
fn sizes_that_are_not_true_take_no_more_of_the_disk_than_was_told() {
    // Longer than in the list, with and without a header that says so, and shorter.
    for (bytes, words) in [(LARGE_BYTES + 5000, "sends 3005000 bytes"), (LARGE_BYTES - 5000, "sends 2995000 bytes")] {
        let hub = of_large(move |_, _, reply| {
            reply.body = noise(bytes, 3);
        });
        let home = Home::new();
        Run::new(&mut home.download(&hub, &["4b"])).fails(1, &[words, "reported 3000000"]);
        assert!(!home.snapshot(KLEIN).exists());
    }
    let hub = of_large(|_, _, reply| {
        reply.body = noise(LARGE_BYTES + 5000, 3);
        reply.set("Transfer-Encoding", "identity");
        reply.length = Some(LARGE_BYTES);
    });
    let home = Home::new();
    Run::new(&mut home.download(&hub, &["4b"])).succeeds(); // the data after the end are not read
    home.has(&hub, is_read);
}

/// Checks that a response with `status` is retried.
fn is_asked_again(status: u16) {
    let hub = Hub::start(small(), move |seen, count, reply| {
        let is_asked = seen.path.contains("/revision/") || seen.path.contains("/tree/") || is_large(seen);
        if is_asked && count < 2 {
            *reply = Reply::new(status, &[("Retry-After", if count == 0 { "1" } else { "0" })], "");
        }
    });
    let home = Home::new();
    let start = Instant::now();
    let run = Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    let told = &run.stderr;
    assert!(told.contains(&format!("status {status}")) && told.contains("retrying in 1 s"), "{told}");
    assert!(start.elapsed() >= Duration::from_secs(3), "{status}");
    home.has(&hub, is_read);
}

#[test]
fn a_busy_server_is_asked_again_after_the_wait_that_it_names() {
    // In parallel, because they wait.
    thread::scope(|scope| {
        for status in [408, 429, 500, 502, 503, 504] {
            scope.spawn(move || is_asked_again(status));
        }
    });
    let hub = Hub::start(small(), |_, _, reply| *reply = Reply::new(503, &[], ""));
    Run::new(&mut Home::new().download(&hub, &["4b"])).fails(1, &["status 503", "try again later"]);
    assert_eq!(hub.take_seen().len(), 5);
    let hub = Hub::start(small(), |_, _, reply| *reply = Reply::new(429, &[("Retry-After", "86400")], ""));
    Run::new(&mut Home::new().download(&hub, &["4b"])).fails(1, &["status 429", "86400 seconds"]);
}

#[test]
fn connections_that_are_closed_or_say_nothing_are_made_again() {
    let hub = Hub::start(small(), |seen, count, reply| {
        reply.silent = count == 0 && !seen.path.contains(".json");
    });
    let home = Home::new();
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    home.has(&hub, is_read);

    // A server that holds a connection open and sends nothing.
    let hub = of_large(|_, count, reply| {
        if count == 0 {
            reply.delay = Duration::from_secs(4);
        }
    });
    let home = Home::new();
    Run::new(home.download(&hub, &["4b"]).env("HF_HUB_DOWNLOAD_TIMEOUT", "1")).succeeds();
    assert_eq!(ranges(&hub, LARGE).len(), 2);
    home.has(&hub, is_read);
}

#[test]
fn a_slow_server_is_waited_for() {
    let hub = of_large(|_, _, reply| {
        reply.pause = Duration::from_millis(30);
    });
    let home = Home::new();
    Run::new(home.download(&hub, &["4b"]).env("HF_HUB_DOWNLOAD_TIMEOUT", "1")).succeeds();
    assert_eq!(ranges(&hub, LARGE), [""], "it took longer than the timeout of a read");
}

#[test]
fn a_server_that_sends_too_little_is_asked_again_and_then_given_up() {
    let hub = of_large(|_, _, reply| {
        reply.pause = Duration::from_millis(400);
    });
    let home = Home::new();
    let download = |speed: &str| {
        let mut download = home.download(&hub, &["4b"]);
        Run::new(download.env("HF_HUB_DOWNLOAD_TIMEOUT", "1").env("FLUX_DOWNLOAD_MIN_SPEED", speed))
    };
    download("1000000").fails(1, &["bytes per second", "FLUX_DOWNLOAD_MIN_SPEED"]);
    let asked = ranges(&hub, LARGE);
    assert!(asked.len() == 5 && asked[1..].iter().all(|range| range.starts_with("bytes=")), "{asked:?}");
    download("fast").fails(2, &["FLUX_DOWNLOAD_MIN_SPEED", "not a number"]);
}

#[test]
fn redirections_are_followed_and_the_token_stays_at_home() {
    let secret = "hf_secret";
    let hub = Hub::start(Content { token: Some(secret), ..small() }, |seen, _, reply| {
        // A renamed repository: the old name redirects to the new one on the same server.
        if let Some(file) = seen.path.strip_prefix(&format!("/{KLEIN}/resolve/{COMMIT}/"))
            && file.starts_with("vae/")
        {
            let new = format!("/{KLEIN}/resolve/main/{file}");
            *reply = Reply::new(307, &[("Location", &new)], "");
        }
        if seen.path.contains("/scheduler/") && seen.path.contains(COMMIT) {
            *reply = Reply::new(302, &[("Location", "../../main/scheduler/scheduler_config.json")], "");
        }
    });
    let home = Home::new();
    let run = Run::new(home.download(&hub, &["4b"]).env("HF_TOKEN", secret)).succeeds();
    assert!(!run.stdout.contains(secret) && !run.stderr.contains(secret));
    home.has(&hub, is_read);
    let (other, own): (Vec<_>, Vec<_>) = hub.take_seen().into_iter().partition(|seen| seen.path.starts_with("/cdn/"));
    assert!(other.len() >= 4 && other.iter().all(|seen| seen.authorization.is_none()), "{other:?}");
    assert!(own.iter().all(|seen| seen.authorization.is_some()), "{own:?}");
}

#[test]
fn redirections_that_lead_nowhere_end() {
    for (target, words) in [
        ("/api/models/x", "more than 10 times"),
        ("file:///etc/passwd", "not an HTTP address"),
        ("gopher://a/b", "not an HTTP address"),
        ("http://127.0.0.1:9/x", "cannot reach"),
        ("http://\u{1b}[31m/", "no"),
    ] {
        let hub = Hub::start(small(), move |_, _, reply| *reply = Reply::new(302, &[("Location", target)], ""));
        let run = Run::new(&mut Home::new().download(&hub, &["4b"])).fails(1, &[words]);
        assert!(!run.stderr.contains('\u{1b}'), "{target}: {}", run.stderr);
    }
}

#[test]
fn an_address_that_has_ended_is_asked_for_again() {
    static HAS_ENDED: AtomicBool = AtomicBool::new(false);
    let hub = of_large(|_, count, reply| match count {
        0 => reply.cut = Some(1_500_000),
        1 => {
            HAS_ENDED.store(true, Ordering::SeqCst);
            *reply = Reply::new(403, &[], "");
        }
        _ => {}
    });
    let home = Home::new();
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    assert!(HAS_ENDED.load(Ordering::SeqCst));
    let asked = hub.take_seen().iter().filter(|seen| seen.path == format!("/{KLEIN}/resolve/{COMMIT}/{LARGE}")).count();
    assert_eq!(asked, 3);
    home.has(&hub, is_read);
}

#[test]
fn a_server_that_cannot_be_reached_is_told_with_what_to_do() {
    let home = Home::new();
    Run::new(&mut home.download_from("http://127.0.0.1:9", &["4b"]))
        .fails(1, &["cannot reach http://127.0.0.1:9", "HF_ENDPOINT", "HF_HUB_OFFLINE"]);
    Run::new(&mut home.download_from("http://no-such-host.invalid", &["4b"])).fails(1, &["cannot reach", "network"]);
    for url in ["file:///etc", "--upload-file=/etc/passwd", "http://", "ftp://a", "http://user:word@host", "http://a b"]
    {
        Run::new(&mut home.download_from(url, &["4b"])).fails(2, &["HF_ENDPOINT is", "expected http"]);
    }
    // TLS to a server without TLS.
    let hub = Hub::start(small(), fine);
    Run::new(&mut home.download_from(&hub.url().replace("http:", "https:"), &["4b"])).fails(1, &["cannot reach"]);
}
