//! ComfyUI's API: refused requests, and the isolation of clients.

use std::fs;

use serde_json::json;

use super::comfy::{endless_graph, files, graph, half_transparent, history, post, upload};
use super::*;
use crate::program::{Run, flux};
use crate::websocket::{CLOSE, PING, PONG, TEXT};

/// Returns the status and kind of an error, and the node that it names.
fn wrong(reply: &Reply) -> (u16, String, String) {
    let told = reply.json();
    let nodes = told["node_errors"].as_object().unwrap_or_else(|| panic!("no node_errors: {told}"));
    let (id, error) = nodes.iter().next().map_or((String::new(), &told["error"]), |(id, node)| {
        assert!(node["class_type"].is_string() && node["dependent_outputs"].is_array(), "{told}");
        (id.clone(), &node["errors"][0])
    });
    for key in ["type", "message", "details"] {
        assert!(error[key].is_string() && told["error"][key].is_string(), "{told}");
    }
    (reply.status, error["type"].as_str().unwrap().to_string(), id)
}

#[test]
fn graphs_that_cannot_be_honoured_are_refused_by_the_node() {
    let serving = Serving::start(&["--max-pixels", "16384"]);
    let ask = |body: Value| {
        let (status, kind, node) = wrong(&serving.post("/prompt", &body));
        format!("{status} {kind} {node}")
    };
    let with = |pointer: &str, value: Value| {
        let mut graph = graph("text_to_image_distilled");
        *graph.pointer_mut(pointer).unwrap() = value;
        json!({"prompt": graph})
    };
    assert_eq!(ask(json!({})), "400 no_prompt ");
    assert_eq!(ask(json!({"prompt": []})), "400 invalid_prompt ");
    assert_eq!(ask(json!({"prompt": {}})), "400 prompt_no_outputs ");
    assert_eq!(ask(json!({"prompt": graph("krita_inpaint")})), "400 missing_node_type 19");
    assert_eq!(ask(with("/77:70/inputs/unet_name", json!(7))), "400 invalid_input_type 77:70");
    assert_eq!(ask(with("/77:64/inputs/noise", json!(["77:64", 0]))), "400 return_type_mismatch 77:64");
    assert_eq!(ask(with("/77:76/inputs/conditioning", json!(["77:76", 0]))), "400 dependency_cycle 77:76");
    assert_eq!(ask(with("/77:65/inputs/samples", json!(["1", 0]))), "400 bad_linked_input 77:65");
    assert_eq!(ask(with("/77:65/inputs/samples", json!(["77:64", 9]))), "400 bad_linked_input 77:65");
    assert_eq!(
        ask(with("/77:68/inputs/value", json!(1024))),
        "400 custom_validation_failed 77:64",
        "the engine says so"
    );
    assert_eq!(ask(json!({"prompt": graph("image_edit")})), "400 custom_validation_failed 76", "no such image");
    let some = graph("text_to_image_distilled");
    assert_eq!(ask(json!({"prompt": some, "prompt_id": ""})), "400 invalid_value ");
    assert_eq!(ask(json!({"prompt": some, "partial_execution_targets": ["1"]})), "400 prompt_no_outputs ");
    let node =
        |id: usize| json!({"class_type": "ConditioningZeroOut", "inputs": {"conditioning": [id.to_string(), 0]}});
    let many: serde_json::Map<_, _> = (0..10_000).map(|id| (id.to_string(), node(id + 1))).collect();
    assert_eq!(ask(json!({"prompt": many})), "400 invalid_prompt ");
    let send = |body: &[u8]| wrong(&serving.ask("POST", "/prompt", &["Content-Type: application/json"], body));
    assert_eq!(send(b"{").1, "invalid_json");
    assert_eq!(send(&[vec![b'['; 100_000], vec![b']'; 100_000]].concat()).1, "invalid_json");
    let deep = format!("{{\"prompt\": {}1{}}}", "{\"a\":".repeat(200), "}".repeat(200));
    assert_eq!(send(deep.as_bytes()).1, "invalid_json");

    let id = "0b6de4c5-9b6c-4b1c-9c39-3d7ee0d0a3a1";
    let reply = serving.post("/prompt", &json!({"prompt": some, "prompt_id": id, "front": true, "number": 3}));
    assert_eq!((reply.status, &reply.json()["prompt_id"]), (200, &json!(id)), "{}", reply.json());
    assert!(reply.json()["flux"]["notes"].to_string().contains("`number`"));
    assert_eq!(ask(json!({"prompt": some, "prompt_id": id})), "400 invalid_value ");
    let strict = Serving::start(&["--strict-models"]);
    let reply = strict.post("/prompt", &json!({"prompt": some}));
    assert_eq!(wrong(&reply), (400, "value_not_in_list".to_string(), "77:70".to_string()));
}

#[test]
fn pages_of_others_open_no_socket() {
    let serving = Serving::start(&["--cors", "https://friend.example"]);
    let own = format!("Origin: http://{}", serving.address);
    assert!(serving.socket("/ws", &[&own]).is_ok());
    assert!(serving.socket("/ws", &["Origin: https://friend.example"]).is_ok());
    let refused = |head: &[&str]| serving.socket("/ws?clientId=x", head).expect_err("it is refused").error().1;
    assert_eq!(refused(&["Origin: https://evil.example"]), "forbidden_origin");
    assert_eq!(refused(&["Origin: null"]), "forbidden_origin");
    assert_eq!(refused(&["Host: evil.example"]), "unknown_host");
    let long = format!("/ws?clientId={}", "x".repeat(129));
    assert_eq!(serving.socket(&long, &[]).expect_err("it is refused").status, 400);
    let plain = serving.get("/ws");
    assert_eq!((plain.status, &plain.json()["error"]["type"]), (400, &json!("no_websocket")));
    assert_eq!(serving.ask("POST", "/prompt", &["Sec-Fetch-Site: cross-site"], b"{}").error().1, "forbidden_origin");
}

#[test]
fn a_key_is_needed_and_owns_what_it_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let new = |name: &str| {
        let run = Run::new(flux().args(["key", name])).succeeds();
        (run.stderr.split('`').nth(1).expect("the key").to_string(), run.stdout)
    };
    let ((alice, first), (bob, second)) = (new("alice"), new("bob"));
    fs::write(&path, format!("{first}{second}")).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let serving = Serving::start(&["--api-keys", path.to_str().unwrap()]);
    let token = format!("/ws?token={alice}");
    let [alice, bob] = [alice, bob].map(|key| format!("Authorization: Bearer {key}"));
    let json_type = "Content-Type: application/json";
    let ask = |head: &str, method: &str, path: &str, body: &[u8]| serving.ask(method, path, &[head, json_type], body);
    for path in ["/prompt", "/object_info", "/queue", "/history", "/view?filename=x", "/system_stats", "/api/features"]
    {
        assert_eq!(serving.get(path).error().1, "invalid_api_key", "{path}");
    }
    assert_eq!(serving.socket(&token, &[]).expect_err("no key").error().1, "invalid_api_key");
    assert!(serving.socket("/ws", &[&alice]).is_ok());
    let form = crate::serving::form(&[("image", Some("secret.png"), &png(64, 64, [9; 3]))]);
    let form_type = "Content-Type: multipart/form-data; boundary=XXX";
    assert_eq!(serving.ask("POST", "/upload/image", &[&alice, form_type], &form).status, 200);
    let view = "/view?filename=secret.png&type=input";
    assert_eq!((ask(&alice, "GET", view, b"").status, ask(&bob, "GET", view, b"").status), (200, 404));
    let mut edit = graph("image_edit");
    edit["76"]["inputs"]["image"] = json!("secret.png");
    let edit = json!({"prompt": edit}).to_string();
    assert_eq!(wrong(&ask(&bob, "POST", "/prompt", edit.as_bytes())).1, "custom_validation_failed");

    let mut spy = serving.socket("/ws?clientId=me", &[&bob]).expect("a socket");
    let mut own = serving.socket("/ws?clientId=me", &[&alice]).expect("a socket");
    let body = json!({"prompt": endless_graph(), "client_id": "me"}).to_string();
    let id = ask(&alice, "POST", "/prompt", body.as_bytes()).json()["prompt_id"].as_str().unwrap().to_string();
    let running = || ask(&alice, "GET", "/queue", b"").json()["queue_running"].as_array().unwrap().len();
    until("it runs", || running() == 1);
    assert_eq!(ask(&bob, "GET", "/queue", b"").json(), json!({"queue_running": [], "queue_pending": []}));
    for (path, body) in
        [("/interrupt", json!({})), ("/interrupt", json!({"prompt_id": id})), ("/queue", json!({"clear": true}))]
    {
        assert_eq!(ask(&bob, "POST", path, body.to_string().as_bytes()).status, 200);
    }
    assert_eq!(running(), 1, "it is not his");
    assert_eq!(ask(&alice, "POST", "/interrupt", b"{}").status, 200);
    own.until_over(&id);
    assert_eq!(ask(&bob, "GET", &format!("/history/{id}"), b"").json(), json!({}));
    assert_eq!(ask(&alice, "GET", &format!("/history/{id}"), b"").json()[&id]["status"]["status_str"], "error");
    assert_eq!(spy.message().unwrap().unwrap()["type"], "status", "the first message, and nothing of hers");
    spy.send(TEXT, br#"{"type": "feature_flags"}"#);
    assert_eq!(spy.message().unwrap().unwrap()["type"], "feature_flags");
}

#[test]
fn frames_that_are_none_end_a_socket_and_nothing_else() {
    let serving = Serving::start(&[]);
    let open = || {
        let mut socket = serving.socket("/ws", &[]).expect("a socket");
        assert_eq!(socket.message().unwrap().unwrap()["type"], "status");
        socket
    };
    let broken =
        [&b"\x81\x05hello"[..], b"\xff\xff\xff\xff", b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x88\x80\0\0\0\0"];
    // All are open at once, because the server waits for the end of each.
    let mut sockets: Vec<_> = broken.map(|bytes| (bytes, open())).into();
    for (bytes, socket) in &mut sockets {
        socket.send_bytes(bytes);
    }
    let mut large = open();
    large.send(TEXT, &vec![b' '; 100_000]);
    assert!(large.message().is_none(), "a message is too long");
    for (bytes, socket) in &mut sockets {
        assert!(socket.message().is_none(), "{bytes:?}");
    }
    let mut fine = open();
    for text in [&b"no JSON"[..], b"[]", b"{\"type\": 1}", b"\"x\""] {
        fine.send(TEXT, text);
    }
    fine.send(PING, b"x");
    loop {
        match fine.frame().expect("it is open") {
            (PONG, bytes) => break assert_eq!(bytes, b"x"),
            (PING, _) => {}
            other => panic!("{other:?}"),
        }
    }
    let mut replaced = serving.socket("/ws?clientId=x", &[]).expect("a socket");
    let _again = serving.socket("/ws?clientId=x", &[]).expect("a socket");
    assert!(replaced.message().unwrap().is_ok() && replaced.message().is_none(), "another one took its name");
    let many: Vec<_> = (0..100).map(|_| open()).collect();
    drop(many);
    assert_eq!(serving.get("/healthz").status, 200);
}

#[test]
fn sockets_end_with_the_server_and_hear_of_the_last_prompt() {
    let mut serving = Serving::start(&[]);
    let mut socket = serving.socket("/ws?clientId=me", &[]).expect("a socket");
    let (id, _) = post(&serving, &graph("text_to_image_distilled"), "me");
    serving.signal("TERM");
    let heard: Vec<_> = socket.until_over(&id).into_iter().flatten().collect();
    assert!(heard.iter().any(|message| message["type"] == "execution_success"));
    let end = std::iter::from_fn(|| socket.frame()).find(|(kind, _)| *kind == CLOSE);
    assert_eq!(end.expect("a close").1[..2], 1001_u16.to_be_bytes());
    assert_eq!(serving.end(), Some(0));
}

#[test]
fn images_are_sent_under_names_that_are_no_paths() {
    let serving = Serving::start(&[]);
    let (first, second) = (png(64, 64, [1; 3]), png(64, 64, [2; 3]));
    let named = |name: &str, bytes: &[u8]| upload(&serving, name, bytes)["name"].as_str().unwrap().to_string();
    assert_eq!(
        [named("a.png", &first), named("a.png", &first), named("a.png", &second)],
        ["a.png", "a.png", "a (1).png"]
    );
    let send = |parts: &[crate::serving::Part<'_>]| serving.form("/api/upload/image", parts);
    let image = ("image", Some("a.png"), &second[..]);
    assert_eq!(
        send(&[image, ("overwrite", None, b"true"), ("subfolder", None, b"my/own")]).json(),
        json!({"name": "a.png", "subfolder": "my/own", "type": "input"})
    );
    let view = |query: &str| serving.get(&format!("/view?{query}"));
    assert_eq!(view("filename=a.png&type=input&subfolder=my/own").body, second);
    assert_eq!(view("filename=a.png&type=input").body, first);
    assert_eq!(view("filename=a.png").status, 404, "what is drawn is elsewhere");
    for name in ["../a.png", "/etc/passwd", "a/b.png", "..", "a\\b.png", ""] {
        let reply = send(&[("image", Some(name), &first)]);
        assert!((400..500).contains(&reply.status), "{name}: {}", reply.status);
    }
    for query in [
        "filename=../../etc/passwd",
        "filename=/etc/passwd&type=input",
        "filename=a.png&subfolder=..",
        "type=input",
        "filename=a.png&type=models",
        "filename=%00&type=input",
    ] {
        assert!((400..500).contains(&view(query).status), "{query}");
    }
    assert_eq!(send(&[("image", Some("x.png"), b"no image")]).status, 400);
    assert_eq!(send(&[("file", Some("x.png"), &first)]).status, 400);
    assert_eq!(send(&[image, image]).status, 400);
    assert_eq!(send(&[image, ("type", None, b"output")]).status, 400);
    assert_eq!(serving.post("/upload/image", &json!({})).status, 400);
    let shown = view("filename=a.png&type=input&preview=jpeg;50");
    assert_eq!((shown.header("content-type"), &shown.body[..2]), (Some("image/jpeg"), &[0xff, 0xd8][..]));
    assert_eq!(view("filename=a.png&type=input&preview=webp").header("content-type"), Some("image/webp"));
    assert_eq!(view("filename=a.png&type=input&channel=rgb").status, 200);
    assert_eq!(view("filename=a.png&type=input&channel=a").status, 400);

    // A mask is laid over an uploaded image.
    let original = br#"{"filename": "a.png", "subfolder": "", "type": "input"}"#;
    let mask = half_transparent();
    let parts: [crate::serving::Part<'_>; 4] = [
        ("image", Some("clipspace-mask.png"), &mask),
        ("original_ref", None, original),
        ("type", None, b"input"),
        ("subfolder", None, b"clipspace"),
    ];
    let reply = serving.form("/upload/mask", &parts);
    assert_eq!((reply.status, &reply.json()["subfolder"]), (200, &json!("clipspace")), "{}", reply.json());
    let mut inpaint = graph("inpaint");
    inpaint["4"]["inputs"]["image"] = json!("clipspace/clipspace-mask.png [input]");
    let (id, _) = post(&serving, &inpaint, "");
    let drawn = history(&serving, &id);
    let drawn = flux::input::read_bytes(&files(&serving, &drawn, "16")[0]).unwrap();
    assert!(drawn.bytes[3 * 64 * 32..].iter().all(|value| *value == 1), "where the mask is opaque, the image stays");
    let gone = serving.form("/upload/mask", &[parts[0], ("original_ref", None, br#"{"filename": "none.png"}"#)]);
    assert_eq!(gone.status, 400);
    let other = png(32, 32, [1; 3]);
    let small = serving.form("/upload/mask", &[("image", Some("m.png"), &other), parts[1]]);
    assert_eq!(small.status, 200, "one that is opaque all over masks nothing, whatever its size");
}
