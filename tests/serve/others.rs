//! Requests of programs that are too large to run here. Each test names its source.

use serde_json::json;

use super::comfy::{graph, post, upload};
use super::*;
use crate::serving::{Part, form};

/// Open WebUI, backend/open_webui/routers/images.py of 2026 (02530d50), the engine `openai`: `image_generations` and
/// `image_edits`. aiohttp sets a content type for form fields.
#[test]
fn open_webui_by_openai_s_api() {
    let serving = Serving::start(&[]);
    let head = ["Authorization: Bearer ", "Content-Type: application/json", "User-Agent: Python/3.11 aiohttp/3.13"];
    let body = json!({"model": "gpt-image-1", "prompt": "a red circle", "n": 1, "size": "64x64"}).to_string();
    let path = "/v1/images/generations?api-version=2024-10-21";
    let reply = serving.ask("POST", path, &head, body.as_bytes());
    let image = images(&reply).remove(0);
    let body = json!({"model": "dall-e-3", "prompt": "x", "n": 1, "size": "64x64", "response_format": "b64_json"});
    assert_eq!(images(&serving.ask("POST", path, &head, body.to_string().as_bytes())).len(), 1);
    let text = |name: &str, value: &str| {
        format!(
            "--XXX\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        )
    };
    for names in [&["image"][..], &["image[]", "image[]"]] {
        let mut form: Vec<u8> = [text("model", "gpt-image-1"), text("prompt", "green"), text("n", "1")].concat().into();
        for name in names {
            let head = format!(
                "--XXX\r\nContent-Type: image/png\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"x.png\"\r\n\r\n"
            );
            form.extend([head.as_bytes(), &image, b"\r\n"].concat());
        }
        form.extend(b"--XXX--\r\n");
        let head = ["Authorization: Bearer x", "Content-Type: multipart/form-data; boundary=XXX"];
        assert_eq!(images(&serving.ask("POST", "/v1/images/edits", &head, &form)).len(), 1);
    }
}

/// Open WebUI, backend/open_webui/routers/images.py, the engine `automatic1111`: `get_models`, `get_image_model`,
/// `set_image_model`, `verify_url` and `image_generations`. The key of Basic is empty if none is set.
#[test]
fn open_webui_by_a1111_s_api() {
    let serving = Serving::start(&[]);
    let head = ["authorization: Basic ", "Content-Type: application/json"];
    let ask = |method: &str, path: &str, body: &str| serving.ask(method, path, &head, body.as_bytes());
    let models = ask("GET", "/sdapi/v1/sd-models", "").json();
    assert_eq!((&models[0]["title"], &models[0]["model_name"]), (&json!("tiny"), &json!("tiny")));
    let options = ask("GET", "/sdapi/v1/options", "").json();
    assert_eq!(options["sd_model_checkpoint"], "tiny");
    assert_eq!(ask("POST", "/sdapi/v1/options", &options.to_string()).status, 200, "all of them are sent back");
    let body = json!({"prompt": "a red circle", "batch_size": 1, "width": 64, "height": 64, "steps": 50,
        "negative_prompt": "x", "cfg_scale": 7.0, "sampler_name": "DPM++ 2M", "scheduler": "Karras"});
    let told = ask("POST", "/sdapi/v1/txt2img", &body.to_string()).json();
    assert!(decoded(&told["images"][0]).starts_with(b"\x89PNG") && told["info"].is_string(), "{told}");
}

/// Open WebUI, backend/open_webui/utils/images/comfyui.py of 2026 (02530d50), the engine `comfyui`:
/// `comfyui_create_image`, `comfyui_upload_image` and `comfyui_edit_image`, with a graph of the templates whose nodes
/// it fills.
#[test]
fn open_webui_by_comfyui_s_api() {
    let serving = Serving::start(&[]);
    let head = ["User-Agent: Mozilla/5.0", "Authorization: Bearer ", "Content-Type: application/json"];
    let ask = |method: &str, path: &str, body: &str| serving.ask(method, path, &head, body.as_bytes());
    let info = ask("GET", "/object_info", "").json();
    let key = info["UNETLoader"]["input"]["required"].as_object().unwrap().keys().find(|key| key.contains("_name"));
    assert_eq!(key.map(String::as_str), Some("unet_name"));
    assert_eq!(info["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0], json!(["tiny"]));

    let draws = |graph: &Value| {
        let client_id = "5f0c58bd-5d42-4b54-a8a5-6f7f7c3d0d1e";
        let mut socket = serving.socket(&format!("/ws?clientId={client_id}"), &head[1..2]).expect("a socket");
        let told = ask("POST", "/prompt", &json!({"prompt": graph, "client_id": client_id}).to_string()).json();
        let id = told["prompt_id"].as_str().unwrap_or_else(|| panic!("{told}"));
        socket.until_over(id);
        // It asks once, right after that message.
        let history = ask("GET", &format!("/history/{id}"), "").json()[id].clone();
        let outputs = history["outputs"].as_object().unwrap().clone();
        let saves = outputs.iter().filter(|(node, _)| graph[node]["class_type"] == "SaveImage");
        let urls = saves.flat_map(|(_, output)| output["images"].as_array().unwrap().clone()).map(|image| {
            let part = |key: &str| image[key].as_str().unwrap().to_string();
            format!("/view?filename={}&subfolder={}&type={}", part("filename"), part("subfolder"), part("type"))
        });
        urls.map(|url| ask("GET", &url, "")).collect::<Vec<_>>()
    };
    let mut create = graph("text_to_image_distilled");
    create["76"]["inputs"]["value"] = json!("a cat");
    create["77:70"]["inputs"]["unet_name"] = json!("tiny");
    create["77:66"]["inputs"]["batch_size"] = json!(2);
    create["77:73"]["inputs"]["noise_seed"] = json!(1_125_899_906_842_624_u64);
    let drawn = draws(&create);
    assert_eq!(drawn.len(), 2);
    assert!(drawn.iter().all(|reply| reply.header("content-type") == Some("image/png")));

    let parts: [Part<'_>; 2] = [("image", Some("x.png"), &drawn[0].body), ("type", None, b"input")];
    let form_head = ["Content-Type: multipart/form-data; boundary=XXX"];
    let name = serving.ask("POST", "/api/upload/image", &form_head, &form(&parts)).json()["name"].clone();
    let mut edit = graph("image_edit");
    edit["76"]["inputs"]["image"] = name;
    assert_eq!(draws(&edit).len(), 1);
}

/// LibreChat, api/app/clients/tools/structured/StableDiffusion.js of 2026 (00b3bc32), by axios.
#[test]
fn librechat_s_stable_diffusion() {
    let serving = Serving::start(&[]);
    let head =
        ["Accept: application/json, text/plain, */*", "Content-Type: application/json", "User-Agent: axios/1.12.1"];
    // It always requests 1024x1024; the test requests less, because the machine is small.
    let body = json!({"prompt": "a red circle", "negative_prompt": "blurry", "cfg_scale": 4.5, "steps": 22,
        "width": 128, "height": 128});
    let told = serving.ask("POST", "/sdapi/v1/txt2img", &head, body.to_string().as_bytes()).json();
    let info: Value = serde_json::from_str(told["info"].as_str().unwrap()).unwrap();
    assert!(decoded(&told["images"][0]).starts_with(b"\x89PNG"));
    assert!(
        info["infotexts"][0].as_str().is_some_and(|text| text.lines().last().unwrap().contains("Steps: ")),
        "{info}"
    );
    assert_eq!((&info["width"], &info["height"], info["seed"].is_u64()), (&json!(128), &json!(128), true));
}

/// LibreChat, api/app/clients/tools/structured/OpenAIImageTools.js of 2026 (00b3bc32): `image_gen_oai` by OpenAI's
/// client, `image_edit_oai` by axios and a form.
#[test]
fn librechat_s_openai_tools() {
    let serving = Serving::start(&[]);
    let head = [
        "Authorization: Bearer user_provided",
        "Content-Type: application/json",
        "x-stainless-lang: js",
        "x-stainless-retry-count: 0",
        "User-Agent: OpenAI/JS 5.10.1",
    ];
    let body = json!({"model": "gpt-image-1", "prompt": "a red circle", "n": 1, "background": "auto",
        "output_format": "png", "quality": "auto", "size": "auto"})
    .to_string();
    let image = images(&serving.ask("POST", "/v1/images/generations", &head, body.as_bytes())).remove(0);
    let webp = json!({"model": "gpt-image-1", "prompt": "x", "n": 1, "background": "opaque", "output_format": "webp",
        "output_compression": 100, "quality": "low", "size": "1024x1024"});
    let webp = with(webp, json!({"size": "64x64"})).to_string();
    assert!(images(&serving.ask("POST", "/v1/images/generations", &head, webp.as_bytes()))[0].starts_with(b"RIFF"));
    let clear =
        json!({"model": "gpt-image-1", "prompt": "x", "n": 1, "background": "transparent", "output_format": "jpeg"});
    let refused = serving.ask("POST", "/v1/images/generations", &head, clear.to_string().as_bytes());
    assert_eq!(refused.error(), (400, "unsupported_value".to_string(), "output_format".to_string()));
    let parts: [Part<'_>; 6] = [
        ("model", None, b"gpt-image-1"),
        ("prompt", None, b"make it green"),
        ("quality", None, b"auto"),
        ("size", None, b"auto"),
        ("image[]", Some("generated.png"), &image),
        ("image[]", Some("other.png"), &image),
    ];
    let head = ["Authorization: Bearer user_provided", "Content-Type: multipart/form-data; boundary=XXX"];
    assert_eq!(images(&serving.ask("POST", "/v1/images/edits", &head, &form(&parts))).len(), 1);
}

/// Krita's plugin krita-ai-diffusion, ai_diffusion/backend/comfy_client.py and comfy_workflow.py of version 1.50
/// (18862a7d, 197020f4): its requests when it connects, and its requests for images.
#[test]
fn krita_connects_and_draws_what_needs_no_nodes_of_its_own() {
    let serving = Serving::start(&[]);
    let head = ["ngrok-skip-browser-warning: 69420", "skip_zrok_interstitial: 69420", "Content-Type: application/json"];
    let ask = |method: &str, path: &str, body: &[u8]| serving.ask(method, path, &head, body);
    let stats = ask("GET", "/system_stats", b"").json();
    assert!(stats["devices"][0]["type"].is_string() && stats["devices"][0]["vram_total"].is_u64());
    assert!(serving.socket("/ws?clientId=krita", &[]).is_ok());
    let nodes = ask("GET", "/object_info", b"").json();
    let missing = |names: &[&str]| names.iter().filter(|name| nodes[**name].is_null()).count();
    // Required nodes that are missing: the plugin reports them, unless `check_server_resources` is off.
    assert_eq!(missing(&["InpaintPreprocessor", "IPAdapter", "ETN_Translate", "INPAINT_ColorMatch"]), 4);
    assert_eq!(missing(&["ETN_LoadImageCache", "ETN_SaveImageCache", "VAELoader", "CLIPLoader", "LoraLoader"]), 0);
    assert_eq!(ask("GET", "/api/etn/languages", b"").json(), json!([]));
    let models = ask("GET", "/api/etn/model_info/diffusion_models?offset=0&limit=8", b"").json();
    assert_eq!((&models["tiny"]["base_model"], &models["_meta"]["total"]), (&json!("flux2"), &json!(1)));
    assert_eq!(ask("GET", "/api/etn/model_info/checkpoints?offset=0&limit=8", b"").json()["_meta"]["total"], 0);
    assert_eq!(ask("POST", "/api/etn/workflow/subscribe", b"{}").status, 404, "which it writes to its log");

    let draws = |name: &str, id: &str| {
        let mut socket = serving.socket("/ws?clientId=krita", &[]).expect("a socket");
        let body = json!({"prompt": graph(name), "client_id": "krita", "prompt_id": id}).to_string();
        let told = ask("POST", "/prompt", body.as_bytes()).json();
        assert_eq!(told["prompt_id"], id, "{told}");
        let heard: Vec<_> = socket.until_over(id).into_iter().flatten().collect();
        let executed = heard.iter().find(|message| message["type"] == "executed").expect("an output");
        let image = &executed["data"]["output"]["images"][0];
        assert_eq!(image["source"], "http");
        ask("GET", &format!("/api/etn/image/{}", image["id"].as_str().unwrap()), b"").body
    };
    let circle = draws("krita_text_to_image", "3f6a2c1e-0d55-4a4b-9e39-0f6f5a7b8c9d");
    let same = json!({"prompt": "a red circle", "size": "64x64", "steps": 4, "seed": 5});
    assert_eq!(images(&serving.post("/v1/images/generations", &same)), [&circle[..]]);
    assert_eq!(ask("PUT", "/api/etn/image/0a1b2c3d", &circle).status, 201);
    assert_eq!(ask("GET", "/api/etn/image/0a1b2c3d", b"").body, circle);
    assert_ne!(draws("krita_refine", "4f6a2c1e-0d55-4a4b-9e39-0f6f5a7b8c9d"), circle);
    assert_eq!(ask("PUT", "/api/etn/image/0a1b2c3d", b"no image").status, 400);
    assert_eq!(ask("GET", "/api/etn/image/none", b"").status, 404);
    // A selection needs missing nodes: the error names the first of them.
    let reply = ask("POST", "/prompt", json!({"prompt": graph("krita_inpaint")}).to_string().as_bytes());
    assert_eq!((reply.status, &reply.json()["error"]["extra_info"]["class_type"]), (400, &json!("INPAINT_ExpandMask")));
    assert_eq!(ask("POST", "/queue", b"{\"delete\": [\"4f6a2c1e\"]}").status, 200);
    assert_eq!(ask("POST", "/interrupt", b"{}").status, 200);
}

/// ComfyUI's own example client, script_examples/websockets_api_example.py: websocket-client sends an origin.
#[test]
fn comfyui_s_own_example() {
    let serving = Serving::start(&[]);
    upload(&serving, "first.png", &png(64, 64, [9; 3]));
    let origin = format!("Origin: http://{}", serving.address);
    let mut socket = serving.socket("/ws?clientId=example", &[&origin]).expect("a socket");
    let (id, _) = post(&serving, &graph("ksampler"), "example");
    // Images come while their node is running.
    let (mut node, mut sent) = (Value::Null, 0);
    for message in socket.until_over(&id) {
        match message {
            Ok(message) if message["type"] == "executing" => node = message["data"]["node"].clone(),
            Err(bytes) if node == "7" => {
                assert!(bytes[8..].starts_with(b"\x89PNG"));
                sent += 1;
            }
            _ => {}
        }
    }
    assert_eq!(sent, 2);
}
