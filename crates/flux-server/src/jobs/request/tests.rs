//! Tests of the request fields.

use serde_json::json;

use super::*;

fn read(json: &str) -> Result<Asked> {
    let defaults = Defaults { seed: 7, pixels: 512 * 512 };
    Asked::read(Fields::from_json(json.as_bytes())?, Vec::new(), Route::Generations, defaults)
}

fn wrong(json: &str) -> (&'static str, String) {
    let error = read(json).unwrap_err();
    (error.code, error.param.unwrap_or_default().into_owned())
}

#[test]
fn what_clients_send_is_read() {
    let asked = read(
        r#"{"prompt": "a cat", "model": "gpt-image-1", "n": 2, "size": "512x256", "quality": "high", "user": "u",
            "response_format": "url", "output_format": "jpeg", "output_compression": 80, "background": "auto",
            "moderation": "low", "style": "vivid", "stream": true, "partial_images": 2, "steps": 3, "seed": 5,
            "loras": [{"name": "ink", "weight": 0.5}, {"name": "oil"}, {"name": "pen", "scale": "0.25"}],
            "max_sequence_length": 16.0, "priority": "high", "deadline_s": 2.5}"#,
    )
    .unwrap();
    let Recipe { width, height, steps, seed, .. } = asked.recipe;
    assert_eq!((width, height, steps, seed), (Some(512), Some(256), Some(3), 5));
    assert_eq!(asked.encoding, Encoding { format: ImageFormat::Jpeg, quality: Some(80) });
    assert_eq!((asked.count, asked.previews, asked.priority), (2, Previews::AtMost(2), Priority::High));
    assert_eq!(asked.adapters[1], Lora::from(&AdapterFile::new("oil", 1.0)));
    assert_eq!(asked.adapters[2], Lora::from(&AdapterFile::new("pen", 0.25)));
    assert_eq!(asked.recipe.max_sequence_length, Some(16));
    assert!(asked.answer.as_url && asked.answer.stream && asked.notes.is_empty());
    let asked = read(r#"{"prompt": "x", "size": "auto", "n": null, "output_compression": 50}"#).unwrap();
    assert_eq!((asked.count, asked.recipe.seed, asked.recipe.width), (1, 7, None));
    assert_eq!(asked.notes.len(), 1, "a PNG has no quality");
    for (rest, expected) in [("", false), (r#", "recipe": true"#, false), (r#", "recipe": "false""#, true)] {
        for route in [Route::Jobs, Route::Generations] {
            let fields = Fields::from_json(format!(r#"{{"prompt": "x"{rest}}}"#).as_bytes()).unwrap();
            let asked = Asked::read(fields, Vec::new(), route, Defaults { seed: 7, pixels: 512 * 512 }).unwrap();
            assert_eq!(asked.no_recipe, expected, "{rest}");
        }
    }
}

#[test]
fn an_extension_and_its_transition_are_read() {
    let sides = r#"{"left": 0, "top": 16, "right": 32, "bottom": 0}"#;
    for extend in [sides.to_string(), serde_json::to_string(sides).unwrap()] {
        let asked = read(&format!(r#"{{"prompt": "x", "extend": {extend}, "feather": "8"}}"#)).unwrap();
        let extended = asked.recipe.extend.unwrap();
        assert_eq!((extended.top, extended.right, asked.recipe.feather), (16, 32, 8));
    }
}

#[test]
fn a_background_is_removed_by_the_field_of_openai_or_our_own() {
    for (rest, expected) in [
        (r#""background": "auto""#, Transparency::No),
        (r#""background": "opaque", "output_format": "jpeg""#, Transparency::No),
        (r#""background": "transparent""#, Transparency::Edit),
        (r#""background": "transparent", "transparent": "key", "output_format": "webp""#, Transparency::Key),
        (r#""transparent": true"#, Transparency::Edit),
        (r#""transparent": "key""#, Transparency::Key),
        (r#""transparent": false"#, Transparency::No),
    ] {
        assert_eq!(read(&format!(r#"{{"prompt": "x", {rest}}}"#)).unwrap().recipe.transparent, expected, "{rest}");
    }
}

#[test]
fn what_cannot_be_honoured_is_named() {
    let x = |rest: &str| format!(r#"{{"prompt": "x", {rest}}}"#);
    for (json, code, param) in [
        ("{}".to_string(), "missing_required_parameter", "prompt"),
        (x(r#""n": 11"#), "invalid_value", "n"),
        (x(r#""size": "63x64""#), "invalid_value", "size"),
        (x(r#""size": "512""#), "invalid_value", "size"),
        (x(r#""size": "512x512", "width": 256"#), "invalid_value", "size"),
        (x(r#""width": 256"#), "missing_required_parameter", "height"),
        (x(r#""aspect_ratio": "1:100""#), "invalid_value", "aspect_ratio"),
        (x(r#""aspect_ratio": "wide""#), "invalid_value", "aspect_ratio"),
        (x(r#""num_inference_steps": 0"#), "invalid_value", "num_inference_steps"),
        (x(r#""seed": -2"#), "invalid_value", "seed"),
        (x(r#""quality": 80"#), "invalid_type", "quality"),
        (x(r#""recipe": {"prompt": "x"}"#), "invalid_type", "recipe"),
        (x(r#""extend": {"left": 16}"#), "invalid_value", "extend"),
        (x(r#""extend": {"left": 0, "top": 0, "right": 16385, "bottom": 0}"#), "invalid_value", "extend"),
        (x(r#""feather": -1"#), "invalid_value", "feather"),
        (x(r#""lora": 3"#), "invalid_value", "lora"),
        (x(r#""output_format": "gif""#), "unsupported_value", "output_format"),
        (x(r#""output_format": "bmp""#), "invalid_value", "output_format"),
        (x(r#""background": "green""#), "invalid_value", "background"),
        (x(r#""background": "transparent", "output_format": "jpeg""#), "unsupported_value", "output_format"),
        (x(r#""transparent": "alpha""#), "invalid_value", "transparent"),
        (x(r#""quality": "best""#), "invalid_value", "quality"),
        (x(r#""markup": "x""#), "unknown_parameter", "markup"),
        (x(r#""frame_count": 3"#), "unknown_parameter", "frame_count"),
        (x(r#""strength": 0.5"#), "missing_required_parameter", "image"),
        (x(r#""loras": [{"weight": 1}]"#), "invalid_value", "loras"),
        (x(r#""partial_images": 4"#), "invalid_value", "partial_images"),
        (format!(r#"{{"prompt": "{}"}}"#, "x".repeat(32_001)), "invalid_value", "prompt"),
    ] {
        assert_eq!(wrong(&json), (code, param.to_string()), "{json}");
    }
}

#[test]
fn sizes_and_fields_of_other_apis_are_read() {
    let size = |rest: &str| {
        let Recipe { width, height, .. } = read(&format!(r#"{{"prompt": "x", {rest}}}"#)).unwrap().recipe;
        width.zip(height)
    };
    for rest in [
        r#""width": 512, "height": 256"#,
        r#""width": "512", "height": 256.0, "size": "512x256""#,
        r#""image_size": {"width": 512, "height": 256}"#,
        r#""size": " 512 X 256 ""#,
        r#""size": "512×256", "width": 512"#,
    ] {
        assert_eq!(size(rest), Some((512, 256)), "{rest}");
    }
    for (rest, expected) in [
        (r#""aspect_ratio": "1:1""#, Some((512, 512))),
        (r#""aspect_ratio": "16:9""#, Some((688, 384))),
        (r#""aspect_ratio": "16:9", "size": "512x256""#, Some((512, 256))),
        (r#""aspect_ratio": "match_input_image""#, None),
        (r#""size": """#, None),
        (r#""size": "AUTO""#, None),
    ] {
        assert_eq!(size(rest), expected, "{rest}");
    }
    let asked = read(
        r#"{"prompt": "x", "num_inference_steps": "3", "guidance_scale": "1.5", "batch_size": 2, "seed": -1,
            "lora": "ink:0.5", "stream": "false", "negative": "y", "output_quality": 80, "format": "jpeg"}"#,
    )
    .unwrap();
    assert_eq!((asked.recipe.steps, asked.recipe.guidance, asked.count), (Some(3), Some(1.5), 2));
    assert_eq!((asked.recipe.seed, asked.recipe.negative.as_deref(), asked.encoding.quality), (7, Some("y"), Some(80)));
    let loras = |json: &str| read(&format!(r#"{{"prompt": "x", "loras": {json}}}"#)).unwrap().adapters;
    for json in [
        r#"["ink:0.5"]"#,
        r#"{"ink": 0.5}"#,
        r#"{"path": "ink", "scale": 0.5}"#,
        r#""[{\"name\": \"ink\", \"weight\": 0.5}]""#,
    ] {
        assert_eq!(loras(json), [Lora::from(&AdapterFile::new("ink", 0.5))], "{json}");
    }
}

#[test]
fn dall_e_s_clients_get_addresses() {
    let as_url = |rest: &str| read(&format!(r#"{{"prompt": "x", {rest}}}"#)).unwrap().answer.is_url_expected;
    assert!(as_url(r#""model": "dall-e-2""#) && as_url(r#""model": "dall-e-3", "response_format": null"#));
    assert!(!as_url(r#""model": "dall-e-3", "response_format": "b64_json""#));
    assert!(!as_url(r#""model": "gpt-image-1""#) && !as_url(r#""n": 1"#));
}

#[test]
fn all_that_is_wrong_is_named_at_once() {
    let error = read(r#"{"steps": 0, "cfg_scale": "x", "size": "1x1", "what": 1, "sampler": "euler"}"#).unwrap_err();
    let params: Vec<_> = error.params().collect();
    assert_eq!(params, ["prompt", "size", "steps", "cfg_scale", "sampler", "what"]);
    let answer = error.json();
    assert_eq!((&answer["error"]["param"], answer["error"]["errors"].as_array().unwrap().len()), (&json!("prompt"), 6));
    let many: String = (0..100).map(|n| format!(r#", "x{n}": 1"#)).collect();
    let answer = read(&format!(r#"{{"prompt": "x"{many}}}"#)).unwrap_err().json();
    assert_eq!(answer["error"]["errors"].as_array().unwrap().len(), 16);
}

#[test]
fn previews_are_spread_over_the_steps() {
    let shown = |previews: Previews, total| {
        (1..total).filter_map(|done| previews.index([done, total]).map(|index| (index, done))).collect::<Vec<_>>()
    };
    assert_eq!(shown(Previews::AtMost(1), 4), [(0, 1)]);
    assert_eq!(shown(Previews::AtMost(2), 4), [(0, 1), (1, 2)]);
    assert_eq!(shown(Previews::AtMost(3), 4), [(0, 1), (1, 2), (2, 3)]);
    assert_eq!(shown(Previews::AtMost(3), 2), [(0, 1)]);
    assert_eq!(shown(Previews::AtMost(3), 10), [(0, 1), (1, 4), (2, 7)]);
    assert_eq!(shown(Previews::AtMost(3), 1), []);
    assert_eq!(shown(Previews::All, 4), [(0, 1), (1, 2), (2, 3)]);
}

#[test]
fn uploads_have_names_of_their_own_whatever_they_are_called() {
    let name = |given: Option<&str>| {
        let upload = Upload { part: "image".to_string(), file_name: given.map(str::to_string), bytes: Bytes::new() };
        file_name(&upload, 2).display().to_string()
    };
    assert_eq!(name(Some("cat.png")), "2-cat.png");
    assert_eq!(name(Some("../../etc/passwd")), "2-passwd");
    assert_eq!(name(Some("C:\\a\\b c.jpg")), "2-bc.jpg");
    assert_eq!([None, Some(".."), Some("-")].map(name), ["2", "2", "2--"]);
}
