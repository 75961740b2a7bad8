//! 4-bit weights that are multiplied as 8-bit integers: the quantization of a row, and the layout of its bytes.
//!
//! A row is rotated and divided by a scale as in [`crate::formats::int8`], so that its largest magnitude becomes 127.
//! Each 16 columns share a multiplier in fp16, and each column has a 4-bit integer:
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
//! cuda/quantize_w4a8.cu makes the same bytes, and cuda/linear_w4a8.cu computes equal sums.

use half::f16;

use crate::formats::int8;

/// Columns that share a multiplier.
const BLOCK: usize = 16;
/// Columns whose bytes are contiguous.
const UNIT: usize = 64;
const CODE_BYTES: usize = UNIT / 2;
const MULTIPLIER_BYTES: usize = UNIT / BLOCK * size_of::<f16>();
/// The max number of columns: longer rows of integers exceed one block of threads.
const MAX_COLS: usize = 4 * 8 * 512;
/// The unit of multipliers: numbers that kernels add to 96 in fp16 are rounded to sixteenths.
const UNITS: f32 = 16.0;

/// Returns `true` if rows of `cols` columns can have 4 bits; other rows have 8 bits.
pub fn takes(cols: usize) -> bool {
    cols > 0 && cols.is_multiple_of(UNIT) && cols <= MAX_COLS
}

/// Returns the bytes of a row, including padding. [`takes`] must accept the number of columns.
pub fn row_bytes(cols: usize) -> usize {
    (cols / UNIT * (CODE_BYTES + MULTIPLIER_BYTES)).next_multiple_of(16)
}

/// A block of 16 columns: their multiplier, and an integer for each column.
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

    /// Returns the sum of squared errors of the integers. Each half is summed separately, in order.
    fn error(&self, values: &[f32]) -> f32 {
        let integers = self.integers();
        let square = |(u, q): (&f32, &f32)| (u - q) * (u - q);
        let halves = values.chunks(BLOCK / 2).zip(integers.chunks(BLOCK / 2));
        halves.map(|(values, integers)| values.iter().zip(integers).map(square).sum::<f32>()).sum()
    }
}

/// Rotates each `group` columns of `values` in place, and returns the blocks of the row and its scale.
fn blocks(values: &mut [f32], group: usize) -> (impl Iterator<Item = Block> + '_, f32) {
    let amax = int8::rotate_row(values, group);
    let inverse = int8::MAX / amax;
    values.iter_mut().for_each(|value| *value *= inverse);
    (values.chunks(BLOCK).map(Block::new), amax / int8::MAX)
}

/// Rotates each `group` columns of `values` in place, writes the integers that stand for the row in products to `out`,
/// and returns the row's scale. `out` is as long as `values`, and [`takes`] must accept the length.
pub fn quantize_row(values: &mut [f32], group: usize, out: &mut [i8]) -> f32 {
    let (blocks, scale) = blocks(values, group);
    for (out, block) in out.chunks_mut(BLOCK).zip(blocks) {
        out.iter_mut().zip(block.integers()).for_each(|(out, q)| *out = q as i8);
    }
    scale
}

/// Returns the integers of a row of `cols` columns, decoded from its bytes in memory.
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

    /// Returns roughly normal values.
    fn row(cols: usize) -> Vec<f32> {
        let uniform = |i: usize| (i as f32 * 0.618_034).fract() + (i as f32 * 0.414_214).fract() - 1.0;
        (0..cols).map(|i| uniform(i) + uniform(i * 7 + 3)).collect()
    }

    #[test]
    fn the_largest_value_becomes_127_and_all_are_within_a_step() {
        let mut values = row(256);
        let mut integers = vec![0; 256];
        let scale = quantize_row(&mut values, 1, &mut integers);
        assert_eq!(integers.iter().map(|q| q.unsigned_abs()).max(), Some(127));
        let mut squares = [0.0; 2];
        for (block, values) in integers.chunks(16).zip(values.chunks(16)) {
            let most = values.iter().fold(0.0, |most: f32, u| most.max(u.abs()));
            for (q, u) in block.iter().zip(values) {
                // A whole step of a seventh, because the farthest value may be clamped, and rounding to an integer.
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
        assert!(quantize_row(&mut [0.0; 64], 64, &mut integers) > 0.0 && integers == [0; 64]);
        assert!(quantize_row(&mut [f32::NAN; 64], 64, &mut integers).is_nan());
    }

    #[test]
    fn rows_of_whole_units_are_taken() {
        assert_eq!([0, 64, 72, 3072, 16384, 16448].map(takes), [false, true, false, true, true, false]);
        assert_eq!([64, 128, 3072].map(row_bytes), [48, 80, 1920]);
    }

    #[test]
    fn bytes_of_a_row_are_read_as_they_lie() {
        // Column 0 is 7, column 19 is -8 and column 63 is 3, with multipliers 1, 2 and 8; all other columns are 0.
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
