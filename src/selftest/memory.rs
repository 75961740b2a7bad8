//! Takes memory, reads back what was written to it, and gives it back, several times.

use super::Outcome;
use super::inputs::values;
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::Tensor;

/// Columns of what is written.
const COLS: usize = 4096;
/// The most bytes that are taken at once.
const MOST_BYTES: u64 = 512 << 20;
const ROUNDS: usize = 3;

/// Half of the memory that is available, and no more than half a GiB, in pieces of other sizes each time.
pub fn check<B: Backend>(device: &B) -> Result<Outcome> {
    let bytes = (device.available_bytes() / 2).min(MOST_BYTES);
    let rows = (bytes / (COLS as u64 * device.costs().element_bytes)).max(1) as usize;
    let before = device.stats().memory_bytes;
    // Twice, so that each row is a part of it.
    let written = values(1, COLS).repeat(2);
    let mut wrong = None;
    for round in 0..ROUNDS {
        let pieces = pieces(device, &written, rows, round + 2)?;
        for (i, piece) in pieces.iter().enumerate() {
            let read = device.download(piece)?;
            let bad = read.chunks_exact(COLS).enumerate().find(|(row, got)| *got != row_of(&written, i + row));
            if let Some((row, _)) = bad {
                wrong = wrong.or(Some(format!("row {row} of piece {i} of round {round} is not what was written")));
            }
        }
    }
    let kept = device.stats().memory_bytes.saturating_sub(before);
    if kept > 0 {
        wrong = wrong.or(Some(format!("{kept} bytes were not given back")));
    }
    Ok((format!("{} MiB, {ROUNDS} times", bytes >> 20), wrong))
}

/// A row that begins at a value of its own.
fn row_of(written: &[f32], first: usize) -> &[f32] {
    &written[first % COLS..][..COLS]
}

/// `count` tensors of `rows` rows together, each row of which begins one value later than the row before it.
fn pieces<B: Backend>(device: &B, written: &[f32], rows: usize, count: usize) -> Result<Vec<Tensor<B>>> {
    let piece = |i: usize| {
        let rows = rows / count;
        let mut values = Vec::with_capacity(rows * COLS);
        (0..rows).for_each(|row| values.extend_from_slice(row_of(written, i + row)));
        device.upload(&values, rows, COLS)
    };
    (0..count).map(piece).collect()
}
