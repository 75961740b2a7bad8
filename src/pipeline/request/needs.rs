//! Device memory and largest tensor of an image.

#[cfg(test)]
mod tests;

use crate::backend::{Costs, Storage};
use crate::error::{Error, Field, Result};
use crate::model::file_sizes::FileSizes;
use crate::model::info::ModelInfo;
use crate::pipeline::memory::block_sizes::BlockSizes;
use crate::pipeline::memory::plan::{MemoryPlan, MemorySizes};
use crate::pipeline::request::fields::MAX_SAMPLES;
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::plan::Plan;
use crate::pipeline::request::vae_memory::VaeMemory;
use crate::token_split::{Sharing, share};
use crate::transformer::STEPS_TOGETHER;

/// Maximum values of a tensor for images and evaluations to form one batch, on every backend. Batches with larger
/// tensors are no faster on backends that compute them correctly.
const MAX_BATCH_VALUES: u64 = i32::MAX as u64;

/// Activations of an image, or of one of its tiles, on the device that needs most: bytes at their peak, and values of
/// the largest tensor. Equal on all devices of a group.
pub(crate) struct ActivationCost {
    /// Bytes of one evaluation of the transformer for one image.
    pub step: u64,
    /// Bytes of the early blocks, which text and references pass before they join the image tokens.
    pub early: u64,
    /// Values of the largest tensor of one evaluation.
    pub largest: u64,
    /// Values of the largest tensor that is not computed in pieces.
    pub whole: u64,
    /// The split of a step between devices.
    pub sharing: Sharing,
    /// Number of devices that share the tokens of an evaluation.
    sharers: usize,
    /// Evaluations of a step that a device takes part in.
    evaluations: u64,
    /// `true` if the images of a batch are evaluated one after the other: images with input images or regions.
    pub in_turn: bool,
    /// Bytes of keys and values that are cached from a step for other steps.
    pub kept: u64,
    /// `true` if an image forms its own batch: one with such a cache, with regions, or with tiles.
    pub is_alone: bool,
}

impl ActivationCost {
    pub(crate) fn new(costs: &Costs, info: &ModelInfo, plan: &Plan) -> Self {
        let [height, width] = info.evaluated_size(plan);
        let sharing = sharing(costs.world, plan, info.caches_references);
        let sharers = sharing.ranks(0, costs.world).len();
        // Cached keys and values of references are computed by a separate pass.
        let (image, references) = (own(height * width, sharers), own(info.reference_tokens(plan), sharers));
        let stream = if info.caches_references { image.max(references) } else { image + references };
        let text = plan.text().into_iter().max().unwrap_or(0);
        let tokens = (own(text, sharers) + stream) as u64;
        let (dim, mlp) = (info.transformer.dim() as u64, info.transformer.mlp() as u64);
        // A single block holds the stream, its norm, the projection [3 * dim + 2 * mlp] and the output; with
        // quantized weights also the input of the last matrix multiplication, [dim + mlp] of half the size. If tokens
        // are shared, queries, keys, values and the result of attention exist once more for the own heads of all
        // tokens, and the result for the own tokens.
        let exchanged = if sharers > 1 { 5 * dim } else { 0 };
        // Keys and values exist once more with the weights of references.
        let weighted = if plan.reference_weights.is_empty() { 0 } else { 3 * dim };
        // Keys of the image tokens of a region are copied, and concatenated with the keys of its text.
        let regional = if plan.regions.is_some() { 4 * dim } else { 0 };
        let token = (6 * dim + 5 * mlp / 2 + exchanged + weighted + regional) * costs.element_bytes;
        let context = tokens.saturating_sub(image as u64);
        // The context of a step exists while the context of the next step is computed. If each step has a different
        // context, texts of several steps are computed at once, with no more rows than a step has, and exist until
        // their step.
        let (rows, contexts) = match (info.transformer.has_early_blocks(), info.transformer.reads_next_time()) {
            (false, _) => (0, 0),
            (true, false) => (context, 0),
            (true, true) => (context.max(tokens.min(STEPS_TOGETHER as u64 * text as u64)), 1 + STEPS_TOGETHER as u64),
        };
        // Each tile has a context of its own if it sees a part of a reference.
        let of_tiles = if plan.contexts() > 1 { plan.contexts() as u64 * contexts.max(1) } else { 0 };
        Self {
            step: tokens * token + of_tiles * context * dim * costs.element_bytes,
            early: rows * token + contexts * context * dim * costs.element_bytes,
            largest: tokens * widest(info),
            whole: tokens * widest_whole(info),
            sharing,
            sharers,
            evaluations: if plan.guided() && sharing == Sharing::Group { 2 } else { 1 },
            in_turn: !plan.references.is_empty() || plan.strength.is_some() || plan.regions.is_some(),
            kept: info.kept_bytes(plan.kept_tokens, costs.element_bytes),
            is_alone: plan.kept_tokens > 0 || plan.regions.is_some() || plan.tiles.is_some(),
        }
    }

    /// Returns the number of images, of `count`, that form one batch if memory is not limited; at least one.
    pub(crate) fn wanted(&self, count: usize) -> usize {
        let most = if self.is_alone {
            1
        } else if self.in_turn {
            u64::MAX
        } else {
            self.max_evaluations() / self.evaluations
        };
        count.min(most.clamp(1, MAX_SAMPLES as u64) as usize)
    }

    /// Returns the number of images, of `wanted`, that can be denoised as one batch with `available` free bytes; at
    /// least one.
    pub(crate) fn samples(&self, available: u64, wanted: usize) -> usize {
        let fitting = if self.in_turn { u64::MAX } else { available / self.batch(1).max(1) };
        wanted.min(fitting.clamp(1, MAX_SAMPLES as u64) as usize)
    }

    /// Returns `true` if both evaluations of guidance of `samples` images can form one batch with `available` free
    /// bytes.
    pub(crate) fn batched(&self, available: u64, samples: usize) -> bool {
        let evaluations = 2 * samples as u64;
        let may = !self.in_turn && self.sharing == Sharing::Group;
        may && available > evaluations * self.step && evaluations <= self.max_evaluations()
    }

    /// Returns the maximum evaluations per batch, regardless of memory.
    fn max_evaluations(&self) -> u64 {
        MAX_BATCH_VALUES / self.largest.max(1)
    }

    /// Returns the bytes of all concurrent evaluations of a step of `samples` images.
    pub(crate) fn batch(&self, samples: usize) -> u64 {
        self.step * self.evaluations * if self.in_turn { 1 } else { samples as u64 }
    }

    /// Checks the largest tensor before minutes are spent on the image.
    ///
    /// Errors if the image needs a tensor of more than `limit` values, regardless of memory.
    pub(crate) fn check_largest(&self, limit: u64, info: &ModelInfo, plan: &Plan) -> Result<()> {
        if self.whole <= limit {
            return Ok(());
        }
        let (width, height) = (plan.width, plan.height);
        let error = Error::new(format!(
            "a {width} x {height} image needs a tensor of {} values, but this device supports at most {limit}",
            self.whole
        ));
        let beside = own(plan.text_tokens, self.sharers) + own(info.reference_tokens(plan), self.sharers);
        let tokens = (limit / widest_whole(info)).saturating_sub(beside as u64) * self.sharers as u64;
        match tokens.isqrt() * info.vae.patch_pixels() as u64 {
            0 => Err(error),
            side => Err(error.hint(format!(
                "use at most `{} {side} {} {side}` for a square image",
                Field::Width,
                Field::Height
            ))),
        }
    }
}

impl ModelInfo {
    /// Returns the bytes of the keys and values of `tokens` tokens in all blocks.
    fn kept_bytes(&self, tokens: usize, element_bytes: u64) -> u64 {
        let transformer = &self.transformer;
        let blocks = (transformer.num_layers + transformer.num_single_layers) as u64;
        2 * blocks * (tokens * transformer.dim()) as u64 * element_bytes
    }

    /// Returns the memory that an image of a prompt needs, with `size` [height, width] in pixels or the model's
    /// default size.
    ///
    /// Errors if the model cannot generate images of that size.
    pub fn memory_sizes(&self, costs: &Costs, size: Option<[usize; 2]>) -> Result<MemorySizes> {
        let [height, width] = [0, 1].map(|side| size.map(|size| size[side]));
        let plan = Plan::new(&Request { height, width, ..Request::new("", 0) }, self)?;
        Ok(MemorySizes::new(costs, self, &plan, true))
    }
}

impl MemorySizes {
    /// Returns the memory that an image needs; `text` is `true` if there may be a prompt to encode.
    pub(crate) fn new(costs: &Costs, info: &ModelInfo, plan: &Plan, text: bool) -> Self {
        let needs = ActivationCost::new(costs, info, plan);
        let native = |elements: u64| costs.weight_bytes(elements, Storage::Native);
        let (layers, encoder) = (info.layers_to_run(), &info.text_encoder);
        let texts = [plan.prompt_tokens(), plan.negative_tokens].into_iter().chain(plan.region_texts().iter().copied());
        let tokens = texts.max().unwrap_or(0) as u64;
        let changed = plan.strength.map(|_| [plan.height, plan.width]);
        let encoded = plan.references.iter().copied().chain(changed);
        let encoded = encoded.map(|size| VaeMemory::encoding(costs, &info.vae, size));
        let encoded = encoded.max_by_key(|memory| memory.device.wide);
        let (encode, decode) =
            (encoded.unwrap_or_default(), VaeMemory::decoding(costs, &info.vae, [plan.height, plan.width]));
        let dequantized = info.file_sizes.iter().map(FileSizes::largest).max().unwrap_or(0);
        Self {
            text_encoder: BlockSizes {
                blocks: (0..if text { layers } else { 0 })
                    .map(|layer| info.file_sizes[0].block(layer, encoder.layer_elements(), native))
                    .collect(),
                rest: 0,
            },
            encode_text: if text {
                tokens * encoder.activations(info.out_layers.len()) * costs.element_bytes
            } else {
                0
            },
            transformer: Self::transformer(costs, info),
            step: needs.step,
            early: needs.early,
            kept: needs.kept,
            decoder: native(info.vae.decoder_elements()),
            decode: decode.device,
            encoder: if encoded.is_some() { native(info.vae.encoder_elements()) } else { 0 },
            encode: encode.device,
            host: decode.host.max(encode.host),
            preview_decoder: info.preview_decoder.map_or(0, |sizes| native(sizes.elements)),
            preview: info
                .preview_decoder
                .map_or(0, |sizes| sizes.activations((plan.height * plan.width) as u64) * costs.element_bytes),
            workspace: costs.workspace_bytes + native(dequantized),
        }
    }

    /// Returns the sizes of the transformer's weights.
    pub(crate) fn transformer(costs: &Costs, info: &ModelInfo) -> BlockSizes {
        let of_floats = |elements: u64| costs.weight_bytes(elements, costs.products);
        let of_block = |(index, elements): (usize, u64)| match costs.products {
            Storage::Native => info.file_sizes[1].block(index, elements, of_floats),
            Storage::Fp8 | Storage::Int8 | Storage::W4a8 => of_floats(elements),
        };
        BlockSizes {
            blocks: info.transformer.elements_of_blocks().into_iter().enumerate().map(of_block).collect(),
            rest: costs.weight_bytes(info.transformer.other_elements(), Storage::Native),
        }
    }

    /// Returns the memory plan within `budget` bytes of the device and `host` bytes of the host. Called before minutes
    /// are spent on the image.
    ///
    /// Errors if the image does not fit with any plan.
    pub(crate) fn plan(&self, budget: u64, host: impl Fn() -> u64, plan: &Plan) -> Result<MemoryPlan> {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let smaller = format!("request a smaller image with `{}` and `{}`", Field::Width, Field::Height);
        let found = MemoryPlan::new(self, budget).ok_or_else(|| {
            let what = format!(
                "a {} x {} image needs {} MiB of memory, but only {} MiB are free",
                plan.width,
                plan.height,
                mib(self.least()),
                mib(budget)
            );
            Error::new(what).hint(format!("{smaller}, or allow more memory"))
        })?;
        if found.host > 0 && found.host > host() {
            let what = format!(
                "a {} x {} image needs {} MiB of host memory, but only {} MiB are free",
                plan.width,
                plan.height,
                mib(found.host),
                host() >> 20
            );
            return Err(Error::new(what).hint(format!("{smaller}, or allow more GPU memory")));
        }
        Ok(found)
    }
}

/// Returns the split of a step between devices. Both evaluations of guidance run at the same time on halves of the
/// group, because only the velocities of two evaluations cross between devices, and far more between devices that
/// share an evaluation.
fn sharing(world: usize, plan: &Plan, caches_references: bool) -> Sharing {
    // Cached keys belong to the heads that a device has when all devices share one evaluation.
    let halves = plan.guided() && world.is_multiple_of(2) && !caches_references;
    if halves { Sharing::Half } else { Sharing::Group }
}

/// Returns the maximum number of `count` tokens on one of `sharers` devices.
fn own(count: usize, sharers: usize) -> usize {
    share(count, 0, sharers).len()
}

/// Returns the columns of the widest tensor of the transformer: the projection before a single block.
fn widest(info: &ModelInfo) -> u64 {
    (3 * info.transformer.dim() + 2 * info.transformer.mlp()) as u64
}

/// Returns the columns of the widest tensor that is not computed in pieces: q, k and v of a double block, or the result
/// of attention and MLP of a single block.
fn widest_whole(info: &ModelInfo) -> u64 {
    let (dim, mlp) = (info.transformer.dim(), info.transformer.mlp());
    (3 * dim).max(dim + mlp) as u64
}
