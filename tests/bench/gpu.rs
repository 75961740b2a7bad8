//! How long each op takes on the GPU at the sizes of a 1024 x 1024 picture: `cargo bench [-- NAME...]`.
//!
//! Each line is the median of 20 runs after 5 that are not counted, timed by device events, the L2 cache filled with other values before
//! each run, and min and max. Rates count each tensor once for each read or write that the op needs, and 2 flops a multiply-add.

mod ops;
mod transfer;

use flux::backend::Backend;
use flux::backend::cuda::{Cuda, Precision};
use flux::tensor::Tensor;

const WARM_UP: usize = 5;
const RUNS: usize = 20;
/// More than any L2 cache holds.
const L2_FILL: usize = 128 << 20;

/// What an op cannot do without.
#[derive(Clone, Copy)]
pub enum Work {
    /// Bytes read and written.
    Bytes(usize),
    /// Floating-point operations.
    Flops(usize),
    /// The same in fp8, of which the tensor cores do twice as many.
    Fp8Flops(usize),
}

/// The GPU, and which ops to time on it.
pub struct Bench {
    /// GPU 0.
    pub cuda: Cuda,
    /// Whether narrow weights are fp8 there.
    pub fp8: bool,
    filler: Option<Tensor<Cuda>>,
    only: Vec<String>,
    /// Bytes and flops a second that the GPU is sold with, where we know them.
    peaks: Option<(f64, f64)>,
}

impl Bench {
    /// Whether `name` was asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }

    /// Times `run` and prints a line. `prepare` makes what the run may consume; it is not timed.
    pub fn time<T, U>(&mut self, name: &str, work: Work, mut prepare: impl FnMut(&Cuda) -> T, mut run: impl FnMut(&Cuda, T) -> U) {
        if !self.wants(name) {
            return;
        }
        let mut times_us = Vec::new();
        for round in 0..WARM_UP + RUNS {
            let input = prepare(&self.cuda);
            let filler = self.filler.take().expect("put back below").silu().expect("silu has a kernel");
            let from = self.cuda.mark().expect("the device works");
            let output = run(&self.cuda, input);
            let to = self.cuda.mark().expect("the device works");
            self.cuda.wait(&to).expect("the op works");
            drop(output);
            self.filler = Some(filler);
            if round >= WARM_UP {
                times_us.push(self.cuda.elapsed(&from, &to).expect("both marks are done").as_secs_f64() * 1e6);
            }
        }
        times_us.sort_by(f64::total_cmp);
        let median = times_us[RUNS / 2];
        let (rate, peak) = match work {
            Work::Bytes(bytes) => (format!("{:8.2} TB/s", bytes as f64 / median / 1e6), self.peaks.map(|(bytes_s, _)| bytes as f64 / bytes_s)),
            Work::Flops(flops) => (format!("{:8.1} TFLOP/s", flops as f64 / median / 1e6), self.peaks.map(|(_, flops_s)| flops as f64 / flops_s)),
            Work::Fp8Flops(flops) => {
                (format!("{:8.1} TFLOP/s", flops as f64 / median / 1e6), self.peaks.map(|(_, flops_s)| flops as f64 / flops_s / 2.0))
            }
        };
        let share = peak.map_or(String::new(), |seconds| format!("  {:3.0}% of peak", seconds * 1e8 / median));
        println!("{name:<56} {median:10.1} us  [{:.1} .. {:.1}]  {rate}{share}", times_us[0], times_us[RUNS - 1]);
    }
}

/// Memory and dense bf16 tensor-core peaks. Source: NVIDIA's data sheets.
fn peaks(device: &str) -> Option<(f64, f64)> {
    let known = [("H200", 4.8e12, 989e12), ("H100", 3.35e12, 989e12), ("A100", 2.0e12, 312e12), ("RTX 4090", 1.01e12, 165e12)];
    known.iter().find(|(name, ..)| device.contains(name)).map(|(_, bytes_s, flops_s)| (*bytes_s, *flops_s))
}

fn main() {
    // cargo passes `--bench`.
    let only = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let narrow = Cuda::with_precision(0, None, Precision::Fp8);
    let fp8 = narrow.is_ok();
    // Everything but products with narrow weights is the same in both.
    let cuda = match narrow.or_else(|_| Cuda::new(0, None)) {
        Ok(cuda) => cuda,
        Err(error) if std::env::var_os("FLUX_REQUIRE_GPU").is_some() => panic!("{error}"),
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let device = cuda.describe();
    println!("{device}");
    let filler = cuda.upload(&vec![0.5; L2_FILL / 2], L2_FILL / 2048, 1024).expect("128 MiB are free");
    let mut bench = Bench { cuda, fp8, filler: Some(filler), only, peaks: peaks(&device) };
    ops::elementwise(&mut bench);
    ops::norms(&mut bench);
    ops::linear(&mut bench);
    ops::fp8(&mut bench);
    ops::attention(&mut bench);
    ops::vae(&mut bench);
    transfer::weights(&mut bench);
    println!("{:?}", bench.cuda.stats());
}
