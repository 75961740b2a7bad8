//! The Model Context Protocol, over pipes and over HTTP.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::json;

use super::*;
use crate::program::{flux, names};

/// An agent's program, and the tools that it started.
struct Agent {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Agent {
    fn start(folder: &Path, flags: &[&str]) -> Self {
        let mut command: Command = flux();
        command.args(["mcp", "--device", "cpu", "-o", folder.to_str().unwrap()]).args(flags);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut agent = Self { child, input, output };
        let info = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        agent.send(json!({"id": 0, "method": "initialize", "params": info}));
        let answer = agent.hear();
        assert_eq!(answer["result"]["serverInfo"]["name"], "flux", "{answer}");
        agent.send(json!({"method": "notifications/initialized"}));
        agent
    }

    fn send(&mut self, message: Value) {
        writeln!(self.input, "{}", with(message, json!({"jsonrpc": "2.0"}))).unwrap();
    }

    /// The next message; nothing else may be on standard output.
    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    /// Calls a tool, and returns the notifications and the result.
    fn call(&mut self, name: &str, arguments: Value) -> (Vec<Value>, Value) {
        let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}});
        self.send(json!({"id": 7, "method": "tools/call", "params": params}));
        let mut told = Vec::new();
        loop {
            let message = self.hear();
            if message["id"] == 7 {
                return (told, message["result"].clone());
            }
            told.push(message);
        }
    }
}

#[test]
fn an_agent_draws_over_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(folder.path(), &[]);
    agent.send(json!({"id": 1, "method": "tools/list"}));
    let tools = agent.hear()["result"]["tools"].clone();
    let listed: Vec<_> = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(listed, ["generate_image", "edit_image", "list_models"]);

    let arguments = json!({"prompt": "a cat", "size": "64x64", "steps": 4, "seed": 5});
    let (told, result) = agent.call("generate_image", arguments);
    assert_eq!(result["isError"], false, "{result}");
    let progress: Vec<_> = told.iter().map(|message| message["params"]["progress"].as_f64().unwrap()).collect();
    assert!(progress.len() > 2 && progress.windows(2).all(|pair| pair[0] < pair[1]), "it rises: {progress:?}");
    let [image, text, link] = &result["content"].as_array().unwrap()[..] else { panic!("{result}") };
    assert_eq!((&image["type"], &image["mimeType"]), (&json!("image"), &json!("image/jpeg")));
    assert!(decoded(&image["data"]).starts_with(b"\xff\xd8\xff"));
    assert!(text["text"].as_str().is_some_and(|text| text.starts_with("seed 5, 64x64, model tiny")), "{text}");
    let file = link["uri"].as_str().unwrap().strip_prefix("file://").unwrap();
    assert!(std::fs::read(file).unwrap().starts_with(b"\x89PNG"));
    assert_eq!(names(folder.path()).len(), 1);

    let edit = json!({"prompt": "make it red", "images": [file], "steps": 1, "seed": 1, "size": "64x64"});
    assert_eq!(agent.call("edit_image", edit).1["isError"], false);
    let (_, models) = agent.call("list_models", json!({}));
    assert!(models["content"][0]["text"].as_str().is_some_and(|text| text.contains("\"tiny\"")), "{models}");
    for (name, arguments, told) in [
        ("generate_image", json!({"prompt": "x", "size": "1x1"}), "invalid_value"),
        ("generate_image", json!({"prompt": "x", "what": 1}), "unknown_parameter"),
        ("generate_image", json!({}), "missing_required_parameter"),
        ("edit_image", json!({"prompt": "x"}), "missing_required_parameter"),
        ("edit_image", json!({"prompt": "x", "images": ["/none.png"]}), "invalid_value"),
    ] {
        let (_, result) = agent.call(name, arguments.clone());
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        assert!(result["isError"] == true && text.starts_with(told), "{arguments}: {result}");
    }

    // A call that is cancelled ends, and the next one is answered.
    let params = json!({"name": "generate_image", "arguments": {"prompt": "x", "size": "512x512", "steps": 1000},
        "_meta": {"progressToken": "q"}});
    agent.send(json!({"id": 8, "method": "tools/call", "params": params}));
    let is_step = |told: &Value| told["params"]["message"].as_str().is_some_and(|text| text.starts_with("step"));
    while !is_step(&agent.hear()) {}
    agent.send(json!({"method": "notifications/cancelled", "params": {"requestId": 8, "reason": "enough"}}));
    let small = json!({"prompt": "x", "size": "64x64", "steps": 1});
    assert_eq!(agent.call("generate_image", small).1["isError"], false);

    let Agent { mut child, input, .. } = agent;
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0), "it ends with its input");
}

#[test]
fn agents_draw_over_http() {
    let serving = Serving::start(&[]);
    let head = ["Content-Type: application/json", "Accept: application/json, text/event-stream"];
    let ask = |head: &[&str], message: Value| {
        let body = with(message, json!({"jsonrpc": "2.0", "id": 1})).to_string();
        serving.ask("POST", "/mcp", head, body.as_bytes())
    };
    let result = |reply: Reply| {
        let text = String::from_utf8(reply.body).unwrap();
        let line = text.lines().filter_map(|line| line.strip_prefix("data: ")).find(|line| line.contains("\"result\""));
        let json: Value = serde_json::from_str(line.unwrap_or(&text)).unwrap_or_else(|e| panic!("{e}: {text}"));
        json["result"].clone()
    };
    let info =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
    let initialized = result(ask(&head, json!({"method": "initialize", "params": info})));
    assert_eq!(initialized["serverInfo"]["name"], "flux", "{initialized}");
    let call = |arguments: Value| {
        let name = if arguments["images"].is_null() { "generate_image" } else { "edit_image" };
        result(ask(&head, json!({"method": "tools/call", "params": {"name": name, "arguments": arguments}})))
    };
    let drawn = call(json!({"prompt": "a cat", "size": "64x64", "steps": 1, "seed": 5}));
    let link = drawn["content"][2]["uri"].as_str().unwrap_or_else(|| panic!("{drawn}")).to_string();
    let path = &link[link.find("/v1/files/").unwrap()..];
    let whole = serving.post("/v1/images/generations", &small("a cat"));
    assert_eq!(serving.get(path).body, images(&whole)[0], "the whole image is the file");
    let edited = call(json!({"prompt": "red", "images": [link], "steps": 1}));
    assert_eq!(edited["isError"], false, "{edited}");
    let path = call(json!({"prompt": "x", "images": ["/etc/passwd"]}));
    assert_eq!(path["isError"], true, "files of the server are not read: {path}");
    let foreign = ["Origin: https://evil.example", head[0], head[1]];
    assert_eq!(ask(&foreign, json!({"method": "tools/list"})).status, 403);
    let large = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000000\r\nConnection: close\r\n\r\n";
    assert_eq!(serving.send(large).error().1, "payload_too_large", "the limits of other bodies hold");
}
