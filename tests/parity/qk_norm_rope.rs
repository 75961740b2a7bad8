//! cuda/qk_norm_rope.cu against its composition.

use flux::backend::Backend;
use flux::ops::{self, Pairs, QkNorm, Rope, TokenLayout};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, values, vector};

#[derive(Debug, Clone, Copy)]
struct QkNormRope {
    layout: TokenLayout,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    pairs: Pairs,
    /// Columns between q, k and their neighbours.
    gap: usize,
}

impl QkNormRope {
    fn inputs<B: Backend>(&self, b: &B) -> (Tensor<B>, Tensor<B>, [QkNorm<B>; 2], Rope<B>) {
        let (q_cols, k_cols) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let whole = Shape::dense(self.layout.rows(), q_cols + k_cols + 2 * self.gap).tensor(b, 1);
        let [_, k, _, q] = whole.split_cols([self.gap, k_cols, self.gap, q_cols]);
        let norm =
            |seed| QkNorm { q: vector(b, seed, self.head_dim), k: vector(b, seed + 1, self.head_dim), eps: 1e-6 };
        let (tokens, half) = (self.layout.tokens(), self.head_dim / 2);
        let angles: Vec<f32> = values(9, tokens * half).iter().map(|v| v * 3.0).collect();
        let table =
            |f: fn(f32) -> f32| b.upload_f32(&angles.iter().map(|a| f(*a)).collect::<Vec<_>>(), tokens, half).unwrap();
        (q, k, [norm(2), norm(4)], Rope { cos: table(f32::cos), sin: table(f32::sin), pairs: self.pairs })
    }
}

impl Case for QkNormRope {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (q, k, norm, rope) = self.inputs(b);
        let (q, k) = q.qk_norm_rope(k, [&norm[0], &norm[1]], &rope, self.layout).unwrap();
        vec![q, k]
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (q, k, norm, rope) = self.inputs(b);
        let norm = [&norm[0], &norm[1]];
        let operands = ops::QkNormRope { q, k, norm, rope: &rope, layout: self.layout };
        let (q, k) = ops::qk_norm_rope::compose(b, operands).unwrap();
        vec![q, k]
    }
}

/// The composition rounds the normed pair, and each half weighs at most 1 in the rotated pair.
const COMPOSED: f32 = 3.0;

#[test]
fn qk_norm_rope_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    let layout = TokenLayout::new(2, 5, 8);
    for pairs in [Pairs::Interleaved, Pairs::Halves] {
        for head_dim in [128, 64, 32, 16, 24, 6, 2] {
            for (heads, kv_heads, gap) in [(4, 4, 0), (6, 2, 8), (5, 1, 3), (40, 8, 0), (1, 1, 0)] {
                let case = QkNormRope { layout, heads, kv_heads, head_dim, pairs, gap };
                check(&cuda, &format!("{case:?}"), &case, COMPOSED);
            }
        }
    }
}

#[test]
fn qk_norm_rope_takes_images_without_text_and_single_tokens() {
    let Some(cuda) = crate::cuda() else { return };
    for layout in
        [TokenLayout::single(1), TokenLayout::single(33), TokenLayout::new(3, 7, 1), TokenLayout::new(1, 1, 1)]
    {
        let case = QkNormRope { layout, heads: 3, kv_heads: 1, head_dim: 64, pairs: Pairs::Halves, gap: 0 };
        check(&cuda, &format!("{case:?}"), &case, COMPOSED);
    }
}

#[test]
fn qk_norm_rope_matches_at_real_sizes() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    let transformer = TokenLayout::new(1, 512, 4096);
    let case = QkNormRope {
        layout: transformer,
        heads: 24,
        kv_heads: 24,
        head_dim: 128,
        pairs: Pairs::Interleaved,
        gap: 3072,
    };
    check(&cuda, "qk_norm_rope of the transformer", &case, COMPOSED);
    let case = QkNormRope {
        layout: TokenLayout::single(512),
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        pairs: Pairs::Halves,
        gap: 0,
    };
    check(&cuda, "qk_norm_rope of the text encoder", &case, COMPOSED);
}
