//! ComfyUI's API: the graphs of its templates for klein, and the messages to clients.

use std::fs;

use flux::input::read_bytes;
use serde_json::json;

use super::*;
use crate::program::{Run, flux, project};
use crate::websocket::Socket;

/// Returns a graph of tests/serve/graphs, as it is posted.
pub fn graph(name: &str) -> Value {
    let text = fs::read_to_string(project(&format!("tests/serve/graphs/{name}.json"))).expect("the graph");
    serde_json::from_str(&text).expect("JSON")
}

/// Uploads an image that graphs can name.
pub fn upload(serving: &Serving, name: &str, bytes: &[u8]) -> Value {
    let reply = serving.form("/upload/image", &[("image", Some(name), bytes), ("type", None, b"input")]);
    assert_eq!(reply.status, 200, "{}", reply.json());
    reply.json()
}

/// Posts a graph, and returns the id of the prompt and the notes.
pub fn post(serving: &Serving, graph: &Value, client_id: &str) -> (String, String) {
    let reply = serving.post("/prompt", &json!({"prompt": graph, "client_id": client_id}));
    let told = reply.json();
    assert_eq!(reply.status, 200, "{told}");
    assert_eq!(told["node_errors"], json!({}));
    (told["prompt_id"].as_str().expect("an id").to_string(), told["flux"]["notes"].to_string())
}

/// Returns the history of a finished prompt.
pub fn history(serving: &Serving, id: &str) -> Value {
    until("it is over", || serving.get(&format!("/history/{id}")).json()[id].is_object());
    serving.get(&format!("/history/{id}")).json()[id].clone()
}

/// Returns the texts of a PNG in `tEXt` chunks.
pub fn chunks(png: &[u8]) -> Vec<(String, String)> {
    let (mut found, mut at) = (Vec::new(), 8);
    while let Some([a, b, c, d, kind @ ..]) = png.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let end = at + 12 + u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if kind == b"tEXt" {
            let text: String = png[at + 8..end - 4].iter().map(|byte| char::from(*byte)).collect();
            let (key, text) = text.split_once('\0').expect("a keyword");
            found.push((key.to_string(), text.to_string()));
        }
        at = end;
    }
    found
}

/// Returns a PNG without the graph, as the command line writes it.
fn without_graph(png: &[u8]) -> Vec<u8> {
    let mut png = png.to_vec();
    for key in ["prompt", "workflow"] {
        let start = [b"tEXt", key.as_bytes(), b"\0"].concat();
        if let Some(at) = png.windows(start.len()).position(|bytes| bytes == start) {
            let length = u32::from_be_bytes(png[at - 4..at].try_into().unwrap()) as usize;
            png.drain(at - 4..at + 8 + length);
        }
    }
    png
}

/// Returns the files of an output node, without the graphs in them.
pub fn files(serving: &Serving, history: &Value, node: &str) -> Vec<Vec<u8>> {
    let images = history["outputs"][node]["images"].as_array().unwrap_or_else(|| panic!("no images: {history}"));
    let view = |image: &Value| {
        let part = |key: &str| image[key].as_str().expect("a text");
        let [name, subfolder, folder] = ["filename", "subfolder", "type"].map(part);
        let reply = serving.get(&format!("/view?filename={name}&subfolder={subfolder}&type={folder}"));
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("image/png")));
        without_graph(&reply.body)
    };
    images.iter().map(view).collect()
}

fn draws(serving: &Serving, name: &str, node: &str) -> Vec<Vec<u8>> {
    drawn_by(serving, &graph(name), node)
}

/// Returns the images of an output node of a graph, without the graph in them.
pub fn drawn_by(serving: &Serving, graph: &Value, node: &str) -> Vec<Vec<u8>> {
    let (id, _) = post(serving, graph, "");
    let history = history(serving, &id);
    assert_eq!(history["status"]["status_str"], "success", "{history}");
    files(serving, &history, node)
}

/// Returns the image of the command line, in a folder with the files of the recipe.
pub fn drawn(inputs: &[(&str, &[u8])], flags: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    inputs.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
    let words = shlex::split(flags).expect("words");
    let fixed = ["-S", "5", "--device", "cpu", "-o", "out.png"];
    Run::new(flux().current_dir(folder.path()).args(words).args(fixed)).succeeds();
    fs::read(folder.path().join("out.png")).unwrap()
}

/// Returns a PNG that is transparent in its upper half.
pub fn half_transparent() -> Vec<u8> {
    let rgb = Rgb { width: 64, height: 64, bytes: [200, 30, 30].repeat(64 * 64) };
    let alpha: Vec<u8> = (0..64 * 64).map(|place| if place < 64 * 32 { 0 } else { 255 }).collect();
    flux::output::encode_transparent(&rgb, &alpha).expect("a PNG")
}

fn white_above() -> Vec<u8> {
    let mut mask = Rgb { width: 64, height: 64, bytes: vec![0; 3 * 64 * 64] };
    mask.bytes[..3 * 64 * 32].fill(255);
    encode(&mask, ImageFormat::Png, &flux::metadata::Metadata::default()).expect("a PNG")
}

#[test]
fn templates_draw_what_the_command_line_draws() {
    let serving = Serving::start(&[]);
    let circle = drawn(&[], "'a red circle' --size 64 -s 4");
    assert_eq!(draws(&serving, "text_to_image_distilled", "78"), [&circle[..]]);
    let base = draws(&serving, "text_to_image_base", "78");
    // The recipe's guidance is in the file.
    assert_eq!(base, [drawn(&[], "'a red circle' --size 64 -s 20 --guidance 5")]);
    let (first, second) = (png(112, 96, [200, 30, 30]), png(112, 96, [30, 30, 200]));
    upload(&serving, "first.png", &first);
    upload(&serving, "second.png", &second);
    // With 0.01 megapixels in steps of 16 the images keep their size, so nothing is scaled.
    let draws_whole = |name: &str| {
        let mut graph = graph(name);
        for node in graph.as_object_mut().unwrap().values_mut() {
            if node["class_type"] == "ImageScaleToTotalPixels" {
                node["inputs"]["resolution_steps"] = json!(16);
            }
        }
        drawn_by(&serving, &graph, "9")
    };
    let edit = "'make the circle green' -s 4 --size 112x96";
    let edited = drawn(&[("1.png", &first)], &format!("{edit} -i 1.png"));
    assert_eq!(draws_whole("image_edit"), [&edited[..]]);
    let several = drawn(&[("1.png", &first), ("2.png", &second)], &format!("{edit} -i 1.png -i 2.png"));
    assert_eq!(draws_whole("image_edit_several"), [&several[..]]);
    assert_ne!(edited, several);
    // In the templates, an image is scaled to about this number of pixels.
    let scaled = read_bytes(&draws(&serving, "image_edit_kv", "9")[0]).unwrap();
    assert_eq!([scaled.width, scaled.height], [96, 80], "111x95, in steps of 16");
}

#[test]
fn what_is_masked_is_drawn_anew_and_comes_back_onto_the_image() {
    let serving = Serving::start(&[]);
    let image = half_transparent();
    upload(&serving, "masked.png", &image);
    let (id, _) = post(&serving, &graph("inpaint"), "");
    let history = history(&serving, &id);
    let [saved, shown] = [files(&serving, &history, "16"), files(&serving, &history, "17")];
    assert_eq!(history["outputs"]["16"]["images"][0]["subfolder"], "inpaint");
    assert_eq!(history["outputs"]["17"]["images"][0]["type"], "temp");
    let same = "'a green circle' -i 1.png --mask mask.png --strength 1 -s 4";
    let inputs: [(&str, &[u8]); 2] = [("1.png", &image), ("mask.png", &white_above())];
    assert_eq!(saved, [drawn(&inputs, same)]);
    assert_eq!(shown, [drawn(&inputs, &format!("{same} --no-composite"))]);
    let pixels = read_bytes(&saved[0]).unwrap();
    let is_kept = |pixel: &[u8]| pixel == [200, 30, 30];
    assert!(pixels.bytes[3 * 64 * 32..].chunks(3).all(is_kept) && !pixels.bytes[..3 * 64 * 32].chunks(3).all(is_kept));
}

#[test]
fn one_sampler_may_be_all_there_is() {
    let serving = Serving::start(&[]);
    let mut socket = serving.socket("/ws?clientId=me", &[]).expect("a socket");
    let (id, notes) = post(&serving, &graph("ksampler"), "me");
    assert!(notes.contains("images of a batch") && notes.contains("there is no model"), "{notes}");
    let sent: Vec<_> = socket.until_over(&id).into_iter().filter_map(Result::err).collect();
    let results: Vec<_> = sent.iter().filter(|frame| frame[..8] == [0, 0, 0, 1, 0, 0, 0, 2]).collect();
    let history = history(&serving, &id);
    let shown = files(&serving, &history, "8");
    assert_eq!(results.iter().map(|frame| &frame[8..]).collect::<Vec<_>>(), shown);
    assert_ne!(shown[0], shown[1], "the seed and the one behind it");
    assert_eq!(history["outputs"]["7"], json!({}));
    upload(&serving, "first.png", &png(64, 64, [200, 30, 30]));
    assert_eq!(draws(&serving, "image_to_image", "8").len(), 1);
}

/// Returns the kinds of messages, without those of variable number.
fn kinds(messages: &[Result<Value, Vec<u8>>]) -> Vec<String> {
    let mut kinds: Vec<String> = messages
        .iter()
        .map(|message| match message {
            Ok(message) => message["type"].as_str().expect("a type").to_string(),
            Err(bytes) => format!("image {}", bytes[7]),
        })
        .filter(|kind| kind != "status")
        .collect();
    kinds.dedup();
    kinds
}

#[test]
fn a_socket_hears_how_its_prompts_go() {
    let serving = Serving::start(&[]);
    let mut socket = serving.socket("/ws?clientId=me", &[]).expect("a socket");
    let hello = socket.message().unwrap().unwrap();
    assert_eq!((&hello["type"], &hello["data"]["sid"]), (&json!("status"), &json!("me")));
    assert_eq!(hello["data"]["status"]["exec_info"]["queue_remaining"], 0);
    socket.send(crate::websocket::TEXT, br#"{"type": "feature_flags", "data": {"supports_preview_metadata": true}}"#);
    let flags = socket.message().unwrap().unwrap();
    assert_eq!((&flags["type"], &flags["data"]["supports_preview_metadata"]), (&json!("feature_flags"), &json!(false)));
    let mut other: Socket = serving.socket("/api/ws?clientId=other", &[]).expect("a socket");
    assert_eq!(other.message().unwrap().unwrap()["type"], "status");

    let (id, _) = post(&serving, &graph("text_to_image_distilled"), "me");
    let messages = socket.until_over(&id);
    let heard = kinds(&messages);
    for kind in
        ["execution_start", "execution_cached", "executing", "progress", "image 1", "executed", "execution_success"]
    {
        assert!(heard.iter().any(|known| known == kind), "{kind}: {heard:?}");
    }
    assert_eq!((&*heard[0], heard.last().map(String::as_str)), ("execution_start", Some("executing")));
    let texts: Vec<&Value> = messages.iter().flatten().collect();
    let data =
        |kind: &str| texts.iter().filter(|text| text["type"] == *kind).map(|text| &text["data"]).collect::<Vec<_>>();
    let executing: Vec<_> = data("executing").iter().map(|data| data["node"].clone()).collect();
    let place = |node: &str| executing.iter().position(|known| known == node).unwrap_or_else(|| panic!("{node}"));
    assert!(place("76") < place("77:74") && place("77:64") < place("77:65") && place("77:65") < place("78"));
    let nodes = graph("text_to_image_distilled").as_object().unwrap().len();
    assert_eq!(executing.len(), nodes + 1, "each node, and the end: {executing:?}");
    let progress = data("progress");
    let last = progress.last().unwrap();
    assert_eq!((&last["value"], &last["max"], &last["node"]), (&json!(4), &json!(4), &json!("77:64")));
    let executed = data("executed");
    let told = history(&serving, &id);
    assert_eq!((&executed[0]["node"], &executed[0]["output"]), (&json!("78"), &told["outputs"]["78"]));
    assert_eq!(told["prompt"][1], json!(id));
    assert_eq!(told["prompt"][2], graph("text_to_image_distilled"));
    assert_eq!((&told["prompt"][4], &told["status"]["completed"]), (&json!(["78"]), &json!(true)));
    let remaining: Vec<_> =
        data("status").iter().map(|data| data["status"]["exec_info"]["queue_remaining"].clone()).collect();
    assert!(remaining.contains(&json!(1)), "{remaining:?}");
    let preview = messages.iter().find_map(|message| message.as_ref().err()).unwrap();
    assert_eq!(preview[8..11], [0xff, 0xd8, 0xff], "previews are JPEGs, of which no client takes one for a result");

    // Prompts without a listening client are generated too, and end the same way.
    let quiet = with(
        json!({"prompt": graph("text_to_image_distilled")}),
        json!({"extra_data": {"extra_pnginfo": {"other": 1}}}),
    );
    let reply = serving.post("/api/prompt", &quiet).json();
    assert!(reply["flux"]["notes"].to_string().contains("`other`"), "{reply}");
    let quiet = history(&serving, reply["prompt_id"].as_str().unwrap());
    assert_eq!(files(&serving, &quiet, "78"), files(&serving, &told, "78"));
    let all = serving.get("/api/history?max_items=1").json();
    assert_eq!(all.as_object().unwrap().len(), 1);
    assert_eq!(serving.post("/history", &json!({"delete": [id]})).status, 200);
    assert_eq!(serving.get(&format!("/history/{id}")).json(), json!({}));
    assert_eq!(files(&serving, &told, "78").len(), 1, "its file is there as long as others");
    assert_eq!(serving.post("/history", &json!({"clear": true})).status, 200);
    assert_eq!(serving.get("/history").json(), json!({}));
}

/// Returns a graph that takes longer than any test.
pub fn endless_graph() -> Value {
    let mut graph = graph("text_to_image_distilled");
    graph["77:62"]["inputs"]["steps"] = json!(1000);
    graph["77:68"]["inputs"]["value"] = json!(512);
    graph["77:69"]["inputs"]["value"] = json!(512);
    graph
}

#[test]
fn prompts_wait_are_cancelled_and_interrupted() {
    let serving = Serving::start(&["--batch-max", "1"]);
    let mut socket = serving.socket("/ws?clientId=me", &[]).expect("a socket");
    let ids: Vec<_> = (0..4).map(|_| post(&serving, &endless_graph(), "me").0).collect();
    let other = serving.post("/v1/jobs", &endless()).json()["urls"]["self"].clone();
    let queue = |key: &str| -> Vec<String> {
        let queue = serving.get("/queue").json();
        queue[key].as_array().unwrap().iter().map(|entry| entry[1].as_str().unwrap().to_string()).collect()
    };
    until("the first one runs", || queue("queue_running").len() == 1);
    assert_eq!(serving.get("/prompt").json()["exec_info"]["queue_remaining"], 4);
    assert_eq!(queue("queue_pending"), ids[1..]);
    assert_eq!(serving.post("/queue", &json!({"delete": [ids[2], ids[0]]})).status, 200);
    until("the third one is over", || queue("queue_pending") == [ids[1].clone(), ids[3].clone()]);
    assert_eq!(queue("queue_running"), ids[..1], "one that runs is interrupted, and not deleted");
    assert_eq!(
        history(&serving, &ids[2])["status"]["messages"].as_array().unwrap().last().unwrap()[0],
        "execution_interrupted"
    );
    assert_eq!(serving.post("/interrupt", &json!({"prompt_id": "none"})).status, 200);
    assert_eq!(queue("queue_running").len(), 1);
    assert_eq!(serving.ask("POST", "/interrupt", &[], b"").status, 200);
    until("it is over", || queue("queue_running") == ids[1..2]);
    let heard: Vec<_> = socket.until_over(&ids[0]).into_iter().flatten().collect();
    let end =
        heard.iter().find(|text| text["type"] == "execution_interrupted" && text["data"]["prompt_id"] == json!(ids[0]));
    assert_eq!(end.expect("it was told")["data"]["node_type"], "SamplerCustomAdvanced");
    assert_eq!(serving.post("/queue", &json!({"clear": true})).status, 200);
    until("nothing waits", || queue("queue_pending").is_empty());
    assert_eq!(serving.post("/api/interrupt", &json!({})).status, 200);
    until("nothing runs", || queue("queue_running").is_empty());
    assert_ne!(serving.get(other.as_str().unwrap()).json()["status"], "cancelled", "that of another is not ended");
    serving.ask("DELETE", other.as_str().unwrap(), &[], b"");
}

#[test]
fn what_there_is_is_listed() {
    let serving = Serving::start(&[]);
    let stats = serving.get("/system_stats").json();
    assert!(stats["devices"][0]["name"].is_string() && stats["devices"][0]["vram_total"].is_number(), "{stats}");
    assert_eq!(stats["devices"][0]["type"], "cpu");
    upload(&serving, "first.png", &png(64, 64, [9; 3]));
    let info = serving.get("/object_info").json();
    assert_eq!(info["UNETLoader"]["input"]["required"]["unet_name"][0], json!(["tiny"]));
    assert_eq!(info["LoadImage"]["input"]["required"]["image"][0], json!(["first.png"]));
    assert_eq!(info["KSampler"]["input"]["required"]["sampler_name"][0], json!(["euler"]));
    assert_eq!(info["SaveImage"]["output_node"], true);
    assert_eq!(info["GetImageSize"]["output"], json!(["INT", "INT", "INT"]));
    let one = serving.get("/api/object_info/KSampler").json();
    assert_eq!(one["KSampler"], info["KSampler"]);
    assert_eq!(serving.get("/object_info/Nothing").json(), json!({}));
    assert!(serving.get("/models").json().as_array().unwrap().contains(&json!("diffusion_models")));
    assert_eq!(serving.get("/models/diffusion_models").json(), json!(["tiny"]));
    assert_eq!(serving.get("/models/nothing").status, 404);
    assert_eq!(serving.get("/features").json()["supports_preview_metadata"], false);
    for path in ["/embeddings", "/extensions", "/api/embeddings"] {
        assert_eq!(serving.get(path).json(), json!([]), "{path}");
    }
    assert_eq!(serving.post("/free", &json!({"unload_models": true})).status, 200);
    assert_eq!(serving.post("/free", &json!({"unload_models": "x"})).status, 400);
    // Graphs contain only nodes of the table.
    for name in ["text_to_image_base", "image_edit_several", "image_edit_kv", "inpaint", "ksampler", "krita_refine"] {
        for node in graph(name).as_object().unwrap().values() {
            let class = node["class_type"].as_str().unwrap();
            let described = &info[class]["input"];
            for input in node["inputs"].as_object().unwrap().keys() {
                assert!(
                    !described["required"][input].is_null() || !described["optional"][input].is_null(),
                    "{class} {input}"
                );
            }
        }
    }
}
