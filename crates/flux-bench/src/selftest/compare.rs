//! Comparison of a device's results with expected values, within a bound.

use std::fmt;

use flux::tensor::Dtype;

/// The allowed error.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// The maximum relative error of one rounding, see [`rounding`].
    pub rounding: f32,
    /// The allowed number of roundings, relative to the value's own magnitude plus the typical one.
    pub roundings: f32,
    /// The weight of the typical magnitude.
    pub spread: f32,
}

/// Returns the maximum relative error of rounding a stored value. bf16 has 8 significant bits, the first of them
/// implied, so the error is half of the spacing 2^-7; fp16 has 3 bits more. float32 rounds by 2^-24, but sums of
/// thousands of terms in another order, or split into bfloat16 parts, differ by more.
pub fn rounding(activations: Dtype) -> f32 {
    match activations {
        Dtype::Bf16 => 1.0 / 256.0,
        Dtype::F16 => 1.0 / 2048.0,
        _ => 1.0 / 65536.0,
    }
}

/// The error allowed when all expected values are 0. It is far below any value of an image.
const TINY: f32 = 1e-30;

/// The difference between results and expected values.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The maximum difference.
    pub worst: f32,
    /// The mean magnitude of the differences.
    pub mean: f64,
    /// 1 - cosine of both as vectors.
    pub angle: f64,
    /// The typical magnitude of the expected values.
    pub rms: f32,
    /// The first values outside the bound: index, expected and actual.
    pub first_bad: Vec<(usize, f32, f32)>,
    /// The number of values outside the bound.
    pub bad: usize,
    /// The number of values.
    pub count: usize,
    bound: Bound,
}

/// Compares values with as many expected values. NaN is outside the bound.
pub fn compare(got: &[f32], expected: &[f32], bound: Bound) -> Comparison {
    let squares = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let n = expected.len().max(1) as f64;
    let rms = (squares(expected) / n).sqrt() as f32;
    let allowed = |expected: f32| bound.roundings * bound.rounding * (expected.abs() + bound.spread * rms) + TINY;
    let (mut worst, mut sum, mut dot, mut bad, mut first_bad) = (0f32, 0f64, 0f64, 0, Vec::new());
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let difference = (g - e).abs();
        // `false` for NaN.
        let near = difference <= allowed(e);
        if !near {
            bad += 1;
            if first_bad.len() < 5 {
                first_bad.push((i, e, g));
            }
        }
        worst = worst.max(difference);
        sum += f64::from(difference);
        dot += f64::from(g) * f64::from(e);
    }
    let norms = (squares(got) * squares(expected)).sqrt();
    let cosine = if norms == 0.0 { f64::from(u8::from(squares(got) == squares(expected))) } else { dot / norms };
    let bad = bad + got.len().abs_diff(expected.len());
    Comparison { worst, mean: sum / n, angle: 1.0 - cosine, rms, first_bad, bad, count: expected.len(), bound }
}

impl Comparison {
    /// Returns the fault, if any: values outside the bound, or more small differences than rounding explains, which has
    /// a mean of at most half of the bound.
    pub fn complaint(&self) -> Option<String> {
        let Self { bad, count, mean, angle, rms, bound, .. } = self;
        let allowed = bound.roundings * bound.rounding;
        if *bad > 0 {
            let values = self.first_bad.iter().map(|(i, e, g)| format!("[{i}] is {g}, expected {e}"));
            let values = values.collect::<Vec<_>>().join("; ");
            return Some(format!(
                "{bad} of {count} values differ by more than {} roundings: {values}",
                bound.roundings
            ));
        }
        // `false` for NaN.
        let is_small = *mean <= f64::from(allowed * rms) + f64::from(TINY);
        if !is_small {
            return Some(format!("the mean difference is {mean:.1e}"));
        }
        let is_straight = *angle <= f64::from(allowed).powi(2) + 1e-7;
        (!is_straight).then(|| format!("1 - cos is {angle:.1e}"))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worst, mean, angle, rms, .. } = self;
        write!(f, "max {worst:.2e}, mean {mean:.2e}, 1 - cos {angle:.1e}, rms of values {rms:.2e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound { rounding: 1.0 / 256.0, roundings: 1.0, spread: 1.0 };

    #[test]
    fn one_rounding_is_near_and_two_are_not() {
        let expected: Vec<f32> = (0..100).map(|i| (i as f32 - 50.0) / 10.0).collect();
        let off = |by: f32| {
            let got: Vec<f32> = expected.iter().map(|value| value * (1.0 + by)).collect();
            compare(&got, &expected, BOUND).complaint()
        };
        assert_eq!(off(1.0 / 256.0), None);
        assert!(off(3.0 / 256.0).is_some_and(|why| why.contains("[0] is -5.0")));
    }

    #[test]
    fn what_is_no_number_or_missing_is_too_far() {
        assert!(compare(&[f32::NAN], &[1.0], BOUND).complaint().is_some());
        assert!(compare(&[1.0], &[1.0, 1.0], BOUND).complaint().is_some());
        assert_eq!(compare(&[0.0; 9], &[0.0; 9], BOUND).complaint(), None);
        assert!(compare(&[1.0; 9], &[0.0; 9], BOUND).complaint().is_some());
    }

    #[test]
    fn many_small_differences_to_one_side_are_told() {
        let expected = [1.0, -1.0].repeat(50);
        let got: Vec<f32> = expected.iter().map(|value| value * (1.0 + 1.9 / 256.0)).collect();
        assert!(compare(&got, &expected, BOUND).complaint().is_some_and(|why| why.contains("mean difference")));
    }
}
