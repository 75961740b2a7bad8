//! The first batch of images of a session: what its steps read, prepared one thing at a time.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::{Backend, RepeatedWork};
use crate::error::{Error, Result};
use crate::ops::{Sharing, TokenLayout, TokenSplit};
use crate::pipeline::request::adapters::SetKey;
use crate::pipeline::request::tiles::TilePlan;
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::loads::Component;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::residency::steps::{BatchShape, Schedules, Steps};
use crate::pipeline::residency::timings::{Clock, Span};
use crate::pipeline::session::agreement::{self, BeforeSteps};
use crate::pipeline::session::contexts::{FirstTexts, References, Texts, Turn};
use crate::pipeline::session::early_results::EarlyResults;
use crate::pipeline::session::references::{ImageLatents, Images, make_reference_cache, reference_weights};
use crate::pipeline::session::text::TextFeatures;
use crate::sampler::{Evaluations, Noise, Schedule, Tiles, tile_runs, times};
use crate::tensor::Tensor;
use crate::token_split::share;
use crate::transformer::{KeyCache, RegionMap, Regions, Transformer, time_in_bf16};

/// Inputs of [`Tensor::inpaint_blend`]: the first noise, the latents of the image to edit, and the mask.
pub(super) struct Kept<B: Backend> {
    pub noise: Tensor<B>,
    pub image: Tensor<B>,
    pub mask: Tensor<B>,
}

/// The first batch of images of a session.
pub(super) struct Batch<'a, B: Backend> {
    pub residency: &'a Residency<B>,
    /// The transformer, with adapters if there are any.
    pub transformer: &'a Arc<Transformer<B>>,
    /// The set of adapters.
    pub set: &'a SetKey,
    pub prepared: &'a Prepared,
    /// Number of images of the session, which may need several batches.
    pub count: usize,
}

/// The work of a step of a batch.
type BatchWork<B> = Arc<RepeatedWork<Steps<B>, B>>;

/// Returns a number that distinguishes batches of one shape.
fn kind<B: Backend>(steps: &Steps<B>) -> u64 {
    (2 * steps.samples() + usize::from(steps.evaluations == Evaluations::Batched)) as u64
}

impl<B: Backend> Batch<'_, B> {
    /// Returns the work of a step, from the cache or new. The batch has as many of the wanted images as memory allows,
    /// at least one. `images` are those of each item.
    ///
    /// Errors if memory runs out.
    pub(super) fn work(&self, images: &[(&Images, ImageLatents<B>)], clock: &mut Clock<B>) -> Result<BatchWork<B>> {
        let Self { residency, transformer, prepared, .. } = *self;
        // If references are cached, all items of a batch have the same references.
        let (first, latents) = images.first().ok_or_else(|| Error::usage("a batch has no items"))?;
        let to_cache = latents.references.as_ref().filter(|_| residency.info().caches_references);
        let find =
            || residency.images.reference_cache(first.references(), &prepared.plan.reference_weights, transformer);
        let mut cached = to_cache.and_then(|_| find());
        let found = self.find(cached.as_ref());
        let before = BeforeSteps {
            has_references: to_cache.is_none() || cached.is_some(),
            batch: found.as_ref().map_or(0, |found| kind(found.reads())),
            available: self.make_room(found.as_deref()),
        };
        let agreed = agreement::steps(residency.backend(), before)?;
        if let Some(latents) = to_cache {
            if !agreed.has_references {
                let embedded = self.embed_references(latents)?;
                cached = Some(make_reference_cache(residency, transformer, first, &embedded, prepared)?);
            }
            clock.end(Span::References)?;
        }
        match found.filter(|_| agreed.has_batch) {
            Some(found) => Ok(found),
            None => self.make(cached, agreed.available),
        }
    }

    /// Returns the noise levels and times of the schedule. Tiles have those of an image of their size.
    pub(super) fn levels(&self) -> Result<Schedule> {
        let (info, plan) = (self.residency.info(), &self.prepared.plan);
        let [height, width] = info.evaluated_size(plan);
        let levels = plan.schedule.schedule(info.schedule_shift(height * width, plan.steps), plan.steps);
        Ok(if times::are_rounded()? {
            levels.with_times(|sigma| time_in_bf16(&info.transformer, sigma))
        } else {
            levels
        })
    }

    /// Returns the modulations and lengths of all steps of a schedule.
    pub(super) fn schedule(&self, schedule: &Schedule) -> Result<Arc<Schedules<B>>> {
        let Self { residency, transformer, set, .. } = *self;
        let key = (set.clone(), schedule.sigmas.iter().map(|sigma| sigma.to_bits()).collect());
        let schedules = || residency.schedules.lock();
        if let Some(found) = schedules().get(&key) {
            return Ok(Arc::clone(found));
        }
        let modulations = transformer.modulations(&schedule.times())?;
        let (backend, dts, sigmas) = (residency.backend(), schedule.dts(), &schedule.sigmas);
        let made = Arc::new(Schedules {
            modulations,
            dts: backend.upload(&dts, dts.len(), 1)?,
            sigmas: backend.upload_f32(sigmas, sigmas.len(), 1)?,
        });
        schedules().put(key, Arc::clone(&made));
        Ok(made)
    }

    /// Embeds the texts that this device reads for `samples` items. Also returns the tokens of the first prompt without
    /// padding.
    ///
    /// Errors if memory runs out.
    pub(super) fn texts(&self, txt: &TextFeatures<B>, samples: usize) -> Result<(Texts<B>, usize)> {
        let (backend, info) = (self.residency.backend(), self.residency.info());
        let (texts, places) = txt.read(self.evaluated(), samples);
        let prompt = texts.first().map_or(self.prepared.plan.text_tokens, |text| text.prompt);
        let numbers = texts.iter().map(|text| text.number).collect();
        // In early blocks, each device has all tokens of a text, and its share after them.
        let meet_early = info.transformer.has_early_blocks();
        let own = |rows: Range<usize>| {
            let own = self.own(rows.len());
            rows.start + own.start..rows.start + own.end
        };
        let embedded = texts.into_iter().map(|text| if meet_early { text.rows } else { own(text.rows) });
        let embedded: Vec<Range<usize>> = embedded.collect();
        let after = embedded.iter().map(|rows| if meet_early { own(0..rows.len()) } else { 0..rows.len() });
        let whole = |rows: &Range<usize>| TokenSplit::apart(TokenLayout::new(1, rows.len(), 0), backend.rank());
        let texts = Texts {
            rows: self.transformer.context(&own_text(&txt.rows, &embedded)?)?,
            numbers,
            splits: embedded.iter().map(whole).collect(),
            own: after.collect(),
            places,
            samples,
        };
        Ok((texts, prompt))
    }

    /// Embeds the texts with noise that the first steps read for items of these seeds, if the plan has variety.
    ///
    /// Errors if memory runs out.
    pub(super) fn varied_texts(&self, txt: &TextFeatures<B>, seeds: &[u64]) -> Result<Option<FirstTexts<B>>> {
        let plan = &self.prepared.plan;
        let Some(variety) = plan.variety else { return Ok(None) };
        let (texts, _) = self.texts(&txt.varied(variety, seeds)?, seeds.len())?;
        Ok(Some(FirstTexts { texts, until: plan.first_step + variety.steps(plan.steps_to_run()) }))
    }

    /// Embeds the references of each turn, or of each tile, if they are in the sequence. `images` are those of the
    /// turns.
    ///
    /// Errors if memory runs out.
    pub(super) fn references<'i>(&self, images: &'i [(&'i Images, ImageLatents<B>)]) -> Result<References<B>> {
        let (info, plan) = (self.residency.info(), &self.prepared.plan);
        let size = info.latent_size(plan).into();
        // The parts of the references that each tile sees.
        let tiles = plan.tiles.filter(|tiles| tiles.has_own_reference);
        let tiles = tiles.map(|tiles| tile_runs(size, tiles.in_tokens(info.vae.patch_pixels())));
        let turn = |(images, latents): &'i (&'i Images, ImageLatents<B>)| {
            let in_sequence = latents.references.as_ref().filter(|_| !info.caches_references);
            if let (Some(all), Some(tiles)) = (in_sequence, &tiles) {
                let others = size[0] * size[1]..all.rows();
                let part = |runs: &Vec<Range<usize>>| {
                    let runs: Vec<_> = runs.iter().chain([&others]).filter(|run| !run.is_empty()).cloned().collect();
                    Ok(Turn { images: None, embedded: Some(self.embed_references(&all.copy_runs(&runs)?)?) })
                };
                return tiles.iter().map(part).collect();
            }
            let embedded = in_sequence.map(|latents| self.embed_references(latents)).transpose()?;
            Ok(vec![Turn { images: Some((images.references(), &latents.numbers)), embedded }])
        };
        let turns = images.iter().map(turn).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        let layout = TokenLayout { references: info.reference_tokens(plan), ..TokenLayout::new(1, 0, 0) };
        Ok(References::new(turns, info.reference_sizes(plan), self.split(layout)))
    }

    /// Returns the cache of early results for `samples` items. It may take the memory that the steps leave.
    pub(super) fn early_results(&self, levels: &Schedule, samples: usize) -> EarlyResults<B> {
        let Self { residency, prepared, .. } = *self;
        let (backend, needs) = (residency.backend(), &prepared.needs);
        let next_times = || levels.times().iter().map(|times| times.next.to_bits()).collect();
        EarlyResults {
            cache: (backend.world() == 1).then(|| Arc::clone(&residency.early)),
            adapters: self.set.clone(),
            next_times: if residency.info().transformer.reads_next_time() { next_times() } else { Vec::new() },
            value_bytes: backend.costs().element_bytes,
            spare: residency.available_bytes(prepared).saturating_sub(needs.batch(samples) + needs.early),
            made: 0,
        }
    }

    /// Uploads the noise of these items' images, and returns the latents before the first step. Also returns the data
    /// of unmasked areas, if the items have masks.
    ///
    /// Errors if memory runs out.
    pub(super) fn first_latents(
        &self,
        drawn: &Noise,
        images: &[(&Images, ImageLatents<B>)],
        schedule: &Schedules<B>,
    ) -> Result<(Tensor<B>, Option<Kept<B>>)> {
        let (backend, info, plan) = (self.residency.backend(), self.residency.info(), &self.prepared.plan);
        let ((height, width), channels) = (info.latent_size(plan), info.transformer.in_channels);
        // A tile has tokens of all devices.
        let tokens = if plan.tiles.is_some() { 0..height * width } else { self.own(height * width) };
        let noise = &drawn.values()[..images.len() * height * width * channels];
        let noise = own_values(noise, height * width, tokens.clone(), channels);
        let noise = backend.upload(&noise, images.len() * tokens.len(), channels)?;
        let own_rows = |image: &Tensor<B>| image.row_view(tokens.clone());
        let changed: Vec<_> = images.iter().filter_map(|(_, latents)| latents.changed.as_ref().map(own_rows)).collect();
        let cells = images.iter().filter_map(|(images, _)| images.cells());
        let cells: Vec<f32> = cells.flat_map(|cells| &cells[tokens.clone()]).copied().collect();
        begin(backend, noise, changed, &cells, &schedule.sigmas.row_view(plan.first_step..plan.first_step + 1))
    }

    /// Creates the tiles of the image.
    fn tiles(&self, tiles: TilePlan) -> Result<Tiles<B>> {
        let (backend, info, plan) = (self.residency.backend(), self.residency.info(), &self.prepared.plan);
        let tile = tiles.in_tokens(info.vae.patch_pixels());
        Tiles::new(backend, info.latent_size(plan).into(), tile, plan.contexts() > 1)
    }

    /// Returns the number of images, of all images of the session, that form one batch if memory is not limited.
    fn wanted(&self) -> usize {
        self.prepared.needs.wanted(self.count)
    }

    /// Returns the split of these tokens among the devices.
    fn split(&self, layout: TokenLayout) -> TokenSplit {
        let backend = self.residency.backend();
        TokenSplit::shared(layout, self.prepared.needs.sharing, backend.rank(), backend.world())
    }

    /// Returns this device's share of `count` rows.
    fn own(&self, count: usize) -> Range<usize> {
        let backend = self.residency.backend();
        let ranks = self.prepared.needs.sharing.ranks(backend.rank(), backend.world());
        share(count, backend.rank() - ranks.start, ranks.len())
    }

    /// Embeds this device's share of the latents of references.
    fn embed_references(&self, latents: &Tensor<B>) -> Result<Tensor<B>> {
        self.transformer.references(&latents.row_view(self.own(latents.rows())))
    }

    /// Returns the evaluations of a step that this device takes part in.
    fn evaluated(&self) -> Range<usize> {
        let (backend, Prepared { plan, needs, .. }) = (self.residency.backend(), self.prepared);
        match needs.sharing {
            Sharing::Group => 0..plan.text().len(),
            Sharing::Half => {
                let half = 2 * backend.rank() / backend.world();
                half..half + 1
            }
        }
    }

    /// Returns the cached work of such a batch, if any.
    fn find(&self, cached: Option<&Arc<KeyCache<B>>>) -> Option<BatchWork<B>> {
        self.residency.steps.find(|(of, shape): &(SetKey, BatchShape), steps: &Arc<Steps<B>>| {
            of == self.set
                && shape.serves(&self.prepared.plan, self.wanted())
                && Arc::ptr_eq(&steps.transformer, self.transformer)
                && steps.cached.as_ref().map(Arc::as_ptr) == cached.map(Arc::as_ptr)
        })
    }

    /// Returns the bytes that the batch may take. Makes room for it unless it was `found`.
    fn make_room(&self, found: Option<&RepeatedWork<Steps<B>, B>>) -> u64 {
        let Self { residency, prepared, .. } = self;
        let needs = &prepared.needs;
        if let Some(found) = found {
            return needs.batch(found.reads().samples()).max(residency.available_bytes(prepared));
        }
        if residency.available_bytes(prepared) < needs.batch(self.wanted()) {
            residency.free_shapes();
            // The images may need several batches, but no longer the text encoder.
            if self.count > 1 {
                residency.free_text_encoder();
            }
            // Earlier images may have been smaller.
            residency.make_room(needs.step, Component::Transformer);
        }
        residency.available_bytes(prepared)
    }

    /// Creates the work of the batch, with `available` bytes on each device.
    fn make(&self, cached: Option<Arc<KeyCache<B>>>, available: u64) -> Result<BatchWork<B>> {
        let Self { residency, transformer, set, prepared: Prepared { plan, needs, .. }, .. } = *self;
        let (info, sharing, wanted) = (residency.info(), needs.sharing, self.wanted());
        let samples = needs.samples(available, wanted);
        let (batch, turns) = if needs.in_turn { (1, samples) } else { (samples, 1) };
        let [height, width] = info.evaluated_size(plan);
        // Each half of the devices computes one of the two evaluations, which then do not form a batch.
        let evaluated = self.evaluated().start;
        let txt = plan.text()[evaluated];
        let has_own = plan.negative_tokens != txt || plan.regions.is_some();
        let own_negative = plan.guided() && sharing == Sharing::Group && has_own;
        let evaluations = match sharing {
            Sharing::Half => Evaluations::Halved { has_prompt: evaluated == 0 },
            Sharing::Group if !own_negative && needs.batched(available, samples) => Evaluations::Batched,
            Sharing::Group => Evaluations::InTurn,
        };
        let references = if cached.is_some() { Vec::new() } else { info.reference_sizes(plan) };
        let sequence = |txt: usize| {
            let tokens = references.iter().map(|[height, width]| height * width).sum();
            let layout = TokenLayout { references: tokens, ..TokenLayout::new(batch, txt, height * width) };
            let split = self.split(layout);
            Ok::<_, Error>((transformer.rope(&split, &references, [height, width])?, split))
        };
        let (mut rope, split) = sequence(txt)?;
        let regions = plan.regions.as_ref().map(|map| Regions::new(RegionMap::clone(map), split.whole()));
        if let Some(regions) = &regions {
            rope = transformer.rope_of_regions(regions, split.whole(), &references, [height, width])?;
        }
        let weights = if cached.is_some() { None } else { reference_weights(residency, self.prepared)? };
        let steps = Steps {
            transformer: Arc::clone(transformer),
            rope,
            split,
            turns,
            negative: own_negative.then(|| sequence(plan.negative_tokens)).transpose()?,
            weights,
            regions,
            tiles: plan.tiles.map(|tiles| self.tiles(tiles)).transpose()?,
            cached,
            guidance: plan.guided().then_some(plan.guidance),
            evaluations,
        };
        Ok(residency.steps.insert((set.clone(), BatchShape::new(plan, wanted, samples)), Arc::new(steps)))
    }
}

/// Returns the first latents of the schedule at noise level `sigma`, and the unmasked parts of the images to edit.
/// There are `changed` images and `cells` of all items, or of none.
fn begin<B: Backend>(
    backend: &B,
    noise: Tensor<B>,
    changed: Vec<Tensor<B>>,
    cells: &[f32],
    sigma: &Tensor<B>,
) -> Result<(Tensor<B>, Option<Kept<B>>)> {
    if changed.is_empty() {
        return Ok((noise, None));
    }
    let image = Tensor::concat_rows(&changed.iter().collect::<Vec<_>>())?;
    let rows = noise.rows();
    let nothing = backend.upload(&vec![0.0; rows], rows, 1)?;
    let latents = noise.row_view(0..rows).inpaint_blend(&noise, &image, &nothing, sigma)?;
    let kept = || Ok(Kept { noise, image, mask: backend.upload(cells, rows, 1)? });
    Ok((latents, (!cells.is_empty()).then(kept).transpose()?))
}

/// Returns these rows of the text features.
fn own_text<B: Backend>(txt: &Tensor<B>, rows: &[Range<usize>]) -> Result<Tensor<B>> {
    if rows.iter().cloned().flatten().eq(0..txt.rows()) {
        return Ok(txt.row_view(0..txt.rows()));
    }
    let views: Vec<_> = rows.iter().map(|rows| txt.row_view(rows.clone())).collect();
    Tensor::concat_rows(&views.iter().collect::<Vec<_>>())
}

/// Returns the tokens `own` of each image of `tokens` tokens.
fn own_values(values: &[f32], tokens: usize, own: Range<usize>, channels: usize) -> Cow<'_, [f32]> {
    if own.len() == tokens {
        return Cow::Borrowed(values);
    }
    let images = values.chunks_exact(tokens * channels);
    Cow::Owned(images.flat_map(|image| &image[own.start * channels..own.end * channels]).copied().collect())
}
