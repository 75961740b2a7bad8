//! cuda/unpatchify.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, values};

struct Unpatchify(Shape, usize);

impl Case for Unpatchify {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (mean, std) = (values(2, self.0.cols), values(3, self.0.cols));
        let (mean, std) = (b.upload_f32(&mean, 1, self.0.cols).unwrap(), b.upload_f32(&std, 1, self.0.cols).unwrap());
        vec![self.0.tensor(b, 1).unpatchify(&mean, &std, self.0.rows / self.1, self.1).unwrap()]
    }
}

#[test]
fn unpatchify_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for (shape, width) in [(Shape::dense(64 * 48, 128), 48), (Shape::dense(1, 4), 1), (Shape::view(15, 12, 1, 4), 5)] {
        check(&cuda, &format!("unpatchify {shape:?}"), &Unpatchify(shape, width), 0.0);
    }
}
