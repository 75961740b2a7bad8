//! What each class of nodes does.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::error::Result;
use super::evaluate::{Evaluator, Surroundings};
use super::graph::{Graph, Node};
use super::images::{Channel, MaskPicture, Picture};
use super::kinds::{Conditioning, Content, Drawing, Guider, Image, Latent, Model, Worth};
use super::sigmas::Sigmas;
use crate::server::fields::shown;
use crate::server::request::Lora;

/// Sizes that `FluxKontextImageScale` knows.
const KONTEXT: [[u64; 2]; 17] = [
    [672, 1568],
    [688, 1504],
    [720, 1456],
    [752, 1392],
    [800, 1328],
    [832, 1248],
    [880, 1184],
    [944, 1104],
    [1024, 1024],
    [1104, 944],
    [1184, 880],
    [1248, 832],
    [1328, 800],
    [1392, 752],
    [1456, 720],
    [1504, 688],
    [1568, 672],
];

/// The most adapters of a model.
const MOST_ADAPTERS: usize = 32;

/// Evaluates all nodes that are needed.
///
/// Errors when one cannot be honoured.
pub fn run<'a>(graph: &'a Graph, around: &'a dyn Surroundings) -> Result<Evaluator<'a>> {
    let mut on = Evaluator::new(graph, around);
    for place in &graph.order {
        let node = &graph.nodes[*place];
        let worth = evaluate(&mut on, *place, node);
        on.set(*place, worth.map_err(|error| error.needed_for(graph.outputs_of(&node.id)))?);
    }
    Ok(on)
}

/// What a node gives.
///
/// Errors when it cannot be honoured.
fn evaluate(on: &mut Evaluator<'_>, place: usize, node: &Node) -> Result<Vec<Worth>> {
    let one = |worth: Worth| Ok(vec![worth]);
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
        "LoraLoaderModelOnly" => one(Worth::Model(with_adapter(on, node)?)),
        "FluxKVCache" => {
            on.note(node, "keys and values of references are cached as the server was started");
            one(Worth::Model(on.model(node)?))
        }
        "PrimitiveInt" => one(Worth::Whole(on.whole(node, "value")?)),
        "PrimitiveFloat" => one(Worth::Number(on.number(node, "value")?)),
        "PrimitiveString" | "PrimitiveStringMultiline" => one(Worth::Text(on.text(node, "value")?.into())),
        "PrimitiveBoolean" => one(Worth::Flag(on.flag_or(node, "value", false)?)),
        "CLIPTextEncode" => one(Worth::Conditioning(Conditioning {
            text: Some(on.text(node, "text")?.into()),
            references: Arc::default(),
        })),
        "FluxGuidance" => {
            on.note(node, "`guidance` has no effect: models of this kind read none");
            one(Worth::Conditioning(on.conditioning(node, "conditioning")?))
        }
        "ConditioningZeroOut" => {
            let conditioning = on.conditioning(node, "conditioning")?;
            one(Worth::Conditioning(Conditioning { text: None, ..conditioning }))
        }
        "FluxKontextMultiReferenceLatentMethod" => one(Worth::Conditioning(on.conditioning(node, "conditioning")?)),
        "ReferenceLatent" => one(Worth::Conditioning(with_reference(on, node)?)),
        "RandomNoise" => one(Worth::Noise(on.whole(node, "noise_seed")?)),
        "KSamplerSelect" => one(Worth::Sampler),
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
            let (guider, seed, sigmas) = (on.guider(node)?, on.noise(node)?, on.sigmas(node)?);
            let drawn = drawing(on, place, node, guider, seed, sigmas)?;
            // At the end, both are the same.
            Ok(vec![drawn.clone(), drawn])
        }
        "KSampler" => {
            let guider = Arc::new(guider(on, place, node)?);
            let (seed, sigmas) = (on.whole(node, "seed")?, basic_sigmas(on, node)?);
            one(drawing(on, place, node, guider, seed, sigmas)?)
        }
        "SaveImage" | "PreviewImage" | "SaveImageWebsocket" | "ETN_SendImageWebSocket" | "ETN_SaveImageCache" => {
            Ok(Vec::new())
        }
        _ => of_images(on, node),
    }
}

/// Nodes of latents, images and masks.
fn of_images(on: &mut Evaluator<'_>, node: &Node) -> Result<Vec<Worth>> {
    let one = |worth: Worth| Ok(vec![worth]);
    match node.class.name {
        "EmptyFlux2LatentImage" | "EmptySD3LatentImage" | "EmptyLatentImage" => one(Worth::Latent(Latent {
            content: Content::Empty([on.whole(node, "width")?, on.whole(node, "height")?]),
            mask: None,
            count: on.whole(node, "batch_size")?,
        })),
        "VAEEncode" => one(Worth::Latent(encoded(on.picture(node, "pixels")?, None))),
        "VAEEncodeTiled" => {
            on.note(node, "tiles have no effect: the device's memory decides");
            one(Worth::Latent(encoded(on.picture(node, "pixels")?, None)))
        }
        "VAEEncodeForInpaint" => {
            let (picture, mask) = (on.picture(node, "pixels")?, on.mask(node, "mask")?);
            let mask = of_node(node, mask.widened(on.whole(node, "grow_mask_by")?))?;
            one(Worth::Latent(encoded(picture, Some(Arc::new(mask)))))
        }
        "InpaintModelConditioning" => {
            let (positive, negative) = (on.conditioning(node, "positive")?, on.conditioning(node, "negative")?);
            let (picture, mask) = (on.picture(node, "pixels")?, on.mask(node, "mask")?);
            let mask = on.flag_or(node, "noise_mask", true)?.then_some(mask);
            let latent = Worth::Latent(encoded(picture, mask));
            Ok(vec![Worth::Conditioning(positive), Worth::Conditioning(negative), latent])
        }
        "SetLatentNoiseMask" => {
            let (latent, mask) = (on.latent(node, "samples")?, on.mask(node, "mask")?);
            if !matches!(latent.content, Content::Encoded(_)) {
                return Err(unsupported(node, "samples: a mask needs an image that was sent").at("samples"));
            }
            one(Worth::Latent(Latent { mask: Some(mask), ..latent }))
        }
        "RepeatLatentBatch" => {
            let latent = on.latent(node, "samples")?;
            let count = latent.count.saturating_mul(on.whole(node, "amount")?);
            if count > super::classes::MOST_IMAGES || matches!(latent.content, Content::Drawn(_)) {
                let most = super::classes::MOST_IMAGES;
                return Err(unsupported(
                    node,
                    &format!("{count} images, expected at most {most} that are to be drawn"),
                ));
            }
            one(Worth::Latent(Latent { count, ..latent }))
        }
        "VAEDecode" | "VAEDecodeTiled" => {
            if node.class.name == "VAEDecodeTiled" {
                on.note(node, "tiles have no effect: the device's memory decides");
            }
            match on.latent(node, "samples")?.content {
                Content::Drawn(drawing) => one(Worth::Image(Image::Drawn(drawing, false))),
                _ => Err(unsupported(node, "samples: what no sampler drew is not decoded").at("samples")),
            }
        }
        "LoadImage" => {
            let picture = upload(on, node)?;
            let mask = MaskPicture::new(&picture, Channel::Alpha);
            Ok(vec![Worth::Image(Image::Sent(picture)), Worth::Mask(Arc::new(mask))])
        }
        "LoadImageMask" => {
            let channel = Channel::of(&on.text(node, "channel")?);
            one(Worth::Mask(Arc::new(MaskPicture::new(&*upload(on, node)?, channel))))
        }
        "ETN_LoadImageBase64" => {
            let file = decoded(node, "image", &on.text(node, "image")?)?;
            let picture = on.picture_of(node, "image", file)?;
            let mask = MaskPicture::new(&picture, Channel::Alpha);
            Ok(vec![Worth::Image(Image::Sent(picture)), Worth::Mask(Arc::new(mask))])
        }
        "ETN_LoadMaskBase64" => {
            let file = decoded(node, "mask", &on.text(node, "mask")?)?;
            let picture = on.picture_of(node, "mask", file)?;
            one(Worth::Mask(Arc::new(MaskPicture::new(&picture, Channel::Color(0)))))
        }
        "ETN_LoadImageCache" => {
            let id = on.text(node, "id")?;
            let file = on.around.cached(&id).ok_or_else(|| no_file(node, "id", &id))?;
            one(Worth::Image(Image::Sent(on.picture_of(node, "id", file)?)))
        }
        "ImageToMask" => {
            let (picture, channel) = (on.picture(node, "image")?, Channel::of(&on.text(node, "channel")?));
            one(Worth::Mask(Arc::new(MaskPicture::new(&picture, channel))))
        }
        "InvertMask" => {
            let mask = of_node(node, on.mask(node, "mask")?.inverted())?;
            one(Worth::Mask(Arc::new(mask)))
        }
        "GrowMask" => {
            let (by, is_tapered) = (on.whole(node, "expand")?, on.flag_or(node, "tapered_corners", true)?);
            let mask = of_node(node, on.mask(node, "mask")?.grown(by, is_tapered))?;
            one(Worth::Mask(Arc::new(mask)))
        }
        "ImageScale" | "ImageScaleBy" | "ImageScaleToTotalPixels" | "FluxKontextImageScale" => {
            one(Worth::Image(Image::Sent(Arc::new(scaled(on, node)?))))
        }
        "GetImageSize" => {
            let [width, height] = on.picture(node, "image")?.size;
            Ok(vec![Worth::Whole(width), Worth::Whole(height), Worth::Whole(1)])
        }
        "ImageCompositeMasked" => one(Worth::Image(composite(on, node)?)),
        other => Err(unsupported(node, &format!("nothing here does what {other} does"))),
    }
}

fn unsupported(node: &Node, details: &str) -> super::error::GraphError {
    node.wrong("unsupported_graph", "The node cannot be honoured", details)
}

/// What an image can do, for the client.
fn of_node<T>(node: &Node, done: std::result::Result<T, String>) -> Result<T> {
    done.map_err(|details| unsupported(node, &details))
}

fn no_file(node: &Node, input: &str, name: &str) -> super::error::GraphError {
    let details = format!("{input} - Invalid image file: {}", shown(name));
    node.wrong("custom_validation_failed", "Custom validation failed for node", details).at(input)
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

/// A text encoder or a VAE: models here have their own.
fn part_of_model(on: &mut Evaluator<'_>, node: &Node, name: &str, what: &str) -> Result<()> {
    let file = on.text(node, name)?;
    if on.around.model(&file).is_err() || on.around.model(&file).is_ok_and(|(_, note)| note.is_some()) {
        on.note(node, &format!("`{}` is not read: the {what} is the model's own", shown(&file)));
    }
    if node.given("device").is_some() && on.text(node, "device")? != "default" {
        on.note(node, "`device` has no effect: the server was started with its devices");
    }
    Ok(())
}

fn with_adapter(on: &mut Evaluator<'_>, node: &Node) -> Result<Model> {
    let (model, file) = (on.model(node)?, on.text(node, "lora_name")?);
    if model.adapters.len() >= MOST_ADAPTERS {
        return Err(unsupported(node, &format!("there are more than {MOST_ADAPTERS} adapters")));
    }
    let name = on.around.adapter(&file).ok_or_else(|| {
        let details = format!("lora_name: '{}' not in list: the server has no such adapter", shown(&file));
        node.wrong("value_not_in_list", "Value not in list", details).at("lora_name")
    })?;
    let added = Lora { name, weight: on.number(node, "strength_model")? as f32 };
    let adapters = model.adapters.iter().cloned().chain([added]).collect();
    Ok(Model { adapters, ..model })
}

fn with_reference(on: &mut Evaluator<'_>, node: &Node) -> Result<Conditioning> {
    let conditioning = on.conditioning(node, "conditioning")?;
    if node.given("latent").is_none() {
        return Ok(conditioning);
    }
    let Content::Encoded(picture) = on.latent(node, "latent")?.content else {
        return Err(unsupported(node, "latent: a reference is an image that was sent, through VAEEncode").at("latent"));
    };
    let most = flux::pipeline::MAX_REFERENCES;
    if conditioning.references.len() >= most {
        return Err(unsupported(node, &format!("there are more than {most} references")));
    }
    let references = conditioning.references.iter().cloned().chain([picture]).collect();
    Ok(Conditioning { references, ..conditioning })
}

fn basic_sigmas(on: &Evaluator<'_>, node: &Node) -> Result<Arc<Sigmas>> {
    let scheduler = on.text(node, "scheduler")?;
    let sigmas = Sigmas::basic(&scheduler, on.whole(node, "steps")?, on.number(node, "denoise")?);
    sigmas.map(Arc::new).map_err(|details| unsupported(node, &details).at("denoise"))
}

/// The outputs of nodes that divide levels. With those of the first part, noise would be left.
fn low_sigmas(node: &Node, low: std::result::Result<Sigmas, String>) -> Result<Vec<Worth>> {
    let low = Worth::Sigmas(Arc::new(of_node(node, low)?));
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
    let latent = on.latent(node, "latent_image")?;
    if matches!(latent.content, Content::Drawn(_)) {
        let details = "latent_image: what another sampler drew cannot be drawn on";
        return Err(unsupported(node, details).at("latent_image"));
    }
    let count = latent.count;
    let drawing = Drawing { node: place, guider, seed, sigmas, latent };
    Ok(Worth::Latent(Latent { content: Content::Drawn(Arc::new(drawing)), mask: None, count }))
}

fn encoded(picture: Arc<Picture>, mask: Option<Arc<MaskPicture>>) -> Latent {
    Latent { content: Content::Encoded(picture), mask, count: 1 }
}

fn upload(on: &mut Evaluator<'_>, node: &Node) -> Result<Arc<Picture>> {
    let name = on.text(node, "image")?;
    let file = on.around.upload(&name).ok_or_else(|| no_file(node, "image", &name))?;
    on.picture_of(node, "image", file)
}

fn decoded(node: &Node, name: &str, text: &str) -> Result<Bytes> {
    let data = if text.starts_with("data:") { text.split_once(',').map_or("", |(_, data)| data) } else { text };
    let file = STANDARD.decode(data.trim()).map(Bytes::from);
    file.map_err(|_| node.wrong("invalid_image", "Invalid image file", format!("{name} is no base64")).at(name))
}

fn scaled(on: &mut Evaluator<'_>, node: &Node) -> Result<Picture> {
    let picture = on.picture(node, "image")?;
    let [width, height] = picture.size;
    let rounded = |side: f64| side.round_ties_even() as u64;
    let method = match node.class.name {
        "FluxKontextImageScale" => "lanczos".to_string(),
        _ => on.text(node, "upscale_method")?,
    };
    if !matches!(&*method, "nearest-exact" | "lanczos") {
        on.note(node, &format!("`upscale_method` {method} is not here: it is lanczos"));
    }
    let (to, is_cut) = match node.class.name {
        "ImageScaleBy" => {
            let by = on.number(node, "scale_by")?;
            ([width, height].map(|side| rounded(side as f64 * by)), false)
        }
        "ImageScale" => match [on.whole(node, "width")?, on.whole(node, "height")?] {
            [0, 0] => return Ok((*picture).clone()),
            [0, new] => {
                ([rounded(width as f64 * new as f64 / height as f64).max(1), new], on.text(node, "crop")? == "center")
            }
            [new, 0] => {
                ([new, rounded(height as f64 * new as f64 / width as f64).max(1)], on.text(node, "crop")? == "center")
            }
            to => (to, on.text(node, "crop")? == "center"),
        },
        "FluxKontextImageScale" => {
            let own = width as f64 / height as f64;
            let apart = |size: &[u64; 2]| (own - size[0] as f64 / size[1] as f64).abs();
            let nearest = KONTEXT.iter().min_by(|a, b| apart(a).total_cmp(&apart(b)).then(a.cmp(b)));
            (*nearest.unwrap_or(&[1024, 1024]), true)
        }
        // ImageScaleToTotalPixels
        _ => {
            let total = on.number(node, "megapixels")? * 1024.0 * 1024.0;
            let steps = on.whole_or(node, "resolution_steps", 1)?;
            let by = (total / (width as f64 * height as f64)).sqrt();
            ([width, height].map(|side| rounded(side as f64 * by / steps as f64) * steps), false)
        }
    };
    of_node(node, picture.scaled(&method, to, is_cut))
}

/// The original with what was drawn under the mask.
fn composite(on: &Evaluator<'_>, node: &Node) -> Result<Image> {
    let wrong = |details: &str| Err(unsupported(node, details));
    let Image::Drawn(drawing, _) = on.image(node, "source")? else {
        return wrong("source: expected what a sampler drew");
    };
    if node.given("mask").is_none() {
        return wrong("mask: expected the one under which the sampler drew");
    }
    let (destination, mask) = (on.picture(node, "destination")?, on.mask(node, "mask")?);
    match (&drawing.latent.content, &drawing.latent.mask) {
        (Content::Encoded(picture), Some(own)) if *picture == destination && *own == mask => {
            Ok(Image::Drawn(drawing, true))
        }
        _ => wrong("expected the image and the mask that the sampler was given"),
    }
}
