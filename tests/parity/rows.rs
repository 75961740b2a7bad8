//! Ops that move values, against the CPU: exactly, but for the rounding of unpatchify.

use flux::backend::Backend;
use flux::backend::cpu::{Cpu, Precision};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, compare, values};

enum Move {
    ConcatRows(Vec<Shape>),
    ConcatCols(Vec<Shape>),
    Upsample(Shape, usize),
}

impl Case for Move {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let tensors = |shapes: &[Shape]| -> Vec<Tensor<B>> {
            shapes.iter().zip(1..).map(|(shape, seed)| shape.tensor(b, seed)).collect()
        };
        vec![match self {
            Move::ConcatRows(shapes) => Tensor::concat_rows(&tensors(shapes).iter().collect::<Vec<_>>()).unwrap(),
            Move::ConcatCols(shapes) => Tensor::concat_cols(&tensors(shapes).iter().collect::<Vec<_>>()).unwrap(),
            Move::Upsample(shape, width) => shape.tensor(b, 1).upsample(shape.rows / width, *width).unwrap(),
        }]
    }
}

#[test]
fn rows_and_columns_go_where_they_belong() {
    let Some(cuda) = crate::cuda() else { return };
    let cpu = Cpu::new(Precision::F32);
    let mut cases = vec![
        Move::ConcatRows(vec![Shape::dense(3, 40), Shape::dense(0, 40), Shape::view(5, 40, 7, 1), Shape::dense(1, 40)]),
        Move::ConcatCols(vec![Shape::dense(9, 40), Shape::view(9, 3, 7, 1), Shape::dense(9, 8)]),
        Move::Upsample(Shape::dense(12, 16), 3),
        Move::Upsample(Shape::dense(1, 8), 1),
        Move::Upsample(Shape::view(35, 24, 3, 2), 7),
        Move::Upsample(Shape::view(35, 5, 3, 2), 5),
    ];
    if !crate::small() {
        cases.push(Move::ConcatRows(vec![Shape::dense(512, 3072), Shape::dense(4096, 3072)]));
        cases.push(Move::Upsample(Shape::dense(512 * 512, 256), 512));
    }
    for case in cases {
        let (got, expected) = (cuda.download(&case.run(&cuda)[0]).unwrap(), cpu.download(&case.run(&cpu)[0]).unwrap());
        assert!(got == expected);
    }
}

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

#[test]
fn rgb_bytes_are_rounded_half_to_even_and_clamped() {
    let Some(cuda) = crate::cuda() else { return };
    let cpu = Cpu::new(Precision::F32);
    fn rgb8<B: Backend>(b: &B, x: &Tensor<B>) -> flux::Result<Vec<u8>> {
        b.take_rgb8(b.rgb8(x)?)
    }
    let mut pixels: Vec<f32> = values(1, 3 * 1000);
    pixels[..6].copy_from_slice(&[-1.0, 1.0, 0.0, 7.0, -7.0, 0.5]);
    for (rows, cols) in [(1000, 3), (3, 1000)] {
        let got = rgb8(&cuda, &cuda.upload(&pixels, rows, cols).unwrap()).unwrap();
        assert_eq!(got, rgb8(&cpu, &cpu.upload(&pixels, rows, cols).unwrap()).unwrap());
    }
    let shape = Shape::view(77, 3, 2, 3);
    let broken = [0.5, f32::NAN, -0.5];
    for result in [rgb8(&cuda, &cuda.upload(&broken, 1, 3).unwrap()), rgb8(&cpu, &cpu.upload(&broken, 1, 3).unwrap())] {
        assert!(result.unwrap_err().to_string().contains("not numbers"));
    }
    assert_eq!(rgb8(&cuda, &shape.tensor(&cuda, 4)).unwrap(), rgb8(&cpu, &shape.tensor(&cpu, 4)).unwrap());
}

#[test]
fn a_view_downloads_its_own_cells() {
    let Some(cuda) = crate::cuda() else { return };
    let cpu = Cpu::new(Precision::F32);
    let shape = Shape::view(13, 9, 5, 2);
    let (got, expected) =
        (cuda.download(&shape.tensor(&cuda, 4)).unwrap(), cpu.download(&shape.tensor(&cpu, 4)).unwrap());
    compare("download of a view", &got, &expected, 0.0001);
    let (_, below) = shape.tensor(&cuda, 4).split_rows(4);
    assert_eq!(cuda.download(&below.row_view(2..3)).unwrap(), expected[6 * 9..7 * 9]);
}
