//! cuda/adaln.cu against its composition.

use flux::backend::Backend;
use flux::ops;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes, vector};

struct Adaln(Shape);

impl Case for Adaln {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (shift, scale) = (vector(b, 2, self.0.cols), vector(b, 3, self.0.cols));
        vec![self.0.tensor(b, 1).adaln(&shift, &scale, 1e-6).unwrap()]
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (shift, scale) = (vector(b, 2, self.0.cols), vector(b, 3, self.0.cols));
        vec![ops::adaln::compose(b, &self.0.tensor(b, 1), &shift, &scale, 1e-6).unwrap()]
    }
}

/// The composition rounds the normed row as well: its magnitude times (1 + scale), at most 1.73 * 2.73, is rounded once
/// more.
const COMPOSED: f32 = 4.0;

#[test]
fn adaln_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(4608, 3072)) {
        check(&cuda, &format!("adaln {shape:?}"), &Adaln(shape), COMPOSED);
    }
    for cols in [8, 2560, 4096, 6144, 32768, 32776] {
        check(&cuda, &format!("adaln [3, {cols}]"), &Adaln(Shape::dense(3, cols)), COMPOSED);
    }
}
