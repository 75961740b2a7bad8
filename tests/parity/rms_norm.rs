//! cuda/rms_norm.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes, vector};

/// x, and the length of a run.
struct RmsNorm(Shape, usize);

impl Case for RmsNorm {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        vec![self.0.tensor(b, 1).rms_norm(&vector(b, 2, self.1), 1e-6).unwrap()]
    }
}

#[test]
fn rms_norm_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(512, 2560)) {
        check(&cuda, &format!("rms_norm {shape:?}"), &RmsNorm(shape, shape.cols), 0.0);
    }
    check(&cuda, "rms_norm of heads", &RmsNorm(Shape::view(33, 8 * 128, 128, 64), 128), 0.0);
    check(&cuda, "rms_norm of ragged heads", &RmsNorm(Shape::dense(9, 5 * 12), 12), 0.0);
}
