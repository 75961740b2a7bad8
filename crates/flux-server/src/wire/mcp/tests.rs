//! Tests of the MCP server.

use flux::output::{ImageFormat, encode};
use flux::rgb::Rgb;

use super::*;
use crate::jobs::request::own_names;

#[test]
fn copies_are_small_enough_for_clients() {
    let noise: Vec<u8> = (0..3_u32 * 1600 * 1200).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let file =
        encode(&Rgb { width: 1600, height: 1200, bytes: noise }, ImageFormat::Png, &Metadata::default()).unwrap();
    let copy = small_copy(&file, &CancelFlag::default()).unwrap();
    assert!(copy.len() * 4 / 3 <= MAX_BASE64);
    let read = input::read_bytes(&copy).unwrap();
    assert!(read.width.max(read.height) <= ANSWER_SIDE && read.width * 3 == read.height * 4);
}

#[test]
fn every_argument_of_a_tool_is_a_field_that_is_read() {
    let opened = describe::Opened { size: [64, 64], steps: 4, is_distilled: true };
    let about = About {
        model: "x".to_string(),
        opened: Some(opened),
        max_pixels: 1 << 20,
        takes_paths: true,
        upsamples: true,
        upscalers: vec!["Lanczos".to_string()],
    };
    let described = tools(&about);
    let edits = &described.iter().find(|tool| tool.name == "edit_image").unwrap().input_schema["properties"];
    // Each field of a recipe that a client may set, except files of tensors.
    let own = ["prompt", "size", "steps", "seed", "variation", "guidance", "negative_prompt", "strength", "images"];
    let own = own.into_iter().chain(["mask", "mask_padding", "feather", "hires", "loras"]).chain(own_names());
    own.for_each(|name| assert!(edits[name].is_object(), "{name}"));
    for tool in described.iter().filter(|tool| !matches!(&*tool.name, "list_models" | "upscale_image")) {
        for name in tool.input_schema["properties"].as_object().unwrap().keys() {
            if !matches!(&**name, "images" | "mask" | "strength") {
                let value = json!({"prompt": "x", name: null});
                let mut arguments = value.as_object().cloned().unwrap();
                arguments.insert("prompt".to_string(), "x".into());
                let read = crate::jobs::request::Asked::read(
                    Fields::from_object(arguments),
                    Vec::new(),
                    Route::Generations,
                    crate::jobs::request::Defaults { seed: 1, pixels: 1 << 20 },
                );
                assert!(read.is_ok(), "{name}");
            }
        }
    }
}
