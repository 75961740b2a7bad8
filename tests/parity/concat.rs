//! `concat_rows`, `concat_cols` and `join_rows` against the CPU: values are moved, so nothing may differ.

use flux::backend::cpu::{Cpu, Precision};
use flux::backend::{Backend, Device};
use flux::tensor::Tensor;

use crate::compare::Shape;

enum Concat {
    Rows(Vec<Shape>),
    Cols(Vec<Shape>),
    /// A matrix that was split at a row, with its parts in the same order or swapped.
    Join {
        shape: Shape,
        split: usize,
        swapped: bool,
    },
}

impl Concat {
    fn run<B: Backend>(&self, b: &B) -> Vec<f32> {
        let tensors = |shapes: &[Shape]| -> Vec<Tensor<B>> {
            shapes.iter().zip(1..).map(|(shape, seed)| shape.tensor(b, seed)).collect()
        };
        let out = match self {
            Concat::Rows(shapes) => Tensor::concat_rows(&tensors(shapes).iter().collect::<Vec<_>>()),
            Concat::Cols(shapes) => Tensor::concat_cols(&tensors(shapes).iter().collect::<Vec<_>>()),
            Concat::Join { shape, split, swapped } => {
                let (top, bottom) = shape.tensor(b, 1).split_rows(*split);
                if *swapped { bottom.join_rows(top) } else { top.join_rows(bottom) }
            }
        };
        b.download(&out.unwrap()).unwrap()
    }
}

#[test]
fn rows_and_columns_go_where_they_belong() {
    let Some(cuda) = crate::cuda() else { return };
    let cpu = Cpu::new(Precision::F32);
    let mut cases = vec![
        Concat::Rows(vec![Shape::dense(3, 40), Shape::dense(0, 40), Shape::view(5, 40, 7, 1), Shape::dense(1, 40)]),
        Concat::Cols(vec![Shape::dense(9, 40), Shape::view(9, 3, 7, 1), Shape::dense(9, 8)]),
    ];
    // Parts for the kernel, and some that it does not take.
    let many = |count: usize, cols: usize| {
        let shape = |i: usize| match i % 3 {
            0 => Shape::dense(i % 5, cols),
            1 => Shape::view(1 + i % 4, cols, 8, 16),
            _ => Shape::view(2, cols, 16, 0),
        };
        Concat::Rows((0..count).map(shape).collect())
    };
    cases.extend([many(4, 8), many(5, 40), many(239, 128), many(240, 16), many(241, 16), many(500, 3072), many(7, 12)]);
    cases.push(Concat::Rows((0..9).map(|i| Shape::view(i, 40, i, 1)).collect()));
    for swapped in [false, true] {
        cases.push(Concat::Join { shape: Shape::dense(9, 40), split: 4, swapped });
        cases.push(Concat::Join { shape: Shape::view(9, 5, 3, 2), split: 1, swapped });
    }
    if !crate::small() {
        cases.push(Concat::Rows(vec![Shape::dense(512, 3072), Shape::dense(4096, 3072)]));
    }
    for case in cases {
        assert!(case.run(&cuda) == case.run(&cpu));
    }
}

/// Rows that are still adjacent need no copy.
#[test]
fn rows_that_were_split_are_joined_without_a_copy() {
    let Some(cuda) = crate::cuda() else { return };
    let (top, bottom) = Shape::dense(9, 40).tensor(&cuda, 1).split_rows(4);
    let before = cuda.stats().launches;
    let whole = top.join_rows(bottom).unwrap();
    assert_eq!(cuda.stats().launches, before);
    assert!(whole.writable());
    let (top, bottom) = whole.split_rows(4);
    bottom.join_rows(top).unwrap();
    assert!(cuda.stats().launches > before, "in the other order there is one");
}
