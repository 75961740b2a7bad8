//! cuda/scale_shift.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes, vector};

struct ScaleShift(Shape);

impl Case for ScaleShift {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (scale, shift) = (vector(b, 3, self.0.cols), vector(b, 4, self.0.cols));
        vec![self.0.tensor(b, 1).scale_shift(&scale, &shift).unwrap()]
    }
}

#[test]
fn scale_shift_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(4608, 3072)) {
        check(&cuda, &format!("scale_shift {shape:?}"), &ScaleShift(shape), 0.0);
    }
}
