//! Nodes of ComfyUI's templates for FLUX.3, and of reference weights: prompts that a language model writes, boxes,
//! several references at once.
//!
//! Source: ComfyUI's comfy_extras/nodes_textgen.py, nodes_bounding_boxes.py, nodes_resolution.py and
//! nodes_post_processing.py, and its templates `image_flux3_klein_*`; ComfyUI-Flux2Klein-Enhancer for
//! `Flux2KleinRefLatentWeight`.

use std::sync::Arc;

use flux::engine::boxes::{self, LayoutBox, MAX_BOXES, Rectangle};
use flux::input;
use flux::pipeline::MAX_REFERENCES;
use serde_json::Value;

use super::classes::{
    CONDITIONING, Class, IMAGE, Input, MODEL, Takes, class, input, link, number, optional, text, whole, word,
};
use super::error::Result;
use super::evaluate::Evaluator;
use super::graph::{Node, map_node_error, unsupported};
use super::kinds::{Conditioning, Content, Kind, Latent, Model, Worth};

/// The sizes of `ResolutionSelector`.
const RATIOS: [(&str, [u64; 2]); 8] = [
    ("1:1 (Square)", [1, 1]),
    ("3:2 (Photo)", [3, 2]),
    ("4:3 (Standard)", [4, 3]),
    ("16:9 (Widescreen)", [16, 9]),
    ("21:9 (Ultrawide)", [21, 9]),
    ("2:3 (Portrait Photo)", [2, 3]),
    ("3:4 (Portrait Standard)", [3, 4]),
    ("9:16 (Portrait Widescreen)", [9, 16]),
];
const RATIO_NAMES: &[&str] =
    &[RATIOS[0].0, RATIOS[1].0, RATIOS[2].0, RATIOS[3].0, RATIOS[4].0, RATIOS[5].0, RATIOS[6].0, RATIOS[7].0];
const STRING: &[(Kind, &str)] = &[(Kind::Text, "STRING")];
const BOXES: (Kind, &str) = (Kind::Boxes, "bboxes");
const CANVAS: [u64; 3] = [1024, 64, 16384];

const fn image(name: &'static str) -> Input {
    optional(name, Takes::Link(Kind::Image))
}

/// The images of nodes with any number of them.
const IMAGES: [&str; MAX_REFERENCES] = [
    "images.image0", "images.image1", "images.image2", "images.image3", "images.image4", "images.image5",
    "images.image6", "images.image7", "images.image8", "images.image9", "images.image10", "images.image11",
    "images.image12", "images.image13", "images.image14", "images.image15",
];

/// Returns the inputs `first`, followed by all of [`IMAGES`].
const fn with_images<const N: usize>(first: &[Input]) -> [Input; N] {
    let mut all = [image(""); N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { image(IMAGES[at - first.len()]) };
        at += 1;
    }
    all
}

pub const CLASSES: &[Class] = &[
    class(
        "TextGenerate",
        "text",
        &[
            link("clip", Kind::Clip),
            text("prompt", ""),
            image("image"),
            optional("system_prompt", Takes::Text("")),
            optional("max_length", Takes::Whole(512, 1, 32768)),
        ],
        &[(Kind::Text, "generated_text"), (Kind::Text, "thinking")],
    ),
    class(
        "CreateBoundingBoxes",
        "utilities",
        &[
            whole("width", CANVAS),
            whole("height", CANVAS),
            optional("editor_state", Takes::Boxes),
            optional("bboxes", Takes::Boxes),
            image("background"),
        ],
        &[(Kind::Image, "preview"), BOXES, (Kind::Boxes, "elements")],
    ),
    class("Flux3LayoutPrompt", "conditioning", &[text("prompt", ""), optional("element", Takes::Boxes)], STRING),
    class(
        "ReferenceMultiLatent",
        "advanced/conditioning/edit_models",
        &with_images::<{ 3 + MAX_REFERENCES }>(&[
            link("positive", Kind::Conditioning),
            link("negative", Kind::Conditioning),
            link("vae", Kind::Vae),
        ]),
        &[(CONDITIONING.0, "positive"), (CONDITIONING.0, "negative"), (Kind::Latent, "empty_latent")],
    ),
    class("BatchImagesNode", "image", &with_images::<MAX_REFERENCES>(&[]), &[IMAGE]),
    class(
        "ResolutionSelector",
        "utilities",
        &[
            word("aspect_ratio", RATIO_NAMES),
            number("megapixels", [1.0, 0.1, 16.0]),
            optional("multiple", Takes::Whole(8, 8, 128)),
        ],
        &[(Kind::Whole, "width"), (Kind::Whole, "height")],
    ),
    class(
        "Flux2KleinRefLatentWeight",
        "conditioning",
        &[
            link("model", Kind::Model),
            whole("reference_index", [0, 0, MAX_REFERENCES as u64 - 1]),
            input("weight", Takes::Number(1.0, 0.0, 2.0)),
        ],
        &[MODEL],
    ),
];

/// Returns the outputs of a node.
///
/// Errors if it is not supported.
pub fn evaluate(on: &mut Evaluator<'_>, node: &Node) -> Result<Vec<Worth>> {
    match node.class.name {
        "TextGenerate" => {
            on.note(node, "the server's language model writes the prompt, with its own settings and system prompt");
            Ok(vec![Worth::Written(on.text(node, "prompt")?.into()), Worth::Nothing])
        }
        "CreateBoundingBoxes" => {
            let canvas = [on.whole(node, "width")?, on.whole(node, "height")?];
            let name = if node.given("bboxes").is_some() { "bboxes" } else { "editor_state" };
            let boxes = Worth::Boxes(layout(on, node, name, canvas)?);
            Ok(vec![Worth::Nothing, boxes.clone(), boxes])
        }
        "Flux3LayoutPrompt" => {
            // Boxes of a text are in thousandths.
            let (prompt, rows) = (on.text(node, "prompt")?, layout(on, node, "element", [1000, 1000])?);
            let prompt = if rows.is_empty() { prompt } else { boxes::with_boxes(&prompt, &rows, false) };
            Ok(vec![Worth::Text(prompt.into())])
        }
        "ReferenceMultiLatent" => references(on, node),
        "BatchImagesNode" => {
            let names: Vec<_> = IMAGES.into_iter().filter(|name| node.given(name).is_some()).collect();
            let Some(first) = names.first() else { return Err(unsupported(node, "expected an image")) };
            if names.len() > 1 {
                on.note(node, "only the first image is passed on");
            }
            Ok(vec![Worth::Image(on.image(node, first)?)])
        }
        "ResolutionSelector" => {
            let (ratio, megapixels) = (on.text(node, "aspect_ratio")?, on.number(node, "megapixels")?);
            let multiple = on.whole_or(node, "multiple", 8)?;
            let sides = RATIOS.iter().find(|(name, _)| *name == ratio).map_or([1, 1], |(_, sides)| *sides);
            let scale = (megapixels * 1024.0 * 1024.0 / (sides[0] * sides[1]) as f64).sqrt();
            let side = |side: u64| ((side as f64 * scale / multiple as f64).round_ties_even() as u64) * multiple;
            Ok(sides.map(|own| Worth::Whole(side(own))).to_vec())
        }
        "Flux2KleinRefLatentWeight" => {
            let (model, index) = (on.model(node)?, on.whole(node, "reference_index")?);
            let weight = on.number(node, "weight")? as f32;
            let weights = model.weights.iter().copied().chain([(index as usize, weight)]).collect();
            Ok(vec![Worth::Model(Model { weights, ..model })])
        }
        other => Err(unsupported(node, &format!("{other} is not supported"))),
    }
}

/// Adds references to the prompt and the negative prompt. The third output is an empty latent for an edit of the first.
fn references(on: &mut Evaluator<'_>, node: &Node) -> Result<Vec<Worth>> {
    let mut pictures = Vec::new();
    for name in IMAGES.into_iter().filter(|name| node.given(name).is_some()) {
        pictures.push(on.picture(node, name)?);
    }
    let Some(first) = pictures.first() else { return Err(unsupported(node, "expected an image")) };
    let [width, height] = first.size.map(|side| side as usize);
    let size = map_node_error(node, input::editing_size(width, height).map_err(|e| e.what().to_string()))?;
    let content = Content::Empty(size.map(|side| side as u64));
    let mut outputs = Vec::new();
    for name in ["positive", "negative"] {
        let conditioning = on.conditioning(node, name)?;
        let references: Arc<[_]> = conditioning.references.iter().chain(&pictures).cloned().collect();
        if references.len() > MAX_REFERENCES {
            return Err(unsupported(node, &format!("there are more than {MAX_REFERENCES} references")));
        }
        outputs.push(Worth::Conditioning(Conditioning { references, ..conditioning }));
    }
    outputs.push(Worth::Latent(Latent { content, mask: None, count: 1 }));
    Ok(outputs)
}

/// Returns the boxes of an input: those of another node, or JSON with boxes in pixels of a canvas.
fn layout(on: &Evaluator<'_>, node: &Node, name: &str, canvas: [u64; 2]) -> Result<Arc<[LayoutBox]>> {
    let text = match on.boxes(node, name)? {
        Some(Worth::Boxes(boxes)) => return Ok(boxes),
        Some(Worth::Text(text)) => text,
        _ => return Ok(Arc::default()),
    };
    let value = serde_json::from_str::<Value>(&text).map_err(|e| format!("{name}: {e}"));
    map_node_error(node, value.and_then(|value| read(&value, canvas).map_err(|why| format!("{name}: {why}"))))
}

/// Parses boxes: a list, a list of one list, or a single box.
fn read(value: &Value, canvas: [u64; 2]) -> std::result::Result<Arc<[LayoutBox]>, String> {
    let rows: Vec<&Value> = match value {
        Value::Array(rows) => {
            rows.iter().flat_map(|row| row.as_array().map_or(vec![row], |all| all.iter().collect())).collect()
        }
        Value::Null => Vec::new(),
        one => vec![one],
    };
    if rows.len() > MAX_BOXES {
        return Err(format!("there are {} boxes, expected at most {MAX_BOXES}", rows.len()));
    }
    rows.into_iter().enumerate().map(|(place, row)| read_box(row, place + 1, canvas)).collect()
}

/// Parses a box: `x`, `y`, `width` and `height` in pixels, or `bbox` with top, left, bottom and right in thousandths.
fn read_box(row: &Value, number: usize, [width, height]: [u64; 2]) -> std::result::Result<LayoutBox, String> {
    let wrong = || format!("box {number}: expected x, y, width and height, or bbox");
    let thousandths = |value: f64, of: f64| (value * 1000.0 / of).round_ties_even().clamp(0.0, 1000.0) as u16;
    let sides = match row["bbox"].as_array() {
        Some(sides) => {
            let sides: Vec<_> = sides.iter().filter_map(|side| Some(thousandths(side.as_f64()?, 1000.0))).collect();
            <[u16; 4]>::try_from(sides).map_err(|_| wrong())?
        }
        None => {
            let side = |name: &str| row[name].as_f64().ok_or_else(wrong);
            let [x, y, across, down] = [side("x")?, side("y")?, side("width")?, side("height")?];
            let (width, height) = (width as f64, height as f64);
            [(y, height), (x, width), (y + down, height), (x + across, width)].map(|(value, of)| thousandths(value, of))
        }
    };
    let more = if row["metadata"].is_object() { &row["metadata"] } else { row };
    let part = |name: &str| more[name].as_str().unwrap_or_default();
    let desc = match (part("type"), part("text"), part("desc")) {
        ("text", text, "") => format!("\"{text}\""),
        ("text", text, desc) => format!("\"{text}\", {desc}"),
        (_, _, desc) => desc.to_string(),
    };
    let bbox = Rectangle::new(sides).map_err(|why| format!("box {number}: {why}"))?;
    Ok(LayoutBox { id: format!("obj_{number}"), bbox: Some(bbox), from: None, src_bbox: None, desc })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fuzz::{One, draw};
    use super::*;
    use crate::jobs::request::Asked;

    /// Returns the requests of a template for text to image, with these nodes added or replaced.
    fn asked(more: Value) -> std::result::Result<Asked, String> {
        let mut graph = json!({
            "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "tiny", "weight_dtype": "default"}},
            "2": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen3vl_4b.safetensors", "type": "flux3"}},
            "3": {"class_type": "VAELoader", "inputs": {"vae_name": "flux2-vae.safetensors"}},
            "4": {"class_type": "CLIPTextEncode", "inputs": {"text": ["13", 0], "clip": ["2", 0]}},
            "5": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["2", 0]}},
            "6": {"class_type": "EmptyFlux2LatentImage",
                "inputs": {"width": ["19", 0], "height": ["19", 1], "batch_size": 1}},
            "7": {"class_type": "KSampler", "inputs": {"model": ["1", 0], "positive": ["4", 0], "negative": ["5", 0],
                "latent_image": ["6", 0], "seed": 3, "steps": 4, "cfg": 1, "sampler_name": "er_sde",
                "scheduler": "simple", "denoise": 1}},
            "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
            "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "x"}},
            "11": {"class_type": "TextGenerate", "inputs": {"clip": ["12", 0], "system_prompt": "You write", "prompt": "a fox",
                "max_length": 3584, "sampling_mode": "on", "sampling_mode.temperature": 1}},
            "12": {"class_type": "CLIPLoader",
                "inputs": {"clip_name": "qwen3.5_9b_flux3_prompt_upsampler_w4a8.safetensors", "type": "flux3"}},
            "13": {"class_type": "PreviewAny", "inputs": {"source": ["16", 0]}},
            "16": {"class_type": "ComfySwitchNode",
                "inputs": {"on_false": "a fox", "on_true": ["11", 0], "switch": false}},
            "19": {"class_type": "ResolutionSelector",
                "inputs": {"aspect_ratio": "16:9 (Widescreen)", "megapixels": 1, "multiple": 16}},
        });
        graph.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let wanted = draw(graph.as_object().unwrap(), &One::new(true));
        wanted.map(|mut wanted| wanted.remove(0).asked).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn templates_of_flux3_become_requests() {
        let plain = asked(json!({})).unwrap();
        assert_eq!((&*plain.recipe.prompt, plain.upsample), ("a fox", Some(false)));
        assert_eq!((plain.recipe.width, plain.recipe.height), (Some(1360), Some(768)));
        let switch = |on: bool| json!({"class_type": "ComfySwitchNode", "inputs": {"on_false": "x", "on_true": ["11", 0], "switch": on}});
        let written = asked(json!({"16": switch(true)})).unwrap();
        assert_eq!((&*written.recipe.prompt, written.upsample), ("a fox", Some(true)));
        assert!(written.notes.iter().any(|note| note.contains("language model")), "{:?}", written.notes);

        let layout = json!({
            "13": {"class_type": "Flux3LayoutPrompt", "inputs": {"prompt": "A fox <obj_1>.", "element": ["23", 2]}},
            "23": {"class_type": "CreateBoundingBoxes", "inputs": {"width": 1000, "height": 500, "editor_state":
                {"__value__": [{"x": 100, "y": 100, "width": 200, "height": 100, "metadata": {"desc": "red"}}]}}},
        });
        let table = r#"[{"id": "obj_1", "bbox": [200, 100, 400, 300], "desc": "red"}]"#;
        assert_eq!(asked(layout.clone()).unwrap().recipe.prompt, format!("A fox <obj_1>. {table}"));
        let mut empty = layout;
        empty["23"]["inputs"]["editor_state"] = json!([]);
        assert_eq!(asked(empty.clone()).unwrap().recipe.prompt, "A fox <obj_1>.");
        empty["23"]["inputs"]["editor_state"] = json!([{"x": 1}]);
        assert!(asked(empty).unwrap_err().contains("box 1"));
    }

    #[test]
    fn references_have_weights() {
        let edit = |weights: &[(u64, f64)]| {
            let mut graph = json!({
                "20": {"class_type": "LoadImage", "inputs": {"image": "a.png"}},
                "21": {"class_type": "ReferenceMultiLatent", "inputs": {"positive": ["4", 0], "negative": ["5", 0],
                    "vae": ["3", 0], "images.image0": ["20", 0], "images.image1": ["20", 0], "mode": "resize"}},
                "7": {"class_type": "KSampler", "inputs": {"model": ["1", 0], "positive": ["21", 0],
                    "negative": ["21", 1], "latent_image": ["21", 2], "seed": 3, "steps": 4, "cfg": 1,
                    "sampler_name": "euler", "scheduler": "simple", "denoise": 1}},
            });
            let mut model = "1".to_string();
            for (number, (index, weight)) in weights.iter().enumerate() {
                let id = format!("w{number}");
                let inputs = json!({"model": [model, 0], "reference_index": index, "weight": weight});
                graph[&id] = json!({"class_type": "Flux2KleinRefLatentWeight", "inputs": inputs});
                model = id;
            }
            graph["7"]["inputs"]["model"] = json!([model, 0]);
            asked(graph)
        };
        let plain = edit(&[]).unwrap().recipe;
        assert_eq!((plain.inputs.len(), plain.input_weights, plain.strength), (2, vec![], None));
        assert_eq!(edit(&[(1, 0.5)]).unwrap().recipe.input_weights, [1.0, 0.5]);
        assert_eq!(edit(&[(0, 0.5), (0, 0.5), (1, 2.0)]).unwrap().recipe.input_weights, [0.25, 2.0]);
        assert!(edit(&[(2, 0.5)]).unwrap().notes.iter().any(|note| note.contains("no reference 2")));
        assert!(edit(&[(0, 2.5)]).unwrap_err().contains("value_bigger_than_max"));
    }

    #[test]
    fn boxes_are_read_in_pixels_and_in_thousandths() {
        let earring = json!({"x": 512, "y": 288, "width": 224, "height": 224,
            "metadata": {"type": "obj", "text": "", "desc": "earring", "palette": []}});
        let sign = json!({"type": "text", "bbox": [0, 10, 500, 1000], "text": "OPEN", "desc": "red letters"});
        let table = |value: &Value| boxes::table(&read(value, [1360, 752]).unwrap(), false);
        assert_eq!(table(&json!([earring])), r#"[{"id": "obj_1", "bbox": [383, 376, 681, 541], "desc": "earring"}]"#);
        assert_eq!(table(&json!([[earring]])), table(&earring));
        assert_eq!(
            table(&json!([sign])),
            r#"[{"id": "obj_1", "bbox": [0, 10, 500, 1000], "desc": "\"OPEN\", red letters"}]"#
        );
        assert!(read(&json!([]), [64, 64]).unwrap().is_empty());
        for wrong in [json!(3), json!([{"x": 1}]), json!({"bbox": [1, 2, 3]}), json!({"bbox": [5, 5, 5, 5]})] {
            assert!(read(&wrong, [64, 64]).is_err(), "{wrong}");
        }
        assert!(read(&Value::from(vec![sign; MAX_BOXES + 1]), [64, 64]).is_err());
    }
}
