//! Embeddings of timesteps and positions: computed on the host, uploaded once.

use super::TransformerConfig;

/// The sinusoidal embedding of a timestep in 0..1000: cosines, then sines.
///
/// Source: FLUX.2 reference `Timesteps(flip_sin_to_cos=True, downscale_freq_shift=0)`.
pub fn timestep_embedding(timestep: f32, channels: usize) -> Vec<f32> {
    let half = channels / 2;
    let angle = |i: usize| timestep * (-(10000f32.ln()) * i as f32 / half as f32).exp();
    (0..half).map(|i| angle(i).cos()).chain((0..half).map(|i| angle(i).sin())).collect()
}

/// How far on the axis t one reference image is from the next, and the first one from the image.
const REFERENCE_STEP: usize = 10;

/// Positions on the axes (t, h, w, l): `txt` text tokens (0, 0, 0, s), then the tokens of each reference image k (10 *
/// (k + 1), y, x, 0) and the image's (0, y, x, 0), row by row. Sizes are [height, width] in tokens.
///
/// Source: FLUX.2 reference pipeline, `_prepare_text_ids`, `_prepare_image_ids` and `_prepare_latent_ids`.
pub fn position_ids(txt: usize, references: &[[usize; 2]], image: [usize; 2]) -> Vec<[usize; 4]> {
    let text = (0..txt).map(|s| [0, 0, 0, s]);
    let tokens = |t: usize, [height, width]: [usize; 2]| (0..height * width).map(move |n| [t, n / width, n % width, 0]);
    let references = (1..).zip(references).flat_map(|(k, &size)| tokens(REFERENCE_STEP * k, size));
    text.chain(references).chain(tokens(0, image)).collect()
}

/// Rotary (cos, sin) of each position, each [positions, head_dim / 2]: the pairs of axis t, then of h, w and l.
///
/// Angles in float64, as the reference has them.
pub fn rope_tables(config: &TransformerConfig, ids: &[[usize; 4]]) -> (Vec<f32>, Vec<f32>) {
    let half = config.attention_head_dim / 2;
    let (mut cos, mut sin) = (vec![0.0; ids.len() * half], vec![0.0; ids.len() * half]);
    let mut first = 0;
    for (axis, &dim) in config.axes_dims_rope.iter().enumerate() {
        // An image has few coordinates and many tokens, so each coordinate's angles are computed once.
        let places = ids.iter().map(|id| id[axis]).max().map_or(0, |last| last + 1);
        let of_place = |place: usize| -> Vec<(f32, f32)> {
            let angle = |j: usize| place as f64 * config.rope_theta.powf(-(2.0 * j as f64) / dim as f64);
            (0..dim / 2).map(|j| (angle(j).cos() as f32, angle(j).sin() as f32)).collect()
        };
        let table: Vec<Vec<(f32, f32)>> = (0..places).map(of_place).collect();
        for (token, id) in ids.iter().enumerate() {
            for (j, &(c, s)) in table[id[axis]].iter().enumerate() {
                cos[token * half + first + j] = c;
                sin[token * half + first + j] = s;
            }
        }
        first += dim / 2;
    }
    (cos, sin)
}
