//! Weights on their way to the GPU: every dtype, every padding, several slices.

use flux::backend::Backend;
use flux::backend::cpu::{Cpu, Precision};
use half::bf16;
use safetensors::Dtype;

use crate::compare::{Weight, values};

#[test]
fn weights_of_every_dtype_arrive_rounded_to_bf16() {
    let Some(cuda) = crate::cuda() else { return };
    for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
        for (rows, cols) in [(16, 64), (5, 64), (16, 27), (1, 1), (3, 7)] {
            // Thirds are on no grid, so that converting has to round.
            let thirds: Vec<f32> = values(1, rows * cols).iter().map(|v| v / 3.0).collect();
            let weight = Weight::new(&thirds, &[rows, cols], dtype);
            let expected: Vec<f32> = weight.view().to_f32().iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
            assert_eq!(cuda.download(&weight.matrix(&cuda)).unwrap(), expected, "{dtype:?} [{rows}, {cols}]");
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
        let both = cuda.weight(&[large.view(), tail.view()]).unwrap();
        let got = cuda.download(&both).unwrap();
        assert!(got[..a.len()] == a && got[a.len()..] == b, "{dtype:?}");
    }
}

#[test]
fn some_rows_of_a_weight_arrive() {
    let Some(cuda) = crate::cuda() else { return };
    let host = values(1, 40 * 24);
    let weight = Weight::new(&host, &[40, 24], Dtype::BF16);
    let part = cuda.weight(&[weight.view().row_range(7..20)]).unwrap();
    assert_eq!(cuda.download(&part).unwrap(), host[7 * 24..20 * 24]);
}

#[test]
fn convolution_weights_are_reordered() {
    let Some(cuda) = crate::cuda() else { return };
    for (cout, cin, kernel) in [(16, 8, 3), (3, 8, 3), (5, 3, 3), (8, 16, 1), (2, 3, 2)] {
        let host = values(1, cout * cin * kernel * kernel);
        let weight = Weight::new(&host, &[cout, cin, kernel, kernel], Dtype::F32).conv(&cuda);
        let got = cuda.download(&weight).unwrap();
        let taps = kernel * kernel;
        for (i, value) in got.iter().enumerate() {
            let (row, column) = (i / (cin * taps), i % (cin * taps));
            assert_eq!(*value, host[(row * cin + column % cin) * taps + column / cin], "[{cout}, {cin}, {kernel}] at {i}");
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
