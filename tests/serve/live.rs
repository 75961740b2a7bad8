//! `/v1/live`: frames in and images out over a socket.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flux::metadata::Metadata;
use flux::output::{Rgb, encode_jpeg};
use serde_json::{Value, json};

use super::{Serving, images, small, until, with};
use crate::program::{Run, flux};
use crate::websocket::{BINARY, Socket, TEXT};

/// Returns a frame that differs from those of other numbers.
fn frame(number: u32) -> Vec<u8> {
    let bytes = (0..64 * 64).flat_map(|i| [(i % 64 * 3) as u8, (40 * number % 250) as u8, (i / 64) as u8]).collect();
    encode_jpeg(&Rgb { width: 64, height: 64, bytes }, 90, &Metadata::default()).expect("a JPEG")
}

fn say(socket: &mut Socket, text: &Value) {
    socket.send(TEXT, text.to_string().as_bytes());
}

fn show(socket: &mut Socket, number: u32, file: &[u8]) {
    socket.send(BINARY, &[&number.to_be_bytes()[..], file].concat());
}

/// Returns the next image: its number, and its pixels.
fn image(socket: &mut Socket) -> (u32, Rgb) {
    let bytes = socket.message().expect("the socket is open").expect_err("an image");
    let number = bytes.first_chunk().map(|number| u32::from_be_bytes(*number)).expect("a number");
    (number, flux::input::read_bytes(&bytes[4..]).expect("a JPEG"))
}

/// Returns the next error: its number, and its code.
fn wrong(socket: &mut Socket) -> (Value, String) {
    let text = socket.message().expect("the socket is open").expect("an error");
    (text["number"].clone(), text["error"]["code"].as_str().unwrap_or_default().to_string())
}

fn running(serving: &Serving) -> Value {
    serving.get("/readyz").json()["running"].clone()
}

#[test]
fn a_frame_becomes_the_image_that_other_routes_make_of_it_and_the_newest_wins() {
    let serving = Serving::start(&[]);
    let mut socket = serving.socket("/v1/live", &[]).expect("a socket");
    say(&mut socket, &json!({"prompt": "a red circle", "steps": 1, "seed": 5}));
    show(&mut socket, 7, &frame(1));
    let (number, made) = image(&mut socket);
    assert_eq!(number, 7);
    let edited = serving.form(
        "/v1/images/edits",
        &[
            ("prompt", None, b"a red circle"),
            ("steps", None, b"1"),
            ("seed", None, b"5"),
            ("output_format", None, b"jpeg"),
            ("output_compression", None, b"85"),
            ("image", Some("frame.jpg"), &frame(1)),
        ],
    );
    assert!(made == flux::input::read_bytes(&images(&edited)[0]).unwrap());
    // If frames come faster than images, the newest is used.
    (1..=20).for_each(|number| show(&mut socket, number, &frame(number)));
    let mut numbers = Vec::new();
    while numbers.last() != Some(&20) {
        numbers.push(image(&mut socket).0);
    }
    assert!(numbers.is_sorted() && numbers.len() < 15, "{numbers:?}");
}

#[test]
fn an_image_begins_with_a_part_of_the_one_before_as_in_flux_live() {
    let serving = Serving::start(&[]);
    let mut socket = serving.socket("/v1/live", &[]).expect("a socket");
    let fields = |feedback: f64| json!({"prompt": "a red circle", "steps": 2, "seed": 5, "feedback": feedback});
    let shown = |socket: &mut Socket| {
        show(socket, 1, &frame(1));
        image(socket).1
    };
    let mut made = |feedback: f64| {
        say(&mut socket, &fields(feedback));
        shown(&mut socket)
    };
    let plain = made(0.0);
    assert!(made(0.5) == plain, "the image before kept nothing");
    let second = made(0.5);
    assert!(second != plain, "it begins with a part of the one before");
    assert!(made(0.0) == plain, "and no more where that is not asked for");
    assert!(made(0.5) == plain, "as at first");
    // An invalid request leaves the previous image as it is.
    say(&mut socket, &with(fields(0.5), json!({"loras": [{"name": "none"}]})));
    show(&mut socket, 2, &frame(1));
    assert_eq!(wrong(&mut socket).0, 2);
    say(&mut socket, &fields(0.5));
    assert!(shown(&mut socket) == second);
    // A single field leaves the other fields as they are.
    say(&mut socket, &json!({"feedback": 0}));
    assert!(shown(&mut socket) == plain);
    say(&mut socket, &json!({"feedback": 0.5}));
    assert!(shown(&mut socket) == plain && shown(&mut socket) == second);
}

#[test]
fn words_that_change_end_what_is_made_of_those_before() {
    let serving = Serving::start(&[]);
    let mut socket = serving.socket("/v1/live", &[]).expect("a socket");
    say(&mut socket, &with(small("x"), json!({"size": "512x512", "steps": 1000, "draw": 1})));
    until("the first image is begun", || running(&serving) == 1);
    say(&mut socket, &with(small("a red circle"), json!({"draw": 2})));
    let (number, made) = image(&mut socket);
    assert_eq!((number, made.width), (2, 64));
    say(&mut socket, &json!({"draw": 3}));
    assert!(image(&mut socket) == (3, made), "what was said holds on");
    // The work of a disconnected client ends.
    say(&mut socket, &with(small("x"), json!({"size": "512x512", "steps": 1000, "draw": 4})));
    until("it is begun", || running(&serving) == 1);
    drop(socket);
    until("it has ended", || running(&serving) == 0);
}

#[test]
fn what_is_wrong_is_told_and_the_socket_stays_open() {
    let serving = Serving::start(&[]);
    let mut socket = serving.socket("/v1/live", &[]).expect("a socket");
    for (text, number, code) in [
        ("nonsense", Value::Null, "invalid_value"),
        ("[1]", Value::Null, "invalid_value"),
        (r#"{"prompt": "x", "draw": -1}"#, Value::Null, "invalid_value"),
        (r#"{"prompt": "x", "draw": 4294967296}"#, Value::Null, "invalid_value"),
        (r#"{"prompt": "x", "promt": "y", "draw": 5}"#, 5.into(), "unknown_parameter"),
        (r#"{"prompt": "x", "feedback": 1, "draw": 5}"#, Value::Null, "invalid_value"),
        (r#"{"prompt": "x", "feedback": 0.3, "strength": 0.5}"#, Value::Null, "invalid_value"),
        (r#"{"prompt": "x", "n": 2, "draw": 5}"#, 5.into(), "unsupported_value"),
        (r#"{"prompt": "x", "stream": true, "draw": 5}"#, 5.into(), "unsupported_value"),
        (r#"{"prompt": "x", "response_format": "url", "draw": 5}"#, 5.into(), "unsupported_value"),
        (r#"{"prompt": "x", "partial_images": 1, "draw": 5}"#, 5.into(), "unsupported_value"),
        (r#"{"steps": 1, "draw": 6}"#, 6.into(), "missing_required_parameter"),
        (r#"{"prompt": "x", "size": "1x1", "draw": 7}"#, 7.into(), "invalid_value"),
    ] {
        socket.send(TEXT, text.as_bytes());
        assert_eq!(wrong(&mut socket), (number, code.to_string()), "{text}");
    }
    socket.send(BINARY, &[1, 2]);
    assert_eq!(wrong(&mut socket).1, "invalid_value");
    say(&mut socket, &json!({"prompt": "a red circle", "steps": 1, "seed": 5}));
    show(&mut socket, 8, &frame(1)[..200]);
    assert_eq!(wrong(&mut socket), (8.into(), "invalid_image".to_string()));
    show(&mut socket, 9, &frame(1));
    assert_eq!(image(&mut socket).0, 9);
    // Messages larger than a frame may be end the socket.
    let start = Instant::now();
    socket.send(BINARY, &vec![0; 9 << 20]);
    assert!(socket.message().is_none() && start.elapsed() < Duration::from_secs(30));
    assert_eq!(serving.get("/healthz").status, 200);
}

#[test]
fn the_rules_of_other_routes_hold_for_sockets() {
    let serving = Serving::start(&[]);
    let refused = |serving: &Serving, head: &[&str]| {
        serving.socket("/v1/live", head).err().map_or((101, String::new()), |reply| {
            (reply.status, reply.json()["error"]["code"].as_str().unwrap_or_default().to_string())
        })
    };
    let own = format!("Origin: http://{}", serving.address);
    assert_eq!(refused(&serving, &[&own]).0, 101);
    assert_eq!(refused(&serving, &["Origin: http://evil.example"]), (403, "forbidden_origin".to_string()));
    assert_eq!(refused(&serving, &["Host: evil.example"]), (403, "unknown_host".to_string()));
    assert_eq!(serving.get("/v1/live").status, 400, "no request but a socket");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let made = Run::new(flux().args(["key", "alice"])).succeeds();
    fs::write(&path, &made.stdout).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let sesame = made.stderr.split('`').nth(1).expect("the key").to_string();
    let serving = Serving::start(&["--api-keys", path.to_str().unwrap()]);
    let key = |key: &str| format!("Sec-WebSocket-Protocol: flux, flux-key.{}", URL_SAFE_NO_PAD.encode(key));
    assert_eq!(refused(&serving, &[]), (401, "invalid_api_key".to_string()));
    assert_eq!(refused(&serving, &[&key("simsim")]), (401, "invalid_api_key".to_string()));
    assert_eq!(refused(&serving, &[&key(&sesame)]).0, 101);
    assert_eq!(refused(&serving, &[&format!("Authorization: Bearer {sesame}")]).0, 101);
}
