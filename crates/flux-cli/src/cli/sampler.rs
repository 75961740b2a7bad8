//! Flags for the sampler, except steps, seed and guidance.

use clap::Args;
use flux::engine::Recipe;
use flux::sampler::{Rng, ScheduleKind, Variation, Variety};

use super::prompt::without_ends;
use super::values::{no_hyphen, whole_of};
use super::{PROMPT, SAMPLING};

/// Flags for the sampler.
#[derive(Args)]
pub struct SamplerArgs {
    /// Noise schedule: flow, linear, power:A or sigmas:1,0.8,..
    ///
    /// flow is the model's own schedule. linear and power:A are not shifted by the image size, as 1 - (i/N)^A.
    /// sigmas:1,0.8,.. has the noise levels themselves, one for each step [default: flow].
    #[arg(help_heading = SAMPLING, long, value_name = "KIND", hide_short_help = true)]
    schedule: Option<ScheduleKind>,
    /// Vary the image of another seed: SEED:X, X from 0 to 1
    ///
    /// 0 is the image of SEED, and 1 that of --seed. With --count, each image is another variation.
    #[arg(help_heading = SAMPLING, long, value_name = "SEED:X", hide_short_help = true)]
    variation: Option<Variation>,
    /// Vary images of a prompt more: noise on its features, X[:PERCENT[:UNTIL]]
    ///
    /// Adds noise of X standard deviations, from 0 to 2, to PERCENT of the values, from 0 to 100. It depends on the
    /// seed. Only the first steps read it: the share UNTIL, from 0 to 1, and at least one. Try 0.5 to 1.5, or 0.1 to
    /// 0.6 as X:100:1 [default: 0:50:0.2].
    #[arg(help_heading = SAMPLING, long, value_name = "X", hide_short_help = true)]
    variety: Option<Variety>,
    /// Random numbers for the noise: torch or portable [default: torch]
    ///
    /// torch gives the noise of the reference. With portable, a seed gives a similar composition at another size.
    #[arg(help_heading = SAMPLING, long, value_name = "KIND", hide_short_help = true)]
    rng: Option<Rng>,
    /// Negative prompt, for undistilled models
    #[arg(help_heading = PROMPT, long, value_name = "TEXT", allow_hyphen_values = true, value_parser = no_hyphen)]
    #[arg(hide_short_help = true)]
    negative: Option<String>,
    /// Length of the prompt in tokens [default: the model's, 512]
    ///
    /// The prompt is cut or padded to this length. The model also reads the padding, so another length gives another
    /// image.
    #[arg(help_heading = PROMPT, long, value_name = "N", allow_negative_numbers = true, hide_short_help = true)]
    #[arg(value_parser = whole_of("tokens"))]
    max_sequence_length: Option<usize>,
}

impl SamplerArgs {
    /// Returns the recipe with the flags applied.
    pub fn apply(&self, recipe: Recipe) -> Recipe {
        Recipe {
            variation: self.variation.or(recipe.variation),
            variety: self.variety.or(recipe.variety),
            rng: self.rng.unwrap_or(recipe.rng),
            schedule: self.schedule.clone().unwrap_or(recipe.schedule),
            negative: self.negative.as_deref().map(without_ends).or(recipe.negative),
            max_sequence_length: self.max_sequence_length.or(recipe.max_sequence_length),
            ..recipe
        }
    }
}
