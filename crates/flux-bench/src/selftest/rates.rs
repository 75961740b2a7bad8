//! Achieved rates of the device for copies and matrix multiplications.

use super::Outcome;
use super::inputs::{linear, values};
use flux::backend::Backend;
use flux::error::Result;
use flux::files::Format;
use flux::tensor::Tensor;

pub const NAMES: [&str; 2] = ["rates/copy", "rates/product"];
/// The number of runs; the fastest counts.
const RUNS: usize = 5;
/// Rows and columns of the matrix multiplication on a GPU, and on the slower CPU.
const SIDES: [usize; 2] = [4096, 1024];

/// Measures one of [`NAMES`]. A rate is never a fault.
pub fn measure<B: Backend>(device: &B, name: &str) -> Result<Outcome> {
    // Only GPUs count launches.
    let side = SIDES[usize::from(device.stats().launches == 0)];
    let cols = 1024;
    let x = device.upload(&values(1, cols * cols), cols, cols)?;
    let repeat = |rows: usize| Tensor::concat_rows(&vec![&x; rows / cols]);
    if name == NAMES[0] {
        let (x, bytes) = (repeat(16 * side)?, (2 * 16 * side * cols) as u64 * device.costs().element_bytes);
        let seconds = fastest(device, || Tensor::concat_rows(&[&x]))?;
        return Ok((format!("{:.1} GB/s", bytes as f64 / seconds / 1e9), None));
    }
    let (x, weight) = (repeat(side)?, linear(device, 2, [side, cols], Format::Bf16)?);
    let seconds = fastest(device, || x.linear(&weight, None))?;
    Ok((format!("{:.2} TFLOP/s", (2 * side * side * cols) as f64 / seconds / 1e12), None))
}

fn fastest<B: Backend>(device: &B, work: impl Fn() -> Result<Tensor<B>>) -> Result<f64> {
    let mut fastest = f64::MAX;
    for _ in 0..RUNS {
        let from = device.event()?;
        let made = work()?;
        let to = device.event()?;
        device.wait(&to)?;
        drop(made);
        fastest = fastest.min(device.elapsed(&from, &to)?.as_secs_f64());
    }
    Ok(fastest.max(1e-9))
}
