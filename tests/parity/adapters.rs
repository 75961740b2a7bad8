//! Layers with factors of low rank: merged on the device and beside their weight, against the CPU in float32.

use flux::backend::Backend;
use flux::backend::cuda::Cuda;
use flux::nn::{Linear, LowRank};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, Weight, check_against, compare};

/// Rows, columns and rank: those of tiles, and none that anything divides.
const SIZES: [[usize; 3]; 7] =
    [[64, 128, 8], [7, 24, 5], [33, 27, 3], [96, 40, 13], [3, 5, 1], [129, 9, 2], [384, 256, 96]];

/// A weight [rows, cols] and the factors of its change.
struct Adapted {
    base: Weight,
    down: Weight,
    up: Weight,
}

impl Adapted {
    fn seeded([rows, cols, rank]: [usize; 3]) -> Self {
        let [base, down, up] = [(1, rows, cols), (2, rank, cols), (3, rows, rank)]
            .map(|(seed, rows, cols)| Weight::seeded(seed, rows, cols));
        Self { base, down, up }
    }

    fn low_rank<B: Backend>(&self, b: &B) -> LowRank<B> {
        LowRank { down: self.down.linear(b), up: self.up.linear(b) }
    }

    fn beside<B: Backend>(&self, b: &B) -> Linear<B> {
        self.base.linear(b).with_low_rank(self.low_rank(b))
    }

    fn merged(&self, cuda: &Cuda, base: &Linear<Cuda>) -> Vec<f32> {
        let merged = cuda.merge_weight(base, &[self.base.view()], &self.low_rank(cuda)).unwrap();
        cuda.matrix_values(&merged.expect("the GPU merges")).unwrap()
    }

    /// The sum in float32.
    fn sum(&self) -> Vec<f32> {
        let (base, down, up) = (self.base.view(), self.down.view().to_f32(), self.up.view().to_f32());
        let (cols, rank) = (base.cols(), self.up.view().cols());
        let add = |(cell, value): (usize, f32)| {
            let (row, col) = (cell / cols, cell % cols);
            value + (0..rank).map(|k| up[row * rank + k] * down[k * cols + col]).sum::<f32>()
        };
        base.to_f32().into_iter().enumerate().map(add).collect()
    }
}

#[test]
fn a_merged_weight_is_the_sum_rounded_once_and_its_base_stays() {
    let Some(cuda) = crate::cuda() else { return };
    for sizes in SIZES {
        let adapted = Adapted::seeded(sizes);
        let base = adapted.base.linear(&cuda);
        compare(&format!("merged {sizes:?}"), &adapted.merged(&cuda, &base), &adapted.sum(), 1.0);
        assert!(cuda.weight_values(&base).unwrap() == adapted.base.view().to_f32(), "{sizes:?}: the base stays");
    }
}

/// The sum is rounded to bf16 and then to e4m3, whose roundings are sixteen of bf16.
#[test]
fn a_quantised_weight_is_merged_from_its_file_before_it_is_quantised() {
    let Some(cuda) = crate::cuda_fp8() else { return };
    for sizes in SIZES {
        let adapted = Adapted::seeded(sizes);
        let base = adapted.base.fp8(&cuda);
        let before = cuda.weight_values(&base).unwrap();
        compare(&format!("merged e4m3 {sizes:?}"), &adapted.merged(&cuda, &base), &adapted.sum(), 17.0);
        assert!(cuda.weight_values(&base).unwrap() == before, "{sizes:?}: the base stays");
    }
}

/// A product with factors beside the weight, of x or of its columns in two tensors.
struct Beside<'a>(&'a Adapted, usize);

impl Case for Beside<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let weight = self.0.beside(b);
        let x = Shape::dense(self.1, weight.cols()).tensor(b, 4);
        let other = self.0.base.linear(b);
        let half = weight.cols() / 2;
        let [left, right] = Shape::dense(self.1, weight.cols()).tensor(b, 4).split_cols([half, weight.cols() - half]);
        vec![
            x.linear(&weight, None).unwrap(),
            Tensor::linear_rows(&[(&x, &other), (&x, &weight), (&x, &other)]).unwrap(),
            Tensor::linear_concat(&[&left, &right], &weight).unwrap(),
        ]
    }
}

/// Three roundings of bf16: of the product with down, of the product with the weight, and of the sum. The first is an
/// error of each of the terms of the last product, which add up at random.
#[test]
fn factors_beside_a_weight_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for sizes in SIZES {
        for rows in [1, 7, 64] {
            let adapted = Adapted::seeded(sizes);
            check_against(&cuda, &format!("beside {sizes:?} of {rows} rows"), &Beside(&adapted, rows), 4.0, 0.0);
        }
    }
}
