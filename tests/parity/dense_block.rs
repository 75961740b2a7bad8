//! A dense block in one buffer against its composition.

use flux::backend::{Backend, Device, Memory};
use flux::nn::ConvKernel;
use flux::ops::{self, DenseBlock};
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{Case, Shape, Weight, check_against, values, vector};

struct Block {
    x: Shape,
    size: [usize; 2],
    grown: usize,
    weights: Vec<Weight>,
}

type Convs<B> = Vec<(ConvKernel<B>, Tensor<B>)>;

impl Block {
    fn new(size: [usize; 2], channels: usize, grown: usize) -> Self {
        let outs = |i: usize| if i == 4 { channels } else { grown };
        // Divided by a power of two, so that sums of a thousand terms keep their size from layer to layer.
        let weight = |cin: usize, cout: usize| {
            let values: Vec<_> = values(2, cout * cin * 9).into_iter().map(|value| value / 32.0).collect();
            Weight::new(&values, &[cout, cin, 3, 3], Dtype::F32)
        };
        let weights = (0..5).map(|i| weight(channels + i * grown, outs(i))).collect();
        Self { x: Shape::dense(size[0] * size[1], channels), size, grown, weights }
    }

    fn convs<B: Backend>(&self, b: &B) -> Convs<B> {
        let bias = |i: usize| vector(b, 10 + i as u64, if i == 4 { self.x.cols } else { self.grown });
        self.weights.iter().enumerate().map(|(i, weight)| (weight.conv(b), bias(i))).collect()
    }

    fn slope<B: Backend>(&self, b: &B) -> Tensor<B> {
        b.upload(&vec![0.25; self.grown], 1, self.grown).unwrap()
    }
}

impl Case for Block {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (convs, slope, [height, width]) = (self.convs(b), self.slope(b), self.size);
        let block = DenseBlock { convs: &convs, slope: &slope, height, width };
        vec![self.x.tensor(b, 1).dense_block(&block).unwrap()]
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (convs, slope, [height, width]) = (self.convs(b), self.slope(b), self.size);
        let block = DenseBlock { convs: &convs, slope: &slope, height, width };
        vec![ops::dense_block::compose(b, self.x.tensor(b, 1), &block).unwrap()]
    }
}

/// Five convolutions, each of sums over the roundings of those before. With 20 channels they are composed.
#[test]
fn dense_blocks_match_their_composition() {
    let Some(cuda) = crate::cuda() else { return };
    for (size, channels, grown) in
        [([17, 13], 16, 32), ([33, 50], 64, 32), ([9, 7], 20, 12), ([1, 1], 64, 32), ([251, 298], 64, 32)]
    {
        let block = Block::new(size, channels, grown);
        check_against(&cuda, &format!("dense_block {size:?} {channels} + {grown}"), &block, 8.0, 8.0);
    }
}

/// Several blocks and their sum, the first of them in the buffer of its input.
struct Blocks(Block);

impl Case for Blocks {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |x, blocks, scale| x.dense_block_sum(blocks, scale).unwrap())
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |x, blocks, scale| ops::dense_block::compose_sum(b, x, blocks, scale).unwrap())
    }
}

impl Blocks {
    /// Computes two blocks, and the same two again of their result.
    fn with<B: Backend>(
        &self,
        b: &B,
        run: impl Fn(Tensor<B>, &[DenseBlock<'_, B>], &Tensor<B>) -> Tensor<B>,
    ) -> Vec<Tensor<B>> {
        let Self(made) = self;
        let (convs, slope, [height, width]) = (made.convs(b), made.slope(b), made.size);
        let block = || DenseBlock { convs: &convs, slope: &slope, height, width };
        let scale = b.upload(&vec![0.25; made.x.cols], 1, made.x.cols).unwrap();
        let once = |x| run(x, &[block(), block()], &scale);
        vec![once(once(made.x.tensor(b, 1)))]
    }
}

#[test]
fn a_sum_of_dense_blocks_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    for (size, channels, grown) in [([17, 13], 16, 32), ([33, 50], 64, 32), ([9, 7], 20, 12)] {
        let blocks = Blocks(Block::new(size, channels, grown));
        check_against(&cuda, &format!("dense_block_sum {size:?} {channels} + {grown}"), &blocks, 8.0, 8.0);
    }
}

/// Only the first of many blocks copies its input next to the room for its results.
#[test]
fn blocks_of_blocks_copy_no_input() {
    let Some(cuda) = crate::cuda_hopper() else { return };
    let made = Block::new([16, 32], 64, 32);
    let (convs, slope) = (made.convs(&cuda), made.slope(&cuda));
    let block = DenseBlock { convs: &convs, slope: &slope, height: 16, width: 32 };
    let scale = cuda.upload(&[0.25; 64], 1, 64).unwrap();
    let mut x = made.x.tensor(&cuda, 1);
    for launches in [1 + 5 + 1, 5 + 1] {
        let before = cuda.stats().launches;
        x = x.dense_block_sum(std::slice::from_ref(&block), &scale).unwrap();
        assert_eq!(cuda.stats().launches - before, launches);
    }
}

/// A block whose input is used elsewhere leaves it alone, and gives the same result as one that overwrites the memory
/// next to its input.
#[test]
fn inputs_that_are_used_elsewhere_stay() {
    let Some(cuda) = crate::cuda() else { return };
    let made = Block::new([12, 20], 64, 32);
    let (convs, slope) = (made.convs(&cuda), made.slope(&cuda));
    let block = DenseBlock { convs: &convs, slope: &slope, height: 12, width: 20 };
    let x = made.x.tensor(&cuda, 1);
    let before = cuda.download(&x).unwrap();
    let first = x.row_view(0..x.rows()).dense_block(&block).unwrap();
    assert!(cuda.download(&x).unwrap() == before, "an input that is only read stays");
    let kept = cuda.download(&first).unwrap();
    let shared = first.row_view(0..first.rows()).dense_block(&block).unwrap();
    assert!(cuda.download(&first).unwrap() == kept, "so does one with room beside it");
    let alone = first.dense_block(&block).unwrap();
    assert!(cuda.download(&alone).unwrap() == cuda.download(&shared).unwrap());
}
