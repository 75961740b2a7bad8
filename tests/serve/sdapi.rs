//! The API of A1111: requests as its clients send them.

use flux::input::read_bytes;
use serde_json::json;

use super::*;
use crate::serving::request;

/// What SillyTavern sends to draw.
fn sillytavern(prompt: &str) -> Value {
    json!({
        "prompt": prompt, "negative_prompt": "lowres", "sampler_name": "Euler a", "scheduler": "Automatic", "steps": 20,
        "cfg_scale": 7, "width": 64, "height": 64, "restore_faces": false, "enable_hr": false, "hr_upscaler": "Latent",
        "hr_scale": 2, "hr_additional_modules": [], "denoising_strength": 0.7, "hr_second_pass_steps": 0, "seed": 5,
        "override_settings": {"CLIP_stop_at_last_layers": 1, "sd_vae": "Automatic", "forge_additional_modules": []},
        "override_settings_restore_afterwards": true, "clip_skip": 1, "save_images": true, "send_images": true,
        "do_not_save_grid": false, "do_not_save_samples": false, "subseed": -1, "n_iter": 1, "batch_size": 1
    })
}

fn info(reply: &Reply) -> Value {
    serde_json::from_str(reply.json()["info"].as_str().expect("info is a text")).expect("of JSON")
}

#[test]
fn an_image_is_drawn_as_its_clients_ask_for_it() {
    let serving = Serving::start(&[]);
    let reply = serving.post("/sdapi/v1/txt2img", &sillytavern("a cat"));
    let answer = reply.json();
    assert_eq!(reply.status, 200, "{answer}");
    let image = decoded(&answer["images"][0]);
    assert!(image.starts_with(b"\x89PNG"));
    assert_eq!(answer["parameters"]["steps"], 20, "the request comes back");
    let info = info(&reply);
    assert_eq!((&info["seed"], &info["all_seeds"], &info["steps"]), (&json!(5), &json!([5]), &json!(4)));
    assert!(
        info["infotexts"][0].as_str().is_some_and(|text| text.starts_with("a cat\nNegative prompt: \nSteps: 4")),
        "{info}"
    );
    let notes = info["notes"].to_string();
    assert!(notes.contains("steps 20") && notes.contains("hr_scale"), "{notes}");
    let same = json!({"prompt": "a cat", "size": "64x64", "seed": 5});
    assert_eq!(images(&serving.post("/v1/images/generations", &same))[0], image, "the image of the other routes");

    assert!(!notes.contains("override_settings"), "what holds anyway: {notes}");
    let other = with(sillytavern("a cat"), json!({"override_settings": {"sd_vae": "other.safetensors"}}));
    let notes = self::info(&serving.post("/sdapi/v1/txt2img", &other))["notes"].to_string();
    assert!(notes.contains("override_settings.sd_vae"), "{notes}");

    let honours = Serving::start(&["--sdapi-steps", "honour"]);
    let reply = honours.post("/sdapi/v1/txt2img", &with(sillytavern("a cat"), json!({"steps": 9})));
    assert_eq!(self::info(&reply)["steps"], 9);
    let several = with(sillytavern("a cat"), json!({"batch_size": 2, "n_iter": 2, "send_images": false}));
    let reply = serving.post("/sdapi/v1/txt2img", &several);
    assert_eq!((&self::info(&reply)["all_seeds"], &reply.json()["images"]), (&json!([5, 6, 7, 8]), &json!([])));
    let random =
        serving.post("/sdapi/v1/txt2img", &json!({"prompt": "x", "width": 64, "height": 64, "steps": 1, "seed": -1}));
    assert_eq!(random.status, 200);
}

#[test]
fn an_image_is_changed_under_a_mask() {
    let serving = Serving::start(&[]);
    let red = png(64, 64, [200, 30, 30]);
    let mut mask = Rgb { width: 64, height: 64, bytes: vec![0; 3 * 64 * 64] };
    mask.bytes[..3 * 64 * 32].fill(255);
    let mask = encode(&mask, ImageFormat::Png, &flux::metadata::Metadata::default()).unwrap();
    let body = json!({
        "prompt": "a cat", "steps": 2, "seed": 5, "denoising_strength": 1, "mask_blur": 0,
        "init_images": [format!("data:image/png;base64,{}", STANDARD.encode(&red))], "mask": STANDARD.encode(&mask)
    });
    let kept = |body: &Value, rows: std::ops::Range<usize>| {
        let reply = serving.post("/sdapi/v1/img2img", body);
        assert_eq!(reply.status, 200, "{}", reply.json());
        let image = read_bytes(&decoded(&reply.json()["images"][0])).unwrap();
        image.bytes[3 * 64 * rows.start..3 * 64 * rows.end].chunks(3).all(|pixel| pixel == [200, 30, 30])
    };
    assert!(kept(&body, 32..64) && !kept(&body, 0..32), "white is drawn anew");
    let inverted = with(body.clone(), json!({"inpainting_mask_invert": 1}));
    assert!(kept(&inverted, 0..32) && !kept(&inverted, 32..64));
    let wrong = |more: Value| {
        let reply = serving.post("/sdapi/v1/img2img", &with(body.clone(), more));
        (reply.status, reply.json()["error"].as_str().unwrap_or_default().to_string())
    };
    assert_eq!(wrong(json!({"init_images": []})), (400, "missing_required_parameter".to_string()));
    assert_eq!(wrong(json!({"init_images": ["!!"]})), (400, "invalid_value".to_string()));
    assert_eq!(wrong(json!({"init_images": ["http://localhost/x.png"]})), (400, "invalid_value".to_string()));
    let reply = serving.post("/sdapi/v1/img2img", &with(body.clone(), json!({"width": 128})));
    assert_eq!((reply.status, &info(&reply)["width"]), (200, &json!(64)), "the image gives the size");
    assert!(info(&reply)["notes"].to_string().contains("width and height"), "{}", info(&reply));
    assert_eq!(wrong(json!({"denoising_strength": 2})).0, 400);
}

#[test]
fn lists_and_options_are_what_clients_expect() {
    let serving = Serving::start(&[]);
    for path in
        ["sd-models", "samplers", "schedulers", "upscalers", "latent-upscale-modes", "sd-vae", "sd-modules", "loras"]
    {
        let list = serving.get(&format!("/sdapi/v1/{path}")).json();
        assert!(list.is_array(), "{path}");
    }
    let model = serving.get("/sdapi/v1/sd-models").json()[0].clone();
    assert_eq!((&model["title"], &model["filename"]), (&json!("tiny"), &json!("tiny")), "no path");
    assert_eq!(serving.get("/sdapi/v1/options").json()["sd_model_checkpoint"], "tiny");
    assert_eq!(serving.post("/sdapi/v1/options", &json!({"sd_model_checkpoint": "tiny [abc]", "x": 1})).status, 200);
    let reply = serving.post("/sdapi/v1/options", &json!({"sd_model_checkpoint": "none"}));
    assert_eq!((reply.status, &reply.json()["error"]), (404, &json!("model_not_found")));
    assert_eq!(serving.post("/sdapi/v1/refresh-checkpoints", &json!({})).json(), json!({}));
    assert_eq!(serving.get("/sdapi/v1/scripts").json()["txt2img"], json!([]));
    let reply = serving.post("/sdapi/v1/txt2img", &sillytavern("a cat"));
    let told = serving.post("/sdapi/v1/png-info", &json!({"image": reply.json()["images"][0]})).json();
    assert!(told["info"].as_str().is_some_and(|text| text.contains("Seed: 5")), "{told}");
}

#[test]
fn progress_and_interrupt_are_the_client_s_own() {
    let serving = Serving::start(&[]);
    let idle = serving.get("/sdapi/v1/progress").json();
    assert_eq!((&idle["progress"], &idle["state"]["job_count"]), (&json!(0.0), &json!(0)));
    let other = serving.post("/v1/jobs", &endless()).json()["urls"]["self"].clone();
    let other = other.as_str().unwrap();
    until("that of another runs", || serving.get(other).json()["status"] == "running");
    let body = with(sillytavern("x"), json!({"width": 512, "height": 512})).to_string();
    let head = ["Content-Type: application/json"];
    let running = serving.begin(&request("POST", "/sdapi/v1/txt2img", &head, body.as_bytes()));
    until("it is known", || serving.get("/sdapi/v1/progress").json()["state"]["job_count"] == 1);
    assert!(serving.get("/sdapi/v1/progress").json()["progress"].as_f64().is_some_and(|progress| progress > 0.0));
    assert_eq!(serving.post("/sdapi/v1/interrupt", &json!({})).status, 200);
    let reply = crate::serving::read_reply(running);
    assert_eq!((reply.status, &reply.json()["images"]), (200, &json!([])));
    assert_eq!(serving.get(other).json()["status"], "running", "that of another is not ended");
    serving.ask("DELETE", other, &[], b"");
}

#[test]
fn adapters_are_named_in_the_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ink.safetensors");
    crate::cli::again::write_adapter(&file, 0.3);
    let serving = Serving::start(&["--lora", file.to_str().unwrap()]);
    assert_eq!(serving.get("/sdapi/v1/loras").json()[0]["name"], "ink");
    let plain = serving.post("/sdapi/v1/txt2img", &sillytavern("a cat"));
    let inked = serving.post("/sdapi/v1/txt2img", &sillytavern("a cat <lora:ink:0.8>"));
    assert_eq!(info(&inked)["prompt"], "a cat");
    assert_ne!(plain.json()["images"], inked.json()["images"]);
}
