//! OpenAI's Images API.

use flux::input::{read_bytes, said_by};
use serde_json::json;

use super::*;
use crate::cli::again::write_adapter;
use crate::program::{Run, flux};

/// Returns the pixels of an image; its file also has the names of its input images.
fn pixels(reply: &Reply) -> Vec<u8> {
    read_bytes(&images(reply)[0]).expect("an image").bytes
}

#[test]
fn an_image_is_that_of_the_command_line() {
    let serving = Serving::start(&[]);
    let reply = serving.post("/v1/images/generations", &small("a red circle"));
    let answer = reply.json();
    assert_eq!(answer["size"], "64x64");
    assert_eq!(
        (&answer["output_format"], &answer["quality"], &answer["background"]),
        (&json!("png"), &json!("high"), &json!("opaque"))
    );
    assert_eq!(answer["usage"]["output_tokens"], 16);
    assert_eq!(answer["data"][0]["seed"], 5);
    assert!(answer["created"].as_u64().is_some_and(|time| time > 1_700_000_000));
    let folder = tempfile::tempdir().unwrap();
    let flags = ["a red circle", "--size", "64", "-s", "1", "-S", "5", "--device", "cpu", "-o", "out.png"];
    Run::new(flux().current_dir(folder.path()).args(flags)).succeeds();
    let file = std::fs::read(folder.path().join("out.png")).unwrap();
    assert_eq!(images(&reply)[0], file, "the same bytes");
    assert_eq!(answer["flux"]["recipes"][0]["recipe"]["seed"], 5);
}

#[test]
fn a_file_without_a_recipe_has_the_pixels_and_the_mark_alone() {
    let serving = Serving::start(&[]);
    let whole = serving.post("/v1/images/generations", &small("a zebra"));
    let private = with(small("a zebra"), json!({"recipe": false}));
    for format in ["png", "jpeg", "webp"] {
        let body = with(private.clone(), json!({"output_format": format}));
        let reply = serving.post("/v1/images/generations", &body);
        let file = &images(&reply)[0];
        let has = |word: &str| file.windows(word.len()).any(|bytes| bytes == word.as_bytes());
        assert!(!has("zebra") && !has("z\0e\0b") && has("trainedAlgorithmicMedia"), "{format}");
        assert_eq!(reply.json()["flux"]["recipes"][0]["recipe"]["prompt"], "a zebra", "the response has it");
        assert!(format == "jpeg" || pixels(&reply) == pixels(&whole), "{format}");
    }
    let job = serving.post("/v1/jobs", &private).json();
    let stream = serving.get(&format!("/v1/jobs/{}/events", job["id"].as_str().unwrap()));
    assert_eq!(stream.status, 200);
    let file = serving.get(&format!("/v1/jobs/{}/images/0", job["id"].as_str().unwrap())).body;
    assert_eq!(file, images(&serving.post("/v1/images/generations", &private))[0]);
    let wrong = serving.post("/v1/images/generations", &with(small("x"), json!({"recipe": "perhaps"})));
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("recipe")));
    let fields = json!({"prompt": "a zebra", "seed": 5, "steps": 1, "width": 64, "height": 64,
        "override_settings": {"enable_pnginfo": false}});
    let answer = serving.post("/sdapi/v1/txt2img", &fields).json();
    let file = STANDARD.decode(answer["images"][0].as_str().unwrap()).unwrap();
    assert!(
        flux::metadata::said_by(&file).unwrap().recipe.is_none() && !file.windows(5).any(|bytes| bytes == b"zebra")
    );
}

#[test]
fn several_images_have_the_seeds_that_follow() {
    let serving = Serving::start(&[]);
    let three = images(&serving.post("/v1/images/generations", &with(small("a cat"), json!({"n": 3}))));
    assert_eq!(three.len(), 3);
    for (image, seed) in three.iter().zip(5..) {
        let alone = serving.post("/v1/images/generations", &with(small("a cat"), json!({"seed": seed})));
        assert_eq!(images(&alone)[0], *image, "{seed}");
    }
}

#[test]
fn formats_and_urls_are_as_asked_for() {
    let serving = Serving::start(&[]);
    for (format, begins) in [("png", &b"\x89PNG"[..]), ("jpeg", b"\xff\xd8\xff"), ("webp", b"RIFF")] {
        let reply = serving.post("/v1/images/generations", &with(small("x"), json!({"output_format": format})));
        assert!(images(&reply)[0].starts_with(begins), "{format}");
        assert_eq!(reply.json()["output_format"], format);
    }
    let jpeg = |quality: u64| {
        let fields = json!({"output_format": "jpeg", "output_compression": quality});
        images(&serving.post("/v1/images/generations", &with(small("x"), fields)))[0].len()
    };
    assert!(jpeg(10) < jpeg(95));
    let reply = serving.post("/v1/images/generations", &with(small("x"), json!({"response_format": "url"})));
    let answer = reply.json();
    assert!(answer["data"][0]["b64_json"].is_null());
    let url = answer["data"][0]["url"].as_str().unwrap();
    let file = serving.get(url.strip_prefix("http://localhost").expect("a whole address"));
    assert_eq!((file.status, file.header("content-type")), (200, Some("image/png")));
    assert!(file.body.starts_with(b"\x89PNG"));
    assert_eq!(serving.get("/v1/files/0123.png").status, 404);
}

#[test]
fn any_name_of_a_model_is_the_default_one() {
    let serving = Serving::start(&[]);
    let models = serving.get("/v1/models").json();
    let details = &models["data"][0]["details"];
    let told = ["kind", "size", "steps", "is_distilled", "reads_boxes", "max_references"];
    let expected = serde_json::json!(["FLUX.2-klein", "256x256", 4, true, false, 16]);
    assert_eq!(told.iter().map(|key| details[key].clone()).collect::<serde_json::Value>(), expected);
    assert_eq!(models["flux"]["limits"]["images"], 10);
    let name = models["data"][0]["id"].as_str().unwrap().to_string();
    assert_eq!(serving.get(&format!("/v1/models/{name}")).json()["object"], "model");
    assert_eq!(serving.get("/v1/models/gpt-image-1").error().1, "model_not_found");
    let reply = serving.post("/v1/images/generations", &with(small("x"), json!({"model": "gpt-image-1"})));
    let notes = reply.json()["flux"]["notes"].to_string();
    assert!(notes.contains("gpt-image-1") && notes.contains(&name), "{notes}");
    let strict = Serving::start(&["--strict-models"]);
    let reply = strict.post("/v1/images/generations", &with(small("x"), json!({"model": "gpt-image-1"})));
    assert_eq!(reply.error(), (404, "model_not_found".to_string(), "model".to_string()));
    assert_eq!(strict.post("/v1/images/generations", &with(small("x"), json!({"model": name}))).status, 200);
}

#[test]
fn what_cannot_be_honoured_is_named() {
    let serving = Serving::start(&["--max-pixels", "40960"]);
    let wrong = |more: serde_json::Value| serving.post("/v1/images/generations", &with(small("x"), more)).error();
    for (more, code, param) in [
        (json!({"what": 1}), "unknown_parameter", "what"),
        (json!({"svg": true}), "unknown_parameter", "svg"),
        (json!({"image": "x"}), "unknown_parameter", "image"),
        (json!({"n": 0}), "invalid_value", "n"),
        (json!({"n": "two"}), "invalid_value", "n"),
        (json!({"num_images": 0}), "invalid_value", "num_images"),
        (json!({"prompt": 3}), "invalid_type", "prompt"),
        (json!({"prompt": "a\u{0}b"}), "invalid_value", "prompt"),
        (json!({"size": "256x256"}), "invalid_value", "size"),
        (json!({"size": "1x1"}), "invalid_value", "size"),
        (json!({"size": "99999999999999999999x64"}), "invalid_value", "size"),
        (json!({"seed": -2}), "invalid_value", "seed"),
        (json!({"steps": 2, "num_inference_steps": 3}), "invalid_value", "steps"),
        (json!({"seed": u64::MAX, "n": 2}), "invalid_value", "seed"),
        (json!({"steps": 0}), "invalid_value", "steps"),
        (json!({"loras": [{"name": "none"}]}), "invalid_value", "loras"),
        (json!({"background": "clear"}), "invalid_value", "background"),
        (json!({"background": "transparent", "output_format": "jpeg"}), "unsupported_value", "output_format"),
        (json!({"background": "transparent", "size": "640x64"}), "invalid_value", "transparent"),
    ] {
        assert_eq!(wrong(more.clone()), (400, code.to_string(), param.to_string()), "{more}");
    }
    assert_eq!(wrong(json!({"n": null, "what": null, "user": "u", "moderation": "low"})).0, 200);
}

#[test]
fn fields_of_other_apis_make_the_same_image() {
    let serving = Serving::start(&[]);
    let image = |fields: Value| images(&serving.post("/v1/images/generations", &fields)).remove(0);
    let own = image(json!({"prompt": "a cat", "size": "96x64", "steps": 2, "seed": 5}));
    for fields in [
        json!({"prompt": "a cat", "width": 96, "height": 64, "num_inference_steps": 2, "seed": 5, "batch_size": 1}),
        json!({"prompt": "a cat", "image_size": {"width": 96, "height": 64}, "steps": "2", "random_seed": "5", "n": "1"}),
        json!({"positive_prompt": "a cat", "width": "96", "height": 64.0, "sample_steps": 2.0, "seed": 5, "model": "",
            "negative": "", "stream": "false", "size": ""}),
    ] {
        assert_eq!(image(fields.clone()), own, "{fields}");
    }
    let random = |seed: Value| {
        let reply = serving.post("/v1/images/generations", &with(small("x"), json!({"seed": seed})));
        reply.json()["data"][0]["seed"].as_u64().expect("a seed")
    };
    assert_ne!(random(json!(-1)), random(json!("-1")));
    let wide = serving.post("/v1/images/generations", &json!({"prompt": "x", "steps": 1, "aspect_ratio": "2:1"}));
    let size = wide.json()["size"].as_str().unwrap().to_string();
    let sides: Vec<u64> = size.split('x').map(|side| side.parse().unwrap()).collect();
    assert!(sides[0] > sides[1] && sides[0].abs_diff(2 * sides[1]) <= 16, "{size}");
}

#[test]
fn all_wrong_fields_are_in_one_answer() {
    let serving = Serving::start(&[]);
    let wrong = json!({"prompt": "x", "n": 0, "size": "1x1", "guidance_scale": "high", "what": 1});
    let reply = serving.post("/v1/images/generations", &wrong);
    assert_eq!(reply.error(), (400, "invalid_value".to_string(), "size".to_string()));
    let answer = reply.json();
    let errors = answer["error"]["errors"].as_array().unwrap();
    let params: Vec<_> = errors.iter().map(|error| error["param"].as_str().unwrap()).collect();
    assert_eq!(params, ["size", "guidance_scale", "n", "what"]);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(errors.iter().all(|error| message.contains(error["message"].as_str().unwrap())), "{message}");
}

#[test]
fn clients_of_dall_e_get_whole_addresses() {
    let serving = Serving::start(&["--trust-proxy", "127.0.0.1"]);
    let url = |head: &[&str], model: &str| {
        let body = with(small("x"), json!({"model": model})).to_string();
        let head = [&["Content-Type: application/json"], head].concat();
        let answer = serving.ask("POST", "/v1/images/generations", &head, body.as_bytes()).json();
        answer["data"][0]["url"].as_str().map(str::to_string)
    };
    assert_eq!(url(&[], "gpt-image-1"), None);
    let own = url(&[], "dall-e-3").unwrap();
    assert!(own.starts_with("http://localhost/v1/files/"), "{own}");
    let proxied = ["X-Forwarded-Proto: https", "X-Forwarded-Host: flux.example", "X-Forwarded-Prefix: /flux"];
    let proxied = url(&proxied, "dall-e-2").unwrap();
    assert!(proxied.starts_with("https://flux.example/flux/v1/files/"), "{proxied}");
    // A response's image can be the input of the next request, behind any proxy.
    let edit = json!({"prompt": "green", "steps": 1, "images": [{"image_url": proxied}]});
    assert_eq!(images(&serving.post("/v1/images/edits", &edit)).len(), 1);
    let public = Serving::start(&["--public-url", "https://draw.example/a/"]);
    let answer = public.post("/v1/images/generations", &with(small("x"), json!({"response_format": "url"}))).json();
    let url = answer["data"][0]["url"].as_str().unwrap();
    assert!(url.starts_with("https://draw.example/a/v1/files/"), "{url}");
}

#[test]
fn a_stream_shows_the_steps_and_then_the_image() {
    let serving = Serving::start(&[]);
    let asked = json!({"prompt": "a cat", "size": "64x64", "steps": 4, "seed": 5, "stream": true, "partial_images": 2});
    let reply = serving.post("/v1/images/generations", &asked);
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = reply.events();
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    let partial = "image_generation.partial_image";
    assert_eq!(names, [partial, partial, "image_generation.completed"]);
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!(data["type"], *name);
        let image = read_bytes(&decoded(&data["b64_json"])).unwrap();
        assert_eq!(data["size"], format!("{}x{}", image.width, image.height));
        if *name == partial {
            assert_eq!(data["partial_image_index"], number);
        }
    }
    let (_, last) = &events[2];
    assert_eq!(last["usage"]["output_tokens"], 16);
    let whole = serving.post("/v1/images/generations", &with(asked, json!({"stream": false, "partial_images": 0})));
    assert_eq!(images(&whole)[0], decoded(&last["b64_json"]), "the same image");
    let text = String::from_utf8(reply.body).unwrap();
    assert!(text.contains(": step "), "progress is in comments: {}", &text[..200]);
    // Errors before the first byte are no stream.
    let wrong = serving.post("/v1/images/generations", &json!({"prompt": "x", "stream": true, "n": 99}));
    assert_eq!(wrong.error().0, 400);
}

#[test]
fn edits_take_images_and_masks() {
    let serving = Serving::start(&[]);
    let (red, blue) = (png(64, 64, [200, 30, 30]), png(64, 64, [30, 30, 200]));
    let fields: [crate::serving::Part<'_>; 3] =
        [("prompt", None, b"a circle"), ("steps", None, b"1"), ("seed", None, b"5")];
    let edit = |files: &[crate::serving::Part<'_>]| serving.form("/v1/images/edits", &[&fields[..], files].concat());
    let one = edit(&[("image", Some("upload"), &red)]);
    let answer = one.json();
    assert_eq!(one.status, 200, "{answer}");
    assert_eq!(
        (&answer["size"], &answer["usage"]["input_tokens_details"]["image_tokens"]),
        (&json!("64x64"), &json!(16))
    );
    let two = edit(&[("image[]", Some("a.png"), &red), ("image[]", Some("a.png"), &blue)]).json();
    assert_eq!(two["usage"]["input_tokens_details"]["image_tokens"], 32);

    // Opaque pixels are unchanged.
    let mut rgba = vec![255; 4 * 64 * 64];
    (0..64 * 32).for_each(|pixel| rgba[4 * pixel + 3] = 0);
    let mut mask = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut mask, 64, 64);
    encoder.set_color(::png::ColorType::Rgba);
    encoder.write_header().and_then(|mut writer| writer.write_image_data(&rgba)).unwrap();
    let reply = edit(&[("image", Some("a.png"), &red), ("mask", Some("mask.png"), &mask)]);
    let image = read_bytes(&images(&reply)[0]).unwrap();
    assert!(image.bytes[3 * 64 * 32..].chunks(3).all(|pixel| pixel == [200, 30, 30]), "the lower half");
    assert!(image.bytes[..3 * 64 * 32].chunks(3).any(|pixel| pixel != [200, 30, 30]), "the upper half is new");

    // A mask of another size is stretched, with a note.
    let reply = edit(&[("image", Some("a.png"), &red), ("mask", Some("m.png"), &png(32, 48, [255; 3]))]);
    assert!(reply.status == 200 && reply.json()["flux"]["notes"].to_string().contains("32x48"), "{}", reply.json());

    let (image, black) = (("image", Some("a.png"), &red[..]), png(64, 64, [0; 3]));
    let sides = |right: usize| json!({"left": 0, "top": 0, "right": right, "bottom": 0}).to_string();
    for (files, code, param) in [
        (vec![], "missing_required_parameter", "image"),
        (vec![("image", Some("a.png"), &b"no image"[..])], "invalid_image", "image"),
        (vec![("image", Some("a.png"), &red[..red.len() - 30])], "invalid_image", "image"),
        (vec![("picture", Some("a.png"), &red)], "unknown_parameter", "picture"),
        (vec![image, ("mask", Some("m.png"), &black), ("mask_padding", None, b"8")], "invalid_image", "mask"),
        (vec![image, ("extend", None, sides(0).as_bytes())], "invalid_value", "extend"),
        (vec![image, ("extend", None, sides(16384).as_bytes())], "invalid_value", "extend"),
        (vec![image, ("extend", None, sides(usize::MAX).as_bytes())], "invalid_value", "extend"),
        (vec![image, ("strength", None, b"1"), ("resize", None, b"99999")], "invalid_value", "size"),
    ] {
        assert_eq!(edit(&files).error(), (400, code.to_string(), param.to_string()));
    }
    let json = serving.post("/v1/images/edits", &small("x"));
    assert_eq!(json.error(), (400, "missing_required_parameter".to_string(), "image".to_string()));
}

#[test]
fn controls_weights_and_variations_are_fields() {
    let serving = Serving::start(&[]);
    let (red, blue) = (png(64, 64, [200, 30, 30]), png(64, 64, [30, 30, 200]));
    let [red, blue, black] = [&red, &blue, &png(64, 64, [0; 3])].map(|file| STANDARD.encode(file));
    let edit = |more: Value| serving.post("/v1/images/edits", &with(small("x"), more));
    // An image of one colour has no edges.
    let control = json!([{"kind": "canny", "input": 1, "make": true}]);
    let reply = edit(json!({"image": [red, blue], "controls": control}));
    let prompt = "Match the edge map in image 2.\nx";
    assert_eq!(reply.json()["data"][0]["revised_prompt"], prompt);
    assert_eq!(pixels(&reply), pixels(&edit(json!({"image": [red, black], "prompt": prompt}))));
    let one = pixels(&edit(json!({"image": [red]})));
    assert_eq!(pixels(&edit(json!({"image": [red, blue], "input_weights": [1, 0]}))), one);
    assert_ne!(pixels(&edit(json!({"image": [red], "input_weights": [0.5]}))), one);
    assert_eq!(pixels(&edit(json!({"image": [red], "seed": 7, "variation": "5:0"}))), one);
    assert_eq!(pixels(&edit(json!({"image": [red], "variety": 0}))), one);
    assert_ne!(pixels(&edit(json!({"image": [red], "variety": "1:100:1"}))), one);
    assert_ne!(pixels(&edit(json!({"image": [red], "rng": "portable"}))), one);
    assert_ne!(pixels(&edit(json!({"image": [red], "schedule": "sigmas:0.9"}))), one);
    assert_ne!(pixels(&edit(json!({"image": [red], "max_sequence_length": 16}))), one);
    let part = json!({"image": [red], "strength": 0.5});
    assert_ne!(pixels(&edit(with(part.clone(), json!({"no_self_reference": true})))), pixels(&edit(part.clone())));
    assert_eq!(pixels(&edit(with(part, json!({"resize": "128x96"})))).len(), 3 * 128 * 96);
    assert_eq!(pixels(&edit(json!({"image": [red], "tile": 1024, "tile_overlap": 128}))), one);
    for (more, field) in [
        (json!({"schedule": "even"}), "schedule"),
        (json!({"rng": "mine"}), "rng"),
        (json!({"sparse": true}), "sparse"),
        (json!({"mask_padding": -1}), "mask_padding"),
        (json!({"controls": [{"kind": "canny", "input": 1}]}), "controls"),
        (json!({"controls": [{"kind": "deep", "input": 0}]}), "controls"),
        (json!({"input_weights": [3]}), "input_weights"),
        (json!({"variation": "5"}), "variation"),
        (json!({"variety": 2.5}), "variety"),
        (json!({"tile": 100}), "tile"),
        (json!({"tile": 64, "tile_overlap": 64}), "tile_overlap"),
    ] {
        let (status, _, found) = edit(with(json!({"image": [red]}), more)).error();
        assert_eq!((status, found.as_str()), (400, field));
    }
}

#[test]
fn regions_are_a_field_and_their_masks_are_not_files_of_the_server() {
    let serving = Serving::start(&[]);
    let draw = |regions: Value| serving.post("/v1/images/generations", &with(small("x"), json!({"regions": regions})));
    let reply = draw(json!([{"box": [0, 0, 1000, 500], "prompt": "a red circle"}]));
    assert_ne!(pixels(&reply), pixels(&draw(json!([]))));
    assert_eq!(pixels(&reply), pixels(&draw(json!([{"box": [0.0, 0.0, 1.0, 0.5], "prompt": "a red circle"}]))));
    for (regions, code) in [
        (json!([{"box": [0, 0, 1, 1], "prompt": "x"}]), "invalid_value"),
        (json!([{"box": [0, 0, 1001, 500], "prompt": "x"}]), "invalid_value"),
        (json!([{"box": [0, 0, 1000, 500], "prompt": ""}]), "invalid_value"),
        (json!([{"prompt": "x"}]), "invalid_value"),
        (json!([{"mask": "/etc/passwd", "prompt": "x"}]), "unsupported_value"),
    ] {
        assert_eq!(draw(regions.clone()).error(), (400, code.to_string(), "regions".to_string()), "{regions}");
    }
}

#[test]
fn a_transparent_background_is_alpha() {
    let serving = Serving::start(&[]);
    let body = json!({"prompt": "a red heart", "size": "128x128", "seed": 3, "background": "transparent"});
    let reply = serving.post("/v1/images/generations", &body);
    let answer = reply.json();
    assert_eq!((&answer["background"], &answer["output_format"]), (&json!("transparent"), &json!("png")));
    assert_eq!(answer["data"][0]["revised_prompt"], "a red heart, plain white background");
    let (_, alpha) = flux::input::read_alpha(&images(&reply)[0]).unwrap();
    let alpha = alpha.expect("alpha");
    assert!(alpha[64 * 128 + 64] > 250 && alpha[8 * 128 + 8] < 5);
    let webp = with(body, json!({"transparent": "key", "output_format": "webp"}));
    let (_, alpha) = flux::input::read_alpha(&images(&serving.post("/v1/images/generations", &webp))[0]).unwrap();
    assert!(alpha.is_some());
}

#[test]
fn images_of_an_edit_may_be_in_json() {
    let serving = Serving::start(&[]);
    let (red, blue) = (png(64, 64, [200, 30, 30]), png(64, 64, [30, 30, 200]));
    let [red_text, blue_text] = [&red, &blue].map(|file| STANDARD.encode(file));
    let url = |text: &str| format!("data:image/png;base64,{text}");
    let edit =
        |more: Value| serving.post("/v1/images/edits", &with(json!({"prompt": "x", "steps": 1, "seed": 5}), more));
    let fields: [crate::serving::Part<'_>; 3] = [("prompt", None, b"x"), ("steps", None, b"1"), ("seed", None, b"5")];
    let form =
        |files: &[crate::serving::Part<'_>]| pixels(&serving.form("/v1/images/edits", &[&fields[..], files].concat()));
    let one = form(&[("image", Some("a.png"), &red)]);
    for image in [
        json!({"images": [{"image_url": url(&red_text)}]}),
        json!({"images": [{"image_url": {"url": url(&red_text)}, "file_id": null}]}),
        json!({"image": red_text}),
        json!({"image": url(&red_text)}),
        json!({"image": [red_text]}),
        json!({"image": {"b64_json": red_text}}),
        json!({"image_url": url(&red_text)}),
        json!({"init_images": [red_text.trim_end_matches('=')]}),
    ] {
        assert_eq!(pixels(&edit(image.clone())), one, "{}", &image.to_string()[..30]);
    }
    let both = form(&[("image[]", Some("a.png"), &red), ("image[]", Some("b.png"), &blue)]);
    assert_eq!(pixels(&edit(json!({"image": [red_text, {"image_url": url(&blue_text)}]}))), both);
    let masked = form(&[("mask", Some("m.png"), &png(64, 64, [255; 3])), ("image", Some("a.png"), &red)]);
    for mask in [json!(blue_text), json!({"image_url": url(&STANDARD.encode(png(64, 64, [255; 3])))})] {
        let reply = edit(json!({"image": red_text, "mask": mask}));
        assert_eq!(pixels(&reply) == masked, mask.is_object(), "{}", &mask.to_string()[..30]);
    }
    for (image, code, param) in [
        (json!({"images": [{"file_id": "file-1"}]}), "unsupported_value", "images[0].file_id"),
        (json!({"image": "https://example.com/a.png"}), "unsupported_value", "image"),
        (json!({"image": "not base64!"}), "invalid_image", "image"),
        (json!({"image": []}), "missing_required_parameter", "image"),
        (json!({"image": red_text, "mask": {"file_id": "x"}}), "unsupported_value", "mask.file_id"),
    ] {
        assert_eq!(edit(image.clone()).error(), (400, code.to_string(), param.to_string()), "{image}");
    }
}

#[test]
fn files_of_an_edit_have_many_names() {
    let serving = Serving::start(&[]);
    let (red, blue) = (png(64, 64, [200, 30, 30]), png(64, 64, [30, 30, 200]));
    let white = png(64, 64, [255; 3]);
    let fields: [crate::serving::Part<'_>; 3] = [("steps", None, b"1"), ("seed", None, b"5"), ("size", None, b"")];
    let form = |files: &[crate::serving::Part<'_>]| {
        let reply = serving.form("/v1/images/edits", &[files, &fields[..], &[("prompt", None, b"x")]].concat());
        pixels(&reply)
    };
    let one = form(&[("image", Some("a.png"), &red)]);
    for name in ["image[]", "image[0]", "images", "images[]", "url", "init_image"] {
        assert_eq!(form(&[(name, Some("a.png"), &red)]), one, "{name}");
    }
    let text = format!("data:image/png;base64,{}", STANDARD.encode(&red));
    assert_eq!(form(&[("image", None, text.as_bytes()), ("mask", Some(""), b"")]), one, "a text, and no mask chosen");
    let both = form(&[("image[]", Some("a.png"), &red), ("image[]", Some("b.png"), &blue)]);
    assert_eq!(form(&[("image[1]", Some("b.png"), &blue), ("image[0]", Some("a.png"), &red)]), both);
    let masked = form(&[("image", Some("a.png"), &red), ("mask", Some("m.png"), &white)]);
    assert_eq!(form(&[("mask[]", Some("m.png"), &white), ("images[]", Some("a.png"), &red)]), masked);
}

#[test]
fn an_adapter_is_asked_for_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ink.safetensors");
    write_adapter(&file, 0.3);
    let serving = Serving::start(&["--lora", file.to_str().unwrap()]);
    assert_eq!(serving.get("/v1/loras").json()["data"][0]["id"], "ink");
    let plain = serving.post("/v1/images/generations", &small("x"));
    let reply = serving.post("/v1/images/generations", &with(small("x"), json!({"loras": [{"name": "ink"}]})));
    assert_ne!(images(&reply), images(&plain));
    let recipe = reply.json()["flux"]["recipes"][0].to_string();
    assert!(recipe.contains("ink") && !recipe.contains(folder.path().to_str().unwrap()), "{recipe}");
    let out = folder.path().join("out.png");
    std::fs::write(&out, &images(&reply)[0]).unwrap();
    assert!(said_by(&out).is_ok());
}
