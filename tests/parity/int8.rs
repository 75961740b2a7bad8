//! Multiplications of 8-bit integers, also with weights in 4 bits: rows as integers, and results, against the
//! definition on the CPU to the last bit, and fused ops against their parts.

use flux::backend::cpu::{Cpu, Precision};
use flux::backend::{Backend, Device, Memory, Storage};
use flux::files::int8::{group_of, quantize_row};
use flux::files::{Bytes, FileSlice, Format, Scales, TensorView, w4a8};
use flux::nn::{Linear, LowRank};
use flux::ops::{self, Adaln, Heads, Norm, Pairs, QkNorm, Rope, TokenLayout};
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{Shape, Weight, compare, half, rounded, rounded_weight, shapes, values, vector, weight_sizes};
use crate::cuda_int8;
use crate::pipeline::draws_alike;

/// The value of a 1 in memory.
fn unit() -> f32 {
    if half() { 32.0 } else { 1.0 }
}

fn int8<B: Backend>(b: &B, weight: &Weight) -> Linear<B> {
    integral(b, weight, Storage::Int8)
}

fn integral<B: Backend>(b: &B, weight: &Weight, storage: Storage) -> Linear<B> {
    Linear::load(b, "weight", &[weight.view()], storage).unwrap()
}

/// Storage of weights for integer multiplications: 4 bits for whole steps of 64 columns, 8 bits for others.
const STORAGES: [Storage; 2] = [Storage::Int8, Storage::W4a8];

/// Returns the integers of rows of `cols` values and their scales, by the definition.
fn integers(values: &[f32], cols: usize, group: usize) -> (Vec<i8>, Vec<f32>) {
    let mut all = vec![0; values.len()];
    let row = |(row, out): (&[f32], &mut [i8])| quantize_row(&mut row.to_vec(), group, out);
    let scales = values.chunks(cols).zip(all.chunks_mut(cols)).map(row).collect();
    (all, scales)
}

/// As `integers` for a weight, through 4 bits if it is stored in these.
fn weight_integers(values: &[f32], cols: usize, storage: Storage) -> (Vec<i8>, Vec<f32>, usize) {
    let group = group_of(cols);
    if storage == Storage::Int8 || !w4a8::takes(cols) {
        let (all, scales) = integers(values, cols, group);
        return (all, scales, group);
    }
    let mut all = vec![0; values.len()];
    let row = |(row, out): (&[f32], &mut [i8])| w4a8::quantize_row(&mut row.to_vec(), group, out);
    let scales = values.chunks(cols).zip(all.chunks_mut(cols)).map(row).collect();
    (all, scales, group)
}

/// Values; one in 600 is far above the others.
fn outlying_values(seed: u64, n: usize) -> Vec<f32> {
    values(seed, n).into_iter().enumerate().map(|(i, value)| if i % 600 == 7 { 64.0 * value } else { value }).collect()
}

#[test]
fn int8_weights_are_the_integers_of_the_definition() {
    let Some(cuda) = cuda_int8() else { return };
    for (rows, cols) in weight_sizes([(3, 12), (3, 20480)]) {
        let host: Vec<f32> = outlying_values(2, rows * cols).into_iter().map(rounded_weight).collect();
        let weight = Weight::new(&host, &[rows, cols], Dtype::F32);
        for storage in STORAGES {
            let weight = integral(&cuda, &weight, storage);
            let got = cuda.weight_integers(&weight).unwrap();
            assert!(got == weight_integers(&host, cols, storage), "weight [{rows}, {cols}] in {storage:?}");
            let values = cuda.weight_values(&weight).unwrap();
            let error: f32 = values.iter().zip(&host).map(|(a, b)| (a - b).powi(2)).sum();
            // Half a step for each value; a rotation keeps lengths. In 4 bits a tenth of the total.
            let most: f32 = match storage == Storage::W4a8 && w4a8::takes(cols) {
                true => 0.01 * host.iter().map(|value| value.powi(2)).sum::<f32>(),
                false => 1.01 * got.1.iter().map(|scale| cols as f32 * (0.5 * scale).powi(2)).sum::<f32>(),
            };
            assert!(error <= most, "[{rows}, {cols}] in {storage:?}: {error}, at most {most}");
        }
    }
}

#[test]
fn activations_are_the_integers_of_the_definition() {
    let Some(cuda) = cuda_int8() else { return };
    for shape in shapes(Shape::dense(4608, 3072)).into_iter().chain([Shape::dense(3, 20480), Shape::dense(0, 64)]) {
        let x = shape.tensor(&cuda, 1);
        let in_memory: Vec<f32> = cuda.download(&x).unwrap().into_iter().map(|value| value / unit()).collect();
        for group in [group_of(shape.cols), 4, 1] {
            if !shape.cols.is_multiple_of(group) {
                continue;
            }
            let got = cuda.integers(&cuda.quantize_int8(&x, group).unwrap()).unwrap();
            assert!(got == integers(&in_memory, shape.cols, group), "{shape:?} in groups of {group}");
        }
    }
}

/// Tiles have 128 rows and 128 or 256 columns, steps have 64 or 128.
const PRODUCTS: [[usize; 3]; 15] = [
    [64, 128, 256],
    [1, 64, 96],
    [7, 24, 5],
    [33, 27, 3],
    [129, 40, 1],
    [5, 13, 17],
    [300, 8, 8],
    [1000, 256, 512],
    [128, 3072, 257],
    [127, 1040, 513],
    [9, 12288, 24],
    [130, 192, 264],
    [40, 3136, 100],
    [0, 64, 32],
    // Row tiles in three groups, each with three column tiles.
    [3700, 64, 600],
];

/// Sums are exact, and each further step is rounded as on the CPU: the result is the CPU's, rounded once.
#[test]
fn linear_in_int8_equals_the_cpu() {
    let Some(cuda) = cuda_int8() else { return };
    let cpu = Cpu::new(Precision::Int8);
    let mut sampled = crate::sampled(5);
    for [rows, cols, out] in PRODUCTS {
        for (before, after) in [(0, 0), (8, 16), (3, 2)] {
            if !sampled() {
                continue;
            }
            let shape = Shape::view(rows, cols, before, after);
            let weight = Weight::seeded(2, out, cols);
            let x = shape.tensor(&cuda, 1);
            // Units of activations are powers of two, so only the CPU's scales differ, by such a factor.
            let host = cpu.upload(&cuda.download(&x).unwrap(), rows, cols).unwrap();
            let bias = values(3, out);
            for (storage, with_bias) in STORAGES.into_iter().flat_map(|storage| [(storage, false), (storage, true)]) {
                let bias_on_gpu = with_bias.then(|| cuda.upload(&bias, 1, out).unwrap());
                let on_gpu = x.linear(&integral(&cuda, &weight, storage), bias_on_gpu.as_ref()).unwrap();
                let host_bias = with_bias.then(|| cpu.upload(&bias, 1, out).unwrap());
                let expected = host.linear(&integral(&cpu, &weight, storage), host_bias.as_ref()).unwrap();
                let expected: Vec<f32> = cpu.download(&expected).unwrap().into_iter().map(rounded).collect();
                let got = cuda.download(&on_gpu).unwrap();
                assert!(got == expected, "{shape:?} -> {out} in {storage:?}, bias {with_bias}");
            }
        }
    }
}

/// The real shapes; on fewer rows, because the CPU has to compute them too.
#[test]
fn linear_in_int8_equals_the_cpu_at_real_sizes() {
    let Some(cuda) = cuda_int8() else { return };
    if crate::small() {
        return;
    }
    let cpu = Cpu::new(Precision::Int8);
    for [rows, cols, out] in [[256, 3072, 27648], [257, 12288, 3072], [200, 9216, 3072]] {
        let (weight, x) = (Weight::seeded(2, out, cols), Shape::dense(rows, cols).tensor(&cuda, 1));
        let host = cpu.upload(&cuda.download(&x).unwrap(), rows, cols).unwrap();
        for storage in STORAGES {
            let expected = host.linear(&integral(&cpu, &weight, storage), None).unwrap();
            let expected = cpu.download(&expected).unwrap().into_iter().map(rounded);
            let got = x.linear(&integral(&cuda, &weight, storage), None).unwrap();
            let got = cuda.download(&got).unwrap();
            assert!(got.into_iter().eq(expected), "{rows} x {cols} -> {out} in {storage:?}");
        }
    }
}

/// The largest integers on both sides, over as many terms as in the largest model.
#[test]
fn the_largest_sums_in_int8_are_exact() {
    let Some(cuda) = cuda_int8() else { return };
    let cols = 16384;
    let weight = Weight::new(&vec![1.0; 32 * cols], &[32, cols], Dtype::BF16);
    let x = cuda.upload(&vec![-1.0; 3 * cols], 3, cols).unwrap();
    let host = Cpu::new(Precision::Int8);
    let x_on_host = host.upload(&vec![-1.0; 3 * cols], 3, cols).unwrap();
    let expected = host.download(&x_on_host.linear(&int8(&host, &weight), None).unwrap()).unwrap();
    let got = cuda.download(&x.linear(&int8(&cuda, &weight), None).unwrap()).unwrap();
    assert!(got.into_iter().eq(expected.into_iter().map(rounded)));
}

#[test]
fn integers_of_a_file_are_multiplied_as_they_are() {
    let Some(cuda) = cuda_int8() else { return };
    let (rows, cols) = (24, 512);
    let bytes: Vec<u8> = (0..rows * cols).map(|i| (i * 37 % 255) as u8).collect();
    let scales: Vec<u8> = (0..rows).flat_map(|row| (0.001 * (row + 1) as f32).to_le_bytes()).collect();
    let file = |bytes: Vec<u8>| std::sync::Arc::new(Bytes::Embedded(bytes.leak()));
    let (values_file, scales_file) = (file(bytes.clone()), file(scales));
    for (format, group) in [(Format::Int8, 1), (Format::Int8Rotated { group: 256 }, 256)] {
        let scales = FileSlice::new(scales_file.clone(), 0..4 * rows).unwrap();
        let range = 0..rows * cols;
        let view =
            TensorView::new(values_file.clone(), range, format, vec![rows, cols], Scales::Rows(Box::new(scales)));
        let view = view.unwrap();
        let parts = [view.row_range(10..rows), view.row_range(0..10)];
        let weight = Linear::load(&cuda, "weight", &parts, Storage::Int8).unwrap();
        let (got, scales, of_group) = cuda.weight_integers(&weight).unwrap();
        let expected: Vec<i8> = [&bytes[10 * cols..], &bytes[..10 * cols]].concat().iter().map(|b| *b as i8).collect();
        assert!(got == expected && of_group == group, "{format}");
        assert_eq!((scales[0], scales[rows - 1]), (0.001 * 11.0, 0.001 * 10.0));
        let (x, cpu) = (Shape::dense(40, cols).tensor(&cuda, 1), Cpu::new(Precision::Int8));
        let host = cpu.upload(&cuda.download(&x).unwrap(), 40, cols).unwrap();
        let on_host = Linear::load(&cpu, "weight", &parts, Storage::Int8).unwrap();
        let expected = cpu.download(&host.linear(&on_host, None).unwrap()).unwrap();
        let got = cuda.download(&x.linear(&weight, None).unwrap()).unwrap();
        assert!(got.into_iter().eq(expected.into_iter().map(rounded)), "{format}");
    }
}

#[test]
fn an_integer_weight_leaves_its_bytes_in_memory() {
    let Some(cuda) = cuda_int8() else { return };
    let weight = Weight::seeded(1, 256, 512);
    for (storage, of_row) in [(Storage::Int8, 512), (Storage::W4a8, 320)] {
        let before = cuda.stats().memory_bytes;
        let weight = integral(&cuda, &weight, storage);
        assert_eq!(cuda.stats().memory_bytes - before, 256 * of_row + 256 * 4, "{storage:?}");
        assert!(cuda.stats().memory_bytes - before <= cuda.costs().weight_bytes(256 * 512, storage), "{storage:?}");
        drop(weight);
        assert_eq!(cuda.stats().memory_bytes, before);
    }
}

#[test]
fn what_is_not_a_number_stays_so_in_int8() {
    let Some(cuda) = cuda_int8() else { return };
    let mut host = values(1, 3 * 64);
    host[70] = f32::NAN;
    let weight = Weight::seeded(2, 32, 64);
    for storage in STORAGES {
        let out = cuda.upload(&host, 3, 64).unwrap().linear(&integral(&cuda, &weight, storage), None).unwrap();
        let out = cuda.download(&out).unwrap();
        assert!(out[32..64].iter().all(|value| value.is_nan()));
        assert!(out[..32].iter().chain(&out[64..]).all(|value| value.is_finite()));
        let damaged = Weight::new(&host, &[3, 64], Dtype::F32);
        let x = cuda.upload(&values(1, 64), 1, 64).unwrap();
        let out = cuda.download(&x.linear(&integral(&cuda, &damaged, storage), None).unwrap()).unwrap();
        assert!(out[1].is_nan() && out[0].is_finite() && out[2].is_finite(), "{storage:?}: {out:?}");
    }
}

#[test]
fn integers_are_for_products_only() {
    let Some(cuda) = cuda_int8() else { return };
    let x = Shape::dense(64, 64).tensor(&cuda, 2);
    let quantized = || cuda.quantize_int8(&x, 64).unwrap();
    let native = Weight::seeded(3, 64, 64).linear(&cuda);
    for error in [quantized().silu(), quantized().linear(&native, None), Tensor::concat_rows(&[&x, &quantized()])] {
        let error = error.map(drop).unwrap_err().to_string();
        assert!(error.contains("Int8, expected"), "{error}");
    }
    let other = cuda.quantize_int8(&x, 1).unwrap();
    let error = flux::nn::Operand::from(other).linear(&int8(&cuda, &Weight::seeded(3, 64, 64))).map(drop).unwrap_err();
    assert!(error.to_string().contains("in the same way"), "{error}");
}

/// Text and image rows with separate weights, also with no row for one of them, and with a residual.
#[test]
fn variants_of_linear_in_int8_equal_their_parts() {
    let Some(cuda) = cuda_int8() else { return };
    for (rows, first) in [(40, 16), (41, 13), (20, 0), (20, 20)] {
        let (cols, out) = (256, 96);
        let x = Shape::view(rows, cols, 3, 5).tensor(&cuda, 1);
        let weights = [2, 3].map(|seed| int8(&cuda, &Weight::seeded(seed, out, cols)));
        let (top, bottom) = x.row_view(0..rows).split_rows(first);
        let expected = [(&top, &weights[0]), (&bottom, &weights[1])]
            .map(|(x, weight)| cuda.download(&x.linear(weight, None).unwrap()).unwrap())
            .concat();
        let got = Tensor::linear_rows(&[(&top, &weights[0]), (&bottom, &weights[1])]).unwrap();
        assert!(cuda.download(&got).unwrap() == expected, "linear_rows, {first} of {rows} first");
        let residual = Shape::dense(rows, out).tensor(&cuda, 4);
        let added = cuda.download(&residual).unwrap();
        let product = cuda.download(&x.linear(&weights[0], None).unwrap()).unwrap();
        let sums: Vec<f32> = product.iter().zip(&added).map(|(product, added)| product + added).collect();
        let got = cuda.download(&x.linear_add(&weights[0], residual).unwrap()).unwrap();
        compare(&format!("linear_add in int8, {rows} rows"), &got, &sums, 1.0);
    }
}

/// The MLP's columns are multiplied by their gates before they are rounded; in the composition, after.
#[test]
fn project_in_int8_matches_its_composition() {
    let Some(cuda) = cuda_int8() else { return };
    let mut sampled = crate::sampled(3);
    let cases = [(0, 40, 256, 512), (16, 300, 256, 128), (13, 29, 0, 136), (0, 131, 512, 0), (24, 24, 256, 1032)];
    for ((first, rows, dim, mlp), storage) in cases.into_iter().flat_map(|case| STORAGES.map(|storage| (case, storage)))
    {
        if !sampled() {
            continue;
        }
        let (features, head_dim) = (320, 128);
        let x = Shape::dense(rows, features).tensor(&cuda, 1);
        let weights = [2, 3].map(|seed| {
            let weight = Weight::seeded(seed, 3 * dim + 2 * mlp, features);
            integral(&cuda, &weight, storage)
        });
        let (txt, img) = x.split_rows(first);
        let operands = [txt.into(), img.into()];
        let parts = [(&operands[0], &weights[0]), (&operands[1], &weights[1])];
        let parts = if first > 0 { &parts[..] } else { &parts[1..] };
        let layout = if first > 0 {
            TokenLayout { batch: 1, txt: first, img: rows - first, ..TokenLayout::single(rows) }
        } else {
            TokenLayout::single(rows)
        };
        let norm = QkNorm { q: vector(&cuda, 5, head_dim), k: vector(&cuda, 6, head_dim), eps: 1e-6 };
        let table = |seed| cuda.upload_f32(&values(seed, rows * head_dim / 2), rows, head_dim / 2).unwrap();
        let rope = Rope { cos: table(7), sin: table(8), pairs: Pairs::Interleaved };
        let heads = Heads { dim, norm: [&norm; 2], rope: &rope, layout };
        let heads = (dim > 0).then_some(&heads);
        let got = Tensor::project(parts, heads).unwrap();
        let expected = ops::project::compose(&cuda, parts, heads).unwrap();
        let what = format!("project in {storage:?}, {first} of {rows} rows first, {dim} and {mlp} columns");
        for (got, expected) in got.kvq.iter().zip(&expected.kvq) {
            assert!(cuda.download(got).unwrap() == cuda.download(expected).unwrap(), "{what}");
        }
        let [got, expected] = [got, expected].map(|made| cuda.download(&made.mlp).unwrap());
        compare(&what, &got, &expected, 3.0);
    }
}

/// Factors of a weight read unquantized activations.
#[test]
fn factors_beside_an_int8_weight_are_added_to_its_product() {
    let Some(cuda) = cuda_int8() else { return };
    let (rows, cols, out, rank) = (50, 256, 96, 8);
    let (x, weight) = (Shape::dense(rows, cols).tensor(&cuda, 1), int8(&cuda, &Weight::seeded(2, out, cols)));
    let [down, up] = [(3, rank, cols), (4, out, rank)].map(|(seed, rows, cols)| Weight::seeded(seed, rows, cols));
    let factors = || LowRank { down: down.linear(&cuda), up: up.linear(&cuda) };
    let product = cuda.download(&x.linear(&weight, None).unwrap()).unwrap();
    let low = x.linear(&factors().down, None).unwrap().linear(&factors().up, None).unwrap();
    let expected: Vec<f32> =
        product.iter().zip(cuda.download(&low).unwrap()).map(|(product, low)| product + low).collect();
    let got = cuda.download(&x.linear(&weight.with_low_rank(factors()).unwrap(), None).unwrap()).unwrap();
    compare("factors beside an int8 weight", &got, &expected, 3.0);
}

/// The same kernel rounds to an element on the way, so nothing may differ.
#[test]
fn gated_add_adaln_for_int8_weights_equals_its_parts() {
    let Some(cuda) = cuda_int8() else { return };
    let (mut sampled, mut count) = (crate::sampled(5), 0);
    let more = [8, 16, 64, 264, 4096, 8192, 8200].map(|cols| Shape::dense(5, cols));
    for shape in shapes(Shape::dense(4608, 3072)).into_iter().chain(more) {
        if !sampled() {
            continue;
        }
        let [gate, shift, scale] = [3, 4, 5].map(|seed| vector(&cuda, seed, shape.cols));
        let weight = Weight::seeded(6, 21, shape.cols);
        let (quantized, native) = (int8(&cuda, &weight), weight.linear(&cuda));
        let txt_rows = shape.rows / 8 * 4;
        let [(x, h), (expected_x, expected_h)] = [&quantized, &native].map(|reader| {
            let (x, y) = (shape.tensor(&cuda, 1), shape.tensor(&cuda, 2));
            let norm = Norm { shift: &shift, scale: &scale, reader };
            x.gated_add_adaln([&gate; 2], &y, [norm; 2], Adaln { txt_rows, eps: 1e-6 }).unwrap()
        });
        assert!(cuda.download(&x).unwrap() == cuda.download(&expected_x).unwrap(), "the sum of {shape:?}");
        if let Ok(fused) = cuda.integers(h.tensor()) {
            let parts = cuda.quantize_int8(expected_h.tensor(), group_of(shape.cols)).unwrap();
            assert!(fused == cuda.integers(&parts).unwrap(), "the integers of {shape:?}");
            count += 1;
        }
        // Its rows are read as the blocks read them.
        let [got, expected] = [h, expected_h].map(|h| {
            let (txt, img) = h.split_rows(txt_rows);
            [txt, img].map(|rows| cuda.download(&rows.linear(&quantized).unwrap()).unwrap()).concat()
        });
        assert!(got == expected, "the norm of {shape:?}");
    }
    assert!(count > 0, "the kernel quantizes");
}

#[test]
fn the_default_model_draws_in_int8_what_it_draws_in_16_bits() {
    let (Some(native), Some(int8)) = (crate::cuda(), cuda_int8()) else { return };
    draws_alike([native, int8], "int8 from 16 bits", 30.0);
    let (Some(native), Some(w4a8)) = (crate::cuda(), crate::cuda_w4a8()) else { return };
    draws_alike([native, w4a8], "w4a8 from 16 bits", 20.0);
}

#[test]
fn tensor_cores_multiply_and_do_nothing_else() {
    let Some(cuda) = cuda_int8() else { return };
    let operations = |storage, steps| cuda.multiply_alone(storage, steps).unwrap().unwrap();
    for storage in [Storage::Native, Storage::Int8] {
        assert_eq!(operations(storage, 20), 2 * operations(storage, 10));
        cuda.wait(&cuda.event().unwrap()).unwrap();
    }
    assert_eq!(operations(Storage::Int8, 10), 2 * operations(Storage::Native, 10));
}
