//! The settings that other programs store with an image, in their different forms.
//!
//! | program | where | form |
//! |---|---|---|
//! | A1111, Forge, and programs derived from them | `parameters`, UserComment | [`Infotext`] |
//! | ComfyUI | `prompt`, EXIF's Model or Make | a graph |
//! | InvokeAI | `invokeai_metadata`, `sd-metadata`, `Dream` | JSON, a command line |
//! | SwarmUI, Fooocus, mflux, Easy Diffusion | `parameters`, UserComment | JSON |
//! | NovelAI | `Comment` | JSON |
//! | Draw Things | UserComment of XMP | JSON |

use serde_json::{Map, Value};

use super::settings::{Settings, number_text, set, short_text};
use super::{Infotext, PARAMETERS, Said, comfyui};

/// Names of JSON fields, by meaning.
const PROMPT: [&str; 4] = ["prompt", "positive_prompt", "c", "Prompt"];
const NEGATIVE: [&str; 5] = ["negative_prompt", "negativeprompt", "uc", "Negative Prompt", "negativePrompt"];
const STEPS: [&str; 2] = ["steps", "num_inference_steps"];
const GUIDANCE: [&str; 5] = ["cfg_scale", "cfgscale", "guidance_scale", "guidance", "scale"];
const SAMPLER: [&str; 2] = ["sampler", "sampler_name"];
const MODEL: [&str; 4] = ["model", "base_model", "model_weights", "use_stable_diffusion_model"];
const SIZE: [&str; 2] = ["size", "resolution"];

impl Settings {
    /// Reads the settings in the texts of a file.
    ///
    /// `None` if there are no known settings.
    pub fn read(said: &Said) -> Option<Self> {
        let text = |keyword: &str| said.text(keyword);
        let object = |keyword: &str| text(keyword).and_then(parse_object);
        invokeai(said)
            .or_else(|| {
                let comment = object("Comment").filter(|_| text("Software") == Some("NovelAI"))?;
                let source = text("Source").unwrap_or_default();
                let own = Self::from_object(format!("NovelAI {source}").trim_end(), comment);
                Some(Self { prompt: own.prompt.or_else(|| text("Description").map(str::to_string)), ..own })
            })
            .or_else(|| {
                let parameters = said.parameters.as_deref()?;
                match parse_object(parameters) {
                    Some(fields) => Self::from_json(said, fields),
                    None => Self::from_infotext(&Infotext::parse(parameters)),
                }
            })
            .or_else(|| {
                let in_exif = |keyword| text(keyword)?.strip_prefix("prompt:").and_then(parse_object);
                let graph = object("prompt").or_else(|| in_exif("Model")).or_else(|| in_exif("Make"));
                graph.and_then(|nodes| comfyui::settings(&nodes))
            })
            .or_else(|| {
                let in_exif = ["Model", "Make"]
                    .iter()
                    .any(|keyword| text(keyword).is_some_and(|text| text.starts_with("workflow:")));
                let is_workflow = in_exif || object("workflow").is_some_and(|graph| graph.contains_key("nodes"));
                let others = vec![("workflow".to_string(), "without the graph that generated the image".to_string())];
                is_workflow.then(|| Self { program: "ComfyUI".to_string(), others, ..Self::default() })
            })
    }

    /// Reads the settings of A1111's text.
    ///
    /// `None` if it has none.
    pub fn from_infotext(info: &Infotext) -> Option<Self> {
        if info.pairs.is_empty() {
            return None;
        }
        let mut own = Self {
            program: program_of_version(info.get("Version")),
            prompt: Some(info.prompt.clone()),
            negative: Some(info.negative.clone()).filter(|text| !text.is_empty()),
            ..Self::default()
        };
        for (key, value) in &info.pairs {
            let is_known = match &**key {
                "Steps" => set(&mut own.steps, value),
                "Seed" => set(&mut own.seed, value),
                "CFG scale" => set(&mut own.guidance, value),
                "Size" => own.set_size(value),
                "Sampler" => set(&mut own.sampler, value),
                "Schedule type" => set(&mut own.scheduler, value),
                "Model" => set(&mut own.model, value),
                "Version" => true,
                _ => false,
            };
            if !is_known {
                own.others.push((key.clone(), value.clone()));
            }
        }
        Some(own)
    }

    /// Reads the settings in JSON, whose fields identify the program.
    fn from_json(said: &Said, fields: Map<String, Value>) -> Option<Self> {
        let version = |name: &str| fields.get(name).and_then(short_text).unwrap_or_default();
        if let Some(Value::Object(params)) = fields.get("sui_image_params") {
            let version = params.get("swarm_version").and_then(short_text).unwrap_or_default();
            return Some(Self::from_object(format!("SwarmUI {version}").trim_end(), params.clone()));
        }
        let is_fooocus = fields.contains_key("metadata_scheme") || said.text("fooocus_scheme").is_some();
        let program = if fields.contains_key("mflux_version") {
            format!("mflux {}", version("mflux_version"))
        } else if version("version").starts_with("Fooocus") {
            version("version")
        } else if is_fooocus {
            "Fooocus".to_string()
        } else if fields.contains_key("use_stable_diffusion_model") {
            "Easy Diffusion".to_string()
        } else {
            said.text("CreatorTool").or_else(|| said.text("Software")).unwrap_or("an unknown program").to_string()
        };
        Some(Self::from_object(&program, fields)).filter(|own| own.prompt.is_some())
    }

    /// Reads fields by their usual names.
    fn from_object(program: &str, mut fields: Map<String, Value>) -> Self {
        let mut take =
            |names: &[&str]| names.iter().find_map(|name| fields.remove(*name).filter(|value| !value.is_null()));
        let prompt = take(&PROMPT).as_ref().and_then(prompt_text);
        let negative = take(&NEGATIVE).as_ref().and_then(prompt_text).filter(|text| !text.is_empty());
        let mut own = Self { program: program.to_string(), prompt, negative, ..Self::default() };
        if let Some(size) = take(&SIZE).as_ref().and_then(short_text) {
            own.set_size(&size);
        }
        let mut set_number = |names: &[&str], set: &mut dyn FnMut(&str) -> bool| {
            take(names).as_ref().and_then(number_text).is_some_and(|text| set(&text))
        };
        set_number(&["width"], &mut |text| set(&mut own.width, text));
        set_number(&["height"], &mut |text| set(&mut own.height, text));
        set_number(&STEPS, &mut |text| set(&mut own.steps, text));
        set_number(&["seed"], &mut |text| set(&mut own.seed, text));
        set_number(&GUIDANCE, &mut |text| set(&mut own.guidance, text));
        own.sampler = take(&SAMPLER).as_ref().and_then(short_text);
        own.scheduler = take(&["scheduler"]).as_ref().and_then(short_text);
        own.model = take(&MODEL).as_ref().and_then(|model| {
            let name = ["name", "model_name", "key"].iter().find_map(|name| model.get(name));
            short_text(name.unwrap_or(model))
        });
        let is_nothing =
            |value: &Value| matches!(value, Value::Null | Value::Bool(false)) || value.as_str() == Some("");
        let others = fields.into_iter().filter(|(_, value)| !is_nothing(value));
        own.others = others.filter_map(|(name, value)| Some((name, short_text(&value)?))).collect();
        own
    }
}

/// Returns the program for the `Version` of an A1111 text.
fn program_of_version(version: Option<&str>) -> String {
    let Some(version) = version else { return "A1111 or a compatible program".to_string() };
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    match version {
        "neo" | "classic" => format!("Forge {version}"),
        _ if version.strip_prefix('f').is_some_and(is_number) => format!("Forge {version}"),
        _ if is_number(version.strip_prefix('v').unwrap_or(version)) => format!("A1111 {version}"),
        _ => version.to_string(),
    }
}

fn invokeai(said: &Said) -> Option<Settings> {
    let named = |version: Option<&Value>| {
        let version = version.and_then(short_text).unwrap_or_default();
        format!("InvokeAI {version}").trim_end().to_string()
    };
    if let Some(fields) = said.text("invokeai_metadata").and_then(parse_object) {
        return Some(Settings::from_object(&named(fields.get("app_version")), fields));
    }
    if let Some(mut fields) = said.text("sd-metadata").and_then(parse_object) {
        let program = named(fields.get("app_version"));
        let Some(Value::Object(mut image)) = fields.remove("image") else { return None };
        image.extend(fields.remove("model_weights").map(|model| ("model_weights".to_string(), model)));
        return Some(without_brackets(Settings::from_object(&program, image)));
    }
    let dream = said.text("Dream").or_else(|| said.text("dream"))?;
    let (prompt, flags) = dream.trim().strip_prefix('"')?.rsplit_once('"')?;
    let mut own = Settings { program: "InvokeAI".to_string(), prompt: Some(prompt.to_string()), ..Settings::default() };
    let words: Vec<&str> = flags.split_whitespace().collect();
    for pair in words.windows(2) {
        let [flag, value] = pair else { continue };
        match flag.strip_prefix('-').unwrap_or_default() {
            "s" => set(&mut own.steps, value),
            "S" => set(&mut own.seed, value),
            "W" => set(&mut own.width, value),
            "H" => set(&mut own.height, value),
            "C" => set(&mut own.guidance, value),
            "A" => set(&mut own.sampler, value),
            _ => true,
        };
    }
    Some(without_brackets(own))
}

/// Moves the negative prompt out of a prompt of old versions of InvokeAI: `a cat [a dog]`.
fn without_brackets(own: Settings) -> Settings {
    let prompt = own.prompt.as_deref().unwrap_or_default();
    match prompt.trim_end().strip_suffix(']').and_then(|prompt| prompt.rsplit_once('[')) {
        Some((prompt, negative)) => Settings {
            prompt: Some(prompt.trim_end().to_string()),
            negative: Some(negative.to_string()).filter(|text| !text.is_empty()),
            ..own
        },
        None => own,
    }
}

/// Parses a JSON object.
fn parse_object(text: &str) -> Option<Map<String, Value>> {
    text.trim_start().starts_with('{').then(|| serde_json::from_str(text).ok()).flatten()
}

/// Reads a prompt: a text, or a list of texts or of prompts with weights.
fn prompt_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let text = |part: &Value| part.get("prompt").unwrap_or(part).as_str().map(str::to_string);
            Some(parts.iter().filter_map(text).collect::<Vec<_>>().join(", "))
        }
        _ => None,
    }
}

impl Said {
    /// Returns the text of a keyword.
    pub fn text(&self, keyword: &str) -> Option<&str> {
        match keyword {
            PARAMETERS => self.parameters.as_deref(),
            _ => self.texts.iter().find(|(known, _)| known == keyword).map(|(_, text)| text.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(texts: &[(&str, &str)]) -> Said {
        let find =
            |wanted: &str| texts.iter().find(|(keyword, _)| *keyword == wanted).map(|(_, text)| text.to_string());
        let others = texts.iter().filter(|(keyword, _)| *keyword != PARAMETERS);
        let texts = others.map(|(keyword, text)| (keyword.to_string(), text.to_string())).collect();
        Said { parameters: find(PARAMETERS), texts, ..Said::default() }
    }

    #[test]
    fn the_settings_of_each_program_are_read() {
        let sd = r#"{"app_version": "2.3", "model_weights": "sd-1.5", "image": {"prompt": [{"prompt": "a cat [a dog]",
            "weight": 1.0}], "steps": 20, "cfg_scale": 7.5, "width": 512, "height": 768, "seed": 5, "sampler": "k_euler"}}"#;
        let graph = r#"{"1": {"class_type": "KSampler", "inputs": {"seed": 5, "steps": 20, "cfg": 7.5, "latent_image": ["2", 0],
            "positive": ["3", 0], "negative": ["4", 0]}}, "2": {"class_type": "E", "inputs": {"width": 512, "height": 768}},
            "3": {"class_type": "C", "inputs": {"text": "a cat"}}, "4": {"class_type": "C", "inputs": {"text": "a dog"}}}"#;
        let in_exif = format!("prompt:{graph}");
        let info = "a cat\nNegative prompt: a dog\nSteps: 20, Sampler: Euler a, CFG scale: 7.5, Seed: 5, Size: 512x768";
        let forge = format!("{info}, Version: f2.0.1v1.10.1");
        let fields = r#""steps": 20, "seed": 5"#;
        let invoke = format!(
            r#"{{"positive_prompt": "a cat", "negative_prompt": "a dog", "width": 512, "height": 768, "cfg_scale": 7.5, {fields},
                "model": {{"name": "sd"}}, "app_version": "5.0"}}"#
        );
        let swarm = format!(
            r#"{{"sui_image_params": {{"prompt": "a cat", "negativeprompt": "a dog", "cfgscale": "7.5", "width": 512,
                "height": 768, {fields}, "swarm_version": "0.9.6"}}, "sui_extra_data": {{}}}}"#
        );
        let mflux = format!(
            r#"{{"mflux_version": "0.11", "prompt": "a cat", "negative_prompt": "a dog", "guidance": 7.5, "width": 512,
                "height": 768, {fields}, "quantize": null}}"#
        );
        let fooocus = format!(
            r#"{{"prompt": "a cat", "negative_prompt": "a dog", "guidance_scale": 7.5, "resolution": "(512, 768)", {fields},
                "metadata_scheme": "fooocus", "version": "Fooocus v2.5"}}"#
        );
        let novel = format!(r#"{{"uc": "a dog", "scale": 7.5, "width": 512, "height": 768, {fields}}}"#);
        let draw = format!(r#"{{"c": "a cat", "uc": "a dog", "scale": 7.5, "size": "512x768", {fields}}}"#);
        for (texts, program) in [
            (&[(PARAMETERS, info)][..], "A1111 or a compatible program"),
            (&[(PARAMETERS, &forge)], "Forge f2.0.1v1.10.1"),
            (&[("prompt", graph), ("workflow", "{}")], "ComfyUI"),
            (&[("Model", &in_exif)], "ComfyUI"),
            (&[("invokeai_metadata", &invoke)], "InvokeAI 5.0"),
            (&[("sd-metadata", sd)], "InvokeAI 2.3"),
            (&[("Dream", "\"a cat [a dog]\" -s 20 -S 5 -W 512 -H 768 -C 7.5 -A k_lms")], "InvokeAI"),
            (&[(PARAMETERS, &swarm)], "SwarmUI 0.9.6"),
            (&[(PARAMETERS, &mflux)], "mflux 0.11"),
            (&[(PARAMETERS, &fooocus)], "Fooocus v2.5"),
            (&[("Software", "NovelAI"), ("Source", "V3"), ("Description", "a cat"), ("Comment", &novel)], "NovelAI V3"),
            (&[(PARAMETERS, &draw), ("CreatorTool", "Draw Things")], "Draw Things"),
        ] {
            let own = Settings::read(&said(texts)).unwrap_or_else(|| panic!("{program}"));
            assert_eq!(own.program, program);
            assert_eq!((own.prompt.as_deref(), own.negative.as_deref()), (Some("a cat"), Some("a dog")), "{program}");
            let numbers = (own.width, own.height, own.steps, own.seed, own.guidance);
            assert_eq!(numbers, (Some(512), Some(768), Some(20), Some(5), Some(7.5)), "{program}");
        }
    }

    #[test]
    fn texts_that_are_no_settings_are_none() {
        for texts in [
            &[][..],
            &[(PARAMETERS, "Screenshot")],
            &[(PARAMETERS, "{\"a\": 1}")],
            &[(PARAMETERS, "{")],
            &[("Comment", "{}"), ("Software", "GIMP")],
            &[("prompt", "a cat")],
            &[("Model", "EOS 5D")],
            &[("Dream", "\"")],
            &[("sd-metadata", "{\"image\": 1}")],
        ] {
            assert_eq!(Settings::read(&said(texts)), None, "{texts:?}");
        }
        let workflow = Settings::read(&said(&[("workflow", r#"{"nodes": [], "links": []}"#)])).unwrap();
        assert_eq!((workflow.program.as_str(), workflow.prompt), ("ComfyUI", None));
    }
}
