//! Tests of samplers that read images of the graph: a second pass, references, and edits of enlarged images.

use serde_json::{Map, Value, json};

use super::drawings::Wanted;
use super::error::GraphError;
use super::fuzz::{One, draw, ksampler};
use crate::jobs::request::Asked;

fn node(class: &str, inputs: Value) -> Value {
    json!({"class_type": class, "inputs": inputs})
}

fn scaled_by(class: &str, input: &str, of: &str, by: f64) -> Value {
    node(class, json!({input: [of, 0], "upscale_method": "bicubic", "scale_by": by}))
}

/// Returns a graph with these nodes, where the sampler 50 reads the node `latent` and is saved. It has the settings of
/// the sampler 5, which generates one image, and denoises half.
fn graph(latent: &str, more: Value) -> Map<String, Value> {
    let mut graph = ksampler();
    graph["4"]["inputs"]["batch_size"] = json!(1);
    let mut second = graph["5"].clone();
    second["inputs"]["latent_image"] = json!([latent, 0]);
    second["inputs"]["denoise"] = json!(0.5);
    second["inputs"]["seed"] = json!(6);
    graph.insert("50".to_string(), second);
    graph.insert("51".to_string(), node("VAEDecode", json!({"samples": ["50", 0], "vae": ["1", 2]})));
    graph.insert("encode".to_string(), node("VAEEncode", json!({"pixels": ["pixels", 0], "vae": ["1", 2]})));
    graph.insert("model".to_string(), node("UpscaleModelLoader", json!({"model_name": "x2.pth"})));
    graph["7"]["inputs"]["images"] = json!(["51", 0]);
    graph["8"]["inputs"]["images"] = json!(["51", 0]);
    graph.extend(more.as_object().unwrap().clone());
    graph
}

fn wanted(graph: &Map<String, Value>) -> Result<Vec<Wanted>, GraphError> {
    draw(graph, &One::new(true))
}

fn enlarged(of: &str) -> Value {
    node("ImageUpscaleWithModel", json!({"upscale_model": ["model", 0], "image": [of, 0]}))
}

/// Returns what an edit without references says: its inputs, strength and seed.
fn edit(asked: &Asked) -> (Vec<&str>, Option<f64>, u64) {
    let names = asked.recipe.inputs.iter().map(|name| name.to_str().unwrap()).collect();
    assert!(asked.recipe.no_self_reference && asked.recipe.width.is_none());
    asked.recipe.check().unwrap();
    (names, asked.recipe.strength, asked.recipe.seed)
}

#[test]
fn a_second_pass_edits_the_image_of_the_first() {
    let by_model = json!({"pixels": enlarged("6")});
    let by_filter = json!({"pixels": scaled_by("ImageScaleBy", "image", "6", 1.5)});
    let both = json!({"pixels": scaled_by("ImageScaleBy", "image", "large", 0.75), "large": enlarged("6")});
    let latent = json!({"up": scaled_by("LatentUpscaleBy", "samples", "5", 1.5)});
    for (latent, more, side) in [
        ("encode", by_model, 128),
        ("encode", by_filter, 96),
        ("encode", both, 96),
        ("up", latent, 96),
        ("5", json!({}), 64),
    ] {
        let graph = graph(latent, more);
        let passes = wanted(&graph).unwrap();
        let [first, second] = &passes[..] else { panic!("{} samplers", passes.len()) };
        assert_eq!((first.outputs.len(), first.awaited.len(), first.asked.recipe.seed), (0, 0, 5));
        assert_eq!((second.outputs.len(), second.awaited.len()), (2, 1));
        let (name, picture) = &second.awaited[0];
        assert_eq!((picture.size, picture.maker()), ([side, side], Some(first.maker)));
        assert_eq!(edit(&second.asked), (vec![name.to_str().unwrap()], Some(0.5), 6));
    }
    // The first image can be saved, too, and a sampler that starts from noise needs none.
    let mut saved = graph("encode", json!({"pixels": scaled_by("ImageScaleBy", "image", "6", 2.0)}));
    saved["8"]["inputs"]["images"] = json!(["6", 0]);
    assert_eq!(wanted(&saved).unwrap().iter().map(|pass| pass.outputs.len()).collect::<Vec<_>>(), [1, 1]);
    let mut whole = graph("encode", json!({"pixels": scaled_by("ImageScaleBy", "image", "6", 2.0)}));
    whole["50"]["inputs"]["denoise"] = json!(1);
    let alone = wanted(&whole).unwrap();
    assert_eq!((alone.len(), alone[0].asked.recipe.width, alone[0].awaited.len()), (1, Some(128), 0));
}

#[test]
fn an_uploaded_image_is_enlarged_before_it_is_edited() {
    let load = node("LoadImage", json!({"image": "first.png"}));
    let passes = wanted(&graph("encode", json!({"pixels": enlarged("load"), "load": load}))).unwrap();
    let [pass] = &passes[..] else { panic!("{} samplers", passes.len()) };
    let (_, picture) = &pass.awaited[0];
    assert_eq!((picture.size, picture.maker(), picture.sent_file().is_some()), ([160, 128], None, true));
    assert_eq!(edit(&pass.asked).1, Some(0.5));
}

#[test]
fn generated_images_can_be_references() {
    let reference = node("ReferenceLatent", json!({"conditioning": ["2", 0], "latent": ["encode", 0]}));
    let mut graph = graph("4", json!({"pixels": scaled_by("ImageScaleBy", "image", "6", 2.0), "reference": reference}));
    graph["50"]["inputs"]["positive"] = json!(["reference", 0]);
    graph["50"]["inputs"]["denoise"] = json!(1);
    let passes = wanted(&graph).unwrap();
    let [first, second] = &passes[..] else { panic!("{} samplers", passes.len()) };
    assert_eq!((second.awaited[0].1.maker(), second.asked.recipe.strength), (Some(first.maker), None));
    // The edited image may be the reference, as in `--hires`.
    graph["50"]["inputs"]["latent_image"] = json!(["encode", 0]);
    graph["50"]["inputs"]["denoise"] = json!(0.5);
    let second = wanted(&graph).unwrap().remove(1).asked;
    assert_eq!((second.recipe.inputs.len(), second.recipe.no_self_reference), (1, false));
}

#[test]
fn a_generated_image_is_edited_in_its_own_size() {
    let mut large = graph("encode", json!({"pixels": scaled_by("ImageScaleBy", "image", "6", 2.05)}));
    large["4"]["inputs"]["width"] = json!(1024);
    large["4"]["inputs"]["height"] = json!(512);
    let mut passes = wanted(&large).unwrap();
    let second = passes.remove(1);
    assert!(second.asked.edits_whole && second.asked.no_recipe);
    assert_eq!(second.awaited[0].1.size, [2096, 1040], "multiples of 16");
    // A mask brings the edit back to a megapixel, as for uploads.
    large.insert("load".to_string(), node("LoadImage", json!({"image": "first.png"})));
    let masked = node("SetLatentNoiseMask", json!({"samples": ["encode", 0], "mask": ["load", 1]}));
    large.insert("masked".to_string(), masked);
    large["50"]["inputs"]["latent_image"] = json!(["masked", 0]);
    let second = wanted(&large).unwrap().remove(1).asked;
    assert!(!second.edits_whole && second.recipe.mask.is_some());
    assert!(second.notes.iter().any(|note| note.contains("2099x1050")), "{:?}", second.notes);
}

#[test]
fn what_a_second_sampler_cannot_read_is_named() {
    let mut batch = graph("encode", json!({"pixels": scaled_by("ImageScaleBy", "image", "6", 2.0)}));
    batch["4"]["inputs"]["batch_size"] = json!(2);
    let mut latents = graph("5", json!({}));
    latents["4"]["inputs"]["batch_size"] = json!(2);
    let mut mask = graph("masked", json!({"pixels": scaled_by("ImageScaleBy", "image", "6", 2.0)}));
    mask.insert("mask".to_string(), node("ImageToMask", json!({"image": ["6", 0], "channel": "red"})));
    mask.insert(
        "masked".to_string(),
        node("SetLatentNoiseMask", json!({"samples": ["encode", 0], "mask": ["mask", 0]})),
    );
    let mut noise = graph("4", json!({}));
    noise["50"]["inputs"]["denoise"] = json!(0.5);
    let mut decoded = graph("5", json!({"up": scaled_by("LatentUpscaleBy", "samples", "5", 2.0)}));
    decoded["51"]["inputs"]["samples"] = json!(["up", 0]);
    let mut huge = graph("encode", json!({"pixels": scaled_by("ImageScaleBy", "image", "6", 4.0)}));
    huge["4"]["inputs"]["width"] = json!(1024);
    huge["4"]["inputs"]["height"] = json!(1024);
    for (graph, node, input) in [
        (huge, "50", "latent_image"),
        (batch, "encode", "pixels"),
        (latents, "50", "latent_image"),
        (mask, "mask", "image"),
        (noise, "50", "sigmas"),
        (decoded, "51", "samples"),
    ] {
        let error = wanted(&graph).map(|passes| passes.len()).unwrap_err();
        let of = error.node.clone().unwrap();
        assert_eq!((error.kind, &*of.id, of.input.as_deref()), ("unsupported_graph", node, Some(input)), "{error:?}");
    }
}
