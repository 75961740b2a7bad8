//! Schedules: the noise levels of each step.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};
use crate::transformer::StepTimes;

/// The noise levels, and the timesteps that the model reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Noise levels, steps + 1 of them, falling to 0. The first is 1 unless the user passed another.
    pub sigmas: Vec<f32>,
    /// The transformer's timesteps, in 0..1000, in float32 on every backend.
    ///
    /// They are not rounded. In bf16 the reference rounds its timestep too, to a multiple of 4 above 512. On random
    /// weights, this alone moves its final latents by 0.065 (512 x 512) and 0.035 (1024 x 1024) from its own in
    /// float32; with exact timesteps the rest of bf16 moves them by 0.0064 and 0.0067.
    pub timesteps: Vec<f32>,
}

/// The shift of evenly spaced noise levels towards 1. The two formulas are equivalent but round differently.
///
/// Source: diffusers `FlowMatchEulerDiscreteScheduler`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shift {
    /// `e / (e + (1 / s - 1))`, as with `time_shift_type` exponential.
    Exponential(f32),
    /// `e s / (1 + (e - 1) s)`, as with `shift`.
    Constant(f64),
}

impl Shift {
    fn level(self, s: f32) -> f32 {
        match self {
            Self::Exponential(shift) => shift / (shift + (1.0 / s - 1.0)),
            Self::Constant(shift) => shift as f32 * s / (1.0 + (shift - 1.0) as f32 * s),
        }
    }
}

impl Schedule {
    /// Creates a model's own schedule in `steps` steps, [`ScheduleKind::Flow`], with the shift of its kind.
    ///
    /// Source: diffusers `FlowMatchEulerDiscreteScheduler`.
    pub fn new(shift: Shift, steps: usize) -> Self {
        Self::from_levels((0..steps).map(|i| shift.level(linspace_down(i, steps) as f32)))
    }

    /// Returns the times of each step, in 0..1000.
    pub fn times(&self) -> Vec<StepTimes> {
        let next = self.timesteps.iter().skip(1).copied().chain([0.0]);
        self.timesteps.iter().zip(next).map(|(&now, next)| StepTimes { now, next }).collect()
    }

    /// Sets the timesteps to `time` of the noise levels.
    pub fn with_times(self, time: impl Fn(f32) -> f32) -> Self {
        let timesteps = self.sigmas[..self.steps()].iter().map(|&sigma| time(sigma)).collect();
        Self { timesteps, ..self }
    }

    /// Creates a schedule of these noise levels, and appends the final 0.
    fn from_levels(levels: impl Iterator<Item = f32>) -> Self {
        let sigmas: Vec<f32> = levels.chain([0.0]).collect();
        let timesteps = sigmas[..sigmas.len() - 1].iter().map(|sigma| sigma * 1000.0).collect();
        Self { sigmas, timesteps }
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.timesteps.len()
    }

    /// Returns the length of each step; negative.
    pub fn dts(&self) -> Vec<f32> {
        self.sigmas.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// The curve of the noise levels.
///
/// As text, and so in JSON: `flow`, `linear`, `power:A`, `sigmas:S0,S1,..`.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ScheduleKind {
    /// Evenly spaced levels, shifted as the model was trained for. FLUX.2 has `e / (e + (1 / s - 1))` with `s = 1 - i
    /// / steps` and `e = exp(mu)`, which depends on the number of image tokens and of steps. In FLUX.3 `e` is always
    /// 6.93.
    #[default]
    Flow,
    /// Level i is `1 - i / steps`; [`ScheduleKind::Power`] of 1.
    Linear,
    /// Level i is `1 - (i / steps)^exponent`. With an exponent above 1, steps are short at first and long at the end,
    /// as in iris.c, which uses 2.
    Power(f32),
    /// The given levels, falling and above 0, without a shift; a final 0 is added if it is missing.
    ///
    /// The reference shifts its sigmas: its `s` becomes our `e / (e + (1 / s - 1))`, with `e = exp(mu)` of the tokens
    /// and of its `num_inference_steps`. So a level here is `s = 1 / (1 + e * (1 / level - 1))` in the reference.
    Sigmas(Vec<f32>),
}

/// The exponent of `power` without a number, as in iris.c.
const DEFAULT_EXPONENT: f32 = 2.0;
/// Maximum exponent, far beyond useful ones.
const MAX_EXPONENT: f32 = 100.0;

impl ScheduleKind {
    /// Creates the schedule in `steps` steps; `shift` is as in [`Schedule::new`]. [`ScheduleKind::Sigmas`] sets its
    /// own number of steps.
    pub fn schedule(&self, shift: Shift, steps: usize) -> Schedule {
        let power = |exponent: f32| {
            let level = move |i: usize| (1.0 - (i as f64 / steps as f64).powf(f64::from(exponent))) as f32;
            Schedule::from_levels((0..steps).map(level))
        };
        match self {
            Self::Flow => Schedule::new(shift, steps),
            Self::Linear => power(1.0),
            Self::Power(exponent) => power(*exponent),
            Self::Sigmas(levels) => Schedule::from_levels(without_end(levels).iter().copied()),
        }
    }

    /// Returns the number of steps, if the levels determine it.
    pub fn steps(&self) -> Option<usize> {
        match self {
            Self::Sigmas(levels) => Some(without_end(levels).len()),
            _ => None,
        }
    }

    /// Errors if an exponent or the levels make no schedule.
    pub fn check(&self) -> Result<()> {
        let refused = |what: String, hint: &str| Err(Error::usage(what).hint(hint));
        match self {
            Self::Flow | Self::Linear => Ok(()),
            Self::Power(exponent) if *exponent > 0.0 && *exponent <= MAX_EXPONENT => Ok(()),
            Self::Power(exponent) => refused(
                format!("the exponent of the schedule is {exponent}, expected above 0 to {MAX_EXPONENT}"),
                "use 1 for the linear schedule, 2 for the usual one",
            ),
            Self::Sigmas(levels) => {
                let levels = without_end(levels);
                let fits = |level: f32| level > 0.0 && level <= 1.0;
                let hint = "write them as in `sigmas:1,0.8,0.4`; the final 0 is added";
                if let Some(level) = levels.iter().find(|level| !fits(**level)) {
                    return refused(format!("a noise level is {level}, expected above 0 to 1"), hint);
                }
                if let Some(pair) = levels.windows(2).find(|pair| pair[0] <= pair[1]) {
                    let (level, next) = (pair[0], pair[1]);
                    return refused(format!("the noise level {next} follows {level}, expected a lower one"), hint);
                }
                if levels.is_empty() {
                    return refused("the schedule has no noise level above 0".to_string(), hint);
                }
                Ok(())
            }
        }
    }
}

/// Returns the levels without a 0 at the end.
fn without_end(levels: &[f32]) -> &[f32] {
    match levels {
        [rest @ .., last] if *last == 0.0 => rest,
        all => all,
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flow => write!(f, "flow"),
            Self::Linear => write!(f, "linear"),
            Self::Power(exponent) => write!(f, "power:{exponent}"),
            Self::Sigmas(levels) => {
                let levels: Vec<String> = without_end(levels).iter().map(f32::to_string).collect();
                write!(f, "sigmas:{}", levels.join(","))
            }
        }
    }
}

impl FromStr for ScheduleKind {
    type Err = Error;

    /// Errors if the text is no schedule, and as [`ScheduleKind::check`].
    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| {
            text.trim().parse::<f32>().map_err(|_| Error::usage(format!("`{text}` is not a number")).hint(FORMS))
        };
        let kind = match text.split_once(':') {
            None if text == "flow" => Self::Flow,
            None if text == "linear" => Self::Linear,
            None if text == "power" => Self::Power(DEFAULT_EXPONENT),
            Some(("power", exponent)) => Self::Power(number(exponent)?),
            Some(("sigmas", levels)) => Self::Sigmas(levels.split(',').map(number).collect::<Result<_>>()?),
            _ => return Err(Error::usage(format!("`{text}` is not a schedule")).hint(FORMS)),
        };
        kind.check().map(|()| kind)
    }
}

/// The accepted forms of a schedule.
const FORMS: &str = "write flow, linear, power:A or sigmas:1,0.8,..";

impl Serialize for ScheduleKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ScheduleKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(|e: Error| D::Error::custom(e.what()))
    }
}

/// Point i of `numpy.linspace(1, 1 / n, n)`: start + i * step, the last one exactly 1 / n.
fn linspace_down(i: usize, n: usize) -> f64 {
    let end = 1.0 / n as f64;
    if n > 1 && i == n - 1 {
        return end;
    }
    1.0 + i as f64 * ((end - 1.0) / (n.max(2) - 1) as f64)
}

/// Returns the shift of FLUX.2 models for an image of `tokens` tokens in `steps` steps.
///
/// Source: FLUX.2 reference pipeline (`compute_empirical_mu`) with dynamic shifting.
pub fn empirical_shift(tokens: usize, steps: usize) -> Shift {
    Shift::Exponential(mu(tokens, steps).exp() as f32)
}

/// `mu` of FLUX.2. It jumps at 4300 tokens.
fn mu(tokens: usize, steps: usize) -> f64 {
    let n = tokens as f64;
    let at_200 = 0.00016927 * n + 0.45666666;
    if tokens > 4300 {
        return at_200;
    }
    let at_10 = 8.73809524e-05 * n + 1.89833333;
    let slope = (at_200 - at_10) / 190.0;
    slope * steps as f64 + (at_200 - 200.0 * slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(text: &str, steps: usize) -> Vec<f32> {
        text.parse::<ScheduleKind>().unwrap().schedule(empirical_shift(256, steps), steps).sigmas
    }

    #[test]
    fn each_kind_has_the_levels_of_its_formula() {
        assert_eq!(levels("flow", 4), Schedule::new(empirical_shift(256, 4), 4).sigmas);
        assert_eq!(levels("linear", 4), [1.0, 0.75, 0.5, 0.25, 0.0]);
        assert_eq!(levels("power:1", 4), levels("linear", 4));
        assert_eq!(levels("power:2", 4), [1.0, 0.9375, 0.75, 0.4375, 0.0]);
        assert_eq!(levels("power", 4), levels("power:2", 4));
        assert_eq!(levels("sigmas:1,0.5,0.25", 3), [1.0, 0.5, 0.25, 0.0]);
        let schedule = "sigmas:0.8,0.4".parse::<ScheduleKind>().unwrap().schedule(Shift::Constant(1.0), 2);
        assert_eq!((schedule.timesteps.as_slice(), schedule.steps()), (&[800.0, 400.0][..], 2));
    }

    #[test]
    fn a_constant_shift_has_the_levels_of_the_reference() {
        let sigmas = |steps| Schedule::new(Shift::Constant(6.93), steps).sigmas;
        assert_eq!(sigmas(4), [1.0, 0.9541074, 0.8738966, 0.69788516, 0.0]);
        let eight = [1.0, 0.9798021, 0.9541074, 0.9203186, 0.8738966, 0.8061264, 0.69788516, 0.49748743, 0.0];
        assert_eq!(sigmas(8), eight);
        let fifty = sigmas(50);
        assert_eq!(fifty[1..4], [0.99706376, 0.99402344, 0.9908734]);
        let near = |(a, b): (&f32, f32)| (a - b).abs() < 1e-7;
        assert!(fifty[47..].iter().zip([0.3066824, 0.2240543, 0.12390487, 0.0]).all(near), "{:?}", &fifty[47..]);
        let schedule = Schedule::new(Shift::Constant(6.93), 4);
        let next: Vec<f32> = schedule.times().iter().map(|times| times.next).collect();
        assert_eq!((&next[..3], next[3]), (&schedule.timesteps[1..], 0.0), "each step leads to the next");
    }

    #[test]
    fn a_zero_at_the_end_is_added_where_it_is_absent() {
        assert_eq!(levels("sigmas:1,0.5,0", 2), levels("sigmas:1,0.5", 2));
        let steps = |text: &str| text.parse::<ScheduleKind>().unwrap().steps();
        assert_eq!([steps("sigmas:1,0.5,0"), steps("sigmas:1"), steps("linear")], [Some(2), Some(1), None]);
    }

    #[test]
    fn a_level_as_the_reference_takes_it_comes_back_shifted() {
        // The reference with sigmas 1, 0.75, 0.5, 0.25, 16 tokens and num_inference_steps 4.
        let (shift, reference) = (mu(16, 4).exp(), [1.0, 0.9545, 0.8749, 0.6999]);
        for (given, level) in [1.0, 0.75, 0.5, 0.25].into_iter().zip(reference) {
            let unshifted = 1.0 / (1.0 + shift * (1.0 / level - 1.0));
            assert!((unshifted - given).abs() < 2e-4, "{level}: {unshifted}");
        }
    }

    #[test]
    fn a_kind_is_written_as_it_is_read() {
        for text in ["flow", "linear", "power:2", "power:0.5", "sigmas:1,0.8,0.35"] {
            let kind = text.parse::<ScheduleKind>().unwrap();
            assert_eq!(kind.to_string(), text);
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{text}\""));
        }
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for (text, words) in [
            ("cosine", "not a schedule"),
            ("flow:1", "not a schedule"),
            ("power:x", "`x` is not a number"),
            ("power:0", "expected above 0"),
            ("power:nan", "expected above 0"),
            ("power:101", "to 100"),
            ("sigmas:", "`` is not a number"),
            ("sigmas:0", "no noise level"),
            ("sigmas:1.1,0.5", "1.1, expected above 0 to 1"),
            ("sigmas:1,nan", "NaN"),
            ("sigmas:1,0.5,0.5", "0.5 follows 0.5"),
            ("sigmas:0.5,1", "1 follows 0.5"),
            ("sigmas:1,0,0.5", "is 0, expected above 0"),
            ("sigmas:1,-0.5", "-0.5"),
        ] {
            let error = text.parse::<ScheduleKind>().unwrap_err();
            assert_eq!(error.kind(), crate::error::ErrorKind::Usage);
            let error = error.to_string();
            assert!(error.contains(words) && error.contains("hint: "), "{text}: {error}");
        }
    }
}
