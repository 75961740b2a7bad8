//! `attention` on the GPU against the CPU: all head sizes, token layouts, masks, views, and all kernels.

use std::sync::Arc;

use flux::backend::cpu::{Cpu, Precision};
use flux::backend::cuda::Cuda;
use flux::backend::{Backend, Device, Memory};
use flux::ops::{KeyValues, Mask, TokenLayout};
use flux::tensor::Tensor;

use crate::compare::{check_choices, hash_of_bits, rounding, values, with_variable};
use crate::{cuda, few, is_hopper, sampled, small};

/// The operands of attention.
#[derive(Debug, Clone, Copy)]
struct Case {
    head_dim: usize,
    heads: usize,
    kv_heads: usize,
    layout: TokenLayout,
    mask: Mask,
    /// Standard deviation of q, a power of two; a large one makes softmax choose.
    gain: f32,
}

/// Head sizes that have kernels everywhere.
const KERNELS: [usize; 4] = [128, 64, 32, 16];

/// The maximum input; see [`values`].
const MAX_V: f32 = 1.74;

/// The placement of q, k and v.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Three tensors, each dense.
    Dense,
    /// Columns k, v, q of one projection with more columns after them; the result overwrites q.
    InPlace,
    /// As `InPlace`, but q must not be written.
    ReadOnly,
    /// As `InPlace`, but no row starts at a multiple of 16 bytes.
    Unaligned,
}

/// Concatenates the columns of matrices of different widths.
fn side_by_side(parts: &[(&[f32], usize)], rows: usize) -> Vec<f32> {
    (0..rows)
        .flat_map(|row| parts.iter().flat_map(move |(values, cols)| &values[row * cols..][..*cols]))
        .copied()
        .collect()
}

fn columns(values: &[f32], cols: usize, range: std::ops::Range<usize>) -> Vec<f32> {
    values.chunks_exact(cols).flat_map(|row| &row[range.clone()]).copied().collect()
}

struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Case {
    fn cols(&self) -> [usize; 2] {
        [self.heads * self.head_dim, self.kv_heads * self.head_dim]
    }

    /// Returns `true` if Hopper's kernel for heads of 512 takes it: no mask, and a sample's rows and its queries
    /// contiguous.
    fn suits_512(&self, b: &Cuda) -> bool {
        let in_runs = self.layout.batch == 1 || self.layout.txt == 0;
        let suits = in_runs && self.mask == Mask::None;
        let wanted = std::env::var_os("FLUX_ATTENTION").is_none_or(|kernel| kernel != "base");
        self.head_dim == 512 && suits && wanted && is_hopper(b)
    }

    /// Restricts queries to the images.
    fn image_queries(self) -> Self {
        Self { layout: self.layout.image_queries(), ..self }
    }

    /// Adds reference images of `references` tokens.
    fn with_references(self, references: usize) -> Self {
        Self { layout: TokenLayout { references, ..self.layout }, ..self }
    }

    fn inputs(&self) -> Inputs {
        let (rows, [cols, kv_cols]) = (self.layout.rows(), self.cols());
        let q = values(1, rows * cols).iter().map(|value| self.gain * value).collect();
        Inputs { q, k: values(2, rows * kv_cols), v: values(3, rows * kv_cols) }
    }

    fn run<B: Backend>(&self, b: &B, inputs: &Inputs) -> Vec<f32> {
        let (rows, [cols, kv_cols]) = (self.layout.rows(), self.cols());
        let [k, v] = [&inputs.k, &inputs.v].map(|values| b.upload(values, rows, kv_cols).unwrap());
        let first = self.layout.rows_without_query();
        let q = b.upload(&inputs.q[first * cols..], rows - first, cols).unwrap();
        b.download(&q.attention(&k, &v, self.head_dim, self.layout, self.mask).unwrap()).unwrap()
    }

    /// The result over `cached` more keys.
    fn run_cached<B: Backend>(&self, b: &B, inputs: &Inputs, cached: usize) -> Vec<f32> {
        let (rows, [cols, kv_cols]) = (self.layout.rows(), self.cols());
        let [k, v] = [&inputs.k, &inputs.v].map(|values| b.upload(values, rows, kv_cols).unwrap());
        let more = |seed| b.upload(&values(seed, cached * kv_cols), cached, kv_cols).unwrap();
        let first = self.layout.rows_without_query();
        let q = b.upload(&inputs.q[first * cols..], rows - first, cols).unwrap();
        let cached = KeyValues { k: more(5), v: more(6) };
        b.download(&q.attention_cached(&k, &v, &cached, self.head_dim, self.layout).unwrap()).unwrap()
    }

    /// The result on the GPU, after a check that no other cell was touched.
    fn run_on_gpu(&self, b: &Cuda, inputs: &Inputs, layout: Layout) -> Vec<f32> {
        if layout == Layout::Dense {
            return self.run(b, inputs);
        }
        let (rows, [cols, kv_cols]) = (self.layout.rows(), self.cols());
        let rest = if layout == Layout::Unaligned { 3 } else { 40 };
        let behind = values(4, rows * rest);
        let whole =
            side_by_side(&[(&inputs.k, kv_cols), (&inputs.v, kv_cols), (&inputs.q, cols), (&behind, rest)], rows);
        let [k, v, q, behind_view] =
            b.upload(&whole, rows, 2 * kv_cols + cols + rest).unwrap().split_cols([kv_cols, kv_cols, cols, rest]);
        let (unasked, q) = q.split_rows(self.layout.rows_without_query());
        let read_only = (layout == Layout::ReadOnly).then(|| q.row_view(0..q.rows()));
        let in_place = read_only.is_none();
        let attend = |q: Tensor<Cuda>| q.attention(&k, &v, self.head_dim, self.layout, self.mask).unwrap();
        let before = b.stats();
        let (out, q) = match read_only {
            Some(view) => (attend(view), Some(q)),
            None => (attend(q), None),
        };
        let after = b.stats();
        let counts = (after.launches - before.launches, after.composed - before.composed);
        match layout {
            Layout::Unaligned => assert!(counts.1 > 0, "{self:?}: a kernel took rows that are not aligned"),
            _ if KERNELS.contains(&self.head_dim) || self.suits_512(b) => {
                assert_eq!(counts, (1, 0), "{self:?}, {layout:?}: one kernel, and no composition")
            }
            _ => {}
        }
        assert_eq!(Arc::ptr_eq(out.buffer(), k.buffer()), in_place, "{self:?}, {layout:?}: where the result lies");
        for (name, view, before) in
            [("k", &k, &inputs.k), ("v", &v, &inputs.v), ("the columns behind", &behind_view, &behind)]
        {
            assert!(b.download(view).unwrap() == *before, "{self:?}, {layout:?}: {name} changed");
        }
        let (unasked_values, asked_values) = inputs.q.split_at(self.layout.rows_without_query() * cols);
        assert!(b.download(&unasked).unwrap() == unasked_values, "{self:?}, {layout:?}: what is no query changed");
        if let Some(q) = q {
            assert!(b.download(&q).unwrap() == asked_values, "{self:?}: q changed");
        }
        b.download(&out).unwrap()
    }

    /// Fails if `got` is further from `expected` than rounding explains.
    ///
    /// Weights and result are rounded to bf16, each by at most 2^-9 of itself. So a value is off by at most 2^-9
    /// |value| for its own rounding and 2^-9 sum(weight |v|) for the weights' roundings, and that sum is at most max
    /// |v|. The weights' errors are independent, so with many keys they come to 2^-9 of the typical value, and nowhere
    /// to 8 times that; in the norm the two add to 2^-8 at most. A twentieth is for float32 sums and exponentials.
    fn expect_close(&self, what: &str, got: &[f32], expected: &[f32]) {
        assert_eq!(got.len(), expected.len(), "{self:?}, {what}: number of values");
        let (mut worst, mut sum, mut squares, mut norm, mut got_norm, mut product) =
            (0f32, 0f64, 0f64, 0f64, 0f64, 0f64);
        let rms = (expected.iter().map(|e| f64::from(*e).powi(2)).sum::<f64>() / expected.len() as f64).sqrt() as f32;
        let typical = (8.0 * rms).min(MAX_V);
        let mut bad = Vec::new();
        let cols = got.len() / self.layout.query_rows();
        for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
            let off = (got - expected).abs();
            if (off.is_nan() || off > 1.05 * rounding() * (expected.abs() + typical)) && bad.len() < 5 {
                bad.push(format!("[{}, {}] is {got}, expected {expected}", index / cols, index % cols));
            }
            worst = worst.max(off);
            sum += f64::from(off);
            squares += f64::from(off).powi(2);
            norm += f64::from(expected).powi(2);
            got_norm += f64::from(got).powi(2);
            product += f64::from(got) * f64::from(expected);
        }
        let relative = (squares / norm).sqrt();
        let bits = hash_of_bits(got);
        println!(
            "{} x {}/{} {:?} {:?} q {} {what}: max {worst:.1e} mean {:.1e} relative {relative:.1e} 1-cos {:.1e} \
             bits {bits:016x}",
            self.head_dim,
            self.heads,
            self.kv_heads,
            self.layout,
            self.mask,
            self.gain,
            sum / got.len() as f64,
            1.0 - product / (norm * got_norm).sqrt(),
        );
        assert!(bad.is_empty(), "{self:?}, {what}: {}", bad.join("; "));
        assert!(relative <= f64::from(2.0 * rounding()), "{self:?}, {what}: {relative:.1e} apart in the norm");
    }

    /// Compares every layout with the CPU, and two runs with each other.
    fn check(&self, cuda: &Cuda, layouts: &[Layout]) {
        let inputs = self.inputs();
        let expected = self.run(&Cpu::new(Precision::F32), &inputs);
        for &layout in layouts {
            let got = self.run_on_gpu(cuda, &inputs, layout);
            self.expect_close(&format!("{layout:?}"), &got, &expected);
            if few() {
                continue;
            }
            let again = self.run_on_gpu(cuda, &inputs, layout);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert!(bits(&got) == bits(&again), "{self:?}, {layout:?}: two runs differ");
        }
    }
}

fn case(
    head_dim: usize,
    (heads, kv_heads): (usize, usize),
    (batch, txt, img): (usize, usize, usize),
    keys: usize,
) -> Case {
    let mask = if keys == 0 { Mask::None } else { Mask::Causal { keys } };
    Case { head_dim, heads, kv_heads, layout: TokenLayout::new(batch, txt, img), mask, gain: 1.0 }
}

const LAYOUTS: [Layout; 3] = [Layout::Dense, Layout::InPlace, Layout::ReadOnly];

/// Tokens that no tile divides, one and two samples, text and image apart or not, causal masks, shared key heads.
#[test]
fn every_head_size_matches_the_cpu() {
    let Some(cuda) = cuda() else { return };
    // Every fourth case covers each case for one head size.
    let mut sampled = sampled(4);
    for head_dim in KERNELS {
        for (heads, samples, keys) in [
            ((2, 2), (1, 0, 1), 0),
            ((3, 3), (1, 0, 17), 0),
            // More tiles than blocks run at a time, so that some tiles are whole.
            ((400, 400), (1, 0, 17), 0),
            ((2, 2), (1, 3, 352), 0),
            ((2, 2), (1, 45, 64), 0),
            ((2, 2), (2, 45, 64), 0),
            ((4, 2), (3, 17, 130), 0),
            ((2, 2), (2, 130, 1), 0),
            ((2, 1), (2, 0, 177), 0),
            ((2, 2), (1, 100, 0), 0),
            ((2, 2), (1, 0, 1), 1),
            ((4, 1), (1, 0, 300), 1),
            ((8, 2), (1, 0, 512), 37),
            ((4, 2), (1, 0, 333), 333),
            ((4, 2), (2, 0, 333), 100),
            ((2, 2), (1, 45, 64), 80),
            ((2, 2), (2, 45, 64), 80),
        ] {
            if !sampled() {
                continue;
            }
            let case = case(head_dim, heads, samples, keys);
            case.check(&cuda, &LAYOUTS);
            Case { gain: 8.0, ..case }.check(&cuda, &[Layout::InPlace]);
        }
        // Queries of images only: after text of no tile's size, in several samples, and under a mask.
        for (heads, samples, keys) in [
            ((2, 2), (1, 3, 352), 0),
            ((4, 2), (1, 130, 1), 0),
            ((2, 2), (3, 45, 130), 0),
            ((2, 2), (1, 45, 64), 80),
            ((2, 2), (2, 128, 129), 0),
        ] {
            if sampled() {
                case(head_dim, heads, samples, keys).image_queries().check(&cuda, &LAYOUTS);
            }
        }
        // With references between text and image, which end inside a tile and begin one.
        for (samples, references) in [((1, 45, 64), 70), ((1, 128, 200), 128), ((1, 0, 33), 400)] {
            if sampled() {
                let case = case(head_dim, (2, 2), samples, 0).with_references(references);
                case.check(&cuda, &LAYOUTS);
                case.image_queries().check(&cuda, &LAYOUTS);
            }
        }
    }
}

/// Attention over cached keys as well: fewer and more of them than a tile, and queries of all tokens or of the image.
#[test]
fn attention_cached_matches_the_cpu() {
    let Some(cuda) = cuda() else { return };
    let mut sampled = sampled(3);
    for (head_dim, heads) in [(128, (2, 2)), (128, (4, 2)), (64, (2, 2)), (24, (2, 1))] {
        for (tokens, cached) in [((1, 0, 1), 1), ((1, 45, 64), 70), ((1, 130, 391), 176), ((1, 3, 352), 600)] {
            if !sampled() {
                continue;
            }
            let all = case(head_dim, heads, tokens, 0);
            for case in [all, all.image_queries()] {
                let inputs = case.inputs();
                let expected = case.run_cached(&Cpu::new(Precision::F32), &inputs, cached);
                let before = cuda.stats();
                let got = case.run_cached(&cuda, &inputs, cached);
                let composed = cuda.stats().composed - before.composed;
                let has_kernel = head_dim == 128 && is_hopper(&cuda);
                assert_eq!(composed == 0, has_kernel, "{case:?}");
                case.expect_close(&format!("{cached} cached keys"), &got, &expected);
            }
        }
    }
}

/// The VAE's head, for which Hopper has a kernel: less than a tile of queries, a tile of queries and a tile of keys,
/// each with one token more or less; an odd number of tiles; more blocks than run at a time; several heads, shared key
/// heads, and samples; and cases that this kernel leaves to the others.
#[test]
fn heads_of_512_match_the_cpu() {
    let Some(cuda) = cuda() else { return };
    let mut sampled = sampled(3);
    let single = [1, 63, 64, 65, 128, 129, 300].map(|tokens| ((1, 1), (1, 0, tokens)));
    for (heads, samples) in single.into_iter().chain([((1, 1), (1, 45, 150)), ((4, 2), (3, 0, 200))]) {
        if sampled() {
            let case = case(512, heads, samples, 0);
            case.check(&cuda, &LAYOUTS);
            Case { gain: 8.0, ..case }.check(&cuda, &[Layout::InPlace]);
        }
    }
    // Some of the tokens have queries: a tile of queries and one more or less, with many keys.
    for (txt, img) in [(300, 63), (45, 64), (9, 70), (130, 129), (1, 1)] {
        if sampled() {
            case(512, (2, 1), (1, txt, img), 0).image_queries().check(&cuda, &LAYOUTS);
            case(512, (1, 1), (1, 0, img), 0).with_references(txt).image_queries().check(&cuda, &[Layout::InPlace]);
        }
    }
    // Cases that this kernel leaves to GEMM and softmax, which are slow under the slowest tool.
    if !few() {
        case(512, (2, 2), (2, 9, 70), 0).check(&cuda, &LAYOUTS);
        case(512, (1, 1), (1, 0, 140), 70).check(&cuda, &[Layout::InPlace]);
        case(512, (1, 1), (1, 0, 70), 0).check(&cuda, &[Layout::Unaligned]);
    }
    if !small() {
        case(512, (40, 40), (1, 0, 300), 0).check(&cuda, &[Layout::InPlace, Layout::ReadOnly]);
        case(512, (1, 1), (1, 0, 4097), 0).check(&cuda, &[Layout::InPlace]);
        case(512, (1, 1), (1, 0, 2049), 0).with_references(2048).image_queries().check(&cuda, &[Layout::InPlace]);
    }
}

/// Head sizes without a kernel, and rows at unaligned addresses.
#[test]
fn what_no_kernel_takes_matches_the_cpu() {
    let Some(cuda) = cuda() else { return };
    for (head_dim, heads, samples, keys) in
        [(24, (2, 2), (2, 9, 70), 0), (8, (4, 2), (1, 0, 65), 30), (40, (2, 1), (2, 45, 64), 80)]
    {
        case(head_dim, heads, samples, keys).check(&cuda, &LAYOUTS);
    }
    for head_dim in [128, 16] {
        case(head_dim, (2, 2), (2, 45, 64), 0).check(&cuda, &[Layout::Unaligned]);
    }
    case(24, (2, 1), (2, 9, 70), 0).image_queries().check(&cuda, &LAYOUTS);
    case(24, (2, 1), (1, 9, 70), 0).with_references(50).image_queries().check(&cuda, &LAYOUTS);
    // Rows of scores that just fill the registers of their block, and longer ones.
    for tokens in if small() { [352, 353] } else { [4096, 4097] } {
        case(8, (1, 1), (1, 0, tokens), 0).check(&cuda, &[Layout::Dense]);
        case(8, (1, 1), (1, 0, tokens), 40).check(&cuda, &[Layout::Dense]);
    }
    if !small() {
        case(8, (1, 1), (1, 0, 33_001), 0).check(&cuda, &[Layout::Dense]);
    }
}

/// On Hopper, pairs of blocks that take several pairs of tiles: an even number of tiles, an odd one (the last has no
/// partner), with text and image apart (a pair may have a tile of each), and with shared key heads.
#[test]
fn many_tiles_match_the_cpu() {
    let Some(cuda) = cuda() else { return };
    if small() {
        println!("skipped: many tiles take time");
        return;
    }
    for (heads, samples) in
        [((24, 24), (1, 30, 1506)), ((24, 24), (1, 0, 1660)), ((24, 8), (2, 77, 700)), ((64, 64), (3, 130, 200))]
    {
        case(128, heads, samples, 0).check(&cuda, &[Layout::InPlace, Layout::ReadOnly]);
    }
}

/// Keys that fill a tile of Hopper's kernel, and whose last tile has as many keys as each of its widths holds, one
/// more and one less.
#[test]
fn last_tiles_of_every_width_match_the_cpu() {
    let Some(cuda) = cuda() else { return };
    let mut sampled = sampled(5);
    for whole in [0, 1, 2] {
        for rest in [1, 31, 32, 33, 95, 96, 97, 127, 128, 129, 175, 176] {
            if !sampled() {
                continue;
            }
            let tokens = 176 * whole + rest;
            let txt = tokens / 3;
            for (samples, keys) in [((1, txt, tokens - txt), 0), ((2, tokens, 50), 0), ((1, 0, tokens), tokens)] {
                case(128, (2, 1), samples, keys).check(&cuda, &[Layout::InPlace]);
            }
        }
    }
}

/// The share of a block in a head depends on the number of heads, but changes no bit of the result: whole tiles and
/// halves of tiles for many heads (on Hopper pairs), halves for a single head (on Hopper single tiles).
#[test]
fn a_head_is_the_same_alone_and_among_many() {
    let Some(cuda) = cuda() else { return };
    if small() {
        println!("skipped: many tiles take time");
        return;
    }
    for (head_dim, keys) in [(128, 0), (128, 500), (64, 0), (32, 300), (16, 0)] {
        let many = case(head_dim, (64, 64), (1, 75, 1000), keys);
        let inputs = many.inputs();
        let got = many.run(&cuda, &inputs);
        let cols = 64 * head_dim;
        for head in [0, 31, 63] {
            let of = |values: &[f32]| columns(values, cols, head * head_dim..(head + 1) * head_dim);
            let one = Case { heads: 1, kv_heads: 1, ..many };
            let alone = one.run(&cuda, &Inputs { q: of(&inputs.q), k: of(&inputs.k), v: of(&inputs.v) });
            assert!(of(&got) == alone, "{many:?}: head {head} is another by itself");
        }
    }
}

/// An image of 1024 x 1024 in the VAE, and in the transformer, alone and with another image. Heads are independent, so
/// the CPU computes a few.
#[test]
fn real_sizes_match_the_cpu() {
    let Some(cuda) = cuda() else { return };
    if small() {
        println!("skipped: real sizes take memory and time");
        return;
    }
    case(512, (1, 1), (1, 0, 128 * 128), 0).check(&cuda, &[Layout::Dense]);
    for (heads, samples, keys, sampled) in [
        ((24, 24), (1, 512, 4096), 0, vec![0, 13, 23]),
        ((24, 24), (2, 512, 1024), 0, vec![0, 23]),
        ((32, 8), (1, 0, 512), 200, vec![3, 4, 31]),
    ] {
        let whole = case(128, heads, samples, keys);
        let [cols, kv_cols] = whole.cols();
        let inputs = whole.inputs();
        let got = whole.run_on_gpu(&cuda, &inputs, Layout::InPlace);
        for head in sampled {
            let one = Case { heads: 1, kv_heads: 1, ..whole };
            let kv_head = head / (whole.heads / whole.kv_heads);
            let of = |values: &[f32], cols, head| columns(values, cols, head * 128..(head + 1) * 128);
            let inputs = Inputs {
                q: of(&inputs.q, cols, head),
                k: of(&inputs.k, kv_cols, kv_head),
                v: of(&inputs.v, kv_cols, kv_head),
            };
            let expected = one.run(&Cpu::new(Precision::F32), &inputs);
            one.expect_close(&format!("head {head} of {}", whole.heads), &of(&got, cols, head), &expected);
        }
    }
}

#[test]
fn each_kernel_can_be_asked_for() {
    let Some(cuda) = cuda() else { return };
    check_choices(&cuda, "attention::every_head_size_matches_the_cpu", "FLUX_ATTENTION");
    check_choices(&cuda, "attention::heads_of_512_match_the_cpu", "FLUX_ATTENTION");
    if !small() {
        // Whole tiles of the kernel that Hopper uses only with `base`.
        for test in ["attention::many_tiles_match_the_cpu", "attention::a_head_is_the_same_alone_and_among_many"] {
            let (passed, text) = with_variable(test, "FLUX_ATTENTION", "base");
            assert!(passed, "{text}");
        }
    }
}

#[test]
fn an_unknown_kernel_is_an_error_that_names_the_known_ones() {
    if cuda().is_none() {
        return;
    }
    let (passed, text) = with_variable("attention::every_head_size_matches_the_cpu", "FLUX_ATTENTION", "flash");
    assert!(!passed && text.contains("`flash`") && text.contains("`base` or `sm90` or `sm90-single`"), "{text}");
}

/// On Hopper: the block that fetches a tile changes no bit of the result.
#[test]
fn single_blocks_and_pairs_give_the_same_bits() {
    let Some(cuda) = cuda() else { return };
    let hopper = is_hopper(&cuda);
    let tests = [
        "attention::every_head_size_matches_the_cpu",
        "attention::heads_of_512_match_the_cpu",
        "attention::many_tiles_match_the_cpu",
    ];
    for test in &tests[..if small() { 2 } else { 3 }] {
        let (passed, single) = with_variable(test, "FLUX_ATTENTION", "sm90-single");
        if !hopper {
            assert!(!passed && single.contains("`sm90-single`") && single.contains("9.0"), "{single}");
            continue;
        }
        assert!(passed, "{single}");
        let (passed, pairs) = with_variable(test, "FLUX_ATTENTION", "sm90");
        assert!(passed, "{pairs}");
        let [single, pairs] =
            [&single, &pairs].map(|text| text.lines().filter(|line| line.contains(" bits ")).collect::<Vec<_>>());
        assert!(!single.is_empty(), "{test} says nothing of its bits");
        assert_eq!(single, pairs, "{test}: by single blocks and by pairs");
    }
}
