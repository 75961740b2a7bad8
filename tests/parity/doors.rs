//! The methods of `Tensor` refuse operands of another type, and of another handle, and name their op, so no kernel
//! misreads bytes. On the CPU all tensors are float32, on one device.

use flux::Result;
use flux::backend::Memory;
use flux::backend::cuda::Cuda;
use flux::nn::{Linear, LowRank, Operand as Input};
use flux::ops::{
    Adaln, Conv, Convolved, DenseBlock, GroupNorm, Heads, KeyValues, Mask, Norm, Pairs, QkNorm, Rope, TokenLayout,
};
use flux::tensor::Tensor;

use crate::compare::{Weight, half, values};
use crate::conv2d::weight as kernel;

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

const DOORS: [Door; 48] = [
    Door {
        op: "silu",
        operands: &[MATRIX],
        call: |_, x| {
            let [x] = array(x);
            x.silu()
        },
    },
    Door {
        op: "relu",
        operands: &[MATRIX],
        call: |_, x| {
            let [x] = array(x);
            x.relu()
        },
    },
    Door {
        op: "softcap",
        operands: &[MATRIX],
        call: |_, x| {
            let [x] = array(x);
            x.softcap(3.0)
        },
    },
    Door {
        op: "add",
        operands: &[MATRIX, MATRIX],
        call: |_, x| {
            let [x, y] = array(x);
            x.add(&y)
        },
    },
    Door {
        op: "mul",
        operands: &[MATRIX, VECTOR],
        call: |_, x| {
            let [x, y] = array(x);
            x.mul(&y)
        },
    },
    Door {
        op: "scale_shift",
        operands: &[MATRIX, VECTOR, VECTOR],
        call: |_, x| {
            let [x, scale, shift] = array(x);
            x.scale_shift(&scale, &shift)
        },
    },
    Door {
        op: "layer_norm",
        operands: &[MATRIX],
        call: |_, x| {
            let [x] = array(x);
            x.layer_norm(1e-6)
        },
    },
    Door {
        op: "rms_norm",
        operands: &[MATRIX, VECTOR],
        call: |_, x| {
            let [x, weight] = array(x);
            x.rms_norm(&weight, 1e-6)
        },
    },
    Door {
        op: "rope",
        operands: &[MATRIX, TABLE, TABLE],
        call: |_, x| {
            let [x, cos, sin] = array(x);
            x.rope(&Rope { cos, sin, pairs: Pairs::Interleaved }, TokenLayout::single(6))
        },
    },
    Door {
        op: "concat_rows",
        operands: &[MATRIX, VECTOR],
        call: |_, x| Tensor::concat_rows(&x.iter().collect::<Vec<_>>()),
    },
    Door {
        op: "concat_cols",
        operands: &[MATRIX, MATRIX],
        call: |_, x| Tensor::concat_cols(&x.iter().collect::<Vec<_>>()),
    },
    Door {
        op: "join_rows",
        operands: &[MATRIX, VECTOR],
        call: |_, x| {
            let [top, bottom] = array(x);
            top.join_rows(bottom)
        },
    },
    Door {
        op: "upsample",
        operands: &[MATRIX],
        call: |_, x| {
            let [x] = array(x);
            x.upsample(2, 3)
        },
    },
    Door {
        op: "unpatchify",
        operands: &[MATRIX, VECTOR_F32, VECTOR_F32],
        call: |_, x| {
            let [x, mean, std] = array(x);
            x.unpatchify(&mean, &std, 2, 3)
        },
    },
    Door {
        op: "euler_step",
        operands: &[MATRIX, MATRIX, VALUE],
        call: |_, x| {
            let [x, velocity, dt] = array(x);
            x.euler_step(&velocity, &dt)
        },
    },
    Door {
        op: "inpaint_blend",
        operands: &[MATRIX, MATRIX, MATRIX, COLUMN, VALUE_F32],
        call: |_, x| {
            let [x, noise, image, mask, sigma] = array(x);
            x.inpaint_blend(&noise, &image, &mask, &sigma)
        },
    },
    Door {
        op: "guide",
        operands: &[MATRIX, MATRIX],
        call: |_, x| {
            let [positive, negative] = array(x);
            positive.guide(&negative, 4.0)
        },
    },
    Door {
        op: "linear",
        operands: &[MATRIX, VECTOR],
        call: |cuda, x| {
            let [x, bias] = array(x);
            x.linear(&linear(cuda, 8), Some(&bias))
        },
    },
    Door {
        op: "linear_add",
        operands: &[MATRIX, MATRIX],
        call: |cuda, x| {
            let [x, residual] = array(x);
            x.linear_add(&linear(cuda, 8), residual)
        },
    },
    Door {
        op: "linear_rows",
        operands: &[MATRIX, VECTOR],
        call: |cuda, x| {
            let weight = linear(cuda, 8);
            Tensor::linear_rows(&[(&x[0], &weight), (&x[1], &weight)])
        },
    },
    Door {
        op: "linear_sum",
        operands: &[MATRIX, MATRIX],
        call: |cuda, x| {
            let weight = linear(cuda, 8);
            Tensor::linear_sum(&[(&x[0], &weight), (&x[1], &weight)])
        },
    },
    Door {
        op: "linear_concat",
        operands: &[([6, 4], Kind::Activation), ([6, 4], Kind::Activation)],
        call: |cuda, x| Tensor::linear_concat(&[&x[0], &x[1]], &linear(cuda, 8)),
    },
    Door {
        op: "low_rank",
        operands: &[MATRIX, VECTOR],
        call: |cuda, x| {
            let layer = low_rank(cuda);
            Tensor::low_rank(&[(&x[0], &layer), (&x[1], &layer)])
        },
    },
    Door {
        op: "low_rank_concat",
        operands: &[([6, 4], Kind::Activation), ([6, 4], Kind::Activation)],
        call: |cuda, x| Tensor::low_rank_concat(&[&x[0], &x[1]], &low_rank(cuda)),
    },
    Door {
        op: "attention",
        operands: &[MATRIX, MATRIX, MATRIX],
        call: |_, x| {
            let [q, k, v] = array(x);
            q.attention(&k, &v, 4, TokenLayout::single(6), Mask::None)
        },
    },
    Door {
        op: "attention_cached",
        operands: &[MATRIX, MATRIX, MATRIX, MATRIX, MATRIX],
        call: |_, x| {
            let [q, k, v, cached_k, cached_v] = array(x);
            let cached = KeyValues { k: cached_k, v: cached_v };
            q.attention_cached(&k, &v, &cached, 4, TokenLayout::single(6))
        },
    },
    Door {
        op: "adaln",
        operands: &[MATRIX, VECTOR, VECTOR],
        call: |_, x| {
            let [x, shift, scale] = array(x);
            x.adaln(&shift, &scale, 1e-6)
        },
    },
    Door {
        op: "adaln_rows",
        operands: &[MATRIX, VECTOR, VECTOR],
        call: |cuda, x| {
            let ([x, shift, scale], reader) = (array(x), linear(cuda, 8));
            let norm = Norm { shift: &shift, scale: &scale, reader: &reader };
            x.adaln_rows([norm; 2], Adaln { txt_rows: 2, eps: 1e-6 })
        },
    },
    Door {
        op: "gated_add",
        operands: &[MATRIX, VECTOR, MATRIX],
        call: |_, x| {
            let [x, gate, y] = array(x);
            x.gated_add(&gate, &y)
        },
    },
    Door {
        op: "gated_add_adaln",
        operands: &[MATRIX, VECTOR, VECTOR, MATRIX, VECTOR, VECTOR, VECTOR, VECTOR],
        call: |cuda, x| {
            let [x, gate, other_gate, y, shift, scale, other_shift, other_scale] = array(x);
            let reader = linear(cuda, 8);
            let norms = [(&shift, &scale), (&other_shift, &other_scale)];
            let norms = norms.map(|(shift, scale)| Norm { shift, scale, reader: &reader });
            let adaln = Adaln { txt_rows: 2, eps: 1e-6 };
            x.gated_add_adaln([&gate, &other_gate], &y, norms, adaln).map(|(x, _)| x)
        },
    },
    Door {
        op: "swiglu",
        operands: &[MATRIX, MATRIX],
        call: |_, x| {
            let [gate, up] = array(x);
            gate.swiglu(&up)
        },
    },
    Door {
        op: "qk_norm_rope",
        operands: &[MATRIX, MATRIX, HEAD, HEAD, TABLE, TABLE],
        call: |_, x| {
            let [q, k, norm_q, norm_k, cos, sin] = array(x);
            let norm = QkNorm { q: norm_q, k: norm_k, eps: 1e-6 };
            let rope = Rope { cos, sin, pairs: Pairs::Interleaved };
            q.qk_norm_rope(k, [&norm, &norm], &rope, TokenLayout::single(6)).map(|(q, _)| q)
        },
    },
    Door {
        op: "project",
        operands: &[MATRIX, HEAD, HEAD, TABLE, TABLE],
        call: |cuda, x| {
            let [x, norm_q, norm_k, cos, sin] = array(x);
            let norm = QkNorm { q: norm_q, k: norm_k, eps: 1e-6 };
            let rope = Rope { cos, sin, pairs: Pairs::Interleaved };
            let heads = Heads { dim: 8, norm: [&norm, &norm], rope: &rope, layout: TokenLayout::single(6) };
            let weight = linear(cuda, 3 * 8 + 2 * 16);
            Tensor::project(&[(&Input::from(x), &weight)], Some(&heads)).map(|projection| projection.mlp)
        },
    },
    Door { op: "group_norm", operands: &[MATRIX, VECTOR, VECTOR], call: |_, x| x[0].group_norm(&norm(&x[1], &x[2])) },
    Door {
        op: "group_norm_silu",
        operands: &[MATRIX, VECTOR, VECTOR],
        call: |_, x| x[0].group_norm_silu(&norm(&x[1], &x[2])),
    },
    Door {
        op: "conv2d",
        operands: &[MATRIX, VECTOR],
        call: |cuda, x| x[0].conv2d(&kernel(8, 8, 3).conv(cuda), &x[1], CONV).map(pixels),
    },
    Door {
        op: "conv2d_over",
        operands: &[MATRIX, VECTOR],
        call: |cuda, x| {
            let [x, bias] = array(x);
            x.conv2d_over(&kernel(8, 8, 3).conv(cuda), &bias, CONV).map(pixels)
        },
    },
    Door {
        op: "conv2d_add",
        operands: &[MATRIX, VECTOR, MATRIX],
        call: |cuda, x| {
            let [x, bias, residual] = array(x);
            x.conv2d_add(&kernel(8, 8, 3).conv(cuda), &bias, CONV, residual).map(pixels)
        },
    },
    Door {
        op: "conv2d_add_relu",
        operands: &[MATRIX, VECTOR, MATRIX],
        call: |cuda, x| {
            let [x, bias, residual] = array(x);
            x.conv2d_add_relu(&kernel(8, 8, 3).conv(cuda), &bias, CONV, residual).map(pixels)
        },
    },
    Door {
        op: "conv2d_leaky_relu",
        operands: &[MATRIX, VECTOR, VECTOR],
        call: |cuda, x| {
            let [x, bias, slope] = array(x);
            x.conv2d_leaky_relu(&kernel(8, 8, 3).conv(cuda), &bias, CONV, &slope).map(pixels)
        },
    },
    Door {
        op: "upsample_conv2d_leaky_relu",
        operands: &[MATRIX, VECTOR, VECTOR],
        call: |cuda, x| {
            let [x, bias, slope] = array(x);
            x.upsample_conv2d_leaky_relu(&kernel(8, 8, 3).conv(cuda), &bias, [2, 3], &slope).map(pixels)
        },
    },
    Door {
        op: "dense_block",
        operands: &[MATRIX, VECTOR, VECTOR],
        call: |cuda, x| {
            let [x, bias, slope] = array(x);
            let convs = [(kernel(8, 8, 3).conv(cuda), bias)];
            x.dense_block(&DenseBlock { convs: &convs, slope: &slope, height: 2, width: 3 })
        },
    },
    Door {
        op: "dense_block_sum",
        operands: &[MATRIX, VECTOR, VECTOR, VECTOR],
        call: |cuda, x| {
            let [x, bias, slope, scale] = array(x);
            let convs = [(kernel(8, 8, 3).conv(cuda), bias)];
            x.dense_block_sum(&[DenseBlock { convs: &convs, slope: &slope, height: 2, width: 3 }], &scale)
        },
    },
    Door {
        op: "leaky_relu",
        operands: &[MATRIX, VECTOR],
        call: |_, x| {
            let [x, slope] = array(x);
            x.leaky_relu(&slope)
        },
    },
    Door {
        op: "pixel_shuffle",
        operands: &[MATRIX, ([6, 2], Kind::Activation)],
        call: |_, x| {
            let [x, base] = array(x);
            x.pixel_shuffle(Some(&base), 2, 3)
        },
    },
    Door {
        op: "norm_conv2d",
        operands: &[MATRIX, VECTOR, VECTOR, VECTOR],
        call: |cuda, x| x[0].norm_conv2d(&norm(&x[1], &x[2]), &kernel(8, 8, 3).conv(cuda), &x[3], CONV).map(pixels),
    },
    Door {
        op: "norm_conv2d_add",
        operands: &[MATRIX, VECTOR, VECTOR, VECTOR, MATRIX],
        call: |cuda, x| {
            let [x, weight, offset, bias, residual] = array(x);
            let kernel = kernel(8, 8, 3).conv(cuda);
            x.norm_conv2d_add(&norm(&weight, &offset), &kernel, &bias, CONV, residual).map(pixels)
        },
    },
    Door {
        op: "upsample_conv2d",
        operands: &[MATRIX, VECTOR],
        call: |cuda, x| {
            let [x, bias] = array(x);
            x.upsample_conv2d(&kernel(8, 8, 3).conv(cuda), &bias, 2, 3).map(pixels)
        },
    },
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
