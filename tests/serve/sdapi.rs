//! The API of A1111: requests as its clients send them.

use flux::input::read_bytes;
use serde_json::json;

use super::*;
use crate::serving::request;

/// Returns SillyTavern's request for an image.
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
    for told in ["steps 20", "negative_prompt", "cfg_scale 7", "euler a"] {
        assert!(notes.contains(told), "{told}: {notes}");
    }
    for silent in ["hr_", "clip_skip", "denoising_strength", "save_images", "subseed", "scheduler"] {
        assert!(!notes.contains(silent), "{silent}: {notes}");
    }
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
    let images = |prompt: &str| {
        let reply = serving.post("/sdapi/v1/txt2img", &sillytavern(prompt));
        (reply.json()["images"].clone(), info(&reply)["notes"].to_string())
    };
    let (same, notes) = images("a cat <lora:styles/Ink.safetensors:0.8>");
    assert!(same == inked.json()["images"] && !notes.contains("lora"), "{notes}");
    let (without, notes) = images("a cat <lora:styles/missing:1>");
    assert!(without == plain.json()["images"] && notes.contains("<lora:styles/missing:1>"), "{notes}");
    let lora =
        json!({"prompt": "a cat", "size": "64x64", "seed": 5, "loras": [{"name": "x/INK.safetensors", "weight": 0.8}]});
    let reply = serving.post("/v1/images/generations", &lora);
    assert_eq!(crate::serve::images(&reply)[0], decoded(&inked.json()["images"][0]), "the rule of all routes");
}

#[test]
fn a_subseed_varies_the_image_of_the_seed() {
    let serving = Serving::start(&[]);
    let draw = |seeds: Value| {
        let mut body = sillytavern("a cat");
        body.as_object_mut().unwrap().extend(seeds.as_object().unwrap().clone());
        serving.post("/sdapi/v1/txt2img", &body)
    };
    let image = |reply: &Reply| reply.json()["images"][0].clone();
    let [base, own] = [42, 7].map(|seed| image(&draw(json!({"seed": seed}))));
    let varied = |strength: f64| draw(json!({"seed": 42, "subseed": 7, "subseed_strength": strength}));
    let half = varied(0.5);
    let pixels = |image: &Value| read_bytes(&decoded(image)).unwrap();
    assert!(pixels(&image(&varied(0.0))) == pixels(&base) && pixels(&image(&varied(1.0))) == pixels(&own));
    assert!([&base, &own].iter().all(|other| pixels(&image(&half)) != pixels(other)));
    let info = info(&half);
    assert_eq!([&info["seed"], &info["subseed"], &info["subseed_strength"]], [&json!(42), &json!(7), &json!(0.5)]);
    let text = info["infotexts"][0].to_string();
    assert!(text.contains("Seed: 42, Variation seed: 7, Variation seed strength: 0.5"), "{text}");
}

#[test]
fn weights_of_words_are_left_out() {
    let serving = Serving::start(&[]);
    let draw = |prompt: &str| serving.post("/sdapi/v1/txt2img", &sillytavern(prompt));
    let (plain, weighted) = (draw("red heart (big)"), draw(r"(red:1.5) heart \(big\)"));
    assert_eq!(weighted.json()["images"], plain.json()["images"]);
    assert_eq!(
        (&info(&weighted)["prompt"], info(&plain)["notes"].to_string().contains("weight")),
        (&"red heart (big)".into(), false)
    );
    assert!(info(&weighted)["notes"].to_string().contains("`(red:1.5)`"));
}

#[test]
fn what_is_not_here_is_told_and_what_changes_nothing_is_not() {
    let serving = Serving::start(&[]);
    let notes = |more: Value| {
        let body =
            with(json!({"prompt": "a (red:1.2) circle", "width": 128, "height": 128, "steps": 1, "seed": 5}), more);
        let reply = serving.post("/sdapi/v1/txt2img", &body);
        assert_eq!(reply.status, 200, "{}", reply.json());
        info(&reply)["notes"].to_string()
    };
    let unit = json!({"enabled": true, "module": "canny", "model": "c", "image": "iVBORw0KGgo="});
    for (more, told) in [
        (json!({"alwayson_scripts": {"ControlNet": {"args": [unit]}}}), "ControlNet"),
        (json!({"script_name": "SD upscale", "script_args": [1]}), "script_name"),
        (json!({"negative_prompt": "text"}), "negative_prompt"),
        (json!({"cfg_scale": 7}), "cfg_scale"),
        (json!({"enable_hr": true, "hr_upscaler": "Latent"}), "hr_upscaler"),
        (json!({"enable_hr": true, "hr_negative_prompt": "text"}), "hr_negative_prompt"),
        (json!({"sampler_name": "DPM++ 2M"}), "dpm++ 2m"),
        (json!({"scheduler": "Karras"}), "karras"),
        (json!({"override_settings": {"sd_vae": "x"}}), "override_settings.sd_vae"),
        (json!({}), "(red:1.2)"),
    ] {
        assert!(notes(more.clone()).contains(told), "{more}: {}", notes(more.clone()));
    }
    let usual = notes(
        json!({"prompt": "a circle", "eta": 1, "s_noise": 1, "s_churn": 0, "sampler_name": "Euler", "cfg_scale": 1,
        "alwayson_scripts": {"ControlNet": {"args": []}}, "script_name": null, "script_args": [], "negative_prompt": ""}),
    );
    assert_eq!(usual, "[]");
}

#[test]
fn an_image_is_resized_as_asked_and_a_mask_with_it() {
    let serving = Serving::start(&[]);
    let mut halves = Rgb { width: 128, height: 64, bytes: vec![20; 3 * 128 * 64] };
    halves
        .bytes
        .chunks_exact_mut(3)
        .enumerate()
        .filter(|(at, _)| at % 128 >= 64)
        .for_each(|(_, pixel)| pixel.fill(220));
    let image = encode(&halves, ImageFormat::Png, &flux::metadata::Metadata::default()).unwrap();
    let body = json!({"prompt": "a cat", "steps": 1, "seed": 5, "denoising_strength": 1, "init_images": STANDARD.encode(&image)});
    let drawn = |more: Value| {
        let reply = serving.post("/sdapi/v1/img2img", &with(body.clone(), more));
        assert_eq!(reply.status, 200, "{}", reply.json());
        (read_bytes(&decoded(&reply.json()["images"][0])).unwrap(), info(&reply)["notes"].to_string())
    };
    let size = |more: Value| {
        let (image, notes) = drawn(more);
        ([image.width, image.height], notes)
    };
    assert_eq!(size(json!({})).0, [128, 64], "its own size");
    for mode in 0..=3 {
        let (size, notes) = size(json!({"width": 64, "height": 96, "resize_mode": mode}));
        assert_eq!((size, notes.contains("resize_mode")), ([64, 96], mode == 3), "{notes}");
    }
    let (reduced, notes) = size(json!({"width": 100, "height": 64}));
    assert!(reduced == [96, 64] && notes.contains("100x64 becomes 96x64"), "{notes}");
    // White is regenerated, and the rest is the resized image.
    let mut mask = Rgb { width: 32, height: 32, bytes: vec![0; 3 * 32 * 32] };
    mask.bytes[..3 * 32 * 16].fill(255);
    let mask = STANDARD.encode(encode(&mask, ImageFormat::Png, &flux::metadata::Metadata::default()).unwrap());
    for (more, expected) in [
        (json!({}), [128, 64]),
        (json!({"width": 64, "height": 64}), [64, 64]),
        (json!({"inpaint_full_res": true, "inpaint_full_res_padding": 8}), [128, 64]),
        (json!({"inpaint_full_res": true, "width": 64, "height": 64}), [128, 64]),
        (json!({"mask_blur": 1000}), [128, 64]),
    ] {
        let more = with(more, json!({"mask": mask, "denoising_strength": 1}));
        let (image, notes) = drawn(more.clone());
        assert_eq!([image.width, image.height], expected, "{more}");
        assert!(notes.contains("the mask of 32x32"), "{notes}");
        let last = &image.bytes[image.bytes.len() - 3..];
        assert!(more["mask_blur"] == 1000 || last == [220; 3], "{more}: {last:?}");
    }
    let (_, notes) =
        drawn(json!({"mask": mask, "inpaint_full_res": true, "width": 64, "height": 64, "inpainting_fill": 2}));
    assert!(notes.contains("inpaint_full_res") && notes.contains("inpainting_fill 2"), "{notes}");
    let large = with(body.clone(), json!({"width": 16384, "height": 16384}));
    assert_eq!(serving.post("/sdapi/v1/img2img", &large).status, 400);
}

#[test]
fn images_come_in_every_form_of_base64() {
    let serving = Serving::start(&[]);
    let text = STANDARD.encode(png(64, 64, [200, 30, 30]));
    let lines: String = text.as_bytes().chunks(76).map(|line| format!("{}\n", str::from_utf8(line).unwrap())).collect();
    let body = |image: Value| json!({"prompt": "x", "steps": 1, "seed": 5, "init_images": image});
    let first = serving.post("/sdapi/v1/img2img", &body(json!([text]))).json()["images"].clone();
    for image in [
        json!(text),
        json!([lines]),
        json!([text.trim_end_matches('=')]),
        json!([text.replace('+', "-").replace('/', "_")]),
        json!([format!("data:image/png;base64,{lines}")]),
    ] {
        assert_eq!(serving.post("/sdapi/v1/img2img", &body(image)).json()["images"], first);
    }
}

#[test]
fn png_info_reads_every_format_and_parses_settings() {
    let serving = Serving::start(&[]);
    let image = Rgb { width: 64, height: 64, bytes: vec![90; 3 * 64 * 64] };
    let parameters = "a cat, \"it\"\nNegative prompt: a dog\nSteps: 20, Sampler: Euler a, Seed: 5, Size: 512x768, Lora hashes: \"a: 1, b: 2\"";
    for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Webp] {
        let metadata = flux::metadata::Metadata { parameters: Some(parameters.to_string()), ..Default::default() };
        let file = STANDARD.encode(encode(&image, format, &metadata).unwrap());
        let told = serving.post("/sdapi/v1/png-info", &json!({"image": file})).json();
        assert_eq!(
            (&told["info"], &told["items"]["parameters"]),
            (&json!(parameters), &json!(parameters)),
            "{format:?}"
        );
        let expected = json!({"Prompt": "a cat, \"it\"", "Negative prompt": "a dog", "Steps": "20", "Sampler": "Euler a",
            "Seed": "5", "Size-1": "512", "Size-2": "768", "Lora hashes": "a: 1, b: 2"});
        assert_eq!(told["parameters"], expected, "{format:?}");
    }
    let plain = STANDARD.encode(encode(&image, ImageFormat::Jpeg, &flux::metadata::Metadata::default()).unwrap());
    let told = serving.post("/sdapi/v1/png-info", &json!({"image": plain})).json();
    assert_eq!((&told["info"], &told["parameters"]), (&json!(""), &json!({})));
}

#[test]
fn routes_that_are_not_here_answer_in_the_form_of_a1111() {
    let serving = Serving::start(&[]);
    for path in ["interrogate", "create/embedding", "server-kill"] {
        let reply = serving.post(&format!("/sdapi/v1/{path}"), &json!({"image": ""}));
        assert_eq!((reply.status, &reply.json()["error"]), (501, &json!("not_implemented")), "{path}");
        assert!(reply.json()["detail"].is_string(), "{path}");
    }
    for path in ["unload-checkpoint", "reload-checkpoint", "interrupt", "skip"] {
        let reply = serving.post(&format!("/sdapi/v1/{path}"), &json!({}));
        assert_eq!((reply.status, reply.json()), (200, json!({})), "{path}");
    }
    assert_eq!(serving.get("/internal/ping").json(), json!({}));
    assert!(serving.get("/internal/sysinfo").json()["Version"].is_string());
    assert_eq!(serving.post("/internal/progress", &json!({"id_task": "x"})).json()["active"], false);
    let progress = serving.get("/sdapi/v1/progress?skip_current_image=true");
    assert_eq!((progress.status, &progress.json()["current_image"]), (200, &Value::Null));
    let unknown = serving.get("/sdapi/v1/none");
    assert_eq!((unknown.status, unknown.json()["detail"].is_string()), (404, true));
    let method = serving.get("/sdapi/v1/txt2img");
    assert_eq!((method.status, method.json()["detail"].is_string()), (405, true));
}

#[test]
fn enable_hr_adds_a_second_pass() {
    let serving = Serving::start(&["--max-pixels", "20000"]);
    let small = json!({"prompt": "a cat", "width": 64, "height": 64, "steps": 2, "seed": 5});
    let hires = |more: Value| with(small.clone(), with(json!({"enable_hr": true}), more));
    let made = |request: &Value| {
        let reply = serving.post("/sdapi/v1/txt2img", request);
        assert_eq!(reply.status, 200, "{}", reply.json());
        decoded(&reply.json()["images"][0])
    };
    let own = |hires: Value| {
        let request = json!({"prompt": "a cat", "size": "64x64", "steps": 2, "seed": 5, "hires": hires});
        images(&serving.post("/v1/images/generations", &request))[0].clone()
    };
    let doubled = own(json!(2));
    let size = |image: &[u8]| read_bytes(image).map(|image| [image.width, image.height]).unwrap();
    assert_eq!((size(&made(&small)), size(&doubled)), ([64, 64], [128, 128]));
    assert!(made(&hires(json!({"denoising_strength": 0.5, "hr_upscaler": "Lanczos"}))) == doubled);
    let whole = json!({"hr_resize_x": 96, "hr_resize_y": 80, "hr_second_pass_steps": 4, "hr_prompt": "a dog"});
    let expected = own(json!({"size": "96x80", "steps": 4, "prompt": "a dog", "strength": 0.25}));
    assert!(made(&hires(with(whole, json!({"denoising_strength": 0.25})))) == expected);
    for (more, told) in [
        (json!({"hr_scale": 3}), "expected at most 20000 pixels"),
        (json!({"hr_scale": 1}), "hr_scale"),
        (json!({"hr_upscaler": "../x.pth"}), "there is no upscaler"),
    ] {
        let reply = serving.post("/sdapi/v1/txt2img", &hires(more.clone()));
        let answer = reply.json().to_string();
        assert!((400..500).contains(&reply.status) && answer.contains(told), "{more}: {answer}");
    }
    for (wrong, told) in [
        (json!(9), "expected 1.25 to 4"),
        (json!({"by": 2, "x": 1}), "unknown field"),
        (json!({"by": 2, "upscaler": "/etc/passwd"}), "there is no upscaler"),
        (json!({"by": 3}), "expected at most 20000 pixels"),
        (json!({"by": 2, "strength": 2}), "expected 0 to 1"),
    ] {
        let request = json!({"prompt": "a cat", "size": "64x64", "steps": 1, "hires": wrong});
        let reply = serving.post("/v1/images/generations", &request);
        let answer = reply.json().to_string();
        assert!(reply.status == 400 && answer.contains(told), "{wrong}: {answer}");
    }
}

#[test]
fn fields_of_recipes_that_a1111_lacks_have_their_own_names() {
    let serving = Serving::start(&[]);
    let draw = |more: Value| {
        let small = json!({"prompt": "a cat", "width": 64, "height": 64, "steps": 2, "seed": 5});
        serving.post("/sdapi/v1/txt2img", &with(small, more))
    };
    let image = |more: Value| draw(more).json()["images"][0].as_str().expect("an image").to_string();
    let regions = json!([{"box": [0, 0, 1000, 500], "prompt": "a red circle"}]);
    let own = json!({"prompt": "a cat", "size": "64x64", "steps": 2, "seed": 5, "regions": regions});
    let own = serving.post("/v1/images/generations", &own).json()["data"][0]["b64_json"].clone();
    assert!(own == image(json!({"regions": regions})) && own != image(json!({})));
    assert_ne!(image(json!({"variety": "1:100:1"})), image(json!({})));
    let notes = |reply: Reply| info(&reply)["notes"].to_string();
    assert!(!notes(draw(json!({"variety": 0.5}))).contains("variety"));
    for wrong in [json!({"variety": 3}), json!({"regions": 3}), json!({"rng": "mine"})] {
        assert_eq!(draw(wrong.clone()).status, 400, "{wrong}");
    }
    let transparent = json!({"transparent": "key", "override_settings": {"samples_format": "jpg"}});
    assert_eq!(draw(transparent).status, 400);
}
