//! Flags of everything that makes images.

use clap::Args;
use flux::engine::choice::{AttentionChoice, DeviceChoice, Gpus, ParallelChoice, PrecisionChoice};
use flux::engine::{EngineArgs, ModelRecipe};
use flux::error::Field;
use flux::files::ModelPaths;
use flux::model::Quantisation;
use flux::{Error, Result};

use super::settings::settings;
use super::{
    DEVICE, DeviceArgs, INFORMATION, ModelArgs, OUTPUT, ProgressChoice, QuantizeArgs, RecipeArgs, TimingsFormat,
};

/// What images are made of, with what, and what is told of it.
#[derive(Args)]
pub struct DrawArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// How many of several GPUs make each image together: a number, auto or off [default: auto]
    #[arg(help_heading = DEVICE, long, value_name = "N", hide_short_help = true)]
    parallel: Option<ParallelChoice>,
    /// With --precision fp8: cache the quantised weights in a file in the model's folder, and load them from it later
    #[arg(help_heading = DEVICE, long, hide_short_help = true)]
    pub fp8_cache: bool,
    /// Do not say in the image's XMP that a model made it
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub no_provenance: bool,
    /// Put the images that are drawn from into the image's file, so that it is made again without them
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub embed_inputs: bool,
    #[command(flatten)]
    pub console: ConsoleArgs,
}

/// A model, and how it computes.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelChoice {
    pub paths: ModelPaths,
    /// What names the model, for messages.
    pub place: Option<String>,
    /// Whether keys and values of references are made once.
    pub kv: bool,
    pub quantise: Option<Quantisation>,
    pub precision: PrecisionChoice,
    /// In which type attention is computed.
    pub attention: AttentionChoice,
}

/// What is told of the work.
#[derive(Args, Clone)]
pub struct ConsoleArgs {
    /// Print nothing but errors, and the seed when it was random
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
    /// Print more, such as the device
    #[arg(help_heading = INFORMATION, short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print how long each stage took, and the most memory used: text to stderr, json to stdout
    #[arg(help_heading = INFORMATION, long, value_name = "FORMAT", value_enum)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "text", hide_short_help = true)]
    pub timings: Option<TimingsFormat>,
    /// How to show the stages: bars on a terminal, plain lines, or nothing; auto shows lines elsewhere, of long runs
    #[arg(help_heading = INFORMATION, long, value_name = "KIND", value_enum, default_value_t = ProgressChoice::Auto)]
    #[arg(hide_short_help = true)]
    pub progress: ProgressChoice,
    /// Print one JSON object to stdout for each image, and for an error
    #[arg(help_heading = INFORMATION, long, conflicts_with = "timings", hide_short_help = true)]
    pub json: bool,
    /// Panic once the first image is computed
    #[cfg(debug_assertions)]
    #[arg(help_heading = INFORMATION, long, hide = true)]
    pub panic_for_test: bool,
}

impl ConsoleArgs {
    /// What else goes to standard output, if anything.
    pub fn on_stdout(&self) -> Option<&'static str> {
        match self.timings {
            Some(TimingsFormat::Json) => Some("--timings=json"),
            _ if self.json => Some("--json"),
            _ => None,
        }
    }
}

impl DrawArgs {
    /// The model, and how it computes: what the flags say, else what `base` says.
    ///
    /// Errors when `base` names formats of weights that there are not.
    pub fn model(&self, base: Option<&ModelRecipe>) -> Result<ModelChoice> {
        let (paths, place) = self.model.paths(base.map(|base| &base.paths));
        let quantise = match base.and_then(|base| base.quantize.as_deref()) {
            Some(formats) if self.quantize.formats().is_none() => {
                Some(Quantisation::read(formats).map_err(|e| Error::usage(e).of(Field::Quantize))?.0)
            }
            _ => self.quantize.formats(),
        };
        Ok(ModelChoice {
            paths,
            place,
            kv: self.recipe.images.kv || base.is_some_and(|base| base.kv),
            quantise,
            precision: match base {
                Some(base) => self.on.precision.unwrap_or(base.precision),
                None => self.on.precision().unwrap_or_default(),
            },
            attention: self.on.attention.unwrap_or(base.map_or_else(Default::default, |base| base.attention)),
        })
    }

    /// How a model is opened, as far as the flags say it.
    pub fn engine(&self, model: &ModelChoice) -> EngineArgs {
        EngineArgs {
            caches_references: model.kv,
            quantise: model.quantise,
            precision: model.precision,
            attention: model.attention,
            parallel: self.parallel(),
            ..self.on.engine()
        }
    }

    /// How many GPUs make each image together: what the flag says, else what is set.
    fn parallel(&self) -> ParallelChoice {
        self.parallel.or_else(|| settings().parallel()).unwrap_or_default()
    }

    /// Whether GPUs may make one of `count` images together.
    pub fn may_share_images(&self, count: u64) -> bool {
        self.parallel().may_share(self.on.device().count(), count as usize)
    }

    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self, prompt_reads_stdin: bool) -> Result<()> {
        self.recipe.check(prompt_reads_stdin)?;
        self.model.check_kv(self.recipe.images.kv)?;
        if self.fp8_cache && self.on.precision() != Some(PrecisionChoice::Fp8) {
            return Err(
                Error::usage("`--fp8-cache` is for `--precision fp8`").hint("give both, or leave out `--fp8-cache`")
            );
        }
        if self.fp8_cache && self.quantize.formats().is_some_and(|formats| formats.transformer.is_some()) {
            return Err(Error::usage(
                "`--fp8-cache` holds the weights of the model's files, and `--quantize` other ones",
            )
            .hint("leave one of them out"));
        }
        self.on.check()?;
        match &self.on.device() {
            DeviceChoice::Cuda(gpus @ Gpus::Numbers(numbers)) => self.parallel().check_enough(numbers.len(), gpus),
            DeviceChoice::Cuda(Gpus::All) => Ok(()),
            DeviceChoice::Auto | DeviceChoice::Cpu => self.parallel().check_alone(),
        }
    }
}
