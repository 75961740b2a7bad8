//! The ops, with their compositions where they are fused.

use flux::backend::Backend;
use flux::backend::cuda::Cuda;
use flux::ops::{self, Conv, Joint, Mask, Pairs, QkNorm, Rope};
use flux::tensor::Tensor;

use crate::transfer::weight_file;
use crate::{Bench, Work};

const TOKENS: usize = 4608;
const DIM: usize = 3072;
const MLP: usize = 9216;

/// Values without a pattern that a cache or a power limit could like.
pub fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn tensor(cuda: &Cuda, rows: usize, cols: usize) -> Tensor<Cuda> {
    cuda.upload(&values(rows * cols), rows, cols).expect("there is room")
}

fn copy(x: &Tensor<Cuda>) -> Tensor<Cuda> {
    Tensor::concat_rows(&[x]).expect("there is room")
}

pub fn elementwise(bench: &mut Bench) {
    let cuda = bench.cuda.clone();
    let (x, y, row) = (tensor(&cuda, TOKENS, DIM), tensor(&cuda, TOKENS, DIM), tensor(&cuda, 1, DIM));
    let bytes = |tensors: usize| Work::Bytes(tensors * TOKENS * DIM * 2);
    bench.time("add 4608x3072", bytes(3), |_| copy(&x), |_, x| x.add(&y).expect("runs"));
    bench.time("gated_add 4608x3072", bytes(3), |_| copy(&x), |_, x| x.gated_add(&row, &y).expect("runs"));
    bench.time("gated_add composed", bytes(3), |_| copy(&x), |b, x| ops::gated_add::compose(b, x, &row, &y).expect("runs"));
    let projected = tensor(&cuda, TOKENS, 3 * DIM + 2 * MLP);
    let halves = |x: &Tensor<Cuda>| {
        let [_, gate, up] = copy(x).split_cols([3 * DIM, MLP, MLP]);
        (gate, up)
    };
    let work = Work::Bytes(3 * TOKENS * MLP * 2);
    bench.time("swiglu 4608x9216 of 27648", work, |_| halves(&projected), |_, (gate, up)| (gate.swiglu(&up).expect("runs"), up));
    bench.time("swiglu composed", work, |_| halves(&projected), |b, (gate, up)| (ops::swiglu::compose(b, gate, &up).expect("runs"), up));
}

pub fn norms(bench: &mut Bench) {
    let cuda = bench.cuda.clone();
    let (x, row) = (tensor(&cuda, TOKENS, DIM), tensor(&cuda, 1, DIM));
    let work = Work::Bytes(2 * TOKENS * DIM * 2);
    bench.time("adaln 4608x3072", work, |_| (), |_, ()| x.adaln(&row, &row, 1e-6).expect("runs"));
    bench.time("adaln composed", work, |_| (), |b, ()| ops::adaln::compose(b, &x, &row, &row, 1e-6).expect("runs"));
    let (x, row) = (tensor(&cuda, 512, 2560), tensor(&cuda, 1, 2560));
    bench.time("rms_norm 512x2560", Work::Bytes(2 * 512 * 2560 * 2), |_| (), |_, ()| x.rms_norm(&row, 1e-6).expect("runs"));

    let joint = Joint { batch: 1, txt: 512, img: 4096 };
    let kvq = tensor(&cuda, TOKENS, 3 * DIM);
    let weight = || QkNorm { q: tensor(&cuda, 1, 128), k: tensor(&cuda, 1, 128), eps: 1e-6 };
    let norm = [weight(), weight()];
    let table = || cuda.upload_f32(&values(TOKENS * 64), TOKENS, 64).expect("there is room");
    let rope = Rope { cos: table(), sin: table(), pairs: Pairs::Interleaved };
    let parts = |_: &Cuda| {
        let [k, _, q] = copy(&kvq).split_cols([DIM; 3]);
        (q, k)
    };
    let norms = [&norm[0], &norm[1]];
    let work = Work::Bytes(4 * TOKENS * DIM * 2);
    bench.time("qk_norm_rope 4608x(24+24)x128", work, parts, |_, (q, k)| q.qk_norm_rope(k, norms, &rope, joint).expect("runs"));
    bench.time("qk_norm_rope composed", work, parts, |b, (q, k)| ops::qk_norm_rope::compose(b, q, k, norms, &rope, joint).expect("runs"));
}

pub fn linear(bench: &mut Bench) {
    let shapes = [
        (4608, 3072, 27648),
        (4608, 12288, 3072),
        (4608, 3072, 9216),
        (4096, 3072, 18432),
        (4096, 9216, 3072),
        (4096, 3072, 9216),
        (4096, 3072, 3072),
        (512, 3072, 18432),
        (512, 9216, 3072),
        (512, 2560, 9728),
        (512, 2560, 6144),
        (512, 9728, 2560),
        (512, 4096, 2560),
        (512, 7680, 3072),
        (4, 3072, 18432),
    ];
    for (rows, cols, out) in shapes {
        let name = format!("linear {rows}x{cols}x{out}");
        if !bench.wants(&name) {
            continue;
        }
        let cuda = bench.cuda.clone();
        let (x, weight) = (tensor(&cuda, rows, cols), weight_file(out, cols).matrix(&cuda));
        bench.time(&name, Work::Flops(2 * rows * cols * out), |_| (), |_, ()| x.linear(&weight, None).expect("runs"));
    }
}

/// Products in fp8 alone, and with the kernel that makes what they read.
pub fn fp8(bench: &mut Bench) {
    if !bench.fp8 {
        println!("skipped: fp8 does not run on this GPU");
        return;
    }
    let cuda = bench.cuda.clone();
    for (rows, cols, out) in
        [(4608, 3072, 27648), (4608, 12288, 3072), (4096, 3072, 18432), (4096, 9216, 3072), (4096, 3072, 9216), (4096, 3072, 3072)]
    {
        let name = format!("linear fp8 {rows}x{cols}x{out}");
        if bench.wants(&name) {
            let (x, weight) = (cuda.quantise(&tensor(&cuda, rows, cols)).expect("there is room"), weight_file(out, cols).narrow(&cuda));
            bench.time(&name, Work::Fp8Flops(2 * rows * cols * out), |_| (), |_, ()| x.linear(&weight, None).expect("runs"));
        }
    }
    let x = tensor(&cuda, TOKENS, DIM);
    bench.time("quantise 4608x3072", Work::Bytes(3 * TOKENS * DIM), |_| (), |b, ()| b.quantise(&x).expect("runs"));
    // A weight of 16 rows costs next to nothing: what is left is the kernel before the product.
    let name = "adaln_linear fp8 4608x3072x16";
    if bench.wants(name) {
        let (row, weight) = (tensor(&cuda, 1, DIM), weight_file(16, DIM).narrow(&cuda));
        let work = Work::Bytes(3 * TOKENS * DIM);
        bench.time(name, work, |_| (), |_, ()| x.adaln_linear(&row, &row, 1e-6, &weight).expect("runs"));
    }
    let name = "swiglu_linear fp8 4608x(3072+9216)x16";
    if bench.wants(name) {
        let (projected, weight) = (tensor(&cuda, TOKENS, 3 * DIM + 2 * MLP), weight_file(16, DIM + MLP).narrow(&cuda));
        let parts = |_: &Cuda| copy(&projected).split_cols([2 * DIM, DIM, MLP, MLP]);
        let run = |_: &Cuda, [_, attn, gate, up]: [Tensor<Cuda>; 4]| (gate.swiglu_linear(&up, Some(&attn), &weight).expect("runs"), up);
        bench.time(name, Work::Bytes(TOKENS * (3 * DIM + 5 * MLP)), parts, run);
    }
}

pub fn attention(bench: &mut Bench) {
    let shapes = [
        ("attention 24x128, 4608 tokens", Joint { batch: 1, txt: 512, img: 4096 }, 24, 24, 128, Mask::None),
        ("attention 24x128, 1536 tokens", Joint { batch: 1, txt: 512, img: 1024 }, 24, 24, 128, Mask::None),
        ("attention 32/8x128, 512 tokens, causal", Joint::single(512), 32, 8, 128, Mask::Causal { keys: 32 }),
        ("attention 1x512, 16384 pixels", Joint::single(16384), 1, 1, 512, Mask::None),
    ];
    for (name, joint, heads, kv_heads, head_dim, mask) in shapes {
        if !bench.wants(name) {
            continue;
        }
        let cuda = bench.cuda.clone();
        let whole = tensor(&cuda, joint.rows(), (heads + 2 * kv_heads) * head_dim);
        let parts = |_: &Cuda| copy(&whole).split_cols([kv_heads * head_dim, kv_heads * head_dim, heads * head_dim]);
        let work = Work::Flops(4 * joint.batch * joint.tokens().pow(2) * heads * head_dim);
        bench.time(name, work, parts, |_, [k, v, q]| (q.attention(&k, &v, head_dim, joint, mask).expect("runs"), k, v));
    }
}

pub fn vae(bench: &mut Bench) {
    let cuda = bench.cuda.clone();
    for (side, channels) in [(1024, 128), (1024, 256), (512, 256), (256, 512)] {
        let name = format!("group_norm_silu {side}x{side}x{channels}");
        if bench.wants(&name) {
            let (x, row) = (tensor(&cuda, side * side, channels), tensor(&cuda, 1, channels));
            let work = Work::Bytes(3 * side * side * channels * 2);
            bench.time(&name, work, |_| (), |_, ()| x.group_norm_silu(&row, &row, 32, 1e-6).expect("runs"));
            let composed = format!("{name} composed");
            bench.time(&composed, work, |_| (), |b, ()| ops::group_norm::compose_silu(b, &x, &row, &row, 32, 1e-6).expect("runs"));
        }
    }
    if bench.wants("upsample 512x512x256") {
        let x = tensor(&cuda, 512 * 512, 256);
        bench.time("upsample 512x512x256", Work::Bytes(5 * x.rows() * x.cols() * 2), |_| (), |_, ()| x.upsample(512, 512).expect("runs"));
    }
    for (side, cin, cout, kernel) in [
        (128, 512, 512, 3),
        (256, 512, 512, 3),
        (512, 512, 512, 3),
        (512, 512, 256, 3),
        (512, 256, 256, 3),
        (1024, 256, 256, 3),
        (1024, 256, 128, 3),
        (1024, 256, 128, 1),
        (1024, 128, 128, 3),
        (1024, 128, 3, 3),
    ] {
        let name = format!("conv2d {side}x{side} {cin} -> {cout}, {kernel}x{kernel}");
        if !bench.wants(&name) {
            continue;
        }
        let (x, bias) = (tensor(&cuda, side * side, cin), tensor(&cuda, 1, cout));
        let weight = weight_file(cout, cin * kernel * kernel).conv(&cuda, kernel);
        let work = Work::Flops(2 * side * side * cin * cout * kernel * kernel);
        bench.time(&name, work, |_| (), |_, ()| x.conv2d(&weight, &bias, Conv::same(side, side, kernel)).expect("runs"));
    }
}
