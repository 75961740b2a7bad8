//! cuda/silu.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes};

struct Silu(Shape);

impl Case for Silu {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        vec![self.0.tensor(b, 1).silu().unwrap()]
    }
}

#[test]
fn silu_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(4608, 3072)) {
        check(&cuda, &format!("silu {shape:?}"), &Silu(shape), 0.0);
    }
}
