//! Weights in 4 bits that are multiplied as 8-bit integers: what a row of a weight becomes, and how its bytes lie.
//!
//! A row is rotated, and divided by a scale, as in [`super::int8`]: its largest magnitude becomes 127. Then each 16
//! columns share a multiplier in fp16, and a column has an integer of 4 bits:
//!
//! ```text
//! u           = value * (127 / max |value|)       of the rotated row
//! multiplier  = fp16(u / -128) of the u with the largest magnitude of 16, which becomes -8; or fp16(max |u| / 112), so
//!               that it becomes 7 or -7: the one with the least error
//! n           = round(u * (0.0625 / multiplier))        ties to even: -8 to 7
//! q           = round(n * multiplier * 16)            ties to even: -127 to 127
//! x weight^T  = sum(q_x q) * (scale_x * scale)    q_x and scale_x as in int8
//! ```
//!
//! cuda/quantise_w4a8.cu makes the same bytes, and cuda/linear_w4a8.cu has equal sums.

use half::f16;

use super::int8;

/// Columns that share a multiplier.
const BLOCK: usize = 16;
/// Columns whose bytes lie together.
const UNIT: usize = 64;
const CODE_BYTES: usize = UNIT / 2;
const MULTIPLIER_BYTES: usize = UNIT / BLOCK * size_of::<f16>();
/// Rows of integers of that many columns and more are longer than one block of threads holds.
const MOST_COLS: usize = 4 * 8 * 512;
/// Multipliers are in units of this: what kernels add to 96 in fp16 is rounded to sixteenths.
const UNITS: f32 = 16.0;

/// Whether rows of `cols` columns can be in 4 bits; others are in 8.
pub fn takes(cols: usize) -> bool {
    cols > 0 && cols.is_multiple_of(UNIT) && cols <= MOST_COLS
}

/// Bytes of a row of columns that [`takes`] takes, with its padding.
pub fn row_bytes(cols: usize) -> usize {
    (cols / UNIT * (CODE_BYTES + MULTIPLIER_BYTES)).next_multiple_of(16)
}

/// 16 columns: their multiplier, and an integer each.
struct Block {
    multiplier: f16,
    codes: [i8; BLOCK],
}

impl Block {
    fn new(values: &[f32]) -> Self {
        let (most, least) =
            values.iter().fold((0.0, 0.0), |(most, least): (f32, f32), u| (most.max(*u), least.min(*u)));
        let (largest, amax) = if most >= -least { (most, most) } else { (least, -least) };
        let [eight, seven] =
            [largest * (-1.0 / 128.0), amax * (1.0 / 112.0)].map(|multiplier| Self::with(multiplier, values));
        if seven.error(values) < eight.error(values) { seven } else { eight }
    }

    fn with(multiplier: f32, values: &[f32]) -> Self {
        let multiplier = f16::from_f32(multiplier);
        let per_integer = if multiplier.to_f32() == 0.0 { 0.0 } else { 1.0 / UNITS / multiplier.to_f32() };
        let mut codes = [0; BLOCK];
        codes.iter_mut().zip(values).for_each(|(n, u)| *n = (u * per_integer).round_ties_even().clamp(-8.0, 7.0) as i8);
        Self { multiplier, codes }
    }

    fn integers(&self) -> [f32; BLOCK] {
        self.codes.map(|n| (f32::from(n) * self.multiplier.to_f32() * UNITS).round_ties_even())
    }

    /// The sum of squares by which the integers are off: each half by itself, in its order.
    fn error(&self, values: &[f32]) -> f32 {
        let integers = self.integers();
        let square = |(u, q): (&f32, &f32)| (u - q) * (u - q);
        let halves = values.chunks(BLOCK / 2).zip(integers.chunks(BLOCK / 2));
        halves.map(|(values, integers)| values.iter().zip(integers).map(square).sum::<f32>()).sum()
    }
}

/// The blocks of a row, after each `group` columns of `values` were rotated in place, and the row's scale.
fn blocks(values: &mut [f32], group: usize) -> (impl Iterator<Item = Block> + '_, f32) {
    let amax = int8::rotate_row(values, group);
    let inverse = int8::MOST / amax;
    values.iter_mut().for_each(|value| *value *= inverse);
    (values.chunks(BLOCK).map(Block::new), amax / int8::MOST)
}

/// The integers by which a row is multiplied, after each `group` columns of `values` were rotated in place, and its
/// scale. `out` is as long as `values`, whose number [`takes`] takes.
pub fn quantise_row(values: &mut [f32], group: usize, out: &mut [i8]) -> f32 {
    let (blocks, scale) = blocks(values, group);
    for (out, block) in out.chunks_mut(BLOCK).zip(blocks) {
        out.iter_mut().zip(block.integers()).for_each(|(out, q)| *out = q as i8);
    }
    scale
}

/// The integers of a row of `cols` columns as it lies in memory.
pub fn integers_of_row(bytes: &[u8], cols: usize) -> Vec<i8> {
    let (codes, multipliers) = bytes.split_at(cols / UNIT * CODE_BYTES);
    let block = |index: usize| {
        let (unit, half, second) = (index / 4, index / 2 % 2, index % 2);
        let mut block = Block {
            multiplier: f16::from_le_bytes([multipliers[2 * index], multipliers[2 * index + 1]]),
            codes: [0; BLOCK],
        };
        for (word, columns) in block.codes.chunks_mut(4).enumerate() {
            let at = unit * CODE_BYTES + half * CODE_BYTES / 2 + word * 4 + second;
            let (even, odd) = (codes[at], codes[at + 2]);
            let nibbles = [even & 15, odd & 15, even >> 4, odd >> 4];
            columns.iter_mut().zip(nibbles).for_each(|(n, nibble)| *n = nibble as i8 - 8);
        }
        block
    };
    (0..cols / BLOCK).flat_map(|index| block(index).integers().map(|q| q as i8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of about normal values.
    fn row(cols: usize) -> Vec<f32> {
        let uniform = |i: usize| (i as f32 * 0.618_034).fract() + (i as f32 * 0.414_214).fract() - 1.0;
        (0..cols).map(|i| uniform(i) + uniform(i * 7 + 3)).collect()
    }

    #[test]
    fn the_largest_value_becomes_127_and_all_are_within_a_step() {
        let mut values = row(256);
        let mut integers = vec![0; 256];
        let scale = quantise_row(&mut values, 1, &mut integers);
        assert_eq!(integers.iter().map(|q| q.unsigned_abs()).max(), Some(127));
        let mut squares = [0.0; 2];
        for (block, values) in integers.chunks(16).zip(values.chunks(16)) {
            let most = values.iter().fold(0.0, |most: f32, u| most.max(u.abs()));
            for (q, u) in block.iter().zip(values) {
                // A step of a seventh, and half of an integer: the one that is farthest may be cut off.
                assert!((f32::from(*q) - u).abs() <= most / 7.0 + 0.6, "{q} for {u}");
                squares[0] += (f32::from(*q) - u).powi(2);
                squares[1] += u * u;
            }
        }
        let error = (squares[0] / squares[1]).sqrt();
        assert!(error < 0.1, "{error}");
        assert!((scale * 127.0 - row(256).iter().fold(0.0, |most: f32, v| most.max(v.abs()))).abs() < 1e-6);
    }

    #[test]
    fn rows_of_zeros_and_of_nan_are_told_by_their_scale() {
        let mut integers = vec![1; 64];
        assert!(quantise_row(&mut [0.0; 64], 64, &mut integers) > 0.0 && integers == [0; 64]);
        assert!(quantise_row(&mut [f32::NAN; 64], 64, &mut integers).is_nan());
    }

    #[test]
    fn rows_of_whole_units_are_taken() {
        assert_eq!([0, 64, 72, 3072, 16384, 16448].map(takes), [false, true, false, true, true, false]);
        assert_eq!([64, 128, 3072].map(row_bytes), [48, 80, 1920]);
    }

    #[test]
    fn bytes_of_a_row_are_read_as_they_lie() {
        // Column 0 is 7, column 19 -8, column 63 3, by 1, 2 and 8; all others 0.
        let mut bytes = [0x88; 48];
        bytes[0] = 0x8f;
        bytes[3] = 0x08;
        bytes[31] = 0xb8;
        for (block, multiplier) in [1.0, 2.0, 4.0, 8.0].into_iter().enumerate() {
            let at = CODE_BYTES + 2 * block;
            bytes[at..at + 2].copy_from_slice(&f16::from_f32(multiplier / UNITS).to_le_bytes());
        }
        let integers = integers_of_row(&bytes, 64);
        let found: Vec<_> = integers.iter().enumerate().filter(|(_, q)| **q != 0).map(|(i, q)| (i, *q)).collect();
        assert_eq!(found, [(0, 7), (19, -16), (63, 24)]);
    }
}
