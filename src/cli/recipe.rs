//! Flags that make a recipe: what to draw, how, and from which files.

use clap::Args;
use flux::engine::Recipe;
use flux::{Error, Result};

use super::values::{SIDE, Seed, Size, decimal, whole_of};
use super::{AdapterArgs, ImageArgs, SAMPLING, SamplerArgs, TensorArgs, values};

/// What an image is made of, without its prompt. A flag that is given takes the place of what a recipe says.
#[derive(Args)]
pub struct RecipeArgs {
    /// Width in pixels, rounded down to a multiple of 16 [default: the first input's, else the model's]
    #[arg(help_heading = SAMPLING, short = 'W', long, value_name = "PIXELS", value_parser = whole_of(SIDE))]
    #[arg(hide_short_help = true, allow_negative_numbers = true)]
    width: Option<usize>,
    /// Height in pixels, rounded down to a multiple of 16 [default: the first input's, else the model's]
    #[arg(help_heading = SAMPLING, short = 'H', long, value_name = "PIXELS", value_parser = whole_of(SIDE))]
    #[arg(hide_short_help = true, allow_negative_numbers = true)]
    height: Option<usize>,
    /// Size, as in 768x512, or the side of a square
    #[arg(help_heading = SAMPLING)]
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["width", "height"], allow_negative_numbers = true)]
    size: Option<Size>,
    /// Denoising steps [default: 4 when distilled, else 50]
    #[arg(help_heading = SAMPLING, short, long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole_of("steps, from 1 to 1000"))]
    pub steps: Option<usize>,
    /// Seed: one seed, one image [default: random]
    ///
    /// random or -1 draws one. Seeds repeat after 2^32, as in the reference.
    #[arg(help_heading = SAMPLING)]
    #[arg(short = 'S', long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<Seed>,
    /// How strongly to follow the prompt
    ///
    /// 1 is without guidance; only undistilled models use it [default: the model's].
    #[arg(help_heading = SAMPLING, short, long, value_name = "SCALE", allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f32>("from 0 to 1000"))]
    guidance: Option<f32>,
    #[command(flatten)]
    pub images: ImageArgs,
    #[command(flatten)]
    pub sampler: SamplerArgs,
    #[command(flatten)]
    pub tensors: TensorArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
}

impl RecipeArgs {
    /// The recipe, changed as the flags say. The seed is that of the recipe where none is given.
    ///
    /// Errors when the strength of an adapter is no number.
    pub fn apply(&self, recipe: Recipe) -> Result<Recipe> {
        let recipe = Recipe {
            width: self.size.map(|size| size.width).or(self.width).or(recipe.width),
            height: self.size.map(|size| size.height).or(self.height).or(recipe.height),
            steps: self.steps.or(recipe.steps),
            seed: self.seed.map_or(recipe.seed, Seed::value),
            guidance: self.guidance.or(recipe.guidance),
            ..recipe
        };
        self.adapters.apply(self.tensors.apply(self.images.apply(self.sampler.apply(recipe))))
    }

    /// Errors where flags contradict each other in a way that neither clap nor the recipe tells.
    pub fn check(&self, prompt_reads_stdin: bool) -> Result<()> {
        self.images.check(prompt_reads_stdin)?;
        if self.adapters.named().into_iter().any(flux::input::is_stdin) {
            return Err(Error::usage(format!("`-`: {}", values::NO_HYPHEN)).at("--lora"));
        }
        Ok(())
    }
}
