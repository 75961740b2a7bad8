//! Search for the scale, or scale and minimum, that represent values best with a few integers: weighted least squares
//! for each of several roundings of the values to integers.

/// Sums run in this number of lanes, so that their order does not depend on the processor.
const LANES: usize = 8;
type Lanes = [f32; LANES];
/// The roundings that are tried: `STEPS` on either side of the one that uses the whole range of integers. Their largest
/// integers are `STEP` apart.
const STEPS: i8 = 6;
const STEP: f32 = 0.3;

/// Returns `value`, clamped to the range, as the nearest integer. Ties go to even integers. The range is within 2^22.
#[inline(always)]
pub fn code(value: f32, [low, high]: [f32; 2]) -> f32 {
    // The sum has no bits for a fraction.
    const MAGIC: f32 = (3 << 22) as f32;
    // Each is one instruction, unlike `clamp`, which checks its range, and `max`, which looks for NaN.
    let value = if value > low { value } else { low };
    let value = if value < high { value } else { high };
    (value + MAGIC) - MAGIC
}

/// Returns the weight of each value's error: larger for large values, which matter more in a matrix multiplication.
fn weights<const N: usize>(values: &[f32; N]) -> [f32; N] {
    let rms = (sum(values, |value| value * value) / N as f32).sqrt();
    values.map(|value| rms + value.abs())
}

/// Returns a sum, computed in lanes.
#[inline(always)]
fn sum<const N: usize>(values: &[f32; N], term: impl Fn(f32) -> f32) -> f32 {
    let add = |lanes: Lanes, values: &Lanes| each(|lane| lanes[lane] + term(values[lane]));
    total(values.as_chunks::<LANES>().0.iter().fold([0.0; LANES], add))
}

/// Returns the lanes with `value` of each.
#[inline(always)]
fn each(value: impl Fn(usize) -> f32) -> Lanes {
    let mut lanes = [0.0; LANES];
    for (lane, out) in lanes.iter_mut().enumerate() {
        *out = value(lane);
    }
    lanes
}

/// Returns the sum of the lanes, by halves.
#[inline(always)]
fn total(lanes: Lanes) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Weighted sums over integers q that represent values x.
struct Sums {
    q: f32,
    qq: f32,
    qx: f32,
}

impl Sums {
    #[inline(always)]
    fn new<const N: usize>(values: &[f32; N], weights: &[f32; N], code: impl Fn(f32) -> f32) -> Self {
        let [mut sum_q, mut sum_qq, mut sum_qx] = [[0.0; LANES]; 3];
        for (x, weight) in values.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            let q = each(|lane| code(x[lane]));
            let weighted = each(|lane| weight[lane] * q[lane]);
            sum_q = each(|lane| sum_q[lane] + weighted[lane]);
            sum_qq = each(|lane| sum_qq[lane] + weighted[lane] * q[lane]);
            sum_qx = each(|lane| sum_qx[lane] + weighted[lane] * x[lane]);
        }
        Self { q: total(sum_q), qq: total(sum_qq), qx: total(sum_qx) }
    }
}

/// Returns the scale d for which `d q` is nearest to the values, with q in `-half..half`. It is 0 for zeros, and may be
/// negative.
pub fn scale<const N: usize>(values: &[f32; N], half: f32) -> f32 {
    let extreme = values.iter().fold(0f32, |extreme, value| if value.abs() > extreme.abs() { *value } else { extreme });
    // The inverse of a smaller magnitude would be infinite.
    if extreme.abs() < f32::MIN_POSITIVE * 1e3 {
        return 0.0;
    }
    let weights = weights(values);
    let (mut best, mut largest_gain) = (0.0, 0.0);
    for step in -STEPS..=STEPS {
        // The value furthest from zero becomes the integer furthest from zero, which is negative.
        let inverse = -(half + STEP * f32::from(step)) / extreme;
        let sums = Sums::new(values, &weights, |value| code(value * inverse, [-half, half - 1.0]));
        // The error is the weighted sum of the squared values minus this gain.
        let gain = if sums.qq > 0.0 { sums.qx * sums.qx / sums.qq } else { 0.0 };
        if gain > largest_gain {
            (best, largest_gain) = (sums.qx / sums.qq, gain);
        }
    }
    best
}

/// Returns the scale s and the minimum m for which `s q + m` is nearest to the values, with q in `0..=levels`. With
/// `below_zero`, m is at most 0.
pub fn scale_and_least<const N: usize>(values: &[f32; N], levels: f32, below_zero: bool) -> [f32; 2] {
    let (low, high) = values.iter().fold((values[0], values[0]), |(low, high), v| (low.min(*v), high.max(*v)));
    let low = if below_zero { low.min(0.0) } else { low };
    if high - low < f32::MIN_POSITIVE * 1e3 {
        return [0.0, low];
    }
    let weights = weights(values);
    // Relative to the minimum, sums lose fewer bits.
    let above = values.map(|value| value - low);
    let total = f64::from(sum(&weights, |weight| weight));
    let whole = Sums::new(&above, &weights, |value| value);
    let (whole_x, whole_xx) = (f64::from(whole.q), f64::from(whole.qq));
    let (mut best, mut least_error) = ([0.0, low], f64::INFINITY);
    for step in -STEPS..=STEPS {
        let inverse = (levels + STEP * f32::from(step)) / (high - low);
        let sums = Sums::new(&above, &weights, |value| code(value * inverse, [0.0, levels]));
        let [q, qq, qx] = [sums.q, sums.qq, sums.qx].map(f64::from);
        let determinant = total * qq - q * q;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (total * qx - whole_x * q) / determinant;
        let mut offset = (qq * whole_x - q * qx) / determinant;
        if below_zero && offset > f64::from(-low) {
            offset = f64::from(-low);
            scale = (qx - offset * q) / qq;
        }
        let error = whole_xx + scale * scale * qq + offset * offset * total - 2.0 * scale * qx - 2.0 * offset * whole_x
            + 2.0 * scale * offset * q;
        if scale > 0.0 && error < least_error {
            (best, least_error) = ([scale as f32, (f64::from(low) + offset) as f32], error);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn integers_are_the_nearest_and_in_range() {
        for (value, expected) in [(0.5, 0.0), (1.5, 2.0), (-2.5, -2.0), (6.9, 7.0), (7.6, 7.0), (-1e30, -8.0)] {
            assert_eq!(code(value, [-8.0, 7.0]), expected, "{value}");
        }
    }

    #[test]
    fn multiples_of_a_scale_are_found_whatever_their_signs() {
        for sign in [1.0, -1.0] {
            let values: [f32; 32] = std::array::from_fn(|i| sign * 0.25 * (i % 16) as f32 - sign * 2.0);
            let d = scale(&values, 8.0);
            let worst = values.iter().map(|value| (value - d * code(value / d, [-8.0, 7.0])).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-6, "{d}: {worst}");
        }
        assert_eq!((scale(&[0.0; 16], 8.0), scale(&[1e-40; 16], 8.0)), (0.0, 0.0));
    }

    #[test]
    fn a_least_value_is_found_and_stays_below_zero_where_it_must() {
        let values: [f32; 32] = std::array::from_fn(|i| 3.0 + 0.5 * (i % 16) as f32);
        let [s, m] = scale_and_least(&values, 15.0, false);
        assert!((s - 0.5).abs() < 1e-5 && (m - 3.0).abs() < 1e-5, "{s} {m}");
        let [s, m] = scale_and_least(&values, 15.0, true);
        assert!(m <= 0.0 && s > 0.6, "{s} {m}");
        assert_eq!(scale_and_least(&[-2.0; 32], 15.0, true), [0.0, -2.0]);
    }

    #[test]
    fn the_error_is_less_than_with_the_whole_range() {
        let mut random = Random(1);
        let (mut searched, mut whole) = (0.0, 0.0);
        for _ in 0..200 {
            let values: [f32; 32] = std::array::from_fn(|_| random.normal());
            let error = |d: f32| values.iter().map(|v| (v - d * code(v / d, [-8.0, 7.0])).powi(2)).sum::<f32>();
            searched += error(scale(&values, 8.0));
            let extreme = values.iter().fold(0f32, |a, v| if v.abs() > a.abs() { *v } else { a });
            whole += error(extreme / -8.0);
        }
        println!("root mean square error {:.3} of the other", (searched / whole).sqrt());
        assert!(searched < 0.95 * whole, "{searched} {whole}");
    }
}
