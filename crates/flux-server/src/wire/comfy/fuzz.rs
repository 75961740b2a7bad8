//! Fuzzing: any damaged graph must give a response.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flux::rgb::Rgb;
use flux::stage::CancelFlag;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};

use super::drawings::wanted;
use super::error::GraphError;
use super::evaluate::Surroundings;
use super::graph::Graph;
use super::images::Upscaler;
use super::kinds::Model;
use super::sigmas::Sampling;

/// Valid graphs. The last one has unsupported nodes.
const GRAPHS: [&str; 11] = [
    include_str!("../../../../../tests/serve/graphs/text_to_image_distilled.json"),
    include_str!("../../../../../tests/serve/graphs/text_to_image_base.json"),
    include_str!("../../../../../tests/serve/graphs/image_edit.json"),
    include_str!("../../../../../tests/serve/graphs/image_edit_several.json"),
    include_str!("../../../../../tests/serve/graphs/image_edit_kv.json"),
    include_str!("../../../../../tests/serve/graphs/inpaint.json"),
    include_str!("../../../../../tests/serve/graphs/ksampler.json"),
    include_str!("../../../../../tests/serve/graphs/image_to_image.json"),
    include_str!("../../../../../tests/serve/graphs/krita_text_to_image.json"),
    include_str!("../../../../../tests/serve/graphs/krita_refine.json"),
    include_str!("../../../../../tests/serve/graphs/krita_inpaint.json"),
];
const MUTATIONS: usize = 20_000;
/// Replacements for values.
const ODD: [&str; 18] = [
    "null", "true", "-1", "0", "1", "18446744073709551615", "1e308", "0.5", "16384", "\"\"", "\"nan\"", "[]", "{}",
    "[\"1\",0]", "[\"1\",-1]", "[1,2,3]", "[\"none\",0]", "\"first.png\"",
];

/// A server with one model, one adapter and one image.
pub(super) struct One {
    is_distilled: bool,
    image: Bytes,
}

impl One {
    pub(super) fn new(is_distilled: bool) -> Self {
        let image = Rgb { width: 80, height: 64, bytes: vec![9; 3 * 80 * 64] };
        let alpha: Vec<u8> = (0..80 * 64).map(|place| if place % 80 < 40 { 0 } else { 255 }).collect();
        Self { is_distilled, image: flux::output::encode_transparent(&image, &alpha).unwrap().into() }
    }
}

impl Surroundings for One {
    fn model(&self, file: &str) -> Result<(Model, Option<String>), String> {
        if file.is_empty() {
            return Err("there is no model ``".to_string());
        }
        let (sampling, adapters, weights) = (Sampling::default(), Arc::default(), Arc::default());
        let model = Model { name: "tiny".into(), is_distilled: self.is_distilled, sampling, adapters, weights };
        Ok((model, None))
    }

    fn adapter(&self, file: &str) -> Result<String, String> {
        if file == "ink" { Ok(file.to_string()) } else { Err("there is no such LoRA".to_string()) }
    }

    fn upscaler(&self, file: &str) -> Result<Upscaler, String> {
        match file {
            "x2.pth" => Ok(Upscaler { name: file.into(), scale: 2, max_pixels: 1 << 20 }),
            _ => Err("there is no such upscaler".to_string()),
        }
    }

    fn upload(&self, name: &str) -> Option<Bytes> {
        name.ends_with(".png").then(|| self.image.clone())
    }

    fn cached(&self, id: &str) -> Option<Bytes> {
        (id.len() == 8).then(|| self.image.clone())
    }

    fn max_pixels(&self) -> u64 {
        1 << 22
    }

    fn keep(&self, _: usize) -> crate::http::error::Result<()> {
        Ok(())
    }
}

pub(super) fn draw(graph: &Map<String, Value>, around: &One) -> Result<Vec<super::drawings::Wanted>, GraphError> {
    let graph = Graph::read(graph, None)?;
    wanted(super::nodes::run(&graph, around)?)
}

fn graph(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap()
}

/// Returns a graph with the node 5, a `KSampler`.
pub(super) fn ksampler() -> Map<String, Value> {
    graph(GRAPHS[6])
}

/// Returns the type of an error, its node and its input.
fn wrong(graph: Value) -> (&'static str, String, String) {
    let error = draw(graph.as_object().unwrap(), &One::new(true)).err().expect("the graph is invalid");
    let node = error.node.clone();
    let input = node.as_ref().and_then(|node| node.input.clone()).unwrap_or_default();
    (error.kind, node.map(|node| node.id).unwrap_or_default(), input)
}

fn with(name: usize, path: &str, value: Value) -> Value {
    let mut graph: Value = serde_json::from_str(GRAPHS[name]).unwrap();
    *graph.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
    graph
}

#[test]
fn good_graphs_become_requests() {
    for (number, text) in GRAPHS.iter().enumerate() {
        for is_distilled in [true, false] {
            let wanted = draw(&graph(text), &One::new(is_distilled));
            match (number, wanted) {
                (10, wanted) => assert_eq!(wanted.err().unwrap().kind, "missing_node_type"),
                (_, Ok(wanted)) => wanted.iter().for_each(|one| one.asked.recipe.check().unwrap()),
                (_, Err(error)) => panic!("{number}: {error:?}"),
            }
        }
    }
}

#[test]
fn what_graphs_say_is_in_the_recipe() {
    let recipe = |number: usize, is_distilled: bool| {
        let mut wanted = draw(&graph(GRAPHS[number]), &One::new(is_distilled)).unwrap();
        let mut asked = wanted.remove(0).asked;
        assert!(asked.files.is_empty(), "nothing is decoded yet");
        asked.prepare(&CancelFlag::default()).unwrap();
        (asked.recipe, asked.files, asked.notes)
    };
    let (distilled, files, _) = recipe(0, true);
    assert_eq!((distilled.prompt.as_str(), distilled.seed, distilled.steps), ("a red circle", 5, Some(4)));
    assert_eq!((distilled.width, distilled.height, distilled.guidance, files.len()), (Some(64), Some(64), None, 0));
    let (base, ..) = recipe(1, false);
    assert_eq!((base.guidance, base.negative.as_deref(), base.steps), (Some(5.0), Some("blurry"), Some(20)));
    let (_, _, notes) = recipe(1, true);
    assert!(notes.iter().any(|note| note.contains("`negative` has no effect")), "{notes:?}");
    let (several, files, _) = recipe(3, true);
    assert_eq!((several.inputs.len(), files.len(), several.strength), (2, 1, None), "one image, twice");
    let (inpaint, files, _) = recipe(5, true);
    assert_eq!((inpaint.strength, inpaint.no_composite, inpaint.no_self_reference), (Some(1.0), false, false));
    assert!(inpaint.mask.is_some() && files.len() == 2);
    let (half, ..) = recipe(7, true);
    assert_eq!((half.strength, half.no_self_reference), (Some(0.5), true));
    assert!(half.schedule.to_string().starts_with("sigmas:1,"), "{}", half.schedule);
    let (refined, ..) = recipe(9, true);
    assert_eq!((refined.strength, refined.no_self_reference), (Some(0.5), false));
    assert_eq!(refined.schedule.steps(), Some(4), "levels for a size other than that of the image");
}

#[test]
fn what_is_wrong_is_named() {
    for (bad, expected) in [
        (with(0, "/77:61/class_type", json!("Nothing")), ("missing_node_type", "77:61", "")),
        (with(0, "/77:61", json!({"inputs": {}})), ("missing_node_type", "77:61", "")),
        (with(0, "/77:61", json!(7)), ("missing_node_type", "77:61", "")),
        (with(0, "/78/class_type", json!("PrimitiveInt")), ("prompt_no_outputs", "", "")),
        (with(0, "/77:61/inputs/sampler_name", json!(["77:68", 0])), ("return_type_mismatch", "77:61", "sampler_name")),
        (with(0, "/77:61/inputs", json!({})), ("required_input_missing", "77:61", "sampler_name")),
        (with(0, "/77:62/inputs/steps", json!(0)), ("value_smaller_than_min", "77:62", "steps")),
        (with(0, "/77:62/inputs/steps", json!(1001)), ("value_bigger_than_max", "77:62", "steps")),
        (with(0, "/77:62/inputs/steps", json!("x")), ("invalid_input_type", "77:62", "steps")),
        (with(0, "/77:68/inputs/value", json!(8)), ("value_smaller_than_min", "77:66", "width")),
        (with(0, "/77:65/inputs/samples", json!(["gone", 0])), ("bad_linked_input", "77:65", "samples")),
        (with(0, "/77:65/inputs/samples", json!(["77:64", 2])), ("bad_linked_input", "77:65", "samples")),
        (with(0, "/77:65/inputs/samples", json!(["77:64"])), ("bad_linked_input", "77:65", "samples")),
        (with(0, "/77:65/inputs/samples", json!(7)), ("bad_linked_input", "77:65", "samples")),
        (with(0, "/77:65/inputs/samples", json!(["77:70", 0])), ("return_type_mismatch", "77:65", "samples")),
        (with(0, "/77:74/inputs/text", json!(["77:68", 0])), ("return_type_mismatch", "77:74", "text")),
        (with(0, "/77:76/inputs/conditioning", json!(["77:76", 0])), ("dependency_cycle", "77:76", "")),
        (with(0, "/77:63/inputs/positive", json!(["77:76", 0])), ("unsupported_graph", "77:63", "positive")),
        (with(0, "/77:70/inputs/unet_name", json!("")), ("value_not_in_list", "77:70", "unet_name")),
        (with(2, "/76/inputs/image", json!("none")), ("custom_validation_failed", "76", "image")),
        (with(2, "/75:80/inputs/image", json!(["75:65", 0])), ("dependency_cycle", "75:80", "")),
        (with(5, "/15/inputs/mask", json!(["4", 0])), ("return_type_mismatch", "15", "mask")),
        (with(5, "/15/inputs/destination", json!(["14", 0])), ("unsupported_graph", "15", "destination")),
        (with(5, "/14/inputs/samples", json!(["6", 0])), ("unsupported_graph", "14", "samples")),
        (with(9, "/11/inputs/sigmas", json!(["17", 0])), ("unsupported_graph", "11", "sigmas")),
    ] {
        let got = wrong(bad.clone());
        assert_eq!((got.0, &*got.1, &*got.2), expected, "{bad}");
    }
    // An output of an uploaded image is skipped, unless there is no other output.
    let mut sent = with(5, "/16/inputs/images", json!(["4", 0]));
    let wanted = draw(sent.as_object().unwrap(), &One::new(true)).unwrap();
    assert!(wanted[0].outputs.len() == 1 && wanted[0].asked.notes.iter().any(|note| note.contains("node 16")));
    sent["17"]["inputs"]["images"] = json!(["4", 0]);
    let (kind, _, input) = wrong(sent);
    assert_eq!((kind, &*input), ("unsupported_graph", "images"));
    let error = draw(&graph(GRAPHS[10]), &One::new(true)).err().unwrap().json();
    let (named, of_node) = (&error["error"]["extra_info"], &error["node_errors"]["19"]);
    assert_eq!((&named["node_id"], &of_node["class_type"]), (&json!("19"), &json!("INPAINT_ExpandMask")));
    let error = draw(with(0, "/77:62/inputs/steps", json!(0)).as_object().unwrap(), &One::new(true)).err().unwrap();
    let told = error.json();
    assert_eq!(told["error"]["type"], "prompt_outputs_failed_validation");
    assert_eq!(told["node_errors"]["77:62"]["errors"][0]["extra_info"]["input_name"], "steps");
    assert_eq!(told["node_errors"]["77:62"]["dependent_outputs"], json!(["78"]));
}

/// Returns the request of a graph with changed nodes, and its notes.
fn noted(changes: &[(&str, Value)]) -> (super::drawings::Wanted, String) {
    let mut graph = graph(GRAPHS[0]);
    for (id, node) in changes {
        graph.insert(id.to_string(), node.clone());
    }
    let mut wanted = draw(&graph, &One::new(true)).unwrap_or_else(|error| panic!("{error:?}"));
    let notes = wanted[0].asked.notes.join("\n");
    (wanted.remove(0), notes)
}

#[test]
fn what_comfyui_ignores_is_ignored_with_a_note() {
    let sampler = json!({"class_type": "KSamplerSelect", "is_changed": ["x"], "_meta": {"title": "x"},
        "inputs": {"sampler_name": "dpmpp_2m", "control_after_generate": "randomize", "choose file to upload": "image"}});
    let (_, notes) = noted(&[
        ("77:61", sampler),
        ("900", json!({"class_type": "ImageUpscaler5000", "inputs": {"image": ["77:65", 0]}})),
        ("901", json!({"class_type": "MarkdownNote", "inputs": {}})),
        ("902", json!({"inputs": 7})),
        ("903", json!(null)),
        ("904", json!({"class_type": "VAEDecode", "inputs": {"samples": ["none", 0]}})),
    ]);
    for word in
        ["`control_after_generate`", "`choose file to upload`", "dpmpp_2m", "900 (ImageUpscaler5000)", "902", "903"]
    {
        assert!(notes.contains(word), "{word}: {notes}");
    }
    assert!(!notes.contains("901") && !notes.contains("904"), "{notes}");
    let many: Map<_, _> =
        (0..400).map(|id| (format!("odd{id}"), json!({"class_type": "X"}))).chain(graph(GRAPHS[0])).collect();
    let wanted = draw(&many, &One::new(true)).unwrap();
    assert!(wanted[0].asked.notes.iter().any(|note| note.ends_with("and 392 more")), "{:?}", wanted[0].asked.notes);
    let unknown = with(0, "/77:65/class_type", json!("VAEDecodeOdd"));
    let error = draw(unknown.as_object().unwrap(), &One::new(true)).err().unwrap();
    let node = error.node.clone().unwrap();
    assert_eq!((error.kind, &*node.id, &*node.class), ("missing_node_type", "77:65", "VAEDecodeOdd"));
    assert_eq!(node.outputs, ["78"]);
}

#[test]
fn nodes_without_an_effect_pass_their_inputs_on() {
    let plain = noted(&[]).0.asked.recipe;
    for (class, input) in [
        ("DifferentialDiffusion", "model"),
        ("CFGNorm", "model"),
        ("PathchSageAttentionKJ", "model"),
        ("easy cleanGpuUsed", "anything"),
        ("Reroute", ""),
        ("UnloadAllModels", "value"),
        ("VRAM_Debug", "any_input"),
        ("Any Switch (rgthree)", "any_02"),
    ] {
        let node = json!({"class_type": class, "inputs": {input: ["77:70", 0], "strength": 1.0}});
        let mut guider = graph(GRAPHS[0])["77:63"].clone();
        guider["inputs"]["model"] = json!(["900", 0]);
        assert_eq!(noted(&[("900", node), ("77:63", guider)]).0.asked.recipe, plain, "{class}");
    }
    let listed = |adapter: Value| {
        let inputs = json!({"model": ["77:70", 0], "lora_1": adapter, "PowerLoraLoaderHeaderWidget": {"type": "x"}});
        let mut guider = graph(GRAPHS[0])["77:63"].clone();
        guider["inputs"]["model"] = json!(["900", 0]);
        noted(&[("900", json!({"class_type": "Power Lora Loader (rgthree)", "inputs": inputs})), ("77:63", guider)]).0
    };
    let on = listed(json!({"on": true, "lora": "ink", "strength": 0.5})).asked.adapters;
    assert_eq!((on.len(), &*on[0].name, on[0].weight), (1, "ink", 0.5));
    assert!(listed(json!({"on": false, "lora": "none", "strength": 1})).asked.adapters.is_empty());
    // Only the selected branch of a switch is evaluated.
    for (class, inputs) in [
        ("ComfySwitchNode", json!({"switch": ["901", 0], "on_true": ["902", 0], "on_false": ["77:70", 0]})),
        ("ComfySwitchNode", json!({"switch": true, "on_false": ["902", 0], "on_true": ["77:70", 0]})),
        ("ComfySwitchNode", json!({"on_true": ["902", 0], "on_false": ["77:70", 0]})),
        ("Switch any [Crystools]", json!({"boolean": true, "on_true": ["77:70", 0]})),
        ("ImpactSwitch", json!({"select": 2, "input1": ["902", 0], "input2": ["77:70", 0], "sel_mode": false})),
        ("CR Model Input Switch", json!({"Input": 2, "model1": ["902", 0], "model2": ["77:70", 0]})),
        ("Any Switch (rgthree)", json!({"any_01": ["77:70", 0], "any_02": ["902", 0]})),
    ] {
        let mut guider = graph(GRAPHS[0])["77:63"].clone();
        guider["inputs"]["model"] = json!(["900", 0]);
        let nodes = [
            ("900", json!({"class_type": class, "inputs": inputs})),
            ("901", json!({"class_type": "PrimitiveBoolean", "inputs": {"value": false}})),
            ("902", json!({"class_type": "OddLoader", "inputs": {}})),
            ("77:63", guider),
        ];
        assert_eq!(noted(&nodes).0.asked.recipe, plain, "{class}");
    }
    let to_model = |node: Value| {
        let mut graph = with(0, "/77:63/inputs/model", json!(["900", 0]));
        graph["900"] = node;
        wrong(graph)
    };
    let wrong_kind = json!({"class_type": "Reroute", "inputs": {"": ["77:74", 0]}});
    assert_eq!(to_model(wrong_kind), ("return_type_mismatch", "77:63".to_string(), "model".to_string()));
    let open = json!({"class_type": "ComfySwitchNode", "inputs": {"switch": true, "on_false": ["77:70", 0]}});
    assert_eq!(to_model(open), ("required_input_missing", "900".to_string(), "on_true".to_string()));
    let odd = json!({"class_type": "ComfySwitchNode", "inputs": {"switch": true, "on_true": ["902", 0]}});
    assert_eq!(to_model(odd).0, "bad_linked_input");
}

#[test]
fn samplers_of_other_names_make_the_same_request() {
    let ksampler = |class: &str, more: Value| {
        let mut graph = graph(GRAPHS[6]);
        let sampler = graph.iter().find(|(_, node)| node["class_type"] == "KSampler").unwrap().0.clone();
        let node = graph.get_mut(&sampler).unwrap();
        node["class_type"] = json!(class);
        node["inputs"]["noise_seed"] = node["inputs"]["seed"].clone();
        for (name, value) in more.as_object().unwrap() {
            node["inputs"][name] = value.clone();
        }
        draw(&graph, &One::new(true)).map(|mut wanted| wanted.remove(0).asked)
    };
    let plain = ksampler("KSampler", json!({})).unwrap();
    let advanced = json!({"add_noise": "enable", "start_at_step": 0, "end_at_step": 10000, "return_with_leftover_noise": "disable"});
    assert_eq!(ksampler("KSamplerAdvanced", advanced.clone()).unwrap().recipe, plain.recipe);
    let beta = ksampler("KSampler", json!({"scheduler": "beta", "sampler_name": "res_2s"})).unwrap();
    assert_eq!(beta.recipe, plain.recipe);
    assert!(
        beta.notes.iter().any(|note| note.contains("beta")) && beta.notes.iter().any(|note| note.contains("res_2s"))
    );
    let mut early = advanced;
    early["end_at_step"] = json!(2);
    assert_eq!(ksampler("KSamplerAdvanced", early).err().unwrap().kind, "unsupported_graph");
    let shifted = |node: Value| {
        let mut graph = graph(GRAPHS[6]);
        let sampler = graph.iter().find(|(_, node)| node["class_type"] == "KSampler").unwrap().0.clone();
        let model = graph[&sampler]["inputs"]["model"].clone();
        graph.get_mut(&sampler).unwrap()["inputs"]["model"] = json!(["900", 0]);
        graph.insert("900".to_string(), node);
        graph["900"]["inputs"]["model"] = model;
        draw(&graph, &One::new(true)).map(|mut wanted| wanted.remove(0).asked.recipe.schedule.to_string())
    };
    let own = plain.recipe.schedule.to_string();
    let aura = shifted(json!({"class_type": "ModelSamplingAuraFlow", "inputs": {"shift": 3}})).unwrap();
    let flux = json!({"class_type": "ModelSamplingFlux",
        "inputs": {"max_shift": 1.15, "base_shift": 0.5, "width": 1024, "height": 1024}});
    assert!(aura != own && shifted(flux).unwrap() != own && aura.contains("0.75"), "{aura}");
    assert!(shifted(json!({"class_type": "ModelSamplingSD3", "inputs": {"shift": 0}})).is_err());
}

#[test]
fn graphs_that_are_large_or_deep_are_answered_soon() {
    let start = Instant::now();
    let node =
        |id: usize| json!({"class_type": "ConditioningZeroOut", "inputs": {"conditioning": [format!("d{id}"), 0]}});
    let many: Map<_, _> = (0..10_000).map(|id| (format!("d{id}"), node(id + 1))).collect();
    assert_eq!(wrong(many.into()).0, "invalid_prompt");
    let mut saved = graph(GRAPHS[0]);
    let save = saved["78"].clone();
    (0..40).for_each(|id| {
        saved.insert(format!("s{id}"), save.clone());
    });
    assert_eq!(wrong(saved.into()).0, "invalid_prompt", "too many outputs");
    let mut long = graph(GRAPHS[0]);
    long.insert("x".repeat(65), save);
    assert_eq!(wrong(long.into()).0, "invalid_prompt", "a name that is too long");
    let mut deep = graph(GRAPHS[0]);
    (0..400).for_each(|id| {
        deep.insert(format!("d{id}"), node(id + 1));
    });
    deep.insert(
        "d400".to_string(),
        json!({"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["77:74", 0]}}),
    );
    deep["77:63"]["inputs"]["negative"] = json!(["d0", 0]);
    assert!(draw(&deep, &One::new(true)).is_ok());
    deep["d400"]["inputs"]["conditioning"] = json!(["d0", 0]);
    assert_eq!(wrong(deep.clone().into()).0, "dependency_cycle");
    // Each of many nodes takes from all nodes before it.
    let mut wide = graph(GRAPHS[5]);
    let mut last = "4".to_string();
    for id in 100..200 {
        let scale = json!({"class_type": "ImageScaleBy",
            "inputs": {"image": [last, 0], "upscale_method": "lanczos", "scale_by": 8.0}});
        last = id.to_string();
        wide.insert(last.clone(), scale);
    }
    wide["6"]["inputs"]["pixels"] = json!([last, 0]);
    assert_eq!(wrong(wide.into()).0, "unsupported_graph");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn damaged_graphs_are_answered() {
    let mut random = StdRng::seed_from_u64(1);
    let arounds = [One::new(true), One::new(false)];
    let mut good = 0;
    for round in 0..MUTATIONS {
        let mut damaged = graph(GRAPHS[random.random_range(0..GRAPHS.len())]);
        for _ in 0..random.random_range(1..4) {
            damage(&mut damaged, &mut random);
        }
        match draw(&damaged, &arounds[round % 2]) {
            Ok(wanted) => {
                good += 1;
                assert!(!wanted.is_empty());
            }
            Err(error) => assert!(error.json()["error"]["type"].is_string(), "{error:?}"),
        }
    }
    assert!(good > MUTATIONS / 50 && good < MUTATIONS, "{good}");
}

/// Changes a graph at random.
fn damage(graph: &mut Map<String, Value>, random: &mut StdRng) {
    let ids: Vec<String> = graph.keys().cloned().collect();
    let Some(id) = ids.get(random.random_range(0..ids.len().max(1))).cloned() else { return };
    let other = ids[random.random_range(0..ids.len())].clone();
    let odd: Value = serde_json::from_str(ODD[random.random_range(0..ODD.len())]).unwrap();
    match random.random_range(0..8) {
        0 => {
            graph.remove(&id);
        }
        1 => {
            let node = graph[&other].clone();
            graph.insert(id, node);
        }
        2 => {
            graph.insert(id, odd);
        }
        3 => {
            let class = graph[&other]["class_type"].clone();
            if let Some(node) = graph[&id].as_object_mut() {
                node.insert("class_type".to_string(), class);
            }
        }
        _ => {
            let output = random.random_range(0..3);
            let link = json!([other, output]);
            let node = graph.get_mut(&id).and_then(|node| node.get_mut("inputs"));
            let Some(inputs) = node.and_then(Value::as_object_mut) else { return };
            let names: Vec<String> = inputs.keys().cloned().collect();
            let Some(name) = names.get(random.random_range(0..names.len().max(1))).cloned() else { return };
            match random.random_range(0..4) {
                0 => {
                    inputs.remove(&name);
                }
                1 => {
                    inputs.insert(name, link);
                }
                _ => {
                    inputs.insert(name, odd);
                }
            }
        }
    }
}
