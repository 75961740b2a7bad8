//! Memory test: allocates memory, reads back the data written to it, and frees it, several times.

use super::Outcome;
use super::inputs::values;
use flux::backend::Backend;
use flux::error::Result;
use flux::tensor::Tensor;

/// Columns of the data.
const COLS: usize = 4096;
/// Maximum number of bytes allocated at once.
const MAX_BYTES: u64 = 512 << 20;
const ROUNDS: usize = 3;

/// Tests half of the available memory, at most half a GiB, in pieces of a different size each round.
pub fn check<B: Backend>(device: &B) -> Result<Outcome> {
    let bytes = (device.available_bytes() / 2).min(MAX_BYTES);
    let rows = (bytes / (COLS as u64 * device.costs().element_bytes)).max(1) as usize;
    let before = device.stats().memory_bytes;
    // Repeated, so that each row is a slice of it.
    let written = values(1, COLS).repeat(2);
    let mut wrong = None;
    for round in 0..ROUNDS {
        let pieces = pieces(device, &written, rows, round + 2)?;
        for (i, piece) in pieces.iter().enumerate() {
            let read = device.download(piece)?;
            let bad = read.chunks_exact(COLS).enumerate().find(|(row, got)| *got != row_of(&written, i + row));
            if let Some((row, _)) = bad {
                wrong = wrong.or(Some(format!("row {row} of piece {i} in round {round} was read back wrong")));
            }
        }
    }
    let kept = device.stats().memory_bytes.saturating_sub(before);
    if kept > 0 {
        wrong = wrong.or(Some(format!("{kept} bytes were not freed")));
    }
    Ok((format!("{} MiB, {ROUNDS} times", bytes >> 20), wrong))
}

/// Returns a row that starts at value `first`.
fn row_of(written: &[f32], first: usize) -> &[f32] {
    &written[first % COLS..][..COLS]
}

/// Returns `count` tensors with `rows` rows in total. Each row starts one value after the previous one.
fn pieces<B: Backend>(device: &B, written: &[f32], rows: usize, count: usize) -> Result<Vec<Tensor<B>>> {
    let piece = |i: usize| {
        let rows = rows / count;
        let mut values = Vec::with_capacity(rows * COLS);
        (0..rows).for_each(|row| values.extend_from_slice(row_of(written, i + row)));
        device.upload(&values, rows, COLS)
    };
    (0..count).map(piece).collect()
}
