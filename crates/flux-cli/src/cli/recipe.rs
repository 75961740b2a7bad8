//! Flags that form a recipe: prompt, sampling and input files.

use clap::Args;
use flux::engine::Recipe;
use flux::input::Resize;
use flux::pipeline::Transparency;
use flux::{Error, Result};

use super::boxes::{BoxArgs, RegionArgs};
use super::expand::ExpandArgs;
use super::hires::HiresArgs;
use super::values::{SIDE, Seed, SizeOrSide, decimal, whole_of};
use super::{AdapterArgs, ImageArgs, OUTPUT, SAMPLING, SamplerArgs, TensorArgs, values};

/// Flags that form a recipe, except the prompt. A flag overrides a given recipe.
#[derive(Args)]
pub struct RecipeArgs {
    /// Width in pixels [default: the first input's, else the model's]
    ///
    /// The width is rounded down to a multiple of 16.
    #[arg(help_heading = SAMPLING, short = 'W', long, value_name = "PIXELS", value_parser = whole_of(SIDE))]
    #[arg(hide_short_help = true, allow_negative_numbers = true)]
    width: Option<usize>,
    /// Height in pixels [default: the first input's, else the model's]
    ///
    /// The height is rounded down to a multiple of 16.
    #[arg(help_heading = SAMPLING, short = 'H', long, value_name = "PIXELS", value_parser = whole_of(SIDE))]
    #[arg(hide_short_help = true, allow_negative_numbers = true)]
    height: Option<usize>,
    /// Size, as in 768x512, or one side, as in 512
    ///
    /// A single number is the side of a square, or with --input the longer side, with the proportions of the first
    /// input. With --mask, --strength or --extend, the input is first scaled to the size; if the proportions differ, it
    /// is cropped to its centre.
    #[arg(help_heading = SAMPLING)]
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["width", "height"], allow_negative_numbers = true)]
    size: Option<SizeOrSide>,
    /// Denoising steps [default: 4 if distilled, else 50]
    #[arg(help_heading = SAMPLING, short, long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole_of("steps, from 1 to 1000"))]
    pub steps: Option<usize>,
    /// Seed: equal seeds give equal images [default: random]
    ///
    /// random or -1 chooses a random seed. Seeds repeat after 2^32, as in the reference.
    #[arg(help_heading = SAMPLING)]
    #[arg(short = 'S', long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<Seed>,
    /// Guidance scale: how closely to follow the prompt
    ///
    /// 1 disables guidance. Only undistilled models use guidance [default: the model's].
    #[arg(help_heading = SAMPLING, short, long, value_name = "SCALE", allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f32>("from 0 to 1000"))]
    guidance: Option<f32>,
    /// Remove the background; the file is a PNG or a WebP with alpha
    ///
    /// The prompt also asks for a plain white background, unless it is about one. edit, the default, edits the image to
    /// have another background, and compares both: it takes twice as long, and keeps glass and hair. key removes what
    /// has the colour of the border and is connected with it.
    #[arg(help_heading = OUTPUT, long, value_name = "HOW", hide_short_help = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "edit")]
    transparent: Option<Transparency>,
    #[command(flatten)]
    pub expand: ExpandArgs,
    #[command(flatten)]
    boxes: BoxArgs,
    #[command(flatten)]
    regions: RegionArgs,
    #[command(flatten)]
    pub images: ImageArgs,
    #[command(flatten)]
    hires: HiresArgs,
    #[command(flatten)]
    pub sampler: SamplerArgs,
    #[command(flatten)]
    pub tensors: TensorArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
}

impl RecipeArgs {
    /// Returns the recipe with the flags applied. Without a seed flag, the recipe's seed is kept.
    ///
    /// Errors when the strength of an adapter is not a number, or when a file of boxes is not one.
    pub fn apply(&self, recipe: Recipe) -> Result<Recipe> {
        let recipe = Recipe {
            steps: self.steps.or(recipe.steps),
            seed: self.seed.map_or(recipe.seed, Seed::value),
            guidance: self.guidance.or(recipe.guidance),
            transparent: self.transparent.unwrap_or(recipe.transparent),
            ..recipe
        };
        let recipe = self.regions.apply(self.boxes.apply(self.hires.apply(self.sampler.apply(recipe)))?);
        self.adapters.apply(self.tensors.apply(self.sized(self.images.apply(recipe))))
    }

    /// Returns the recipe with the requested size. For edits, this scales the input image.
    fn sized(&self, recipe: Recipe) -> Recipe {
        let size = self.size.map(SizeOrSide::size);
        let (width, height) =
            (size.map(|size| size.width).or(self.width), size.map(|size| size.height).or(self.height));
        if (width, height) == (None, None) {
            return recipe;
        }
        let resize = match self.size {
            Some(SizeOrSide::Side(side)) if !recipe.inputs.is_empty() => Some(Resize::Longest(side)),
            _ if recipe.changes() => Some(Resize::Sides([width, height])),
            _ => None,
        };
        match resize {
            Some(_) => Recipe { resize, width: None, height: None, ..recipe },
            None => Recipe { resize, width: width.or(recipe.width), height: height.or(recipe.height), ..recipe },
        }
    }

    /// Errors if flags contradict each other in a way that neither clap nor the recipe reports.
    pub fn check(&self, prompt_reads_stdin: bool) -> Result<()> {
        self.images.check(prompt_reads_stdin)?;
        if self.adapters.named().iter().any(|file| flux::input::is_stdin(file)) {
            return Err(Error::usage(format!("`-`: {}", values::NO_HYPHEN)).at("--lora"));
        }
        Ok(())
    }
}
