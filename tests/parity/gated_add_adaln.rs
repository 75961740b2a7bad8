//! cuda/gated_add_adaln.cu against its composition.

use flux::backend::{Backend, Device};
use flux::nn::Operand;
use flux::ops::{self, Norm};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, Weight, check, check_against, shapes, vector};

/// The composition rounds the normed row as well: its magnitude times (1 + scale), at most 1.73 * 2.73, is rounded once
/// more.
const COMPOSED: f32 = 4.0;

/// A shape, and the number of its text rows.
struct GatedAddAdaln(Shape, usize);

impl GatedAddAdaln {
    fn how(&self) -> ops::Adaln {
        ops::Adaln { txt_rows: self.1, eps: 1e-6 }
    }

    fn with<B: Backend>(
        &self,
        b: &B,
        op: impl Fn(Tensor<B>, [&Tensor<B>; 2], &Tensor<B>, [Norm<'_, B>; 2]) -> (Tensor<B>, Operand<B>),
    ) -> Vec<Tensor<B>> {
        let y = Shape { before: 8, after: 0, ..self.0 }.tensor(b, 2);
        let [gate, shift, scale, img_gate, img_shift, img_scale] =
            [3, 4, 5, 6, 7, 8].map(|seed| vector(b, seed, self.0.cols));
        let reader = &Weight::seeded(9, 8, self.0.cols).linear(b);
        let txt = Norm { shift: &shift, scale: &scale, reader };
        let img = Norm { shift: &img_shift, scale: &img_scale, reader };
        let (x, h) = op(self.0.tensor(b, 1), [&gate, &img_gate], &y, [txt, img]);
        let h = h.tensor().row_view(0..h.rows());
        vec![x, h]
    }
}

impl Case for GatedAddAdaln {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |x, gates, y, norms| x.gated_add_adaln(gates, y, norms, self.how()).unwrap())
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |x, gates, y, norms| {
            ops::gated_add_adaln::compose(b, ops::GatedAddAdaln { x, gates, y, norms, adaln: self.how() }).unwrap()
        })
    }
}

/// The composition rounds x before the norm. If the kernel does not cover a shape, both sides are the composition.
#[test]
fn gated_add_adaln_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    let covered = |shape: Shape| {
        [shape.before, shape.cols, shape.after].iter().all(|cols| cols.is_multiple_of(8)) && shape.cols <= 8192
    };
    let wide = [8, 16, 264, 1024, 2560, 4096, 6144, 8184, 8192, 8200].map(|cols| Shape::dense(3, cols));
    for shape in shapes(Shape::dense(4608, 3072)).into_iter().chain(wide) {
        for txt_rows in [0, shape.rows / 3, shape.rows] {
            let before = cuda.stats().composed;
            let case = GatedAddAdaln(shape, txt_rows);
            let what = format!("gated_add_adaln {shape:?}, {txt_rows} rows of text");
            if covered(shape) {
                check(&cuda, &what, &case, COMPOSED);
                assert_eq!(cuda.stats().composed, before, "{what}");
            } else {
                check_against(&cuda, &what, &case, COMPOSED, 0.0);
                assert!(cuda.stats().composed > before, "{what}: what no kernel covers is counted");
            }
        }
    }
}

/// A view of x that must not be overwritten stays unchanged.
#[test]
fn gated_add_adaln_leaves_what_it_may_not_write() {
    struct Borrowed;
    impl Case for Borrowed {
        fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
            let shape = Shape::dense(5, 264);
            let (x, y, row) = (shape.tensor(b, 1), shape.tensor(b, 2), vector(b, 3, 264));
            let reader = Weight::seeded(9, 8, 264).linear(b);
            let norm = Norm { shift: &row, scale: &row, reader: &reader };
            let how = ops::Adaln { txt_rows: 2, eps: 1e-6 };
            let (sum, h) = x.row_view(0..5).gated_add_adaln([&row; 2], &y, [norm; 2], how).unwrap();
            let h = h.tensor().row_view(0..5);
            vec![sum, h, x]
        }
    }
    let Some(cuda) = crate::cuda() else { return };
    check(&cuda, "gated_add_adaln of a borrowed x", &Borrowed, 0.0);
}
