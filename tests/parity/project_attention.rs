//! `project_attention` in e4m3, with scales of q and k from their norms (cuda/project_sm90a.cu and
//! cuda/attention_e4m3_sm90a.cu), against its composition and against attention in float32; and in bf16, with `swiglu`
//! parallel to attention, against its composition.

use std::sync::Arc;

use flux::backend::cuda::{Arithmetic, AttentionPrecision, Cuda, GemmCache, Graph, Precision};
use flux::backend::{Device, Memory, Participants};
use flux::nn::{Linear, Operand};
use flux::ops::{self, Attended, Heads, Pairs, Projection, QkNorm, Rope, TokenLayout};
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::attention_e4m3::{self, Inputs, VARIABLE, error, exact};
use crate::attention_int8::cuda_int8_attention;
use crate::compare::{Shape, Weight, hash_of_bits, values, with_variable, with_variables};
use crate::{cuda, cuda_fp8_attention, is_hopper, small};

const HEAD_DIM: usize = 128;
const FEATURES: usize = 144;

/// A projection of text and image by one weight, or by one each.
#[derive(Debug, Clone, Copy)]
struct Case {
    layout: TokenLayout,
    heads: usize,
    mlp: usize,
    streams: bool,
    /// Gain of the norms of q and k of images; those of texts have half of it.
    gain: f32,
    /// `true` if weights are in e4m3.
    fp8: bool,
}

type Parts<'a> = Vec<(Operand<Cuda>, &'a Linear<Cuda>)>;

impl Case {
    /// Runs `make` on the operands of `project` and `attend`.
    fn with<T>(&self, cuda: &Cuda, make: impl FnOnce(Parts<'_>, &Heads<'_, Cuda>) -> flux::Result<T>) -> T {
        let dim = self.heads * HEAD_DIM;
        let weight = |seed| {
            let rows = 3 * dim + 2 * self.mlp;
            let values: Vec<f32> = values(seed, rows * FEATURES).iter().map(|value| value / 16.0).collect();
            let weight = Weight::new(&values, &[rows, FEATURES], Dtype::BF16);
            if self.fp8 { weight.fp8(cuda) } else { weight.linear(cuda) }
        };
        let weights = [weight(2), weight(3)];
        let norm = |seed, gain: f32| {
            let vector = |seed| {
                let values: Vec<f32> = values(seed, HEAD_DIM).iter().map(|value| value * gain).collect();
                cuda.upload(&values, 1, HEAD_DIM).unwrap()
            };
            QkNorm { q: vector(seed), k: vector(seed + 1), eps: 1e-6 }
        };
        let norms = [norm(4, self.gain / 2.0), norm(6, self.gain)];
        let (tokens, half) = (self.layout.tokens(), HEAD_DIM / 2);
        let angles: Vec<f32> = values(9, tokens * half).iter().map(|v| v * 3.0).collect();
        let table = |f: fn(f32) -> f32| {
            cuda.upload_f32(&angles.iter().map(|a| f(*a)).collect::<Vec<_>>(), tokens, half).unwrap()
        };
        let rope = Rope { cos: table(f32::cos), sin: table(f32::sin), pairs: Pairs::Interleaved };
        let heads = Heads { dim, norm: [&norms[0], &norms[1]], rope: &rope, layout: self.layout };
        let x = Operand::from(Shape::dense(self.layout.rows(), FEATURES).tensor(cuda, 1));
        let parts = if self.streams {
            let (txt, img) = x.split_rows(self.layout.txt_rows());
            vec![(txt, &weights[0]), (img, &weights[1])]
        } else {
            vec![(x, &weights[0])]
        };
        make(parts, &heads).unwrap()
    }

    fn run(&self, cuda: &Cuda) -> [Vec<f32>; 2] {
        self.with(cuda, |parts, heads| downloaded(cuda, Tensor::project_attention(parts, heads)?))
    }

    fn composed(&self, cuda: &Cuda) -> [Vec<f32>; 2] {
        self.with(cuda, |parts, heads| downloaded(cuda, ops::project_attention::compose(cuda, parts, heads)?))
    }

    /// Attention in float32 of the result of `project` alone.
    fn exact(&self, cuda: &Cuda) -> Vec<f32> {
        let [k, v, mut q] = self.with(cuda, |parts, heads| {
            let parts = ops::project::borrowed(&parts);
            let Projection { kvq, .. } = Tensor::project(&parts, Some(heads))?;
            Ok(kvq.map(|x| cuda.download(&x).unwrap()))
        });
        let skipped = self.layout.rows_without_query() * self.heads * HEAD_DIM;
        q.splice(0..0, std::iter::repeat_n(0.0, skipped));
        let inputs = Inputs { q, k, v, cached_k: Vec::new(), cached_v: Vec::new() };
        attention_e4m3::case(self.layout, self.heads, self.heads, 0, 1.0).by_head(&inputs, exact)
    }
}

fn downloaded(cuda: &Cuda, Attended { attn, mlp }: Attended<Cuda>) -> flux::Result<[Vec<f32>; 2]> {
    Ok([cuda.download(&attn)?, if mlp.cols() > 0 { cuda.download(&mlp)? } else { Vec::new() }])
}

/// Tiles of both kernels that are full, that lack rows, and that have one row; text and image with one weight and with
/// two; queries of images only; references; norms whose scores span many powers of two.
#[test]
fn scales_of_norms_lose_no_more_than_those_of_rows_and_tiles() {
    let Some(cuda) = cuda_fp8_attention() else { return };
    if std::env::var(VARIABLE).is_err() {
        const TEST: &str = "project_attention::scales_of_norms_lose_no_more_than_those_of_rows_and_tiles";
        let (passed, text) = with_variable(TEST, VARIABLE, "sm90-always");
        text.lines().filter(|line| line.starts_with("Case")).for_each(|line| println!("{line}"));
        assert!(passed && is_hopper(&cuda), "with {VARIABLE}: {text}");
        return;
    }
    let layout = TokenLayout::new;
    let references = |references, layout| TokenLayout { references, ..layout };
    let mut layouts = vec![
        layout(1, 0, 1),
        layout(1, 5, 8),
        layout(1, 0, 128),
        layout(1, 128, 129),
        layout(1, 130, 391),
        layout(1, 130, 391).image_queries(),
        layout(1, 300, 1).image_queries(),
        layout(1, 512, 600).image_queries(),
        references(60, layout(1, 45, 64)).image_queries(),
        references(391, layout(1, 130, 70)),
    ];
    if !small() {
        layouts.push(layout(1, 512, 1024));
        layouts.push(layout(1, 320, 1936).image_queries());
    }
    for layout in layouts {
        for (heads, mlp, streams, gain) in [(2, 128, false, 1.0), (4, 0, true, 1.0), (2, 384, true, 3.0)] {
            // Rows without a query must belong to one part.
            let streams = streams && layout.rows_without_query() <= layout.txt_rows();
            let case = Case { layout, heads, mlp, streams, gain, fp8: true };
            let (fused, composed, exact) = (case.run(&cuda), case.composed(&cuda), case.exact(&cuda));
            assert!(fused[1] == composed[1], "{case:?}: mlp differs");
            let [of_fused, of_composed] = [&fused, &composed].map(|made| error(&made[0], &exact));
            println!("{case:?}: {of_fused:.4} from float32, by scales of rows and tiles {of_composed:.4}");
            // With few rows, the errors of both vary.
            let most = if layout.query_rows() * heads < 256 { 2.0 } else { 1.1 };
            assert!(of_fused < most * of_composed + 0.002, "{case:?}: {of_fused}, composed {of_composed}");
            assert!(layout.tokens() < 100 || fused[0] != composed[0], "{case:?}: it did not run");
            assert!(case.run(&cuda) == fused, "{case:?}: two runs differ");
        }
    }
    // If rows of a sample are apart, and no weights are in e4m3, it is the composition.
    let batch = Case { layout: layout(2, 30, 200), heads: 2, mlp: 128, streams: false, gain: 1.0, fp8: true };
    assert!(batch.run(&cuda) == batch.composed(&cuda));
    let native = Case { layout: layout(1, 30, 300), fp8: false, ..batch };
    let arithmetic = Arithmetic { products: Precision::Bf16, attention: Some(AttentionPrecision::Fp8) };
    let bf16 = Cuda::with(0, None, arithmetic, &GemmCache::Off).unwrap();
    assert!(native.run(&bf16) == native.composed(&bf16));
    // Scores that would overflow are scaled down, and zeros see all keys alike.
    for gain in [0.0, 300.0] {
        let case = Case { layout: layout(1, 30, 300), gain, ..batch };
        assert!(case.run(&cuda)[0].iter().all(|value| value.is_finite() && value.abs() < 100.0), "{gain}");
    }
}

/// Tiles of 224 rows leave v to a kernel of its own, and those of 256 convert it as they store it: with texts that end
/// with a tile of keys and with others, short and ragged tiles, and queries of images only.
#[test]
fn values_stored_in_e4m3_are_those_converted_later() {
    const TEST: &str = "project_attention::values_stored_in_e4m3_are_those_converted_later";
    const FORM: &str = "FLUX_PROJECT";
    let Some(cuda) = cuda_fp8_attention() else { return };
    if !is_hopper(&cuda) {
        return;
    }
    if std::env::var(FORM).is_err() {
        let bits = ["sm90-256", "sm90-224"].map(|form| {
            let (passed, text) = with_variables(TEST, &[(FORM, form), (VARIABLE, "sm90-always")]);
            assert!(passed, "{form}: {text}");
            text.lines().filter(|line| line.contains(" bits ")).map(str::to_string).collect::<Vec<_>>()
        });
        assert!(!bits[0].is_empty(), "the test says nothing of its bits");
        assert_eq!(bits[0], bits[1]);
        return;
    }
    let layout = TokenLayout::new;
    for layout in [
        layout(1, 0, 1),
        layout(1, 0, 129),
        layout(1, 128, 300),
        layout(1, 130, 391),
        layout(1, 384, 257).image_queries(),
        layout(1, 512, 1000),
        TokenLayout { references: 260, ..layout(1, 128, 513) }.image_queries(),
    ] {
        for streams in [false, true] {
            let streams = streams && layout.rows_without_query() <= layout.txt_rows();
            let case = Case { layout, heads: 4, mlp: 128, streams, gain: 1.0, fp8: true };
            let [attn, mlp] = case.run(&cuda);
            println!("{case:?} bits {:x} {:x}", hash_of_bits(&attn), hash_of_bits(&mlp));
        }
    }
}

/// The composition rounds differently, so different values show that it did not run.
#[test]
fn long_sequences_of_one_sample_take_scales_of_norms() {
    let Some(cuda) = cuda_fp8_attention() else { return };
    for (tokens, is_fused) in [(1023, false), (1024, true)] {
        let case =
            Case { layout: TokenLayout::new(1, 0, tokens), heads: 2, mlp: 128, streams: false, gain: 1.0, fp8: true };
        assert_eq!(case.run(&cuda)[0] != case.composed(&cuda)[0], is_fused, "{tokens} tokens");
    }
}

/// Attention in int8 that norms and rotates q and k during their conversion: ragged tiles, samples apart, queries of
/// images only, and references.
#[test]
fn norms_in_the_conversion_to_int8_are_as_before_it() {
    const VARIABLE: &str = "FLUX_PROJECT";
    let Some(cuda) = cuda_int8_attention() else { return };
    if std::env::var(VARIABLE).is_err() {
        const TEST: &str = "project_attention::norms_in_the_conversion_to_int8_are_as_before_it";
        let (passed, text) = with_variable(TEST, VARIABLE, "base");
        assert!(passed, "with {VARIABLE}: {text}");
        return;
    }
    let layout = TokenLayout::new;
    let references = |references, layout| TokenLayout { references, ..layout };
    for layout in [
        layout(1, 0, 512),
        layout(1, 30, 611),
        layout(3, 17, 530),
        layout(2, 128, 513).image_queries(),
        references(70, layout(1, 45, 520)).image_queries(),
    ] {
        for (heads, gain) in [(2, 1.0), (5, 2.0)] {
            let case = Case { layout, heads, mlp: 128, streams: false, gain, fp8: false };
            let (fused, composed, exact) = (case.run(&cuda), case.composed(&cuda), case.exact(&cuda));
            assert!(fused[1] == composed[1], "{case:?}: mlp differs");
            let [of_fused, of_composed] = [&fused, &composed].map(|made| error(&made[0], &exact));
            assert!(of_fused < 1.05 * of_composed + 0.001, "{case:?}: {of_fused}, composed {of_composed}");
            assert!(fused[0] != composed[0], "{case:?}: it did not run");
            assert!(case.run(&cuda) == fused, "{case:?}: two runs differ");
        }
    }
}

/// The values do not depend on the order: kernel by kernel, and in a graph.
#[test]
fn what_is_beside_attention_is_as_behind_it() {
    const VARIABLE: &str = "FLUX_PROJECT";
    let Some(cuda) = cuda() else { return };
    if std::env::var(VARIABLE).is_err() {
        const TEST: &str = "project_attention::what_is_beside_attention_is_as_behind_it";
        let (passed, text) = with_variable(TEST, VARIABLE, "base");
        assert!(passed, "with {VARIABLE}: {text}");
        return;
    }
    let layout = TokenLayout::new;
    let long = if small() { 300 } else { 4096 };
    for (layout, mlp) in [
        (layout(1, 5, 8), 64),
        (layout(1, 130, 391).image_queries(), 1000),
        (layout(2, 30, 200), 128),
        (layout(1, 512, long), 9216),
        (layout(1, 30, 300), 0),
    ] {
        let case = Case { layout, heads: 2, mlp, streams: false, gain: 1.0, fp8: false };
        let expected = case.composed(&cuda);
        assert!((0..3).all(|_| case.run(&cuda) == expected), "{case:?}");
        let captured: Vec<_> = case.with(&cuda, |parts, heads| {
            let (x, weight) = (parts[0].0.tensor(), parts[0].1);
            let work = |x: &Tensor<Cuda>| {
                // A tensor of its own, whose memory is freed before attention.
                let parts = vec![(Operand::from(Tensor::concat_rows(&[x])?), weight)];
                let Attended { attn, mlp } = Tensor::project_attention(parts, heads)?;
                Tensor::concat_cols(&[&attn, &mlp])
            };
            let (mut graph, reads) = (Graph::default(), Arc::new(()));
            (0..3).map(|_| cuda.run_graph(&mut graph, Participants::One, &reads, [x], |_, [x]| work(x))).collect()
        });
        for both in captured {
            let parts = both.split_cols([expected[0].len() / layout.query_rows(), mlp]);
            let parts = parts.map(|part| if part.cols() > 0 { cuda.download(&part).unwrap() } else { Vec::new() });
            assert!(parts == expected, "{case:?} in a graph");
        }
    }
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
}
