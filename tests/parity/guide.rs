//! cuda/guide.cu against the reference's arithmetic, value by value.

use flux::backend::Memory;

use crate::compare::{rounded as round, values};

#[test]
fn guide_rounds_each_of_its_three_ops() {
    let Some(cuda) = crate::cuda() else { return };
    let guidance = 4.0f32;
    for (rows, cols) in [(777, 128), (5, 77)] {
        let (positive, negative) = (values(1, rows * cols), values(2, rows * cols));
        let guided = cuda
            .upload(&positive, rows, cols)
            .unwrap()
            .guide(&cuda.upload(&negative, rows, cols).unwrap(), guidance)
            .unwrap();
        let expected: Vec<f32> =
            positive.iter().zip(&negative).map(|(p, n)| round(n + round(guidance * round(p - n)))).collect();
        assert!(cuda.download(&guided).unwrap() == expected);
    }
}
