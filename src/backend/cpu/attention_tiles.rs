//! Attention of bfloat16 activations on a unit that multiplies bfloat16: as [`super::attention`], but with whole rows
//! of scores, so that its two matrix multiplications are large. Queries, keys, values and weights are rounded to
//! bfloat16; sums and softmax are in float32.

use rayon::prelude::*;

use super::tiles::{self, Multiply, Output, Packed, WeightRows};
use super::{Rows, math, pool};
use crate::ops::TokenLayout;

/// Queries with scores held at once: memory grows with the tokens, not with their square.
const QUERIES: usize = 1024;

/// Keys [tokens, head_dim] and transposed values [head_dim, tokens] of one head and sample.
struct Head {
    keys: Vec<u16>,
    values: Vec<u16>,
}

impl Head {
    fn new(k: Rows<'_>, v: Rows<'_>, head_dim: usize, head: usize, sample: usize, layout: TokenLayout) -> Self {
        let tokens = layout.tokens();
        let mut this = Self { keys: vec![0; tokens * head_dim], values: vec![0; tokens * head_dim] };
        let (mut row, mut rounded) = (vec![0.0; head_dim], vec![0; head_dim]);
        for token in 0..tokens {
            let at = layout.row(sample, token);
            row.copy_from_slice(&k.row(at)[head * head_dim..][..head_dim]);
            math::take_bf16(&mut row, &mut this.keys[token * head_dim..][..head_dim]);
            row.copy_from_slice(&v.row(at)[head * head_dim..][..head_dim]);
            math::take_bf16(&mut row, &mut rounded);
            this.values.iter_mut().skip(token).step_by(tokens).zip(&rounded).for_each(|(to, value)| *to = *value);
        }
        this
    }
}

/// See [`crate::tensor::Tensor::attention`], without a mask; the result is dense.
pub(super) fn attention(
    multiply: Multiply,
    q: Rows<'_>,
    k: Rows<'_>,
    v: Rows<'_>,
    head_dim: usize,
    layout: TokenLayout,
) -> Vec<f32> {
    let skipped = layout.rows_without_query();
    let (tokens, heads, kv_heads) = (layout.tokens(), q.cols / head_dim, k.cols / head_dim);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mut out = pool::values(q.rows * q.cols);
    let block = QUERIES.min(tokens);
    let (mut scores, mut weighted) = (pool::values(block * tokens), vec![0.0; block * head_dim]);
    let mut sums = vec![0.0; block];
    for sample in 0..layout.batch {
        let of_sample: Vec<Head> =
            (0..kv_heads).into_par_iter().map(|head| Head::new(k, v, head_dim, head, sample, layout)).collect();
        for head in 0..heads {
            let Head { keys, values } = &of_sample[head / (heads / kv_heads)];
            for first in (layout.first_query()..tokens).step_by(QUERIES) {
                let queries = QUERIES.min(tokens - first);
                let column = head * head_dim;
                let packed = Packed::gather(queries, head_dim, 1, |row, col, cells| {
                    cells.copy_from_slice(
                        &q.row(layout.row(sample, first + row) - skipped)[column + col..][..cells.len()],
                    );
                });
                let keys = WeightRows { bytes: bytemuck::cast_slice(keys), rows: tokens, stride: 2 * head_dim };
                let scores = &mut scores[..queries * tokens];
                multiply(&packed, keys, Output { values: scores, stride: tokens, add: false, integers: None });
                drop(packed);

                scores.par_chunks_exact_mut(tokens).zip(&mut sums).for_each(|(row, sum)| {
                    row.iter_mut().for_each(|score| *score *= scale);
                    *sum = math::exp_sub(row, math::max(row));
                });

                let packed =
                    Packed::new(&[tiles::Rows { values: scores, rows: queries, cols: tokens, stride: tokens }], 1);
                let values = WeightRows { bytes: bytemuck::cast_slice(values), rows: head_dim, stride: 2 * tokens };
                let result = Output { values: &mut weighted, stride: head_dim, add: false, integers: None };
                multiply(&packed, values, result);
                for (row, (values, sum)) in weighted.chunks_exact(head_dim).zip(&sums).enumerate().take(queries) {
                    let to = &mut out[(layout.row(sample, first + row) - skipped) * q.cols + column..][..head_dim];
                    to.iter_mut().zip(values).for_each(|(to, value)| *to = value / sum);
                }
            }
        }
    }
    pool::give(scores);
    out
}

#[cfg(test)]
mod tests {
    use super::super::attention;
    use super::super::tests::values;
    use super::*;
    use crate::ops::Mask;

    #[test]
    fn tiles_give_what_float32_gives_but_for_rounding() {
        let cases = [
            (TokenLayout::single(1), 1, 1, 16),
            (TokenLayout::single(70), 2, 2, 32),
            (TokenLayout::new(2, 5, 33), 4, 2, 24),
            (TokenLayout::new(1, 7, QUERIES), 1, 1, 8),
        ];
        for (layout, heads, kv_heads, head_dim) in cases {
            let (rows, q_cols, kv_cols) = (layout.rows(), heads * head_dim, kv_heads * head_dim);
            let [q, k, v] =
                [(1, q_cols), (2, kv_cols), (3, kv_cols)].map(|(seed, cols)| values(seed, rows * (cols + 3)));
            let of = |data, cols| Rows { data, rows, cols, stride: cols + 3 };
            let [q, k, v] = [of(&q, q_cols), of(&k, kv_cols), of(&v, kv_cols)];
            let expected = attention::attention(q, k, v, head_dim, layout, Mask::None);
            let got = attention(tiles::multiply_emulated, q, k, v, head_dim, layout);
            assert_eq!(got.len(), expected.len());
            let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            let off = norm(&mut got.iter().zip(&expected).map(|(got, expected)| got - expected))
                / norm(&mut expected.iter().copied());
            assert!(off < 6e-3, "{layout:?}, {heads} heads of {head_dim}: off by {off}");
            assert!(off > 0.0, "bfloat16 must round");
        }
    }

    #[test]
    fn queries_of_the_image_alone_give_its_rows() {
        for layout in [TokenLayout::new(2, 70, 33), TokenLayout { references: 75, ..TokenLayout::new(1, 21, 33) }] {
            let (heads, head_dim) = (2, 24);
            let cols = heads * head_dim;
            let [q, k, v] = [1, 2, 3].map(|seed| values(seed, layout.rows() * cols));
            let of = |data, rows| Rows { data, rows, cols, stride: cols };
            let first = layout.context_rows() * cols;
            let images = of(&q[first..], layout.img_rows());
            let [q, k, v] = [&q, &k, &v].map(|data| of(data, layout.rows()));
            let tiles = |q, layout| attention(tiles::multiply_emulated, q, k, v, head_dim, layout);
            let portable = |q, layout| attention::attention(q, k, v, head_dim, layout, Mask::None);
            assert!(tiles(images, layout.image_queries()) == tiles(q, layout)[first..], "{layout:?}");
            assert!(portable(images, layout.image_queries()) == portable(q, layout)[first..], "{layout:?}");
        }
    }

    #[test]
    fn a_value_that_is_not_a_number_reaches_every_query() {
        let layout = TokenLayout::single(40);
        let (q, mut k, v) = (values(1, 40 * 16), values(2, 40 * 16), values(3, 40 * 16));
        k[17 * 16] = f32::NAN;
        let of = |data| Rows { data, rows: 40, cols: 16, stride: 16 };
        let got = attention(tiles::multiply_emulated, of(&q), of(&k), of(&v), 16, layout);
        assert!(got.iter().all(|value| value.is_nan()));
    }
}
