//! The input images of a session: from pixels to latents, and to inputs of the steps.

use std::sync::Arc;

use crate::backend::{Backend, Bands};
use crate::error::Result;
use crate::model::info::ModelInfo;
use crate::ops::{ActiveTokens, TokenLayout, TokenSplit};
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::images::Change;
use crate::pipeline::request::kept;
use crate::pipeline::request::plan::Plan;
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::known::Known;
use crate::pipeline::residency::loads::Component;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::residency::timings::{Clock, Span};
use crate::pipeline::session::agreement;
use crate::rgb::Rgb;
use crate::stage::Caller;
use crate::stage::Stage;
use crate::tensor::Tensor;
use crate::transformer::{KeyCache, ReferenceWeights, Transformer};
use crate::vae::{Band, Encoder, Grid};

/// The images that a session encodes.
pub(crate) struct Images {
    /// All references in their order, including an image to edit.
    references: Vec<Arc<Rgb>>,
    change: Option<Change>,
}

/// The distinct images of all items, with their cached latents.
pub(crate) struct CachedImages<'a, B: Backend> {
    items: Vec<&'a Images>,
    all: Vec<&'a Arc<Rgb>>,
    latents: Vec<Option<Known<B>>>,
    /// `true` for each image to encode.
    missing: Vec<bool>,
}

/// The packed latents of an item.
pub(crate) struct ImageLatents<B: Backend> {
    /// Latents [tokens of all references, channels]; `None` without references.
    pub references: Option<Tensor<B>>,
    /// Numbers of the references, the cache keys of results computed from them, see [`Known`].
    pub numbers: Vec<u64>,
    /// Latents of the image to edit, [tokens, channels].
    pub changed: Option<Tensor<B>>,
}

impl Images {
    pub(crate) fn from_request(request: &Request) -> Self {
        let own = request.change.iter().filter(|change| change.is_reference).map(|change| &change.image);
        Self { references: own.chain(&request.references).cloned().collect(), change: request.change.clone() }
    }

    /// Returns the regenerated part of each packed latent; `None` without a mask.
    pub(crate) fn cells(&self) -> Option<&[f32]> {
        self.change.as_ref()?.cells.as_deref()
    }

    /// Returns the tokens to compute, if others are cached from another step.
    pub(crate) fn kept_tokens(&self, info: &ModelInfo, plan: &Plan) -> Option<ActiveTokens> {
        let change = self.change.as_ref().filter(|_| plan.kept_tokens > 0)?;
        let shown = usize::from(change.is_reference);
        kept::under_mask(change, &self.references[shown..], info, plan.text_tokens)
    }

    pub(crate) fn references(&self) -> &[Arc<Rgb>] {
        &self.references
    }

    pub(crate) fn into_references(self) -> Vec<Arc<Rgb>> {
        self.references
    }

    /// Returns all images in their order; an image to edit comes first, even if it is not a reference.
    fn all(&self) -> impl Iterator<Item = &Arc<Rgb>> {
        let hidden = self.change.iter().filter(|change| !change.is_reference).map(|change| &change.image);
        hidden.chain(&self.references)
    }
}

impl<'a, B: Backend> CachedImages<'a, B> {
    /// Collects the images of items. Images that any device lacks are marked for encoding.
    ///
    /// Errors if another device fails.
    pub(crate) fn collect(items: impl Iterator<Item = &'a Images>, residency: &Residency<B>) -> Result<Self> {
        let items: Vec<&Images> = items.collect();
        let mut all: Vec<&Arc<Rgb>> = Vec::new();
        for image in items.iter().flat_map(|images| images.all()) {
            if !all.contains(&image) {
                all.push(image);
            }
        }
        let latents: Vec<Option<Known<B>>> = all.iter().map(|image| residency.images.latents(image)).collect();
        let missing = agreement::images(residency.backend(), latents.iter().map(Option::is_none).collect())?;
        Ok(Self { items, all, latents, missing })
    }

    /// Returns the encoder, if there are images to encode.
    ///
    /// Errors if it cannot be loaded, or the caller cancels.
    pub(crate) fn encoder(
        &self,
        residency: &Residency<B>,
        prepared: &Prepared,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Option<Arc<Encoder<B>>>> {
        self.missing.contains(&true).then(|| residency.encoder(prepared, caller, clock)).transpose()
    }

    /// Returns the latents of each item.
    ///
    /// Errors if memory runs out, or the caller cancels.
    pub(crate) fn encode(
        mut self,
        residency: &Residency<B>,
        (encoder, bands): (Option<Arc<Encoder<B>>>, Bands),
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Vec<ImageLatents<B>>> {
        if let Some(encoder) = encoder {
            let (stages, total) = (encoder.stages(), (self.all.len() * encoder.stages()) as u64);
            let missing = self.latents.iter_mut().zip(&self.all).enumerate().filter(|(i, _)| self.missing[*i]);
            for (i, (latents, image)) in missing {
                let units = image.height / residency.info().vae.patch_pixels();
                let backend = residency.backend();
                let band = Band::new(units, backend.rank(), backend.world());
                let pixels = backend.upload_rgb8(&image.bytes, image.height, image.width)?;
                let run = || {
                    encoder.forward(Grid::new(pixels, image.height, image.width), band, |done| {
                        caller.report(Stage::Encode, (i * stages + done) as u64, total);
                        caller.check()
                    })
                };
                let encoded = backend.with_max_resident(bands.max_resident(), run)?;
                *latents = Some(residency.images.insert_latents(image, encoded));
            }
        }
        let latents = |image: &Arc<Rgb>| {
            let place = self.all.iter().position(|known| *known == image);
            place.and_then(|place| self.latents[place].as_ref()).map(Known::view)
        };
        let of_item = |images: &&Images| {
            let references: Vec<Known<B>> = images.references.iter().filter_map(latents).collect();
            let numbers = references.iter().map(|known| known.number).collect();
            let concat = || Tensor::concat_rows(&references.iter().map(|known| &known.rows).collect::<Vec<_>>());
            let references = (!references.is_empty()).then(concat).transpose()?;
            let changed = images.change.as_ref().and_then(|change| latents(&change.image)).map(|known| known.rows);
            Ok(ImageLatents { references, numbers, changed })
        };
        let of_items = self.items.iter().map(of_item).collect();
        if !self.all.is_empty() {
            clock.end(Span::Encode)?;
        }
        of_items
    }
}

/// Computes the keys and values of all references, for models that compute them once. `embedded` are the tokens of
/// this device.
///
/// Errors if memory runs out.
pub(crate) fn make_reference_cache<B: Backend>(
    residency: &Residency<B>,
    transformer: &Arc<Transformer<B>>,
    images: &Images,
    embedded: &Tensor<B>,
    prepared: &Prepared,
) -> Result<Arc<KeyCache<B>>> {
    let Prepared { plan, needs, .. } = prepared;
    let config = transformer.config();
    let blocks = (config.num_layers + config.num_single_layers) as u64;
    let bytes = 2 * blocks * (embedded.rows() * config.dim()) as u64 * residency.backend().costs().element_bytes;
    while residency.images.is_full() {
        // Cached steps of its images hold it too.
        residency.steps.clear();
        residency.images.drop_oldest();
    }
    residency.make_room(bytes + needs.step, Component::Transformer);
    let (backend, sizes) = (residency.backend(), residency.info().reference_sizes(plan));
    let layout = TokenLayout::single(residency.info().reference_tokens(plan));
    let split = TokenSplit::new(layout, backend.rank(), backend.world());
    let weights = reference_weights(residency, prepared)?;
    let made = Arc::new(transformer.reference_cache(embedded, &sizes, split, weights.as_ref())?);
    let references = images.references().to_vec();
    residency.images.insert_reference_cache((references, &plan.reference_weights), transformer, &made);
    Ok(made)
}

/// Returns the factors of the references of a plan, if any differs from 1.
///
/// Errors if memory runs out.
pub(crate) fn reference_weights<B: Backend>(
    residency: &Residency<B>,
    Prepared { plan, needs, .. }: &Prepared,
) -> Result<Option<ReferenceWeights<B>>> {
    if plan.reference_weights.is_empty() {
        return Ok(None);
    }
    let (backend, info) = (residency.backend(), residency.info());
    let sharers = needs.sharing.ranks(backend.rank(), backend.world()).len();
    let tokens = info.reference_sizes(plan).into_iter().map(|[height, width]| height * width);
    let references = tokens.zip(plan.reference_weights.iter().copied());
    ReferenceWeights::new(backend, references, info.transformer.dim() / sharers).map(Some)
}
