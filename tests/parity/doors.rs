//! The methods of `Tensor` refuse operands of another type, and of another handle, and name their op, so no kernel
//! misreads bytes. On the CPU all tensors are float32, on one device.

use flux::Result;
use flux::backend::Memory;
use flux::backend::cuda::Cuda;
use flux::nn::{ConvKernel, Linear, LowRank, Operand as Input};
use flux::ops::{
    Adaln, Conv, Convolved, DenseBlock, GroupNorm, Heads, KeyValues, Mask, Norm, Pairs, QkNorm, Rope, TokenLayout,
};
use flux::tensor::Tensor;

use crate::compare::{Weight, half, values};
use crate::conv2d::weight;

/// The required type of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Activation,
    F32,
    /// Quantized for multiplications with fp8 weights.
    E4m3,
}

/// Rows and columns of an operand, and its required type.
type Operand = ([usize; 2], Kind);

/// The op on its operands. Weights are on the handle that is passed.
type Call = fn(&Cuda, Vec<Tensor<Cuda>>) -> Result<Tensor<Cuda>>;

/// An op, its operands, and its call.
struct Door {
    op: &'static str,
    operands: &'static [Operand],
    call: Call,
}

fn tensor(cuda: &Cuda, ([rows, cols], kind): Operand) -> Tensor<Cuda> {
    let values = values(1, rows * cols);
    match kind {
        Kind::Activation => cuda.upload(&values, rows, cols).unwrap(),
        Kind::F32 => cuda.upload_f32(&values, rows, cols).unwrap(),
        Kind::E4m3 => cuda.quantize(&cuda.upload(&values, rows, cols).unwrap()).unwrap(),
    }
}

/// A linear layer from 8 columns to `rows`.
fn linear(cuda: &Cuda, rows: usize) -> Linear<Cuda> {
    Weight::seeded(1, rows, 8).linear(cuda)
}

/// A linear layer from 8 columns to 8, with factors of rank 2.
fn low_rank(cuda: &Cuda) -> Linear<Cuda> {
    let up = Weight::seeded(2, 8, 2).linear(cuda);
    linear(cuda, 8).with_low_rank(LowRank { down: linear(cuda, 2), up }).unwrap()
}

fn norm<'a>(weight: &'a Tensor<Cuda>, bias: &'a Tensor<Cuda>) -> GroupNorm<'a, Cuda> {
    GroupNorm { weight, bias, groups: 2, eps: 1e-6, statistics: None }
}

/// The weight of a 3 x 3 convolution of 8 channels to 8.
fn weights(cuda: &Cuda) -> ConvKernel<Cuda> {
    weight(8, 8, 3).conv(cuda)
}

fn pixels(convolved: Convolved<Cuda>) -> Tensor<Cuda> {
    convolved.pixels
}

fn array<const N: usize>(operands: Vec<Tensor<Cuda>>) -> [Tensor<Cuda>; N] {
    operands.try_into().ok().expect("as many operands as the op takes")
}

const MATRIX: Operand = ([6, 8], Kind::Activation);
const VECTOR: Operand = ([1, 8], Kind::Activation);
const COLUMN: Operand = ([6, 1], Kind::Activation);
const VALUE: Operand = ([1, 1], Kind::Activation);
const VALUE_F32: Operand = ([1, 1], Kind::F32);
const VECTOR_F32: Operand = ([1, 8], Kind::F32);
/// For six tokens and heads of four.
const TABLE: Operand = ([6, 2], Kind::F32);
const HEAD: Operand = ([1, 4], Kind::Activation);
/// The six rows of a matrix as pixels.
const CONV: Conv = Conv { height: 2, width: 3, kernel: 3, stride: 1, pad_before: 1, pad_after: 1 };

/// Creates a door: the name of the op, its operands, and the call with the handle and these operands.
macro_rules! door {
    ($op:literal, $operands:expr, |$cuda:tt, $($x:ident),+| $call:expr) => {
        Door {
            op: $op,
            operands: &$operands,
            call: |$cuda, operands| {
                let [$($x),+] = array(operands);
                $call
            },
        }
    };
}

const DOORS: [Door; 47] = [
    door!("silu", [MATRIX], |_, x| x.silu()),
    door!("relu", [MATRIX], |_, x| x.relu()),
    door!("softcap", [MATRIX], |_, x| x.softcap(3.0)),
    door!("add", [MATRIX, MATRIX], |_, x, y| x.add(&y)),
    door!("mul", [MATRIX, VECTOR], |_, x, y| x.mul(&y)),
    door!("scale_shift", [MATRIX, VECTOR, VECTOR], |_, x, scale, shift| x.scale_shift(&scale, &shift)),
    door!("layer_norm", [MATRIX], |_, x| x.layer_norm(1e-6)),
    door!("rms_norm", [MATRIX, VECTOR], |_, x, weight| x.rms_norm(&weight, 1e-6)),
    door!("rope", [MATRIX, TABLE, TABLE], |_, x, cos, sin| {
        x.rope(&Rope { cos, sin, pairs: Pairs::Interleaved }, TokenLayout::single(6))
    }),
    door!("concat_rows", [MATRIX, VECTOR], |_, a, b| Tensor::concat_rows(&[&a, &b])),
    door!("concat_cols", [MATRIX, MATRIX], |_, a, b| Tensor::concat_cols(&[&a, &b])),
    door!("join_rows", [MATRIX, VECTOR], |_, top, bottom| top.join_rows(bottom)),
    door!("upsample", [MATRIX], |_, x| x.upsample(2, 3)),
    door!("unpatchify", [MATRIX, VECTOR_F32, VECTOR_F32], |_, x, mean, std| x.unpatchify(&mean, &std, 2, 3)),
    door!("euler_step", [MATRIX, MATRIX, VALUE], |_, x, velocity, dt| x.euler_step(&velocity, &dt)),
    door!("inpaint_blend", [MATRIX, MATRIX, MATRIX, COLUMN, VALUE_F32], |_, x, noise, image, mask, sigma| {
        x.inpaint_blend(&noise, &image, &mask, &sigma)
    }),
    door!("guide", [MATRIX, MATRIX], |_, positive, negative| positive.guide(&negative, 4.0)),
    door!("linear", [MATRIX, VECTOR], |cuda, x, bias| x.linear(&linear(cuda, 8), Some(&bias))),
    door!("linear_add", [MATRIX, MATRIX], |cuda, x, residual| x.linear_add(&linear(cuda, 8), residual)),
    door!("linear_rows", [MATRIX, VECTOR], |cuda, a, b| {
        let weight = linear(cuda, 8);
        Tensor::linear_rows(&[(&a, &weight), (&b, &weight)])
    }),
    door!("linear_sum", [MATRIX, MATRIX], |cuda, a, b| {
        let weight = linear(cuda, 8);
        Tensor::linear_sum(&[(&a, &weight), (&b, &weight)])
    }),
    door!("linear_concat", [([6, 4], Kind::Activation), ([6, 4], Kind::Activation)], |cuda, a, b| {
        Tensor::linear_concat(&[&a, &b], &linear(cuda, 8))
    }),
    door!("low_rank", [MATRIX, VECTOR], |cuda, a, b| {
        let layer = low_rank(cuda);
        Tensor::low_rank(&[(&a, &layer), (&b, &layer)])
    }),
    door!("attention", [MATRIX, MATRIX, MATRIX], |_, q, k, v| {
        q.attention(&k, &v, 4, TokenLayout::single(6), Mask::None)
    }),
    door!("attention_cached", [MATRIX, MATRIX, MATRIX, MATRIX, MATRIX], |_, q, k, v, cached_k, cached_v| {
        let cached = KeyValues { k: cached_k, v: cached_v };
        q.attention_cached(&k, &v, &cached, 4, TokenLayout::single(6))
    }),
    door!("adaln", [MATRIX, VECTOR, VECTOR], |_, x, shift, scale| x.adaln(&shift, &scale, 1e-6)),
    door!("adaln_rows", [MATRIX, VECTOR, VECTOR], |cuda, x, shift, scale| {
        let reader = linear(cuda, 8);
        let norm = Norm { shift: &shift, scale: &scale, reader: &reader };
        x.adaln_rows([norm; 2], Adaln { txt_rows: 2, eps: 1e-6 })
    }),
    door!("gated_add", [MATRIX, VECTOR, MATRIX], |_, x, gate, y| x.gated_add(&gate, &y)),
    door!(
        "gated_add_adaln",
        [MATRIX, VECTOR, VECTOR, MATRIX, VECTOR, VECTOR, VECTOR, VECTOR],
        |cuda, x, gate, other_gate, y, shift, scale, other_shift, other_scale| {
            let reader = linear(cuda, 8);
            let norms = [(&shift, &scale), (&other_shift, &other_scale)];
            let norms = norms.map(|(shift, scale)| Norm { shift, scale, reader: &reader });
            let adaln = Adaln { txt_rows: 2, eps: 1e-6 };
            x.gated_add_adaln([&gate, &other_gate], &y, norms, adaln).map(|(x, _)| x)
        }
    ),
    door!("swiglu", [MATRIX, MATRIX], |_, gate, up| gate.swiglu(&up)),
    door!("qk_norm_rope", [MATRIX, MATRIX, HEAD, HEAD, TABLE, TABLE], |_, q, k, norm_q, norm_k, cos, sin| {
        let norm = QkNorm { q: norm_q, k: norm_k, eps: 1e-6 };
        let rope = Rope { cos, sin, pairs: Pairs::Interleaved };
        q.qk_norm_rope(k, [&norm, &norm], &rope, TokenLayout::single(6)).map(|(q, _)| q)
    }),
    door!("project", [MATRIX, HEAD, HEAD, TABLE, TABLE], |cuda, x, norm_q, norm_k, cos, sin| {
        let norm = QkNorm { q: norm_q, k: norm_k, eps: 1e-6 };
        let rope = Rope { cos, sin, pairs: Pairs::Interleaved };
        let heads = Heads { dim: 8, norm: [&norm, &norm], rope: &rope, layout: TokenLayout::single(6) };
        let weight = linear(cuda, 3 * 8 + 2 * 16);
        Tensor::project(&[(&Input::from(x), &weight)], Some(&heads)).map(|projection| projection.mlp)
    }),
    door!("group_norm", [MATRIX, VECTOR, VECTOR], |_, x, weight, bias| x.group_norm(&norm(&weight, &bias))),
    door!("group_norm_silu", [MATRIX, VECTOR, VECTOR], |_, x, weight, bias| x.group_norm_silu(&norm(&weight, &bias))),
    door!("conv2d", [MATRIX, VECTOR], |cuda, x, bias| x.conv2d(&weights(cuda), &bias, CONV).map(pixels)),
    door!("conv2d_over", [MATRIX, VECTOR], |cuda, x, bias| x.conv2d_over(&weights(cuda), &bias, CONV).map(pixels)),
    door!("conv2d_add", [MATRIX, VECTOR, MATRIX], |cuda, x, bias, residual| {
        x.conv2d_add(&weights(cuda), &bias, CONV, residual).map(pixels)
    }),
    door!("conv2d_add_relu", [MATRIX, VECTOR, MATRIX], |cuda, x, bias, residual| {
        x.conv2d_add_relu(&weights(cuda), &bias, CONV, residual).map(pixels)
    }),
    door!("conv2d_leaky_relu", [MATRIX, VECTOR, VECTOR], |cuda, x, bias, slope| {
        x.conv2d_leaky_relu(&weights(cuda), &bias, CONV, &slope).map(pixels)
    }),
    door!("upsample_conv2d_leaky_relu", [MATRIX, VECTOR, VECTOR], |cuda, x, bias, slope| {
        x.upsample_conv2d_leaky_relu(&weights(cuda), &bias, [2, 3], &slope).map(pixels)
    }),
    door!("dense_block", [MATRIX, VECTOR, VECTOR], |cuda, x, bias, slope| {
        let convs = [(weights(cuda), bias)];
        x.dense_block(&DenseBlock { convs: &convs, slope: &slope, height: 2, width: 3 })
    }),
    door!("dense_block_sum", [MATRIX, VECTOR, VECTOR, VECTOR], |cuda, x, bias, slope, scale| {
        let convs = [(weights(cuda), bias)];
        x.dense_block_sum(&[DenseBlock { convs: &convs, slope: &slope, height: 2, width: 3 }], &scale)
    }),
    door!("leaky_relu", [MATRIX, VECTOR], |_, x, slope| x.leaky_relu(&slope)),
    door!("pixel_shuffle", [MATRIX, ([6, 2], Kind::Activation)], |_, x, base| x.pixel_shuffle(Some(&base), 2, 3)),
    door!("norm_conv2d", [MATRIX, VECTOR, VECTOR, VECTOR], |cuda, x, weight, offset, bias| {
        x.norm_conv2d(&norm(&weight, &offset), &weights(cuda), &bias, CONV).map(pixels)
    }),
    door!("norm_conv2d_add", [MATRIX, VECTOR, VECTOR, VECTOR, MATRIX], |cuda, x, weight, offset, bias, residual| {
        x.norm_conv2d_add(&norm(&weight, &offset), &weights(cuda), &bias, CONV, residual).map(pixels)
    }),
    door!("upsample_conv2d", [MATRIX, VECTOR], |cuda, x, bias| {
        x.upsample_conv2d(&weights(cuda), &bias, 2, 3).map(pixels)
    }),
];

/// Returns the op's operands on `cuda`, with `instead` as operand `index`.
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

/// Returns `true` if an operand of `op` may be quantized: operands of multiplications, as [`Input`] holds them.
fn takes_e4m3(op: &str, index: usize) -> bool {
    op == "project" && index == 0
}

#[test]
fn operands_of_another_type_are_errors_that_name_the_op() {
    let Some(cuda) = crate::cuda() else { return };
    for door in &DOORS {
        for (index, &(shape, kind)) in door.operands.iter().enumerate() {
            let with = |kind| (door.call)(&cuda, operands(&cuda, door, index, tensor(&cuda, (shape, kind))));
            assert!(with(kind).is_ok(), "{}: {:?}", door.op, with(kind).err());
            // No op makes e4m3 with fp16.
            let kinds = [Kind::Activation, Kind::F32, Kind::E4m3];
            let others = kinds[..if half() { 2 } else { 3 }].iter().copied().filter(|other| *other != kind);
            for other in others.filter(|other| *other != Kind::E4m3 || !takes_e4m3(door.op, index)) {
                expect_refused(door, index, with(other), "a tensor has type");
            }
        }
    }
}

#[test]
fn operands_of_two_handles_are_errors_that_name_the_op() {
    let (Some(cuda), Some(other)) = (crate::cuda(), crate::cuda()) else { return };
    for door in DOORS.iter().filter(|door| door.operands.len() > 1) {
        for (index, operand) in door.operands.iter().enumerate() {
            let result = (door.call)(&cuda, operands(&cuda, door, index, tensor(&other, *operand)));
            expect_refused(door, index, result, " device");
        }
    }
}
