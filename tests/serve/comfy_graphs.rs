//! ComfyUI's API: real graphs, with inputs and nodes that ComfyUI ignores or that change nothing here.

use flux::input::read_bytes;
use serde_json::json;

use crate::program::takes_long_form;

use super::comfy::{chunks, drawn, drawn_by, files, graph, history, post, upload};
use super::*;

/// Returns the graph of an edit in its public form, with an uploaded image.
fn public_edit() -> Value {
    let node = |class: &str, inputs: Value| json!({"class_type": class, "inputs": inputs, "_meta": {"title": class}});
    json!({
        "9": node("SaveImage", json!({"filename_prefix": "Flux2-Klein", "images": ["180", 0]})),
        "10": node("PreviewImage", json!({"images": ["196", 0]})),
        "159": node("LoadImage", json!({"image": "first.png", "choose file to upload": "image"})),
        "179": node("KSamplerSelect", json!({"sampler_name": "euler_ancestral"})),
        "180": node("VAEDecode", json!({"samples": ["192", 0], "vae": ["186", 0]})),
        "181": node("RandomNoise", json!({"noise_seed": 5, "control_after_generate": "randomize"})),
        "182": node("EmptyFlux2LatentImage", json!({"width": ["223", 1], "height": ["223", 2], "batch_size": 1})),
        "183": node("CFGGuider",
            json!({"cfg": 1, "model": ["189", 0], "positive": ["221", 0], "negative": ["212", 0]})),
        "184": node("Flux2Scheduler", json!({"steps": 1, "width": ["223", 1], "height": ["223", 2]})),
        "186": node("VAELoader", json!({"vae_name": "full_encoder_small_decoder.safetensors"})),
        "187": node("CLIPLoader",
            json!({"clip_name": "qwen_3_8b_fp8mixed.safetensors", "type": "flux2", "device": "default"})),
        "189": node("PathchSageAttentionKJ",
            json!({"sage_attention": "sageattn_qk_int8_pv_fp16_cuda", "allow_compile": true, "model": ["190", 0]})),
        "190": node("DifferentialDiffusion", json!({"strength": 1, "model": ["191", 0]})),
        "191": node("UNETLoader", json!({"unet_name": "flux-2-klein-9b-fp8.safetensors", "weight_dtype": "default"})),
        "192": node("SamplerCustomAdvanced", json!({"noise": ["181", 0], "guider": ["183", 0], "sampler": ["179", 0],
            "sigmas": ["184", 0], "latent_image": ["182", 0]})),
        "194": node("ReferenceLatent", json!({"conditioning": ["201", 0], "latent": ["195", 0]})),
        "195": node("VAEEncode", json!({"pixels": ["196", 0], "vae": ["186", 0]})),
        "196": node("ImageScaleToTotalPixels",
            json!({"upscale_method": "lanczos", "megapixels": 0.01, "resolution_steps": 16, "image": ["159", 0]})),
        "201": node("CLIPTextEncode", json!({"text": ["202", 0], "clip": ["187", 0]})),
        "202": node("PrimitiveStringMultiline", json!({"value": "make it green"})),
        "212": node("ConditioningZeroOut", json!({"conditioning": ["194", 0]})),
        "220": node("PrimitiveBoolean", json!({"value": false})),
        "221": node("ComfySwitchNode", json!({"switch": ["220", 0], "on_false": ["194", 0], "on_true": ["200", 0]})),
        "200": node("OddReference", json!({"conditioning": ["194", 0]})),
        "223": node("GetImageSizeAndCount", json!({"image": ["196", 0]})),
        "300": node("MarkdownNote", json!({})),
        "301": node("ImageCompare", json!({"image_a": ["159", 0], "image_b": ["180", 0]})),
    })
}

#[test]
fn a_public_edit_runs_and_says_what_it_ignores() {
    let serving = Serving::start(&[]);
    upload(&serving, "first.png", &png(112, 96, [200, 30, 30]));
    let (id, notes) = post(&serving, &public_edit(), "");
    for word in
        ["`choose file to upload`", "`control_after_generate`", "euler_ancestral", "301 (ImageCompare)", "node 10"]
    {
        assert!(notes.contains(word), "{word}: {notes}");
    }
    let told = history(&serving, &id);
    assert_eq!(told["status"]["status_str"], "success", "{told}");
    let image = read_bytes(&files(&serving, &told, "9")[0]).unwrap();
    assert_eq!([image.width, image.height], [112, 96]);
    let mut chosen = public_edit();
    chosen["220"]["inputs"]["value"] = json!(true);
    let refused = serving.post("/prompt", &json!({"prompt": chosen}));
    assert_eq!((refused.status, &refused.json()["node_errors"]["200"]["class_type"]), (400, &json!("OddReference")));
}

#[test]
fn generated_images_are_scaled_and_cropped_before_they_are_saved() {
    let serving = Serving::start(&[]);
    let mut graph = graph("text_to_image_distilled");
    let node = |class: &str, inputs: Value| json!({"class_type": class, "inputs": inputs});
    let image = |node: &str| json!([node, 0]);
    graph["200"] = node(
        "ImageScale",
        json!({"image": image("77:65"), "upscale_method": "nearest-exact", "width": 128, "height": 128,
            "crop": "disabled"}),
    );
    graph["201"] = node("ImageCrop", json!({"image": image("200"), "width": 32, "height": 16, "x": 64, "y": 0}));
    graph["202"] = node("SaveImage", json!({"images": image("200"), "filename_prefix": "large"}));
    graph["203"] = node("PreviewImage", json!({"images": image("201")}));
    graph["204"] = node("ImageScaleBy", json!({"image": image("77:65"), "upscale_method": "area", "scale_by": 0.5}));
    graph["205"] = node("SaveImageWebsocket", json!({"images": image("204")}));
    let mut socket = serving.socket("/ws?clientId=me", &[]).expect("a socket");
    let (id, notes) = post(&serving, &graph, "me");
    assert!(notes.contains("area"), "{notes}");
    let sent: Vec<_> = socket.until_over(&id).into_iter().filter_map(Result::err).collect();
    let sent = sent.iter().find(|frame| frame[..8] == [0, 0, 0, 1, 0, 0, 0, 2]).expect("the image");
    let small = read_bytes(&sent[8..]).unwrap();
    assert_eq!([small.width, small.height], [32, 32]);
    let told = history(&serving, &id);
    let pixels = |node: &str| read_bytes(&files(&serving, &told, node)[0]).unwrap();
    let (plain, large, part) = (pixels("78"), pixels("202"), pixels("203"));
    assert_eq!([plain.width, large.width, large.height, part.width, part.height], [64, 128, 128, 32, 16]);
    let at = |image: &flux::rgb::Rgb, x: usize, y: usize| image.bytes[3 * (y * image.width + x)..][..3].to_vec();
    for (x, y) in [(0, 0), (31, 15), (7, 3)] {
        assert_eq!(at(&part, x, y), at(&plain, 32 + x / 2, y / 2), "{x} {y}");
    }
    let name = |node: &str| told["outputs"][node]["images"][0]["filename"].as_str().unwrap().to_string();
    let whole = serving.get(&format!("/view?filename={}&type=output", name("202"))).body;
    let keys: Vec<_> = chunks(&whole).into_iter().map(|(key, _)| key).collect();
    assert!(keys.contains(&"prompt".to_string()) && keys.contains(&"parameters".to_string()), "{keys:?}");
    // A result can be the input of the next graph, like an upload.
    let mut edit = public_edit();
    edit["159"]["inputs"]["image"] = json!(format!("{} [output]", name("202")));
    assert_eq!(history(&serving, &post(&serving, &edit, "").0)["status"]["status_str"], "success");
    let mut bomb = super::comfy::graph("text_to_image_distilled");
    let huge = json!({"image": image("77:65"), "upscale_method": "lanczos", "width": 4096, "height": 4096,
        "crop": "disabled"});
    for number in 0..16 {
        bomb[format!("s{number}")] = node("ImageScale", huge.clone());
        bomb[format!("o{number}")] =
            node("SaveImage", json!({"images": image(&format!("s{number}")), "filename_prefix": "x"}));
    }
    assert_eq!(serving.post("/prompt", &json!({"prompt": bomb})).status, 400, "too many pixels");
}

#[test]
fn files_hold_the_graph_and_the_workflow() {
    let serving = Serving::start(&[]);
    let mut graph = graph("text_to_image_distilled");
    graph["77:74"]["inputs"]["text"] = json!("ein r\u{f6}ter Kreis \u{1f534}\n");
    let workflow = json!({"last_node_id": 3, "nodes": [{"id": 3, "type": "Note", "title": "gr\u{fc}n"}], "links": []});
    let extra = json!({"extra_pnginfo": {"workflow": workflow, "other": 1}, "auth_token": "secret"});
    let body = json!({"prompt": graph, "client_id": 7, "extra_data": extra, "user_id": 7, "number": 1, "front": false});
    let reply = serving.post("/api/prompt", &body).json();
    let notes = reply["flux"]["notes"].to_string();
    for word in ["`user_id`", "`number`", "`other`", "`auth_token`"] {
        assert!(notes.contains(word), "{word}: {notes}");
    }
    assert!(!notes.contains("workflow"), "{notes}");
    let told = history(&serving, reply["prompt_id"].as_str().unwrap_or_else(|| panic!("{reply}")));
    let image = &told["outputs"]["78"]["images"][0];
    let path = format!("/view?filename={}&type=output", image["filename"].as_str().unwrap());
    let file = serving.get(&path).body;
    let chunks = chunks(&file);
    let text = |key: &str| {
        let text = &chunks.iter().find(|(known, _)| known == key).unwrap_or_else(|| panic!("{key}")).1;
        serde_json::from_str::<Value>(text).expect("JSON")
    };
    assert_eq!((text("prompt"), text("workflow")), (graph, workflow));
    // A text that is not Latin-1 is in a chunk of another kind.
    assert!(file.windows(9).any(|bytes| bytes == b"iTXtflux\0"), "the recipe is there, too");
    let large = json!({"prompt": super::comfy::graph("text_to_image_distilled"),
        "extra_data": {"extra_pnginfo": {"workflow": {"x": "y".repeat(1 << 20)}}}});
    assert!(serving.post("/prompt", &large).json()["flux"]["notes"].to_string().contains("`workflow`"));
}

#[test]
fn graphs_that_are_saved_and_not_exported_are_answered_with_how_to_export_them() {
    let serving = Serving::start(&[]);
    let saved = json!({"last_node_id": 9, "nodes": [{"id": 3, "type": "KSampler", "inputs": [], "widgets_values": [1]}],
        "links": [], "version": 0.4});
    let newer = json!({"id": "x", "revision": 0, "nodes": [], "links": [], "definitions": {"subgraphs": []}});
    for body in [
        json!({"prompt": saved}),
        saved.clone(),
        newer.clone(),
        json!({"prompt": newer, "client_id": "x"}),
        json!({"workflow": saved}),
        json!({"prompt": {"workflow": saved}}),
        json!({"client_id": "x", "prompt": {"prompt": saved}}),
    ] {
        let reply = serving.post("/prompt", &body);
        let text = reply.json()["error"].to_string();
        assert!(reply.status == 400 && text.contains("Export (API)"), "{body}: {text}");
    }
    let bare = serving.post("/prompt", &graph("ksampler"));
    assert!(bare.status == 400 && bare.json()["error"]["details"].to_string().contains("`prompt`"), "{}", bare.json());
}

#[test]
fn memory_is_given_back_and_models_are_opened_again() {
    let serving = Serving::start(&[]);
    let is_open = || serving.get("/v1/models").json()["data"][0]["flux"].is_object();
    until("the model is open", is_open);
    assert_eq!(serving.post("/free", &json!({"free_memory": true, "other": 1})).status, 200);
    assert!(is_open());
    assert_eq!(serving.post("/api/free", &json!({"unload_models": true, "free_memory": true})).status, 200);
    until("the model is closed", || !is_open());
    let (id, _) = post(&serving, &graph("text_to_image_distilled"), "");
    assert_eq!(history(&serving, &id)["status"]["status_str"], "success");
    assert!(is_open());
    for (path, body) in [
        ("/interrupt", json!({"x": 1})),
        ("/queue", json!({"clear": true, "x": 1})),
        ("/history", json!({"delete": ["none"], "x": 1})),
    ] {
        assert_eq!(serving.post(path, &body).status, 200, "{path}");
    }
}

/// Returns the graph of a sampler whose image is node 6, saved by node 8, with these nodes added or replaced.
fn one_image(more: Value) -> Value {
    let mut graph = graph("ksampler");
    graph["4"]["inputs"]["batch_size"] = json!(1);
    graph["8"] = node("SaveImage", json!({"images": ["6", 0], "filename_prefix": "first"}));
    graph.as_object_mut().unwrap().remove("7");
    graph.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    graph
}

fn node(class: &str, inputs: Value) -> Value {
    json!({"class_type": class, "inputs": inputs})
}

#[test]
fn a_second_sampler_edits_the_image_of_the_first() {
    let serving = Serving::start(&[]);
    let mut socket = serving.socket("/ws?clientId=me", &[]).expect("a socket");
    let mut second = graph("ksampler")["5"].clone();
    second["inputs"]["latent_image"] = json!(["encode", 0]);
    second["inputs"]["denoise"] = json!(0.5);
    second["inputs"]["seed"] = json!(9);
    let passes = |image: &str| {
        json!({
            "large": node("ImageScaleBy", json!({"image": [image, 0], "upscale_method": "lanczos", "scale_by": 2})),
            "encode": node("VAEEncode", json!({"pixels": ["large", 0], "vae": ["1", 2]})),
            "50": second,
            "decode": node("VAEDecode", json!({"samples": ["50", 0], "vae": ["1", 2]})),
            "save": node("SaveImage", json!({"images": ["decode", 0], "filename_prefix": "second"})),
        })
    };
    let (id, _) = post(&serving, &one_image(passes("6")), "me");
    let events: Vec<_> = socket.until_over(&id).into_iter().filter_map(Result::ok).collect();
    let told = history(&serving, &id);
    assert_eq!(told["status"]["status_str"], "success", "{told}");
    let is_begun = |event: &Value, id: &str| event["type"] == "executing" && event["data"]["node"] == *id;
    for id in ["1", "5", "50", "save"] {
        assert_eq!(events.iter().filter(|event| is_begun(event, id)).count(), 1, "node {id} runs once");
    }
    let image = read_bytes(&files(&serving, &told, "save")[0]).unwrap();
    assert_eq!([image.width, image.height], [128, 128]);
    // The same in two graphs, by way of a file.
    let first = &told["outputs"]["8"]["images"][0]["filename"];
    let load = node("LoadImage", json!({"image": format!("{} [output]", first.as_str().unwrap())}));
    let mut alone = one_image(passes("load"));
    alone["load"] = load;
    alone["8"]["inputs"]["images"] = json!(["decode", 0]);
    assert_eq!(read_bytes(&drawn_by(&serving, &alone, "save")[0]).unwrap(), image);
    // A latent is enlarged by its pixels.
    let mut latent = one_image(passes("6"));
    latent["encode"] = node("LatentUpscaleBy", json!({"samples": ["5", 0], "upscale_method": "area", "scale_by": 2}));
    assert_eq!(read_bytes(&drawn_by(&serving, &latent, "save")[0]).unwrap(), image);
}

#[test]
fn a_second_sampler_above_a_megapixel_is_a_second_pass_of_the_command_line() {
    if !takes_long_form() {
        return; // It takes a minute on two cores.
    }
    let serving = Serving::start(&[]);
    let sigmas = |side: u64| node("Flux2Scheduler", json!({"steps": 2, "width": side, "height": side}));
    let sampler = |sigmas: Value, latent: Value| {
        node(
            "SamplerCustomAdvanced",
            json!({"noise": ["noise", 0], "guider": ["guider", 0], "sampler": ["euler", 0], "sigmas": sigmas,
                "latent_image": latent}),
        )
    };
    let graph = one_image(json!({
        "4": node("EmptyFlux2LatentImage", json!({"width": 544, "height": 544, "batch_size": 1})),
        "noise": node("RandomNoise", json!({"noise_seed": 5})),
        "euler": node("KSamplerSelect", json!({"sampler_name": "euler"})),
        "guider": node("BasicGuider", json!({"model": ["1", 0], "conditioning": ["2", 0]})),
        "first": sigmas(544),
        "5": sampler(json!(["first", 0]), json!(["4", 0])),
        "large": node("ImageScaleBy", json!({"image": ["6", 0], "upscale_method": "lanczos", "scale_by": 2})),
        "encode": node("VAEEncode", json!({"pixels": ["large", 0], "vae": ["1", 2]})),
        "second": sigmas(1088),
        "half": node("SplitSigmas", json!({"sigmas": ["second", 0], "step": 1})),
        "50": sampler(json!(["half", 1]), json!(["encode", 0])),
        "decode": node("VAEDecode", json!({"samples": ["50", 0], "vae": ["1", 2]})),
        "8": node("SaveImage", json!({"images": ["decode", 0], "filename_prefix": "second"})),
    }));
    let image = &drawn_by(&serving, &graph, "8")[0];
    let hires = drawn(&[], "'a red circle' --size 544 -s 2 --hires 2 --hires-strength 0.5 --no-hires-reference");
    assert_eq!(read_bytes(image).unwrap(), read_bytes(&hires).unwrap());
    let is_recipe = |(key, _): &(String, String)| ["flux", "parameters"].contains(&&**key);
    assert!(!chunks(image).iter().any(is_recipe), "no recipe states such an edit");
}

#[test]
fn texts_with_areas_are_regions_of_the_command_line() {
    let serving = Serving::start(&[]);
    let mut graph = graph("text_to_image_distilled");
    let text = |text: &str| node("CLIPTextEncode", json!({"text": text, "clip": graph["77:74"]["inputs"]["clip"]}));
    let nodes = json!({
        "left": text("a red circle"),
        "area": node("ConditioningSetArea", json!({"conditioning": ["left", 0], "x": 0, "y": 0, "width": 32,
            "height": 64, "strength": 1.0})),
        "right": text("a blue star"),
        "share": node("ConditioningSetAreaPercentage", json!({"conditioning": ["right", 0], "x": 0.5, "y": 0.0,
            "width": 0.5, "height": 1.0, "strength": 1.0})),
        "both": node("ConditioningCombine", json!({"conditioning_1": ["area", 0], "conditioning_2": ["share", 0]})),
        "all": node("ConditioningCombine", json!({"conditioning_1": ["77:74", 0], "conditioning_2": ["both", 0]})),
    });
    graph.as_object_mut().unwrap().extend(nodes.as_object().unwrap().clone());
    graph["77:63"]["inputs"]["positive"] = json!(["all", 0]);
    let regions = "--region '0,0,1000,500:a red circle' --region '0,500,1000,1000:a blue star'";
    let expected = drawn(&[], &format!("'a red circle' --size 64 -s 4 {regions}"));
    assert_eq!(drawn_by(&serving, &graph, "78"), [expected]);
}
