//! cuda/project_sm90a.cu against its composition.

use flux::backend::{Backend, Memory};
use flux::nn::{Linear, LowRank, Operand};
use flux::ops::{self, Heads, Pairs, Projection, QkNorm, Rope, TokenLayout};
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{
    Case, Shape, Weight, check_against, check_choices, compare, hash_of_bits, values, vector, with_variables,
};

const HEAD_DIM: usize = 128;

/// The projection before a block's attention, before its MLP, or both; text and image share a weight, or have one
/// each.
#[derive(Debug, Clone, Copy)]
struct Project {
    layout: TokenLayout,
    features: usize,
    /// Columns of the buffer before and after x.
    beside: [usize; 2],
    dim: usize,
    mlp: usize,
    streams: bool,
    pairs: Pairs,
    /// Ranks of the factors of each weight; 0 is none.
    ranks: [usize; 2],
}

impl Project {
    fn new(layout: TokenLayout, features: usize, [dim, mlp]: [usize; 2], streams: bool) -> Self {
        Self { layout, features, beside: [0, 0], dim, mlp, streams, pairs: Pairs::Interleaved, ranks: [0, 0] }
    }

    fn weight(&self, seed: u64) -> Weight {
        let rows = 3 * self.dim + 2 * self.mlp;
        // Results of about 1, where silu is most curved; a power of two keeps the values on the bf16 grid.
        let scale = (self.features as f32).sqrt().log2().round().exp2();
        let values: Vec<f32> = values(seed, rows * self.features).iter().map(|value| value / scale).collect();
        Weight::new(&values, &[rows, self.features], Dtype::BF16)
    }

    /// Adds factors of this rank to a layer. Their result is a quarter of that of the weight.
    fn with_factors<B: Backend>(&self, b: &B, linear: Linear<B>, rank: usize) -> Linear<B> {
        if rank == 0 {
            return linear;
        }
        let factor = |seed, [rows, cols]: [usize; 2], scale: f32| {
            let scale = ((cols as f32).sqrt() * scale).log2().round().exp2();
            let values: Vec<f32> = values(seed, rows * cols).iter().map(|value| value / scale).collect();
            Weight::new(&values, &[rows, cols], Dtype::BF16).linear(b)
        };
        let down = factor(11, [rank, self.features], 1.0);
        let up = factor(12, [linear.rows(), rank], 4.0);
        linear.with_low_rank(LowRank { down, up }).unwrap()
    }

    fn with<B: Backend>(
        &self,
        b: &B,
        load: impl Fn(&Weight) -> Linear<B>,
        project: impl Fn(&[(&Operand<B>, &Linear<B>)], Option<&Heads<'_, B>>) -> flux::Result<Projection<B>>,
    ) -> Vec<Tensor<B>> {
        let x = Shape::view(self.layout.rows(), self.features, self.beside[0], self.beside[1]).tensor(b, 1);
        let x = Operand::from(x);
        let layer = |seed, rank| self.with_factors(b, load(&self.weight(seed)), rank);
        let weights = [layer(2, self.ranks[0]), layer(3, self.ranks[1])];
        let norm = |seed| QkNorm { q: vector(b, seed, HEAD_DIM), k: vector(b, seed + 1, HEAD_DIM), eps: 1e-6 };
        let norms = [norm(4), norm(6)];
        let (tokens, half) = (self.layout.tokens(), HEAD_DIM / 2);
        let angles: Vec<f32> = values(9, tokens * half).iter().map(|v| v * 3.0).collect();
        let table =
            |f: fn(f32) -> f32| b.upload_f32(&angles.iter().map(|a| f(*a)).collect::<Vec<_>>(), tokens, half).unwrap();
        let rope = Rope { cos: table(f32::cos), sin: table(f32::sin), pairs: self.pairs };
        let heads = Heads { dim: self.dim, norm: [&norms[0], &norms[1]], rope: &rope, layout: self.layout };
        let heads = (self.dim > 0).then_some(&heads);
        let projection = if self.streams {
            let (txt, img) = x.split_rows(self.layout.txt_rows());
            project(&[(&txt, &weights[0]), (&img, &weights[1])], heads)
        } else {
            project(&[(&x, &weights[0])], heads)
        };
        let Projection { kvq: [k, v, q], mlp } = projection.unwrap();
        [k, v, q, mlp].into_iter().filter(|x| x.cols() > 0).collect()
    }
}

impl Case for Project {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |weight| weight.linear(b), |parts, heads| Tensor::project(parts, heads))
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |weight| weight.linear(b), |parts, heads| ops::project::compose(b, parts, heads))
    }
}

/// The matrix multiplication rounds, then the result does; gated values and rotated pairs combine two results.
const FUSED: f32 = 4.0;
/// The composition rounds in the same places.
const COMPOSED: f32 = 2.0;

#[test]
fn project_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    let small = TokenLayout::new(1, 5, 8);
    let ragged = TokenLayout::new(1, 130, 391);
    let batch = TokenLayout::new(3, 7, 101);
    let references = TokenLayout { references: 60, ..ragged };
    let mut sampled = crate::sampled(7);
    for layout in [
        small,
        ragged,
        batch,
        references,
        // The last tiles of both streams, and of all rows, of 256 and of 224 rows, are partial or just full.
        TokenLayout::new(1, 257, 320),
        TokenLayout::new(1, 384, 256),
        TokenLayout::new(1, 336, 225),
        TokenLayout::new(1, 113, 224),
        TokenLayout::new(1, 100, 29),
        TokenLayout::single(1),
        TokenLayout::single(256),
        TokenLayout::new(2, 0, 33),
    ] {
        for sizes in [[256, 128], [512, 384], [256, 0], [0, 128], [0, 256]] {
            for (features, streams) in [(64, true), (200, false), (8, true), (1032, false)] {
                if !sampled() {
                    continue;
                }
                let case = Project::new(layout, features, sizes, streams);
                check_against(&cuda, &format!("{case:?}"), &case, FUSED, COMPOSED);
            }
        }
    }
}

/// Rows without a query: fewer than a tile, some tiles of 256 and more, all of the first part, and all rows.
#[test]
fn project_of_image_queries_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    let with_references = |references, txt, img| TokenLayout { references, ..TokenLayout::new(1, txt, img) };
    for (layout, streams) in [
        (TokenLayout::new(1, 5, 8), false),
        (TokenLayout::new(1, 255, 60), false),
        (TokenLayout::new(1, 256, 1), true),
        (TokenLayout::new(1, 600, 300), false),
        (TokenLayout::new(2, 256, 130), false),
        (TokenLayout::new(2, 150, 130), true),
        (TokenLayout::new(1, 320, 300), true),
        (with_references(391, 130, 70), false),
        (with_references(300, 0, 0), false),
    ] {
        for sizes in [[256, 128], [512, 384], [256, 0]] {
            let case = Project::new(layout.image_queries(), 72, sizes, streams);
            check_against(&cuda, &format!("{case:?}"), &case, FUSED, COMPOSED);
        }
    }
    // Sizes that no kernel takes.
    let case = Project::new(TokenLayout::new(1, 300, 50).image_queries(), 64, [128, 128], false);
    check_against(&cuda, &format!("{case:?}"), &case, FUSED, COMPOSED);
}

/// Ranks within a multiply, a box and more of them, of both parts and of one. The multiplication with down rounds too,
/// and the composition rounds the sum of both results once more.
#[test]
fn project_with_factors_of_low_rank_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    let layouts = [
        TokenLayout::new(1, 5, 8),
        TokenLayout::new(1, 130, 391),
        TokenLayout::new(1, 0, 33),
        TokenLayout::new(1, 300, 130).image_queries(),
        TokenLayout { references: 60, ..TokenLayout::new(1, 130, 391) },
        TokenLayout::new(1, 1, 8),
    ];
    let of_layouts = if crate::few() { &layouts[..1] } else { &layouts[..] };
    for &layout in of_layouts {
        for ranks in [[1, 4], [32, 32], [0, 96], [72, 0], [5, 200]] {
            for (sizes, streams) in [([256, 128], false), ([512, 0], true), ([0, 384], true)] {
                let case = Project { ranks, ..Project::new(layout, 200, sizes, streams) };
                check_against(&cuda, &format!("{case:?}"), &case, FUSED + 1.0, COMPOSED + 2.0);
            }
        }
    }
    let real = Project { ranks: [32, 96], ..Project::new(TokenLayout::new(1, 300, 500), 3072, [3072, 0], true) };
    if !crate::small() {
        check_against(&cuda, &format!("{real:?}"), &real, FUSED + 1.0, COMPOSED + 2.0);
    }
}

/// Sums of e4m3 keep 14 bits in the tensor cores, which the composition may use or not: over 3072 terms one of
/// millions was 6 roundings off.
const IN_FP8: f32 = 2.0;

/// The composition in e4m3 is compared with the CPU by the tests of its parts.
#[test]
fn project_in_fp8_matches_its_composition() {
    let Some(cuda) = crate::cuda_fp8() else { return };
    let layouts = [TokenLayout::new(1, 5, 8), TokenLayout::new(1, 130, 391), TokenLayout::new(3, 8, 101)];
    let mut cases: Vec<Project> = layouts
        .into_iter()
        .flat_map(|layout| {
            [[256, 128], [512, 0], [0, 384]].map(|sizes| Project::new(layout, 144, sizes, layout.txt.is_multiple_of(4)))
        })
        .collect();
    if !crate::small() {
        cases.push(Project::new(TokenLayout::new(1, 512, 4096), 3072, [3072, 9216], true));
    }
    cases.push(Project::new(TokenLayout::new(1, 300, 130).image_queries(), 144, [256, 384], false));
    let fp8 = |weight: &Weight| weight.fp8(&cuda);
    for case in cases {
        let got = case.with(&cuda, fp8, Tensor::project);
        let composed = case.with(&cuda, fp8, |parts, heads| ops::project::compose(&cuda, parts, heads));
        for (i, (got, composed)) in got.iter().zip(&composed).enumerate() {
            let [got, composed] = [got, composed].map(|x| cuda.download(x).unwrap());
            compare(&format!("{case:?} in fp8 [{i}]"), &got, &composed, FUSED + COMPOSED + IN_FP8);
        }
    }
}

/// Down is in e4m3 too. The composition adds the result of up to a rounded sum.
#[test]
fn project_in_fp8_with_factors_of_low_rank_matches_its_composition() {
    let Some(cuda) = crate::cuda_fp8() else { return };
    let fp8 = |weight: &Weight| weight.fp8(&cuda);
    let check = |case: Project| {
        let got = case.with(&cuda, fp8, Tensor::project);
        let composed = case.with(&cuda, fp8, |parts, heads| ops::project::compose(&cuda, parts, heads));
        let without = Project { ranks: [0, 0], ..case }.with(&cuda, fp8, Tensor::project);
        for (i, ((got, composed), without)) in got.iter().zip(&composed).zip(&without).enumerate() {
            let [got, composed, without] = [got, composed, without].map(|x| cuda.download(x).unwrap());
            compare(&format!("{case:?} in fp8 [{i}]"), &got, &composed, FUSED + COMPOSED + 2.0 + IN_FP8);
            let txt_rows = if case.streams { case.layout.txt_rows() } else { case.layout.rows() };
            let of_rows = [txt_rows, case.layout.rows() - txt_rows];
            let has_factors = case.ranks.iter().zip(of_rows).any(|(rank, rows)| rank * rows > 0);
            assert!(got != without || !has_factors, "{case:?}: the factors are left out");
        }
    };
    let layouts =
        [TokenLayout::new(1, 5, 1), TokenLayout::new(1, 130, 391), TokenLayout::new(3, 8, 101), TokenLayout::single(1)];
    for layout in if crate::few() { &layouts[..1] } else { &layouts[..] } {
        for ranks in [[1, 4], [32, 32], [72, 0], [5, 200]] {
            for (sizes, streams) in [([256, 128], false), ([512, 0], true), ([0, 384], true)] {
                check(Project { ranks, ..Project::new(*layout, 144, sizes, streams) });
            }
        }
    }
    if !crate::small() {
        check(Project { ranks: [32, 96], ..Project::new(TokenLayout::new(1, 512, 1024), 3072, [3072, 9216], true) });
    }
}

/// On the 66 clusters of an H100 or H200 the remaining tall tiles are split in halves. These are full or partial, next
/// to short tiles, next to tiles of keys only, and after tiles of factors.
#[test]
fn tall_tiles_that_are_left_over_are_done_in_halves() {
    let Some(cuda) = crate::cuda() else { return };
    let single = TokenLayout::single;
    for (layout, [dim, mlp], streams, ranks) in [
        (single(256), [0, 68 * 128], false, [0, 0]),
        (single(224), [0, 68 * 128], false, [0, 0]),
        (single(200), [256, 66 * 128], false, [0, 0]),
        (single(140), [256, 66 * 128], false, [0, 40]),
        (TokenLayout::new(1, 300, 256), [256, 31 * 128], true, [0, 0]),
        (TokenLayout::new(1, 224, 300), [256, 31 * 128], true, [0, 0]),
        (TokenLayout::new(1, 300, 140), [256, 31 * 128], true, [32, 8]),
        (TokenLayout::new(1, 256, 200).image_queries(), [256, 70 * 128], false, [0, 0]),
    ] {
        let case = Project { ranks, ..Project::new(layout, 72, [dim, mlp], streams) };
        check_against(&cuda, &format!("{case:?}"), &case, FUSED + 1.0, COMPOSED + 2.0);
    }
}

/// Sizes, alignments and pairs that the kernel does not take.
#[test]
fn project_matches_its_composition_where_no_kernel_takes_it() {
    let Some(cuda) = crate::cuda() else { return };
    let layout = TokenLayout::new(1, 3, 30);
    let taken = Project::new(layout, 64, [256, 128], true);
    let cases = [
        Project { dim: 128, ..taken },
        Project { mlp: 72, ..taken },
        Project { features: 44, ..taken },
        Project { beside: [3, 2], ..taken },
        Project { pairs: Pairs::Halves, ..taken },
    ];
    for case in [taken, Project { beside: [8, 24], ..taken }].into_iter().chain(cases) {
        check_against(&cuda, &format!("{case:?}"), &case, FUSED, COMPOSED);
    }
}

#[test]
fn project_matches_at_real_sizes() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    // On fewer rows, because the CPU has to compute them too.
    let layout = TokenLayout::new(1, 300, 500);
    for (sizes, streams) in [([3072, 9216], false), ([3072, 0], true), ([0, 9216], true)] {
        let case = Project::new(layout, 3072, sizes, streams);
        check_against(&cuda, &format!("{case:?}"), &case, FUSED, COMPOSED);
    }
}

/// Two blocks multiply every tile and write to each other's memory, and all read the results of the factors from the
/// first blocks: a race would change bytes.
#[test]
fn project_gives_the_same_bytes_every_time() {
    let Some(cuda) = crate::cuda() else { return };
    let (img, features) = if crate::small() { (600, 128) } else { (4096, 3072) };
    for ranks in [[0, 0], [32, 32], [0, 200]] {
        let layout = TokenLayout::new(1, 512, img);
        let case = Project { ranks, ..Project::new(layout, features, [512, 1024], true) };
        let bytes = || -> Vec<Vec<f32>> { case.run(&cuda).iter().map(|x| cuda.download(x).unwrap()).collect() };
        let first = bytes();
        for run in 1..5 {
            assert!(bytes() == first, "ranks {ranks:?}, run {run}");
        }
        println!("ranks {ranks:?}, bits {:016x}", hash_of_bits(&first.concat()));
    }
}

#[test]
fn each_kernel_can_be_asked_for() {
    let Some(cuda) = crate::cuda() else { return };
    check_choices(&cuda, "project::project_matches_its_composition", "FLUX_PROJECT");
}

/// The other tests run the kernel with tiles of 224 rows, unless rows fill tiles of 256. Sums do not depend on the
/// tile height.
#[test]
fn tiles_of_each_height_match_and_give_the_same_bytes() {
    let Some(cuda) = crate::cuda() else { return };
    if !crate::is_hopper(&cuda) {
        return;
    }
    let passes = |test: &str, form| {
        let set = [("FLUX_PROJECT", form), ("FLUX_PARITY_SIZES", "small")];
        let (passed, text) = with_variables(&format!("project::{test}"), &set);
        assert!(passed, "{form}: {text}");
        text.lines().filter(|line| line.contains(" bits ")).map(str::to_string).collect::<Vec<_>>()
    };
    for test in [
        "project_matches_its_composition",
        "project_of_image_queries_matches_its_composition",
        "project_with_factors_of_low_rank_matches_its_composition",
        "project_in_fp8_matches_its_composition",
        "project_in_fp8_with_factors_of_low_rank_matches_its_composition",
        "tall_tiles_that_are_left_over_are_done_in_halves",
    ] {
        passes(test, "sm90-256");
    }
    let bits = ["sm90-256", "sm90-224"].map(|form| passes("project_gives_the_same_bytes_every_time", form));
    assert_eq!(bits[0].len(), 3, "the test says nothing of its bits");
    assert_eq!(bits[0], bits[1]);
}
