//! cuda/upsample.cu against the CPU: values are moved, so nothing may differ.

use flux::backend::Backend;
use flux::backend::cpu::{Cpu, Precision};

use crate::compare::Shape;

#[test]
fn upsample_matches_the_cpu() {
    fn run<B: Backend>(b: &B, shape: Shape, width: usize) -> Vec<f32> {
        b.download(&shape.tensor(b, 1).upsample(shape.rows / width, width).unwrap()).unwrap()
    }
    let Some(cuda) = crate::cuda() else { return };
    let cpu = Cpu::new(Precision::F32);
    let mut cases = vec![
        (Shape::dense(12, 16), 3),
        (Shape::dense(1, 8), 1),
        (Shape::view(35, 24, 3, 2), 7),
        (Shape::view(35, 5, 3, 2), 5),
    ];
    if !crate::small() {
        cases.push((Shape::dense(512 * 512, 256), 512));
    }
    for (shape, width) in cases {
        assert!(run(&cuda, shape, width) == run(&cpu, shape, width), "{shape:?}, {width} wide");
    }
}
