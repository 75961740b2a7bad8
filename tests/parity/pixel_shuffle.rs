//! cuda/pixel_shuffle.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check};

struct PixelShuffle {
    x: Shape,
    scale: usize,
    width: usize,
    has_base: bool,
}

impl Case for PixelShuffle {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let channels = self.x.cols / (self.scale * self.scale);
        let base = self.has_base.then(|| Shape::view(self.x.rows, channels, 1, 2).tensor(b, 2));
        vec![self.x.tensor(b, 1).pixel_shuffle(base.as_ref(), self.scale, self.width).unwrap()]
    }
}

#[test]
fn pixel_shuffle_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for (x, scale, width) in [
        (Shape::dense(64 * 48, 48), 4, 48),
        (Shape::dense(1, 12), 2, 1),
        (Shape::view(15, 27, 1, 4), 3, 5),
        (Shape::dense(40, 3), 1, 8),
    ] {
        for has_base in [false, true] {
            let case = PixelShuffle { x, scale, width, has_base };
            check(
                &cuda,
                &format!("pixel_shuffle {x:?} x{scale}, base {has_base}"),
                &case,
                if has_base { 1.0 } else { 0.0 },
            );
        }
    }
}
