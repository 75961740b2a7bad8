//! Flags of all commands that generate images.

use clap::Args;
use flux::engine::choice::{AttentionChoice, Device, Gpus, ParallelChoice, PrecisionChoice};
use flux::engine::{EngineArgs, ModelRecipe};
use flux::error::Field;
use flux::files::ModelPaths;
use flux::model::Quantization;
use flux::{Error, Result};

use super::settings::settings;
use super::{
    DEVICE, DeviceArgs, INFORMATION, ModelArgs, OUTPUT, ProgressChoice, QuantizeArgs, RecipeArgs, SignArgs,
    TimingsFormat, UpsampleArgs,
};

/// Flags of all commands that generate images.
#[derive(Args)]
pub struct DrawArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub upsample: UpsampleArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// GPUs that share each image: a number, auto or off [default: auto]
    #[arg(help_heading = DEVICE, long, value_name = "N", hide_short_help = true)]
    parallel: Option<ParallelChoice>,
    /// With --precision fp8: cache the quantized weights in a file
    ///
    /// The file is in the model's folder, and later runs load the weights from it.
    #[arg(help_heading = DEVICE, long, hide_short_help = true)]
    pub fp8_cache: bool,
    /// Do not mark the image as AI-generated in its XMP metadata, and do not sign it
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub no_provenance: bool,
    /// Store no recipe in the image: no prompt, paths or device
    ///
    /// The mark as AI-generated stays, see --no-provenance. `flux again` cannot reproduce such an image.
    #[arg(help_heading = OUTPUT, long, hide_short_help = true, conflicts_with = "embed_inputs")]
    pub no_recipe: bool,
    /// Store the input images in the output file
    ///
    /// The image can then be reproduced without them.
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub embed_inputs: bool,
    #[command(flatten)]
    pub sign: SignArgs,
    #[command(flatten)]
    pub console: ConsoleArgs,
}

/// A model and its computation options.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelChoice {
    pub paths: ModelPaths,
    /// The flag or variable that names the model, for messages.
    pub place: Option<String>,
    /// True to cache keys and values of references.
    pub kv: bool,
    pub quantize: Option<Quantization>,
    pub precision: PrecisionChoice,
    /// The data type of attention.
    pub attention: AttentionChoice,
}

/// Flags for progress, notes and reports.
#[derive(Args, Clone)]
pub struct ConsoleArgs {
    /// Print only errors, and the seed if it is random
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
    /// Print more details, such as the device
    #[arg(help_heading = INFORMATION, short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print the time of each stage and the peak memory
    #[arg(help_heading = INFORMATION, long, value_name = "FORMAT", value_enum)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "text", hide_short_help = true)]
    pub timings: Option<TimingsFormat>,
    /// Progress display
    #[arg(help_heading = INFORMATION, long, value_name = "KIND", value_enum, default_value_t = ProgressChoice::Auto)]
    #[arg(hide_short_help = true)]
    pub progress: ProgressChoice,
    /// Print one JSON object per image, or for an error, to stdout
    #[arg(help_heading = INFORMATION, long, conflicts_with = "timings", hide_short_help = true)]
    pub json: bool,
    /// Panic after the first image is computed
    #[cfg(debug_assertions)]
    #[arg(help_heading = INFORMATION, long, hide = true)]
    pub panic_for_test: bool,
}

impl ConsoleArgs {
    /// Returns the flag that writes other output to standard output, if any.
    pub fn on_stdout(&self) -> Option<&'static str> {
        match self.timings {
            Some(TimingsFormat::Json) => Some("--timings=json"),
            _ if self.json => Some("--json"),
            _ => None,
        }
    }
}

impl DrawArgs {
    /// Returns the model and its options from the flags, with `base` for missing values.
    ///
    /// Errors when `base` names an unknown weight format.
    pub fn model(&self, base: Option<&ModelRecipe>) -> Result<ModelChoice> {
        let (paths, place) = self.model.paths(base.map(|base| &base.paths));
        let quantize = match base.and_then(|base| base.quantize.as_deref()) {
            Some(formats) if self.quantize.formats().is_none() => {
                Some(Quantization::read(formats).map_err(|e| Error::usage(e).for_field(Field::Quantize))?.0)
            }
            _ => self.quantize.formats(),
        };
        Ok(ModelChoice {
            paths,
            place,
            kv: self.recipe.images.kv || base.is_some_and(|base| base.kv),
            quantize,
            precision: match base {
                Some(base) => self.on.precision.unwrap_or_else(|| base.precision.recorded()),
                None => self.on.precision().unwrap_or_default(),
            },
            attention: self.on.attention.unwrap_or(base.map_or_else(Default::default, |base| base.attention)),
        })
    }

    /// Returns the arguments for opening a model, as far as flags determine them.
    ///
    /// Errors as [`SignArgs::signer`].
    pub fn engine(&self, model: &ModelChoice) -> Result<EngineArgs> {
        Ok(EngineArgs {
            caches_references: model.kv,
            quantize: model.quantize,
            precision: model.precision,
            attention: model.attention,
            parallel: self.parallel(),
            signer: self.sign.signer()?,
            ..self.on.engine()
        })
    }

    /// Returns the parallel mode from the flag, otherwise from the settings.
    fn parallel(&self) -> ParallelChoice {
        self.parallel.or_else(|| settings().parallel()).unwrap_or_default()
    }

    /// Returns `true` if several GPUs may generate one of `count` images together.
    pub fn may_share_images(&self, count: u64) -> bool {
        self.parallel().may_share(self.on.device().count(), count as usize)
    }

    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self, prompt_reads_stdin: bool) -> Result<()> {
        self.recipe.check(prompt_reads_stdin)?;
        self.model.check_kv(self.recipe.images.kv)?;
        if self.fp8_cache && self.on.precision() != Some(PrecisionChoice::Fp8) {
            return Err(
                Error::usage("`--fp8-cache` requires `--precision fp8`").hint("use both, or leave out `--fp8-cache`")
            );
        }
        if self.fp8_cache && self.quantize.formats().is_some_and(|formats| formats.transformer.is_some()) {
            return Err(Error::usage(
                "`--fp8-cache` cannot be used with `--quantize`: the cache stores the weights of the model files",
            )
            .hint("leave one of them out"));
        }
        self.on.check()?;
        match &self.on.device() {
            Device::Cuda(gpus @ Gpus::Numbers(numbers)) => self.parallel().check_enough(numbers.len(), gpus),
            Device::Cuda(Gpus::All) => Ok(()),
            _ => self.parallel().check_alone(),
        }
    }
}
