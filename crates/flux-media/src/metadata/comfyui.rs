//! The API graph that ComfyUI stores in an image: the settings of its first sampler.
//!
//! Nodes name their inputs differently, so the search for a sampler's inputs goes by names, along the links and
//! nearest first.

use std::collections::{HashSet, VecDeque};

use serde_json::{Map, Value};

use super::settings::{Settings, number_text, short_text};

/// Maximum nodes that are searched for one value.
const MAX_NODES: usize = 1000;
/// Maximum samplers among which the first one is searched.
const MAX_SAMPLERS: usize = 100;
/// Inputs of nodes that consist of a value.
const VALUES: [&str; 8] = ["value", "string", "text", "int", "float", "number", "seed", "result"];
/// Inputs of nodes that have a prompt.
const TEXTS: [&str; 8] = ["text", "prompt", "t5xxl", "clip_l", "text_g", "positive_prompt", "string", "value"];

/// Returns the settings of a graph.
///
/// `None` if it has no sampler.
pub(super) fn settings(nodes: &Map<String, Value>) -> Option<Settings> {
    let graph = Graph(nodes);
    let samplers: Vec<&Value> = nodes.values().filter(|node| is_sampler(node)).collect();
    // With several passes, the pass that begins with an empty image.
    let is_first = |node: &&&Value| graph.nearest(node, "latent_image", &["width"], |_, _| true).is_some();
    let sampler = samplers.iter().take(MAX_SAMPLERS).find(is_first).or_else(|| samplers.first())?;
    let text = |start: &str, names: &[&str]| graph.nearest(sampler, start, names, |_, value| value.is_string());
    let number = |start: &str, names: &[&str]| {
        graph.nearest(sampler, start, names, |_, value| value.is_number()).as_ref().and_then(number_text)
    };
    let is_prompt = |class: &str, value: &Value| value.is_string() && !class.contains("Loader");
    let prompt = |role: &str| {
        let starts = [role, "guider", "conditioning"];
        let found = starts.iter().find_map(|start| graph.words(sampler, start, role, is_prompt));
        found.and_then(|value| value.as_str().map(str::to_string))
    };
    let loras = nodes.values().filter_map(|node| {
        let name = short_text(node["inputs"].get("lora_name")?)?;
        let strength = node["inputs"].get("strength_model").and_then(number_text);
        Some(("LoRA".to_string(), strength.map_or_else(|| name.clone(), |strength| format!("{name}:{strength}"))))
    });
    let mut others: Vec<_> = loras.collect();
    if samplers.len() > 1 {
        others.push(("samplers".to_string(), samplers.len().to_string()));
    }
    if graph.nearest(sampler, "latent_image", &["image"], |_, value| value.is_string()).is_some() {
        others.push(("input image".to_string(), "the sampler starts from it".to_string()));
    }
    let denoise = number("", &["denoise"]).filter(|denoise| denoise != "1");
    others.extend(denoise.map(|denoise| ("denoise".to_string(), denoise)));
    let parsed = |text: Option<String>| text.and_then(|text| text.parse().ok());
    let side = |name| parsed(number("latent_image", &[name])).or_else(|| parsed(number("", &[name])));
    Some(Settings {
        program: "ComfyUI".to_string(),
        prompt: prompt("positive").or_else(|| prompt("conditioning")),
        negative: prompt("negative").filter(|text| !text.is_empty()),
        width: side("width"),
        height: side("height"),
        steps: number("", &["steps"]).and_then(|text| text.parse().ok()),
        seed: number("", &["seed", "noise_seed"]).and_then(|text| text.parse().ok()),
        guidance: number("", &["cfg"]).and_then(|text| text.parse().ok()),
        sampler: text("", &["sampler_name"]).as_ref().and_then(short_text),
        scheduler: text("", &["scheduler"]).as_ref().and_then(short_text),
        model: text("", &["unet_name", "ckpt_name", "model_name"]).as_ref().and_then(short_text),
        others,
    })
}

fn class(node: &Value) -> &str {
    node["class_type"].as_str().unwrap_or_default()
}

fn is_sampler(node: &Value) -> bool {
    class(node).contains("Sampler") && node["inputs"].get("latent_image").is_some()
}

struct Graph<'a>(&'a Map<String, Value>);

impl<'a> Graph<'a> {
    /// Returns the target node of a link: `["7", 0]`.
    fn linked(&self, value: &Value) -> Option<(&'a str, &'a Value)> {
        let [id, Value::Number(_)] = value.as_array()?.as_slice() else { return None };
        let id = id.as_str().map_or_else(|| id.to_string(), str::to_string);
        self.0.get_key_value(&id).map(|(id, node)| (id.as_str(), node))
    }

    /// Returns a value, or the value of the node that it is linked to.
    fn resolved(&self, value: &'a Value) -> Option<&'a Value> {
        let mut value = value;
        for _ in 0..16 {
            let Some((_, node)) = self.linked(value) else { return Some(value) };
            value = VALUES.iter().find_map(|name| node["inputs"].get(name))?;
        }
        None
    }

    /// Returns the nearest input of one of these names that `suits`, among all nodes that lead to a node by its input
    /// `start`, or by any input if `start` is empty. The node itself counts then.
    fn nearest(
        &self,
        node: &'a Value,
        start: &str,
        names: &[&str],
        suits: impl Fn(&str, &Value) -> bool,
    ) -> Option<Value> {
        let first = if start.is_empty() { node } else { self.linked(node["inputs"].get(start)?)?.1 };
        self.search(first, names, "", suits)
    }

    /// As [`Graph::nearest`], for a prompt. In nodes that pass on both prompts, the search follows the input `role`.
    fn words(&self, node: &'a Value, start: &str, role: &str, suits: impl Fn(&str, &Value) -> bool) -> Option<Value> {
        let (_, mut first) = self.linked(node["inputs"].get(start)?)?;
        if start == "guider" {
            first = self.linked(first["inputs"].get(role)?)?.1;
        }
        self.search(first, &TEXTS, role, suits)
    }

    fn search(
        &self,
        first: &'a Value,
        names: &[&str],
        role: &str,
        suits: impl Fn(&str, &Value) -> bool,
    ) -> Option<Value> {
        let (mut seen, mut queue) = (HashSet::new(), VecDeque::from([first]));
        while let Some(node) = queue.pop_front() {
            // The node turns the prompt before it into an empty one.
            let is_empty = class(node).contains("ZeroOut");
            let Some(inputs) = node["inputs"].as_object().filter(|_| !is_empty) else { continue };
            let found = names.iter().filter_map(|name| self.resolved(inputs.get(*name)?));
            if let Some(value) = found.into_iter().find(|value| suits(class(node), value)) {
                return Some(value.clone());
            }
            let only = inputs.get(role).filter(|_| !role.is_empty());
            let links = only.into_iter().chain(inputs.values().filter(|_| only.is_none()));
            for (id, next) in links.filter_map(|value| self.linked(value)) {
                if seen.len() < MAX_NODES && seen.insert(id) {
                    queue.push_back(next);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(graph: Value) -> Option<Settings> {
        settings(graph.as_object().unwrap())
    }

    #[test]
    fn the_graph_of_a_sampler_is_followed() {
        let read = read(json!({
            "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd/v1.safetensors"}},
            "2": {"class_type": "LoraLoader", "inputs": {"lora_name": "ink.safetensors", "strength_model": 0.5, "model": ["1", 0]}},
            "3": {"class_type": "CLIPTextEncode", "inputs": {"text": ["9", 0], "clip": ["1", 1]}},
            "4": {"class_type": "CLIPTextEncode", "inputs": {"text": "a dog", "clip": ["1", 1]}},
            "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 512, "height": ["8", 0], "batch_size": 1}},
            "6": {"class_type": "KSampler", "inputs": {"seed": 18446744073709551615u64, "steps": 20, "cfg": 7.5,
                "sampler_name": "dpmpp_2m", "scheduler": "karras", "denoise": 1.0, "model": ["2", 0], "positive": ["3", 0],
                "negative": ["4", 0], "latent_image": ["5", 0]}},
            "8": {"class_type": "PrimitiveInt", "inputs": {"value": 768}},
            "9": {"class_type": "PrimitiveString", "inputs": {"value": "a cat"}}
        }))
        .unwrap();
        assert_eq!((read.prompt.as_deref(), read.negative.as_deref()), (Some("a cat"), Some("a dog")));
        assert_eq!((read.width, read.height, read.steps), (Some(512), Some(768), Some(20)));
        assert_eq!((read.seed, read.guidance), (Some(u64::MAX), Some(7.5)));
        assert_eq!((read.sampler.as_deref(), read.scheduler.as_deref()), (Some("dpmpp_2m"), Some("karras")));
        assert_eq!(read.model.as_deref(), Some("sd/v1.safetensors"));
        assert_eq!(read.others, [("LoRA".to_string(), "ink.safetensors:0.5".to_string())]);
    }

    #[test]
    fn a_sampler_of_parts_is_read() {
        let read = read(json!({
            "10": {"class_type": "SamplerCustomAdvanced", "inputs": {"noise": ["11", 0], "guider": ["12", 0],
                "sampler": ["13", 0], "sigmas": ["14", 0], "latent_image": ["15", 0]}},
            "11": {"class_type": "RandomNoise", "inputs": {"noise_seed": 5}},
            "12": {"class_type": "BasicGuider", "inputs": {"model": ["16", 0], "conditioning": ["17", 0]}},
            "13": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}},
            "14": {"class_type": "Flux2Scheduler", "inputs": {"steps": 4, "width": 64, "height": 96}},
            "15": {"class_type": "EmptyFlux2LatentImage", "inputs": {"width": 64, "height": 96, "batch_size": 1}},
            "16": {"class_type": "UNETLoader", "inputs": {"unet_name": "klein.safetensors"}},
            "17": {"class_type": "FluxGuidance", "inputs": {"guidance": 3.5, "conditioning": ["18", 0]}},
            "18": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["19", 0]}},
            "19": {"class_type": "CLIPLoader", "inputs": {"clip_name": "q", "type": "flux2"}}
        }))
        .unwrap();
        assert_eq!((read.prompt.as_deref(), read.negative), (Some("a cat"), None));
        assert_eq!((read.width, read.height, read.steps, read.seed), (Some(64), Some(96), Some(4), Some(5)));
        assert_eq!(read.model.as_deref(), Some("klein.safetensors"));
    }

    #[test]
    fn circles_and_what_is_no_graph_end() {
        assert_eq!(read(json!({"a": 1, "b": {"class_type": "SaveImage"}})), None);
        let circle = read(json!({
            "1": {"class_type": "KSampler", "inputs": {"latent_image": ["1", 0], "positive": ["2", 0], "seed": ["2", 0]}},
            "2": {"class_type": "X", "inputs": {"value": ["2", 0], "positive": ["1", 0]}}
        }))
        .unwrap();
        assert_eq!((circle.prompt, circle.seed, circle.width), (None, None, None));
    }
}
