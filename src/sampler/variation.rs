//! Variations of an image: noise between that of two seeds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A variation of the image of another seed, such as `42:0.2`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Variation {
    /// Seed of the image that is varied.
    pub seed: u64,
    /// Distance from that image, from 0 to 1; 1 is the image of the own seed.
    pub strength: f64,
}

impl Variation {
    /// Moves noise of the own seed towards `base`, the noise of [`Variation::seed`], along the arc between them. A
    /// straight line would lose variance. Noise that `is_orthogonal` has a right angle, whatever its size; otherwise
    /// the angle is measured.
    pub(super) fn mix(&self, own: &mut [f32], base: &[f32], is_orthogonal: bool) {
        let x = self.strength;
        if x >= 1.0 {
            return;
        }
        if x <= 0.0 {
            return own.copy_from_slice(base);
        }
        let angle = if is_orthogonal { std::f64::consts::FRAC_PI_2 } else { angle(own, base) };
        // Noise of one direction has no arc.
        let [of_own, of_base] = match angle.sin() {
            sin if sin < 1e-6 => [x, 1.0 - x],
            sin => [(x * angle).sin() / sin, ((1.0 - x) * angle).sin() / sin],
        };
        for (own, base) in own.iter_mut().zip(base) {
            *own = (of_own * f64::from(*own) + of_base * f64::from(*base)) as f32;
        }
    }
}

/// Returns the angle between two vectors.
fn angle(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths).clamp(-1.0, 1.0).acos() } else { 0.0 }
}

impl fmt::Display for Variation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seed, self.strength)
    }
}

impl FromStr for Variation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a variation, expected SEED:X with X from 0 to 1, such as 42:0.2");
        let (seed, strength) = text.split_once(':').ok_or_else(wrong)?;
        let strength = strength.trim().parse().ok().filter(|x| (0.0..=1.0).contains(x)).ok_or_else(wrong)?;
        Ok(Self { seed: seed.trim().parse().map_err(|_| wrong())?, strength })
    }
}

impl TryFrom<String> for Variation {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Variation> for String {
    fn from(variation: Variation) -> Self {
        variation.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variation_is_a_seed_and_a_number() {
        let read = |text: &str| text.parse::<Variation>();
        assert_eq!(read("42:0.2"), Ok(Variation { seed: 42, strength: 0.2 }));
        assert_eq!(serde_json::to_string(&read("42: 1").unwrap()).unwrap(), r#""42:1""#);
        for text in ["", "42", "42:", ":0.2", "42:1.1", "42:-0.1", "42:nan", "-1:0.2", "4.5:0.2"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
