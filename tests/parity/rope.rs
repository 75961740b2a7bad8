//! cuda/rope.cu against the CPU.

use flux::backend::Backend;
use flux::ops::{Joint, Pairs, Rope as Table};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, values};

#[derive(Debug, Clone, Copy)]
struct Rope {
    joint: Joint,
    heads: usize,
    head_dim: usize,
    pairs: Pairs,
    /// Columns before and behind those that rotate.
    beside: [usize; 2],
}

impl Case for Rope {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let [before, after] = self.beside;
        let x = Shape::view(self.joint.rows(), self.heads * self.head_dim, before, after).tensor(b, 1);
        let (tokens, half) = (self.joint.tokens(), self.head_dim / 2);
        let angles: Vec<f32> = values(9, tokens * half).iter().map(|v| v * 3.0).collect();
        let table =
            |f: fn(f32) -> f32| b.upload_f32(&angles.iter().map(|a| f(*a)).collect::<Vec<_>>(), tokens, half).unwrap();
        let rope = Table { cos: table(f32::cos), sin: table(f32::sin), pairs: self.pairs };
        vec![x.rope(&rope, self.joint).unwrap()]
    }
}

#[test]
fn rope_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let ragged = Joint { batch: 2, txt: 5, img: 8 };
    for pairs in [Pairs::Interleaved, Pairs::Halves] {
        for joint in [ragged, Joint::single(1), Joint::single(33), Joint { batch: 3, txt: 7, img: 1 }] {
            for (heads, head_dim, beside) in [(4, 128, [0, 0]), (5, 64, [8, 16]), (3, 24, [3, 1]), (1, 2, [0, 0])] {
                let case = Rope { joint, heads, head_dim, pairs, beside };
                check(&cuda, &format!("{case:?}"), &case, 0.0);
            }
        }
        if !crate::small() {
            let joint = Joint { batch: 1, txt: 512, img: 4096 };
            let case = Rope { joint, heads: 24, head_dim: 128, pairs, beside: [0, 0] };
            check(&cuda, &format!("{case:?}"), &case, 0.0);
        }
    }
}
