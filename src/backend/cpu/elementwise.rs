//! Elementwise arithmetic on one row.

use crate::ops::Pairs;

pub(super) fn relu(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x });
}

pub(super) fn leaky_relu(x: &mut [f32], slope: &[f32]) {
    x.iter_mut().zip(slope).for_each(|(x, slope)| *x = if *x < 0.0 { slope * *x } else { *x });
}

pub(super) fn softcap(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
}

pub(super) fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

pub(super) fn mul(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x *= y);
}

pub(super) fn scale_shift(x: &mut [f32], scale: &[f32], shift: &[f32]) {
    x.iter_mut().zip(scale).zip(shift).for_each(|((x, scale), shift)| *x = (1.0 + scale) * *x + shift);
}

pub(super) fn affine(x: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    out.iter_mut().zip(x).zip(scale).zip(shift).for_each(|(((out, x), scale), shift)| *out = x * scale + shift);
}

/// Rotates every head of a row; `cos` and `sin` are half as long as a head.
pub(super) fn rope(x: &mut [f32], cos: &[f32], sin: &[f32], pairs: Pairs) {
    let half = cos.len();
    for head in x.chunks_exact_mut(2 * half) {
        for i in 0..half {
            let (first, second) = match pairs {
                Pairs::Interleaved => (2 * i, 2 * i + 1),
                Pairs::Halves => (i, i + half),
            };
            let (a, b) = (head[first], head[second]);
            head[first] = a * cos[i] - b * sin[i];
            head[second] = b * cos[i] + a * sin[i];
        }
    }
}
