//! Conversion of a graph's samplers to requests.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use flux::engine::boxes::Rectangle;
use flux::engine::regions::TextRegion;
use flux::engine::{EmbeddedFiles, EnlargedSize, Recipe};
use flux::sampler::ScheduleKind;
use flux::stage::CancelFlag;

use super::error::{GraphError, Result};
use super::evaluate::Evaluator;
use super::graph::{Graph, map_node_error, unsupported};
use super::images::{Broken, Costs, Maker, MaskPicture, Picture, Upscaler};
use super::kinds::{Conditioning, Content, Drawing, Drawn, Guider, Image, Place, Region};
use super::table::MAX_IMAGES;
use crate::http::error::{ApiError, cancelled};
use crate::jobs::admission::{Estimate, Preparation};
use crate::jobs::masks;
use crate::jobs::request::{Asked, ENLARGED, Enlargement, read_estimate};

/// Max samplers of a graph.
const MAX_DRAWINGS: usize = 8;
/// Max images that its outputs save, including duplicates.
const MAX_SAVED: u64 = 256;
/// Max pixels produced by changes to generated images.
const MAX_CHANGED: u64 = 128 << 20;
/// Pixels above which input images are scaled down for the model.
const MEGAPIXEL: u64 = 1024 * 1024;

/// The images of one sampler, or an uploaded image that a node enlarges, with the output nodes.
pub struct Wanted {
    pub maker: Maker,
    pub outputs: Vec<Output>,
    pub asked: Asked,
    /// Images that other jobs have to make first, by their names in the recipe.
    pub awaited: Vec<(PathBuf, Arc<Picture>)>,
    /// The reason why one of its input images cannot be decoded, once known.
    pub broken: Arc<OnceLock<Broken>>,
}

/// An output node, with the changes to its images.
pub struct Output {
    pub node: usize,
    /// `None` if the images are saved as generated.
    pub shape: Option<Arc<Picture>>,
}

/// Samplers with the output nodes of their images. Each follows those whose images it reads.
type Drawings = Vec<(Drawn, Vec<Output>)>;

/// Returns the requests for all output nodes, without duplicates. Each follows those whose images it reads.
///
/// Errors if one is not supported.
pub fn wanted(mut on: Evaluator<'_>) -> Result<Vec<Wanted>> {
    let mut drawings = Drawings::new();
    let mut enlarged: Vec<(Arc<Picture>, Vec<Output>)> = Vec::new();
    let (graph, mut sent) = (on.graph, None);
    for output in graph.outputs.iter().copied() {
        let node = &graph.nodes[output];
        match on.image(node, "images").map_err(|error| error.needed_for(vec![node.id.clone()]))? {
            Image::Drawn(drawn) => {
                let shape = (!drawn.shape.is_whole()).then(|| Arc::clone(&drawn.shape));
                add(&on, &mut drawings, drawn, Some(Output { node: output, shape }));
            }
            Image::Sent(picture) if picture.first_enlargement().is_some() => {
                let shape = picture.with_first_enlarged(None);
                let output = Output { node: output, shape: (!shape.is_whole()).then_some(shape) };
                let is_same = |(known, _): &&mut (Arc<Picture>, Vec<Output>)| {
                    known.first_enlargement() == picture.first_enlargement()
                };
                match enlarged.iter_mut().find(is_same) {
                    Some((_, outputs)) => outputs.push(output),
                    None => enlarged.push((picture, vec![output])),
                }
            }
            Image::Sent(_) => {
                sent = Some(node);
                on.note(node, "ignored: it shows an uploaded image");
            }
        }
    }
    if let (true, Some(node)) = (drawings.is_empty() && enlarged.is_empty(), sent) {
        let details = "images: expected the output of a sampler, through VAEDecode";
        let error = node.wrong("unsupported_graph", "Unsupported node or input", details).at("images");
        return Err(error.needed_for(vec![node.id.clone()]));
    }
    let all = || {
        let drawn = drawings.iter().map(|(drawn, outputs)| (drawn.drawing.latent.count, outputs));
        drawn.chain(enlarged.iter().map(|(_, outputs)| (1, outputs)))
    };
    let awaited =
        drawings.iter().flat_map(|(drawn, _)| drawn.drawing.pictures()).filter(|picture| picture.is_awaited());
    check(all, awaited.map(|picture| picture.changed_pixels()).sum())?;
    let mut costs = Costs::default();
    let read = |(drawn, outputs): (Drawn, Vec<Output>)| {
        let maker = (drawn.drawing.node, drawn.is_composite);
        let asked = ask(&mut on, &mut costs, &drawn.drawing, drawn.is_composite);
        let ids = graph.outputs_of(&graph.nodes[maker.0].id);
        let (asked, awaited, broken) = asked.map_err(|error| error.needed_for(ids))?;
        Ok(Wanted { maker, outputs, asked, awaited, broken })
    };
    let mut wanted = drawings.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    wanted.extend(enlarged.into_iter().filter_map(|(picture, outputs)| enlarge(&mut costs, &picture, outputs)));
    for one in &mut wanted {
        one.asked.notes = on.notes.borrow().to_vec();
    }
    Ok(wanted)
}

/// Adds an image of a sampler, and before it the images that the sampler reads. The graph has no cycles.
fn add(on: &Evaluator<'_>, drawings: &mut Drawings, drawn: Drawn, output: Option<Output>) {
    let is_same = |(known, _): &&mut (Drawn, Vec<Output>)| {
        known.drawing.node == drawn.drawing.node && known.is_composite == drawn.is_composite
    };
    if let Some((_, outputs)) = drawings.iter_mut().find(is_same) {
        outputs.extend(output);
        return;
    }
    for first in drawn.drawing.pictures().filter_map(|picture| on.drawn(picture.maker()?)) {
        add(on, drawings, first, None);
    }
    drawings.push((drawn, output.into_iter().collect()));
}

/// Errors if there are too many samplers, images, saved copies or changed pixels. `inputs` are the changed pixels of
/// images that samplers read.
fn check<'a, I: Iterator<Item = (u64, &'a Vec<Output>)>>(counts: impl Fn() -> I, inputs: u64) -> Result<()> {
    let too_much = |message: String, details: String| Err(GraphError::new("invalid_prompt", message, details));
    let (samplers, images) = (counts().count(), counts().map(|(count, _)| count).sum::<u64>());
    if samplers > MAX_DRAWINGS || images > MAX_IMAGES {
        let message = format!("{samplers} samplers generate {images} images");
        return too_much(message, format!("expected at most {MAX_DRAWINGS} and {MAX_IMAGES}"));
    }
    let saved: u64 = counts().map(|(count, outputs)| count * outputs.len() as u64).sum();
    if saved > MAX_SAVED {
        return too_much(format!("the outputs save {saved} images"), format!("expected at most {MAX_SAVED}"));
    }
    let changed = |output: &Output| output.shape.as_ref().map_or(0, |shape| shape.changed_pixels());
    let pixels: u64 = counts().map(|(count, outputs)| count * outputs.iter().map(changed).sum::<u64>()).sum();
    let pixels = pixels.saturating_add(inputs);
    if pixels > MAX_CHANGED {
        return too_much(
            format!("{pixels} pixels of generated images are scaled or cropped"),
            format!("expected at most {MAX_CHANGED}"),
        );
    }
    Ok(())
}

/// Returns the request of an uploaded image that is enlarged first.
fn enlarge(costs: &mut Costs, picture: &Picture, outputs: Vec<Output>) -> Option<Wanted> {
    let (from, upscaler, node) = picture.first_enlargement()?;
    let reading = read_estimate(from.size.map(|side| side as usize));
    let files = Files { pictures: vec![(PathBuf::from(ENLARGED), Arc::clone(from))], reading, ..Files::default() };
    let (preparation, broken) = files.preparation(costs);
    let asked = Asked::enlarging(own_size(upscaler), EmbeddedFiles::new());
    let asked = Asked { preparation: Some(preparation), ..asked };
    Some(Wanted { maker: (node, false), outputs, asked, awaited: Vec::new(), broken })
}

/// Returns the enlargement by the factor of an upscaler.
pub fn own_size(upscaler: &Upscaler) -> Enlargement {
    Enlargement { upscaler: Some(upscaler.name.to_string()), size: EnlargedSize::Own }
}

/// A request with the images that other jobs have to make first, and the cell for the error of a broken image.
type Request = (Asked, Vec<(PathBuf, Arc<Picture>)>, Arc<OnceLock<Broken>>);

/// Returns the request of a sampler.
fn ask(on: &mut Evaluator<'_>, costs: &mut Costs, drawing: &Drawing, is_composite: bool) -> Result<Request> {
    let (guider, latent) = (&drawing.guider, &drawing.latent);
    let prompt = prompt(on, guider)?;
    let (guidance, negative) = guidance(on, guider)?;
    let mut files = Files::default();
    let (node, begins_late) = (&on.graph.nodes[drawing.node], drawing.sigmas.first > 0);
    let mut edits_whole = false;
    let regions = regions(on.graph, &guider.positive.regions, drawing.size(), &mut files)?;
    let mut recipe = Recipe { prompt, regions, negative, guidance, seed: drawing.seed, ..Recipe::default() };
    let mut references = &guider.positive.references[..];
    let tokens = match &latent.content {
        Content::Encoded(picture) if latent.mask.is_some() || begins_late => {
            let own = references.first().is_some_and(|first| first == picture);
            references = if own { &references[1..] } else { references };
            recipe.no_self_reference = !own;
            recipe.no_composite = latent.mask.is_some() && !is_composite;
            let size = edit(on, drawing, picture, (&mut recipe, &mut files))?;
            edits_whole = size[0] * size[1] > MEGAPIXEL;
            size.map(|side| side as usize / 16).iter().product()
        }
        // Sampling starts from pure noise, so only the size matters.
        Content::Encoded(picture) => sized(&mut recipe, picture.size),
        Content::Empty(size) => {
            if begins_late {
                let details = "sigmas: starting below the highest level requires an image";
                return Err(node.wrong("unsupported_graph", "Unsupported node or input", details).at("sigmas"));
            }
            sized(&mut recipe, *size)
        }
        Content::Drawn(_) => 0,
    };
    for reference in references {
        recipe.inputs.push(files.add(on, reference));
    }
    let edited = usize::from(recipe.no_self_reference);
    for (index, weight) in guider.model.weights.iter() {
        if *index >= guider.positive.references.len() {
            on.note(
                &on.graph.nodes[guider.node],
                &format!("there is no reference {index}, so its weight has no effect"),
            );
            continue;
        }
        recipe.input_weights.resize(recipe.inputs.len(), 1.0);
        recipe.input_weights[edited + index] *= weight;
    }
    if edits_whole && !recipe.input_weights.is_empty() {
        return Err(unsupported(node, "references of an edit above a megapixel have no weights"));
    }
    recipe.schedule = drawing.sigmas.schedule(tokens);
    if recipe.schedule == ScheduleKind::Flow {
        recipe.steps = Some(drawing.sigmas.steps);
    }
    if latent.count > 1 {
        on.notes
            .borrow_mut()
            .add(format!("the {} images of a batch have consecutive seeds, from this seed on", latent.count));
    }
    let awaited = std::mem::take(&mut files.awaited);
    let (preparation, broken) = files.preparation(costs);
    let asked = Asked {
        model: Some(guider.model.name.to_string()),
        preparation: Some(preparation),
        // Other texts of a graph are those of its author.
        upsample: Some(guider.positive.is_written),
        adapters: guider.model.adapters.to_vec(),
        count: latent.count as usize,
        edits_whole,
        no_recipe: edits_whole,
        ..Asked::new(recipe, EmbeddedFiles::new())
    };
    Ok((asked, awaited, broken))
}

/// Adds the image to edit and its mask to a recipe. Returns the size in which it is edited.
///
/// Errors if the size is not supported.
fn edit(
    on: &mut Evaluator<'_>,
    drawing: &Drawing,
    picture: &Arc<Picture>,
    (recipe, files): (&mut Recipe, &mut Files),
) -> Result<[u64; 2]> {
    let node = &on.graph.nodes[drawing.node];
    let size @ [width, height] = map_node_error(node, drawing.editing_size(picture).map_err(|e| e.what().to_string()))?;
    let name = if width * height > MEGAPIXEL {
        let most = on.around.max_pixels();
        if width * height > most {
            let details = format!("latent_image: the image is {width}x{height}, expected at most {most} pixels");
            return Err(unsupported(node, &details).at("latent_image"));
        }
        on.note(node, "the file has no recipe, since no recipe states the edit of an image above a megapixel");
        files.name(&map_node_error(node, picture.scaled("lanczos", size, false))?)
    } else {
        files.add(on, picture)
    };
    recipe.inputs.push(name);
    recipe.strength = Some(drawing.sigmas.strength());
    if let Some(mask) = &drawing.latent.mask {
        files.add_mask(masks::NAME.into(), mask, picture.size);
        recipe.mask = Some(masks::NAME.into());
    }
    Ok(size)
}

/// Sets the size of a recipe. Returns the tokens of the image.
fn sized(recipe: &mut Recipe, size: [u64; 2]) -> usize {
    let [width, height] = size.map(|side| side as usize);
    (recipe.width, recipe.height) = (Some(width), Some(height));
    width / 16 * (height / 16)
}

/// The images and masks of a request, by their names in the recipe.
#[derive(Default)]
struct Files {
    pictures: Vec<(PathBuf, Arc<Picture>)>,
    /// Masks for images of these sizes.
    masks: Vec<(PathBuf, Arc<MaskPicture>, [u64; 2])>,
    /// Images that other jobs have to make first.
    awaited: Vec<(PathBuf, Arc<Picture>)>,
    /// The work of the engine, which reads an image each time that the recipe names it.
    reading: Estimate,
}

impl Files {
    /// As [`Files::name`], with a note if the model sees a smaller image.
    fn add(&mut self, on: &mut Evaluator<'_>, picture: &Arc<Picture>) -> PathBuf {
        let [width, height] = picture.size;
        if width * height > MEGAPIXEL {
            let note = format!("an image of {width}x{height} is scaled down to a megapixel before the model sees it");
            on.notes.borrow_mut().add(note);
        }
        self.name(picture)
    }

    /// Returns the name of an image in the recipe.
    fn name(&mut self, picture: &Arc<Picture>) -> PathBuf {
        self.reading += read_estimate(picture.size.map(|side| side as usize));
        // An image that was added before keeps its name.
        let mut all = self.pictures.iter().chain(&self.awaited);
        if let Some((name, _)) = all.find(|(_, known)| **known == **picture) {
            return name.clone();
        }
        let name = PathBuf::from(format!("{}.png", self.pictures.len() + self.awaited.len() + 1));
        let list = if picture.is_awaited() { &mut self.awaited } else { &mut self.pictures };
        list.push((name.clone(), Arc::clone(picture)));
        name
    }

    fn add_mask(&mut self, name: PathBuf, mask: &Arc<MaskPicture>, size: [u64; 2]) {
        self.reading += read_estimate(size.map(|side| side as usize));
        self.masks.push((name, Arc::clone(mask), size));
    }

    /// Returns the work of producing the files, and the cell that receives the error of a broken image.
    fn preparation(self, costs: &mut Costs) -> (Preparation, Arc<OnceLock<Broken>>) {
        let Self { pictures, masks, reading, .. } = self;
        let mut estimate = reading;
        pictures.iter().for_each(|(_, picture)| estimate += costs.file(picture));
        masks.iter().for_each(|(_, mask, size)| estimate += costs.mask(mask, *size));
        let broken: Arc<OnceLock<Broken>> = Arc::default();
        let told = Arc::clone(&broken);
        let work = move |files: &mut EmbeddedFiles, cancel: &CancelFlag| {
            let made = make(&pictures, &masks, files, cancel);
            made.map_err(|broken| {
                if cancel.is_set() {
                    return cancelled();
                }
                let details = broken.details.clone();
                if broken.is_out_of_memory {
                    return ApiError::no_memory(details);
                }
                let error = ApiError::bad("invalid_image", details).with_param("image");
                let _ = told.set(broken);
                error
            })
        };
        (Preparation { estimate, work: Box::new(work) }, broken)
    }
}

/// Produces the files of images and masks.
fn make(
    pictures: &[(PathBuf, Arc<Picture>)],
    masks: &[(PathBuf, Arc<MaskPicture>, [u64; 2])],
    files: &mut EmbeddedFiles,
    cancel: &CancelFlag,
) -> std::result::Result<(), Broken> {
    for (name, picture) in pictures {
        files.insert(name.clone(), picture.to_file(cancel)?.to_vec());
    }
    for (name, mask, size) in masks {
        files.insert(name.clone(), mask.to_file(*size, cancel)?.to_vec());
    }
    Ok(())
}

/// Returns the regions for the recipe of an image of this size, and adds their masks to its files.
///
/// Errors if an area is empty.
fn regions(
    graph: &Graph,
    regions: &[Region],
    size @ [width, height]: [u64; 2],
    files: &mut Files,
) -> Result<Vec<TextRegion>> {
    let read = |(index, Region { node, text, place }): (usize, &Region)| {
        let prompt = text.to_string();
        let shares = match place {
            Place::Mask(mask) => {
                let name = PathBuf::from(format!("region{}.png", index + 1));
                files.add_mask(name.clone(), mask, size);
                return Ok(TextRegion { mask: Some(name), prompt, ..TextRegion::default() });
            }
            Place::Shares(sides) => *sides,
            Place::Pixels([left, top, right, bottom]) => {
                let (width, height) = (width as f64, height as f64);
                [left / width, top / height, right / width, bottom / height]
            }
        };
        let [left, top, right, bottom] =
            shares.map(|share| (share * 1000.0).round_ties_even().clamp(0.0, 1000.0) as u16);
        let rectangle = map_node_error(&graph.nodes[*node], Rectangle::new([top, left, bottom, right]))?;
        Ok(TextRegion { rectangle: Some(rectangle), prompt, ..TextRegion::default() })
    };
    regions.iter().enumerate().map(read).collect()
}

fn wrong_guider(graph: &Graph, guider: &Guider, input: &str, details: &str) -> GraphError {
    let node = &graph.nodes[guider.node];
    let details = format!("{input}: {details}");
    node.wrong("unsupported_graph", "Unsupported node or input", details).at(input)
}

/// Returns the text for the whole image.
fn prompt(on: &Evaluator<'_>, guider: &Guider) -> Result<String> {
    let input = if guider.negative.is_some() { "positive" } else { "conditioning" };
    match &guider.positive {
        Conditioning { text: Some(text), .. } => Ok(text.to_string()),
        Conditioning { regions, .. } if !regions.is_empty() => {
            on.note(
                &on.graph.nodes[guider.node],
                "all texts have places, so there is none for the background: combine them with one for the whole image",
            );
            Ok(String::new())
        }
        _ => Err(wrong_guider(on.graph, guider, input, "a prompt of zeros is not supported: expected a text")),
    }
}

/// Returns the guidance scale, if it has an effect, and the negative prompt.
fn guidance(on: &mut Evaluator<'_>, guider: &Guider) -> Result<(Option<f32>, Option<String>)> {
    let is_distilled = guider.model.is_distilled;
    let guidance = (guider.scale != 1.0 || !is_distilled).then_some(guider.scale as f32);
    let graph = on.graph;
    if guider.scale < 1.0 {
        on.note(&graph.nodes[guider.node], "a `cfg` below 1 counts as 1");
    }
    let is_guided = guider.scale > 1.0 && !is_distilled;
    let Some(Conditioning { text, regions, references, .. }) = &guider.negative else { return Ok((guidance, None)) };
    match text.as_deref() {
        Some("") | None if !is_guided && regions.is_empty() => Ok((guidance, None)),
        _ if !is_guided => {
            let why = if is_distilled { "the model is distilled" } else { "`cfg` is at most 1" };
            on.note(&graph.nodes[guider.node], &format!("`negative` has no effect: {why}"));
            Ok((guidance, None))
        }
        _ if !regions.is_empty() => {
            Err(wrong_guider(graph, guider, "negative", "areas and masks are not supported here: expected a text"))
        }
        None => Err(wrong_guider(graph, guider, "negative", "zeros are not supported here: expected a text")),
        Some(_) if **references != *guider.positive.references => {
            Err(wrong_guider(graph, guider, "negative", "expected the references of `positive`"))
        }
        Some(text) => Ok((guidance, Some(text.to_string()).filter(|text| !text.is_empty()))),
    }
}
