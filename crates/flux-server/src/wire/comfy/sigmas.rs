//! Noise levels as computed by ComfyUI's schedulers.
//!
//! Source: ComfyUI's comfy/samplers.py, comfy/model_sampling.py (`ModelSamplingFlux`), and comfy_extras/nodes_flux.py.

use flux::sampler::{Schedule, ScheduleKind, empirical_shift};

/// Max steps of a schedule.
pub const MAX_STEPS: u64 = 1000;
/// The max absolute shift. Beyond it, all levels are equal.
const MAX_SHIFT: f64 = 12.0;

/// The noise levels of a model, from which schedulers pick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// The logarithm of the shift.
    shift: f64,
    levels: usize,
}

impl Default for Sampling {
    /// The levels of FLUX.2 models.
    fn default() -> Self {
        Self { shift: 2.02, levels: 10_000 }
    }
}

impl Sampling {
    /// Returns the levels of `ModelSamplingFlux`.
    ///
    /// Errors if the shift is out of range.
    pub fn flux(max_shift: f64, base_shift: f64, [width, height]: [u64; 2]) -> Result<Self, String> {
        let slope = (max_shift - base_shift) / (4096.0 - 256.0);
        let tokens = (width * height) as f64 / 256.0;
        Self { shift: (tokens - 256.0) * slope + base_shift, ..Self::default() }.checked()
    }

    /// Returns the levels of `ModelSamplingAuraFlow` and `ModelSamplingSD3`.
    ///
    /// Errors if the shift is out of range.
    pub fn discrete(shift: f64) -> Result<Self, String> {
        Self { shift: shift.ln(), levels: 1000 }.checked()
    }

    fn checked(self) -> Result<Self, String> {
        let is_fine = (-MAX_SHIFT..=MAX_SHIFT).contains(&self.shift);
        is_fine.then_some(self).ok_or_else(|| "the shift makes all levels equal".to_string())
    }
}

/// The noise levels of a sampler.
#[derive(Debug, Clone, PartialEq)]
pub struct Sigmas {
    pub levels: Levels,
    pub steps: usize,
    /// The first step to run.
    pub first: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Levels {
    /// The levels of `Flux2Scheduler` for this number of tokens. They are the model's own for an image of this size.
    Flow { tokens: usize },
    /// All levels, without the final 0.
    Given(Vec<f32>),
}

impl Sigmas {
    /// Returns the levels of `Flux2Scheduler` for a size in pixels.
    pub fn flux2(steps: u64, width: u64, height: u64) -> Self {
        let tokens = ((width * height) as f64 / 256.0).round_ties_even() as usize;
        Self { levels: Levels::Flow { tokens }, steps: steps as usize, first: 0 }
    }

    /// Returns the levels of `BasicScheduler` and the schedulers of `KSampler`. With `denoise`, the last `steps` of a
    /// longer schedule run.
    ///
    /// Errors if no step would run, or the schedule is too long.
    pub fn basic(sampling: Sampling, scheduler: &str, steps: u64, denoise: f64) -> Result<Self, String> {
        let all = match denoise {
            denoise if denoise > 0.9999 => steps,
            denoise if denoise > 0.0 => (steps as f64 / denoise) as u64,
            _ => return Err("a denoise of 0 leaves no steps".to_string()),
        };
        if all > MAX_STEPS {
            return Err(format!("{steps} steps at this denoise are the last of {all}, expected at most {MAX_STEPS}"));
        }
        let (all, first) = (all as usize, (all - steps) as usize);
        Ok(Self { levels: Levels::Given(levels(sampling, scheduler, all)), steps: all, first })
    }

    /// Returns the levels from a step on.
    ///
    /// Errors if none is left.
    pub fn from(&self, step: u64) -> Result<Self, String> {
        let first = self.first + step as usize;
        if first >= self.steps {
            return Err(format!("the levels have {} steps, but {step} are skipped", self.steps - self.first));
        }
        Ok(Self { first, ..self.clone() })
    }

    /// Returns the last part of the levels, as split by `SplitSigmasDenoise`.
    ///
    /// Errors if none is left.
    pub fn last(&self, denoise: f64) -> Result<Self, String> {
        let steps = self.steps - self.first;
        let kept = (steps as f64 * denoise).round_ties_even() as usize;
        self.from(steps.saturating_sub(kept) as u64)
    }

    /// Returns the schedule for an image with this number of tokens.
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

    /// Returns the edit strength that starts at the first step to run. It is 1 if all steps run.
    pub fn strength(&self) -> f64 {
        let all = self.steps as f64;
        let runs = (self.steps - self.first) as f64;
        // The engine skips `all - all * strength` steps, rounded down.
        let exact = runs / all;
        let leaves_out = (all - all * exact).max(0.0) as usize;
        if leaves_out == self.first { exact } else { (runs - 0.5) / all }
    }
}

/// Returns all levels of a scheduler that uses the model's shift.
fn levels(Sampling { shift, levels: all }: Sampling, scheduler: &str, steps: usize) -> Vec<f32> {
    let shifted = |time: f64| (shift.exp() / (shift.exp() + (1.0 / time - 1.0))) as f32;
    let least = f64::from(shifted(1.0 / all as f64));
    let even = |step: usize, of: usize| 1.0 + (least - 1.0) * step as f64 / of.max(1) as f64;
    let level = |step: usize| match scheduler {
        "sgm_uniform" => shifted(even(step, steps)),
        "normal" => shifted(even(step, steps - 1)),
        // The scheduler `simple`.
        _ => {
            let down = (step as f64 * (all as f64 / steps as f64)) as usize;
            shifted((all - down) as f64 / all as f64)
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
        let Levels::Given(simple) = Sigmas::basic(Sampling::default(), "simple", 4, 1.0).unwrap().levels else {
            panic!()
        };
        for (level, expected) in simple.iter().zip([1.0, 0.957_656, 0.882_880, 0.715_304]) {
            assert!((level - expected).abs() < 1e-4, "{simple:?}");
        }
        let half = Sigmas::basic(Sampling::default(), "simple", 4, 0.5).unwrap();
        assert_eq!((half.steps, half.first), (8, 4));
        assert!(
            Sigmas::basic(Sampling::default(), "simple", 4, 0.0).is_err()
                && Sigmas::basic(Sampling::default(), "simple", 400, 0.1).is_err()
        );
        for scheduler in ["simple", "sgm_uniform", "normal"] {
            for steps in [1, 2, 7, 50] {
                let sigmas = Sigmas::basic(Sampling::default(), scheduler, steps, 1.0).unwrap();
                sigmas.schedule(16).check().unwrap_or_else(|e| panic!("{scheduler} {steps}: {e}"));
            }
        }
    }

    #[test]
    fn a_shift_of_the_model_moves_its_levels() {
        let first = |sampling: Sampling| match Sigmas::basic(sampling, "simple", 2, 1.0).unwrap().levels {
            Levels::Given(levels) => levels[1],
            Levels::Flow { .. } => panic!(),
        };
        // 3 t / (1 + 2 t) at t = 0.5, and e / (e + 1) for a shift of 1 at 2,176 tokens.
        assert!((first(Sampling::discrete(3.0).unwrap()) - 0.75).abs() < 1e-4);
        assert!((first(Sampling::flux(1.5, 0.5, [1024, 544]).unwrap()) - 0.731_06).abs() < 1e-3);
        assert!(Sampling::discrete(0.0).is_err() && Sampling::flux(100.0, 100.0, [1024, 1024]).is_err());
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
