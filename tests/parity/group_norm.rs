//! cuda/group_norm.cu against the CPU and its composition.

use flux::backend::Backend;
use flux::ops;
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, values, vector};

struct GroupNorm {
    shape: Shape,
    groups: usize,
    silu: bool,
}

impl Case for GroupNorm {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (x, weight, bias) = (self.shape.tensor(b, 1), vector(b, 2, self.shape.cols), vector(b, 3, self.shape.cols));
        let out = if self.silu { x.group_norm_silu(&weight, &bias, self.groups, 1e-6) } else { x.group_norm(&weight, &bias, self.groups, 1e-6) };
        vec![out.unwrap()]
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        if !self.silu {
            return self.run(b);
        }
        let (x, weight, bias) = (self.shape.tensor(b, 1), vector(b, 2, self.shape.cols), vector(b, 3, self.shape.cols));
        vec![ops::group_norm::compose_silu(b, &x, &weight, &bias, self.groups, 1e-6).unwrap()]
    }
}

/// The composition rounds what silu takes; silu's slope is at most 1.1, its value typically half of what it takes.
#[test]
fn group_norm_and_group_norm_silu_match() {
    let Some(cuda) = crate::cuda() else { return };
    let mut shapes = vec![
        (Shape::dense(1, 32), 32),
        (Shape::dense(1, 128), 32),
        (Shape::dense(63, 128), 32),
        (Shape::dense(1000, 16), 8),
        (Shape::dense(300, 96), 32),
        (Shape::dense(257, 21), 7),
        (Shape::view(100, 64, 8, 8), 1),
        (Shape::view(100, 64, 1, 2), 64),
        (Shape::dense(40, 2304), 3),
    ];
    if !crate::small() {
        shapes.extend([(Shape::dense(1024 * 1024, 128), 32), (Shape::dense(512 * 512, 256), 32), (Shape::dense(128 * 128, 512), 32)]);
    }
    for (shape, groups) in shapes {
        for silu in [false, true] {
            let case = GroupNorm { shape, groups, silu };
            check(&cuda, &format!("group_norm {shape:?} {groups} groups, silu {silu}"), &case, if silu { 3.0 } else { 0.0 });
        }
    }
}

/// Whole numbers around 192, exact in bf16: a mean of fifty deviations must not swallow the variance.
#[test]
fn group_norm_far_from_zero_keeps_its_digits() {
    struct Far(usize);
    impl Case for Far {
        fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
            let far: Vec<f32> = values(5, self.0 * 64).iter().map(|v| 192.0 + (v * 4.0).round()).collect();
            let (weight, bias) = (vector(b, 2, 64), vector(b, 3, 64));
            vec![b.upload(&far, self.0, 64).unwrap().group_norm(&weight, &bias, 8, 1e-6).unwrap()]
        }
    }
    let Some(cuda) = crate::cuda() else { return };
    check(&cuda, "group_norm far from zero", &Far(if crate::small() { 2000 } else { 300_000 }), 0.0);
}

#[test]
fn group_norm_gives_the_same_bytes_every_time() {
    let Some(cuda) = crate::cuda() else { return };
    let case = GroupNorm { shape: Shape::dense(5000, 128), groups: 32, silu: true };
    let run = || cuda.download(&case.run(&cuda)[0]).unwrap();
    let first = run();
    assert!((0..5).all(|_| run() == first));
}
