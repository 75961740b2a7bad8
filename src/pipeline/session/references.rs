//! The images of a session: from pixels to latents, and to what the steps read.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::pipeline::request::images::Change;
use crate::pipeline::request::needs::Needs;
use crate::pipeline::request::plan::{Plan, Request};
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::loads::Component;
use crate::pipeline::residency::timings::Clock;
use crate::rgb::Rgb;
use crate::stage::Caller;
use crate::stage::Stage;
use crate::tensor::Tensor;
use crate::transformer::{ReferenceCache, Transformer};
use crate::vae::Grid;

/// The images that a session encodes.
pub(crate) struct Images {
    /// All references in their order, an image to change among them.
    references: Vec<Arc<Rgb>>,
    change: Option<Change>,
}

/// Their packed latents.
pub(crate) struct ImageLatents<B: Backend> {
    /// [tokens of all references, channels]; `None` where there are no references.
    pub references: Option<Tensor<B>>,
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

    pub(crate) fn references(&self) -> &[Arc<Rgb>] {
        &self.references
    }

    /// The latents of all images. The encoder runs only for those that are not cached.
    ///
    /// Errors when memory runs out, or the caller cancels.
    pub(crate) fn encode<B: Backend>(
        &self,
        residency: &Residency<B>,
        plan: &Plan,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<ImageLatents<B>> {
        let hidden = self.change.iter().filter(|change| !change.is_reference).map(|change| &change.image);
        let images: Vec<&Arc<Rgb>> = hidden.chain(&self.references).collect();
        if images.is_empty() {
            return Ok(ImageLatents { references: None, changed: None });
        }
        let mut latents: Vec<Option<Tensor<B>>> = images.iter().map(|image| residency.images.latents(image)).collect();
        // Devices encode together what any of them has not cached.
        let missing: u64 =
            latents.iter().enumerate().filter(|(_, latents)| latents.is_none()).map(|(i, _)| 1 << i).sum();
        let missing = residency.backend().gather_host("the images", missing)?.into_iter().fold(0, |all, own| all | own);
        if missing != 0 {
            let encoder = residency.encoder(plan, caller, clock)?;
            residency.backend().gather_host("the encoder", 0)?;
            let (stages, total) = (encoder.stages(), (images.len() * encoder.stages()) as u64);
            for (i, (latents, image)) in latents.iter_mut().zip(&images).enumerate() {
                if missing & (1 << i) == 0 {
                    continue;
                }
                let pixels = residency.backend().upload_rgb8(&image.bytes, image.height, image.width)?;
                let encoded = encoder.forward(Grid::new(pixels, image.height, image.width), |done| {
                    caller.report(Stage::Encode, (i * stages + done) as u64, total);
                    caller.check()
                })?;
                *latents = Some(encoded.row_view(0..encoded.rows()));
                residency.images.insert_latents(image, encoded);
            }
        }
        let latents: Vec<Tensor<B>> = latents.into_iter().flatten().collect();
        let references: Vec<&Tensor<B>> = latents[images.len() - self.references.len()..].iter().collect();
        let references = if references.is_empty() { None } else { Some(Tensor::concat_rows(&references)?) };
        clock.images_encoded()?;
        // The image to change is the first one, be it a reference or not.
        let changed = self.change.as_ref().and_then(|_| latents.into_iter().next());
        Ok(ImageLatents { references, changed })
    }
}

/// Keys and values of all references, for models that make them once. `embedded` are the tokens of this device.
///
/// Errors when memory runs out.
pub(crate) fn reference_cache<B: Backend>(
    residency: &Residency<B>,
    transformer: &Arc<Transformer<B>>,
    images: &Images,
    embedded: &Tensor<B>,
    (plan, needs): (&Plan, &Needs),
) -> Result<Arc<ReferenceCache<B>>> {
    let found = residency.images.reference_cache(images.references(), transformer);
    // Devices make together what any of them has not cached.
    let all_have =
        residency.backend().gather_host("the references", u64::from(found.is_some()))?.iter().all(|own| *own == 1);
    if let Some(found) = found.filter(|_| all_have) {
        return Ok(found);
    }
    let config = transformer.config();
    let blocks = (config.num_layers + config.num_single_layers) as u64;
    let bytes = 2 * blocks * (embedded.rows() * config.dim()) as u64 * residency.backend().costs().element_bytes;
    while residency.images.is_full() {
        // Steps of its images hold it too.
        residency.steps.clear();
        residency.images.drop_oldest();
    }
    residency.make_room(bytes + needs.step, Component::Transformer);
    let made = Arc::new(transformer.reference_cache(embedded, &residency.info().reference_sizes(plan))?);
    residency.images.insert_reference_cache(images.references().to_vec(), transformer, &made);
    Ok(made)
}
