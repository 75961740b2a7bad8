//! cuda/inpaint_blend.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes};

struct InpaintBlend {
    shape: Shape,
    sigma: f32,
    /// x is a view that must not be overwritten.
    borrowed: bool,
}

impl Case for InpaintBlend {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let rows = self.shape.rows;
        let [x, noise, image] = [1, 2, 3].map(|seed| self.shape.tensor(b, seed));
        let mask: Vec<f32> = (0..rows).map(|row| (row % 5) as f32 / 4.0).collect();
        let mask = b.upload(&mask, rows, 1).unwrap();
        // A row of several, as a step's sigma is a row of its schedule.
        let sigma = b.upload_f32(&[1.0, self.sigma], 2, 1).unwrap().row_view(1..2);
        if self.borrowed {
            let blended = x.row_view(0..rows).inpaint_blend(&noise, &image, &mask, &sigma).unwrap();
            vec![blended, x]
        } else {
            vec![x.inpaint_blend(&noise, &image, &mask, &sigma).unwrap()]
        }
    }
}

#[test]
fn inpaint_blend_matches_the_cpu_and_leaves_what_it_may_not_write() {
    let Some(cuda) = crate::cuda() else { return };
    for (sigma, borrowed) in [(0.955_390_7, false), (0.5, true), (0.0, false)] {
        for shape in shapes(Shape::dense(4096, 128)) {
            let what = format!("inpaint_blend {shape:?}, sigma {sigma}, borrowed: {borrowed}");
            check(&cuda, &what, &InpaintBlend { shape, sigma, borrowed }, 0.0);
        }
    }
}
