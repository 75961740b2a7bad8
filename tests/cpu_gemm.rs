//! Matrix multiplications of the CPU backend at the sizes of the models: the units for bfloat16 against float64, and
//! the speed of all units and of the portable path.
//!
//! `cargo test --release --test cpu_gemm -- --ignored --nocapture --test-threads 1` measures. `FLUX_REQUIRE_AMX=1`
//! fails if tiles are missing.

use std::time::Instant;

use flux::backend::cpu::math;
use flux::backend::cpu::tiles::{BF16, Bf16Unit, INT8, Integers, Output, Packed, Rows, WeightRows};
use half::bf16;
use rayon::prelude::*;

/// Pseudo-random values in -1..1, the same in every run.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// A weight with the alignment of a file: at an odd multiple of 8 bytes.
fn weight_bytes(rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; 8];
    bytes.extend(noise(rows * cols, 2).into_iter().flat_map(|w| bf16::from_f32(w).to_le_bytes()));
    bytes
}

/// Returns the units for bfloat16 of this CPU.
fn units() -> Vec<&'static Bf16Unit> {
    let units: Vec<_> = BF16.iter().filter(|unit| (unit.is_available)()).collect();
    let has_amx = units.iter().any(|unit| unit.name == "AMX-BF16");
    assert!(has_amx || std::env::var_os("FLUX_REQUIRE_AMX").is_none(), "FLUX_REQUIRE_AMX is set, but there is no AMX");
    units
}

#[test]
fn units_match_float64_at_a_size_of_the_model() {
    let (m, k, n) = (777, 3072, 1500);
    let x = noise(m * k, 1);
    let bytes = weight_bytes(n, k);
    let mut wide = vec![0.0f32; n * k];
    math::widen_bf16(&bytes[8..], &mut wide);
    // One term against X as bfloat16; relative to a typical sum, which is the root of k times the mean square of the
    // factors, 1 / 3.
    for (unit, (terms, bound)) in
        units().into_iter().flat_map(|unit| [(1, 5e-6), (2, 3e-5), (3, 5e-6)].map(|terms| (unit, terms)))
    {
        if terms > 1 && !unit.is_fast_in_terms {
            continue; // Not used.
        }
        let packed = Packed::new(&[Rows { values: &x, rows: m, cols: k, stride: k }], terms);
        let mut y = vec![f32::NAN; m * n];
        (unit.multiply)(
            &packed,
            WeightRows { bytes: &bytes[8..], rows: n, stride: 2 * k },
            Output { values: &mut y, stride: n, add: false, integers: None },
        );
        let mut worst = 0.0f64;
        for i in (0..m * n).step_by(97) {
            let used = |x: f32| if terms == 1 { bf16::from_f32(x).to_f64() } else { f64::from(x) };
            let exact: f64 =
                x[i / n * k..][..k].iter().zip(&wide[i % n * k..]).map(|(&x, &w)| used(x) * f64::from(w)).sum();
            worst = worst.max((f64::from(y[i]) - exact).abs() / ((k as f64).sqrt() / 3.0));
        }
        println!("{}, {terms} terms: {worst:.1e}", unit.name);
        assert!(worst < bound, "{}, {terms} terms: {worst:e}", unit.name);
        assert!(y.iter().all(|y| y.is_finite()));
    }
}

/// Returns the time of the fastest of several runs, in seconds.
fn best(runs: usize, mut run: impl FnMut()) -> f64 {
    run();
    (0..runs)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

fn gflops(m: usize, k: usize, n: usize, seconds: f64) -> f64 {
    2.0 * (m * k * n) as f64 / seconds / 1e9
}

const SIZES: [(usize, usize); 3] = [(3072, 27648), (2560, 9728), (12288, 3072)];

#[test]
#[ignore = "measures"]
fn bench_units() {
    println!("{} threads", rayon::current_num_threads());
    for m in [1, 4, 32, 256, 768, 1024] {
        for (k, n) in SIZES {
            let x = noise(m * k, 1);
            let bytes = weight_bytes(n, k);
            let mut y = vec![0.0f32; m * n];
            let report = |name: &str, pack: f64, product: f64, bytes: usize| {
                println!(
                    "{name:11} {m:5} x {k:5} x {n:5}  pack {:7.2} ms  product {:8.2} ms {:7.0} GFLOP/s ({:5.0} with \
                     packing, {:5.1} GB/s of weight)",
                    1e3 * pack,
                    1e3 * product,
                    gflops(m, k, n, product),
                    gflops(m, k, n, product + pack),
                    (bytes * k * n) as f64 / product / 1e9
                );
            };
            for (unit, terms) in units().into_iter().flat_map(|unit| [1, 2, 3].map(|terms| (unit, terms))) {
                let rows = [Rows { values: &x, rows: m, cols: k, stride: k }];
                let pack = best(5, || drop(Packed::new(&rows, terms)));
                let packed = Packed::new(&rows, terms);
                let product = best(5, || {
                    let weight = WeightRows { bytes: &bytes[8..], rows: n, stride: 2 * k };
                    (unit.multiply)(&packed, weight, Output { values: &mut y, stride: n, add: false, integers: None });
                });
                report(&format!("{}, {terms} terms", unit.name), pack, product, 2);
            }
            let (scales, weight_sums) = (vec![1.0; n.max(m)], vec![0; n]);
            for unit in INT8.iter().filter(|unit| (unit.is_available)() && unit.name != "portable") {
                let quantize = || {
                    Packed::quantize(m, k, Vec::new, |row, values, integers| {
                        values.clear();
                        values.extend_from_slice(&x[row * k..][..k]);
                        math::quantize_row(values, 256, integers)
                    })
                };
                let pack = best(5, || drop(quantize()));
                let (packed, _) = quantize();
                let product = best(5, || {
                    let weight = WeightRows { bytes: &bytes[8..], rows: n, stride: k };
                    let integers = Some(Integers { x: &scales, weight: &scales, weight_sums: &weight_sums });
                    (unit.multiply)(&packed, weight, Output { values: &mut y, stride: n, add: false, integers });
                });
                report(unit.name, pack, product, 1);
            }
        }
    }
}

/// Computes `y = x weight^T` for x [m, k] and weight [rows, k], both dense; rows of y are `n` values apart.
///
/// # Safety
///
/// y is valid for m rows of `weight.len() / k` values, and nothing else uses them meanwhile.
#[allow(unsafe_code)]
unsafe fn product(x: &[f32], k: usize, weight: &[f32], y: *mut f32, n: usize, parallelism: gemm::Parallelism) {
    let (m, rows, stride) = (x.len() / k, weight.len() / k, k as isize);
    let (x, weight) = (x.as_ptr(), weight.as_ptr());
    // SAFETY: x and weight are dense [m, k] and [rows, k]; the caller promises the same for y.
    unsafe {
        gemm::gemm(
            m,
            rows,
            k,
            y,
            1,
            n as isize,
            false,
            x,
            1,
            stride,
            weight,
            stride,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// A matrix multiplication by panels of weight rows, which are widened to float32 one at a time.
struct Panels<'a> {
    x: &'a [f32], // [m, k]
    k: usize,
    bytes: &'a [u8], // bf16 [n, k]
    n: usize,
    panel: usize,
    y: *mut f32, // [m, n]
}

#[allow(unsafe_code)]
// SAFETY: each panel writes columns of its own.
unsafe impl Sync for Panels<'_> {}

impl Panels<'_> {
    /// Computes the columns of y for panel `i`, which is widened to the beginning of `wide`.
    fn multiply(&self, i: usize, wide: &mut [f32], parallelism: gemm::Parallelism) {
        let from = i * self.panel;
        let rows = self.panel.min(self.n - from);
        let wide = &mut wide[..rows * self.k];
        math::widen_bf16(&self.bytes[2 * from * self.k..][..2 * rows * self.k], wide);
        #[allow(unsafe_code)]
        // SAFETY: y is [m, n], and no other panel writes to its columns from..from + rows.
        unsafe {
            product(self.x, self.k, wide, self.y.wrapping_add(from), self.n, parallelism);
        }
    }

    /// One panel after the other, each with all threads.
    fn threads_inside(&self) {
        let mut wide = vec![0.0f32; self.panel * self.k];
        (0..self.n.div_ceil(self.panel)).for_each(|i| self.multiply(i, &mut wide, gemm::Parallelism::Rayon(0)));
    }

    /// All panels at once, each with one thread.
    fn threads_across(&self) {
        let wide = || vec![0.0f32; self.panel * self.k];
        let multiply = |wide: &mut Vec<f32>, i| self.multiply(i, wide, gemm::Parallelism::None);
        (0..self.n.div_ceil(self.panel)).into_par_iter().for_each_init(wide, multiply);
    }
}

#[test]
#[ignore = "measures"]
fn bench_panels() {
    println!("{} threads", rayon::current_num_threads());
    for (m, k, n) in [
        (768, 3072, 6912),
        (768, 256, 1280),
        (768, 256, 2560),
        (320, 256, 256),
        (32, 3072, 6912),
        (1, 3072, 18432),
        (1024, 12288, 3072),
    ] {
        let x = noise(m * k, 1);
        let bytes = weight_bytes(n, k);
        let bytes = &bytes[8..];
        let mut y = vec![0.0f32; m * n];
        let mut wide_all = vec![0.0f32; n * k];
        math::widen_bf16(bytes, &mut wide_all);
        let runs = if m * k * n > 1_000_000_000 { 3 } else { 20 };
        for parallelism in [gemm::Parallelism::None, gemm::Parallelism::Rayon(0)] {
            #[allow(unsafe_code)]
            // SAFETY: y is [m, n], and this call alone uses it.
            let seconds = best(runs, || unsafe { product(&x, k, &wide_all, y.as_mut_ptr(), n, parallelism) });
            println!("{m} x {k} x {n}: float32 whole, {parallelism:?}: {:.1} GFLOP/s", gflops(m, k, n, seconds));
        }
        for panel in [32, 64, 128, 256, 512, 1024] {
            let panels = Panels { x: &x, k, bytes, n, panel, y: y.as_mut_ptr() };
            let [inside, across] = [best(runs, || panels.threads_inside()), best(runs, || panels.threads_across())];
            println!(
                "{m} x {k} x {n}: panels of {panel:4}: threads inside {:6.1}, across {:6.1} GFLOP/s",
                gflops(m, k, n, inside),
                gflops(m, k, n, across)
            );
        }
    }
}

#[test]
#[ignore = "measures"]
fn bench_arithmetic() {
    // In cache, on one thread: 64 rows of 512 keys, 10000 times.
    let values = noise(64 * 512, 3);
    let bytes: Vec<u8> = weight_bytes(64, 512)[8..].to_vec();
    let mut out = values.clone();
    let mut rounded = vec![0u16; values.len()];
    let mut sink = 0.0;
    let mut report = |name: &str, run: &mut dyn FnMut(&mut [f32])| {
        let seconds = best(20, || {
            for _ in 0..20 {
                run(&mut out);
            }
        });
        println!("{name:12} {:6.2} values/ns", 20.0 * values.len() as f64 / seconds / 1e9);
    };
    report("copy", &mut |out| out.copy_from_slice(&values));
    report("exp_sub", &mut |out| {
        sink += f64::from(out.chunks_exact_mut(512).map(|row| math::exp_sub(row, 1.0)).sum::<f32>())
    });
    report("max", &mut |out| sink += f64::from(out.chunks_exact(512).map(math::max).sum::<f32>()));
    report("silu", &mut |out| math::silu(out));
    report("sum", &mut |out| sink += math::sum(out));
    report("sum_squares", &mut |out| sink += math::sum_squares(out, 0.1));
    report("widen_bf16", &mut |out| math::widen_bf16(&bytes, out));
    report("widen_f16", &mut |out| math::widen_f16(&bytes, out));
    report("take_bf16", &mut |out| math::take_bf16(out, &mut rounded));
    println!("{sink}");
}
