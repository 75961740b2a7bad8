//! Flags of the second pass at a larger size, and of tiles.

use clap::{ArgAction, Args};
use flux::engine::Recipe;
use flux::input::Resize;
use flux::pipeline::Hires;

use super::upscale::UpscalerChoice;
use super::values::{decimal, no_hyphen, whole_of};

const HIRES: &str = "Second pass";

/// Flags of the second pass, and of tiles.
#[derive(Args)]
pub struct HiresArgs {
    /// Enlarge the image by this factor, and edit it at the larger size
    ///
    /// The factor is 1.25 to 4. Sides are rounded to multiples of 16.
    #[arg(help_heading = HIRES, long, value_name = "FACTOR", allow_negative_numbers = true, hide_short_help = true)]
    #[arg(value_parser = decimal::<f64>("from 1.25 to 4"))]
    hires: Option<f64>,
    /// Size of the second pass, as in 2048x2048, or the longer side
    ///
    /// If the proportions differ, the middle of the image is used.
    #[arg(help_heading = HIRES, long, value_name = "SIZE", conflicts_with = "hires", hide_short_help = true)]
    hires_size: Option<Resize>,
    /// Upscaler of the second pass: a .safetensors or .pth file, or lanczos [default: lanczos]
    #[arg(help_heading = HIRES, long, value_name = "FILE", hide_short_help = true)]
    hires_upscaler: Option<UpscalerChoice>,
    /// Edit strength of the second pass, from 0 to 1 [default: 0.5]
    ///
    /// The value is the part of the steps that runs. 0 only enlarges the image.
    #[arg(help_heading = HIRES, long, value_name = "X", allow_negative_numbers = true, hide_short_help = true)]
    #[arg(value_parser = decimal::<f64>("from 0 to 1"))]
    hires_strength: Option<f64>,
    /// Denoising steps of its schedule; the strength decides how many run [default: --steps]
    #[arg(help_heading = HIRES, long, value_name = "N", allow_negative_numbers = true, hide_short_help = true)]
    #[arg(value_parser = whole_of("steps, from 1 to 1000"))]
    hires_steps: Option<usize>,
    /// Prompt of the second pass [default: the prompt]
    #[arg(help_heading = HIRES, long, value_name = "TEXT", allow_hyphen_values = true, hide_short_help = true)]
    #[arg(value_parser = no_hyphen)]
    hires_prompt: Option<String>,
    /// Do not use the enlarged image as a reference
    ///
    /// The model then sees the image only in the noisy latents.
    #[arg(help_heading = HIRES, long, action = ArgAction::SetTrue, hide_short_help = true)]
    no_hires_reference: bool,
    /// Compute a large image in square tiles of N pixels [default: 1024 above 4 megapixels]
    ///
    /// Each step computes all tiles and averages them where they overlap. Only a second pass has tiles by default; 0
    /// is without tiles.
    #[arg(help_heading = HIRES, long, value_name = "N", allow_negative_numbers = true, hide_short_help = true)]
    #[arg(value_parser = whole_of("pixels, a multiple of 16"))]
    tile: Option<usize>,
    /// Pixels that two neighbouring tiles share [default: 128, at most a quarter of the tile]
    #[arg(help_heading = HIRES, long, value_name = "N", allow_negative_numbers = true, hide_short_help = true)]
    #[arg(value_parser = whole_of("pixels, a multiple of 16"))]
    tile_overlap: Option<usize>,
}

impl HiresArgs {
    /// Returns the recipe with the flags applied.
    pub fn apply(&self, recipe: Recipe) -> Recipe {
        let (tile, tile_overlap) = (self.tile.or(recipe.tile), self.tile_overlap.or(recipe.tile_overlap));
        let recipe = Recipe { tile, tile_overlap, ..recipe };
        let given = Hires {
            by: self.hires,
            size: self.hires_size,
            upscaler: self.hires_upscaler.as_ref().and_then(UpscalerChoice::file).map(Into::into),
            strength: self.hires_strength,
            steps: self.hires_steps,
            prompt: self.hires_prompt.clone(),
            no_reference: self.no_hires_reference,
        };
        if given == Hires::default() && self.hires_upscaler.is_none() {
            return recipe;
        }
        let base = recipe.hires.unwrap_or_default();
        let is_sized = given.by.is_some() || given.size.is_some();
        let hires = Hires {
            by: if is_sized { given.by } else { base.by },
            size: if is_sized { given.size } else { base.size },
            upscaler: if self.hires_upscaler.is_some() { given.upscaler } else { base.upscaler },
            strength: given.strength.or(base.strength),
            steps: given.steps.or(base.steps),
            prompt: given.prompt.or(base.prompt),
            no_reference: given.no_reference || base.no_reference,
        };
        Recipe { hires: Some(hires), ..recipe }
    }
}
