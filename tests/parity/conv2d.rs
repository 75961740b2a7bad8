//! Convolutions against the CPU in float32.

use flux::backend::Backend;
use flux::ops::Conv;
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{Case, Shape, WITH_EPILOGUE, Weight, check_against, values, vector};

struct Conv2d<'a> {
    x: Shape,
    weight: &'a Weight,
    conv: Conv,
    out: usize,
    /// Columns beside the residual, where there is one.
    residual: Option<[usize; 2]>,
}

impl Conv2d<'_> {
    fn residual<B: Backend>(&self, b: &B) -> Option<Tensor<B>> {
        let rows = self.conv.out_height() * self.conv.out_width();
        self.residual.map(|[before, after]| Shape::view(rows, self.out, before, after).tensor(b, 4))
    }
}

impl Case for Conv2d<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (x, weight, bias) = (self.x.tensor(b, 1), self.weight.conv(b), vector(b, 3, self.out));
        vec![match self.residual(b) {
            Some(residual) => x.conv2d_add(&weight, &bias, self.conv, residual).unwrap(),
            None => x.conv2d(&weight, &bias, self.conv).unwrap(),
        }]
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (x, weight, bias) = (self.x.tensor(b, 1), self.weight.conv(b), vector(b, 3, self.out));
        vec![match self.residual(b) {
            Some(residual) => flux::ops::conv2d::compose_add(b, &x, &weight, &bias, self.conv, residual).unwrap(),
            None => x.conv2d(&weight, &bias, self.conv).unwrap(),
        }]
    }
}

fn check_conv(cuda: &flux::backend::cuda::Cuda, conv: Conv, cin: usize, cout: usize, beside: [usize; 2], residual: Option<[usize; 2]>) {
    let weight = Weight::new(&values(2, cout * cin * conv.kernel * conv.kernel), &[cout, cin, conv.kernel, conv.kernel], Dtype::F32);
    let x = Shape::view(conv.height * conv.width, cin, beside[0], beside[1]);
    let case = Conv2d { x, weight: &weight, conv, out: cout, residual };
    // With a residual the composition rounds the convolution before the sum.
    let composed = if residual.is_some() { 1.5 } else { 0.0 };
    check_against(cuda, &format!("conv2d {conv:?} {cin} -> {cout}, beside {beside:?}, residual {residual:?}"), &case, WITH_EPILOGUE, composed);
}

#[test]
fn conv2d_and_conv2d_add_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let convs = [Conv::same(9, 7, 3), Conv::same(1, 1, 3), Conv::same(6, 5, 1), Conv::halve(8, 6), Conv::halve(7, 9), Conv::same(5, 6, 5)];
    for conv in convs {
        for (cin, cout) in [(16, 32), (3, 8), (8, 3), (5, 7), (24, 64)] {
            for (beside, residual) in [([0, 0], None), ([8, 8], Some([0, 0])), ([1, 0], Some([3, 2]))] {
                check_conv(&cuda, conv, cin, cout, beside, residual);
            }
        }
    }
}

#[test]
fn conv2d_matches_at_the_decoders_sizes() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    check_conv(&cuda, Conv::same(128, 128, 3), 32, 512, [0, 0], None);
    check_conv(&cuda, Conv::same(128, 128, 3), 512, 512, [0, 0], Some([0, 0]));
    // Several pieces of im2col rows, the last shorter than the others.
    check_conv(&cuda, Conv::same(500, 509, 3), 256, 128, [0, 0], Some([0, 0]));
    check_conv(&cuda, Conv::same(512, 512, 1), 256, 128, [0, 0], None);
    check_conv(&cuda, Conv::same(1024, 1024, 3), 128, 3, [0, 0], None);
    check_conv(&cuda, Conv::halve(512, 512), 128, 128, [0, 0], None);
    check_conv(&cuda, Conv::same(512, 512, 3), 3, 128, [0, 0], None);
}
