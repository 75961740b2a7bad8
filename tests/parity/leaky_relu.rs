//! cuda/leaky_relu.cu, and the convolutions that apply it, against the CPU.

use flux::backend::Backend;
use flux::ops::{self, Activation, Conv, Conv2d};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, WITH_EPILOGUE, Weight, check, check_against, shapes, vector};
use crate::conv2d::weight;

struct LeakyRelu(Shape);

impl Case for LeakyRelu {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        vec![self.0.tensor(b, 1).leaky_relu(&vector(b, 2, self.0.cols)).unwrap()]
    }
}

#[test]
fn leaky_relu_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(1024 * 1024, 64)) {
        check(&cuda, &format!("leaky_relu {shape:?}"), &LeakyRelu(shape), 1.0);
    }
}

/// A convolution with a slope for each output, of an image or of a doubled one.
struct Activated<'a> {
    x: Shape,
    weight: &'a Weight,
    size: [usize; 2],
    out: usize,
    doubled: bool,
}

impl Case for Activated<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (x, weight, bias) = (self.x.tensor(b, 1), self.weight.conv(b), vector(b, 3, self.out));
        let slope = vector(b, 5, self.out);
        let made = match self.doubled {
            true => x.upsample_conv2d_leaky_relu(&weight, &bias, self.size, &slope),
            false => x.conv2d_leaky_relu(&weight, &bias, Conv::same(self.size[0], self.size[1], 3), &slope),
        };
        vec![made.unwrap().pixels]
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (x, weight, bias) = (self.x.tensor(b, 1), self.weight.conv(b), vector(b, 3, self.out));
        let slope = vector(b, 5, self.out);
        let conv2d = Conv2d::new(x, &weight, &bias, Conv::same(self.size[0], self.size[1], 3));
        let activation = Some(Activation::LeakyRelu(&slope));
        vec![ops::conv2d::compose(b, Conv2d { activation, upsample: self.doubled, ..conv2d }).unwrap().pixels]
    }
}

#[test]
fn convolutions_with_slopes_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for ([height, width], cin, out) in
        [([5, 6], 5, 7), ([33, 50], 8, 3), ([17, 17], 64, 64), ([7, 65], 96, 32), ([251, 298], 64, 64)]
    {
        for doubled in [false, true] {
            let weight = weight(cin, out, 3);
            let case = Activated {
                x: Shape::dense(height * width, cin),
                weight: &weight,
                size: [height, width],
                out,
                doubled,
            };
            // The composition rounds the convolution before the activation, and sums of weights are rounded.
            let roundings = if doubled { 2.0 * WITH_EPILOGUE } else { WITH_EPILOGUE };
            check_against(
                &cuda,
                &format!("conv2d {height}x{width} {cin} -> {out}, slopes, doubled {doubled}"),
                &case,
                roundings,
                2.0,
            );
        }
    }
}
