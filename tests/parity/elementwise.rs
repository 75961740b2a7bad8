//! cuda/elementwise.cu, gated_add.cu and swiglu.cu against the CPU and their compositions.

use flux::backend::Backend;
use flux::ops;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes, vector};

#[derive(Clone, Copy, Debug)]
enum Op {
    Silu,
    Add,
    Mul,
    MulRow,
    ScaleShift,
    /// add over a view that must not be overwritten.
    AddBorrowed,
}

struct Elementwise(Op, Shape);

impl Case for Elementwise {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let shape = self.1;
        let x = shape.tensor(b, 1);
        let y = Shape { before: shape.after, after: shape.before, ..shape }.tensor(b, 2);
        let row = || vector(b, 3, shape.cols);
        match self.0 {
            Op::Silu => vec![x.silu().unwrap()],
            Op::Add => vec![x.add(&y).unwrap()],
            Op::Mul => vec![x.mul(&y).unwrap()],
            Op::MulRow => vec![x.mul(&row()).unwrap()],
            Op::ScaleShift => vec![x.scale_shift(&row(), &vector(b, 4, shape.cols)).unwrap()],
            Op::AddBorrowed => {
                let sum = x.row_view(0..shape.rows).add(&y).unwrap();
                vec![sum, x]
            }
        }
    }
}

#[test]
fn elementwise_ops_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for op in [Op::Silu, Op::Add, Op::Mul, Op::MulRow, Op::ScaleShift, Op::AddBorrowed] {
        for shape in shapes(Shape::dense(4608, 3072)) {
            check(&cuda, &format!("{op:?} {shape:?}"), &Elementwise(op, shape), 0.0);
        }
    }
}

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

/// The composition rounds `silu(gate)` once more. The other half must stay as it was.
#[test]
fn swiglu_matches_its_composition_and_leaves_the_other_half() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(4608, 9216)) {
        check(&cuda, &format!("swiglu {shape:?}"), &Swiglu(shape), 1.5);
    }
}
