//! cuda/low_rank_sm90a.cu against its composition.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use flux::backend::cuda::Cuda;
use flux::backend::{Backend, Memory};
use flux::nn::{Linear, LowRank};
use flux::ops::{self, Products};
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{Case, Shape, Weight, check_against, check_choices, compare, values, with_variable};

/// Stacked multiplications of one part or two.
#[derive(Debug, Clone, Copy)]
struct Product {
    /// Rows of each part; with 0 as the first there is only the second part.
    rows: [usize; 2],
    features: usize,
    /// Columns of the buffer before and after x.
    beside: [usize; 2],
    out: usize,
    /// Ranks of the factors; 0 is none.
    ranks: [usize; 2],
}

/// A matrix whose products with values of variance 1 are about `size`; powers of two keep it on the bf16 grid.
fn weight(seed: u64, [rows, cols]: [usize; 2], size: f32) -> Weight {
    let scale = ((cols as f32).sqrt() / size).log2().round().exp2();
    let values: Vec<f32> = values(seed, rows * cols).iter().map(|value| value / scale).collect();
    Weight::new(&values, &[rows, cols], Dtype::BF16)
}

impl Product {
    fn new(rows: [usize; 2], [features, out]: [usize; 2], ranks: [usize; 2]) -> Self {
        Self { rows, features, beside: [0, 0], out, ranks }
    }

    /// Returns x and a layer for each part. The result of the factors is half of that of the weight.
    fn parts<B: Backend>(&self, b: &B) -> [(Tensor<B>, Linear<B>); 2] {
        self.parts_of(b, &|weight| weight.linear(b))
    }

    /// As `parts`, with weights loaded by `load`.
    fn parts_of<B: Backend>(&self, b: &B, load: &dyn Fn(&Weight) -> Linear<B>) -> [(Tensor<B>, Linear<B>); 2] {
        [0, 1].map(|part| {
            let seed = 10 * part as u64;
            let shape = Shape::view(self.rows[part], self.features, self.beside[0], self.beside[1]);
            let layer = load(&weight(seed + 2, [self.out, self.features], 1.0));
            let factors = |rank| LowRank {
                down: weight(seed + 3, [rank, self.features], 1.0).linear(b),
                up: weight(seed + 4, [self.out, rank], 0.5).linear(b),
            };
            let layer = match self.ranks[part] {
                0 => layer,
                rank => layer.with_low_rank(factors(rank)).unwrap(),
            };
            (shape.tensor(b, seed + 1), layer)
        })
    }

    fn with<B: Backend>(
        &self,
        b: &B,
        product: impl Fn(&[(&Tensor<B>, &Linear<B>)]) -> flux::Result<Tensor<B>>,
    ) -> Vec<Tensor<B>> {
        let [first, second] = self.parts(b);
        let parts = [(&first.0, &first.1), (&second.0, &second.1)];
        vec![product(&parts).unwrap()]
    }
}

impl Case for Product {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |parts| Tensor::low_rank(parts))
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |parts| ops::low_rank::compose(b, Products::Rows(parts)))
    }
}

/// The roundings of the composition, which runs if the kernel would be slower: the multiplications with down and with
/// the weight, and the sum in cuBLASLt's epilogue. The first rounding is an error of each term of the last
/// multiplication, and these add up at random.
const FUSED: f32 = 4.0;
/// The kernel omits the second rounding.
const COMPOSED: f32 = 2.0;

fn check(cuda: &Cuda, case: Product) {
    check_against(cuda, &format!("{case:?}"), &case, FUSED, COMPOSED);
}

/// Ranks within a multiply, a box, and two of them; columns within a tile, narrow tiles, and several whole ones; and
/// sizes that the kernel does not support.
#[test]
fn low_rank_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    let supported = Product::new([300, 212], [136, 264], [16, 48]);
    products(supported).into_iter().for_each(|case| check(&cuda, case));
    check(&cuda, Product { ranks: [0, 0], ..supported });
}

/// Returns products of all supported cases, and variants of `supported`, some of them unsupported.
fn products(supported: Product) -> Vec<Product> {
    let all_rows: &[[usize; 2]] = if crate::few() { &[[37, 130]] } else { &[[37, 130], [0, 300], [512, 1], [129, 0]] };
    let mut products = Vec::new();
    for &rows in all_rows {
        for sizes in [[72, 64], [200, 776], [1032, 608]] {
            products.extend([[1, 24], [32, 32], [96, 104], [128, 5]].map(|ranks| Product::new(rows, sizes, ranks)));
        }
    }
    products.extend([[8, 16], [3, 2]].map(|beside| Product { beside, ..supported }));
    products.extend([Product { features: 44, ..supported }, Product { out: 33, ..supported }]);
    products.extend([[0, 32], [129, 32]].map(|ranks| Product { ranks, ..supported }));
    products
}

/// As many tiles as clusters and more, some of them narrow, so that the kernel runs by default and clusters take
/// several tiles.
#[test]
fn low_rank_of_many_tiles_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    check(&cuda, Product::new([700, 1600], [72, 2048], [32, 32]));
    check(&cuda, Product::new([300, 2000], [136, 3072], [32, 24]));
    check(&cuda, Product::new([0, 800], [3072, 3072], [32, 96]));
}

/// Sums of e4m3 keep 14 bits in the tensor cores, which the composition may use or not: over 12288 terms one of
/// millions is 10 roundings off.
fn in_fp8(features: usize) -> f32 {
    1.0 + 5.0 * (features as f32 / 3.0).sqrt() / 32.0
}

/// Weights and down in e4m3. The composition, which the tests of its parts compare with the CPU, rounds the result of
/// the weight before the sum.
#[test]
fn low_rank_in_fp8_matches_its_composition() {
    let Some(cuda) = crate::cuda_fp8() else { return };
    let check = |case: Product| {
        let parts = case.parts_of(&cuda, &|weight| weight.fp8(&cuda));
        let parts: Vec<_> = parts.iter().map(|(x, layer)| (x, layer)).collect();
        let composed = ops::low_rank::compose(&cuda, Products::Rows(&parts)).unwrap();
        let [got, composed] = [Tensor::low_rank(&parts).unwrap(), composed].map(|x| cuda.download(&x).unwrap());
        compare(&format!("{case:?} in fp8"), &got, &composed, FUSED + COMPOSED + in_fp8(case.features));
        let plain = Product { ranks: [0, 0], ..case }.parts_of(&cuda, &|weight| weight.fp8(&cuda));
        let plain: Vec<_> = plain.iter().map(|(x, layer)| (x, layer)).collect();
        assert!(
            got != cuda.download(&Tensor::low_rank(&plain).unwrap()).unwrap(),
            "{case:?}: the factors are left out"
        );
    };
    products(Product::new([300, 212], [144, 264], [16, 48])).into_iter().for_each(check);
    if !crate::small() {
        check(Product::new([700, 1600], [72, 2048], [32, 32]));
        check(Product::new([300, 2000], [144, 3072], [32, 24]));
        check(Product::new([512, 4096], [3072, 3072], [32, 96]));
        check(Product::new([512, 1024], [3072, 3072], [32, 32]));
        check(Product::new([0, 4608], [12288, 3072], [0, 32]));
    }
}

/// Columns of one buffer, or of two, which are copied.
struct SideBySide(bool);

impl SideBySide {
    fn with<B: Backend>(
        &self,
        b: &B,
        product: impl Fn(&[&Tensor<B>], &Linear<B>) -> flux::Result<Tensor<B>>,
    ) -> Vec<Tensor<B>> {
        let [_, (x, layer)] = Product::new([0, 300], [200, 264], [0, 32]).parts(b);
        let [left, right] = x.split_cols([72, 128]);
        let right = if self.0 { right } else { Tensor::concat_rows(&[&right]).unwrap() };
        vec![product(&[&left, &right], &layer).unwrap()]
    }
}

impl Case for SideBySide {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |x, layer| Tensor::linear_concat(x, layer))
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |x, layer| ops::low_rank::compose(b, Products::Columns(x, layer)))
    }
}

#[test]
fn linear_concat_with_factors_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    for adjacent in [true, false] {
        check_against(&cuda, &format!("adjacent {adjacent}"), &SideBySide(adjacent), FUSED, COMPOSED);
    }
}

/// Clusters read values from other clusters of the same launch, and leave their counters to the next launch: a race
/// would change bytes.
#[test]
fn low_rank_gives_the_same_bytes_every_time() {
    let Some(cuda) = crate::cuda() else { return };
    let case = match crate::small() {
        true => Product::new([300, 212], [136, 264], [16, 48]),
        false => Product::new([512, 4096], [3072, 3072], [32, 32]),
    };
    let [first, second] = case.parts(&cuda);
    let parts = [(&first.0, &first.1), (&second.0, &second.1)];
    let bytes = || cuda.download(&Tensor::low_rank(&parts).unwrap()).unwrap();
    let first = bytes();
    for run in 1..8 {
        assert!(bytes() == first, "run {run}");
    }
}

/// Blocks wait for `low`, which other blocks of their launch compute. If the GPU started some blocks of each of
/// several such launches, all of them would wait forever.
#[test]
fn launches_of_several_devices_of_one_gpu_end() {
    const DEVICES: usize = 3;
    const LIMIT: Duration = Duration::from_secs(60);
    let Some(_) = crate::cuda() else { return };
    let (case, launches) = match crate::small() {
        true => (Product::new([300, 212], [136, 264], [16, 48]), 20),
        false => (Product::new([512, 4096], [3072, 3072], [32, 32]), 300),
    };
    let (done, ended) = mpsc::channel();
    for _ in 0..DEVICES {
        let done = done.clone();
        thread::spawn(move || {
            let cuda = crate::cuda().expect("the GPU opened a moment ago");
            let [first, second] = case.parts(&cuda);
            let parts = [(&first.0, &first.1), (&second.0, &second.1)];
            let run = || Tensor::low_rank(&parts).unwrap();
            let first = cuda.download(&run()).unwrap();
            (1..launches).for_each(|_| drop(run()));
            done.send(first == cuda.download(&run()).unwrap()).expect("the test waits");
        });
    }
    for device in 0..DEVICES {
        let same = ended.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("only {device} of {DEVICES} devices are done"));
        assert!(same, "other bytes beside other devices");
    }
}

#[test]
fn each_kernel_can_be_asked_for() {
    let Some(cuda) = crate::cuda() else { return };
    for name in ["matches_its_composition", "in_fp8_matches_its_composition", "gives_the_same_bytes_every_time"] {
        let test = format!("low_rank::low_rank_{name}");
        check_choices(&cuda, &test, "FLUX_LOW_RANK");
        let (passed, text) = with_variable(&test, "FLUX_LOW_RANK", "sm90-always");
        assert!(passed == crate::is_hopper(&cuda), "FLUX_LOW_RANK=sm90-always: {text}");
    }
}
