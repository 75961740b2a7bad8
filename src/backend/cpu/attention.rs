//! Attention in blocks: memory grows with the tokens, not with their square.
//!
//! A task is a block of queries of all heads. For each head it iterates over blocks of keys with the running maximum
//! and sum of each query, and rescales its partial result when the maximum rises.

use rayon::prelude::*;

use super::{Rows, gemm, math, pool};
use crate::ops::{Mask, TokenLayout};

/// Queries of one task.
const QUERIES: usize = 64;
/// Keys that are scored at once.
const KEYS: usize = 256;

/// Consecutive tokens of one sample in consecutive rows.
#[derive(Clone, Copy)]
struct Span {
    sample: usize,
    token: usize,
    row: usize,
    len: usize,
}

/// Returns spans of at most `len` tokens, which together are all rows in order.
fn spans(layout: TokenLayout, len: usize) -> Vec<Span> {
    let mut spans = Vec::new();
    // No span contains both tokens with and without queries.
    let image = layout.txt + layout.references;
    for (first_token, tokens) in [(0, layout.txt), (layout.txt, layout.references), (image, layout.img)] {
        for sample in 0..layout.batch {
            for start in (0..tokens).step_by(len) {
                let token = first_token + start;
                spans.push(Span { sample, token, row: layout.row(sample, token), len: len.min(tokens - start) });
            }
        }
    }
    spans
}

/// See [`crate::tensor::Tensor::attention`]; the result is dense.
pub(super) fn attention(
    q: Rows<'_>,
    k: Rows<'_>,
    v: Rows<'_>,
    head_dim: usize,
    layout: TokenLayout,
    mask: Mask,
) -> Vec<f32> {
    let mut out = pool::values(q.rows * q.cols);
    let keys = spans(layout, KEYS);
    let mut tasks = Vec::new();
    let mut rest = out.as_mut_slice();
    let skipped = layout.rows_without_query();
    for span in spans(layout, QUERIES).into_iter().filter(|span| span.row >= skipped) {
        let (rows, below) = rest.split_at_mut(span.len * q.cols);
        tasks.push((span, rows));
        rest = below;
    }
    tasks.into_par_iter().for_each(|(queries, out)| {
        let visible: Vec<Span> = keys.iter().filter_map(|&span| visible(queries, span, mask)).collect();
        let mut scratch = Scratch::new(head_dim);
        let heads_per_kv = q.cols / k.cols;
        for head in 0..q.cols / head_dim {
            let kv_head = head / heads_per_kv;
            scratch.head(
                (&q.data[(queries.row - skipped) * q.stride + head * head_dim..], q.stride),
                (&k.data[kv_head * head_dim..], k.stride),
                (&v.data[kv_head * head_dim..], v.stride),
                queries,
                &visible,
                mask,
            );
            for (row, values) in out.chunks_exact_mut(q.cols).zip(scratch.out.chunks_exact(head_dim)) {
                row[head * head_dim..][..head_dim].copy_from_slice(values);
            }
        }
    });
    out
}

/// Returns the part of a span of keys that some of the queries may see.
fn visible(queries: Span, keys: Span, mask: Mask) -> Option<Span> {
    if keys.sample != queries.sample {
        return None;
    }
    let end = match mask {
        Mask::None => usize::MAX,
        Mask::Causal { keys } => keys.min(queries.token + queries.len),
    };
    let len = keys.len.min(end.saturating_sub(keys.token));
    (len > 0).then_some(Span { len, ..keys })
}

struct Scratch {
    head_dim: usize,
    scores: Vec<f32>,
    max: [f32; QUERIES],
    sum: [f32; QUERIES],
    out: Vec<f32>,
}

impl Scratch {
    fn new(head_dim: usize) -> Self {
        Self {
            head_dim,
            scores: vec![0.0; QUERIES * KEYS],
            max: [0.0; QUERIES],
            sum: [0.0; QUERIES],
            out: vec![0.0; QUERIES * head_dim],
        }
    }

    /// Computes one head of one block of queries; the result is in the first rows of `out`.
    fn head(
        &mut self,
        q: (&[f32], usize),
        k: (&[f32], usize),
        v: (&[f32], usize),
        queries: Span,
        keys: &[Span],
        mask: Mask,
    ) {
        let d = self.head_dim;
        let scale = 1.0 / (d as f32).sqrt();
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.out.fill(0.0);
        for span in keys {
            let k_span = (&k.0[span.row * k.1..], k.1);
            let v_span = (&v.0[span.row * v.1..], v.1);
            gemm::small((queries.len, span.len, d), (&mut self.scores, KEYS), false, q, k_span, true, scale);
            for i in 0..queries.len {
                let seen = match mask {
                    Mask::None => span.len,
                    Mask::Causal { .. } => (queries.token + i + 1).saturating_sub(span.token).min(span.len),
                };
                let (scores, hidden) = self.scores[i * KEYS..][..span.len].split_at_mut(seen);
                hidden.fill(0.0);
                if scores.is_empty() {
                    continue;
                }
                let max = math::max(scores).max(self.max[i]);
                let rescale = (self.max[i] - max).exp();
                self.max[i] = max;
                self.sum[i] = self.sum[i] * rescale + math::exp_sub(scores, max);
                if rescale != 1.0 {
                    self.out[i * d..][..d].iter_mut().for_each(|o| *o *= rescale);
                }
            }
            gemm::small((queries.len, d, span.len), (&mut self.out, d), true, (&self.scores, KEYS), v_span, false, 1.0);
        }
        for (out, sum) in self.out.chunks_exact_mut(d).zip(self.sum).take(queries.len) {
            out.iter_mut().for_each(|o| *o /= sum);
        }
    }
}
