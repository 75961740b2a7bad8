//! Evaluation of each node class.

use std::sync::Arc;

use flux::engine::AdapterFile;
use serde_json::Value;

use super::classes::Action;
use super::error::Result;
use super::evaluate::{Evaluator, Surroundings};
use super::flux3_nodes;
use super::graph::{Graph, Node, map_node_error, unsupported};
use super::image_nodes;
use super::kinds::{Conditioning, Content, Drawing, Guider, Latent, Model, Worth};
use super::regions;
use super::sigmas::{Sampling, Sigmas};
use crate::http::error::shown;
use crate::jobs::request::Lora;

/// The part of a file's name that stands for a language model that writes prompts.
const UPSAMPLER: &str = "prompt_upsampler";
/// Max adapters of a model.
const MAX_ADAPTERS: usize = 32;

/// Evaluates all required nodes.
///
/// Errors if a node is not supported.
pub fn run<'a>(graph: &'a Graph, around: &'a dyn Surroundings) -> Result<Evaluator<'a>> {
    let mut on = Evaluator::new(graph, around);
    for place in &graph.order {
        let node = &graph.nodes[*place];
        let worth = evaluate(&mut on, *place, node);
        on.set(*place, worth.map_err(|error| error.needed_for(graph.outputs_of(&node.id)))?);
    }
    Ok(on)
}

/// Returns the outputs of a node.
///
/// Errors if it is not supported.
fn evaluate(on: &mut Evaluator<'_>, place: usize, node: &Node) -> Result<Vec<Worth>> {
    let one = |worth: Worth| Ok(vec![worth]);
    match node.class.action {
        Action::Own => {}
        Action::Pass { inputs, note } => {
            note.into_iter().for_each(|note| on.note(node, note));
            return inputs.iter().map(|name| on.passed(node, name)).collect();
        }
        Action::Switch(switch) => {
            let (branch, worth) = on.branch(node, switch)?;
            let number = branch.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or_default();
            return Ok(vec![worth, Worth::Text(branch.into()), Worth::Whole(number)]);
        }
    }
    match node.class.name {
        "UNETLoader" | "UnetLoaderGGUF" => one(Worth::Model(model(on, node, "unet_name")?)),
        "CheckpointLoaderSimple" => Ok(vec![Worth::Model(model(on, node, "ckpt_name")?), Worth::Clip, Worth::Vae]),
        "CLIPLoader" | "CLIPLoaderGGUF" => {
            part_of_model(on, node, "clip_name", "text encoder")?;
            one(Worth::Clip)
        }
        "VAELoader" => {
            part_of_model(on, node, "vae_name", "VAE")?;
            one(Worth::Vae)
        }
        "LoraLoader" => {
            on.note(node, "`strength_clip` has no effect: adapters change the transformer");
            Ok(vec![Worth::Model(with_adapter(on, node)?), Worth::Clip])
        }
        "Power Lora Loader (rgthree)" => {
            let mut model = on.model(node)?;
            for number in 1..=8 {
                model = with_listed_adapter(on, node, model, &format!("lora_{number}"))?;
            }
            Ok(vec![Worth::Model(model), Worth::Clip])
        }
        "LoraLoaderModelOnly" => one(Worth::Model(with_adapter(on, node)?)),
        "CLIPTextEncode" => {
            let (text, is_written) = on.prompt(node, "text")?;
            let (regions, references) = (Arc::default(), Arc::default());
            one(Worth::Conditioning(Conditioning { text: Some(text), is_written, regions, references }))
        }
        "ConditioningZeroOut" => {
            let conditioning = on.conditioning(node, "conditioning")?;
            let regions = Arc::default();
            one(Worth::Conditioning(Conditioning { text: None, is_written: false, regions, ..conditioning }))
        }
        "ReferenceLatent" => one(Worth::Conditioning(with_reference(on, node)?)),
        "RandomNoise" => one(Worth::Noise(on.whole(node, "noise_seed")?)),
        "KSamplerSelect" => {
            // Reading the text adds a note for other samplers.
            on.text(node, "sampler_name")?;
            one(Worth::Sampler)
        }
        "SamplerEulerAncestral"
        | "SamplerEulerAncestralCFGPP"
        | "SamplerDPMPP_2M_SDE"
        | "SamplerDPMPP_3M_SDE"
        | "SamplerDPMPP_SDE"
        | "SamplerER_SDE"
        | "SamplerLMS" => {
            on.note(node, "the sampler is not supported: it counts as euler");
            one(Worth::Sampler)
        }
        "ModelSamplingFlux" | "ModelSamplingAuraFlow" | "ModelSamplingSD3" => {
            one(Worth::Model(Model { sampling: sampling(on, node)?, ..on.model(node)? }))
        }
        "BetaSamplingScheduler" | "KarrasScheduler" | "ExponentialScheduler" => {
            on.note(node, "the scheduler is not supported: it counts as simple");
            let sigmas = Sigmas::basic(Sampling::default(), "simple", on.whole(node, "steps")?, 1.0);
            one(Worth::Sigmas(Arc::new(map_node_error(node, sigmas)?)))
        }
        "Flux2Scheduler" => {
            let [steps, width, height] =
                [on.whole(node, "steps")?, on.whole(node, "width")?, on.whole(node, "height")?];
            one(Worth::Sigmas(Arc::new(Sigmas::flux2(steps, width, height))))
        }
        "BasicScheduler" => one(Worth::Sigmas(basic_sigmas(on, node)?)),
        "SplitSigmas" => {
            let (sigmas, step) = (on.sigmas(node)?, on.whole(node, "step")?);
            low_sigmas(node, sigmas.from(step))
        }
        "SplitSigmasDenoise" => {
            let (sigmas, denoise) = (on.sigmas(node)?, on.number(node, "denoise")?);
            low_sigmas(node, sigmas.last(denoise))
        }
        "CFGGuider" | "BasicGuider" => one(Worth::Guider(Arc::new(guider(on, place, node)?))),
        "SamplerCustomAdvanced" => {
            on.sampler(node)?;
            let (guider, seed, sigmas) = (on.guider(node)?, on.noise(node)?, on.sigmas(node)?);
            let drawn = drawing(on, place, node, guider, seed, sigmas)?;
            // Both outputs are equal at the end of sampling.
            Ok(vec![drawn.clone(), drawn])
        }
        "SamplerCustom" => {
            on.sampler(node)?;
            adds_noise(node, on.flag_or(node, "add_noise", true)?)?;
            let guider = Arc::new(guider(on, place, node)?);
            let (seed, sigmas) = (on.whole(node, "noise_seed")?, on.sigmas(node)?);
            let drawn = drawing(on, place, node, guider, seed, sigmas)?;
            Ok(vec![drawn.clone(), drawn])
        }
        "KSamplerAdvanced" => {
            on.text(node, "sampler_name")?;
            adds_noise(node, on.text(node, "add_noise")? == "enable")?;
            let guider = Arc::new(guider(on, place, node)?);
            let (seed, sigmas) = (on.whole(node, "noise_seed")?, Arc::new(part_of_steps(on, node, &guider.model)?));
            one(drawing(on, place, node, guider, seed, sigmas)?)
        }
        "KSampler" => {
            on.text(node, "sampler_name")?;
            let guider = Arc::new(guider(on, place, node)?);
            let (seed, sigmas) = (on.whole(node, "seed")?, basic_sigmas(on, node)?);
            one(drawing(on, place, node, guider, seed, sigmas)?)
        }
        "SaveImage"
        | "PreviewImage"
        | "SaveImageWebsocket"
        | "ETN_SendImageWebSocket"
        | "ETN_SaveImageCache"
        | "Image Save"
        | "SaveImageAdvanced" => Ok(Vec::new()),
        name if flux3_nodes::CLASSES.iter().any(|class| class.name == name) => flux3_nodes::evaluate(on, node),
        name if regions::CLASSES.iter().any(|class| class.name == name) => regions::evaluate(on, node),
        _ => image_nodes::evaluate(on, node),
    }
}

fn model(on: &mut Evaluator<'_>, node: &Node, name: &'static str) -> Result<Model> {
    let file = on.text(node, name)?;
    let (model, note) = on.around.model(&file).map_err(|details| {
        let details = format!("{name}: '{}' not in list: {details}", shown(&file));
        node.wrong("value_not_in_list", "Value not in list", details).at(name)
    })?;
    if let Some(note) = note {
        on.note(node, &note);
    }
    if node.class.name == "UNETLoader" && on.text(node, "weight_dtype")? != "default" {
        on.note(node, "`weight_dtype` has no effect: the server was started with the formats of its models");
    }
    Ok(model)
}

/// Reads the file name of a text encoder or a VAE. Models include their own, so the file is ignored with a note.
fn part_of_model(on: &mut Evaluator<'_>, node: &Node, name: &str, what: &str) -> Result<()> {
    let file = on.text(node, name)?;
    if file.contains(UPSAMPLER) {
        on.note(node, "not loaded: the server's language model writes prompts");
        return Ok(());
    }
    if on.around.model(&file).is_err() || on.around.model(&file).is_ok_and(|(_, note)| note.is_some()) {
        on.note(node, &format!("`{}` is not loaded: the model's own {what} is used", shown(&file)));
    }
    if node.given("device").is_some() && on.text(node, "device")? != "default" {
        on.note(node, "`device` has no effect: the server was started with its devices");
    }
    Ok(())
}

fn with_adapter(on: &Evaluator<'_>, node: &Node) -> Result<Model> {
    add_adapter(
        on,
        node,
        on.model(node)?,
        "lora_name",
        &on.text(node, "lora_name")?,
        on.number(node, "strength_model")?,
    )
}

/// Adds an adapter given as an object: `{"on": .., "lora": .., "strength": ..}`.
fn with_listed_adapter(on: &Evaluator<'_>, node: &Node, model: Model, input: &str) -> Result<Model> {
    if node.given(input).is_none() {
        return Ok(model);
    }
    let listed: Value = serde_json::from_str(&on.text(node, input)?).unwrap_or_default();
    let strength = listed["strength"].as_f64().unwrap_or(1.0);
    match listed["lora"].as_str() {
        Some(file) if listed["on"] != false && file != "None" && strength != 0.0 => {
            add_adapter(on, node, model, input, file, strength)
        }
        _ => Ok(model),
    }
}

fn add_adapter(on: &Evaluator<'_>, node: &Node, model: Model, input: &str, file: &str, strength: f64) -> Result<Model> {
    if model.adapters.len() >= MAX_ADAPTERS {
        return Err(unsupported(node, &format!("there are more than {MAX_ADAPTERS} adapters")));
    }
    let name = on.around.adapter(file).map_err(|why| {
        let details = format!("{input}: '{}' not in list: {why}", shown(file));
        node.wrong("value_not_in_list", "Value not in list", details).at(input)
    })?;
    let added = Lora::from(&AdapterFile::new(name, strength as f32));
    let adapters = model.adapters.iter().cloned().chain([added]).collect();
    Ok(Model { adapters, ..model })
}

fn with_reference(on: &mut Evaluator<'_>, node: &Node) -> Result<Conditioning> {
    let conditioning = on.conditioning(node, "conditioning")?;
    if node.given("latent").is_none() {
        return Ok(conditioning);
    }
    let picture = on.encoded(node, "latent", &on.latent(node, "latent")?)?;
    let most = flux::pipeline::MAX_REFERENCES;
    if conditioning.references.len() >= most {
        return Err(unsupported(node, &format!("there are more than {most} references")));
    }
    let references = conditioning.references.iter().cloned().chain([picture]).collect();
    Ok(Conditioning { references, ..conditioning })
}

/// Errors if a sampler starts without noise, such as the second of two samplers.
fn adds_noise(node: &Node, adds: bool) -> Result<()> {
    let details = "add_noise: a sampler cannot continue the output of another one";
    if adds { Ok(()) } else { Err(unsupported(node, details).at("add_noise")) }
}

/// Returns the steps of `KSamplerAdvanced`.
fn part_of_steps(on: &Evaluator<'_>, node: &Node, model: &Model) -> Result<Sigmas> {
    let (steps, first, end) =
        (on.whole(node, "steps")?, on.whole(node, "start_at_step")?, on.whole(node, "end_at_step")?);
    if end < steps {
        let details = "end_at_step: the first part of the steps leaves noise, which no node can use";
        return Err(unsupported(node, details).at("end_at_step"));
    }
    let sigmas = Sigmas::basic(model.sampling, &on.text(node, "scheduler")?, steps, 1.0);
    map_node_error(node, sigmas.and_then(|sigmas| sigmas.from(first)))
}

/// Returns the noise levels of a model, as set by a node.
fn sampling(on: &Evaluator<'_>, node: &Node) -> Result<Sampling> {
    let sampling = match node.class.name {
        "ModelSamplingFlux" => Sampling::flux(
            on.number(node, "max_shift")?,
            on.number(node, "base_shift")?,
            [on.whole(node, "width")?, on.whole(node, "height")?],
        ),
        _ => Sampling::discrete(on.number(node, "shift")?),
    };
    map_node_error(node, sampling)
}

fn basic_sigmas(on: &Evaluator<'_>, node: &Node) -> Result<Arc<Sigmas>> {
    let (model, scheduler) = (on.model(node)?, on.text(node, "scheduler")?);
    let sigmas = Sigmas::basic(model.sampling, &scheduler, on.whole(node, "steps")?, on.number(node, "denoise")?);
    sigmas.map(Arc::new).map_err(|details| unsupported(node, &details).at("denoise"))
}

/// Returns the outputs of nodes that split noise levels. The first part would leave noise in the image.
fn low_sigmas(node: &Node, low: std::result::Result<Sigmas, String>) -> Result<Vec<Worth>> {
    let low = Worth::Sigmas(Arc::new(map_node_error(node, low)?));
    Ok(vec![Worth::HighSigmas, low])
}

fn guider(on: &Evaluator<'_>, place: usize, node: &Node) -> Result<Guider> {
    let model = on.model(node)?;
    if node.class.name == "BasicGuider" {
        let positive = on.conditioning(node, "conditioning")?;
        return Ok(Guider { node: place, model, positive, negative: None, scale: 1.0 });
    }
    let (positive, negative) = (on.conditioning(node, "positive")?, on.conditioning(node, "negative")?);
    Ok(Guider { node: place, model, positive, negative: Some(negative), scale: on.number(node, "cfg")? })
}

fn drawing(
    on: &Evaluator<'_>,
    place: usize,
    node: &Node,
    guider: Arc<Guider>,
    seed: u64,
    sigmas: Arc<Sigmas>,
) -> Result<Worth> {
    let mut latent = on.latent(node, "latent_image")?;
    if matches!(latent.content, Content::Drawn(_)) {
        latent.content = Content::Encoded(on.encoded(node, "latent_image", &latent)?);
    }
    // The mask of a latent stays with the output.
    let (mask, count) = (latent.mask.clone(), latent.count);
    let drawing = Drawing { node: place, guider, seed, sigmas, latent };
    Ok(Worth::Latent(Latent { content: Content::Drawn(Arc::new(drawing)), mask, count }))
}
