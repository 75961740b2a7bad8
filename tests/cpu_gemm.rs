//! Matrix multiplications of the CPU backend at the sizes of the models: the units for bfloat16 against float64, and
//! the speed of all units.
//!
//! `cargo test --profile quick --test cpu_gemm -- --ignored --nocapture --test-threads 1` measures.
//! `FLUX_REQUIRE_AMX=1` fails if tiles are missing.

use std::time::Instant;

use flux::backend::cpu::math;
use flux::backend::cpu::tiles::{BF16, Bf16Unit, INT8, Integers, Output, Packed, Rows, WeightRows};
use half::bf16;

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
