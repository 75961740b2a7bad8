//! Weights in e4m3: the scale of least error for each row, on the GPU and in files.

use flux::backend::cuda::Cuda;
use flux::backend::{Device, Memory, Storage};
use flux::files::e4m3::{MULTIPLE, quantize_row, to_f32};
use flux::files::quantized_cache::QuantizedCache;
use flux::files::{Folder, ModelFiles, Safetensors, TensorFiles, TensorView, scales_name};
use flux::model::OpenModel;
use flux::nn::Linear;
use flux::pipeline::{Model, Request};
use flux::stage::CancelFlag;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView as FileTensor;

use crate::compare::{Shape, Weight, values, weight_sizes};
use crate::cuda_fp8;
use crate::fp8::{assert_equal, quantized, wide_values};
use crate::support::{copy_folder, preset};

/// Returns the bits of rows of `cols` values of a weight, padded with zeros, and the rows' scales of least error,
/// which tests of e4m3.rs find in another way.
fn weight_bits(values: &[f32], cols: usize) -> (Vec<u8>, Vec<f32>) {
    let stride = cols.next_multiple_of(MULTIPLE);
    let mut bits = vec![0; values.len() / cols * stride];
    let row = |(row, out): (&[f32], &mut [u8])| quantize_row(row, out);
    let scales = values.par_chunks(cols).zip(bits.par_chunks_mut(stride)).map(row).collect();
    (bits, scales)
}

/// Returns rows of `cols` values of a weight in e4m3.
fn quantized_weight(values: &[f32], cols: usize) -> Vec<f32> {
    let (bits, scales) = weight_bits(values, cols);
    let row =
        |(bits, scale): (&[u8], f32)| bits[..cols].iter().map(move |bits| to_f32(*bits) * scale).collect::<Vec<_>>();
    bits.chunks(cols.next_multiple_of(MULTIPLE)).zip(scales).flat_map(row).collect()
}

/// Sizes in addition to those that all weights have.
const OWN_SIZES: [(usize, usize); 2] = [(3, 7), (3, 16392)];

/// Loads a weight of these parts in e4m3.
fn fp8(cuda: &Cuda, parts: &[TensorView]) -> Linear<Cuda> {
    Linear::load(cuda, "weight", parts, Storage::Fp8).unwrap()
}

/// Returns values of three kinds of rows: spread evenly, over many powers of two, and with heavy tails, most far below
/// the largest.
fn weights_of(rows: usize, cols: usize) -> [Vec<f32>; 3] {
    let even = values(2, rows * cols);
    let heavy = even.iter().map(|value| half::bf16::from_f32(value * value * value).to_f32()).collect();
    [even, wide_values(rows, cols), heavy]
}

#[test]
fn fp8_weights_are_e4m3_with_the_scale_of_least_error_for_each_row() {
    let Some(cuda) = cuda_fp8() else { return };
    for (rows, cols) in weight_sizes(OWN_SIZES) {
        for host in weights_of(rows, cols) {
            let weight = Weight::new(&host, &[rows, cols], Dtype::BF16);
            let weight = weight.fp8(&cuda);
            assert_equal(
                &format!("weight [{rows}, {cols}]"),
                &cuda.weight_values(&weight).unwrap(),
                &quantized_weight(&host, cols),
            );
        }
    }
}

#[test]
fn fp8_weights_are_nearer_than_with_the_least_scale() {
    let Some(cuda) = cuda_fp8() else { return };
    for (rows, cols, factor) in [(40, 3072, 0.98), (20, 12288, 0.99), (9, 1031, 0.97)] {
        let host = Weight::seeded(3, rows, cols);
        let weight = cuda.weight_values(&host.fp8(&cuda)).unwrap();
        let host = host.view().to_f32();
        let error =
            |got: &[f32]| host.iter().zip(got).map(|(value, got)| f64::from(value - got).powi(2)).sum::<f64>().sqrt();
        let (chosen, least) = (error(&weight), error(&quantized(&host, cols)));
        println!("[{rows}, {cols}]: {:.4} of the error", chosen / least);
        assert!(chosen < factor * least, "[{rows}, {cols}]: {chosen} of {least}");
    }
}

/// Other values are not affected.
#[test]
fn fp8_weights_keep_what_is_not_a_number() {
    let Some(cuda) = cuda_fp8() else { return };
    for cols in [64, 77, 3072] {
        let mut host = values(2, 4 * cols);
        host[cols + 5] = f32::NAN;
        host[2 * cols + 6] = f32::INFINITY;
        let weight = Weight::new(&host, &[4, cols], Dtype::BF16);
        let got = cuda.weight_values(&weight.fp8(&cuda)).unwrap();
        let expected = quantized_weight(&host, cols);
        assert!(got[cols + 5].is_nan() && got[2 * cols..3 * cols].iter().all(|value| value.is_nan()), "{cols}");
        let numbers = |values: &[f32]| values.iter().copied().filter(|value| !value.is_nan()).collect::<Vec<_>>();
        assert_equal(&format!("numbers of {cols}"), &numbers(&got), &numbers(&expected));
        assert_eq!(numbers(&got).len(), 3 * cols - 1);
    }
}

#[test]
fn stacked_fp8_weights_arrive_whole() {
    let Some(cuda) = cuda_fp8() else { return };
    let rows = if crate::small() { 700 } else { 9000 };
    let (a, b) = (values(1, rows * 3072), values(2, 3 * 3072));
    let (large, tail) = (Weight::new(&a, &[rows, 3072], Dtype::F32), Weight::new(&b, &[3, 3072], Dtype::BF16));
    let both = fp8(&cuda, &[large.view(), tail.view()]);
    assert_equal("stacked", &cuda.weight_values(&both).unwrap(), &quantized_weight(&[a, b].concat(), 3072));
}

/// Files of a matrix in bf16, and of one in e4m3 with the same name, here with the values `others`.
fn with_e4m3(values: &[f32], others: &[f32], rows: usize, cols: usize) -> (tempfile::TempDir, TensorFiles) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("w")).unwrap();
    let bf16: Vec<u8> = values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect();
    let tensor = FileTensor::new(Dtype::BF16, vec![rows, cols], &bf16).unwrap();
    safetensors::serialize_to_file([("weight", tensor)], None, &folder.path().join("w/w.safetensors")).unwrap();
    let (bits, scales) = weight_bits(others, cols);
    let scales: Vec<u8> = scales.into_iter().flat_map(f32::to_le_bytes).collect();
    let e4m3 = [
        (
            "weight".to_string(),
            FileTensor::new(Dtype::F8_E4M3, vec![rows, cols.next_multiple_of(MULTIPLE)], &bits).unwrap(),
        ),
        (scales_name("weight"), FileTensor::new(Dtype::F32, vec![rows], &scales).unwrap()),
    ];
    let path = folder.path().join("e4m3.safetensors");
    safetensors::serialize_to_file(e4m3, None, &path).unwrap();
    let mut files = Folder::Disk(folder.path().join("w")).tensors("w").unwrap();
    files.set_quantized(Safetensors::open(&path, "").unwrap());
    (folder, files)
}

#[test]
fn fp8_weights_of_a_file_are_those_that_the_gpu_makes() {
    let Some(cuda) = cuda_fp8() else { return };
    let mut sizes = weight_sizes(OWN_SIZES);
    if crate::few() {
        sizes.retain(|(_, cols)| *cols < 3072);
    }
    if !crate::small() {
        sizes.push((9000, 3072)); // in several pieces
    }
    let mut sampled = crate::sampled(7);
    for (rows, cols) in sizes {
        for host in weights_of(rows, cols) {
            if !sampled() {
                continue;
            }
            let (_folder, files) = with_e4m3(&host, &host, rows, cols);
            let view = files.get("weight", &[rows, cols]).unwrap();
            let before = cuda.stats().launches;
            let from_file = fp8(&cuda, std::slice::from_ref(&view));
            assert_eq!(cuda.stats().launches, before, "nothing is quantized");
            let plain = Weight::new(&host, &[rows, cols], Dtype::BF16);
            let made = plain.fp8(&cuda);
            let what = format!("weight [{rows}, {cols}]");
            assert_equal(&what, &cuda.weight_values(&from_file).unwrap(), &cuda.weight_values(&made).unwrap());
            // The padding is zeros, too, because multiplications read it.
            let x = Shape::dense(9, cols).tensor(&cuda, 1);
            let [got, expected] =
                [&from_file, &made].map(|weight| cuda.download(&x.linear(weight, None).unwrap()).unwrap());
            assert_equal(&what, &got, &expected);
        }
    }
}

/// The e4m3 file has other values than the bf16 file, which shows which of them is read.
#[test]
fn rows_of_fp8_weights_come_from_the_file_in_any_order() {
    let Some(cuda) = cuda_fp8() else { return };
    let (rows, cols) = (45, 77);
    let (host, others) = (values(1, rows * cols), values(2, rows * cols));
    let (_folder, files) = with_e4m3(&host, &others, rows, cols);
    let view = files.get("weight", &[rows, cols]).unwrap();
    let parts = [7..20, 0..7, 20..45];
    let stacked = fp8(&cuda, &parts.clone().map(|rows| view.row_range(rows)));
    let reordered: Vec<f32> =
        parts.into_iter().flat_map(|rows| others[rows.start * cols..rows.end * cols].to_vec()).collect();
    assert_equal("reordered rows", &cuda.weight_values(&stacked).unwrap(), &quantized_weight(&reordered, cols));
    // In bf16 the values of the other file are read.
    let native = Linear::load(&cuda, "weight", &[view], Storage::Native).unwrap();
    assert_equal("a weight in bf16", &cuda.weight_values(&native).unwrap(), &host);
}

#[test]
fn images_are_the_same_with_weights_from_a_file() {
    let Some(cuda) = cuda_fp8() else { return };
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&crate::root().join("models/tiny"), copy.path());
    for dir in [ModelFiles::open(copy.path()).unwrap(), preset("uneven"), preset("sharded")] {
        let open = |cache: Option<QuantizedCache>| {
            let mut model = OpenModel::open(&dir).unwrap();
            if let Some(cache) = cache {
                let (folder, cancel) = (dir.folder().unwrap(), CancelFlag::default());
                assert_eq!(model.attach_quantized_cache(folder, &cancel, &mut |_| {}).unwrap(), cache);
            }
            Model::new(cuda.clone(), model)
        };
        let made = QuantizedCache::Made(dir.folder().unwrap().join("flux-fp8.safetensors"), None);
        let launches = || cuda.stats().launches;
        let [expected, first, later] = [None, Some(made), Some(QuantizedCache::Found)].map(|cache| {
            let request =
                Request { width: Some(64), height: Some(96), steps: Some(2), ..Request::new("a red heart", 45) };
            let (model, before) = (open(cache), launches());
            let latents = model.latents(&request).unwrap();
            let config = model.info().transformer.clone();
            (latents, launches() - before, (8 * config.num_layers + 2 * config.num_single_layers) as u64)
        });
        let (latents, all, fp8_weights) = expected;
        for (with, some, _) in [first, later] {
            assert!(with == latents, "{dir:?}");
            assert!(all - some >= fp8_weights, "weights were quantized, or converted to bf16 for that: {dir:?}");
        }
    }
}

#[test]
fn an_fp8_weight_leaves_a_byte_for_each_value_in_memory() {
    let Some(cuda) = cuda_fp8() else { return };
    let weight = Weight::seeded(1, 256, 512);
    let before = cuda.stats().memory_bytes;
    let weight = weight.fp8(&cuda);
    assert_eq!(cuda.stats().memory_bytes - before, 256 * 512 + 256 * 4);
    assert!(cuda.stats().memory_bytes - before <= cuda.costs().weight_bytes(256 * 512, Storage::Fp8));
    drop(weight);
    assert_eq!(cuda.stats().memory_bytes, before);
}
