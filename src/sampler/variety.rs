//! Variety: noise on the text features of the first steps, so that images of one prompt differ more.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::RandomStream;

/// The stream of a seed for variety. Noise of images uses the streams below, and words those from `1 << 63`.
const STREAM: u64 = 1 << 62;

/// Noise on the text features of the first steps, such as `0.3` or `0.3:50:0.2`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "NumberOrText", into = "String")]
pub struct Variety {
    /// Largest noise in standard deviations of the features, from 0 to 2.
    strength: f64,
    /// Share of the values that get noise, in percent.
    percent: f64,
    /// Share of the steps that read the noise; at least one step does.
    until: f64,
}

/// A value in JSON: a number is only the strength.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(f64),
    Text(String),
}

impl Variety {
    /// Returns `true` if there is noise.
    pub fn has_effect(&self) -> bool {
        self.strength > 0.0 && self.percent > 0.0
    }

    /// Returns the number of steps, of `steps`, that read the noise.
    pub(crate) fn steps(&self, steps: usize) -> usize {
        ((self.until * steps as f64).round() as usize).max(1).min(steps)
    }

    /// Returns the noise for these text features. The values are generated in the order of the features, so tokens
    /// that are added at the end change no noise in front of them, apart from its scale.
    pub(crate) fn noise(&self, seed: u64, features: &[f32]) -> Vec<f32> {
        let mut random = RandomStream::new(seed, STREAM);
        let (scale, share) = (self.strength * deviation(features), self.percent / 100.0);
        let noise = features.iter().map(|_| {
            let (chosen, value) = (random.uniform() < share, 2.0 * random.uniform() - 1.0);
            if chosen { (scale * value) as f32 } else { 0.0 }
        });
        noise.collect()
    }
}

/// Returns the standard deviation of values.
fn deviation(values: &[f32]) -> f64 {
    let mean = |values: &mut dyn Iterator<Item = f64>, count: usize| values.sum::<f64>() / count.max(1) as f64;
    let center = mean(&mut values.iter().map(|value| f64::from(*value)), values.len());
    mean(&mut values.iter().map(|value| (f64::from(*value) - center).powi(2)), values.len()).sqrt()
}

impl fmt::Display for Variety {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.strength, self.percent, self.until)
    }
}

impl FromStr for Variety {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a variety, expected X[:PERCENT[:UNTIL]] with X from 0 to 2, PERCENT from 0 to 100 \
                 and UNTIL from 0 to 1, such as 0.3:50:0.2"
            )
        };
        let mut parts = text.split(':');
        let mut part = |default: Option<f64>, max: f64| match parts.next() {
            Some(part) => part.trim().parse().ok().filter(|value| (0.0..=max).contains(value)).ok_or_else(wrong),
            None => default.ok_or_else(wrong),
        };
        let variety =
            Self { strength: part(None, 2.0)?, percent: part(Some(50.0), 100.0)?, until: part(Some(0.2), 1.0)? };
        if parts.next().is_some() { Err(wrong()) } else { Ok(variety) }
    }
}

impl TryFrom<NumberOrText> for Variety {
    type Error = String;

    fn try_from(value: NumberOrText) -> Result<Self, String> {
        match value {
            NumberOrText::Number(strength) => strength.to_string().parse(),
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

impl From<Variety> for String {
    fn from(variety: Variety) -> Self {
        variety.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variety_is_up_to_three_numbers() {
        let read = |text: &str| text.parse::<Variety>();
        assert_eq!(read("0.3"), read("0.3:50:0.2"));
        assert_eq!(serde_json::from_str::<Variety>("0.3").unwrap(), read("0.3").unwrap());
        assert_eq!(serde_json::to_string(&read("1:25").unwrap()).unwrap(), r#""1:25:0.2""#);
        for text in ["", "x", "-0.1", "2.1", "nan", "0.3:", "0.3:101", "0.3:-1", "0.3:50:1.1", "0.3:50:0.2:1"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Variety>("2.5").is_err());
        assert!(!read("0").unwrap().has_effect() && !read("1:0").unwrap().has_effect());
    }

    #[test]
    fn at_least_one_step_reads_the_noise() {
        let steps = |text: &str, steps| text.parse::<Variety>().unwrap().steps(steps);
        assert_eq!([steps("1", 4), steps("1", 20), steps("1:50:0", 4), steps("1:50:1", 4)], [1, 4, 1, 4]);
    }

    #[test]
    fn noise_depends_on_the_seed_and_has_the_scale_and_share_of_the_variety() {
        let features: Vec<f32> = (0..20_000).map(|i| if i % 2 == 0 { 3.0 } else { -1.0 }).collect();
        let variety: Variety = "0.5:25".parse().unwrap();
        let noise = variety.noise(7, &features);
        assert_eq!(noise, variety.noise(7, &features));
        assert_ne!(noise, variety.noise(8, &features));
        assert_eq!(noise[..100], variety.noise(7, &[&features[..], &features[..]].concat())[..100]);
        // The standard deviation of the features is 2.
        let largest = noise.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        assert!((0.99..=1.0).contains(&largest), "{largest}");
        let share = noise.iter().filter(|value| **value != 0.0).count() as f64 / noise.len() as f64;
        assert!((share - 0.25).abs() < 0.02, "{share}");
        let whole = "0.5:100".parse::<Variety>().unwrap().noise(7, &features);
        assert!(noise.iter().zip(&whole).all(|(some, all)| *some == 0.0 || some == all));
        assert!(variety.noise(7, &[]).is_empty());
    }
}
