//! Images that begin with a part of the previous image, so that video frames change less.

use super::Engine;
use crate::error::{Error, Result};
use crate::pipeline::{Latents, Plan, Request};
use crate::sampler::ScheduleKind;

impl Engine {
    /// Returns a request whose image begins with a part of the final latents of another image. `share` is that part.
    /// The rest is the seed's noise, and the model's own noise levels are multiplied by `1 - share`. The request is
    /// unchanged if `share` is 0, or if the latents have another size.
    ///
    /// Errors as [`Engine::plan`], and if `share` is not from 0 to below 1, or something else provides the first
    /// latents.
    pub fn begin_with(&self, request: Request, before: &Latents, share: f32) -> Result<Request> {
        if !(0.0..1.0).contains(&share) {
            return Err(Error::usage(format!("the share of the previous image is {share}, expected 0 to below 1"))
                .hint("use 0.2 for a little of it, 0.6 for much of it"));
        }
        if share == 0.0 {
            return Ok(request);
        }
        if request.change.is_some() || request.start().is_some() || request.hires.is_some() {
            return Err(Error::usage(
                "the previous image cannot be used with another source of the first latents or a second pass",
            )
            .hint("leave one of them out"));
        }
        let plan = self.plan(&request)?;
        let (height, width) = self.info().latent_size(&plan);
        let shape = [self.info().transformer.in_channels, height, width];
        if before.shape() != shape || before.images() != 1 {
            return Ok(request);
        }
        let Plan { steps, ref schedule, .. } = plan;
        let noise = Latents::drawn(plan.start(), shape);
        let shift = self.info().schedule_shift(height * width, steps);
        let mut levels = schedule.schedule(shift, steps).sigmas;
        levels.iter_mut().for_each(|level| *level *= 1.0 - share);
        let (latents, schedule) = (Some(before.mixed(&noise, share)), ScheduleKind::Sigmas(levels));
        Ok(Request { latents, schedule, ..request })
    }
}
