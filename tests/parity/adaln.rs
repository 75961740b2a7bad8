//! cuda/adaln.cu against its composition.

use flux::backend::Backend;
use flux::ops::{self, Norm};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, Weight, check, shapes, vector};

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

/// A shape, and the number of its text rows.
struct AdalnRows(Shape, usize);

impl AdalnRows {
    fn with<B: Backend>(
        &self,
        b: &B,
        adaln: impl Fn(&Tensor<B>, [Norm<'_, B>; 2], ops::Adaln) -> flux::Result<Tensor<B>>,
    ) -> Vec<Tensor<B>> {
        let reader = Weight::seeded(4, 8, self.0.cols).linear(b);
        let [txt, img] = [2, 3].map(|seed| (vector(b, seed, self.0.cols), vector(b, seed + 10, self.0.cols)));
        let norms = [&txt, &img].map(|(shift, scale)| Norm { shift, scale, reader: &reader });
        vec![adaln(&self.0.tensor(b, 1), norms, ops::Adaln { txt_rows: self.1, eps: 1e-6 }).unwrap()]
    }
}

impl Case for AdalnRows {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |x, norms, adaln| x.adaln_rows(norms, adaln))
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |x, norms, adaln| ops::adaln::compose_rows(b, x, norms, adaln))
    }
}

#[test]
fn adaln_rows_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    for (rows, cols) in [(1344, 3072), (40, 256), (7, 24), (5, 33), (3, 1)] {
        for txt_rows in [0, 1, rows / 3, rows - 1, rows] {
            let case = AdalnRows(Shape::dense(rows, cols), txt_rows);
            let what = format!("adaln_rows [{rows}, {cols}], {txt_rows} of text");
            // The definition is the same kernel on each part: only the position of rows differs.
            check(&cuda, &what, &case, 1.0);
        }
    }
    check(&cuda, "adaln_rows of a view", &AdalnRows(Shape::view(40, 256, 8, 16), 13), 1.0);
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
