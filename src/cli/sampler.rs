//! Flags that steer the sampler beyond steps, seed and guidance.

use clap::Args;
use flux::engine::Recipe;
use flux::sampler::{Rng, ScheduleKind};

use super::prompt::without_ends;
use super::values::{no_hyphen, whole_of};
use super::{PROMPT, SAMPLING};

/// How the sampler goes from noise to an image.
#[derive(Args)]
pub struct SamplerArgs {
    /// How the noise levels fall: flow is the model's own, linear and power:A are not shifted by the size, as 1 -
    /// (i/N)^A; sigmas:1,0.8,.. are the levels themselves, one for each step [default: flow]
    #[arg(help_heading = SAMPLING, long, value_name = "KIND", hide_short_help = true)]
    schedule: Option<ScheduleKind>,
    /// How the seed becomes noise: torch as the reference does, portable so that a seed gives a similar composition at
    /// another size [default: torch]
    #[arg(help_heading = SAMPLING, long, value_name = "KIND", hide_short_help = true)]
    rng: Option<Rng>,
    /// What to lean away from, of undistilled models
    #[arg(help_heading = PROMPT, long, value_name = "TEXT", allow_hyphen_values = true, value_parser = no_hyphen)]
    negative: Option<String>,
    /// Tokens that the prompt is cut or padded to; the model reads the padding too, so another number gives another
    /// image [default: the model's, 512]
    #[arg(help_heading = PROMPT, long, value_name = "N", allow_negative_numbers = true, hide_short_help = true)]
    #[arg(value_parser = whole_of("tokens"))]
    max_sequence_length: Option<usize>,
}

impl SamplerArgs {
    /// Changes what the flags ask for.
    pub fn apply(&self, recipe: Recipe) -> Recipe {
        Recipe {
            rng: self.rng.unwrap_or(recipe.rng),
            schedule: self.schedule.clone().unwrap_or(recipe.schedule),
            negative: self.negative.as_deref().map(without_ends).or(recipe.negative),
            max_sequence_length: self.max_sequence_length.or(recipe.max_sequence_length),
            ..recipe
        }
    }
}
