use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use axum::body::Bytes;
use axum::routing::{get, post};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;
use crate::http::config::{Limits, Listen};
use crate::http::keys::Keys;
use crate::http::sockets::{self, Place};

const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const UPLOAD: &[u8] = b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf";

/// A server at a TCP address and a Unix socket, with a low connection limit and a short timeout.
struct Server {
    _runtime: Runtime,
    _stop: watch::Sender<bool>,
    folder: TempDir,
    address: SocketAddr,
}

impl Server {
    fn start(silence: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listen = [Listen::Address(([127, 0, 0, 1], 0).into()), Listen::Socket(folder.path().join("flux.sock"))];
        let mut config = Config::new(listen.to_vec(), Keys::none());
        config.limits = Limits { connections: [32, 8], silence, ..Limits::default() };
        let runtime = Runtime::new().unwrap();
        let inside = runtime.enter();
        let listeners = sockets::open(&config).unwrap();
        drop(inside);
        let Place::Address(address) = listeners[0].place else { panic!("the first place is an address") };
        let slow = || async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            "late"
        };
        let routes = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/slow", get(slow))
            .route("/upload", post(|_: Bytes| async { "taken" }));
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(async move { serve(listeners, routes, None, &config, stopped).await });
        Self { _runtime: runtime, _stop: stop, folder, address }
    }

    fn connect(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("flux.sock")
    }
}

/// Returns `true` if the other end sends a response that contains this text.
fn is_answered(stream: &mut impl Read, text: &str) -> bool {
    let (mut answer, mut bytes) = (Vec::new(), [0; 1024]);
    while !String::from_utf8_lossy(&answer).contains(text) {
        match stream.read(&mut bytes) {
            Ok(read) if read > 0 => answer.extend_from_slice(&bytes[..read]),
            _ => return false,
        }
    }
    true
}

fn is_closed(stream: &mut TcpStream) -> bool {
    !matches!(stream.read(&mut [0; 1024]), Ok(1..))
}

#[test]
fn idle_connections_make_room_for_others_the_oldest_first() {
    let server = Server::start(Duration::from_secs(60));
    let mut idle: Vec<_> = [b"".as_slice(), b"GET / HTTP/1.1\r\nHo", UPLOAD]
        .into_iter()
        .flat_map(|bytes| (0..20).map(move |_| bytes))
        .map(|bytes| server.connect(bytes))
        .collect();
    let mut kept = server.connect(ASK);
    assert!(is_answered(&mut kept, "here"), "a client is served while 60 others are stalled");
    assert!(is_closed(&mut idle[0]) && is_closed(&mut idle[20]));
    // A connection with a response in progress is never evicted.
    let mut slow = server.connect(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n");
    thread::sleep(Duration::from_millis(100));
    idle.extend((0..60).map(|_| server.connect(b"")));
    assert!(is_answered(&mut slow, "late"));
    // The other listener has its own limit.
    let mut other = UnixStream::connect(server.socket()).unwrap();
    other.write_all(ASK).unwrap();
    assert!(is_answered(&mut other, "here"));
    let idle_users: Vec<_> = (0..60).map(|_| UnixStream::connect(server.socket()).unwrap()).collect();
    let mut other = UnixStream::connect(server.socket()).unwrap();
    other.write_all(ASK).unwrap();
    assert!(is_answered(&mut other, "here"));
    drop(idle_users);
}

#[test]
fn the_first_byte_the_head_and_the_next_request_have_a_deadline() {
    let server = Server::start(Duration::from_millis(400));
    let start = Instant::now();
    let mut streams = [server.connect(b""), server.connect(b"GET / HTTP/1.1\r\n"), server.connect(ASK)];
    assert!(is_answered(&mut streams[2], "here"));
    // Sending bytes one by one does not extend the deadline.
    for _ in 0..4 {
        let _ = streams[1].write_all(b"x");
        thread::sleep(Duration::from_millis(150));
    }
    assert!(streams.iter_mut().all(is_closed));
    assert!(start.elapsed() > Duration::from_millis(400) && start.elapsed() < Duration::from_secs(10));
    let mut slow = server.connect(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(is_answered(&mut slow, "late"), "a response may take longer");
}

#[test]
fn a_client_with_too_many_connections_loses_its_own_and_those_at_work_stay() {
    let pool = Pool::new(4);
    let who = |last| Who::from(Peer::Address(([10, 0, 0, last], 1).into()));
    let first = pool.admit(who(1), 2).unwrap();
    let second = pool.admit(who(1), 2).unwrap();
    first.activity.begin_answer();
    let third = pool.admit(who(1), 2).unwrap();
    assert_eq!(pool.table.lock().counts[&who(1)], 2, "the idle connection was closed to make room");
    drop(second);
    third.activity.begin_answer();
    assert_eq!(pool.admit(who(1), 2).err(), Some(Full::OfClient));
    let others = [pool.admit(who(2), 2).unwrap(), pool.admit(who(3), 2).unwrap()];
    others.iter().for_each(|other| other.activity.begin_answer());
    assert_eq!(pool.admit(who(4), 2).err(), Some(Full::All));
    others[1].activity.end_answer();
    let last = pool.admit(who(4), 2).unwrap();
    drop((first, third, others, last));
    assert!(pool.table.lock().open.is_empty() && pool.table.lock().counts.is_empty());
}
