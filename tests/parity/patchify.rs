//! cuda/patchify.cu against the CPU.

use flux::backend::{Backend, Memory};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, values};

/// An image and its width in tokens.
struct Patchify(Shape, usize);

impl Case for Patchify {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (packed, width) = (4 * self.0.cols, self.1);
        let std: Vec<f32> = values(3, packed).iter().map(|v| v.abs() + 0.25).collect();
        let (mean, std) =
            (b.upload_f32(&values(2, packed), 1, packed).unwrap(), b.upload_f32(&std, 1, packed).unwrap());
        vec![self.0.tensor(b, 1).patchify(&mean, &std, self.0.rows / 4 / width, width).unwrap()]
    }
}

#[test]
fn patchify_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for (shape, width) in
        [(Shape::dense(4 * 64 * 48, 32), 48), (Shape::dense(4, 1), 1), (Shape::view(4 * 15, 3, 1, 4), 5)]
    {
        check(&cuda, &format!("patchify {shape:?}"), &Patchify(shape, width), 0.0);
    }
}

#[test]
fn patchify_undoes_unpatchify() {
    let Some(cuda) = crate::cuda() else { return };
    // With a mean of 0 and powers of two, nothing rounds.
    let (cols, rows) = (24, 5 * 7);
    let (mean, std) = (cuda.upload_f32(&[0.0; 24], 1, cols).unwrap(), cuda.upload_f32(&[0.5; 24], 1, cols).unwrap());
    let latents = Shape::dense(rows, cols).tensor(&cuda, 1);
    let back = latents.unpatchify(&mean, &std, 5, 7).unwrap().patchify(&mean, &std, 5, 7).unwrap();
    assert!(cuda.download(&back).unwrap() == cuda.download(&latents).unwrap());
}
