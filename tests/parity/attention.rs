//! Attention on the GPU, by whatever kernel it takes, against the CPU in float32.

use flux::backend::Backend;
use flux::ops::{Joint, Mask};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check_against};

#[derive(Debug, Clone, Copy)]
struct Attention {
    joint: Joint,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    mask: Mask,
    /// Columns before k, v and q in their common buffer.
    gap: usize,
}

impl Case for Attention {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (q_cols, k_cols) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let whole = Shape::dense(self.joint.rows(), self.gap + 2 * k_cols + q_cols).tensor(b, 1);
        let [_, k, v, q] = whole.split_cols([self.gap, k_cols, k_cols, q_cols]);
        let out = q.attention(&k, &v, self.head_dim, self.joint, self.mask).unwrap();
        // k and v must come through unharmed.
        vec![out, k, v]
    }
}

/// The weights are rounded to bf16 before they meet the values: as many roundings as there are keys, of both signs, so that they
/// nearly cancel; the result is rounded once more.
const ROUNDINGS: f32 = 3.0;

#[test]
fn attention_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let joints = [
        Joint::single(1),
        Joint::single(65),
        Joint::single(200),
        Joint { batch: 1, txt: 17, img: 100 },
        Joint { batch: 2, txt: 16, img: 64 },
        Joint { batch: 3, txt: 5, img: 33 },
        Joint { batch: 2, txt: 130, img: 1 },
    ];
    for joint in joints {
        let tokens = joint.tokens();
        for mask in [Mask::None, Mask::Causal { keys: tokens }, Mask::Causal { keys: tokens.div_ceil(2) }, Mask::Causal { keys: 1 }] {
            for (heads, kv_heads, head_dim, gap) in [(2, 2, 128, 0), (4, 1, 64, 8), (6, 3, 32, 0), (4, 2, 16, 0), (2, 1, 24, 3), (1, 1, 512, 0)] {
                let case = Attention { joint, heads, kv_heads, head_dim, mask, gap };
                check_against(&cuda, &format!("{case:?}"), &case, ROUNDINGS, 0.0);
            }
        }
    }
}

#[test]
fn attention_matches_at_real_sizes() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    let transformer = Joint { batch: 1, txt: 512, img: 4096 };
    let cases = [
        Attention { joint: transformer, heads: 24, kv_heads: 24, head_dim: 128, mask: Mask::None, gap: 64 },
        Attention { joint: Joint { batch: 2, txt: 512, img: 1000 }, heads: 3, kv_heads: 3, head_dim: 128, mask: Mask::None, gap: 0 },
        Attention { joint: Joint::single(512), heads: 32, kv_heads: 8, head_dim: 128, mask: Mask::Causal { keys: 20 }, gap: 0 },
        Attention { joint: Joint::single(512), heads: 32, kv_heads: 8, head_dim: 128, mask: Mask::Causal { keys: 512 }, gap: 0 },
        Attention { joint: Joint::single(128 * 128), heads: 1, kv_heads: 1, head_dim: 512, mask: Mask::None, gap: 0 },
    ];
    for case in cases {
        check_against(&cuda, &format!("{case:?}"), &case, ROUNDINGS, 0.0);
    }
}
