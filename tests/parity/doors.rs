//! The methods of `Tensor` refuse operands of another type, and of another handle, and say of which op they are. On the
//! CPU all tensors are float32, of one device.

use flux::Result;
use flux::backend::Backend;
use flux::backend::cuda::Cuda;
use flux::ops::{Joint, Pairs, Rope};
use flux::tensor::Tensor;

use crate::compare::values;

/// What an operand has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Activation,
    F32,
}

impl Kind {
    fn other(self) -> Self {
        match self {
            Kind::Activation => Kind::F32,
            Kind::F32 => Kind::Activation,
        }
    }
}

/// Rows and columns of an operand, and what it has to be.
type Operand = ([usize; 2], Kind);

/// An op, what it takes, and how.
struct Door {
    op: &'static str,
    operands: &'static [Operand],
    call: fn(Vec<Tensor<Cuda>>) -> Result<Tensor<Cuda>>,
}

fn tensor(cuda: &Cuda, ([rows, cols], kind): Operand) -> Tensor<Cuda> {
    let values = values(1, rows * cols);
    match kind {
        Kind::Activation => cuda.upload(&values, rows, cols).unwrap(),
        Kind::F32 => cuda.upload_f32(&values, rows, cols).unwrap(),
    }
}

fn array<const N: usize>(operands: Vec<Tensor<Cuda>>) -> [Tensor<Cuda>; N] {
    operands.try_into().ok().expect("as many operands as the op takes")
}

const MATRIX: Operand = ([6, 8], Kind::Activation);
const VECTOR: Operand = ([1, 8], Kind::Activation);
const VALUE: Operand = ([1, 1], Kind::Activation);
const VECTOR_F32: Operand = ([1, 8], Kind::F32);
/// For six tokens and heads of four.
const TABLE: Operand = ([6, 2], Kind::F32);

const DOORS: [Door; 14] = [
    Door {
        op: "silu",
        operands: &[MATRIX],
        call: |x| {
            let [x] = array(x);
            x.silu()
        },
    },
    Door {
        op: "add",
        operands: &[MATRIX, MATRIX],
        call: |x| {
            let [x, y] = array(x);
            x.add(&y)
        },
    },
    Door {
        op: "mul",
        operands: &[MATRIX, VECTOR],
        call: |x| {
            let [x, y] = array(x);
            x.mul(&y)
        },
    },
    Door {
        op: "scale_shift",
        operands: &[MATRIX, VECTOR, VECTOR],
        call: |x| {
            let [x, scale, shift] = array(x);
            x.scale_shift(&scale, &shift)
        },
    },
    Door {
        op: "layer_norm",
        operands: &[MATRIX],
        call: |x| {
            let [x] = array(x);
            x.layer_norm(1e-6)
        },
    },
    Door {
        op: "rms_norm",
        operands: &[MATRIX, VECTOR],
        call: |x| {
            let [x, weight] = array(x);
            x.rms_norm(&weight, 1e-6)
        },
    },
    Door {
        op: "rope",
        operands: &[MATRIX, TABLE, TABLE],
        call: |x| {
            let [x, cos, sin] = array(x);
            x.rope(&Rope { cos, sin, pairs: Pairs::Interleaved }, Joint::single(6))
        },
    },
    Door {
        op: "concat_rows",
        operands: &[MATRIX, VECTOR],
        call: |x| Tensor::concat_rows(&x.iter().collect::<Vec<_>>()),
    },
    Door {
        op: "concat_cols",
        operands: &[MATRIX, MATRIX],
        call: |x| Tensor::concat_cols(&x.iter().collect::<Vec<_>>()),
    },
    Door {
        op: "join_rows",
        operands: &[MATRIX, VECTOR],
        call: |x| {
            let [top, bottom] = array(x);
            top.join_rows(bottom)
        },
    },
    Door {
        op: "upsample",
        operands: &[MATRIX],
        call: |x| {
            let [x] = array(x);
            x.upsample(2, 3)
        },
    },
    Door {
        op: "unpatchify",
        operands: &[MATRIX, VECTOR_F32, VECTOR_F32],
        call: |x| {
            let [x, mean, std] = array(x);
            x.unpatchify(&mean, &std, 2, 3)
        },
    },
    Door {
        op: "euler_step",
        operands: &[MATRIX, MATRIX, VALUE],
        call: |x| {
            let [x, velocity, dt] = array(x);
            x.euler_step(&velocity, &dt)
        },
    },
    Door {
        op: "guide",
        operands: &[MATRIX, MATRIX],
        call: |x| {
            let [positive, negative] = array(x);
            positive.guide(&negative, 4.0)
        },
    },
];

/// The op's operands on `cuda`, but for operand `index`, which is `instead`.
fn operands(cuda: &Cuda, door: &Door, index: usize, instead: Tensor<Cuda>) -> Vec<Tensor<Cuda>> {
    let mut operands: Vec<_> = door.operands.iter().map(|operand| tensor(cuda, *operand)).collect();
    operands[index] = instead;
    operands
}

fn expect_refused(door: &Door, index: usize, result: Result<Tensor<Cuda>>, what: &str) {
    let Err(error) = result else { panic!("{}: operand {index} was taken, {what}", door.op) };
    let text = error.to_string();
    assert!(text.contains(&format!("op `{}`", door.op)) && text.contains(what), "{}: {text}", door.op);
}

#[test]
fn operands_of_another_type_are_errors_that_name_the_op() {
    let Some(cuda) = crate::cuda() else { return };
    for door in &DOORS {
        for (index, &(shape, kind)) in door.operands.iter().enumerate() {
            let with = |kind| (door.call)(operands(&cuda, door, index, tensor(&cuda, (shape, kind))));
            assert!(with(kind).is_ok(), "{}", door.op);
            expect_refused(door, index, with(kind.other()), "a tensor is of");
        }
    }
}

#[test]
fn operands_of_two_handles_are_errors_that_name_the_op() {
    let (Some(cuda), Some(other)) = (crate::cuda(), crate::cuda()) else { return };
    for door in DOORS.iter().filter(|door| door.operands.len() > 1) {
        for (index, operand) in door.operands.iter().enumerate() {
            let result = (door.call)(operands(&cuda, door, index, tensor(&other, *operand)));
            expect_refused(door, index, result, "a tensor is on");
        }
    }
}
