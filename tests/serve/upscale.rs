//! Enlarging images on a server: over each of its APIs, with bounds, in turn with other work.

use std::fs;

use flux::input::{read_alpha, read_bytes};
use flux::output::encode_transparent;
use serde_json::json;

use super::comfy::{files, graph, history, post, upload};
use super::*;
use crate::program::{Run, flux, project};
use crate::serving::{form, request};

const NAME: &str = "compact-3x";

/// Starts a server with the upscalers of the tests.
fn serving(more: &[&str]) -> Serving {
    let folder = project("tests/upscaler");
    Serving::start(&[&["--upscalers", folder.to_str().unwrap()], more].concat())
}

/// Returns an image without two equal rows.
fn image(width: usize, height: usize) -> Vec<u8> {
    let rgb = Rgb { width, height, bytes: (0..3 * width * height).map(|i| (i * 5 % 253) as u8).collect() };
    encode(&rgb, ImageFormat::Png, &flux::metadata::Metadata::default()).unwrap()
}

fn size(file: &[u8]) -> [usize; 2] {
    let image = read_bytes(file).unwrap();
    [image.width, image.height]
}

/// Returns the file that the command line writes.
fn by_command(file: &[u8], flags: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.png"), file).unwrap();
    let mut command = flux();
    command.current_dir(folder.path()).args(["upscale", "in.png", "-o", "out.png", "--device", "cpu"]).args(flags);
    Run::new(&mut command).succeeds();
    fs::read(folder.path().join("out.png")).unwrap()
}

fn enlarge(serving: &Serving, file: &[u8], more: Value) -> Reply {
    serving.post("/v1/images/upscale", &with(json!({"image": STANDARD.encode(file)}), more))
}

#[test]
fn an_image_is_enlarged_as_on_the_command_line() {
    let (serving, file) = (serving(&[]), image(20, 12));
    let upscaler = project("tests/upscaler/compact-3x.pth");
    let upscaler = ["--upscaler", upscaler.to_str().unwrap()];
    for (fields, flags) in [
        (json!({"upscaler": NAME}), &upscaler[..]),
        (json!({"upscaler": "COMPACT-3X.pth", "by": 2}), &[upscaler[0], upscaler[1], "--by", "2"]),
        (json!({"upscaler": NAME, "size": "100x40"}), &[upscaler[0], upscaler[1], "--to", "100x40"]),
        (json!({"by": 1.5}), &["--by", "1.5"]),
        (json!({"upscaler": "Lanczos", "size": "33x7"}), &["--to", "33x7"]),
    ] {
        let reply = enlarge(&serving, &file, fields.clone());
        assert_eq!(images(&reply), [by_command(&file, flags)], "{fields}");
    }
    let reply = enlarge(&serving, &file, json!({"upscaler": NAME, "response_format": "url"})).json();
    assert_eq!((&reply["size"], &reply["flux"]["model"]), (&json!("60x36"), &json!(NAME)));
    assert!(reply["quality"].is_null() && reply["usage"]["total_tokens"] == 0, "{reply}");
    let url = reply["data"][0]["url"].as_str().unwrap();
    let made = serving.get(&url[url.find("/v1/files/").unwrap()..]).body;
    assert_eq!(size(&made), [60, 36]);

    let parts = [("image", Some("a.png"), &file[..]), ("by", None, b"2"), ("output_format", None, b"jpeg")];
    let made = images(&serving.form("/v1/images/upscale", &parts)).remove(0);
    assert!(made.starts_with(&[0xff, 0xd8]) && size(&made) == [40, 24]);

    let reply = enlarge(&serving, &file, json!({"upscaler": NAME, "stream": true}));
    let text = String::from_utf8(reply.body).unwrap();
    assert!(text.contains("event: image_upscale.completed") && text.contains(": step "), "{text}");

    let listed = &serving.get("/v1/models").json()["flux"];
    assert!(listed["upscalers"].as_array().unwrap().contains(&json!(NAME)) && listed["upscalers"][0] == "Lanczos");
}

#[test]
fn the_command_enlarges_on_a_server() {
    let (serving, file) = (serving(&[]), image(20, 12));
    let (upscaler, url) = (project("tests/upscaler/compact-3x.pth"), format!("http://{}", serving.address));
    let upscaler = upscaler.to_str().unwrap();
    for (there, here) in [
        (&["--upscaler", NAME][..], &["--upscaler", upscaler][..]),
        (&["--upscaler", "compact-3x.pth", "--by", "2"], &["--upscaler", upscaler, "--by", "2"]),
        (&["--to", "33x7"], &["--to", "33x7"]),
    ] {
        assert!(by_command(&file, &[&["--server", &url], there].concat()) == by_command(&file, here), "{there:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.png"), &file).unwrap();
    let run = |flags: &[&str]| Run::new(flux().current_dir(folder.path()).args(["upscale", "in.png"]).args(flags));
    let told = run(&["--server", &url, "--by", "2", "--json", "-o", "out.jpg"]).succeeds();
    let json: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!((&json["width"], &json["height"], &json["output"]), (&json!(40), &json!(24), &json!("out.jpg")));
    run(&["--server", &url, "--upscaler", "none"]).fails(2, &["none", &url]);
    run(&["--server", "localhost", "--by", "2"]).fails(2, &["--server"]);
    run(&["--server", &url, "--by", "2", "--tile", "64"]).fails(2, &["--tile"]);
    run(&["--server", &url]).fails(2, &["--by"]);
}

#[test]
fn an_enlarged_image_keeps_its_transparency_its_settings_and_its_mark() {
    let serving = serving(&[]);
    let alpha: Vec<u8> = (0..24).map(|i| if i % 6 < 3 { 0 } else { 255 }).collect();
    let file = encode_transparent(&read_bytes(&image(6, 4)).unwrap(), &alpha).unwrap();
    let made = images(&enlarge(&serving, &file, json!({"upscaler": NAME}))).remove(0);
    let (_, alpha) = read_alpha(&made).unwrap();
    assert!(alpha.is_some_and(|alpha| alpha[0] == 0 && alpha[17] == 255));
    let refused = enlarge(&serving, &file, json!({"by": 2, "output_format": "jpeg"})).error();
    assert_eq!((refused.0, &*refused.1), (400, "invalid_value"));

    let generated = images(&serving.post("/v1/images/generations", &small("a cat"))).remove(0);
    let reply = enlarge(&serving, &generated, json!({"by": 2}));
    assert_eq!(reply.json()["data"][0]["seed"], 5);
    let texts = |file: &[u8]| String::from_utf8_lossy(file).into_owned();
    let made = texts(&images(&reply)[0]);
    assert!(made.contains("flux-upscale") && made.contains("a cat") && made.contains("trainedAlgorithmicMedia"));
    let bare = texts(&images(&enlarge(&serving, &generated, json!({"by": 2, "recipe": false})))[0]);
    assert!(!bare.contains("a cat") && bare.contains("trainedAlgorithmicMedia"));
}

#[test]
fn bad_requests_are_refused_with_a_reason() {
    let (serving, file) = (serving(&["--upscale-max-pixels", "4096"]), image(20, 12));
    let told = |fields: Value| {
        let reply = enlarge(&serving, &file, fields.clone()).json();
        let error = &reply["error"];
        format!("{} {}: {}", error["code"], error["param"], error["message"])
    };
    for (fields, words) in [
        (json!({"upscaler": "none", "by": 2}), "there is no upscaler `none`: the server has Lanczos, compact-1x"),
        (json!({"upscaler": "../upscaler/compact-3x.pth"}), "there is no upscaler"),
        (json!({"upscaler": project("tests/upscaler/compact-3x.pth")}), "there is no upscaler"),
        (json!({"upscaler": "compact-3x-golden"}), "cannot be used"),
        (json!({"upscaler": NAME, "by": 9}), "the image would be 180x108, expected at most 4096 pixels"),
        (json!({"upscaler": NAME, "by": 3.5}), "the upscaler makes 19440 pixels of the image of 20x12"),
        (json!({"size": "9000000x9000000"}), "WIDTHxHEIGHT"),
        (json!({"by": 2, "size": "8x8"}), "not both"),
        (json!({"by": 0.01}), "would be 0x0, expected at least one pixel; choose a larger factor"),
        (json!({"by": 2, "prompt": "x"}), "unknown_parameter"),
        (json!({"by": 2, "n": 2}), "unknown_parameter"),
        (json!({}), "the size is missing"),
        (json!({"by": 2, "image": "aGVsbG8="}), "invalid_image"),
        (json!({"by": 2, "image": [STANDARD.encode(&file), STANDARD.encode(&file)]}), "expected one image"),
        (json!({"by": 2, "image": "http://localhost/a.png"}), "are not fetched"),
    ] {
        let told = told(fields.clone());
        assert!(told.contains(words), "{fields}: {told}");
    }
    assert_eq!(serving.post("/v1/images/upscale", &json!({"by": 2})).error().0, 400);
    let plain = Serving::start(&[]);
    let told = enlarge(&plain, &file, json!({"upscaler": NAME})).json()["error"]["message"].to_string();
    assert!(told.contains("Lanczos"), "{told}");
    let run = Run::new(flux().args(["serve", "--upscalers", "/none"]));
    assert!(run.code == Some(2) && run.stderr.contains("--upscalers"), "{}", run.stderr);
}

#[test]
fn new_files_of_the_folder_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start(&["--upscalers", folder.path().to_str().unwrap()]);
    let file = image(4, 4);
    assert_eq!(enlarge(&serving, &file, json!({"upscaler": "new"})).error().0, 400);
    fs::copy(project("tests/upscaler/span-2x.safetensors"), folder.path().join("new.safetensors")).unwrap();
    assert_eq!(size(&images(&enlarge(&serving, &file, json!({"upscaler": "new"})))[0]), [8, 8]);
    fs::copy(project("tests/upscaler/compact-3x.pth"), folder.path().join("other.pth")).unwrap();
    fs::rename(folder.path().join("other.pth"), folder.path().join("new.pth")).unwrap();
    fs::remove_file(folder.path().join("new.safetensors")).unwrap();
    assert_eq!(size(&images(&enlarge(&serving, &file, json!({"upscaler": "new"})))[0]), [12, 12], "another file");
}

/// Returns a request that takes minutes.
fn long() -> Vec<u8> {
    let file = image(1400, 1400);
    let body = form(&[("image", Some("a.png"), &file), ("upscaler", None, b"rrdb-old-4x.legacy")]);
    request("POST", "/v1/images/upscale", &["Content-Type: multipart/form-data; boundary=XXX"], &body)
}

#[test]
fn enlarging_takes_its_turn_and_ends_when_its_client_leaves() {
    let serving = serving(&["--batch-max", "1"]);
    let running = serving.begin(&long());
    until("it runs", || work(&serving) == [1, 0]);
    let second = serving.begin(&long());
    until("the second waits", || work(&serving) == [1, 1]);
    drop(second);
    until("the second is gone", || work(&serving) == [1, 0]);
    drop(running);
    until("the device is free", || work(&serving) == [0, 0]);
    assert_eq!(images(&serving.post("/v1/images/generations", &small("x"))).len(), 1);

    let fields = json!({"image": STANDARD.encode(image(300, 300)), "upscale": {"upscaler": "rrdb-old-4x.legacy"}});
    let job = serving.post("/v1/jobs", &fields).json();
    assert_eq!(
        (&job["size"], &job["model"], &job["n"]),
        (&json!("1200x1200"), &json!("rrdb-old-4x.legacy"), &json!(1))
    );
    let path = job["urls"]["self"].as_str().unwrap();
    serving.ask("DELETE", path, &[], b"");
    until("it is cancelled", || serving.get(path).json()["status"] == "cancelled");
    let fields = with(fields, json!({"image": STANDARD.encode(image(8, 8))}));
    let job = serving.post("/v1/jobs", &fields).json();
    let path = job["urls"]["self"].as_str().unwrap();
    until("it is done", || serving.get(path).json()["status"] == "done");
    let events = String::from_utf8(serving.get(&format!("{path}/events")).body).unwrap();
    assert!(events.contains("event: step") && events.contains("event: done"), "{events}");
    let late = serving.post("/v1/jobs", &with(fields, json!({"stream": true})));
    assert_eq!(late.error().0, 400);
}

#[test]
fn a1111_clients_enlarge_one_image_or_several() {
    let (serving, file) = (serving(&[]), image(20, 12));
    let names = serving.get("/sdapi/v1/upscalers").json();
    let names: Vec<_> = names.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.starts_with(&["None", "Lanczos", "compact-1x"]) && names.contains(&NAME), "{names:?}");
    let usual = json!({
        "resize_mode": 0, "show_extras_results": true, "gfpgan_visibility": 0, "codeformer_visibility": 0,
        "codeformer_weight": 0, "upscaling_resize": 2, "upscaling_resize_w": 512, "upscaling_resize_h": 512,
        "upscaling_crop": true, "upscaler_1": NAME, "upscaler_2": "None", "extras_upscaler_2_visibility": 0,
        "upscale_first": false, "image": STANDARD.encode(&file),
    });
    let single = |more: Value| serving.post("/sdapi/v1/extra-single-image", &with(usual.clone(), more));
    let to = json!({"resize_mode": 1, "upscaling_resize_w": 30, "upscaling_resize_h": 30});
    for (more, expected) in [
        (json!({}), [40, 24]),
        (json!({"upscaler_1": "Lanczos", "upscaling_resize": 3}), [60, 36]),
        (to.clone(), [30, 30]),
        (with(to, json!({"upscaling_crop": false})), [50, 30]),
        (json!({"upscaler_1": "None"}), [20, 12]),
    ] {
        let reply = single(more.clone());
        assert_eq!(reply.status, 200, "{more}: {}", reply.json());
        assert_eq!(
            (size(&decoded(&reply.json()["image"])), &reply.json()["html_info"]),
            (expected, &json!("")),
            "{more}"
        );
    }
    assert!(single(json!({"other": 1})).json()["html_info"].as_str().unwrap().contains("other"));
    for (more, words) in [
        (json!({"upscaler_1": "R-ESRGAN 4x+"}), "Lanczos"),
        (json!({"extras_upscaler_2_visibility": 0.5}), "second upscaler"),
        (json!({"gfpgan_visibility": 1}), "GFPGAN"),
        (json!({"image": "!!"}), "base64"),
        (json!({"image": null}), "missing"),
        (json!({"upscaling_resize": 65}), "upscaling_resize"),
    ] {
        let reply = single(more.clone());
        let told = reply.json()["detail"].to_string();
        assert!(reply.status == 400 && told.contains(words), "{more}: {told}");
    }
    let list =
        json!([{"data": STANDARD.encode(&file), "name": "a"}, {"data": STANDARD.encode(image(4, 4)), "name": "b"}]);
    let reply = serving.post("/sdapi/v1/extra-batch-images", &with(usual, json!({"imageList": list}))).json();
    let sizes: Vec<_> = reply["images"].as_array().unwrap().iter().map(|image| size(&decoded(image))).collect();
    assert_eq!(sizes, [[40, 24], [8, 8]]);
}

/// Returns the nodes that enlarge the image of a node.
fn upscale_nodes(name: &str, from: &str) -> Value {
    json!({
        "80": {"class_type": "UpscaleModelLoader", "inputs": {"model_name": name}},
        "81": {"class_type": "ImageUpscaleWithModel", "inputs": {"upscale_model": ["80", 0], "image": [from, 0]}},
    })
}

#[test]
fn comfy_graphs_enlarge_images() {
    let (serving, file) = (serving(&[]), image(20, 12));
    let info = serving.get("/object_info/UpscaleModelLoader").json();
    let listed = &info["UpscaleModelLoader"]["input"]["required"]["model_name"][0];
    assert!(listed.as_array().unwrap().contains(&json!("compact-3x.pth")), "{listed}");
    upload(&serving, "a.png", &file);
    let uploaded = with(
        upscale_nodes("compact-3x.pth", "1"),
        json!({
            "1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}},
            "2": {"class_type": "SaveImage", "inputs": {"images": ["81", 0], "filename_prefix": "x"}},
            "3": {"class_type": "ImageScaleBy",
                "inputs": {"image": ["81", 0], "upscale_method": "lanczos", "scale_by": 0.5}},
            "4": {"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}},
        }),
    );
    let (id, _) = post(&serving, &uploaded, "c");
    let told = history(&serving, &id);
    assert_eq!(told["status"]["status_str"], "success", "{told}");
    let made = files(&serving, &told, "2").remove(0);
    let by_route = images(&enlarge(&serving, &file, json!({"upscaler": NAME}))).remove(0);
    assert_eq!(read_bytes(&made).unwrap(), read_bytes(&by_route).unwrap());
    assert_eq!(size(&files(&serving, &told, "4")[0]), [30, 18]);

    let mut generated = graph("text_to_image_distilled");
    let nodes = generated.as_object_mut().unwrap();
    let is =
        |class: &str| nodes.iter().find(|(_, node)| node["class_type"] == class).map(|(id, _)| id.clone()).unwrap();
    let (save, decode) = (is("SaveImage"), is("VAEDecode"));
    for node in nodes.values_mut() {
        for (name, value) in [("width", 64), ("height", 64), ("steps", 1)] {
            if node["inputs"][name].is_number() {
                node["inputs"][name] = value.into();
            }
        }
    }
    let plain = generated.clone();
    generated[&save]["inputs"]["images"] = json!(["81", 0]);
    let generated = with(generated, upscale_nodes("compact-3x.pth", &decode));
    let (id, _) = post(&serving, &generated, "c");
    let told = history(&serving, &id);
    assert_eq!(told["status"]["status_str"], "success", "{told}");
    let large = files(&serving, &told, &save).remove(0);
    let (id, _) = post(&serving, &plain, "c");
    let small = files(&serving, &history(&serving, &id), &save).remove(0);
    let expected = images(&enlarge(&serving, &small, json!({"upscaler": NAME}))).remove(0);
    assert_eq!(read_bytes(&large).unwrap(), read_bytes(&expected).unwrap(), "after the sampler");

    for (graph, words) in [
        (with(uploaded.clone(), upscale_nodes("none.pth", "1")), "there is no upscaler"),
        (with(uploaded, upscale_nodes("../compact-3x.pth", "1")), "there is no upscaler"),
    ] {
        let reply = serving.post("/prompt", &json!({"prompt": graph}));
        assert!(reply.status == 400 && reply.json().to_string().contains(words), "{}", reply.json());
    }
}
