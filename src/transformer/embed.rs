//! Positions in time and space as numbers: computed on the host, uploaded once.

use super::TransformerConfig;

/// The sinusoidal embedding of a timestep in 0..1000: cosines, then sines.
///
/// Source: FLUX.2 reference `Timesteps(flip_sin_to_cos=True, downscale_freq_shift=0)`.
pub fn timestep_embedding(timestep: f32, channels: usize) -> Vec<f32> {
    let half = channels / 2;
    let angle = |i: usize| timestep * (-(10000f32.ln()) * i as f32 / half as f32).exp();
    (0..half).map(|i| angle(i).cos()).chain((0..half).map(|i| angle(i).sin())).collect()
}

/// Rotary (cos, sin), each [txt + height * width, head_dim / 2]: text first, then the picture row by row.
///
/// A text token s has position (0, 0, 0, s) on the axes (t, h, w, l), a picture token (0, y, x, 0).
/// Angles in float64, as the reference has them.
pub fn rope_tables(config: &TransformerConfig, txt: usize, height: usize, width: usize) -> (Vec<f32>, Vec<f32>) {
    let text = (0..txt).map(|s| [0, 0, 0, s]);
    let picture = (0..height * width).map(|n| [0, n / width, n % width, 0]);
    let mut cos = Vec::with_capacity((txt + height * width) * config.attention_head_dim / 2);
    let mut sin = Vec::with_capacity(cos.capacity());
    for position in text.chain(picture) {
        for (axis, &axis_dim) in position.iter().zip(&config.axes_dims_rope) {
            for j in 0..axis_dim / 2 {
                let frequency = config.rope_theta.powf(-(2.0 * j as f64) / axis_dim as f64);
                let angle = *axis as f64 * frequency;
                cos.push(angle.cos() as f32);
                sin.push(angle.sin() as f32);
            }
        }
    }
    (cos, sin)
}
