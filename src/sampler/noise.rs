//! Noise from a seed, generated on the host, so that every backend starts from the same numbers.

use std::fmt;
use std::str::FromStr;
use std::thread::JoinHandle;

use rand_mt::Mt;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Variation, portable};
use crate::error::{Error, Result};

/// Number of tokens that are packed together: all their channels stay in the first-level cache.
const TOKENS_AT_ONCE: usize = 64;

/// Number of values that are transformed at once while the next ones are generated; a multiple of 16.
const VALUES_AT_ONCE: usize = 16 << 10;

/// The generator that turns a seed into noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rng {
    /// The reference's CPU generator, value by value in the order [channels, height, width]. The noise differs between
    /// sizes. Only the low 32 bits of a seed count.
    #[default]
    Torch,
    /// Waves over the whole image. The coarse waves are the same at every size, so a seed gives a similar composition.
    /// All 64 bits of a seed count.
    Portable,
}

impl fmt::Display for Rng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torch => "torch",
            Self::Portable => "portable",
        })
    }
}

impl FromStr for Rng {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Torch, Self::Portable]
            .into_iter()
            .find(|rng| rng.to_string() == text)
            .ok_or_else(|| Error::usage(format!("`{text}` is not a noise generator")).hint("use torch or portable"))
    }
}

/// Generates the standard normal noise of an image, [height * width, channels], as the reference does with a CPU
/// generator.
///
/// The values are generated in the order [channels, height, width] and then packed token by token. `seed` is reduced
/// to its low 32 bits, as in the reference.
///
/// Source: the CPU generator of torch: MT19937, 24-bit uniforms, Box-Muller over blocks of 16.
pub fn noise(seed: u64, channels: usize, height: usize, width: usize) -> Vec<f32> {
    let mut noise = Noise::default();
    noise.fill(&[Start::Seed(Rng::Torch, seed)], channels, height, width);
    noise.packed
}

/// The source of an image's noise.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// Noise from a seed.
    Seed(Rng, u64),
    /// Noise from a seed, moved towards the noise of another seed.
    Varied(Rng, u64, Variation),
    /// Given values [channels, height, width], unchanged.
    Given(&'a [f32]),
}

/// Noise of several images. Its memory is reused, because mapping new pages takes about as long as filling them.
#[derive(Default)]
pub struct Noise {
    /// The values of one image, in the order of generation.
    planes: Vec<f32>,
    packed: Vec<f32>,
    /// The seeds and size of the current noise; `None` if some of it was given or varied.
    drawn: Option<Drawn>,
}

/// The seeds of images, and channels, height and width of each.
type Drawn = (Vec<(Rng, u64)>, [usize; 3]);

impl Noise {
    /// Generates or copies the noise of one image for each of `starts`.
    pub fn fill(&mut self, starts: &[Start<'_>], channels: usize, height: usize, width: usize) {
        let drawn = seeds(starts).map(|seeds| (seeds, [channels, height, width]));
        // Unset until the noise is complete.
        self.drawn = None;
        let tokens = height * width;
        self.planes.resize(channels * tokens, 0.0);
        self.packed.resize(starts.len() * channels * tokens, 0.0);
        for (start, packed) in starts.iter().zip(self.packed.chunks_exact_mut((channels * tokens).max(1))) {
            let draw = |rng: Rng, seed: u64, planes: &mut [f32]| match rng {
                Rng::Torch => normal(seed, planes),
                Rng::Portable => portable::normal(seed, planes, height, width),
            };
            match start {
                Start::Seed(rng, seed) => draw(*rng, *seed, &mut self.planes),
                Start::Varied(rng, seed, variation) => {
                    let mut base = vec![0.0; channels * tokens];
                    draw(*rng, variation.seed, &mut base);
                    draw(*rng, *seed, &mut self.planes);
                    // A measured angle would differ between sizes.
                    variation.mix(&mut self.planes, &base, *rng == Rng::Portable);
                }
                Start::Given(values) => {
                    pack(values, packed, channels, tokens);
                    continue;
                }
            }
            pack(&self.planes, packed, channels, tokens);
        }
        self.drawn = drawn;
    }

    /// Returns `true` if this is the noise of `starts`; always `false` if some noise was given or varied.
    pub fn is_drawn(&self, starts: &[Start<'_>], channels: usize, height: usize, width: usize) -> bool {
        let Some((drawn, size)) = &self.drawn else { return false };
        *size == [channels, height, width] && seeds(starts).as_ref() == Some(drawn)
    }

    /// Returns the current noise: [images * height * width, channels].
    pub fn values(&self) -> &[f32] {
        &self.packed
    }
}

/// Returns the seeds; `None` if some noise was given or varied.
fn seeds(starts: &[Start<'_>]) -> Option<Vec<(Rng, u64)>> {
    let seed = |start: &Start<'_>| match start {
        Start::Seed(rng, seed) => Some((*rng, *seed)),
        Start::Varied(..) | Start::Given(_) => None,
    };
    starts.iter().map(seed).collect()
}

/// Noise that is generated, or that another thread generates.
pub enum Drawing {
    /// The noise is already generated.
    Drawn(Noise),
    /// A thread generates it.
    OnThread(JoinHandle<Noise>),
}

impl Drawing {
    /// Returns the noise. Waits for the thread.
    ///
    /// Errors if the thread panicked.
    pub fn finish(self) -> Result<Noise> {
        match self {
            Self::Drawn(noise) => Ok(noise),
            Self::OnThread(thread) => thread.join().map_err(|_| Error::new("the noise thread panicked")),
        }
    }
}

/// Transposes [channels, tokens] to [tokens, channels].
fn pack(planes: &[f32], packed: &mut [f32], channels: usize, tokens: usize) {
    packed.par_chunks_mut(channels * TOKENS_AT_ONCE).enumerate().for_each(|(block, packed)| {
        for c in 0..channels {
            let plane = &planes[c * tokens + block * TOKENS_AT_ONCE..];
            packed.iter_mut().skip(c).step_by(channels).zip(plane).for_each(|(to, value)| *to = *value);
        }
    });
}

/// Transposes [tokens, channels] to [channels, tokens].
pub(crate) fn unpack(packed: &[f32], channels: usize) -> Vec<f32> {
    (0..channels).flat_map(|c| packed.iter().skip(c).step_by(channels).copied()).collect()
}

/// Generates values of the reference's normal distribution. The reference treats fewer than 16 values differently, but
/// no model has such a small image.
fn normal(seed: u64, values: &mut [f32]) {
    if values.len() < 16 {
        let mut block = [0.0; 16];
        normal(seed, &mut block);
        values.copy_from_slice(&block[..values.len()]);
        return;
    }
    let mut generator = Mt::new(seed as u32);
    let mut uniform = || (generator.next_u32() & 0xff_ffff) as f32 / (1 << 24) as f32;
    // The blocks are independent, so all cores share them.
    rayon::in_place_scope(|scope| {
        for blocks in values.chunks_mut(VALUES_AT_ONCE) {
            blocks.fill_with(&mut uniform);
            scope.spawn(|_| blocks.chunks_exact_mut(16).for_each(box_muller));
        }
    });
    if !values.len().is_multiple_of(16) {
        // An incomplete last block is regenerated, together with the values before it.
        let from = values.len() - 16;
        let last = &mut values[from..];
        last.fill_with(uniform);
        box_muller(last);
    }
}

/// Turns 16 uniforms into 16 normals: a radius from the first half, an angle from the second.
fn box_muller(block: &mut [f32]) {
    for i in 0..8 {
        let radius = (-2.0 * (1.0 - block[i]).ln()).sqrt();
        let angle = std::f32::consts::TAU * block[i + 8];
        block[i] = radius * angle.cos();
        block[i + 8] = radius * angle.sin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_42_begins_as_the_reference_does() {
        let expected = [1.926915, 1.487284, 0.900717, -2.105521, 0.678418, -1.234545, -0.043067, -1.604667];
        let mut values = [0.0; 256];
        normal(42, &mut values);
        for (got, expected) in values.iter().zip(expected) {
            assert!((got - expected).abs() < 2e-6, "{got} is not {expected}");
        }
    }

    #[test]
    fn varied_noise_moves_from_one_seed_to_the_other_and_keeps_its_variance() {
        let fill = |start: Start<'_>| {
            let mut noise = Noise::default();
            noise.fill(&[start], 8, 16, 24);
            noise.values().to_vec()
        };
        for rng in [Rng::Torch, Rng::Portable] {
            let varied = |strength| fill(Start::Varied(rng, 7, Variation { seed: 42, strength }));
            let (base, own) = (fill(Start::Seed(rng, 42)), fill(Start::Seed(rng, 7)));
            assert!(varied(0.0) == base && varied(1.0) == own);
            let mut before = 0.0;
            for strength in [0.1, 0.3, 0.5, 0.7, 0.9] {
                let values = varied(strength);
                let count = values.len() as f64;
                let variance = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / count;
                assert!((variance - 1.0).abs() < 0.1, "{rng} {strength}: {variance}");
                let distance = values.iter().zip(&base).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
                assert!(distance > before, "{rng} {strength}");
                before = distance;
            }
        }
    }

    #[test]
    fn the_smallest_image_has_noise() {
        assert_eq!(noise(1, 4, 1, 1).len(), 4);
    }

    #[test]
    fn a_token_holds_the_channels_of_its_pixel() {
        let mut planes = [0.0; 4 * 6];
        normal(7, &mut planes);
        let packed = noise(7, 4, 2, 3);
        assert_eq!(packed[5 * 4 + 1], planes[6 + 5]);
    }
    /// A direct implementation of the definition.
    fn normal_one_by_one(seed: u64, count: usize) -> Vec<f32> {
        let mut generator = Mt::new(seed as u32);
        let mut uniform = || (generator.next_u32() & 0xff_ffff) as f32 / (1 << 24) as f32;
        let mut values: Vec<f32> = (0..count).map(|_| uniform()).collect();
        values.chunks_exact_mut(16).for_each(box_muller);
        if !count.is_multiple_of(16) {
            values[count - 16..].fill_with(uniform);
            box_muller(&mut values[count - 16..]);
        }
        values
    }

    #[test]
    fn cores_that_share_the_blocks_change_no_value() {
        for count in [
            16,
            17,
            31,
            32,
            VALUES_AT_ONCE - 1,
            VALUES_AT_ONCE,
            VALUES_AT_ONCE + 1,
            VALUES_AT_ONCE + 16,
            3 * VALUES_AT_ONCE + 7,
        ] {
            let mut values = vec![0.0; count];
            normal(9, &mut values);
            assert!(values == normal_one_by_one(9, count), "{count}");
        }
    }

    #[test]
    fn memory_that_was_used_before_changes_no_noise() {
        let mut reused = Noise::default();
        for (seed, samples, height, width) in [
            (5, 1, 8, 8),
            (5, 1, 8, 8),
            (5, 3, 4, 6),
            (5, 3, 6, 4),
            (8, 2, 16, 16),
            (u64::MAX - 1, 2, 2, 2),
            (1, 1, 3, 5),
        ] {
            let starts: Vec<_> = (0..samples).map(|i| Start::Seed(Rng::Torch, seed + i)).collect();
            reused.fill(&starts, 32, height, width);
            assert!(reused.is_drawn(&starts, 32, height, width) && !reused.is_drawn(&starts, 32, height, width + 1));
            let expected: Vec<f32> = (0..samples).flat_map(|i| noise(seed + i, 32, height, width)).collect();
            assert!(reused.values() == expected, "{samples} of {height} x {width}");
        }
    }

    #[test]
    fn noise_that_was_given_is_taken_anew_and_is_not_that_of_a_seed() {
        let (mut reused, seed) = (Noise::default(), [Start::Seed(Rng::Torch, 1)]);
        for given in [[1.0; 64], [2.0; 64]] {
            reused.fill(&seed, 4, 4, 4);
            assert!(reused.values() == noise(1, 4, 4, 4));
            reused.fill(&[Start::Given(&given)], 4, 4, 4);
            assert_eq!(reused.values(), given);
            assert!(!reused.is_drawn(&seed, 4, 4, 4));
        }
        reused.fill(&[Start::Seed(Rng::Portable, 1)], 4, 4, 4);
        assert!(reused.values() != noise(1, 4, 4, 4));
    }
}
