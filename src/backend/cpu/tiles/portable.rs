//! Tiles of integers on any CPU.

use super::tile::{PAIR, Sums, TILE, Tile, Tiles};

/// Integers without special instructions.
pub(super) struct Portable;

impl Tiles for Portable {
    const BLOCK_STEPS: usize = 16;
    const BYTES: usize = 1;
    const OFFSET: i32 = 128;

    fn available() -> bool {
        true
    }

    fn begin() -> Self {
        Self
    }

    fn multiply(&self, a: &[Tile], b: &[Tile], _: usize, x_rows: usize, add: bool, sums: &mut Sums, _: *const Tile) {
        for row in 0..PAIR {
            for x in (0..x_rows).step_by(TILE) {
                let sums = &mut sums.0[row / TILE * 2 + x / TILE][row % TILE * TILE..][..TILE];
                let mut block = [0i32; TILE];
                if add {
                    block.iter_mut().zip(&*sums).for_each(|(block, sum)| *block = sum.to_bits() as i32);
                }
                for (a, b) in a.chunks_exact(2).zip(b.chunks_exact(2)) {
                    let weights = &a[row / TILE].0[row % TILE * TILE..][..TILE];
                    for (weight, xs) in weights.iter().zip(b[x / TILE].0.chunks_exact(TILE)) {
                        let weight = weight.to_le_bytes().map(|byte| i32::from(byte as i8));
                        for (sum, x) in block.iter_mut().zip(xs) {
                            let x = x.to_le_bytes().map(i32::from);
                            *sum += (x[0] * weight[0] + x[1] * weight[1]) + (x[2] * weight[2] + x[3] * weight[3]);
                        }
                    }
                }
                sums.iter_mut().zip(block).for_each(|(sum, block)| *sum = f32::from_bits(block as u32));
            }
        }
    }
}
