//! Attention by its definition, some query rows at a time: scores by cuBLASLt, softmax, and the sum of values by
//! cuBLASLt.
//!
//! Serves the VAE's single head of 512, and every head size without a kernel of its own. Launches
//! cuda/attention_softmax.cu.

use crate::backend::cuda::gemm::{Matrix, Product};
use crate::backend::cuda::pool::{Buffer, Kind};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::{Joint, Mask};

/// The most that the scores of some queries, as float32 and as bf16, may take.
const WORKSPACE_BYTES: usize = 256 << 20;

impl Cuda {
    /// `softmax(q k^T / sqrt(head_dim) + mask) v` for the last rows, as many as q has; over q where that is writable.
    pub(crate) fn attention_softmax(
        &self,
        q: Tensor<Cuda>,
        k: &Tensor<Cuda>,
        v: &Tensor<Cuda>,
        head_dim: usize,
        joint: Joint,
        mask: Mask,
    ) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&q)?;
        let out = fresh.as_ref().unwrap_or(&q);
        let tokens = joint.tokens();
        let skipped = joint.rows() - q.rows();
        let heads_per_kv = q.cols() / k.cols();
        let stride = tokens.next_multiple_of(8);
        let most_rows = (WORKSPACE_BYTES / (6 * stride)).max(1);
        let most_rows = if most_rows > 128 { most_rows / 128 * 128 } else { most_rows };
        // Of text all queries or none.
        let txt = joint.txt - joint.first_query(q.rows());
        let chunk_rows = most_rows.min(txt.max(joint.img));
        let scores = Buffer::new(self.device(), Kind::F32, chunk_rows * stride)?;
        let weights = Buffer::new(self.device(), Kind::Bf16, chunk_rows * stride)?;

        for sample in 0..joint.batch {
            // The sample's keys as one block of rows, its text first.
            let (sample_k, sample_v) = (self.sample_rows(k, joint, sample)?, self.sample_rows(v, joint, sample)?);
            for head in 0..q.cols() / head_dim {
                let column = head * head_dim;
                let kv_column = head / heads_per_kv * head_dim;
                for (first_token, count) in [(0, txt), (joint.txt, joint.img)] {
                    let mut done = 0;
                    while done < count {
                        let rows = chunk_rows.min(count - done);
                        let row = joint.row(sample, first_token + done) - skipped;
                        let part = |x: &Tensor<Cuda>| Matrix {
                            address: x.address() + 2 * (row * x.stride() + column) as u64,
                            stride: x.stride(),
                        };
                        let scores = Matrix { address: scores.address(), stride };
                        let weights = Matrix { address: weights.address(), stride };
                        let product = Product {
                            m: rows,
                            n: tokens,
                            k: head_dim,
                            x: part(&q),
                            weight: column_view(&sample_k, kv_column),
                            scales: None,
                            weight_is_kn: false,
                            bias: None,
                            residual: None,
                            out: scores,
                            out_f32: true,
                        };
                        self.gemm()?.run(&product)?;
                        self.softmax(scores, weights, rows, tokens, head_dim, first_token + done, mask)?;
                        // A chunk's result goes over its own queries, of this head, which were read just before.
                        self.gemm()?.run(&Product {
                            n: head_dim,
                            k: tokens,
                            x: weights,
                            weight: column_view(&sample_v, kv_column),
                            weight_is_kn: true,
                            out: part(out),
                            out_f32: false,
                            ..product
                        })?;
                        done += rows;
                    }
                }
            }
        }
        Ok(fresh.unwrap_or(q))
    }

    /// The rows of one sample, text first; a copy only where others lie between them.
    fn sample_rows(&self, x: &Tensor<Cuda>, joint: Joint, sample: usize) -> Result<Tensor<Cuda>> {
        let img = joint.row(sample, joint.txt)..joint.row(sample, joint.txt) + joint.img;
        if joint.txt == 0 || joint.batch == 1 {
            return Ok(x.row_view(img.start - joint.txt..img.end));
        }
        let txt = joint.row(sample, 0)..joint.row(sample, 0) + joint.txt;
        self.concat_rows_op(&[&x.row_view(txt), &x.row_view(img)])
    }

    #[allow(clippy::too_many_arguments)]
    fn softmax(
        &self,
        scores: Matrix,
        weights: Matrix,
        rows: usize,
        tokens: usize,
        head_dim: usize,
        first_token: usize,
        mask: Mask,
    ) -> Result<()> {
        let (causal, keys) = match mask {
            Mask::None => (0, tokens),
            Mask::Causal { keys } => (1, keys),
        };
        let launch = self
            .launch("attention_softmax", "attention_softmax_f32_bf16")?
            .address(scores.address)
            .long(scores.stride)
            .address(weights.address)
            .long(weights.stride);
        let launch = launch.int(tokens).float(1.0 / (head_dim as f32).sqrt()).int(causal).int(first_token).int(keys);
        // SAFETY: argument types and order match cuda/attention_softmax.cu; both workspaces have `rows` rows of their
        // stride, which is `tokens` or more, multiples of 8 and at aligned addresses; `Tensor::attention` checked 1 <=
        // keys <= tokens, so every row sees a key.
        unsafe { launch.run([rows, 1, 1], [softmax_threads(tokens), 1, 1]) }
    }
}

/// Threads of a block of the softmax: as many as hold a row in their registers, as far as there are so many.
fn softmax_threads(tokens: usize) -> usize {
    const HELD: usize = 4 * 8;
    tokens.div_ceil(HELD).next_multiple_of(32).clamp(128, 1024)
}

fn column_view(x: &Tensor<Cuda>, column: usize) -> Matrix {
    Matrix { address: x.address() + 2 * column as u64, stride: x.stride() }
}
