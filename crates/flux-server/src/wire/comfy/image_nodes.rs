//! Nodes of latents, images and masks.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::error::Result;
use super::evaluate::Evaluator;
use super::graph::{Node, map_node_error, no_file, unsupported};
use super::images::{Channel, MaskPicture, Picture};
use super::kinds::{Content, Drawn, Image, Latent, Worth};
use super::table::MAX_IMAGES;
use crate::http::error::shown;

/// The sizes of `FluxKontextImageScale`.
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

/// Returns the outputs of a node.
///
/// Errors if it is not supported.
pub fn evaluate(on: &mut Evaluator<'_>, node: &Node) -> Result<Vec<Worth>> {
    let one = |worth: Worth| Ok(vec![worth]);
    match node.class.name {
        "EmptyFlux2LatentImage" | "EmptySD3LatentImage" | "EmptyLatentImage" => one(Worth::Latent(Latent {
            content: Content::Empty([on.whole(node, "width")?, on.whole(node, "height")?]),
            mask: None,
            count: on.whole(node, "batch_size")?,
        })),
        "VAEEncode" => one(Worth::Latent(encoded(on.picture(node, "pixels")?, None))),
        "VAEEncodeTiled" => {
            on.note(node, "tile settings have no effect: tiling depends on the device's memory");
            one(Worth::Latent(encoded(on.picture(node, "pixels")?, None)))
        }
        "VAEEncodeForInpaint" => {
            let (picture, mask) = (on.picture(node, "pixels")?, on.mask(node, "mask")?);
            let mask = map_node_error(node, mask.widened(on.whole(node, "grow_mask_by")?))?;
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
            let content = Content::Encoded(on.encoded(node, "samples", &latent)?);
            one(Worth::Latent(Latent { content, mask: Some(mask), ..latent }))
        }
        "RepeatLatentBatch" => {
            let latent = on.latent(node, "samples")?;
            let count = latent.count.saturating_mul(on.whole(node, "amount")?);
            if count > MAX_IMAGES || matches!(latent.content, Content::Drawn(_)) {
                let most = MAX_IMAGES;
                return Err(unsupported(node, &format!("{count} images, expected at most {most} to generate")));
            }
            one(Worth::Latent(Latent { count, ..latent }))
        }
        "VAEDecode" | "VAEDecodeTiled" => {
            if node.class.name == "VAEDecodeTiled" {
                on.note(node, "tile settings have no effect: tiling depends on the device's memory");
            }
            match on.latent(node, "samples")?.content {
                Content::Drawn(drawing) => {
                    let shape = Picture::generated((drawing.node, false), drawing.size());
                    one(Worth::Image(Image::Drawn(Drawn { drawing, is_composite: false, shape })))
                }
                _ => Err(unsupported(node, "samples: only the output of a sampler can be decoded").at("samples")),
            }
        }
        "LoadImage" | "LoadImageOutput" => {
            let picture = upload(on, node)?;
            let mask = MaskPicture::new(&picture, Channel::Alpha);
            Ok(vec![Worth::Image(Image::Sent(picture)), Worth::Mask(Arc::new(mask))])
        }
        "LoadImageMask" => {
            let channel = Channel::from_name(&on.text(node, "channel")?);
            one(Worth::Mask(Arc::new(MaskPicture::new(&upload(on, node)?, channel))))
        }
        "ETN_LoadImageBase64" => {
            let file = decoded(on, node, "image")?;
            let picture = on.picture_of(node, "image", file)?;
            let mask = MaskPicture::new(&picture, Channel::Alpha);
            Ok(vec![Worth::Image(Image::Sent(picture)), Worth::Mask(Arc::new(mask))])
        }
        "ETN_LoadMaskBase64" => {
            let file = decoded(on, node, "mask")?;
            let picture = on.picture_of(node, "mask", file)?;
            one(Worth::Mask(Arc::new(MaskPicture::new(&picture, Channel::Color(0)))))
        }
        "ETN_LoadImageCache" => {
            let id = on.text(node, "id")?;
            let file = on.around.cached(&id).ok_or_else(|| no_file(node, "id", &id))?;
            one(Worth::Image(Image::Sent(on.picture_of(node, "id", file)?)))
        }
        "SolidMask" => {
            let size = [on.whole(node, "width")?, on.whole(node, "height")?];
            let place = (on.place(node), "value".to_string());
            let picture = map_node_error(node, Picture::solid(on.number(node, "value")?, size, place))?;
            one(Worth::Mask(Arc::new(MaskPicture::new(&picture, Channel::Color(0)))))
        }
        "ImageToMask" => {
            let (picture, channel) = (on.sent_picture(node, "image")?, Channel::from_name(&on.text(node, "channel")?));
            one(Worth::Mask(Arc::new(MaskPicture::new(&picture, channel))))
        }
        "InvertMask" => {
            let mask = map_node_error(node, on.mask(node, "mask")?.inverted())?;
            one(Worth::Mask(Arc::new(mask)))
        }
        "GrowMask" => {
            let (by, is_tapered) = (on.whole(node, "expand")?, on.flag_or(node, "tapered_corners", true)?);
            let mask = map_node_error(node, on.mask(node, "mask")?.grown(by, is_tapered))?;
            one(Worth::Mask(Arc::new(mask)))
        }
        "ImageScale"
        | "ImageScaleBy"
        | "ImageScaleToTotalPixels"
        | "ImageScaleToMaxDimension"
        | "FluxKontextImageScale" => {
            let image = on.image(node, "image")?;
            let shape = scaled(on, node, image.shape())?;
            one(Worth::Image(image.reshaped(shape)))
        }
        "LatentUpscale" | "LatentUpscaleBy" => {
            let latent = on.latent(node, "samples")?;
            if let Content::Empty(size) = latent.content {
                let size = scaled(on, node, &Picture::generated((on.place(node), false), size))?.size;
                return one(Worth::Latent(Latent { content: Content::Empty(size), ..latent }));
            }
            on.note(node, "enlarged latents of these models have artifacts: the image is enlarged with Lanczos");
            let picture = scaled(on, node, &on.encoded(node, "samples", &latent)?)?;
            one(Worth::Latent(Latent { content: Content::Encoded(picture), ..latent }))
        }
        "UpscaleModelLoader" => {
            let file = on.text(node, "model_name")?;
            let upscaler = on.around.upscaler(&file).map_err(|why| {
                let details = format!("model_name: '{}' not in list: {why}", shown(&file));
                node.wrong("value_not_in_list", "Value not in list", details).at("model_name")
            })?;
            one(Worth::Upscaler(upscaler))
        }
        "ImageUpscaleWithModel" => {
            let (image, upscaler, place) = (on.image(node, "image")?, on.upscaler(node)?, on.place(node));
            let shape = map_node_error(node, image.shape().enlarged(&upscaler, place))?;
            one(Worth::Image(image.reshaped(shape)))
        }
        "ImageCrop" => {
            let image = on.image(node, "image")?;
            let (corner, size) =
                ([on.whole(node, "x")?, on.whole(node, "y")?], [on.whole(node, "width")?, on.whole(node, "height")?]);
            let shape = map_node_error(node, image.shape().cropped(corner, size))?;
            one(Worth::Image(image.reshaped(shape)))
        }
        "GetImageSize" | "GetImageSize+" | "easy imageSize" | "GetImageSizeAndCount" => {
            let image = on.image(node, "image")?;
            let [width, height] = image.shape().size;
            let count = if let Image::Drawn(drawn) = &image { drawn.drawing.latent.count } else { 1 };
            let image = (node.class.name == "GetImageSizeAndCount").then_some(Worth::Image(image));
            let size = [Worth::Whole(width), Worth::Whole(height), Worth::Whole(count)];
            Ok(image.into_iter().chain(size).collect())
        }
        "ImageCompositeMasked" => one(Worth::Image(composite(on, node)?)),
        other => Err(unsupported(node, &format!("{other} is not supported"))),
    }
}

fn encoded(picture: Arc<Picture>, mask: Option<Arc<MaskPicture>>) -> Latent {
    Latent { content: Content::Encoded(picture), mask, count: 1 }
}

fn upload(on: &mut Evaluator<'_>, node: &Node) -> Result<Arc<Picture>> {
    let name = on.text(node, "image")?;
    let file = on.around.upload(&name).ok_or_else(|| no_file(node, "image", &name))?;
    on.picture_of(node, "image", file)
}

fn decoded(on: &Evaluator<'_>, node: &Node, name: &str) -> Result<Bytes> {
    let wrong = |details: String| node.wrong("invalid_image", "Invalid image file", details).at(name);
    let text = on.text(node, name)?;
    // Many nodes may refer to the same text, but each decodes a copy.
    on.around.keep(text.len()).map_err(|full| wrong(full.message))?;
    let data = if text.starts_with("data:") { text.split_once(',').map_or("", |(_, data)| data) } else { &text };
    STANDARD.decode(data.trim()).map(Bytes::from).map_err(|_| wrong(format!("{name} is not base64")))
}

/// Returns an image in the size that a node requests.
fn scaled(on: &Evaluator<'_>, node: &Node, picture: &Arc<Picture>) -> Result<Arc<Picture>> {
    let [width, height] = picture.size;
    let rounded = |side: f64| side.round_ties_even() as u64;
    let method = match node.class.name {
        "FluxKontextImageScale" | "LatentUpscale" | "LatentUpscaleBy" => "lanczos".to_string(),
        _ => on.text(node, "upscale_method")?,
    };
    if !matches!(&*method, "nearest-exact" | "lanczos") {
        on.note(node, &format!("`upscale_method` {method} is not supported: it counts as lanczos"));
    }
    let (to, is_cut) = match node.class.name {
        "ImageScaleBy" | "LatentUpscaleBy" => {
            let by = on.number(node, "scale_by")?;
            ([width, height].map(|side| rounded(side as f64 * by)), false)
        }
        "ImageScale" | "LatentUpscale" => match [on.whole(node, "width")?, on.whole(node, "height")?] {
            [0, 0] => return Ok(Arc::clone(picture)),
            [0, new] => {
                ([rounded(width as f64 * new as f64 / height as f64).max(1), new], on.text(node, "crop")? == "center")
            }
            [new, 0] => {
                ([new, rounded(height as f64 * new as f64 / width as f64).max(1)], on.text(node, "crop")? == "center")
            }
            to => (to, on.text(node, "crop")? == "center"),
        },
        "ImageScaleToMaxDimension" => {
            let longest = on.whole(node, "largest_size")?;
            let by = longest as f64 / width.max(height) as f64;
            ([width, height].map(|side| rounded(side as f64 * by).max(1)), false)
        }
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
    map_node_error(node, picture.scaled(&method, to, is_cut))
}

/// Returns the input image with the masked area replaced by the sampler's image.
fn composite(on: &Evaluator<'_>, node: &Node) -> Result<Image> {
    let wrong = |details: &str| Err(unsupported(node, details));
    let drawn = match on.image(node, "source")? {
        Image::Drawn(drawn) if drawn.shape.is_whole() => drawn,
        _ => return wrong("source: expected the output of a sampler, directly from VAEDecode"),
    };
    if node.given("mask").is_none() {
        return wrong("mask: expected the mask of the sampler");
    }
    let (destination, mask) = (on.picture(node, "destination")?, on.mask(node, "mask")?);
    let Latent { content, mask: own, .. } = &drawn.drawing.latent;
    let is_own_image = matches!(content, Content::Encoded(picture) if *picture == destination);
    let wrong = |name: &str| {
        let details = format!("{name}: expected that of the sampler");
        Err(unsupported(node, &details).at(name))
    };
    match (is_own_image, own.as_ref() == Some(&mask)) {
        (false, _) => wrong("destination"),
        (true, false) => wrong("mask"),
        (true, true) => {
            let shape = Picture::generated((drawn.drawing.node, true), drawn.shape.size);
            Ok(Image::Drawn(Drawn { is_composite: true, shape, ..drawn }))
        }
    }
}
