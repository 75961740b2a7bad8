//! cuda/relu.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes};

struct Relu(Shape);

impl Case for Relu {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        vec![self.0.tensor(b, 1).relu().unwrap()]
    }
}

#[test]
fn relu_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(1024 * 1024, 64)) {
        check(&cuda, &format!("relu {shape:?}"), &Relu(shape), 0.0);
    }
}
