//! Images that begin with a part of the one before, so that frames of a video change less.

use super::Engine;
use crate::error::{Error, Result};
use crate::pipeline::{Latents, Plan, Request};
use crate::sampler::ScheduleKind;

impl Engine {
    /// The request where its image begins with a part of the final latents of another one. Where `share` is that part,
    /// the rest is the seed's noise, and noise levels fall from `1 - share`: the model's own, times that. No part, and
    /// latents of another size, leave the request as it is.
    ///
    /// Errors as [`Engine::plan`], and when the part is not from 0 to below 1, or something else gives the first
    /// latents.
    pub fn begin_with(&self, request: Request, before: &Latents, share: f32) -> Result<Request> {
        if !(0.0..1.0).contains(&share) {
            return Err(Error::usage(format!("the part of the image before is {share}, expected 0 to below 1"))
                .hint("0.2 is a little of it, 0.6 much"));
        }
        if share == 0.0 {
            return Ok(request);
        }
        if request.change.is_some() || request.start().is_some() {
            return Err(Error::usage("a part of the image before and something else give the first latents")
                .hint("leave one of them out"));
        }
        let plan = self.plan(&request)?;
        let (height, width) = self.info().latent_size(&plan);
        let shape = [self.info().transformer.in_channels, height, width];
        if before.shape() != shape || before.images() != 1 {
            return Ok(request);
        }
        let Plan { rng, seed, steps, ref schedule, .. } = plan;
        let noise = Latents::drawn(rng, seed, shape);
        let shift = self.info().schedule_shift(height * width, steps);
        let mut levels = schedule.schedule(shift, steps).sigmas;
        levels.iter_mut().for_each(|level| *level *= 1.0 - share);
        let (latents, schedule) = (Some(before.mixed(&noise, share)), ScheduleKind::Sigmas(levels));
        Ok(Request { latents, schedule, ..request })
    }
}
