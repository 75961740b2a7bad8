//! cuda/softcap.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes};

struct Softcap(Shape);

impl Case for Softcap {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        vec![self.0.tensor(b, 1).softcap(0.75).unwrap()]
    }
}

#[test]
fn softcap_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(4096, 128)) {
        check(&cuda, &format!("softcap {shape:?}"), &Softcap(shape), 0.0);
    }
}
