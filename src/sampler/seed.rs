//! Random seeds.

/// Returns a random seed. It has 32 bits, which are short enough to type again.
pub fn random_seed() -> u64 {
    u64::from(rand::random::<u32>())
}
