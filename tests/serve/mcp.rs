//! The Model Context Protocol, over pipes and over HTTP.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::json;

use super::*;
use crate::program::{flux, names};

/// An agent, and the MCP server that it started.
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
        let client = json!({"name": "test", "version": "1"});
        let info = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        agent.send(json!({"id": 0, "method": "initialize", "params": info}));
        let answer = agent.hear();
        assert_eq!(answer["result"]["serverInfo"]["name"], "flux", "{answer}");
        agent.send(json!({"method": "notifications/initialized"}));
        agent
    }

    fn send(&mut self, message: Value) {
        writeln!(self.input, "{}", with(message, json!({"jsonrpc": "2.0"}))).unwrap();
    }

    /// Returns the next message; standard output must have nothing else.
    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    /// Returns the result of a request without notifications.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.send(json!({"id": 6, "method": method, "params": params}));
        let answer = self.hear();
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
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
    assert_eq!(listed, ["generate_image", "edit_image", "upscale_image", "list_models"]);
    for tool in tools.as_array().unwrap() {
        assert!(tool["title"].is_string() && tool["outputSchema"]["type"] == "object", "{tool}");
        let hints = &tool["annotations"];
        let reads = tool["name"] == "list_models";
        assert_eq!((&hints["readOnlyHint"], &hints["idempotentHint"]), (&json!(reads), &json!(reads)), "{tool}");
        assert_eq!((&hints["destructiveHint"], &hints["openWorldHint"]), (&json!(false), &json!(false)), "{tool}");
    }
    let text = tools[0].to_string();
    for word in ["Generate an image from a text prompt", "multiples of 16", "megapixels", "tiny"] {
        assert!(text.contains(word), "{word}: {text}");
    }

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
    let made = &result["structuredContent"]["images"][0];
    assert_eq!((&made["seed"], &made["width"], &made["uri"]), (&json!(5), &json!(64), &link["uri"]), "{made}");
    let list = |agent: &mut Agent| agent.ask("resources/list", json!({}))["resources"].as_array().unwrap().clone();
    let resources = list(&mut agent);
    assert_eq!(resources[0]["uri"], link["uri"], "{resources:?}");
    let contents =
        |agent: &mut Agent, uri: &str| agent.ask("resources/read", json!({"uri": uri}))["contents"][0].clone();
    let image = contents(&mut agent, link["uri"].as_str().unwrap());
    assert_eq!((decoded(&image["blob"]), &image["mimeType"]), (std::fs::read(file).unwrap(), &json!("image/png")));
    let templates = agent.ask("resources/templates/list", json!({}))["resourceTemplates"].clone();
    let [by_name, recipe] = [0, 1].map(|place| {
        templates[place]["uriTemplate"].as_str().unwrap().replace("{name}", made["name"].as_str().unwrap())
    });
    assert_eq!(contents(&mut agent, &by_name)["blob"], image["blob"]);
    let edit = json!({"prompt": "red", "images": [by_name], "steps": 1, "seed": 2, "size": "64x64"});
    assert_eq!(agent.call("edit_image", edit).1["isError"], false);
    let recipe: Value = serde_json::from_str(contents(&mut agent, &recipe)["text"].as_str().unwrap()).unwrap();
    assert!(recipe.to_string().contains("a cat"), "{recipe}");
    agent.send(json!({"id": 9, "method": "resources/read", "params": {"uri": "file:///etc/passwd"}}));
    assert_eq!(agent.hear()["error"]["code"], -32002, "files that no tool made are not read");

    let edit = json!({"prompt": "make it red", "images": [file], "steps": 1, "seed": 1, "size": "64x64"});
    assert_eq!(agent.call("edit_image", edit).1["isError"], false);
    let (_, enlarged) = agent.call("upscale_image", json!({"image": file, "by": 2}));
    let made = &enlarged["structuredContent"]["images"][0];
    assert_eq!(
        (&made["width"], &made["model"], &made["seed"]),
        (&json!(128), &json!("Lanczos"), &json!(5)),
        "{enlarged}"
    );
    assert!(enlarged["content"][1]["text"].as_str().is_some_and(|text| text.starts_with("128x128, upscaler Lanczos")));
    let (_, models) = agent.call("list_models", json!({}));
    assert!(models["content"][0]["text"].as_str().is_some_and(|text| text.contains("\"tiny\"")), "{models}");
    assert_eq!(models["structuredContent"]["models"][0]["id"], "tiny");
    for (name, arguments, told, field) in [
        ("generate_image", json!({"prompt": "x", "size": "1x1"}), "invalid_value", "size"),
        ("generate_image", json!({"prompt": "x", "what": 1}), "unknown_parameter", "what"),
        ("generate_image", json!({}), "missing_required_parameter", "prompt"),
        ("generate_image", json!({"prompt": "x", "steps": "many"}), "invalid_", "steps"),
        ("generate_image", json!({"prompt": ["x"]}), "invalid_", "prompt"),
        ("edit_image", json!({"prompt": "x"}), "missing_required_parameter", "`images`"),
        ("edit_image", json!({"prompt": "x", "images": ["/none.png"]}), "invalid_value", "none.png"),
        ("edit_image", json!({"prompt": "x", "images": [7]}), "invalid_value", "`images`"),
        ("upscale_image", json!({"by": 2}), "missing_required_parameter", "`image`"),
        ("upscale_image", json!({"image": file, "upscaler": "none"}), "invalid_value", "has Lanczos"),
        ("upscale_image", json!({"image": file}), "missing_required_parameter", "by"),
    ] {
        let (_, result) = agent.call(name, arguments.clone());
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        assert!(result["isError"] == true && text.starts_with(told) && text.contains(field), "{arguments}: {result}");
    }

    // A cancelled call ends, and the next one is answered.
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

/// Calls over HTTP with streamed responses, from a client of a session.
struct Session<'a> {
    serving: &'a Serving,
    id: String,
}

const ACCEPT: &str = "Accept: application/json, text/event-stream";

impl<'a> Session<'a> {
    fn start(serving: &'a Serving, version: &str) -> Self {
        let info = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": info}).to_string();
        let reply = serving.ask("POST", "/mcp", &["Content-Type: application/json", ACCEPT], body.as_bytes());
        let text = String::from_utf8_lossy(&reply.body).to_string();
        assert!(text.contains(&format!("\"protocolVersion\":\"{version}\"")), "{version}: {text}");
        Self { serving, id: reply.header("mcp-session-id").expect("a session").to_string() }
    }

    fn head(&self) -> [String; 3] {
        [format!("Mcp-Session-Id: {}", self.id), "Content-Type: application/json".to_string(), ACCEPT.to_string()]
    }

    fn ask(&self, method: &str, message: Value) -> Reply {
        let head = self.head();
        let body = with(message, json!({"jsonrpc": "2.0"})).to_string();
        self.serving.ask(method, "/mcp", &head.each_ref().map(|line| &**line), body.as_bytes())
    }

    /// Starts a call that takes longer than any test; its response is not read.
    fn begin_endless(&self, id: u64) -> std::net::TcpStream {
        let arguments = json!({"prompt": "x", "size": "512x512", "steps": 1000});
        let params = json!({"name": "generate_image", "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string();
        let mut stream = std::net::TcpStream::connect(self.serving.address).unwrap();
        let head = self.head().join("\r\n");
        let length = body.len();
        write!(stream, "POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}")
            .unwrap();
        until("it runs", || running(self.serving) == 1);
        stream
    }
}

/// Returns the number of images in engines.
fn running(serving: &Serving) -> usize {
    let figures = String::from_utf8(serving.get("/metrics").body).unwrap();
    let line = figures.lines().find_map(|line| line.split_once("images_running ").filter(|_| !line.starts_with('#')));
    line.unwrap_or_else(|| panic!("{figures}")).1.parse().expect("a number")
}

#[test]
fn calls_over_http_end_with_a_notification_the_stream_or_the_session() {
    let serving = Serving::start(&[]);
    let ends = |what: &str| {
        let start = std::time::Instant::now();
        until(what, || running(&serving) == 0);
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "{what}: {:?}", start.elapsed());
    };
    let (session, other) = (Session::start(&serving, "2025-03-26"), Session::start(&serving, "2025-06-18"));
    assert_ne!(session.id, other.id);
    let cancel = |session: &Session<'_>, id: u64| {
        let params = json!({"requestId": id, "reason": "enough"});
        session.ask("POST", json!({"method": "notifications/cancelled", "params": params})).status
    };
    let stream = session.begin_endless(7);
    assert_eq!((cancel(&other, 7), cancel(&session, 8)), (202, 202));
    assert_eq!(running(&serving), 1, "neither was meant");
    assert_eq!(cancel(&session, 7), 202);
    ends("a notification ends it");
    drop(stream);
    drop(session.begin_endless(9));
    ends("the end of its stream ends it");
    let stream = session.begin_endless(10);
    assert_eq!(session.ask("DELETE", json!({})).status, 200);
    ends("the end of its session ends it");
    drop(stream);
    assert_eq!(session.ask("POST", json!({"id": 1, "method": "tools/list"})).status, 404);
    assert_eq!(other.ask("POST", json!({"id": 1, "method": "tools/list"})).status, 200);
    for version in ["2024-11-05", "2025-11-25"] {
        Session::start(&serving, version);
    }
}
