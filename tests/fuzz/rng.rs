//! Random numbers of a run, determined by its seed and its number.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A stream of random choices.
pub struct Rng(StdRng);

impl Rng {
    /// Returns the stream of a run.
    pub fn for_run(seed: u64, run: u64) -> Self {
        Self(StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ run))
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    /// Returns any number.
    pub fn any(&mut self) -> u64 {
        self.0.random()
    }

    /// Returns `true` in one of `of` cases.
    pub fn one_of(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// Picks one of the items.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Picks one of the words of a text.
    pub fn word<'a>(&mut self, of: &'a str) -> &'a str {
        let words: Vec<_> = of.split(' ').collect();
        words[self.below(words.len())]
    }
}
