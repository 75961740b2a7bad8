//! cuda/leaky_relu.cu, and the convolutions that apply it, against the CPU.

use flux::backend::Backend;
use flux::ops::Conv;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, WITH_EPILOGUE, check, check_against, shapes, vector};
use crate::conv2d::{Conv2d, Kind, weight};

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

#[test]
fn convolutions_with_slopes_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for ([height, width], cin, out) in
        [([5, 6], 5, 7), ([33, 50], 8, 3), ([17, 17], 64, 64), ([7, 65], 96, 32), ([251, 298], 64, 64)]
    {
        for doubled in [false, true] {
            let (weight, x) = (weight(cin, out, 3), Shape::dense(height * width, cin));
            let conv2d = Conv2d::new(x, &weight, Conv::same(height, width, 3), out);
            let case = Conv2d { activation: Some(Kind::LeakyRelu), upsample: doubled, ..conv2d };
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
