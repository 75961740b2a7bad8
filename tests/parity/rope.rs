//! cuda/rope.cu against the CPU.

use flux::backend::Backend;
use flux::ops::{Pairs, Rope as Table, TokenLayout};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, check, values};

#[derive(Debug, Clone, Copy)]
struct Rope {
    layout: TokenLayout,
    heads: usize,
    head_dim: usize,
    pairs: Pairs,
    /// Columns before and after those that rotate.
    beside: [usize; 2],
}

impl Case for Rope {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let [before, after] = self.beside;
        let x = Shape::view(self.layout.rows(), self.heads * self.head_dim, before, after).tensor(b, 1);
        let (tokens, half) = (self.layout.tokens(), self.head_dim / 2);
        let angles: Vec<f32> = values(9, tokens * half).iter().map(|v| v * 3.0).collect();
        let table =
            |f: fn(f32) -> f32| b.upload_f32(&angles.iter().map(|a| f(*a)).collect::<Vec<_>>(), tokens, half).unwrap();
        let rope = Table { cos: table(f32::cos), sin: table(f32::sin), pairs: self.pairs };
        vec![x.rope(&rope, self.layout).unwrap()]
    }
}

#[test]
fn rope_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let ragged = TokenLayout::new(2, 5, 8);
    for pairs in [Pairs::Interleaved, Pairs::Halves] {
        for layout in [ragged, TokenLayout::single(1), TokenLayout::single(33), TokenLayout::new(3, 7, 1)] {
            for (heads, head_dim, beside) in [(4, 128, [0, 0]), (5, 64, [8, 16]), (3, 24, [3, 1]), (1, 2, [0, 0])] {
                let case = Rope { layout, heads, head_dim, pairs, beside };
                check(&cuda, &format!("{case:?}"), &case, 0.0);
            }
        }
        if !crate::small() {
            let layout = TokenLayout::new(1, 512, 4096);
            let case = Rope { layout, heads: 24, head_dim: 128, pairs, beside: [0, 0] };
            check(&cuda, &format!("{case:?}"), &case, 0.0);
        }
    }
}
