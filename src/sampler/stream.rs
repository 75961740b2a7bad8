//! Random numbers from a seed, the same on every machine.

use rand::rngs::ChaCha8Rng;
use rand::{Rng as _, SeedableRng};

/// A stream of random numbers: the outputs of ChaCha8, reduced to their upper 53 bits. Its key is the seed, all 64 bits
/// in little-endian order, then zeros.
pub struct RandomStream(ChaCha8Rng);

impl RandomStream {
    /// Creates one of the streams of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(stream);
        Self(generator)
    }

    /// Returns the next whole number below 2^53.
    pub fn bits(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64
    }

    /// Returns the next number from 0 to below 1.
    pub fn uniform(&mut self) -> f64 {
        self.bits() * Self::SCALE
    }

    /// The factor from [`RandomStream::bits`] to [`RandomStream::uniform`].
    pub const SCALE: f64 = 1.0 / (1u64 << 53) as f64;
}
