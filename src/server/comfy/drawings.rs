//! From what samplers draw to the requests that are made of it.

use std::path::PathBuf;
use std::sync::Arc;

use flux::engine::{EmbeddedFiles, Recipe};
use flux::input;
use flux::output::ImageFormat;
use flux::sampler::ScheduleKind;

use super::classes::MOST_IMAGES;
use super::error::{GraphError, Result};
use super::evaluate::Evaluator;
use super::graph::Graph;
use super::images::Picture;
use super::kinds::{Conditioning, Content, Drawing, Guider, Image};
use crate::server::request::{Answer, Asked, Encoding, Previews, Priority};

/// The most samplers of a graph.
const MOST_DRAWINGS: usize = 8;
/// The most images that its outputs save, of which some may be the same.
const MOST_SAVED: u64 = 256;
/// Pixels above which images are scaled down before the model sees them.
const MEGAPIXEL: u64 = 1024 * 1024;

/// What one sampler draws, and for which output nodes.
pub struct Wanted {
    pub sampler: usize,
    pub outputs: Vec<usize>,
    pub asked: Asked,
}

/// What the output nodes of a graph want, each image once.
///
/// Errors when one cannot be honoured.
pub fn wanted(mut on: Evaluator<'_>) -> Result<Vec<Wanted>> {
    let mut drawings: Vec<(Arc<Drawing>, bool, Vec<usize>)> = Vec::new();
    let graph = on.graph;
    for output in graph.outputs.iter().copied() {
        let node = &graph.nodes[output];
        let of_output = |error: GraphError| error.needed_for(vec![node.id.clone()]);
        let Image::Drawn(drawing, is_composite) = on.image(node, "images").map_err(of_output)? else {
            let details = "images: expected what a sampler draws, through VAEDecode";
            let error = node.wrong("unsupported_graph", "The node cannot be honoured", details).at("images");
            return Err(of_output(error));
        };
        let is_same =
            |known: &&mut (Arc<Drawing>, bool, Vec<usize>)| known.0.node == drawing.node && known.1 == is_composite;
        match drawings.iter_mut().find(is_same) {
            Some((_, _, outputs)) => outputs.push(output),
            None => drawings.push((drawing, is_composite, vec![output])),
        }
    }
    let images: u64 = drawings.iter().map(|(drawing, ..)| drawing.latent.count).sum();
    if drawings.len() > MOST_DRAWINGS || images > MOST_IMAGES {
        let message = format!("{} samplers draw {images} images", drawings.len());
        let details = format!("expected at most {MOST_DRAWINGS} and {MOST_IMAGES}");
        return Err(GraphError::new("invalid_prompt", message, details));
    }
    let saved: u64 = drawings.iter().map(|(drawing, _, outputs)| drawing.latent.count * outputs.len() as u64).sum();
    if saved > MOST_SAVED {
        let message = format!("the outputs save {saved} images");
        return Err(GraphError::new("invalid_prompt", message, format!("expected at most {MOST_SAVED}")));
    }
    let read = |(drawing, is_composite, outputs): (Arc<Drawing>, bool, Vec<usize>)| {
        let asked = ask(&mut on, &drawing, is_composite);
        let ids = outputs.iter().map(|output| graph.nodes[*output].id.clone()).collect();
        Ok(Wanted { sampler: drawing.node, outputs, asked: asked.map_err(|error| error.needed_for(ids))? })
    };
    let mut wanted = drawings.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    for one in &mut wanted {
        one.asked.notes = on.notes.iter().cloned().collect();
    }
    Ok(wanted)
}

/// The request for what a sampler draws.
fn ask(on: &mut Evaluator<'_>, drawing: &Drawing, is_composite: bool) -> Result<Asked> {
    let (guider, latent) = (&drawing.guider, &drawing.latent);
    let prompt = prompt(on.graph, guider)?;
    let (guidance, negative) = guidance(on, guider)?;
    let mut files = Files::default();
    let begins_late = drawing.sigmas.first > 0;
    let mut recipe = Recipe { prompt, negative, guidance, seed: drawing.seed, ..Recipe::default() };
    let mut references = &guider.positive.references[..];
    let tokens = match &latent.content {
        Content::Encoded(picture) if latent.mask.is_some() || begins_late => {
            let own = references.first().is_some_and(|first| first == picture);
            references = if own { &references[1..] } else { references };
            recipe.no_self_reference = !own;
            recipe.strength = Some(drawing.sigmas.strength());
            recipe.inputs.push(files.add(on, drawing.node, picture)?);
            if let Some(mask) = &latent.mask {
                let name = PathBuf::from("mask.png");
                files.0.insert(name.clone(), of_sampler(on.graph, drawing.node, mask.to_file(picture.size))?);
                recipe.mask = Some(name);
                recipe.no_composite = !is_composite;
            }
            let [width, height] = picture.size.map(|side| side as usize);
            input::editing_size(width, height).map_or(0, |[width, height]| width / 16 * (height / 16))
        }
        // All of it is noise, so nothing but the size counts.
        Content::Encoded(picture) => sized(&mut recipe, picture.size),
        Content::Empty(size) => {
            if begins_late {
                let details = "sigmas: what begins below the highest level needs an image that was sent";
                let node = &on.graph.nodes[drawing.node];
                return Err(node.wrong("unsupported_graph", "The node cannot be honoured", details).at("sigmas"));
            }
            sized(&mut recipe, *size)
        }
        Content::Drawn(_) => 0,
    };
    for reference in references {
        recipe.inputs.push(files.add(on, drawing.node, reference)?);
    }
    recipe.schedule = drawing.sigmas.schedule(tokens);
    if recipe.schedule == ScheduleKind::Flow {
        recipe.steps = Some(drawing.sigmas.steps);
    }
    if latent.count > 1 {
        on.notes.insert(format!("the {} images of a batch have the seed and those that follow it", latent.count));
    }
    Ok(Asked {
        model: Some(guider.model.name.to_string()),
        recipe,
        files: files.0,
        adapters: guider.model.adapters.to_vec(),
        count: latent.count as usize,
        encoding: Encoding { format: ImageFormat::Png, quality: None },
        previews: Previews::All,
        priority: Priority::Normal,
        deadline: None,
        user: None,
        feedback: None,
        notes: Vec::new(),
        answer: Answer::default(),
    })
}

/// Gives a recipe a size, and returns the tokens of the image.
fn sized(recipe: &mut Recipe, size: [u64; 2]) -> usize {
    let [width, height] = size.map(|side| side as usize);
    (recipe.width, recipe.height) = (Some(width), Some(height));
    width / 16 * (height / 16)
}

/// What happens to an image when a sampler needs it.
fn of_sampler<T>(graph: &Graph, sampler: usize, done: std::result::Result<T, String>) -> Result<T> {
    done.map_err(|details| graph.nodes[sampler].wrong("invalid_image", "Invalid image file", details))
}

/// The files of a request, by the names that its recipe has for them.
#[derive(Default)]
struct Files(EmbeddedFiles);

impl Files {
    fn add(&mut self, on: &mut Evaluator<'_>, sampler: usize, picture: &Picture) -> Result<PathBuf> {
        let [width, height] = picture.size;
        if width * height > MEGAPIXEL {
            let note = format!("an image of {width}x{height} is scaled down to a megapixel before the model sees it");
            on.notes.insert(note);
        }
        let file = of_sampler(on.graph, sampler, picture.to_file())?;
        let Self(files) = self;
        // One that is there already keeps its name.
        if let Some((name, _)) = files.iter().find(|(_, known)| **known == file) {
            return Ok(name.clone());
        }
        let name = PathBuf::from(format!("{}.png", files.keys().filter(|name| **name != *"mask.png").count() + 1));
        files.insert(name.clone(), file);
        Ok(name)
    }
}

fn wrong_guider(graph: &Graph, guider: &Guider, input: &str, details: &str) -> GraphError {
    let node = &graph.nodes[guider.node];
    let details = format!("{input}: {details}");
    node.wrong("unsupported_graph", "The node cannot be honoured", details).at(input)
}

fn prompt(graph: &Graph, guider: &Guider) -> Result<String> {
    let input = if guider.negative.is_some() { "positive" } else { "conditioning" };
    let text = guider.positive.text.as_deref().map(str::to_string);
    text.ok_or_else(|| wrong_guider(graph, guider, input, "a prompt of zeros draws nothing: expected a text"))
}

/// The scale of guidance, where it counts, and what the image leans away from.
fn guidance(on: &mut Evaluator<'_>, guider: &Guider) -> Result<(Option<f32>, Option<String>)> {
    let is_distilled = guider.model.is_distilled;
    let guidance = (guider.scale != 1.0 || !is_distilled).then_some(guider.scale as f32);
    let graph = on.graph;
    if guider.scale < 1.0 {
        on.note(&graph.nodes[guider.node], "a `cfg` below 1 counts as 1");
    }
    let is_guided = guider.scale > 1.0 && !is_distilled;
    let Some(Conditioning { text, references }) = &guider.negative else { return Ok((guidance, None)) };
    match text.as_deref() {
        Some("") if !is_guided => Ok((guidance, None)),
        None if !is_guided => Ok((guidance, None)),
        Some(_) if !is_guided => {
            let why = if is_distilled { "the model is distilled" } else { "`cfg` is at most 1" };
            on.note(&graph.nodes[guider.node], &format!("`negative` has no effect: {why}"));
            Ok((guidance, None))
        }
        None => Err(wrong_guider(graph, guider, "negative", "zeros cannot be leaned away from: expected a text")),
        Some(_) if **references != *guider.positive.references => {
            Err(wrong_guider(graph, guider, "negative", "expected the references of `positive`"))
        }
        Some(text) => Ok((guidance, Some(text.to_string()).filter(|text| !text.is_empty()))),
    }
}
