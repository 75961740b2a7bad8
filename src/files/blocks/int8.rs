//! Integers of 8 bits, with one scale or one a row, also of weights that were multiplied by Hadamard matrices.

use super::super::scales::Scales;

/// What bitsandbytes multiplies with instead of dividing by 127.
const PER_STEP: f32 = 1.0 / 127.0;

/// `q s`; where rows have maxima, `(q s) / 127`.
#[inline(always)]
pub fn int8(bytes: &[u8], scales: &Scales, cols: usize, out: &mut [f32]) {
    let is_maximum = matches!(scales, Scales::RowMaxima(_));
    for (row, (out, bytes)) in out.chunks_exact_mut(cols).zip(bytes.chunks_exact(cols)).enumerate() {
        let scale = scales.of_row(row);
        out.iter_mut().zip(bytes).for_each(|(out, q)| *out = f32::from(*q as i8) * scale);
        if is_maximum {
            out.iter_mut().for_each(|out| *out *= PER_STEP);
        }
    }
}

/// `(q s) R` for each `group` columns, where R is its own inverse.
#[inline(always)]
pub fn int8_rotated(bytes: &[u8], scales: &Scales, cols: usize, group: usize, out: &mut [f32]) {
    int8(bytes, scales, cols, out);
    out.chunks_exact_mut(group).for_each(rotate);
}

/// Multiplies a group by R, the Kronecker power of \[\[1, 1, 1, -1\], \[1, 1, -1, 1\], \[1, -1, 1, 1\],
/// \[-1, 1, 1, 1\]\] over the root of its size: by the matrix along each digit to base 4 of the columns' numbers.
#[inline(always)]
fn rotate(group: &mut [f32]) {
    let size = group.len();
    let mut stride = 1;
    while stride < size {
        for quadruple in group.chunks_exact_mut(4 * stride) {
            for i in 0..stride {
                let [a, b, c, d] = [0, 1, 2, 3].map(|digit| quadruple[digit * stride + i]);
                quadruple[i] = a + b + c - d;
                quadruple[stride + i] = a + b - c + d;
                quadruple[2 * stride + i] = a - b + c + d;
                quadruple[3 * stride + i] = b + c + d - a;
            }
        }
        stride *= 4;
    }
    let root = 1.0 / (size as f32).sqrt();
    group.iter_mut().for_each(|value| *value *= root);
}
