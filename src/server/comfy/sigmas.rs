//! Noise levels as ComfyUI's schedulers make them.
//!
//! Source: ComfyUI's comfy/samplers.py, comfy/model_sampling.py (`ModelSamplingFlux`), and comfy_extras/nodes_flux.py.

use flux::sampler::{Schedule, ScheduleKind, empirical_shift};

/// The most steps of a schedule.
pub const MOST_STEPS: u64 = 1000;
/// The shift of FLUX.2 models where a scheduler reads it of the model, and the levels that it picks from.
const SHIFT: f64 = 2.02;
const LEVELS: usize = 10_000;

/// The levels of a sampler.
#[derive(Debug, Clone, PartialEq)]
pub struct Sigmas {
    pub levels: Levels,
    pub steps: usize,
    /// Where sampling begins.
    pub first: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Levels {
    /// Those of `Flux2Scheduler` for so many tokens; the model's own where its image has as many.
    Flow { tokens: usize },
    /// All of them, without the 0 at the end.
    Given(Vec<f32>),
}

impl Sigmas {
    /// `Flux2Scheduler`, of pixels.
    pub fn flux2(steps: u64, width: u64, height: u64) -> Self {
        let tokens = ((width * height) as f64 / 256.0).round_ties_even() as usize;
        Self { levels: Levels::Flow { tokens }, steps: steps as usize, first: 0 }
    }

    /// `BasicScheduler` and the schedulers of `KSampler`; `denoise` runs the last `steps` of more.
    ///
    /// Errors when nothing would run, or too much.
    pub fn basic(scheduler: &str, steps: u64, denoise: f64) -> Result<Self, String> {
        let all = match denoise {
            denoise if denoise > 0.9999 => steps,
            denoise if denoise > 0.0 => (steps as f64 / denoise) as u64,
            _ => return Err("a denoise of 0 leaves no step".to_string()),
        };
        if all > MOST_STEPS {
            return Err(format!("{steps} steps at this denoise are the last of {all}, expected at most {MOST_STEPS}"));
        }
        let (all, first) = (all as usize, (all - steps) as usize);
        Ok(Self { levels: Levels::Given(levels(scheduler, all)), steps: all, first })
    }

    /// The levels from a step on.
    ///
    /// Errors when none is left.
    pub fn from(&self, step: u64) -> Result<Self, String> {
        let first = self.first + step as usize;
        if first >= self.steps {
            return Err(format!("the levels have {} steps, and {step} are left out", self.steps - self.first));
        }
        Ok(Self { first, ..self.clone() })
    }

    /// The last part of the levels, as `SplitSigmasDenoise` cuts it off.
    ///
    /// Errors when none is left.
    pub fn last(&self, denoise: f64) -> Result<Self, String> {
        let steps = self.steps - self.first;
        let kept = (steps as f64 * denoise).round_ties_even() as usize;
        self.from(steps.saturating_sub(kept) as u64)
    }

    /// The schedule of an image of so many tokens.
    pub fn schedule(&self, of_image: usize) -> ScheduleKind {
        match &self.levels {
            Levels::Flow { tokens } if *tokens == of_image => ScheduleKind::Flow,
            Levels::Flow { tokens } => {
                let mut sigmas = Schedule::new(empirical_shift(*tokens, self.steps), self.steps).sigmas;
                sigmas.pop();
                ScheduleKind::Sigmas(sigmas)
            }
            Levels::Given(levels) => ScheduleKind::Sigmas(levels.clone()),
        }
    }

    /// The strength of a change that begins at the first step; 1 where that is the first of all.
    pub fn strength(&self) -> f64 {
        let all = self.steps as f64;
        let runs = (self.steps - self.first) as f64;
        // The engine leaves out `all - all * strength` steps, rounded down.
        let exact = runs / all;
        let leaves_out = (all - all * exact).max(0.0) as usize;
        if leaves_out == self.first { exact } else { (runs - 0.5) / all }
    }
}

/// All levels of a scheduler that reads the shift of the model.
fn levels(scheduler: &str, steps: usize) -> Vec<f32> {
    let shifted = |time: f64| (SHIFT.exp() / (SHIFT.exp() + (1.0 / time - 1.0))) as f32;
    let least = f64::from(shifted(1.0 / LEVELS as f64));
    let even = |step: usize, of: usize| 1.0 + (least - 1.0) * step as f64 / of.max(1) as f64;
    let level = |step: usize| match scheduler {
        "sgm_uniform" => shifted(even(step, steps)),
        "normal" => shifted(even(step, steps - 1)),
        // `simple`
        _ => {
            let down = (step as f64 * (LEVELS as f64 / steps as f64)) as usize;
            shifted((LEVELS - down) as f64 / LEVELS as f64)
        }
    };
    (0..steps).map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_comfyui() {
        // By hand: exp(2.02) / (exp(2.02) + 1 / t - 1) at t = 1, 0.75, 0.5, 0.25.
        let Levels::Given(simple) = Sigmas::basic("simple", 4, 1.0).unwrap().levels else { panic!() };
        for (level, expected) in simple.iter().zip([1.0, 0.957_656, 0.882_880, 0.715_304]) {
            assert!((level - expected).abs() < 1e-4, "{simple:?}");
        }
        let half = Sigmas::basic("simple", 4, 0.5).unwrap();
        assert_eq!((half.steps, half.first), (8, 4));
        assert!(Sigmas::basic("simple", 4, 0.0).is_err() && Sigmas::basic("simple", 400, 0.1).is_err());
        for scheduler in ["simple", "sgm_uniform", "normal"] {
            for steps in [1, 2, 7, 50] {
                let sigmas = Sigmas::basic(scheduler, steps, 1.0).unwrap();
                sigmas.schedule(16).check().unwrap_or_else(|e| panic!("{scheduler} {steps}: {e}"));
            }
        }
    }

    #[test]
    fn the_schedule_of_the_image_is_the_model_s_own() {
        let sigmas = Sigmas::flux2(4, 1024, 1024);
        assert_eq!(sigmas.schedule(4096), ScheduleKind::Flow);
        assert!(matches!(sigmas.schedule(16), ScheduleKind::Sigmas(levels) if levels.len() == 4 && levels[0] == 1.0));
    }

    #[test]
    fn a_part_begins_where_it_says() {
        for steps in 1..60 {
            let sigmas = Sigmas::flux2(steps, 64, 64);
            for step in 0..steps {
                let part = sigmas.from(step).unwrap();
                let all = steps as f64;
                let left_out = (all - (all * part.strength()).min(all)).max(0.0) as u64;
                assert_eq!(left_out, step, "of {steps}");
            }
            assert!(sigmas.from(steps).is_err());
        }
        let sigmas = Sigmas::flux2(4, 64, 64);
        assert_eq!((sigmas.last(0.5).unwrap().first, sigmas.last(1.0).unwrap().first), (2, 0));
        assert!(sigmas.last(0.0).is_err());
    }
}
