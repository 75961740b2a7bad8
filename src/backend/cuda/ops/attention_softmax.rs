//! Launches cuda/attention_softmax.cu between two matrix multiplications: attention by its definition, some query rows
//! at a time, with scores and weighted values by cuBLASLt.
//!
//! It handles every head size without its own kernel; on GPUs other than Hopper also the VAE's single head of 512.

use std::ops::Range;

use crate::backend::SCORES_BYTES;
use crate::backend::cuda::buffer::{Buffer, BufferKind};
use crate::backend::cuda::gemm::{Matrix, Product};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::{Attention, Mask, TokenLayout};

/// The keys and values of one head of one sample, and the destinations of its scores and weights.
struct Head<'a> {
    q: &'a Tensor<Cuda>,
    out: &'a Tensor<Cuda>,
    /// Column of the head in q and out.
    column: usize,
    keys: Matrix,
    values: Matrix,
    /// float32; `weights` is their softmax in 16 bits.
    scores: Matrix,
    weights: Matrix,
    head_dim: usize,
    tokens: usize,
    mask: Mask,
}

impl Cuda {
    /// Computes `softmax(q k^T / sqrt(head_dim) + mask) v`; overwrites q if it is writable.
    pub(super) fn attention_softmax(&self, attention: Attention<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let Attention { q, k, v, head_dim, layout, mask, .. } = attention;
        let fresh = self.unless_writable(&q)?;
        let out = fresh.as_ref().unwrap_or(&q);
        let tokens = layout.tokens();
        let skipped = layout.rows_without_query();
        let heads_per_kv = q.cols() / k.cols();
        let stride = tokens.next_multiple_of(8);
        // Scores are in float32 and in 16 bits.
        let most_rows = (SCORES_BYTES / (6 * stride)).max(1);
        let most_rows = if most_rows > 128 { most_rows / 128 * 128 } else { most_rows };
        // The queries of the text, and of the image stream; each is one run of rows.
        let first = layout.first_query();
        let runs = [first.min(layout.txt)..layout.txt, first.max(layout.txt)..tokens];
        let chunk_rows = most_rows.min(runs.iter().map(Range::len).max().unwrap_or(0));
        let scores = Buffer::new(self.device(), BufferKind::F32, chunk_rows * stride)?;
        let weights = Buffer::new(self.device(), self.element().kind(), chunk_rows * stride)?;
        if stride > tokens {
            // The softmax loads whole 16 bytes, also beyond a row's last score, which no matrix multiplication writes.
            self.clear(&scores, 0..scores.bytes())?;
        }
        for sample in 0..layout.batch {
            // The sample's keys as one block of rows, its text first.
            let (sample_k, sample_v) = (self.sample_rows(k, layout, sample)?, self.sample_rows(v, layout, sample)?);
            for index in 0..q.cols() / head_dim {
                let kv_column = index / heads_per_kv * head_dim;
                let head = Head {
                    q: &q,
                    out,
                    column: index * head_dim,
                    keys: column_view(&sample_k, kv_column),
                    values: column_view(&sample_v, kv_column),
                    scores: Matrix { address: scores.address(), stride },
                    weights: Matrix { address: weights.address(), stride },
                    head_dim,
                    tokens,
                    mask,
                };
                for run in runs.clone() {
                    for token in run.clone().step_by(chunk_rows.max(1)) {
                        let rows = chunk_rows.min(run.end - token);
                        self.attend(&head, token, layout.row(sample, token) - skipped, rows)?;
                    }
                }
            }
        }
        Ok(fresh.unwrap_or(q))
    }

    /// Computes the results of `rows` queries of a head, from row `row` of q on, which is token `first_token` of its
    /// sample.
    fn attend(&self, head: &Head<'_>, first_token: usize, row: usize, rows: usize) -> Result<()> {
        let part = |x: &Tensor<Cuda>| {
            let address = x.address() + 2 * (row * x.stride() + head.column) as u64;
            Matrix { address, stride: x.stride() }
        };
        let product = Product {
            m: rows,
            n: head.tokens,
            k: head.head_dim,
            x: part(head.q),
            weight: head.keys,
            scales: None,
            weight_is_kn: false,
            bias: None,
            residual: None,
            out: head.scores,
            out_f32: true,
        };
        // SAFETY: `Tensor::attention` checked that q has these rows and the head's columns, and that keys and values
        // have a row for each token. The caller made room for the scores and weights of `rows` queries.
        unsafe { self.gemm()?.run(&product) }?;
        self.softmax(head, rows, first_token)?;
        // A chunk's result overwrites its own queries of this head, which the matrix multiplication above has read.
        let product = Product {
            n: head.head_dim,
            k: head.tokens,
            x: head.weights,
            weight: head.values,
            weight_is_kn: true,
            out: part(head.out),
            out_f32: false,
            ..product
        };
        // SAFETY: as above; out is q, or of its shape.
        unsafe { self.gemm()?.run(&product) }
    }

    /// Returns the rows of one sample, text first; copied only if rows of other samples are between them.
    fn sample_rows(&self, x: &Tensor<Cuda>, layout: TokenLayout, sample: usize) -> Result<Tensor<Cuda>> {
        let img = layout.row(sample, layout.txt)..layout.row(sample, layout.txt) + layout.image_stream();
        if layout.txt == 0 || layout.batch == 1 {
            return Ok(x.row_view(img.start - layout.txt..img.end));
        }
        let txt = layout.row(sample, 0)..layout.row(sample, 0) + layout.txt;
        self.concat_rows_op(&[&x.row_view(txt), &x.row_view(img)])
    }

    fn softmax(&self, head: &Head<'_>, rows: usize, first_token: usize) -> Result<()> {
        let (scores, weights, tokens) = (head.scores, head.weights, head.tokens);
        let (causal, keys) = match head.mask {
            Mask::None => (0, tokens),
            Mask::Causal { keys } => (1, keys),
        };
        let launch = self
            .launch("attention_softmax", "attention_softmax")?
            .address(scores.address)
            .long(scores.stride)
            .address(weights.address)
            .long(weights.stride);
        // Scores are products of two activations.
        let scale = self.element().unit().powi(2) / (head.head_dim as f32).sqrt();
        let launch = launch.int(tokens).float(scale).int(causal).int(first_token).int(keys);
        // SAFETY: argument types and order match cuda/attention_softmax.cu; both workspaces have `rows` rows of their
        // stride, which is `tokens` or more, multiples of 8 and at aligned addresses; `Tensor::attention` checked 1 <=
        // keys <= tokens, so every row sees a key.
        unsafe { launch.run([rows, 1, 1], [softmax_threads(tokens), 1, 1]) }
    }
}

/// Returns the threads of a block of the softmax: enough to hold a row in registers, but at most 1024.
fn softmax_threads(tokens: usize) -> usize {
    const HELD: usize = 4 * 8;
    tokens.div_ceil(HELD).next_multiple_of(32).clamp(128, 1024)
}

fn column_view(x: &Tensor<Cuda>, column: usize) -> Matrix {
    Matrix { address: x.address() + 2 * column as u64, stride: x.stride() }
}
