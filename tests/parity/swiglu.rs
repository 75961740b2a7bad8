//! cuda/swiglu.cu against its composition.

use flux::backend::Backend;
use flux::ops;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes};

struct Swiglu(Shape);

impl Case for Swiglu {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let [gate, up] = Shape { cols: 2 * self.0.cols, ..self.0 }.tensor(b, 1).split_cols([self.0.cols; 2]);
        let result = gate.swiglu(&up).unwrap();
        vec![result, up]
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let [gate, up] = Shape { cols: 2 * self.0.cols, ..self.0 }.tensor(b, 1).split_cols([self.0.cols; 2]);
        let result = ops::swiglu::compose(b, gate, &up).unwrap();
        vec![result, up]
    }
}

/// The composition rounds `silu(gate)` once more. The other half must stay unchanged.
#[test]
fn swiglu_matches_its_composition_and_leaves_the_other_half() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(4608, 9216)) {
        check(&cuda, &format!("swiglu {shape:?}"), &Swiglu(shape), 1.5);
    }
}
