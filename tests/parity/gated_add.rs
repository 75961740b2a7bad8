//! cuda/gated_add.cu against its composition.

use flux::backend::Backend;
use flux::ops;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes, vector};

struct GatedAdd(Shape);

impl Case for GatedAdd {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let y = Shape { before: 0, after: 8, ..self.0 }.tensor(b, 2);
        vec![self.0.tensor(b, 1).gated_add(&vector(b, 3, self.0.cols), &y).unwrap()]
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let y = Shape { before: 0, after: 8, ..self.0 }.tensor(b, 2);
        vec![ops::gated_add::compose(b, self.0.tensor(b, 1), &vector(b, 3, self.0.cols), &y).unwrap()]
    }
}

/// The composition rounds `gate * y`, at most 3 with a sum of typical magnitude 1.4, once more.
#[test]
fn gated_add_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(4608, 3072)) {
        check(&cuda, &format!("gated_add {shape:?}"), &GatedAdd(shape), 2.5);
    }
}
