//! cuda/layer_norm.cu against the CPU.

use flux::backend::Backend;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, shapes, values};

struct LayerNorm(Shape);

impl Case for LayerNorm {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        vec![self.0.tensor(b, 1).layer_norm(1e-6).unwrap()]
    }
}

#[test]
fn layer_norm_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for shape in shapes(Shape::dense(4608, 3072)) {
        check(&cuda, &format!("layer_norm {shape:?}"), &LayerNorm(shape), 0.0);
    }
}

/// A mean of 100 times the deviation costs no digits: the values are whole numbers, so the row is exact in bf16.
#[test]
fn layer_norm_of_a_row_far_from_zero_keeps_its_digits() {
    struct Far;
    impl Case for Far {
        fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
            let far: Vec<f32> = values(5, 4 * 3072).iter().map(|v| 192.0 + (v * 4.0).round()).collect();
            vec![b.upload(&far, 4, 3072).unwrap().layer_norm(1e-6).unwrap()]
        }
    }
    let Some(cuda) = crate::cuda() else { return };
    check(&cuda, "layer_norm far from zero", &Far, 0.0);
}
