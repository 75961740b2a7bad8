//! Ops as plain loops in float64, for independent results.

use rayon::prelude::*;

use flux::ops::Conv;

/// A dense row-major matrix.
pub struct Matrix<'a> {
    pub values: &'a [f32],
    pub cols: usize,
}

impl Matrix<'_> {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }

    fn rows(&self) -> usize {
        self.values.len() / self.cols.max(1)
    }
}

fn dot(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

/// Computes `x W^T + bias`.
pub fn linear(x: &Matrix<'_>, weight: &Matrix<'_>, bias: Option<&[f32]>) -> Vec<f32> {
    let out = weight.rows();
    let value = |row: usize, col: usize| {
        let bias = bias.map_or(0.0, |bias| f64::from(bias[col]));
        (dot(x.row(row), weight.row(col)) + bias) as f32
    };
    (0..x.rows()).into_par_iter().flat_map_iter(|row| (0..out).map(move |col| value(row, col))).collect()
}

/// Computes `softmax(q k^T / sqrt(head_dim)) v` of concatenated heads. Several heads of q may share a head of k and v.
/// With `keys`, attention is causal and limited to the first `keys` tokens.
pub fn attention([q, k, v]: [&Matrix<'_>; 3], head_dim: usize, keys: Option<usize>) -> Vec<f32> {
    let (heads, shared) = (q.cols / head_dim, q.cols / k.cols);
    let head = |row: usize, head: usize| -> Vec<f64> {
        let of = |x: &[f32], head: usize| -> Vec<f32> { x[head * head_dim..][..head_dim].to_vec() };
        let (query, seen) = (of(q.row(row), head), keys.map_or(k.rows(), |keys| keys.min(row + 1)));
        let scale = (head_dim as f64).sqrt();
        let scores: Vec<f64> = (0..seen).map(|key| dot(&query, &of(k.row(key), head / shared)) / scale).collect();
        let largest = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut out = vec![0.0; head_dim];
        for (key, weight) in weights.iter().enumerate() {
            for (out, value) in out.iter_mut().zip(of(v.row(key), head / shared)) {
                *out += weight / sum * f64::from(value);
            }
        }
        out
    };
    let row = |row: usize| (0..heads).flat_map(move |i| head(row, i)).map(|value| value as f32);
    (0..q.rows()).into_par_iter().flat_map_iter(row).collect()
}

/// Computes a convolution of pixels [height * width, channels] with weights [out, channels, kernel, kernel].
pub fn convolution(x: &Matrix<'_>, weights: &[f32], bias: &[f32], conv: Conv) -> Vec<f32> {
    let (channels, kernel) = (x.cols, conv.kernel);
    let value = |row: usize, col: usize, out: usize| {
        let mut sum = f64::from(bias[out]);
        for (dy, dx) in (0..kernel).flat_map(|dy| (0..kernel).map(move |dx| (dy, dx))) {
            let place = |at: usize, d: usize, len: usize| {
                (at * conv.stride + d).checked_sub(conv.pad_before).filter(|at| *at < len)
            };
            let (Some(y), Some(at)) = (place(row, dy, conv.height), place(col, dx, conv.width)) else { continue };
            let pixel = x.row(y * conv.width + at);
            let weight = |channel: usize| weights[((out * channels + channel) * kernel + dy) * kernel + dx];
            sum += pixel.iter().enumerate().map(|(i, value)| f64::from(*value) * f64::from(weight(i))).sum::<f64>();
        }
        sum as f32
    };
    let places = (0..conv.out_height()).flat_map(|row| (0..conv.out_width()).map(move |col| (row, col)));
    let places: Vec<_> = places.collect();
    places.into_par_iter().flat_map_iter(|(row, col)| (0..bias.len()).map(move |out| value(row, col, out))).collect()
}

/// Computes `(value - mean) / sqrt(variance + eps)`, with the mean subtracted only if `centred`.
fn normed(values: &[f64], centred: bool, eps: f64) -> Vec<f64> {
    let n = values.len() as f64;
    let mean = if centred { values.iter().sum::<f64>() / n } else { 0.0 };
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
    values.iter().map(|value| (value - mean) / (variance + eps).sqrt()).collect()
}

/// Normalizes each row, with its mean subtracted if `centred`.
pub fn row_norm(x: &Matrix<'_>, centred: bool, eps: f64) -> Vec<f64> {
    let row = |row: usize| normed(&x.row(row).iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), centred, eps);
    (0..x.rows()).flat_map(row).collect()
}

/// Normalizes each group of channels over all pixels.
pub fn group_norm(x: &Matrix<'_>, groups: usize, eps: f64) -> Vec<f64> {
    let (size, mut out) = (x.cols / groups, vec![0.0; x.values.len()]);
    for group in 0..groups {
        let places = (0..x.rows()).flat_map(|row| (0..size).map(move |i| row * x.cols + group * size + i));
        let places: Vec<usize> = places.collect();
        let values: Vec<f64> = places.iter().map(|place| f64::from(x.values[*place])).collect();
        places.iter().zip(normed(&values, true, eps)).for_each(|(place, value)| out[*place] = value);
    }
    out
}

/// Computes `x / (1 + exp(-x))`.
pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_give_what_a_hand_computes() {
        let x = Matrix { values: &[1.0, 2.0, 3.0, 4.0], cols: 2 };
        assert_eq!(linear(&x, &Matrix { values: &[1.0, 1.0], cols: 2 }, Some(&[0.5])), [3.5, 7.5]);
        let one = Matrix { values: &[0.0, 0.0], cols: 1 };
        let v = Matrix { values: &[1.0, 3.0], cols: 1 };
        assert_eq!(attention([&one, &one, &v], 1, None), [2.0, 2.0]);
        assert_eq!(attention([&one, &one, &v], 1, Some(2)), [1.0, 2.0]);
        let image = Matrix { values: &[1.0, 2.0, 3.0, 4.0], cols: 1 };
        assert_eq!(convolution(&image, &[1.0; 9], &[0.0], Conv::same(2, 2, 3)), [10.0; 4]);
        assert_eq!(convolution(&image, &[1.0; 9], &[1.0], Conv::halve(2, 2)), [11.0]);
        assert_eq!(row_norm(&x, true, 0.0), [-1.0, 1.0, -1.0, 1.0]);
        assert_eq!(group_norm(&Matrix { values: &[1.0, 5.0, 3.0, 5.0], cols: 2 }, 2, 1.0)[1], 0.0);
        assert_eq!(silu(0.0), 0.0);
    }
}
