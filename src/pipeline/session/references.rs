//! The images of a session: from pixels to latents, and to what the steps read.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::model::info::ModelInfo;
use crate::ops::{ActiveTokens, TokenLayout, TokenSplit};
use crate::pipeline::request::images::Change;
use crate::pipeline::request::kept;
use crate::pipeline::request::plan::{Plan, Request};
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::known::Known;
use crate::pipeline::residency::loads::Component;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::residency::timings::Clock;
use crate::pipeline::session::agreement;
use crate::rgb::Rgb;
use crate::stage::Caller;
use crate::stage::Stage;
use crate::tensor::Tensor;
use crate::transformer::{KeyCache, Transformer};
use crate::vae::{Band, Encoder, Grid};

/// The images that a session encodes.
pub(crate) struct Images {
    /// All references in their order, an image to change among them.
    references: Vec<Arc<Rgb>>,
    change: Option<Change>,
}

/// The images of all items, each once, and which of them are encoded already.
pub(crate) struct CachedImages<'a, B: Backend> {
    items: Vec<&'a Images>,
    all: Vec<&'a Arc<Rgb>>,
    latents: Vec<Option<Known<B>>>,
    /// Which are to be encoded.
    missing: Vec<bool>,
}

/// The packed latents of an item.
pub(crate) struct ImageLatents<B: Backend> {
    /// [tokens of all references, channels]; `None` where there are no references.
    pub references: Option<Tensor<B>>,
    /// By which what is made of them is cached: those of [`Known`].
    pub numbers: Vec<u64>,
    /// The image to change, [tokens, channels].
    pub changed: Option<Tensor<B>>,
}

impl Images {
    pub(crate) fn of(request: &Request) -> Self {
        let own = request.change.iter().filter(|change| change.is_reference).map(|change| &change.image);
        Self { references: own.chain(&request.references).cloned().collect(), change: request.change.clone() }
    }

    /// How much of each packed latent is drawn anew, where that is not all of each.
    pub(crate) fn cells(&self) -> Option<&[f32]> {
        self.change.as_ref()?.cells.as_deref()
    }

    /// Which tokens are computed, where some of them are kept from another step.
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

    /// All images in their order; an image to change comes first, be it a reference or not.
    fn all(&self) -> impl Iterator<Item = &Arc<Rgb>> {
        let hidden = self.change.iter().filter(|change| !change.is_reference).map(|change| &change.image);
        hidden.chain(&self.references)
    }
}

impl<'a, B: Backend> CachedImages<'a, B> {
    /// The images of items, and which of them are to be encoded: those that any device lacks.
    ///
    /// Errors when another device fails.
    pub(crate) fn of(items: impl Iterator<Item = &'a Images>, residency: &Residency<B>) -> Result<Self> {
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

    /// The encoder, where an image is to be encoded.
    ///
    /// Errors when it cannot be loaded, or the caller cancels.
    pub(crate) fn encoder(
        &self,
        residency: &Residency<B>,
        prepared: &Prepared,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Option<Arc<Encoder<B>>>> {
        self.missing.contains(&true).then(|| residency.encoder(prepared, caller, clock)).transpose()
    }

    /// The latents of each item.
    ///
    /// Errors when memory runs out, or the caller cancels.
    pub(crate) fn encode(
        mut self,
        residency: &Residency<B>,
        encoder: Option<Arc<Encoder<B>>>,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Vec<ImageLatents<B>>> {
        if let Some(encoder) = encoder {
            let (stages, total) = (encoder.stages(), (self.all.len() * encoder.stages()) as u64);
            let missing = self.latents.iter_mut().zip(&self.all).enumerate().filter(|(i, _)| self.missing[*i]);
            for (i, (latents, image)) in missing {
                let units = image.height / residency.info().vae.patch_pixels();
                let band = Band::new(units, residency.backend().rank(), residency.backend().world());
                let pixels = residency.backend().upload_rgb8(&image.bytes, image.height, image.width)?;
                let encoded = encoder.forward(Grid::new(pixels, image.height, image.width), band, |done| {
                    caller.report(Stage::Encode, (i * stages + done) as u64, total);
                    caller.check()
                })?;
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
            clock.images_encoded()?;
        }
        of_items
    }
}

/// Makes the keys and values of all references, for models that make them once. `embedded` are the tokens of this
/// device.
///
/// Errors when memory runs out.
pub(crate) fn make_reference_cache<B: Backend>(
    residency: &Residency<B>,
    transformer: &Arc<Transformer<B>>,
    images: &Images,
    embedded: &Tensor<B>,
    Prepared { plan, needs, .. }: &Prepared,
) -> Result<Arc<KeyCache<B>>> {
    let config = transformer.config();
    let blocks = (config.num_layers + config.num_single_layers) as u64;
    let bytes = 2 * blocks * (embedded.rows() * config.dim()) as u64 * residency.backend().costs().element_bytes;
    while residency.images.is_full() {
        // Steps of its images hold it too.
        residency.steps.clear();
        residency.images.drop_oldest();
    }
    residency.make_room(bytes + needs.step, Component::Transformer);
    let (backend, sizes) = (residency.backend(), residency.info().reference_sizes(plan));
    let layout = TokenLayout::single(residency.info().reference_tokens(plan));
    let split = TokenSplit::new(layout, backend.rank(), backend.world());
    let made = Arc::new(transformer.reference_cache(embedded, &sizes, split)?);
    residency.images.insert_reference_cache(images.references().to_vec(), transformer, &made);
    Ok(made)
}
