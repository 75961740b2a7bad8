//! Attention in e4m3 against its definition (cuda/attention_e4m3_sm90a.cu), tile by tile, and against attention in
//! float32.

use flux::backend::cuda::{Arithmetic, AttentionPrecision, Cuda, GemmCache, Precision};
use flux::backend::{Device, Memory};
use flux::ops::{KeyValues, Mask, TokenLayout};
use rayon::prelude::*;

use crate::compare::{values, with_variable};
use crate::fp8::{MAGNITUDES, e4m3};
use crate::{cuda_fp8_attention, is_hopper, small};

pub const VARIABLE: &str = "FLUX_ATTENTION_E4M3";
const HEAD_DIM: usize = 128;
const TILE: usize = 128;

#[derive(Debug, Clone, Copy)]
pub struct Case {
    layout: TokenLayout,
    heads: usize,
    kv_heads: usize,
    cached: usize,
    /// Standard deviation of q.
    gain: f32,
}

/// Rows of [tokens, heads * HEAD_DIM].
pub struct Inputs {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub cached_k: Vec<f32>,
    pub cached_v: Vec<f32>,
}

impl Case {
    pub fn inputs(&self) -> Inputs {
        let of = |seed, rows: usize, heads: usize| values(seed, rows * heads * HEAD_DIM);
        let rows = self.layout.rows();
        let mut q = of(1, rows, self.heads);
        q.iter_mut().for_each(|value| *value *= self.gain);
        Inputs {
            q,
            k: of(2, rows, self.kv_heads),
            v: of(3, rows, self.kv_heads),
            cached_k: of(4, self.cached, self.kv_heads),
            cached_v: of(5, self.cached, self.kv_heads),
        }
    }

    /// The row of a token of a sample.
    fn row(&self, sample: usize, token: usize) -> usize {
        let (batch, txt, img) = (self.layout.batch, self.layout.txt, self.layout.image_stream());
        if token < txt { sample * txt + token } else { batch * txt + sample * img + token - txt }
    }

    pub fn run(&self, cuda: &Cuda, Inputs { q, k, v, cached_k, cached_v }: &Inputs) -> Vec<f32> {
        let upload = |values: &[f32], heads: usize| {
            cuda.upload(values, values.len() / heads / HEAD_DIM, heads * HEAD_DIM).unwrap()
        };
        let q = upload(q, self.heads).split_rows(self.layout.rows_without_query()).1;
        let (k, v) = (upload(k, self.kv_heads), upload(v, self.kv_heads));
        let out = match self.cached {
            0 => q.attention(&k, &v, HEAD_DIM, self.layout, Mask::None),
            _ => {
                let cached = KeyValues { k: upload(cached_k, self.kv_heads), v: upload(cached_v, self.kv_heads) };
                q.attention_cached(&k, &v, &cached, HEAD_DIM, self.layout)
            }
        };
        cuda.download(&out.unwrap()).unwrap()
    }

    /// Applies `of_head` to the queries, keys and values of each head of each sample, HEAD_DIM values each.
    pub fn by_head(
        &self,
        inputs: &Inputs,
        of_head: impl Fn(&[&[f32]], &[&[f32]], &[&[f32]]) -> Vec<Vec<f32>> + Sync,
    ) -> Vec<f32> {
        let (first, tokens, skipped) =
            (self.layout.first_query(), self.layout.tokens(), self.layout.rows_without_query());
        let heads: Vec<_> = (0..self.layout.batch * self.heads).map(|i| (i / self.heads, i % self.heads)).collect();
        let made: Vec<_> = heads
            .par_iter()
            .map(|&(sample, head)| {
                let kv_head = head / (self.heads / self.kv_heads);
                let at = |values, heads, head, row| cells(values, heads, head, row);
                let own = |values, heads, head| move |token: usize| at(values, heads, head, self.row(sample, token));
                let with_cached = |values, cached| -> Vec<&[f32]> {
                    let cached = (0..self.cached).map(move |row| at(cached, self.kv_heads, kv_head, row));
                    (0..tokens).map(own(values, self.kv_heads, kv_head)).chain(cached).collect()
                };
                let queries: Vec<_> = (first..tokens).map(own(&inputs.q, self.heads, head)).collect();
                let (keys, values) =
                    (with_cached(&inputs.k, &inputs.cached_k), with_cached(&inputs.v, &inputs.cached_v));
                of_head(&queries, &keys, &values)
            })
            .collect();
        let cols = self.heads * HEAD_DIM;
        let mut out = vec![0.0; self.layout.query_rows() * cols];
        for ((sample, head), rows) in heads.iter().zip(made) {
            for (token, row) in (first..tokens).zip(rows) {
                let at = (self.row(*sample, token) - skipped) * cols + head * HEAD_DIM;
                out[at..at + HEAD_DIM].copy_from_slice(&row);
            }
        }
        out
    }
}

fn cells(values: &[f32], heads: usize, head: usize, row: usize) -> &[f32] {
    &values[(row * heads + head) * HEAD_DIM..][..HEAD_DIM]
}

/// Returns these values in e4m3 and their scale, which is the largest magnitude over 448.
fn quantized(rows: &[&[f32]]) -> (Vec<Vec<f32>>, f32) {
    let most = rows.iter().flat_map(|row| row.iter()).fold(0f32, |most, value| most.max(value.abs()));
    let inverse = if most > 0.0 { 448.0 / most } else { 0.0 };
    (rows.iter().map(|row| row.iter().map(|value| e4m3(value * inverse)).collect()).collect(), most / 448.0)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The result of the kernels for a head of a sample, except for the tensor cores' sums.
fn definition(queries: &[&[f32]], keys: &[&[f32]], values: &[&[f32]]) -> Vec<Vec<f32>> {
    let tiles: Vec<_> = keys.chunks(TILE).map(quantized).zip(values.chunks(TILE).map(quantized)).collect();
    let scale = (8.0 * std::f64::consts::LOG2_E / (HEAD_DIM as f64).sqrt()) as f32;
    let of_query = |query: &&[f32]| {
        let (q8, q_scale) = quantized(&[query]);
        let (mut out, mut sum, mut top) = (vec![0f32; HEAD_DIM], 0f32, -16384i32);
        for ((k8, k_scale), (v8, v_scale)) in &tiles {
            let y: Vec<i32> = k8
                .iter()
                .map(|key| (dot(&q8[0], key) * (scale * q_scale * k_scale)).round_ties_even() as i32)
                .collect();
            let now = y.iter().copied().fold(top, i32::max);
            let fade = ((top - now) as f32 / 8.0).exp2();
            top = now;
            out.iter_mut().for_each(|value| *value *= fade);
            sum *= fade;
            for (y, value) in y.iter().zip(v8) {
                let weight = MAGNITUDES[(y - top + 0x78).max(0) as usize] as f32;
                sum += weight;
                out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value * v_scale);
            }
        }
        out.iter().map(|value| value / sum).collect()
    };
    queries.iter().map(of_query).collect()
}

pub fn exact(queries: &[&[f32]], keys: &[&[f32]], values: &[&[f32]]) -> Vec<Vec<f32>> {
    let of_query = |query: &&[f32]| {
        let scores: Vec<f32> = keys.iter().map(|key| dot(query, key) / (HEAD_DIM as f32).sqrt()).collect();
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|score| (score - top).exp()).collect();
        let sum: f32 = weights.iter().sum();
        let mut out = vec![0f32; HEAD_DIM];
        for (weight, value) in weights.iter().zip(values) {
            out.iter_mut().zip(*value).for_each(|(out, value)| *out += weight / sum * value);
        }
        out
    };
    queries.iter().map(of_query).collect()
}

/// The norm of the difference over that of `expected`.
pub fn error(got: &[f32], expected: &[f32]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
    let difference = squares(&mut got.iter().zip(expected).map(|(a, b)| a - b));
    (difference / squares(&mut expected.iter().copied())).sqrt()
}

pub fn case(layout: TokenLayout, heads: usize, kv_heads: usize, cached: usize, gain: f32) -> Case {
    Case { layout, heads, kv_heads, cached, gain }
}

/// Tiles that are full, that lack keys or queries, and that have one; samples with text and image apart; shared key
/// heads; queries of images only; references; cached keys; scores over many powers of two.
#[test]
fn attention_in_e4m3_is_its_definition() {
    let Some(cuda) = cuda_fp8_attention() else { return };
    if std::env::var(VARIABLE).is_err() {
        let (passed, text) =
            with_variable("attention_e4m3::attention_in_e4m3_is_its_definition", VARIABLE, "sm90-always");
        text.lines().filter(|line| line.starts_with("Case")).for_each(|line| println!("{line}"));
        assert!(passed && is_hopper(&cuda), "with {VARIABLE}: {text}");
        return;
    }
    let references = |references, layout| TokenLayout { references, ..layout };
    let layout = TokenLayout::new;
    let mut cases = vec![
        case(layout(1, 0, 1), 1, 1, 0, 1.0),
        case(layout(1, 0, 128), 2, 2, 0, 1.0),
        case(layout(1, 0, 129), 2, 1, 0, 1.0),
        case(layout(1, 3, 252), 2, 2, 0, 8.0),
        case(layout(1, 45, 300), 4, 2, 0, 1.0),
        case(layout(3, 17, 130), 2, 2, 0, 1.0),
        case(layout(2, 130, 1), 2, 2, 0, 4.0),
        case(layout(2, 128, 129).image_queries(), 2, 2, 0, 1.0),
        case(layout(1, 45, 300).image_queries(), 3, 3, 0, 1.0),
        case(references(70, layout(1, 45, 64)).image_queries(), 2, 2, 0, 1.0),
        case(references(128, layout(1, 128, 200)), 2, 2, 0, 1.0),
        case(layout(1, 45, 64), 2, 2, 70, 1.0),
        case(layout(1, 130, 391).image_queries(), 4, 2, 127, 1.0),
    ];
    if !small() {
        cases.push(case(layout(1, 30, 1506), 24, 24, 0, 1.0));
        cases.push(case(layout(1, 0, 4500), 3, 3, 0, 2.0));
    }
    check_cases(&cuda, &cases, definition, [0.01, 0.12]);
    check_extremes(&cuda, 200, 0.05);
}

/// A definition of attention of a head of a sample: from queries, keys and values.
type Definition = fn(&[&[f32]], &[&[f32]], &[&[f32]]) -> Vec<Vec<f32>>;

/// Checks that two kernels compute each case, that two runs are equal, and that the errors from the definition and from
/// float32 are below the bounds.
pub fn check_cases(cuda: &Cuda, cases: &[Case], definition: Definition, bounds: [f64; 2]) {
    for case in cases {
        let inputs = case.inputs();
        let before = cuda.stats().launches;
        let got = case.run(cuda, &inputs);
        assert_eq!(cuda.stats().launches - before, 2, "{case:?}: two kernels");
        let defined = error(&got, &case.by_head(&inputs, definition));
        let from_exact = error(&got, &case.by_head(&inputs, exact));
        println!("{case:?}: {defined:.5} from the definition, {from_exact:.4} from float32");
        assert!(defined < bounds[0], "{case:?}: {defined} from the definition");
        assert!(from_exact < bounds[1], "{case:?}: {from_exact} from float32");
        let again = case.run(cuda, &inputs);
        assert!(got.iter().map(|x| x.to_bits()).eq(again.iter().map(|x| x.to_bits())), "{case:?}: two runs differ");
    }
}

/// Checks that rows of zeros see all keys alike, and that long rows do not overflow.
pub fn check_extremes(cuda: &Cuda, tokens: usize, bound: f64) {
    let [zeros, long] = [0.0, 1e5].map(|gain| case(TokenLayout::new(1, 0, tokens), 1, 1, 0, gain));
    assert!(error(&zeros.run(cuda, &zeros.inputs()), &zeros.by_head(&zeros.inputs(), exact)) < bound);
    assert!(long.run(cuda, &long.inputs()).iter().all(|value| value.is_finite() && value.abs() < 2.0));
}

#[test]
fn attention_is_in_e4m3_where_it_is_long_and_asked_for() {
    let Some(cuda) = cuda_fp8_attention() else { return };
    let launches = |cuda: &Cuda, tokens| {
        let case = case(TokenLayout::new(1, 0, tokens), 1, 1, 0, 1.0);
        let inputs = case.inputs();
        let before = cuda.stats().launches;
        case.run(cuda, &inputs);
        cuda.stats().launches - before
    };
    assert_eq!([1023, 1024].map(|tokens| launches(&cuda, tokens)), [1, 2]);
    assert_eq!(launches(&crate::cuda().unwrap(), 2048), 1);
    let (fp8, bf16) = (AttentionPrecision::Fp8, AttentionPrecision::Bf16);
    for (products, attention) in [(Precision::Bf16, fp8), (Precision::Int8, fp8), (Precision::Fp8, bf16)] {
        let arithmetic = Arithmetic { products, attention: Some(attention) };
        let fp8_attention = attention == fp8;
        let cuda = Cuda::with(0, None, arithmetic, &GemmCache::Off).unwrap();
        assert_eq!(launches(&cuda, 2048), 1 + u64::from(fp8_attention), "{arithmetic:?}");
        assert_eq!(cuda.describe().contains("attention in fp8"), fp8_attention, "{}", cuda.describe());
    }
}
