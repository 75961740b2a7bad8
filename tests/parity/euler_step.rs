//! cuda/euler_step.cu against the reference's arithmetic, value by value.

use flux::backend::Memory;

use crate::compare::{rounded as round, values};

#[test]
fn euler_step_rounds_as_the_reference() {
    let Some(cuda) = crate::cuda() else { return };
    for (rows, cols) in [(4096, 128), (5, 77)] {
        let (x, v, dt) = (values(1, rows * cols), values(2, rows * cols), -0.140_944_5f32);
        // A row of several, as a step's dt is a row of its schedule.
        let dts = cuda.upload(&[1.0, dt, 2.0], 3, 1).unwrap();
        let velocity = cuda.upload(&v, rows, cols).unwrap();
        let latents = cuda.upload(&x, rows, cols).unwrap().euler_step(&velocity, &dts.row_view(1..2)).unwrap();
        let expected: Vec<f32> = x.iter().zip(&v).map(|(x, v)| round(x + round(round(dt) * v))).collect();
        assert!(cuda.download(&latents).unwrap() == expected);
    }
}
