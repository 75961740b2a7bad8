//! The values of a plan: each function makes one choice of a request, or checks it.

use std::iter;

use crate::error::{Error, Field, Result};
use crate::model::info::{MAX_SIDE, MAX_STEPS, ModelInfo};
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::kept;
use crate::pipeline::request::latents::Latents;
use crate::sampler::Variety;

/// Prompts with fewer words are short for a model that was trained on full captions.
const MIN_CAPTION_WORDS: usize = 40;

/// Returns a note if the model was trained on full captions and the prompt is short.
pub(super) fn caption_note(request: &Request, info: &ModelInfo) -> Option<String> {
    let words = request.prompt.split_whitespace().count();
    let is_short = (1..MIN_CAPTION_WORDS).contains(&words) && request.embeddings.is_none();
    (is_short && info.kind.wants_captions).then(|| {
        let name = info.kind.files.name;
        format!(
            "{name} is trained on full captions: write one, or let a language model write it with `{:#}`",
            Field::Upsample
        )
    })
}

/// The largest factor of a reference's keys and values. Images fall apart before it.
const MAX_REFERENCE_WEIGHT: f32 = 2.0;

/// Returns the weight of each of `references` references; none if all are 1.
///
/// Errors if there are more weights, one is out of range, or steps reuse keys of references.
pub(super) fn reference_weights(request: &Request, references: usize) -> Result<Vec<f32>> {
    let given = &request.reference_weights;
    let wrong = |what: String| Err(Error::usage(what).for_field(Field::InputWeights));
    if given.len() > references {
        return wrong(format!("{} weights were passed for {references} references", given.len()));
    }
    if let Some(weight) = given.iter().find(|weight| !(0.0..=MAX_REFERENCE_WEIGHT).contains(*weight)) {
        return wrong(format!("the weight of a reference is {weight}, expected 0 to {MAX_REFERENCE_WEIGHT}"));
    }
    if given.iter().all(|weight| *weight == 1.0) {
        return Ok(Vec::new());
    }
    if request.sparse || request.reuse.is_some() {
        let other = if request.sparse { Field::Sparse } else { Field::Reuse };
        return wrong(format!("`{:#}` cannot be used with `{other:#}`", Field::InputWeights));
    }
    Ok(given.iter().copied().chain(iter::repeat(1.0)).take(references).collect())
}

/// Errors if another option excludes regions.
pub(super) fn check_regions(request: &Request) -> Result<()> {
    let others = [
        (request.sparse, Field::Sparse),
        (request.reuse.is_some(), Field::Reuse),
        (request.embeddings.is_some(), Field::Embeddings),
    ];
    match others.iter().find(|(given, _)| *given && !request.regions.is_empty()) {
        Some((_, other)) => Err(Error::usage(format!("`{:#}` cannot be used with `{other:#}`", Field::Regions))
            .for_field(Field::Regions)
            .hint("leave one of them out")),
        None => Ok(()),
    }
}

/// Returns the noise on text features, if there is any.
///
/// Errors if the tokens without padding are unknown, or later steps reuse keys of the first step's text.
pub(super) fn variety(request: &Request) -> Result<Option<Variety>> {
    let Some(variety) = request.variety.filter(Variety::has_effect) else { return Ok(None) };
    let others = [
        (request.embeddings.is_some(), Field::Embeddings),
        (request.sparse, Field::Sparse),
        (request.reuse.is_some(), Field::Reuse),
        (!request.regions.is_empty(), Field::Regions),
    ];
    match others.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, other)) => Err(Error::usage(format!("`{:#}` cannot be used with `{other:#}`", Field::Variety))
            .for_field(Field::Variety)
            .hint("leave one of them out")),
        None => Ok(Some(variety)),
    }
}

/// Returns height and width in pixels, which are rounded to whole positions of the latents.
///
/// Errors if a side is out of bounds, or does not fit the model, the input image, or passed noise or latents.
pub(super) fn size(
    request: &Request,
    info: &ModelInfo,
    usual: [usize; 2],
    notes: &mut Vec<String>,
) -> Result<[usize; 2]> {
    let [default_height, default_width] = start_size(request, info)?.unwrap_or(usual);
    let mut side = |field: Field, asked: Option<usize>, default: usize| {
        let name = field.key();
        let pixels = asked.unwrap_or(default);
        let patch = info.vae.patch_pixels();
        if pixels < patch || pixels > MAX_SIDE {
            return Err(Error::usage(format!("{name} is {pixels} pixels, expected {patch} to {MAX_SIDE}"))
                .for_field(field)
                .hint(format!("leave it out for the model's own {name}, {default}")));
        }
        let rounded = pixels / patch * patch;
        if rounded != pixels && !info.kind.rounds_sizes {
            return Err(Error::usage(format!("{name} is {pixels} pixels, expected a multiple of {patch}"))
                .for_field(field)
                .hint(format!("the nearest are {rounded} and {}", rounded + patch)));
        }
        if rounded != pixels {
            notes.push(format!("{name} {pixels} is rounded down to {rounded}, a multiple of {patch}"));
        }
        Ok(rounded)
    };
    let size @ [height, width] =
        [side(Field::Height, request.height, default_height)?, side(Field::Width, request.width, default_width)?];
    if let Some((start, field)) = request.start() {
        check_size(start, info, size).map_err(|e| e.for_field(field))?;
    }
    notes.extend(info.size_note(width, height));
    if request.change.is_some() && size != usual {
        let what = format!("{width}x{height} was requested, but the input image is {default_width}x{default_height}");
        return Err(Error::usage(what).for_field(Field::Width).hint("leave the size out to use the size of the image"));
    }
    if request.change.is_some() && request.latents.is_some() {
        return Err(Error::usage(
            "latents cannot be used with an input image, which already provides the first latents",
        )
        .for_field(Field::Latents)
        .hint("leave one of them out"));
    }
    Ok(size)
}

/// Returns the guidance scale; 1 is without guidance.
///
/// Errors if it is out of bounds.
pub(super) fn guidance(request: &Request, info: &ModelInfo, notes: &mut Vec<String>) -> Result<f32> {
    let asked = request.guidance.unwrap_or(info.default_guidance());
    if !(asked.is_finite() && (0.0..=1000.0).contains(&asked)) {
        return Err(Error::usage(format!("guidance is {asked}, expected 0 to 1000"))
            .for_field(Field::Guidance)
            .hint(format!("leave it out for the model's own scale, {}", info.default_guidance())));
    }
    if info.is_distilled && request.guidance.is_some_and(|g| g != 1.0) {
        notes.push("guidance has no effect: this model is distilled".to_string());
    }
    Ok(match (info.is_distilled, info.kind.guides_below_one) {
        (true, _) => 1.0,
        (false, true) => asked,
        (false, false) => asked.max(1.0),
    })
}

/// Returns the negative prompt, if it has an effect.
pub(super) fn negative(request: &Request, info: &ModelInfo, guided: bool, notes: &mut Vec<String>) -> Option<String> {
    let negative = request.negative.clone().filter(|_| guided);
    if request.negative.is_some() && negative.is_none() {
        let why = if info.is_distilled { "this model is distilled" } else { "there is no guidance" };
        notes.push(format!("the negative prompt has no effect: {why}"));
    }
    negative
}

/// Returns the tokens over all steps whose keys and values other steps read, for an image with this many text tokens,
/// this height and width, and this many steps to run.
///
/// Errors if the model or another option of the request excludes it.
pub(super) fn kept_tokens(
    request: &Request,
    info: &ModelInfo,
    guided: bool,
    (text_tokens, size, steps): (usize, [usize; 2], usize),
) -> Result<usize> {
    let made_from = (request.change.as_ref(), &request.references[..]);
    let Some(reuse) = request.reuse else {
        return if request.sparse { kept::sparse_tokens(made_from, info, guided, text_tokens) } else { Ok(0) };
    };
    let tokens = kept::frame_tokens(reuse, made_from, info, guided, (text_tokens, size, steps))?;
    match request.start() {
        None => Ok(tokens),
        Some((_, field)) => Err(Error::usage(format!(
            "`{:#}` cannot be used with `{field:#}`: all frames start from the noise of one seed",
            Field::Reuse
        ))
        .for_field(Field::Reuse)
        .hint("leave one of them out")),
    }
}

/// Returns the number of steps.
///
/// Errors if the number is out of bounds, or the schedule is invalid or has another number of steps.
pub(super) fn steps(request: &Request, info: &ModelInfo) -> Result<usize> {
    request.schedule.check().map_err(|e| e.for_field(Field::Schedule))?;
    let of_schedule = request.schedule.steps();
    if let (Some(levels), Some(steps)) = (of_schedule, request.steps)
        && levels != steps
    {
        return Err(Error::usage(format!("the noise levels define {levels} steps, but {steps} were requested"))
            .for_field(Field::Schedule)
            .hint("leave out the number of steps: each level except the final 0 is one step"));
    }
    let steps = of_schedule.or(request.steps).unwrap_or(info.default_steps);
    if (1..=MAX_STEPS).contains(&steps) {
        return Ok(steps);
    }
    let error = Error::usage(format!("steps is {steps}, expected 1 to {MAX_STEPS}"));
    Err(match of_schedule {
        Some(_) => error.for_field(Field::Schedule).hint("list fewer noise levels"),
        None => error
            .for_field(Field::Steps)
            .hint(format!("leave it out for the model's own number, {}", info.default_steps)),
    })
}

/// Returns height and width in pixels of an image that begins with passed noise or latents.
///
/// Errors if both are passed, or they are larger than any image.
fn start_size(request: &Request, info: &ModelInfo) -> Result<Option<[usize; 2]>> {
    if request.noise.is_some() && request.latents.is_some() {
        return Err(Error::usage("noise and latents cannot be used together: both are the start of the first step")
            .for_field(Field::Latents)
            .hint("leave one of them out"));
    }
    let Some((start, field)) = request.start() else { return Ok(None) };
    let (patch, [channels, height, width]) = (info.vae.patch_pixels(), start.shape());
    let most = MAX_SIDE / patch;
    if height.max(width) > most {
        let what =
            format!("it has shape [{channels}, {height}, {width}], expected a height and width of at most {most}");
        return Err(Error::usage(what)
            .for_field(field)
            .hint("pass a file of noise or latents, which have one position for each 16 x 16 pixels"));
    }
    Ok(Some([height, width].map(|places| places * patch)))
}

/// Errors if `start` does not fit an image of this height and width in pixels.
fn check_size(start: &Latents, info: &ModelInfo, [height, width]: [usize; 2]) -> Result<()> {
    let patch = info.vae.patch_pixels();
    let expected = [info.transformer.in_channels, height / patch, width / patch];
    if start.shape() == expected {
        return Ok(());
    }
    let [channels, height, width] = start.shape();
    let [c, h, w] = expected;
    let hint = match channels == c {
        true => format!("leave out the size, which is then {} x {}", width * patch, height * patch),
        false => "they belong to another model: create them with this one".to_string(),
    };
    Err(Error::usage(format!("it has shape [{channels}, {height}, {width}], expected [{c}, {h}, {w}]")).hint(hint))
}

/// Returns the tokens of the prompt and of the negative prompt.
///
/// Errors if the model does not read so many tokens, or passed features do not fit the model.
pub(super) fn text_tokens(
    request: &Request,
    info: &ModelInfo,
    guided: bool,
    count: impl Fn(&str) -> Result<usize>,
) -> Result<[usize; 2]> {
    let Some(embeddings) = &request.embeddings else {
        let (most, window) = (prompt_tokens(request, info)?, info.kind.window);
        let length = |prompt: &str| match window.step {
            Some(_) => Ok::<_, Error>(window.length(count(prompt)?, most)),
            None => Ok(most),
        };
        let own = length(&request.prompt)?;
        let negative = guided.then(|| length(request.negative.as_deref().unwrap_or_default())).transpose()?;
        return Ok([own, negative.unwrap_or(own)]);
    };
    let refused = |what: String, hint: &str| Err(Error::usage(what).for_field(Field::Embeddings).hint(hint));
    if request.max_sequence_length.is_some() || request.negative.is_some() {
        return refused(
            "text features were passed, so no prompt is read".to_string(),
            "leave out the negative prompt and the number of tokens",
        );
    }
    let (got, expected) = (embeddings.prompt().shape[1], info.transformer.joint_attention_dim);
    if got != expected {
        return refused(
            format!(
                "text features have shape [{}, {got}], expected [tokens, {expected}]",
                embeddings.prompt().shape[0]
            ),
            "they belong to another model: save them with this one",
        );
    }
    let tokens = embeddings.prompt().shape[0];
    match embeddings.negative() {
        Some(negative) => Ok([tokens, negative.shape[0]]),
        None if guided => refused(
            "guidance needs the text features of a negative prompt".to_string(),
            &format!("save them with this model and guidance, or turn guidance off with `{} 1`", Field::Guidance),
        ),
        None => Ok([tokens, tokens]),
    }
}

/// Returns the number of tokens that prompts are truncated or padded to.
///
/// Errors if the model does not read so many.
fn prompt_tokens(request: &Request, info: &ModelInfo) -> Result<usize> {
    let tokens = request.max_sequence_length.unwrap_or(info.max_sequence_length);
    let most = info.longest_sequence();
    if (1..=most).contains(&tokens) {
        return Ok(tokens);
    }
    Err(Error::usage(format!("a prompt of {tokens} tokens was requested, expected 1 to {most}"))
        .for_field(Field::MaxSequenceLength)
        .hint(format!("leave it out for the model's own number, {}", info.max_sequence_length)))
}
