//! A seed to noise, on the host, so that every backend starts from the same numbers.

use rand_mt::Mt;
use rayon::prelude::*;

/// Tokens that are packed together: all their channels stay in the first cache.
const TOKENS_AT_ONCE: usize = 64;

/// Standard normal noise of a picture: [height * width, channels], as the reference draws it with a CPU generator.
///
/// The values are drawn in the order [channels, height, width] and then packed token by token. `seed` is reduced
/// to its low 32 bits, as there.
///
/// Source: the CPU generator of torch: MT19937, 24-bit uniforms, Box-Muller over blocks of 16.
pub fn noise(seed: u64, channels: usize, height: usize, width: usize) -> Vec<f32> {
    let tokens = height * width;
    let planes = normal(seed, channels * tokens);
    let mut packed = vec![0.0; channels * tokens];
    packed.par_chunks_mut(channels * TOKENS_AT_ONCE).enumerate().for_each(|(block, packed)| {
        for c in 0..channels {
            let plane = &planes[c * tokens + block * TOKENS_AT_ONCE..];
            packed.iter_mut().skip(c).step_by(channels).zip(plane).for_each(|(to, value)| *to = *value);
        }
    });
    packed
}

/// `count` values of the reference's normal distribution; it draws fewer than 16 in another way, but no model has so small a picture.
fn normal(seed: u64, count: usize) -> Vec<f32> {
    if count < 16 {
        return normal(seed, 16)[..count].to_vec();
    }
    let mut generator = Mt::new(seed as u32);
    let mut uniform = || (generator.next_u32() & 0xff_ffff) as f32 / (1 << 24) as f32;
    let mut values: Vec<f32> = (0..count).map(|_| uniform()).collect();
    // Each block stands for itself, so all cores may share them.
    values.par_chunks_mut(16 * 256).for_each(|blocks| blocks.chunks_exact_mut(16).for_each(box_muller));
    if !count.is_multiple_of(16) {
        // A last block that is not full is drawn anew, together with the values before it.
        let last = &mut values[count - 16..];
        last.fill_with(uniform);
        box_muller(last);
    }
    values
}

/// 16 uniforms to 16 normals: a radius from the first half, an angle from the second.
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
        for (got, expected) in normal(42, 256).iter().zip(expected) {
            assert!((got - expected).abs() < 2e-6, "{got} is not {expected}");
        }
    }

    #[test]
    fn the_smallest_picture_has_noise() {
        assert_eq!(noise(1, 4, 1, 1).len(), 4);
    }

    #[test]
    fn a_token_holds_the_channels_of_its_pixel() {
        let planes = normal(7, 4 * 6);
        let packed = noise(7, 4, 2, 3);
        assert_eq!(packed[5 * 4 + 1], planes[6 + 5]);
    }
}
