//! What the configs of a model say.

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

/// The most pixels on a side: more than any model was trained for, and so few that no size overflows.
pub(crate) const MAX_SIDE: usize = 8192;
/// The most steps: more than any schedule distinguishes.
pub(crate) const MAX_STEPS: usize = 1000;

/// Tokens of a usual prompt, where a prompt of more has more text tokens.
pub(crate) const USUAL_TOKENS: usize = 320;
/// The most text tokens: more than any prompt has, and so few that memory for them can be asked for.
pub(crate) const MAX_TEXT_TOKENS: usize = 1 << 16;

/// The configs of a model, checked against each other.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// The folder's name.
    pub name: String,
    /// Which kind of models it is of.
    pub kind: &'static ModelKind,
    /// Whether it was distilled to few steps without guidance.
    pub is_distilled: bool,
    /// Whether it was trained so that keys and values of reference images are made once, for all steps.
    pub caches_references: bool,
    /// Hidden states of the text encoder that the transformer reads.
    pub out_layers: Vec<usize>,
    /// Text tokens, padding included.
    pub max_sequence_length: usize,
    /// The shift of its schedule, where it says another than its kind.
    pub shift: Option<Shift>,
    /// [height, width] in pixels.
    pub default_image_size: [usize; 2],
    /// The images that it was trained on, where the model says so.
    pub trained_sizes: Option<TrainedSizes>,
    /// Steps where the request names none.
    pub default_steps: usize,
    /// Text encoder sizes.
    pub text_encoder: TextEncoderConfig,
    /// Transformer sizes.
    pub transformer: TransformerConfig,
    /// VAE sizes.
    pub vae: VaeConfig,
    /// Of the text encoder's and of the transformer's weights, what stays in the formats of the files. Known once these
    /// are opened.
    pub file_sizes: [FileSizes; 2],
    /// The formats that weights were brought to when it was opened, as [`Quantisation`](super::Quantisation) reads
    /// them.
    pub quantised: Option<String>,
    /// The sizes of the tiny decoder that shows steps, where one was attached.
    pub preview_decoder: Option<TinyDecoderSizes>,
}

/// The images that a model was trained on: others are worse.
#[derive(Debug, Clone, Copy)]
pub struct TrainedSizes {
    /// Pixels of the shortest and of the longest side.
    pub sides: [usize; 2],
    /// How many times longer one side may be than the other.
    pub aspect_ratio: f64,
}

/// The hidden states that the transformers of a kind read, which are as far inside of a smaller text encoder.
///
/// Errors when the encoder at `place` has too few layers.
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

/// The hidden states of the text encoder that are read: those that are named, else those of its kind.
///
/// Errors when an encoder of so many layers lacks one of them.
fn out_layers(
    named: Option<Vec<usize>>,
    kind: &ModelKind,
    layers: usize,
    dir: &ModelFiles,
    place: &ConfigPlace,
) -> Result<Vec<usize>> {
    // The last hidden state would be the normed one, which no FLUX.2-klein model reads.
    let has = |states: &[usize]| !states.is_empty() && states.iter().all(|state| (1..layers).contains(state));
    match named {
        Some(states) if has(&states) => Ok(states),
        Some(states) => {
            let encoder = dir.component(Role::TextEncoder).path();
            let what = format!(
                "text_encoder_out_layers {states:?} do not fit the text encoder in `{}`, which has {layers} layers",
                encoder.display()
            );
            let hint = "the two are of different models: name the text encoder of this one";
            Err(Error::new(what).at(place.path()).hint(hint))
        }
        None => default_out_layers(kind, layers, &dir.component(Role::TextEncoder).place()),
    }
}

/// How the model was trained: as its weights tell, else as somebody says, else as its index says.
///
/// Errors when weights and somebody contradict each other, or no model of its kind was trained so.
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
                format!("this {} is asked to run as a {said} model, and its weights are {variant}", kind.files.name);
            return Err(Error::usage(what).of(Field::Variant).hint("leave it out: the weights tell"));
        }
    }
    kind.files.variant(variant).ok_or_else(|| {
        let what = format!("there is no {} that is a {variant} model", kind.files.name);
        Error::usage(what).of(Field::Variant).hint("leave it out, or name another model")
    })
}

/// The shift of the schedule in a folder that says it.
///
/// Errors when it is none, or the schedule moves otherwise.
fn shift(dir: &ModelFiles, kind: &ModelKind) -> Result<Option<Shift>> {
    #[derive(serde::Deserialize)]
    struct Scheduler {
        shift: Option<f64>,
        #[serde(default)]
        use_dynamic_shifting: bool,
    }
    // Schedules of FLUX.2 depend on the size, by numbers that no file has.
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
    /// The shift of the schedule for an image of `tokens` tokens in `steps` steps.
    pub fn schedule_shift(&self, tokens: usize, steps: usize) -> Shift {
        self.shift.unwrap_or_else(|| (self.kind.shift)(tokens, steps))
    }

    /// Text tokens of a usual prompt, padding included.
    pub fn usual_text_tokens(&self) -> usize {
        self.kind.window.length(USUAL_TOKENS, self.max_sequence_length)
    }

    /// How many layers of the text encoder run.
    pub fn layers_to_run(&self) -> usize {
        self.out_layers.iter().copied().max().unwrap_or(0)
    }

    /// Reads `model_index.json` and the three configs; where one is missing, the shapes of the weights tell the sizes.
    ///
    /// Errors when one is missing or wrong, or they do not fit together.
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
            max_sequence_length: index.max_sequence_length.unwrap_or(kind.window.most),
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
            quantised: None,
            preview_decoder: None,
        };
        info.check(dir, &place, index.default_image_size.is_some())?;
        Ok(info)
    }

    fn check(&self, dir: &ModelFiles, place: &ConfigPlace, index_names_size: bool) -> Result<()> {
        let vocabulary = self.text_encoder.vocab_size;
        if matches!(dir.tokenizer(), TokenizerFile::Carried) && vocabulary < CARRIED_TOKENS {
            return Err(Error::new(format!(
                "the text encoder has a vocabulary of {vocabulary}, and {}'s tokenizer {CARRIED_TOKENS} tokens",
                self.kind.files.text_encoder
            ))
            .at(dir.component(Role::TextEncoder).path().display().to_string())
            .hint(format!("name the tokenizer of this text encoder with `{}`", Field::Tokenizer)));
        }
        let (own, encoder) = (self.kind.files, dir.component(Role::TextEncoder));
        let theta = self.text_encoder.rope_theta;
        if own.text_encoder_sees && theta != own.text_encoder_theta {
            let what = format!(
                "the text encoder has a rope_theta of {theta}, expected that of {}, {}",
                own.text_encoder, own.text_encoder_theta
            );
            return Err(Error::new(what).at(encoder.path().display().to_string()).hint(self.kind.encoders()));
        }
        if !own.text_encoder_sees && encoder.has_vision() {
            let what = format!("the text encoder is one that sees images, expected {}", own.text_encoder);
            return Err(Error::new(what).at(encoder.path().display().to_string()).hint(self.kind.encoders()));
        }
        let features = self.out_layers.len() * self.text_encoder.hidden_size;
        if features != self.transformer.joint_attention_dim {
            return Err(Error::new(format!(
                "the encoder in `{}` gives {} x {} = {features} features, the model in `{}` reads {}",
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
                "the transformer in `{}` has {} channels, the VAE {} latent channels; expected four times as many",
                dir.component(Role::Transformer).path().display(),
                self.transformer.in_channels,
                self.vae.latent_channels
            ))
            .at(dir.component(Role::Vae).place().path())
            .hint("the two are of different models: fetch the whole folder again"));
        }
        // A hostile folder must not exhaust memory by naming a long sequence.
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
        // What a request leaves open comes from these, and an error should not name an option that nobody gave.
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

    /// How it was trained.
    pub fn variant(&self) -> Variant {
        match (self.caches_references, self.is_distilled) {
            (true, _) => Variant::Kv,
            (false, true) => Variant::Distilled,
            (false, false) => Variant::Base,
        }
    }

    /// Makes it a distilled model, with the defaults of one.
    pub(crate) fn mark_distilled(&mut self) {
        if !self.is_distilled && self.default_steps == self.kind.base.steps {
            self.default_steps = self.kind.distilled.steps;
        }
        self.is_distilled = true;
    }

    /// Guidance scale where the request names none.
    pub fn default_guidance(&self) -> f32 {
        self.kind.defaults(self.is_distilled).guidance
    }

    /// The most text tokens that a prompt may be cut or padded to.
    pub fn longest_sequence(&self) -> usize {
        self.text_encoder.max_position_embeddings.unwrap_or(MAX_TEXT_TOKENS).min(MAX_TEXT_TOKENS)
    }

    /// What someone should know who asks for this size, if anything.
    pub(crate) fn size_note(&self, width: usize, height: usize) -> Option<String> {
        let [made_height, made_width] = self.default_image_size;
        let (is_worse, made_for) = match self.trained_sizes {
            Some(TrainedSizes { sides: [least, most], aspect_ratio }) => {
                let (short, long) = (width.min(height), width.max(height));
                let is_worse = short < least || long > most || long as f64 > aspect_ratio * short as f64;
                (is_worse, format!("sides of {least} to {most} pixels and ratios up to {aspect_ratio}:1"))
            }
            None => {
                // As floats, because the config may name sides whose product overflows.
                let ratio = (width as f64 * height as f64) / (made_width as f64 * made_height as f64);
                (ratio.max(ratio.recip()) > self.kind.area_factor, format!("{made_width}x{made_height}"))
            }
        };
        is_worse.then(|| format!("this model is made for {made_for}; images of {width}x{height} are worse"))
    }

    /// Adds a hint to the error of a tensor whose shape is wrong.
    pub(crate) fn explain(&self, error: Error) -> Error {
        error.hint(
            "weights and config.json are of different models (4B and 9B have the same tensor names): \
             fetch the folder again as a whole",
        )
    }
}
