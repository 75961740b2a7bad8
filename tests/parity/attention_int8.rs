//! Attention in int8 against its definition (cuda/attention_int8.cu), tile by tile, and against attention in float32.

use flux::backend::cuda::{Arithmetic, AttentionPrecision, Cuda, GemmCache, Precision};
use flux::backend::{Device, Memory};
use flux::files::int8::quantize_row;
use flux::ops::TokenLayout;
use half::f16;

use crate::attention_e4m3::{case, check_cases, check_extremes, error, exact};
use crate::small;

const KEY_TILE: usize = 64;
/// Columns that are rotated together.
const GROUP: usize = 64;

pub fn cuda_int8_attention() -> Option<Cuda> {
    let cuda = crate::cuda()?;
    if !cuda.computes_in_bf16() {
        println!("skipped: {} has no bf16", cuda.describe());
        return None;
    }
    let arithmetic = Arithmetic { products: Precision::Int8, attention: Some(AttentionPrecision::Int8) };
    Some(Cuda::with(0, None, arithmetic, &GemmCache::Off).expect("every GPU with bf16 has attention in int8"))
}

/// Returns rows as integers, with one scale for all of them. Rows past the last are zeros, so they change nothing.
fn quantized(rows: &[&[f32]]) -> (Vec<Vec<i32>>, f32) {
    let mut values = rows.concat();
    let mut integers = vec![0; values.len()];
    let scale = quantize_row(&mut values, GROUP, &mut integers);
    (integers.chunks(rows[0].len()).map(|row| row.iter().map(|&value| value.into()).collect()).collect(), scale)
}

/// The result of the kernels for a head of a sample, except for the sums in f16.
fn definition(queries: &[&[f32]], keys: &[&[f32]], values: &[&[f32]]) -> Vec<Vec<f32>> {
    let tiles: Vec<_> = keys.chunks(KEY_TILE).map(quantized).collect();
    let scale = 1.0 / (keys[0].len() as f32).sqrt();
    let of_query = |query: &&[f32]| {
        let (q8, q_scale) = quantized(&[query]);
        let scores =
            tiles.iter().flat_map(|(k8, k_scale)| k8.iter().map(move |key| (key, k_scale))).map(|(key, k_scale)| {
                let sum: i32 = q8[0].iter().zip(key).map(|(a, b)| a * b).sum();
                sum as f32 * q_scale * k_scale * scale
            });
        let scores: Vec<f32> = scores.collect();
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (mut out, mut sum) = (vec![0f32; values[0].len()], 0f32);
        for (score, value) in scores.iter().zip(values) {
            let weight = (score - top).exp();
            sum += weight;
            let weight = f16::from_f32(weight).to_f32();
            out.iter_mut().zip(*value).for_each(|(out, value)| *out += weight * value);
        }
        out.iter().map(|value| value / sum).collect()
    };
    queries.iter().map(of_query).collect()
}

/// Tiles that are full, that lack keys or queries, and that have one key; samples with text and image apart; shared key
/// heads; queries of images only; references; scores over many powers of two.
#[test]
fn attention_in_int8_is_its_definition() {
    let Some(cuda) = cuda_int8_attention() else { return };
    let layout = TokenLayout::new;
    let references = |references, layout| TokenLayout { references, ..layout };
    let mut cases = vec![
        case(layout(1, 0, 512), 2, 2, 0, 1.0),
        case(layout(1, 0, 513), 2, 1, 0, 1.0),
        case(layout(1, 30, 611), 2, 2, 0, 8.0),
        case(layout(1, 45, 600), 4, 2, 0, 1.0),
        case(layout(3, 17, 530), 2, 2, 0, 1.0),
        case(layout(2, 530, 1), 2, 2, 0, 4.0),
        case(layout(2, 128, 513).image_queries(), 2, 2, 0, 1.0),
        case(references(70, layout(1, 45, 520)).image_queries(), 2, 2, 0, 1.0),
        case(references(128, layout(1, 128, 400)), 2, 2, 0, 1.0),
    ];
    if !small() {
        cases.push(case(layout(1, 30, 1506), 24, 24, 0, 1.0));
        cases.push(case(layout(1, 0, 4500), 3, 3, 0, 2.0));
    }
    check_cases(&cuda, &cases, definition, [0.005, 0.06]);
    check_extremes(&cuda, 600, 0.01);
}

/// Cached keys are concatenated with the others.
#[test]
fn attention_in_int8_reads_cached_keys() {
    let Some(cuda) = cuda_int8_attention() else { return };
    let case = case(TokenLayout::new(1, 45, 600), 2, 2, 70, 1.0);
    let inputs = case.inputs();
    let from_exact = error(&case.run(&cuda, &inputs), &case.by_head(&inputs, exact));
    assert!(from_exact < 0.03, "{from_exact} from float32");
}

#[test]
fn short_attention_stays_in_bf16() {
    let Some(cuda) = cuda_int8_attention() else { return };
    let case = case(TokenLayout::new(1, 0, 511), 1, 1, 0, 1.0);
    let before = cuda.stats().launches;
    case.run(&cuda, &case.inputs());
    assert_eq!(cuda.stats().launches - before, 1);
    assert!(cuda.describe().contains("attention in int8"), "{}", cuda.describe());
}
