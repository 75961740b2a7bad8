//! How long images take, as far as some were made.

use std::collections::HashMap;

/// How much of an average the newest time is.
const NEWEST: f64 = 0.2;
/// Kinds of images that are remembered.
const MOST_KINDS: usize = 256;

/// What decides how long an image takes: the size, the steps, and all tokens that the transformer sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind {
    pub model: usize,
    pub size: [usize; 2],
    /// Evaluations of the transformer: two a step with guidance.
    pub evaluations: usize,
    pub tokens: usize,
}

impl Kind {
    /// The work, in tokens.
    pub fn cost(&self) -> f64 {
        (self.tokens * self.evaluations.max(1)) as f64
    }
}

/// Seconds of images.
#[derive(Debug, Default)]
pub struct Rates {
    of_kind: HashMap<Kind, f64>,
    per_cost: Option<f64>,
}

impl Rates {
    /// An image took so many seconds.
    pub fn learn(&mut self, kind: Kind, seconds: f64) {
        let mean = |old: Option<f64>, new: f64| old.map_or(new, |old| old + NEWEST * (new - old));
        if self.of_kind.len() >= MOST_KINDS && !self.of_kind.contains_key(&kind) {
            self.of_kind.clear();
        }
        let old = self.of_kind.get(&kind).copied();
        self.of_kind.insert(kind, mean(old, seconds));
        self.per_cost = Some(mean(self.per_cost, seconds / kind.cost().max(1.0)));
    }

    /// The seconds that an image takes; none while none was made.
    pub fn estimate(&self, kind: Kind) -> Option<f64> {
        self.of_kind.get(&kind).copied().or_else(|| Some(self.per_cost? * kind.cost()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_were_not_made_are_estimated_by_their_work() {
        let kind = |steps| Kind { model: 0, size: [64, 64], evaluations: steps, tokens: 16 };
        let mut rates = Rates::default();
        assert_eq!(rates.estimate(kind(4)), None);
        rates.learn(kind(4), 2.0);
        assert_eq!((rates.estimate(kind(4)), rates.estimate(kind(8))), (Some(2.0), Some(4.0)));
        rates.learn(kind(4), 3.0);
        assert!((rates.estimate(kind(4)).unwrap() - 2.2).abs() < 1e-9, "the newest counts a fifth");
    }
}
