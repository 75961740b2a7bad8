//! Ops at the shapes of an image, fused ones compared with their composition.

use std::time::Instant;

use flux::Result;
use flux::backend::{Backend, Storage};
use flux::nn::{LowRank, Operand};
use flux::ops::{
    self, Adaln, Attended, Conv, Conv2d, DenseBlock, GatedAddAdaln, GroupNorm, Heads, Mask, Norm, Pairs, Products,
    Projection, QkNorm, QkNormRope, Rope, TokenLayout,
};
use flux::tensor::Tensor;

use super::shapes::{Convolution, Linear};
use super::upscaler::{FEATURES, GROWN};
use super::{Bench, Shapes, Times, Work, tensor, weights};

/// The tokens of a short prompt in its template; the rest is padding.
const PROMPT_TOKENS: usize = 32;
/// The rank of the measured low-rank factors.
const RANK: usize = 32;
/// The shape of an uploaded weight of 680 MB; a large model has many of them.
const UPLOAD: [usize; 2] = [4 * 27648, 3072];

/// Measures the ops for square images with sides of `size` pixels, limited to the selected ones and without repeats.
pub fn measure<B: Backend>(bench: &mut Bench<'_, B>, shapes: &Shapes, size: usize) -> Result<()> {
    let layout = shapes.layout(bench.settings.batch, size);
    elementwise(bench, shapes, layout)?;
    norms(bench, shapes, layout)?;
    let linears =
        [shapes.step_linears(layout), shapes.prepare_linears(bench.settings.steps.unwrap_or(4)), shapes.text_linears()];
    for linear in linears.concat() {
        product(bench, linear, None)?;
    }
    block_products(bench, shapes, layout)?;
    low_rank(bench, shapes, layout)?;
    projections(bench, shapes, layout)?;
    attention(bench, shapes, layout, size)?;
    vae(bench, shapes, size)?;
    upscaler(bench, size)?;
    upload(bench)
}

fn copy<B: Backend>(x: &Tensor<B>) -> Result<Tensor<B>> {
    Tensor::concat_rows(&[x])
}

fn rope<B: Backend>(b: &B, layout: TokenLayout, head_dim: usize) -> Result<Rope<B>> {
    let table = || b.upload_f32(&weights::values(layout.tokens() * head_dim / 2), layout.tokens(), head_dim / 2);
    Ok(Rope { cos: table()?, sin: table()?, pairs: Pairs::Interleaved })
}

fn elementwise<B: Backend>(bench: &mut Bench<'_, B>, shapes: &Shapes, layout: TokenLayout) -> Result<()> {
    let b = bench.backend.clone();
    let (rows, dim, mlp) = (layout.rows(), shapes.dim, shapes.mlp);
    let (add, gated_add) = (format!("ops/add {rows}x{dim}"), format!("ops/gated_add {rows}x{dim}"));
    let work = Work::Values(3 * rows * dim);
    if bench.is_new(&add) {
        let (x, y) = (tensor(&b, rows, dim)?, tensor(&b, rows, dim)?);
        bench.op(&add, work, || copy(&x), |x| x.add(&y))?;
    }
    if bench.is_new(&gated_add) {
        let (x, y, gate) = (tensor(&b, rows, dim)?, tensor(&b, rows, dim)?, tensor(&b, 1, dim)?);
        bench.fused(
            &gated_add,
            work,
            || copy(&x),
            |x| x.gated_add(&gate, &y),
            |x| ops::gated_add::compose(&b, x, &gate, &y),
        )?;
    }
    let swiglu = format!("ops/swiglu {rows}x{mlp}");
    if bench.is_new(&swiglu) {
        let projected = tensor(&b, rows, 3 * dim + 2 * mlp)?;
        let halves = || {
            let [_, gate, up] = copy(&projected)?.split_cols([3 * dim, mlp, mlp]);
            Ok((gate, up))
        };
        let work = Work::Values(3 * rows * mlp);
        bench.fused(
            &swiglu,
            work,
            halves,
            |(gate, up)| Ok((gate.swiglu(&up)?, up)),
            |(gate, up)| Ok((ops::swiglu::compose(&b, gate, &up)?, up)),
        )?;
    }
    Ok(())
}

fn norms<B: Backend>(bench: &mut Bench<'_, B>, shapes: &Shapes, layout: TokenLayout) -> Result<()> {
    const EPS: f32 = 1e-6;
    let b = bench.backend.clone();
    let (rows, dim, head_dim) = (layout.rows(), shapes.dim, shapes.head_dim);
    let adaln = format!("ops/adaln {rows}x{dim}");
    if bench.is_new(&adaln) {
        let (x, row) = (tensor(&b, rows, dim)?, tensor(&b, 1, dim)?);
        let work = Work::Values(2 * rows * dim);
        bench.fused(
            &adaln,
            work,
            || Ok(()),
            |()| x.adaln(&row, &row, EPS),
            |()| ops::adaln::compose(&b, &x, &row, &row, EPS),
        )?;
    }
    let gated_add_adaln = format!("ops/gated_add_adaln {rows}x{dim}");
    if bench.is_new(&gated_add_adaln) {
        let (x, y, row) = (tensor(&b, rows, dim)?, tensor(&b, rows, dim)?, tensor(&b, 1, dim)?);
        let reader = weights::linear(&b, dim, dim)?;
        let (gates, norms) = ([&row; 2], [Norm { shift: &row, scale: &row, reader: &reader }; 2]);
        let how = Adaln { txt_rows: layout.txt_rows(), eps: EPS };
        bench.fused(
            &gated_add_adaln,
            Work::Values(4 * rows * dim),
            || copy(&x),
            |x| x.gated_add_adaln(gates, &y, norms, how),
            |x| ops::gated_add_adaln::compose(&b, GatedAddAdaln { x, gates, y: &y, norms, adaln: how }),
        )?;
    }
    let (txt, hidden) = (shapes.txt, shapes.text.hidden);
    let rms_norm = format!("ops/rms_norm {txt}x{hidden}");
    if bench.is_new(&rms_norm) {
        let (x, row) = (tensor(&b, txt, hidden)?, tensor(&b, 1, hidden)?);
        bench.op(&rms_norm, Work::Values(2 * txt * hidden), || Ok(()), |()| x.rms_norm(&row, EPS))?;
    }
    let heads = dim / head_dim;
    let qk_norm_rope = format!("ops/qk_norm_rope {rows}x({heads}+{heads})x{head_dim}");
    if bench.is_new(&qk_norm_rope) {
        let kvq = tensor(&b, rows, 3 * dim)?;
        let norm =
            || Ok::<_, flux::Error>(QkNorm { q: tensor(&b, 1, head_dim)?, k: tensor(&b, 1, head_dim)?, eps: EPS });
        let (txt, img) = (norm()?, norm()?);
        let rope = rope(&b, layout, head_dim)?;
        let parts = || {
            let [k, _, q] = copy(&kvq)?.split_cols([dim; 3]);
            Ok((q, k))
        };
        bench.fused(
            &qk_norm_rope,
            Work::Values(4 * rows * dim),
            parts,
            |(q, k)| q.qk_norm_rope(k, [&txt, &img], &rope, layout),
            |(q, k)| {
                let operands = QkNormRope { q, k, norm: [&txt, &img], rope: &rope, layout };
                ops::qk_norm_rope::compose(&b, operands)
            },
        )?;
    }
    Ok(())
}

/// Measures a matrix multiplication, with a block's weight if that is `quantized` to a format.
fn product<B: Backend>(bench: &mut Bench<'_, B>, linear: Linear, quantized: Option<&str>) -> Result<()> {
    let Linear { rows, cols, out, .. } = linear;
    let format = quantized.map_or(String::new(), |format| format!(", {format}"));
    let name = format!("ops/linear {rows}x{cols}x{out}{format}");
    if !bench.is_new(&name) {
        return Ok(());
    }
    let b = bench.backend.clone();
    let load = if quantized.is_some() { weights::block_linear::<B> } else { weights::linear::<B> };
    let (x, weight) = (tensor(&b, rows, cols)?, load(&b, out, cols)?);
    bench.op(&name, Work::Flops(linear.flops()), || Ok(()), |()| x.linear(&weight, None))
}

/// Returns the quantization format of block weights, if they are quantized.
fn quantized<B: Backend>(backend: &B) -> Option<&'static str> {
    match backend.costs().products {
        Storage::Native => None,
        Storage::Fp8 => Some("fp8"),
        Storage::Int8 => Some("int8"),
        Storage::W4a8 => Some("w4a8"),
    }
}

/// Measures the matrix multiplications of blocks with quantized weights, including the quantization of activations.
fn block_products<B: Backend>(bench: &mut Bench<'_, B>, shapes: &Shapes, layout: TokenLayout) -> Result<()> {
    let Some(quantized) = quantized(&bench.backend) else { return Ok(()) };
    let mut linears = shapes.step_linears(layout);
    linears.retain(|linear| linear.rows > 0 && linear.cols.min(linear.out) >= shapes.dim);
    linears.into_iter().try_for_each(|linear| product(bench, linear, Some(quantized)))
}

/// Measures the matrix multiplications after attention and MLP with a LoRA that is not merged: of a single block, and
/// of a double block's two streams.
fn low_rank<B: Backend>(bench: &mut Bench<'_, B>, shapes: &Shapes, layout: TokenLayout) -> Result<()> {
    let (rows, dim, mlp) = (layout.rows(), shapes.dim, shapes.mlp);
    for (cols, streams) in [(dim + mlp, false), (dim, true), (mlp, true)] {
        let kind = if streams { ", two streams" } else { "" };
        let quantized = quantized(&bench.backend).map_or(String::new(), |name| format!(", {name}"));
        let name = format!("ops/low_rank {rows}x{cols}x{dim}, rank {RANK}{kind}{quantized}");
        if !bench.is_new(&name) {
            continue;
        }
        let b = bench.backend.clone();
        let layer = || {
            let (down, up) = (weights::linear(&b, RANK, cols)?, weights::linear(&b, dim, RANK)?);
            weights::block_linear(&b, dim, cols)?.with_low_rank(LowRank { down, up })
        };
        let (txt, img) = tensor(&b, rows, cols)?.split_rows(if streams { layout.txt_rows() } else { 0 });
        let layers = [layer()?, layer()?];
        let parts = [(&txt, &layers[0]), (&img, &layers[1])];
        bench.fused(
            &name,
            Work::Flops(2 * (rows * (cols * (dim + RANK) + dim * RANK)) as u64),
            || Ok(()),
            |()| Tensor::low_rank(&parts),
            |()| ops::low_rank::compose(&b, Products::Rows(&parts)),
        )?;
    }
    Ok(())
}

/// Measures the projections of a single block and of a double block's two streams, compared with the matrix
/// multiplication and kernels that they replace.
fn projections<B: Backend>(bench: &mut Bench<'_, B>, shapes: &Shapes, layout: TokenLayout) -> Result<()> {
    let (rows, dim, mlp, head_dim) = (layout.rows(), shapes.dim, shapes.mlp, shapes.head_dim);
    for (kind, dim_out, mlp, streams) in
        [("kvq and mlp", dim, mlp, false), ("kvq, two streams", dim, 0, true), ("mlp, two streams", 0, mlp, true)]
    {
        let name = format!("ops/project {rows}x{dim}, {kind}");
        if !bench.is_new(&name) {
            continue;
        }
        let b = bench.backend.clone();
        let out = 3 * dim_out + 2 * mlp;
        let weight = || weights::block_linear(&b, out, dim);
        let x = Operand::from(tensor(&b, rows, dim)?);
        let (txt, img) = x.split_rows(if streams { layout.txt_rows() } else { 0 });
        let (txt_weight, img_weight) = (weight()?, weight()?);
        let parts = [(&txt, &txt_weight), (&img, &img_weight)];
        let parts = if streams { &parts[..] } else { &parts[1..] };
        let norm = QkNorm { q: tensor(&b, 1, head_dim)?, k: tensor(&b, 1, head_dim)?, eps: 1e-6 };
        let rope = rope(&b, layout, head_dim)?;
        let heads = Heads { dim, norm: [&norm; 2], rope: &rope, layout };
        let heads = (dim_out > 0).then_some(&heads);
        let finish = |projection: Projection<B>| Ok((projection.kvq, projection.mlp));
        bench.fused(
            &name,
            Work::Flops(2 * (rows * dim * out) as u64),
            || Ok(()),
            |()| finish(Tensor::project(parts, heads)?),
            |()| finish(ops::project::compose(&b, parts, heads)?),
        )?;
        let Some(heads) = heads.filter(|_| layout.batch == 1) else { continue };
        let views = || parts.iter().map(|(x, weight)| (x.tensor().row_view(0..x.rows()).into(), *weight)).collect();
        let finish = |attended: Attended<B>| Ok((attended.attn, attended.mlp));
        bench.fused(
            &format!("ops/project_attention {rows}x{dim}, {kind}"),
            Work::Flops((2 * rows * dim * out + 4 * rows * rows * dim) as u64),
            || Ok(()),
            |()| finish(Tensor::project_attention(views(), heads)?),
            |()| finish(ops::project_attention::compose(&b, views(), heads)?),
        )?;
    }
    Ok(())
}

fn attention<B: Backend>(bench: &mut Bench<'_, B>, shapes: &Shapes, layout: TokenLayout, size: usize) -> Result<()> {
    let text = &shapes.text;
    let (side, channels, _) = shapes.up_blocks(size)[0];
    let heads = shapes.dim / shapes.head_dim;
    let batch = if layout.batch == 1 { String::new() } else { format!("{} x ", layout.batch) };
    let kinds = [
        (
            format!("{heads}x{}, {batch}{} tokens", shapes.head_dim, layout.tokens()),
            layout,
            heads,
            heads,
            shapes.head_dim,
            Mask::None,
        ),
        (
            format!("{}/{}x{}, {} tokens, causal", text.heads, text.kv_heads, text.head_dim, shapes.txt),
            TokenLayout::single(shapes.txt),
            text.heads,
            text.kv_heads,
            text.head_dim,
            Mask::Causal { keys: PROMPT_TOKENS.min(shapes.txt) },
        ),
        (format!("1x{channels}, {} pixels", side * side), TokenLayout::single(side * side), 1, 1, channels, Mask::None),
    ];
    for (kind, layout, heads, kv_heads, head_dim, mask) in kinds {
        let name = format!("ops/attention {kind}");
        if !bench.is_new(&name) {
            continue;
        }
        let whole = tensor(&bench.backend, layout.rows(), (heads + 2 * kv_heads) * head_dim)?;
        let parts = || Ok(copy(&whole)?.split_cols([kv_heads * head_dim, kv_heads * head_dim, heads * head_dim]));
        let keys = match mask {
            Mask::None => layout.tokens(),
            Mask::Causal { keys } => keys,
        };
        let flops = 4 * (layout.batch * layout.tokens() * keys * heads * head_dim) as u64;
        bench.op(&name, Work::Flops(flops), parts, |[k, v, q]| {
            Ok((q.attention(&k, &v, head_dim, layout, mask)?, k, v))
        })?;
    }
    Ok(())
}

fn vae<B: Backend>(bench: &mut Bench<'_, B>, shapes: &Shapes, size: usize) -> Result<()> {
    const EPS: f32 = 1e-6;
    let b = bench.backend.clone();
    let groups = shapes.vae_groups;
    let blocks = shapes.up_blocks(size);
    for (i, &(side, cin, cout)) in blocks.iter().enumerate() {
        for channels in [cin, cout] {
            let name = format!("ops/group_norm_silu {side}x{side}x{channels}");
            if bench.is_new(&name) {
                let (x, row) = (tensor(&b, side * side, channels)?, tensor(&b, 1, channels)?);
                let work = Work::Values(3 * side * side * channels);
                let norm = GroupNorm { weight: &row, bias: &row, groups, eps: EPS, statistics: None };
                let compose = |()| ops::group_norm::compose_silu(&b, &x, &norm);
                bench.fused(&name, work, || Ok(()), |()| x.group_norm_silu(&norm), compose)?;
            }
        }
        let name = format!("ops/norm_conv2d {side}x{side} {cin} -> {cout}");
        if bench.is_new(&name) {
            let (x, row, bias) = (tensor(&b, side * side, cin)?, tensor(&b, 1, cin)?, tensor(&b, 1, cout)?);
            let (weight, conv) = (weights::convolution(&b, cin, cout, 3)?, Conv::same(side, side, 3));
            let norm = GroupNorm { weight: &row, bias: &row, groups, eps: EPS, statistics: None };
            let work = Work::Flops((2 * side * side * cin * cout * 9) as u64);
            let normed = || Conv2d { norm: Some(&norm), ..Conv2d::new(x.row_view(0..x.rows()), &weight, &bias, conv) };
            let compose = |()| ops::conv2d::compose(&b, normed());
            bench.fused(&name, work, || Ok(()), |()| x.norm_conv2d(&norm, &weight, &bias, conv), compose)?;
        }
        let name = format!("ops/upsample_conv2d {side}x{side} {cout} -> {cout}");
        if i + 1 < blocks.len() && bench.is_new(&name) {
            let (x, bias, weight) =
                (tensor(&b, side * side, cout)?, tensor(&b, 1, cout)?, weights::convolution(&b, cout, cout, 3)?);
            // Both are counted as a 3 x 3 convolution of the large image.
            let work = Work::Flops((2 * 4 * side * side * cout * cout * 9) as u64);
            let conv = Conv::same(side, side, 3);
            let compose =
                |x| ops::conv2d::compose(&b, Conv2d { upsample: true, ..Conv2d::new(x, &weight, &bias, conv) });
            bench.fused(&name, work, || copy(&x), |x| x.upsample_conv2d(&weight, &bias, side, side), compose)?;
        }
    }
    for convolution in [shapes.convolutions(size), shapes.encoder_convolutions(size)].concat() {
        let Convolution { side, cin, cout, kernel, add, halves } = convolution;
        let (op, more) = (if add { "conv2d_add" } else { "conv2d" }, if halves { ", halved" } else { "" });
        let name = format!("ops/{op} {side}x{side} {cin} -> {cout}, {kernel}x{kernel}{more}");
        if !bench.is_new(&name) {
            continue;
        }
        let (x, bias) = (tensor(&b, side * side, cin)?, tensor(&b, 1, cout)?);
        let (weight, conv) = (weights::convolution(&b, cin, cout, kernel)?, convolution.conv());
        let work = Work::Flops(convolution.flops());
        if add {
            let residual = tensor(&b, side * side, cout)?;
            let compose = |residual| {
                let conv2d = Conv2d::new(x.row_view(0..x.rows()), &weight, &bias, conv);
                ops::conv2d::compose(&b, Conv2d { residual: Some(residual), ..conv2d })
            };
            bench.fused(
                &name,
                work,
                || copy(&residual),
                |residual| x.conv2d_add(&weight, &bias, conv, residual),
                compose,
            )?;
        } else {
            bench.op(&name, work, || Ok(()), |()| x.conv2d(&weight, &bias, conv))?;
        }
    }
    Ok(())
}

/// Measures the ops of upscalers: of ESRGAN with 64 features, and of Compact networks.
fn upscaler<B: Backend>(bench: &mut Bench<'_, B>, size: usize) -> Result<()> {
    const SCALE: usize = 4;
    let (b, pixels) = (bench.backend.clone(), size * size);
    let leaky_relu = format!("ops/leaky_relu {pixels}x{FEATURES}");
    if bench.is_new(&leaky_relu) {
        let (x, slope) = (tensor(&b, pixels, FEATURES)?, tensor(&b, 1, FEATURES)?);
        bench.op(&leaky_relu, Work::Values(2 * pixels * FEATURES), || copy(&x), |x| x.leaky_relu(&slope))?;
    }
    let pixel_shuffle = format!("ops/pixel_shuffle {size}x{size} x{SCALE}");
    if bench.is_new(&pixel_shuffle) {
        let (x, base) = (tensor(&b, pixels, 3 * SCALE * SCALE)?, tensor(&b, pixels, 3)?);
        let work = Work::Values(2 * pixels * 3 * SCALE * SCALE);
        bench.op(&pixel_shuffle, work, || Ok(()), |()| x.pixel_shuffle(Some(&base), SCALE, size))?;
    }
    let dense_block = format!("ops/dense_block {size}x{size} {FEATURES} + {GROWN}");
    if bench.is_new(&dense_block) {
        let x = tensor(&b, pixels, FEATURES)?;
        let layer = |i: usize| {
            let outs = if i == 4 { FEATURES } else { GROWN };
            Ok((weights::convolution(&b, FEATURES + i * GROWN, outs, 3)?, tensor(&b, 1, outs)?))
        };
        let (convs, slope) = ((0..5).map(layer).collect::<Result<Vec<_>>>()?, tensor(&b, 1, GROWN)?);
        let block = DenseBlock { convs: &convs, slope: &slope, height: size, width: size };
        let values: usize = convs.iter().map(|(weight, _)| weight.rows() * weight.channels()).sum();
        bench.fused(
            &dense_block,
            Work::Flops((2 * 9 * pixels * values) as u64),
            || copy(&x),
            |x| x.dense_block(&block),
            |x| ops::dense_block::compose(&b, x, &block),
        )?;
    }
    Ok(())
}

/// Uploads a weight from a mapped file in the page cache, timed by the host's clock. Skipped on backends that read
/// weights from the file itself.
fn upload<B: Backend>(bench: &mut Bench<'_, B>) -> Result<()> {
    let name = format!("ops/upload {}x{}", UPLOAD[0], UPLOAD[1]);
    let b = bench.backend.clone();
    if b.costs().weight_bytes(1, Storage::Native) == 0 || !bench.is_new(&name) {
        return Ok(());
    }
    bench.ceiling()?;
    let seconds = weights::with_view(&UPLOAD, |view| {
        let upload = || {
            let start = Instant::now();
            let weight = b.load_weight(std::slice::from_ref(view), Storage::Native, None)?;
            b.wait(&b.event()?)?;
            drop(weight);
            Ok(start.elapsed().as_secs_f64())
        };
        upload()?; // the first one also prepares the copies
        (0..4).map(|_| upload()).collect::<Result<Vec<f64>>>()
    })?;
    bench.row(&name, Work::Values(UPLOAD[0] * UPLOAD[1]), Times::from_seconds(seconds), None)
}
