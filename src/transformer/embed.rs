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

/// Positions on the axes (t, h, w, l): `txt` text tokens (0, 0, 0, s), then a picture's tokens (0, y, x, 0) row by row.
pub fn position_ids(txt: usize, height: usize, width: usize) -> Vec<[usize; 4]> {
    let text = (0..txt).map(|s| [0, 0, 0, s]);
    let picture = (0..height * width).map(|n| [0, n / width, n % width, 0]);
    text.chain(picture).collect()
}

/// Rotary (cos, sin) of each position, each [positions, head_dim / 2]: the pairs of axis t, then of h, w and l.
///
/// Angles in float64, as the reference has them.
pub fn rope_tables(config: &TransformerConfig, ids: &[[usize; 4]]) -> (Vec<f32>, Vec<f32>) {
    let frequencies: Vec<(usize, f64)> = config
        .axes_dims_rope
        .iter()
        .enumerate()
        .flat_map(|(axis, &dim)| (0..dim / 2).map(move |j| (axis, config.rope_theta.powf(-(2.0 * j as f64) / dim as f64))))
        .collect();
    let angles = ids.iter().flat_map(|id| frequencies.iter().map(|&(axis, frequency)| id[axis] as f64 * frequency));
    angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip()
}
