//! Embeddings of timesteps and positions: computed on the host, uploaded once.

use std::collections::HashMap;

use half::bf16;

use super::TransformerConfig;
use crate::files::own_models::Architecture;

/// Returns the sinusoidal embedding of a timestep in 0..1000: cosines, then sines.
///
/// Source: FLUX.2 reference `Timesteps(flip_sin_to_cos=True, downscale_freq_shift=0)`.
pub fn timestep_embedding(timestep: f32, channels: usize) -> Vec<f32> {
    let half = channels / 2;
    let angle = |i: usize| timestep * (-(10000f32.ln()) * i as f32 / half as f32).exp();
    (0..half).map(|i| angle(i).cos()).chain((0..half).map(|i| angle(i).sin())).collect()
}

/// Returns the time in 0..1000 that the reference embeds for a noise level when it computes in bf16.
///
/// Source: FLUX.2 reference pipeline, which multiplies by 1000 and divides by it before the transformer, which
/// multiplies again; FLUX.3 reference transformer, which takes noise levels.
pub fn time_in_bf16(config: &TransformerConfig, sigma: f32) -> f32 {
    let round = |value: f32| bf16::from_f32(value).to_f32();
    let read = match config.architecture() {
        Architecture::Flux2 => round(round(1000.0 * sigma) / 1000.0),
        Architecture::Flux3 => round(sigma),
    };
    round(1000.0 * read)
}

/// Returns the rotary (cos, sin) of each position, each [positions, head_dim / 2]: the pairs of axis t, then of h, w
/// and l.
///
/// Angles are in float64, as in the reference.
pub fn rope_tables(config: &TransformerConfig, ids: &[[f32; 4]]) -> (Vec<f32>, Vec<f32>) {
    let half = config.attention_head_dim / 2;
    let (mut cos, mut sin) = (vec![0.0; ids.len() * half], vec![0.0; ids.len() * half]);
    let mut first = 0;
    for (axis, &dim) in config.axes_dims_rope.iter().enumerate() {
        // An image has few coordinates and many tokens, so angles are computed once for each coordinate.
        let of_place = |place: f32| -> Vec<(f32, f32)> {
            let angle = |j: usize| f64::from(place) * config.rope_theta.powf(-(2.0 * j as f64) / dim as f64);
            (0..dim / 2).map(|j| (angle(j).cos() as f32, angle(j).sin() as f32)).collect()
        };
        let mut table: HashMap<u32, Vec<(f32, f32)>> = HashMap::new();
        for (token, id) in ids.iter().enumerate() {
            let angles = table.entry(id[axis].to_bits()).or_insert_with(|| of_place(id[axis]));
            for (j, &(c, s)) in angles.iter().enumerate() {
                cos[token * half + first + j] = c;
                sin[token * half + first + j] = s;
            }
        }
        first += dim / 2;
    }
    (cos, sin)
}
