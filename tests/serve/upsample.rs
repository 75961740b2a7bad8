//! Prompts that a language model writes for requests to a server.

use std::process::Command;
use std::time::{Duration, Instant};

use super::*;
use crate::chat_server::{Answer, ChatServer};
use crate::program::flux;

const REQUEST: &str = "two red things";
const CAPTION: &str = "two red circles on a teal background";

/// Starts a server with a language model.
fn start(chat: &ChatServer, flags: &[&str]) -> Serving {
    let mut command: Command = flux();
    chat.isolate(command.args(["--device", "cpu"]));
    let mut serving = Serving::from_command(&mut command, flags);
    serving.hears("ready after");
    serving
}

#[test]
fn every_api_has_the_written_prompt() {
    let chat = ChatServer::with_text(CAPTION);
    let serving = start(&chat, &["--upsample-url", &chat.url()]);
    let plain = images(&serving.post("/v1/images/generations", &small(CAPTION)));
    assert!(chat.take_seen().is_empty(), "the address alone rewrites nothing");
    let request = with(small(REQUEST), json!({"upsample": true}));
    let reply = serving.post("/v1/images/generations", &request);
    let pixels = |file: &[u8]| flux::input::read_bytes(file).unwrap().bytes;
    assert!(pixels(&images(&reply)[0]) == pixels(&plain[0]));
    assert_eq!((&reply.json()["data"][0]["revised_prompt"], chat.take_seen().len()), (&json!(CAPTION), 1));
    let recipe = &reply.json()["flux"]["recipes"][0]["recipe"];
    assert_eq!((&recipe["prompt"], &recipe["upsampled"]["request"]), (&json!(CAPTION), &json!(REQUEST)));
    assert!(!reply.json()["flux"].to_string().contains(&chat.url()));

    let stream = with(request.clone(), json!({"stream": true}));
    let events = serving.post("/v1/images/generations", &stream).events();
    assert_eq!(events.last().unwrap().1["revised_prompt"], CAPTION);

    let job = serving.post("/v1/jobs", &request).json()["urls"]["self"].as_str().expect("a path").to_string();
    serving.get(&format!("{job}/events"));
    assert_eq!(serving.get(&format!("{job}/result")).json()["data"][0]["revised_prompt"], CAPTION);

    let body = json!({"prompt": REQUEST, "width": 64, "height": 64, "steps": 1, "upsample": true});
    let info = serving.post("/sdapi/v1/txt2img", &body).json()["info"].as_str().expect("a text").to_string();
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(
        (&info["prompt"], &info["extra_generation_params"]["Upsampled from"]),
        (&json!(CAPTION), &json!(REQUEST))
    );

    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "generate_image", "arguments": request}});
    let head = ["Content-Type: application/json", "Accept: application/json, text/event-stream"];
    let reply = serving.ask("POST", "/mcp", &head, call.to_string().as_bytes());
    assert!(String::from_utf8_lossy(&reply.body).contains(&format!("prompt: {CAPTION}")));

    let [code, field] = ["unsupported_value", "upsample"].map(str::to_string);
    let none = Serving::start(&[]);
    assert_eq!(none.post("/v1/images/generations", &request).error(), (400, code, field));
}

#[test]
fn a_template_is_expanded_first() {
    let chat = ChatServer::with_text(CAPTION);
    let serving = start(&chat, &["--upsample-url", &chat.url()]);
    let template = "two {0::blue|1::red} things";
    let request = |prompt: &str, more: Value| {
        let both = with(small(prompt), json!({"expand": true, "upsample": true}));
        serving.post("/v1/images/generations", &with(both, more))
    };
    let reply = request(template, json!({}));
    let recipe = &reply.json()["flux"]["recipes"][0]["recipe"];
    assert_eq!((&recipe["prompt"], &recipe["template"]), (&json!(CAPTION), &json!(template)));
    assert_eq!(recipe["upsampled"]["request"], REQUEST);
    assert_eq!(reply.json()["data"][0]["revised_prompt"], CAPTION);
    let [code, field] = ["invalid_value", "upsample"].map(str::to_string);
    let several = "{a|b|c|d|e} {a|b|c|d|e} {a|b|c|d|e} {a|b|c|d|e}";
    assert_eq!(request(several, json!({"n": 2})).error(), (400, code, field));
    assert_eq!(images(&request(several, json!({"n": 2, "expand_seed": 1}))).len(), 2);
}

#[test]
fn a_server_may_rewrite_all_prompts_and_a_request_may_refuse() {
    let chat = ChatServer::with_text(CAPTION);
    let serving = start(&chat, &[&chat.flag()]);
    let revised = |more: Value| {
        let reply = serving.post("/v1/images/generations", &with(small(REQUEST), more));
        reply.json()["data"][0]["revised_prompt"].clone()
    };
    assert_eq!(revised(json!({})), json!(CAPTION));
    assert_eq!(revised(json!({"upsample": false})), Value::Null);
    // A recipe of an image is complete.
    let recipe = json!({"prompt": CAPTION, "seed": 5, "width": 64, "height": 64, "steps": 1,
        "upsampled": {"request": REQUEST, "model": "m", "system": "s"}});
    chat.take_seen();
    let job = serving.post("/v1/jobs", &json!({"recipe": recipe})).json()["urls"]["self"].as_str().unwrap().to_string();
    serving.get(&format!("{job}/events"));
    assert!(chat.take_seen().is_empty());
}

#[test]
fn a_slow_language_model_delays_no_other_request_and_is_left_with_its_client() {
    let chat = ChatServer::start(|_, _| Answer::text(CAPTION).after(Duration::from_secs(120)));
    let serving = start(&chat, &["--upsample-url", &chat.url(), "--upsample-timeout", "300"]);
    let request = with(small(REQUEST), json!({"upsample": true}));
    let jobs: Vec<_> = (0..6)
        .map(|seed| {
            let body = with(request.clone(), json!({"prompt": format!("{REQUEST} {seed}")})).to_string();
            let head = ["Content-Type: application/json"];
            serving.begin(&crate::serving::request("POST", "/v1/images/generations", &head, body.as_bytes()))
        })
        .collect();
    until("an owner has half of the turns", || chat.at_once() == 4);
    let start = Instant::now();
    assert_eq!(serving.post("/v1/images/generations", &small("a cat")).status, 200);
    assert!(start.elapsed() < Duration::from_secs(30));
    let late = serving.post("/v1/images/generations", &with(request, json!({"deadline_s": 0.3})));
    assert_eq!(late.status, 429, "{}", String::from_utf8_lossy(&late.body));
    drop(jobs);
    // The turns are free again, long before the language model answers.
    let before = chat.take_seen().len();
    assert!(before >= 4);
    let another = with(small("another thing"), json!({"upsample": true})).to_string();
    let head = ["Content-Type: application/json"];
    let _another = serving.begin(&crate::serving::request("POST", "/v1/images/generations", &head, another.as_bytes()));
    until("the next request has a turn", || chat.take_seen().iter().any(|seen| seen.body.contains("another thing")));
}

#[test]
fn an_error_of_the_language_model_names_no_address() {
    let chat = ChatServer::start(|_, _| Answer::new(500, "", "no memory"));
    let serving = start(&chat, &["--upsample-url", &chat.url()]);
    let reply = serving.post("/v1/images/generations", &with(small(REQUEST), json!({"upsample": true})));
    assert_eq!(reply.error(), (502, "upsampling_failed".to_string(), "upsample".to_string()));
    assert!(!String::from_utf8_lossy(&reply.body).contains("127.0.0.1"));
}
