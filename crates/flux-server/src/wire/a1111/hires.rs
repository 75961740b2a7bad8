//! Fields of `txt2img` for the second pass, "Hires. fix".

use flux::input::{Resize, in_cells};
use flux::pipeline::Hires;
use serde_json::Value;

use super::reading::Reading;
use crate::http::error::{Result, shown};

/// Max side of the second pass.
const MAX_SIDE: u64 = 8192;
/// The values of fields without effect that request nothing.
const SAME: [&str; 3] = ["", "none", "use same checkpoint"];
/// Fields of the second pass without effect.
const LOST: [&str; 3] = ["hr_negative_prompt", "hr_checkpoint_name", "hr_cfg"];

impl Reading<'_> {
    /// Returns the second pass, if the request enables it.
    ///
    /// Errors if a field is invalid.
    pub(super) fn hires(&mut self, is_distilled: bool) -> Result<Option<Hires>> {
        if self.whole("enable_hr", 0..=1)? != Some(1) {
            let samplers = ["hr_sampler_name", "hr_scheduler"];
            samplers.iter().for_each(|name| drop(self.fields.remove(*name)));
            return Ok(None);
        }
        let scale = self.number("hr_scale", 1.25..=4.0)?;
        let sides = [self.whole("hr_resize_x", 0..=MAX_SIDE)?, self.whole("hr_resize_y", 0..=MAX_SIDE)?];
        let size = match sides.map(|side| side.filter(|side| *side > 0).map(|side| side as usize)) {
            [None, None] => None,
            sides => Some(Resize::Sides(sides.map(|side| side.map(in_cells)))),
        };
        let steps = self.whole("hr_second_pass_steps", 0..=1000)?.filter(|steps| *steps > 0);
        let upscaler = self.text("hr_upscaler")?.unwrap_or_default();
        // Latents of these models cannot be enlarged.
        let is_latent = upscaler.to_lowercase().starts_with("latent");
        if is_latent {
            self.notes.push(format!("hr_upscaler `{}`: pixels are enlarged, with Lanczos", shown(&upscaler)));
        }
        let is_named = !is_latent && !matches!(&*upscaler.to_lowercase(), "" | "none");
        let prompt = self.text("hr_prompt")?.filter(|prompt| !prompt.trim().is_empty());
        for name in LOST {
            let Some(value) = self.fields.remove(name).filter(|value| !value.is_null()) else { continue };
            if value.as_str().is_none_or(|text| !SAME.contains(&&*text.trim().to_lowercase())) && !is_one(&value) {
                self.lost.push(name.to_string());
            }
        }
        Ok(Some(Hires {
            by: if size.is_some() { None } else { Some(scale.unwrap_or(2.0)) },
            size,
            upscaler: is_named.then(|| upscaler.into()),
            strength: self.number("denoising_strength", 0.0..=1.0)?,
            steps: self.useful_steps("hr_second_pass_steps", steps, is_distilled),
            prompt: prompt.map(|prompt| {
                let prompt = self.adapters(&prompt).0;
                self.words(&prompt)
            }),
            no_reference: false,
        }))
    }
}

/// Returns `true` for the guidance scale of distilled models.
fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}
