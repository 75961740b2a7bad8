//! Multiplications in e4m3: rounding against the definition of that format, results against the CPU, and fused ops
//! against their parts.

use std::sync::LazyLock;

use flux::backend::cpu::{Cpu, Precision};
use flux::backend::cuda::Cuda;
use flux::backend::{Device, Memory, Storage};
use flux::files::e4m3::MULTIPLE;
use flux::nn::{Linear, LowRank};
use flux::ops::{Adaln, Mask, Norm, TokenLayout};
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{Shape, WITH_EPILOGUE, Weight, compare, shapes, values, vector, with_variable};
use crate::cuda_fp8;
use crate::pipeline::draws_alike;

/// With `0`, sums are accumulated in float32; see docs/environment.md. Tests with either value run in their own
/// processes.
const FAST_ACCUMULATION: &str = "FLUX_FP8_FAST_ACCUMULATION";
/// `base` selects mma.sync for multiplications, as on GPUs other than Hopper.
const GEMM: &str = "FLUX_GEMM";

/// Roundings of a product of `terms` terms: one to bf16, and those of the tensor cores.
///
/// Each instruction cuts 32 terms and the sum so far off at 2^-13 of the largest of them, which is about the sum. Cut
/// off at random, n of them are off by sqrt(n / 3) * 2^-13 of it, and the worst of millions of sums by 5 times that:
/// in roundings, which are 2^-8, by 5 * sqrt(n / 3) / 32. Sums that move to float32 after every 128 terms are off by
/// half a rounding at most, because 128 terms are a small part of a long sum.
fn roundings(terms: usize) -> f32 {
    if std::env::var(FAST_ACCUMULATION).is_ok_and(|value| value == "0") {
        1.5
    } else {
        1.0 + 5.0 * (terms as f32 / 3.0).sqrt() / 32.0
    }
}

/// All magnitudes of the format by their bits: 4 of exponent, 3 of mantissa; the last pattern is NaN.
pub static MAGNITUDES: LazyLock<[f64; 0x7f]> = LazyLock::new(|| {
    std::array::from_fn(|bits| {
        let (exponent, mantissa) = ((bits >> 3) as i32, (bits & 7) as f64 / 8.0);
        if exponent == 0 { mantissa * 2f64.powi(-6) } else { (1.0 + mantissa) * 2f64.powi(exponent - 7) }
    })
});

/// Returns the nearest e4m3 value; between two equally near values, the one with last bit 0; 448 is the largest.
pub fn e4m3(value: f32) -> f32 {
    let magnitude = f64::from(value.abs());
    // By bisection: the tests round tens of millions of values.
    let nearest = match MAGNITUDES.partition_point(|least| *least < magnitude) {
        0 => 0.0,
        0x7f => 448.0,
        above => {
            let (high, low) = (MAGNITUDES[above], MAGNITUDES[above - 1]);
            let up = high - magnitude < magnitude - low || (high - magnitude == magnitude - low && above % 2 == 0);
            if up { high } else { low }
        }
    };
    (nearest as f32).copysign(value)
}

/// Returns rows of `cols` activations in e4m3: each row over its scale, which is its largest magnitude over 448.
pub fn quantized(values: &[f32], cols: usize) -> Vec<f32> {
    let row = |row: &[f32]| {
        let largest = row.iter().fold(1e-30, |largest: f32, value| largest.max(value.abs()));
        let (scale, inverse) = (largest / 448.0, 448.0 / largest);
        row.iter().map(|value| e4m3(value * inverse) * scale).collect::<Vec<_>>()
    };
    values.chunks(cols).flat_map(row).collect()
}

/// Returns values over 24 powers of two, so that every exponent and the end of the range occur; every third row is
/// zeros.
pub fn wide_values(rows: usize, cols: usize) -> Vec<f32> {
    let scaled =
        |(i, value): (usize, f32)| if i / cols % 3 == 2 { 0.0 } else { value * 2f32.powi((i * 7 % 24) as i32 - 20) };
    values(1, rows * cols).into_iter().enumerate().map(scaled).collect()
}

pub fn assert_equal(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let different: Vec<_> =
        got.iter().zip(expected).enumerate().filter(|(_, (got, expected))| got != expected).collect();
    for (i, (got, expected)) in different.iter().take(5) {
        println!("  [{i}] expected {expected}, got {got}");
    }
    assert!(different.is_empty(), "{what}: {} of {} values differ", different.len(), got.len());
}

#[test]
fn the_definition_rounds_to_nearest_even_and_saturates() {
    for (value, expected) in [
        (1.0, 1.0),
        (1.06, 1.0),
        (1.0625, 1.0),
        (1.07, 1.125),
        (1.1875, 1.25),
        (448.0, 448.0),
        (1e9, 448.0),
        (460.0, 448.0),
    ] {
        assert_eq!((e4m3(value), e4m3(-value)), (expected, -expected), "{value}");
    }
    let least = 2f32.powi(-9);
    assert_eq!([0.0, 0.5, 0.51, 1.5, 2.5].map(|times| e4m3(times * least) / least), [0.0, 0.0, 1.0, 2.0, 2.0]);
}

#[test]
fn activations_are_e4m3_with_a_scale_for_each_row() {
    let Some(cuda) = cuda_fp8() else { return };
    for shape in shapes(Shape::dense(4608, 3072)).into_iter().chain([Shape::dense(3, 16392), Shape::dense(0, 64)]) {
        let x = shape.tensor(&cuda, 1);
        let host = cuda.download(&x).unwrap();
        assert_equal(
            &format!("{shape:?}"),
            &cuda.download(&cuda.quantize(&x).unwrap()).unwrap(),
            &quantized(&host, shape.cols),
        );
    }
    for (rows, cols) in [(9, 1024), (9, 77)] {
        let host = wide_values(rows, cols);
        let x = cuda.upload(&host, rows, cols).unwrap();
        assert_equal("wide values", &cuda.download(&cuda.quantize(&x).unwrap()).unwrap(), &quantized(&host, cols));
    }
}

#[test]
fn what_is_not_a_number_stays_so() {
    let Some(cuda) = cuda_fp8() else { return };
    for bad in [f32::NAN, f32::INFINITY] {
        let mut host = values(1, 3 * 64);
        host[70] = bad;
        let weight = Weight::seeded(2, 32, 64);
        let out = cuda.upload(&host, 3, 64).unwrap().linear(&weight.fp8(&cuda), None).unwrap();
        let out = cuda.download(&out).unwrap();
        assert!(out[32..64].iter().all(|value| value.is_nan()), "{bad}");
        assert!(out[..32].iter().chain(&out[64..]).all(|value| value.is_finite()), "{bad}");
    }
}

#[test]
fn e4m3_is_for_products_only() {
    let Some(cuda) = cuda_fp8() else { return };
    let x = Shape::dense(64, 64).tensor(&cuda, 2);
    let e4m3 = || cuda.quantize(&x).unwrap();
    let (weight, row) = (Weight::seeded(3, 64, 64).linear(&cuda), vector(&cuda, 4, 64));
    let errors = [
        e4m3().silu(),
        x.row_view(0..64).add(&e4m3()),
        e4m3().linear(&weight, None),
        e4m3().linear(&Weight::seeded(1, 64, 64).fp8(&cuda), None),
        e4m3().attention(&x, &x, 64, TokenLayout::single(64), Mask::None),
        x.row_view(0..64).attention(&e4m3(), &e4m3(), 64, TokenLayout::single(64), Mask::None),
        e4m3().adaln(&row, &row, 1e-6),
        Tensor::concat_rows(&[&x, &e4m3()]),
        e4m3().swiglu(&x),
    ];
    for (i, error) in errors.into_iter().enumerate() {
        let error = error.map(drop).unwrap_err().to_string();
        assert!(error.contains("E4m3, expected Bf16"), "{i}: {error}");
    }
}

/// Computes `x weight^T` of values that are exact in e4m3, on the CPU.
fn product(x: &[f32], weight: &[f32], [rows, cols, out]: [usize; 3]) -> Vec<f32> {
    let cpu = Cpu::new(Precision::F32);
    let weight = Weight::new(weight, &[out, cols], Dtype::F32).linear(&cpu);
    cpu.download(&cpu.upload(x, rows, cols).unwrap().linear(&weight, None).unwrap()).unwrap()
}

/// Returns `true` if cuBLASLt runs the multiplications.
fn by_cublaslt(cuda: &Cuda) -> bool {
    crate::is_hopper(cuda) && std::env::var_os(GEMM).is_none_or(|value| value != "base")
}

fn check_linear(cuda: &Cuda, shape: Shape, out: usize) {
    let (x, weight) = (shape.tensor(cuda, 1), Weight::seeded(2, out, shape.cols).fp8(cuda));
    let (x_values, weight_values) =
        (quantized(&cuda.download(&x).unwrap(), shape.cols), cuda.weight_values(&weight).unwrap());
    let expected = product(&x_values, &weight_values, [shape.rows, shape.cols, out]);
    let got = cuda.download(&x.linear(&weight, None).unwrap()).unwrap();
    compare(&format!("linear in fp8 {shape:?} -> {out}"), &got, &expected, roundings(shape.cols));
    for beside in [[0, 0], [3, 2]] {
        let residual = Shape::view(shape.rows, out, beside[0], beside[1]).tensor(cuda, 4);
        let added = cuda.download(&residual).unwrap();
        let expected: Vec<f32> = expected.iter().zip(&added).map(|(product, added)| product + added).collect();
        let before = cuda.stats().launches;
        let got = x.linear_add(&weight, residual).unwrap();
        let launches = cuda.stats().launches - before;
        let what = format!("linear_add in fp8 {shape:?} -> {out}, beside {beside:?}");
        compare(&what, &cuda.download(&got).unwrap(), &expected, WITH_EPILOGUE + roundings(shape.cols));
        if beside == [0, 0] && out.is_multiple_of(MULTIPLE) && by_cublaslt(cuda) {
            assert_eq!(launches, 2, "{what}: to quantize, and the product");
        }
    }
}

/// Products of e4m3 values are exact in float32, and the scales are multiplied in float32 after the sum.
#[test]
fn linear_in_fp8_matches_the_cpu() {
    let Some(cuda) = cuda_fp8() else { return };
    for (rows, cols, out) in
        [(64, 128, 256), (1, 64, 96), (7, 24, 5), (33, 27, 3), (129, 40, 1), (5, 13, 17), (300, 8, 8), (1000, 256, 512)]
    {
        for (before, after) in [(0, 0), (8, 16), (3, 2)] {
            check_linear(&cuda, Shape::view(rows, cols, before, after), out);
        }
    }
}

/// The real shapes; on fewer rows, because the CPU has to compute them too.
#[test]
fn linear_in_fp8_matches_at_real_sizes() {
    let Some(cuda) = cuda_fp8() else { return };
    if crate::small() {
        return;
    }
    for (rows, cols, out) in [(256, 3072, 27648), (257, 12288, 3072), (200, 9216, 3072), (512, 3072, 3072)] {
        check_linear(&cuda, Shape::dense(rows, cols), out);
    }
}

/// [rows, cols] times two weights [out, cols], the first weight for the first `first` rows: at positions that cuBLASLt
/// takes for scales and at others, and with no row on one side.
const SPLITS: [([usize; 3], usize); 9] = [
    ([40, 64, 96], 16),
    ([40, 64, 96], 13),
    ([41, 77, 21], 4),
    ([41, 77, 21], 38),
    ([9, 27, 5], 1),
    ([20, 64, 32], 0),
    ([20, 64, 32], 20),
    ([21, 64, 32], 21),
    ([300, 3072, 256], 128),
];

#[test]
fn linear_rows_in_fp8_matches_the_cpu() {
    let Some(cuda) = cuda_fp8() else { return };
    let mut sampled = crate::sampled(7);
    for ([rows, cols, out], first) in SPLITS {
        for shape in [Shape::dense(rows, cols), Shape::view(rows, cols, 3, 2)] {
            if !sampled() {
                continue;
            }
            let x = shape.tensor(&cuda, 1);
            let x_values = quantized(&cuda.download(&x).unwrap(), cols);
            let [top_weight, bottom_weight] = [2, 3].map(|seed| Weight::seeded(seed, out, cols).fp8(&cuda));
            let (top_values, bottom_values) = x_values.split_at(first * cols);
            let mut expected = product(top_values, &cuda.weight_values(&top_weight).unwrap(), [first, cols, out]);
            expected.extend(product(
                bottom_values,
                &cuda.weight_values(&bottom_weight).unwrap(),
                [rows - first, cols, out],
            ));
            let (top, bottom) = x.split_rows(first);
            let before = cuda.stats().launches;
            let got = Tensor::linear_rows(&[(&top, &top_weight), (&bottom, &bottom_weight)]).unwrap();
            let launches = cuda.stats().launches - before;
            compare(
                &format!("linear_rows in fp8 {shape:?} -> {out}, {first} first"),
                &cuda.download(&got).unwrap(),
                &expected,
                roundings(cols),
            );
            let quantized_at_once = first.is_multiple_of(4) || first == rows;
            let products = u64::from(first > 0) + u64::from(first < rows);
            assert_eq!(launches, products + if quantized_at_once { 1 } else { 2 }, "{first} of {rows} rows first");
        }
    }
}

/// The tests of `linear` run with sums in the tensor cores, which is the default.
#[test]
fn linear_in_fp8_matches_with_sums_in_float32_too() {
    if cuda_fp8().is_none() {
        return;
    }
    for test in ["fp8::linear_in_fp8_matches_the_cpu", "fp8::linear_in_fp8_matches_at_real_sizes"] {
        let (passed, text) = with_variable(test, FAST_ACCUMULATION, "0");
        assert!(passed, "{FAST_ACCUMULATION}=0: {text}");
    }
}

#[test]
fn products_in_fp8_by_mma_match_too() {
    if cuda_fp8().is_none() {
        return;
    }
    for test in [
        "fp8::linear_in_fp8_matches_the_cpu",
        "fp8::linear_in_fp8_matches_at_real_sizes",
        "fp8::linear_rows_in_fp8_matches_the_cpu",
        "fp8::what_is_not_a_number_stays_so",
        "fp8::e4m3_is_multiplied_alone_where_mma_multiplies_it",
        "project::project_in_fp8_matches_its_composition",
        "project::project_in_fp8_with_factors_of_low_rank_matches_its_composition",
    ] {
        let (passed, text) = with_variable(test, GEMM, "base");
        assert!(passed, "{GEMM}=base: {text}");
    }
}

/// mma.sync alone, on GPUs that use it for multiplications.
#[test]
fn e4m3_is_multiplied_alone_where_mma_multiplies_it() {
    let Some(cuda) = cuda_fp8() else { return };
    let operations = |steps| cuda.multiply_alone(Storage::Fp8, steps).unwrap();
    assert_eq!(operations(20).is_none(), by_cublaslt(&cuda));
    assert_eq!(operations(20), operations(10).map(|operations| 2 * operations));
    cuda.wait(&cuda.event().unwrap()).unwrap();
}

#[test]
fn a_factor_beside_a_weight_in_fp8_is_in_fp8() {
    let Some(cuda) = cuda_fp8() else { return };
    for [rank, cols] in [[1, 64], [16, 144], [33, 1032]] {
        let [weight, down, up] =
            [[48, cols], [rank, cols], [48, rank]].map(|[rows, cols]| Weight::seeded(2, rows, cols));
        let layer =
            weight.fp8(&cuda).with_low_rank(LowRank { down: down.linear(&cuda), up: up.linear(&cuda) }).unwrap();
        let values = |linear: &Linear<Cuda>| cuda.weight_values(linear).unwrap();
        let factors = layer.low_rank().unwrap();
        assert_equal("down", &values(&factors.down), &values(&down.fp8(&cuda)));
        assert_equal("up", &values(&factors.up), &values(&up.linear(&cuda)));
    }
}

#[test]
fn sums_stay_in_the_tensor_cores_unless_the_variable_says_otherwise() {
    let Some(cuda) = cuda_fp8() else { return };
    if std::env::var_os(FAST_ACCUMULATION).is_some() || !by_cublaslt(&cuda) {
        return;
    }
    let sums = |value| {
        let (passed, text) = with_variable("fp8::a_long_product_says_what_it_is", FAST_ACCUMULATION, value);
        assert!(passed, "{FAST_ACCUMULATION}={value}: {text}");
        let sum = text.lines().find_map(|line| line.split_once(LONG_PRODUCT)).map(|(_, sum)| sum.to_string());
        sum.unwrap_or_else(|| panic!("no sum in {text}"))
    };
    let [default, fast, slow] = ["", "1", "0"].map(sums);
    assert_eq!(default, fast);
    assert_ne!(default, slow, "the variable changes how a long product is summed");
}

const LONG_PRODUCT: &str = "the sum of a long product: ";

/// For the test above, which compares its output.
#[test]
fn a_long_product_says_what_it_is() {
    let Some(cuda) = cuda_fp8() else { return };
    let weight = Weight::seeded(2, 256, 4096).fp8(&cuda);
    let out = cuda.download(&Shape::dense(64, 4096).tensor(&cuda, 1).linear(&weight, None).unwrap()).unwrap();
    assert!(out.iter().all(|value| value.is_finite()));
    println!("{LONG_PRODUCT}{}", out.iter().map(|value| f64::from(*value)).sum::<f64>());
}

#[test]
fn a_bias_behind_a_product_in_fp8_is_an_error() {
    let Some(cuda) = cuda_fp8() else { return };
    let (x, weight) = (Shape::dense(20, 128).tensor(&cuda, 1), Weight::seeded(2, 256, 128).fp8(&cuda));
    let error = x.linear(&weight, Some(&vector(&cuda, 3, 256))).map(drop).unwrap_err().to_string();
    assert!(error.contains("bias") && error.contains("e4m3"), "{error}");
}

/// The same kernel rounds to bf16 on the way, so nothing may differ.
#[test]
fn gated_add_adaln_for_fp8_weights_equals_its_parts() {
    let Some(cuda) = cuda_fp8() else { return };
    let mut sampled = crate::sampled(7);
    for shape in shapes(Shape::dense(4608, 3072))
        .into_iter()
        .chain([8, 16, 264, 4096, 8184, 8192, 8200].map(|cols| Shape::dense(5, cols)))
    {
        if !sampled() {
            continue;
        }
        let [gate, shift, scale] = [3, 4, 5].map(|seed| vector(&cuda, seed, shape.cols));
        let weight = Weight::seeded(6, 21, shape.cols);
        let (e4m3, native) = (weight.fp8(&cuda), weight.linear(&cuda));
        let txt_rows = shape.rows / 3;
        let [(x, h), (expected_x, expected_h)] = [&e4m3, &native].map(|reader| {
            let (x, y) = (shape.tensor(&cuda, 1), shape.tensor(&cuda, 2));
            let norm = Norm { shift: &shift, scale: &scale, reader };
            x.gated_add_adaln([&gate; 2], &y, [norm; 2], Adaln { txt_rows, eps: 1e-6 }).unwrap()
        });
        assert_equal(
            &format!("the sum of {shape:?}"),
            &cuda.download(&x).unwrap(),
            &cuda.download(&expected_x).unwrap(),
        );
        // Its rows are read as the blocks read them.
        let [got, expected] = [h, expected_h].map(|h| {
            let (txt, img) = h.split_rows(txt_rows);
            [txt, img].map(|rows| cuda.download(&rows.linear(&e4m3).unwrap()).unwrap()).concat()
        });
        assert_equal(&format!("the norm of {shape:?}"), &got, &expected);
    }
}

#[test]
fn the_default_model_draws_in_fp8_what_it_draws_in_bf16() {
    let (Some(bf16), Some(fp8)) = (crate::cuda(), cuda_fp8()) else { return };
    draws_alike([bf16, fp8], "fp8 from bf16", 25.0);
}
