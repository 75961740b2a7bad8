//! cuda/mul.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes, vector};

struct Mul {
    shape: Shape,
    /// `true` if y is one row for all rows of x.
    row: bool,
}

impl Case for Mul {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let y = if self.row {
            vector(b, 3, self.shape.cols)
        } else {
            Shape { before: self.shape.after, after: self.shape.before, ..self.shape }.tensor(b, 2)
        };
        vec![self.shape.tensor(b, 1).mul(&y).unwrap()]
    }
}

#[test]
fn mul_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for row in [false, true] {
        for shape in shapes(Shape::dense(4608, 3072)) {
            check(&cuda, &format!("mul {shape:?}, one row: {row}"), &Mul { shape, row }, 0.0);
        }
    }
}
