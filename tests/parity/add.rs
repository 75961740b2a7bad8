//! cuda/add.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes};

struct Add {
    shape: Shape,
    /// x is a view that must not be overwritten.
    borrowed: bool,
}

impl Case for Add {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let x = self.shape.tensor(b, 1);
        let y = Shape { before: self.shape.after, after: self.shape.before, ..self.shape }.tensor(b, 2);
        if self.borrowed {
            let sum = x.row_view(0..self.shape.rows).add(&y).unwrap();
            vec![sum, x]
        } else {
            vec![x.add(&y).unwrap()]
        }
    }
}

#[test]
fn add_matches_the_cpu_and_leaves_what_it_may_not_write() {
    let Some(cuda) = crate::cuda() else { return };
    for borrowed in [false, true] {
        for shape in shapes(Shape::dense(4608, 3072)) {
            check(&cuda, &format!("add {shape:?}, borrowed: {borrowed}"), &Add { shape, borrowed }, 0.0);
        }
    }
}
