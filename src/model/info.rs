//! The configs of a model, read and checked against each other.

use crate::error::{Error, Field, Result};
use crate::files::own_models::VariantNames;
use crate::files::{ConfigPlace, ModelFiles, Role, TokenizerFile, Variant};
use crate::model::file_sizes::FileSizes;
use crate::model::index::Index;
use crate::model::registry::ModelKind;
use crate::sampler::Shift;
use crate::text_encoder::{CARRIED_TOKENS, TextEncoderConfig};
use crate::transformer::TransformerConfig;
use crate::vae::{TinyDecoderSizes, VaeConfig};

/// Maximum pixels on a side: above any trained size, and low enough that no size overflows.
pub(crate) const MAX_SIDE: usize = 8192;
/// Maximum number of steps: no schedule distinguishes more.
pub(crate) const MAX_STEPS: usize = 1000;

/// Tokens of a usual prompt, for models whose number of text tokens grows with the prompt.
pub(crate) const USUAL_TOKENS: usize = 320;
/// Maximum text tokens: above any prompt, and low enough that their memory can be allocated.
pub(crate) const MAX_TEXT_TOKENS: usize = 1 << 16;

/// The configs of a model, checked against each other.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// The folder's name.
    pub name: String,
    /// The kind of models that it belongs to.
    pub kind: &'static ModelKind,
    /// `true` if the model was distilled to few steps without guidance.
    pub is_distilled: bool,
    /// `true` if the model was trained to compute keys and values of reference images once, for all steps.
    pub caches_references: bool,
    /// Hidden states of the text encoder that the transformer reads.
    pub out_layers: Vec<usize>,
    /// Text tokens, padding included.
    pub max_sequence_length: usize,
    /// The shift of the schedule, if it differs from the kind's.
    pub shift: Option<Shift>,
    /// [height, width] in pixels.
    pub default_image_size: [usize; 2],
    /// The image sizes that the model was trained on, if its metadata has them.
    pub trained_sizes: Option<TrainedSizes>,
    /// Number of steps if the request has none.
    pub default_steps: usize,
    /// Text encoder sizes.
    pub text_encoder: TextEncoderConfig,
    /// Transformer sizes.
    pub transformer: TransformerConfig,
    /// VAE sizes.
    pub vae: VaeConfig,
    /// Weights that stay in the formats of the files: text encoder, transformer. Known once the files are opened.
    pub file_sizes: [FileSizes; 2],
    /// The formats that weights were quantized to when the model was opened, as [`Quantization`](super::Quantization)
    /// reads them.
    pub quantized: Option<String>,
    /// The sizes of the preview decoder, if one is attached.
    pub preview_decoder: Option<TinyDecoderSizes>,
}

/// The image sizes that a model was trained on; other sizes give worse images.
#[derive(Debug, Clone, Copy)]
pub struct TrainedSizes {
    /// Pixels of the shortest and of the longest side.
    pub sides: [usize; 2],
    /// Maximum ratio of the longer to the shorter side.
    pub aspect_ratio: f64,
}

/// The hidden states that transformers of this kind read. In a smaller text encoder they are at the same relative
/// depths.
///
/// Errors if the encoder at `place` has too few layers.
pub(crate) fn default_out_layers(kind: &ModelKind, layers: usize, place: &ConfigPlace) -> Result<Vec<usize>> {
    let own = kind.files.out_layers;
    let parts = own.len() + 1;
    match layers {
        _ if own.iter().all(|state| layers > *state) => Ok(own.to_vec()),
        _ if layers >= parts => Ok((1..parts).map(|part| part * layers / parts).collect()),
        _ => {
            let what = format!("the text encoder has {layers} layers (`num_hidden_layers`), expected at least {parts}");
            let hint = "this is not the text encoder of a klein model: fetch it again";
            Err(Error::new(what).at(place.path()).hint(hint))
        }
    }
}

/// The hidden states of the text encoder that are read: `named`, else those of the kind.
///
/// Errors if an encoder of `layers` layers lacks one of them.
fn out_layers(
    named: Option<Vec<usize>>,
    kind: &ModelKind,
    layers: usize,
    dir: &ModelFiles,
    place: &ConfigPlace,
) -> Result<Vec<usize>> {
    // The last hidden state is normed in the encoder; no FLUX.2-klein model reads it.
    let has = |states: &[usize]| !states.is_empty() && states.iter().all(|state| (1..layers).contains(state));
    match named {
        Some(states) if has(&states) => Ok(states),
        Some(states) => {
            let encoder = dir.component(Role::TextEncoder).path();
            let what = format!(
                "text_encoder_out_layers {states:?} do not fit the text encoder in `{}`, which has {layers} layers",
                encoder.display()
            );
            let hint = "the two belong to different models: choose the text encoder of this one";
            Err(Error::new(what).at(place.path()).hint(hint))
        }
        None => default_out_layers(kind, layers, &dir.component(Role::TextEncoder).place()),
    }
}

/// The variant of the model: by its weights, else as the user named it, else by its index.
///
/// Errors if weights and user contradict each other, or no model of this kind was trained so.
fn variant(
    dir: &ModelFiles,
    kind: &ModelKind,
    index: &Index,
    transformer: &TransformerConfig,
) -> Result<&'static VariantNames> {
    let (told, said) = (transformer.variant(), dir.variant());
    let variant = told.or(said).unwrap_or_else(|| index.variant());
    match said.filter(|said| *said != variant && dir.is_variant_named()) {
        None => {}
        Some(said) => {
            let what =
                format!("this {} was requested as a {said} model, but its weights are {variant}", kind.files.name);
            return Err(Error::usage(what)
                .for_field(Field::Variant)
                .hint("leave it out: the weights determine the variant"));
        }
    }
    kind.files.variant(variant).ok_or_else(|| {
        let what = format!("{} has no {variant} model", kind.files.name);
        Error::usage(what).for_field(Field::Variant).hint("leave it out, or choose another model")
    })
}

/// The shift of the schedule, if the folder sets it.
///
/// Errors if the shift is invalid, or the schedule uses dynamic shifting.
fn shift(dir: &ModelFiles, kind: &ModelKind) -> Result<Option<Shift>> {
    #[derive(serde::Deserialize)]
    struct Scheduler {
        shift: Option<f64>,
        #[serde(default)]
        use_dynamic_shifting: bool,
    }
    // Schedules of FLUX.2 depend on the size, by numbers that are in no file.
    let Shift::Constant(own) = (kind.shift)(1, 1) else { return Ok(None) };
    let Some((scheduler, place)) = dir.scheduler::<Scheduler>()? else { return Ok(None) };
    let shift = scheduler.shift.unwrap_or(own);
    if scheduler.use_dynamic_shifting {
        return Err(place.wrong("use_dynamic_shifting is true, expected a constant shift"));
    }
    if !(shift.is_finite() && (1e-3..=1e3).contains(&shift)) {
        return Err(place.wrong(format!("shift is {shift}, expected 0.001 to 1000")));
    }
    Ok(Some(Shift::Constant(shift)))
}

impl ModelInfo {
    /// Returns `true` if weights of the transformer's blocks stay in fewer than 16 bits, as their files have them.
    /// Known once the files are opened.
    pub fn has_quantized_transformer(&self) -> bool {
        self.file_sizes[1].largest() > 0
    }

    /// Returns the shift of the schedule for an image of `tokens` tokens in `steps` steps.
    pub fn schedule_shift(&self, tokens: usize, steps: usize) -> Shift {
        self.shift.unwrap_or_else(|| (self.kind.shift)(tokens, steps))
    }

    /// Returns the text tokens of a usual prompt, padding included.
    pub fn usual_text_tokens(&self) -> usize {
        self.kind.window.length(USUAL_TOKENS, self.max_sequence_length)
    }

    /// Returns `true` unless the transformer is far narrower than those of published models.
    pub fn is_full_size(&self) -> bool {
        self.transformer.dim() >= 1024
    }

    /// Returns the number of text encoder layers that run.
    pub fn layers_to_run(&self) -> usize {
        self.out_layers.iter().copied().max().unwrap_or(0)
    }

    /// Reads `model_index.json` and the three configs. If a config is missing, the sizes come from the shapes of the
    /// weights.
    ///
    /// Errors if one is missing or wrong, or they do not fit together.
    pub fn read(dir: &ModelFiles) -> Result<Self> {
        let (mut index, place) = Index::read(dir)?;
        index.check_class(&place)?;
        let text_encoder = TextEncoderConfig::read(dir)?;
        let transformer = TransformerConfig::read(dir)?;
        let kind = index.kind(&transformer, &place)?;
        let vae = VaeConfig::read(dir)?;
        let named = index.text_encoder_out_layers.take();
        let out_layers = out_layers(named, kind, text_encoder.num_hidden_layers, dir, &place)?;
        let variant = variant(dir, kind, &index, &transformer)?;
        let (is_distilled, caches_references) = (variant.is_distilled, variant.variant == Variant::Kv);
        let side = vae.sample_size.unwrap_or(kind.side);
        let info = Self {
            name: dir.name().to_string(),
            kind,
            is_distilled,
            caches_references,
            out_layers,
            max_sequence_length: index.max_sequence_length.unwrap_or(kind.window.max),
            shift: shift(dir, kind)?,
            default_image_size: index.default_image_size.unwrap_or([side, side]),
            trained_sizes: index.image_sides.map(|sides| TrainedSizes {
                sides,
                aspect_ratio: index.image_aspect_ratio.unwrap_or(kind.aspect_ratio),
            }),
            default_steps: index.default_steps.unwrap_or(kind.defaults(is_distilled).steps),
            text_encoder,
            transformer,
            vae,
            file_sizes: Default::default(),
            quantized: None,
            preview_decoder: None,
        };
        info.check(dir, &place, index.default_image_size.is_some())?;
        Ok(info)
    }

    fn check(&self, dir: &ModelFiles, place: &ConfigPlace, index_names_size: bool) -> Result<()> {
        let vocabulary = self.text_encoder.vocab_size;
        if matches!(dir.tokenizer(), TokenizerFile::Carried) && vocabulary < CARRIED_TOKENS {
            return Err(Error::new(format!(
                "the text encoder has a vocabulary of {vocabulary}, but {}'s tokenizer has {CARRIED_TOKENS} tokens",
                self.kind.files.text_encoder
            ))
            .at(dir.component(Role::TextEncoder).path().display().to_string())
            .hint(format!("pass the tokenizer of this text encoder with `{}`", Field::Tokenizer)));
        }
        let (own, encoder) = (self.kind.files, dir.component(Role::TextEncoder));
        let theta = self.text_encoder.rope_theta;
        if own.text_encoder_sees && theta != own.text_encoder_theta {
            let what = format!(
                "the text encoder has a rope_theta of {theta}, expected the one of {}, which is {}",
                own.text_encoder, own.text_encoder_theta
            );
            return Err(Error::new(what).at(encoder.path().display().to_string()).hint(self.kind.encoders()));
        }
        if !own.text_encoder_sees && encoder.has_vision() {
            let what = format!("the text encoder also reads images, expected {}", own.text_encoder);
            return Err(Error::new(what).at(encoder.path().display().to_string()).hint(self.kind.encoders()));
        }
        let features = self.out_layers.len() * self.text_encoder.hidden_size;
        if features != self.transformer.joint_attention_dim {
            return Err(Error::new(format!(
                "the encoder in `{}` returns {} x {} = {features} features, but the model in `{}` reads {}",
                dir.component(Role::TextEncoder).path().display(),
                self.out_layers.len(),
                self.text_encoder.hidden_size,
                dir.component(Role::Transformer).path().display(),
                self.transformer.joint_attention_dim
            ))
            .at(dir.index_place().path())
            .hint(self.kind.encoders()));
        }
        if self.transformer.in_channels != 4 * self.vae.latent_channels {
            return Err(Error::new(format!(
                "the transformer in `{}` has {} channels, expected four times the {} latent channels of the VAE",
                dir.component(Role::Transformer).path().display(),
                self.transformer.in_channels,
                self.vae.latent_channels
            ))
            .at(dir.component(Role::Vae).place().path())
            .hint("the two belong to different models: fetch the whole folder again"));
        }
        // A hostile folder must not exhaust memory with a long sequence.
        let length = self.max_sequence_length;
        let counts = [
            ("max_sequence_length", length, 16..=MAX_TEXT_TOKENS),
            ("default_steps", self.default_steps, 1..=MAX_STEPS),
        ];
        place.check_sizes(&counts)?;
        if let Some(positions) = self.text_encoder.max_position_embeddings.filter(|positions| *positions < length) {
            let what = format!("max_position_embeddings is {positions}, less than the {length} tokens of a prompt");
            return Err(dir.component(Role::TextEncoder).place().wrong(what));
        }
        // Defaults of requests come from these values. Checking them here keeps errors from naming an option that the
        // user did not pass.
        let [height, width] = self.default_image_size;
        let sides = self.vae.patch_pixels()..=MAX_SIDE;
        match (index_names_size, self.vae.sample_size) {
            (false, Some(side)) => dir.component(Role::Vae).place().check_sizes(&[("sample_size", side, sides)]),
            _ => place.check_sizes(&[
                ("the height in default_image_size", height, sides.clone()),
                ("the width in default_image_size", width, sides),
            ]),
        }?;
        Ok(())
    }

    /// Returns the variant: how the model was trained.
    pub fn variant(&self) -> Variant {
        match (self.caches_references, self.is_distilled) {
            (true, _) => Variant::Kv,
            (false, true) => Variant::Distilled,
            (false, false) => Variant::Base,
        }
    }

    /// Marks the model as distilled, with the defaults of a distilled model.
    pub(crate) fn mark_distilled(&mut self) {
        if !self.is_distilled && self.default_steps == self.kind.base.steps {
            self.default_steps = self.kind.distilled.steps;
        }
        self.is_distilled = true;
    }

    /// Returns the guidance scale for requests that have none.
    pub fn default_guidance(&self) -> f32 {
        self.kind.defaults(self.is_distilled).guidance
    }

    /// Returns the maximum number of text tokens that a prompt may be cut or padded to.
    pub fn longest_sequence(&self) -> usize {
        self.text_encoder.max_position_embeddings.unwrap_or(MAX_TEXT_TOKENS).min(MAX_TEXT_TOKENS)
    }

    /// Returns a note if images of this size are worse.
    pub(crate) fn size_note(&self, width: usize, height: usize) -> Option<String> {
        let [made_height, made_width] = self.default_image_size;
        let (is_worse, made_for) = match self.trained_sizes {
            Some(TrainedSizes { sides: [least, most], aspect_ratio }) => {
                let (short, long) = (width.min(height), width.max(height));
                let is_worse = short < least || long > most || long as f64 > aspect_ratio * short as f64;
                (is_worse, format!("sides of {least} to {most} pixels and ratios up to {aspect_ratio}:1"))
            }
            None => {
                // Floats, because the config may have sides whose product overflows.
                let ratio = (width as f64 * height as f64) / (made_width as f64 * made_height as f64);
                (ratio.max(ratio.recip()) > self.kind.area_factor, format!("{made_width}x{made_height}"))
            }
        };
        is_worse.then(|| format!("this model was trained for {made_for}; images of {width}x{height} are worse"))
    }

    /// Adds a hint to the error of a tensor with a wrong shape.
    pub(crate) fn explain(&self, error: Error) -> Error {
        error.hint(
            "weights and config.json belong to different models (4B and 9B have the same tensor names): fetch the \
             whole folder again",
        )
    }
}
