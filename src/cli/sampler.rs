//! Flags that steer the sampler beyond steps, seed and guidance.

use clap::Args;
use flux::pipeline::{Plan, Request};
use flux::sampler::ScheduleKind;

use super::SAMPLING;

/// How the sampler goes from noise to an image.
#[derive(Args)]
pub struct SamplerArgs {
    /// How the noise levels fall: flow is the model's own, linear and power:A are not shifted by the size, as 1 -
    /// (i/N)^A; sigmas:1,0.8,.. are the levels themselves, one for each step
    #[arg(help_heading = SAMPLING, long, value_name = "KIND", default_value = "flow")]
    schedule: ScheduleKind,
}

impl SamplerArgs {
    /// Adds what the flags ask for.
    pub fn apply(&self, request: Request) -> Request {
        Request { schedule: self.schedule.clone(), ..request }
    }
}

/// What a PNG says of the sampler, where it is not as usual.
pub fn facts(plan: &Plan) -> Vec<(&'static str, String)> {
    let schedule = (plan.schedule != ScheduleKind::default()).then(|| ("schedule", plan.schedule.to_string()));
    schedule.into_iter().collect()
}
