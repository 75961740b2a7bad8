//! Transfers: weights to the GPU with every dtype, every padding and several slices; and results back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use flux::backend::cpu::{Cpu, Precision};
use flux::backend::cuda::Cuda;
use flux::backend::{Backend, Device, Memory, Storage, WeightStore};
use flux::files::{Bytes, Container, Format, Scales, TensorView, e4m3};
use flux::nn::Linear;
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{Shape, Weight, compare, rounded, rounded_weight, values};

/// Loads a weight of these parts in the GPU's type.
fn native(cuda: &Cuda, parts: &[TensorView]) -> flux::Result<Linear<Cuda>> {
    Linear::load(cuda, "weight", parts, Storage::Native)
}

/// As `native`, with other uploads.
fn native_with(
    cuda: &Cuda,
    parts: &[TensorView],
    uploads: &<Cuda as WeightStore>::Uploads,
) -> flux::Result<Linear<Cuda>> {
    Linear::load_with((cuda, Some(uploads)), "weight", parts, Storage::Native)
}

#[test]
fn weights_of_every_dtype_arrive_rounded() {
    let Some(cuda) = crate::cuda() else { return };
    for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
        for (rows, cols) in [(16, 64), (5, 64), (16, 27), (1, 1), (3, 7)] {
            // No dtype represents thirds exactly, so converting has to round.
            let thirds: Vec<f32> = values(1, rows * cols).iter().map(|v| v / 3.0).collect();
            let weight = Weight::new(&thirds, &[rows, cols], dtype);
            let expected: Vec<f32> = weight.view().to_f32().iter().map(|v| rounded_weight(*v)).collect();
            assert_eq!(cuda.weight_values(&weight.linear(&cuda)).unwrap(), expected, "{dtype:?} [{rows}, {cols}]");
        }
    }
}

#[test]
fn large_weights_and_stacked_parts_arrive_whole() {
    let Some(cuda) = crate::cuda() else { return };
    let rows = if crate::small() { 700 } else { 9000 };
    for dtype in [Dtype::BF16, Dtype::F32] {
        let (a, b) = (values(1, rows * 3072), values(2, 3 * 3072));
        let (large, tail) = (Weight::new(&a, &[rows, 3072], dtype), Weight::new(&b, &[3, 3072], Dtype::BF16));
        let both = native(&cuda, &[large.view(), tail.view()]).unwrap();
        let got = cuda.weight_values(&both).unwrap();
        assert!(got[..a.len()] == a && got[a.len()..] == b, "{dtype:?}");
    }
}

#[test]
fn some_rows_of_a_weight_arrive() {
    let Some(cuda) = crate::cuda() else { return };
    let host = values(1, 40 * 24);
    let weight = Weight::new(&host, &[40, 24], Dtype::BF16);
    let part = native(&cuda, &[weight.view().row_range(7..20)]).unwrap();
    assert_eq!(cuda.weight_values(&part).unwrap(), host[7 * 24..20 * 24]);
}

/// Multiplications read them as bf16, or as e4m3 if they have that format and the GPU multiplies it.
#[test]
fn weights_in_fewer_bits_arrive_as_products_read_them() {
    let Some(cuda) = crate::cuda() else { return };
    let check = |parts: &[TensorView], what: &str| {
        let expected: Vec<f32> = parts.iter().flat_map(TensorView::to_f32).collect();
        let rounded: Vec<f32> = expected.iter().map(|value| rounded_weight(*value)).collect();
        let is_e4m3 = crate::cuda_fp8().is_some()
            && parts.iter().all(|part| part.format() == Format::E4m3 && part.cols().is_multiple_of(e4m3::MULTIPLE));
        let got = cuda.weight_values(&native(&cuda, parts).unwrap()).unwrap();
        assert!(got == if is_e4m3 { expected } else { rounded }, "{what}");
    };
    for name in ["blocks.gguf", "comfy.safetensors", "bitsandbytes.safetensors"] {
        let path = crate::root().join("tests/formats").join(name);
        let file = Container::open(&path, "").unwrap();
        for tensor in file.names() {
            let view = file.tensor(tensor).unwrap();
            check(&[view.row_range(1..view.rows()), view.clone()], tensor);
        }
    }
    let (rows, cols) = if crate::small() { (800, 3072) } else { (5000, 3072) };
    let bytes: Vec<u8> = (0..rows * cols).map(|i| (i * i / 7 % 120) as u8).collect();
    let bytes = Arc::new(Bytes::Embedded(bytes.leak()));
    let large = TensorView::new(bytes, 0..rows * cols, Format::E4m3, vec![rows, cols], Scales::Tensor(0.3)).unwrap();
    check(&[large], "several panels");
}

#[test]
fn convolution_weights_are_reordered() {
    let Some(cuda) = crate::cuda() else { return };
    for (cout, cin, kernel) in [(16, 8, 3), (3, 8, 3), (5, 3, 3), (8, 16, 1), (2, 3, 2)] {
        let host = values(1, cout * cin * kernel * kernel);
        let weight = Weight::new(&host, &[cout, cin, kernel, kernel], Dtype::F32).conv(&cuda);
        let got = cuda.matrix_values(&weight.weight().0).unwrap();
        let taps = kernel * kernel;
        for (i, value) in got.iter().enumerate() {
            let (row, column) = (i / (cin * taps), i % (cin * taps));
            assert_eq!(
                *value,
                host[(row * cin + column % cin) * taps + column / cin],
                "[{cout}, {cin}, {kernel}] at {i}"
            );
        }
    }
}

#[test]
fn rows_of_a_table_come_in_the_order_of_their_ids() {
    let Some(cuda) = crate::cuda() else { return };
    let cpu = Cpu::new(Precision::F32);
    for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
        let table = Weight::new(&values(1, 50 * 24), &[50, 24], dtype);
        let ids = [49, 0, 0, 0, 7, 49, 49];
        let got = cuda.download(&cuda.embedding(&table.view(), &ids).unwrap()).unwrap();
        // `values` are on the bf16 grid.
        assert_eq!(got, cpu.download(&cpu.embedding(&table.view(), &ids).unwrap()).unwrap(), "{dtype:?}");
    }
}

/// Below and above the size limit of pinned memory, in one part and in several, with ends of parts inside of values
/// and between them.
#[test]
fn values_come_back_whatever_their_size() {
    let Some(cuda) = crate::cuda() else { return };
    let shapes = [
        (0, 8),
        (1, 5),
        (100, 327),
        (1, 40_001),
        (7, 5000),
        (4096, 128),
        (1024, 2048),
        (3001, 1001),
        (9000, 1003),
        (1, 3_000_001),
    ];
    let shapes = if crate::small() { &shapes[..6] } else { &shapes[..] };
    // Several transfers run at once, so that staging buffers are reused.
    let uploaded: Vec<_> = (1..)
        .zip(shapes.iter().chain(shapes))
        .map(|(seed, &(rows, cols))| {
            let host = values(seed, rows * cols);
            let (bf16, f32) = (cuda.upload(&host, rows, cols).unwrap(), cuda.upload_f32(&host, rows, cols).unwrap());
            (host, [bf16, f32])
        })
        .collect();
    for (host, tensors) in uploaded {
        for tensor in tensors {
            assert!(cuda.download(&tensor).unwrap() == host, "[{}, {}]", tensor.rows(), tensor.cols());
        }
    }
}

#[test]
fn rows_of_a_table_that_take_several_staging_buffers_arrive() {
    let Some(cuda) = crate::cuda() else { return };
    let cpu = Cpu::new(Precision::F32);
    for dtype in [Dtype::BF16, Dtype::F32] {
        let table = Weight::new(&values(1, 30 * 5000), &[30, 5000], dtype);
        // 209 rows fill a staging buffer: equal ids are on both sides of its end.
        let ids: Vec<usize> = (0..1000).map(|i| if i < 150 { 7 * i % 30 } else { 29 }).collect();
        let got = cuda.download(&cuda.embedding(&table.view(), &ids).unwrap()).unwrap();
        assert!(got == cpu.download(&cpu.embedding(&table.view(), &ids).unwrap()).unwrap(), "{dtype:?}");
    }
}

#[test]
fn weights_that_are_loaded_together_arrive_across_the_ends_of_staging_buffers_and_registered_memory() {
    let Some(cuda) = crate::cuda() else { return };
    // Two and a half pieces of 64 MiB of registered host memory; the parts start and end inside them.
    let (rows, cols) = if crate::small() { (3000, 3072) } else { (27000, 3072) };
    let host = values(1, rows * cols);
    let file = Weight::new(&host, &[rows, cols], Dtype::BF16);
    let bounds = [0, rows / 5, rows / 5 + 1, rows / 2, rows - 3, rows];
    let parts: Vec<_> = bounds.windows(2).map(|pair| file.view().row_range(pair[0]..pair[1])).collect();
    let converted = Weight::new(&host[..3 * cols], &[3, cols], Dtype::F32);
    // Through staging buffers, if there are enough cores; then registered; then once more.
    for round in 0..3 {
        let mut reported = 0;
        let load = |uploads: &_| {
            let native = |parts: &[TensorView]| native_with(&cuda, parts, uploads);
            let mut loaded: Vec<_> =
                parts.iter().map(|part| native(std::slice::from_ref(part))).collect::<flux::Result<_>>()?;
            loaded.push(converted.linear_with(&cuda, Some(uploads)));
            loaded.push(native(&[parts[4].clone(), parts[1].clone()])?);
            Ok(loaded)
        };
        let loaded = cuda.load(load, &mut |elements| reported += elements).unwrap();
        assert_eq!(reported as usize, (rows + 3 + 4) * cols, "round {round}");
        for (weight, pair) in loaded.iter().zip(bounds.windows(2)) {
            assert!(
                cuda.weight_values(weight).unwrap() == host[pair[0] * cols..pair[1] * cols],
                "round {round}: rows {pair:?}"
            );
        }
        assert_eq!(cuda.weight_values(&loaded[5]).unwrap(), host[..3 * cols]);
        let stacked = [&host[(rows - 3) * cols..], &host[rows / 5 * cols..(rows / 5 + 1) * cols]].concat();
        assert_eq!(cuda.weight_values(&loaded[6]).unwrap(), stacked);
        if round == 1 {
            cuda.settle().unwrap();
        }
    }
    println!("{:?}", cuda.remarks());
}

#[test]
fn weights_of_several_threads_arrive() {
    let Some(cuda) = crate::cuda() else { return };
    let file = Weight::seeded(3, 9000, 1024);
    let load = |first: usize| {
        let part = file.view().row_range(first..first + 3000);
        cuda.load(|uploads| native_with(&cuda, &[part], uploads), &mut |_| {}).unwrap()
    };
    let (a, b) = std::thread::scope(|scope| {
        let (a, b) = (scope.spawn(|| load(0)), scope.spawn(|| load(6000)));
        (a.join().unwrap(), b.join().unwrap())
    });
    let host = values(3, 9000 * 1024);
    assert!(
        cuda.weight_values(&a).unwrap() == host[..3000 * 1024]
            && cuda.weight_values(&b).unwrap() == host[6000 * 1024..]
    );
}

#[test]
fn what_fails_while_loading_leaves_the_device_usable() {
    if crate::cuda().is_none() {
        return;
    }
    let cuda = flux::backend::cuda::Cuda::new(0, Some(64 << 20)).unwrap();
    let (small, large) = (Weight::seeded(1, 512, 1024), Weight::seeded(2, 65536, 1024));
    let load = |uploads: &_| {
        let first = small.linear_with(&cuda, Some(uploads));
        native_with(&cuda, &[large.view()], uploads).map(|second| (first, second))
    };
    let error = cuda.load(load, &mut |_| {}).map(drop).unwrap_err().to_string();
    assert!(error.contains("out of GPU memory"), "{error}");
    assert_eq!(cuda.stats().memory_bytes, 0);
    assert_eq!(cuda.weight_values(&small.linear(&cuda)).unwrap(), values(1, 512 * 1024));
}

#[test]
fn a_panic_while_weights_are_loaded_leaves_nothing_behind() {
    let Some(cuda) = crate::cuda() else { return };
    let weight = Weight::seeded(1, 512, 1024);
    let load = || {
        let panics = |uploads: &_| -> flux::Result<()> {
            panic!("on purpose, with {}", weight.linear_with(&cuda, Some(uploads)).rows())
        };
        cuda.load(panics, &mut |_| {})
    };
    assert!(catch_unwind(AssertUnwindSafe(load)).is_err());
    // A single weight is uploaded at once: this thread has no open batch.
    assert_eq!(cuda.weight_values(&weight.linear(&cuda)).unwrap(), values(1, 512 * 1024));
    let loaded = cuda.load(|uploads| Ok(weight.linear_with(&cuda, Some(uploads))), &mut |_| {}).unwrap();
    assert_eq!(cuda.weight_values(&loaded).unwrap(), values(1, 512 * 1024));
}

#[test]
fn rgb_bytes_are_rounded_half_to_even_and_clamped() {
    let Some(cuda) = crate::cuda() else { return };
    let cpu = Cpu::new(Precision::F32);
    fn rgb8<B: Backend>(b: &B, x: &Tensor<B>) -> flux::Result<Vec<u8>> {
        b.take_rgb8(b.rgb8(x)?)
    }
    let mut pixels: Vec<f32> = values(1, 3 * 1000);
    pixels[..6].copy_from_slice(&[-1.0, 1.0, 0.0, 7.0, -7.0, 0.5]);
    for (rows, cols) in [(1000, 3), (3, 1000)] {
        let got = rgb8(&cuda, &cuda.upload(&pixels, rows, cols).unwrap()).unwrap();
        assert_eq!(got, rgb8(&cpu, &cpu.upload(&pixels, rows, cols).unwrap()).unwrap());
    }
    let shape = Shape::view(77, 3, 2, 3);
    let broken = [0.5, f32::NAN, -0.5];
    for result in [rgb8(&cuda, &cuda.upload(&broken, 1, 3).unwrap()), rgb8(&cpu, &cpu.upload(&broken, 1, 3).unwrap())] {
        assert!(result.unwrap_err().to_string().contains("not numbers"));
    }
    assert_eq!(rgb8(&cuda, &shape.tensor(&cuda, 4)).unwrap(), rgb8(&cpu, &shape.tensor(&cpu, 4)).unwrap());
}

/// Below and above the size limit of pinned memory, and rows that are longer than a staging buffer.
#[test]
fn rgb_bytes_become_pixels_of_every_level() {
    let Some(cuda) = crate::cuda() else { return };
    let cpu = Cpu::new(Precision::F32);
    let sizes = [(1, 1), (16, 32), (7, 5), (300, 200), (1, 100), (3, 1_400_000)];
    for (height, width) in if crate::small() { &sizes[..4] } else { &sizes[..] }.iter().copied() {
        let bytes: Vec<u8> = (0..3 * height * width).map(|i| (i * 7 % 256) as u8).collect();
        let [got, expected] = [
            cuda.download(&cuda.upload_rgb8(&bytes, height, width).unwrap()).unwrap(),
            cpu.download(&cpu.upload_rgb8(&bytes, height, width).unwrap()).unwrap(),
        ];
        let rounded: Vec<f32> = expected.iter().map(|v| rounded(*v)).collect();
        assert!(got == rounded, "{height} x {width}");
    }
    for error in
        [cuda.upload_rgb8(&[0; 6], 1, 1).map(drop).unwrap_err(), cpu.upload_rgb8(&[0; 6], 1, 1).map(drop).unwrap_err()]
    {
        assert!(error.to_string().contains("6 bytes") && error.to_string().contains("1 x 1 "), "{error}");
    }
}

#[test]
fn a_view_downloads_its_own_cells() {
    let Some(cuda) = crate::cuda() else { return };
    let cpu = Cpu::new(Precision::F32);
    let shape = Shape::view(13, 9, 5, 2);
    let (got, expected) =
        (cuda.download(&shape.tensor(&cuda, 4)).unwrap(), cpu.download(&shape.tensor(&cpu, 4)).unwrap());
    compare("download of a view", &got, &expected, 0.0001);
    let (_, below) = shape.tensor(&cuda, 4).split_rows(4);
    assert_eq!(cuda.download(&below.row_view(2..3)).unwrap(), expected[6 * 9..7 * 9]);
}
