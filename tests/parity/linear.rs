//! Matrix multiplications against the CPU in float32.

use std::path::Path;

use flux::backend::cuda::{Cuda, GemmCache, Precision};
use flux::backend::{Backend, Device, Memory, Storage};
use flux::nn;
use flux::ops::{LinearArgs, Products, linear};
use flux::tensor::Tensor;

use crate::compare::{Case, Shape, WITH_EPILOGUE, Weight, check, check_against, compare, vector};

struct Linear<'a> {
    x: Shape,
    weight: &'a Weight,
    bias: bool,
}

impl Case for Linear<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let weight = self.weight.linear(b);
        let bias = self.bias.then(|| vector(b, 3, weight.rows()));
        vec![self.x.tensor(b, 1).linear(&weight, bias.as_ref()).unwrap()]
    }
}

/// Products of bf16 values are exact in float32 and the sum is in float32 on both sides, so one rounding remains.
#[test]
fn linear_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for (rows, cols, out) in
        [(64, 128, 256), (1, 64, 96), (7, 24, 5), (33, 27, 3), (129, 40, 1), (5, 13, 17), (300, 8, 8)]
    {
        let weight = Weight::seeded(2, out, cols);
        for bias in [false, true] {
            for (before, after) in [(0, 0), (8, 16), (3, 2)] {
                let x = Shape::view(rows, cols, before, after);
                let roundings = if bias { WITH_EPILOGUE } else { 1.0 };
                check_against(
                    &cuda,
                    &format!("linear {x:?} -> {out}, bias {bias}"),
                    &Linear { x, weight: &weight, bias },
                    roundings,
                    0.0,
                );
            }
        }
    }
}

/// The real shapes, by the algorithms that timing chooses; on fewer rows, because the CPU has to compute them too.
#[test]
fn linear_matches_at_real_sizes() {
    if crate::cuda().is_none() || crate::small() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cuda = Cuda::with(0, None, Precision::Bf16, &GemmCache::Folder(folder.path().to_path_buf())).unwrap();
    for (rows, cols, out) in [
        (256, 3072, 27648),
        (256, 12288, 3072),
        (512, 2560, 9728),
        (4096, 128, 3072),
        (200, 7680, 3072),
        (4, 3072, 18432),
    ] {
        let weight = Weight::seeded(2, out, cols);
        check(
            &cuda,
            &format!("linear {rows} x {cols} -> {out}"),
            &Linear { x: Shape::dense(rows, cols), weight: &weight, bias: false },
            0.0,
        );
    }
}

/// A multiplication of many tiles uses another algorithm than one of few.
#[test]
fn a_product_of_many_tiles_is_that_of_its_rows() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    let weight = Weight::seeded(2, 9216, 256).linear(&cuda);
    let x = Shape::dense(16384, 256).tensor(&cuda, 1);
    let whole = cuda.download(&x.linear(&weight, None).unwrap()).unwrap();
    let mut rows = Vec::new();
    for first in (0..x.rows()).step_by(1024) {
        let part = x.row_view(first..first + 1024).linear(&weight, None).unwrap();
        rows.extend(cuda.download(&part).unwrap());
    }
    // Sums in float32 of another order, rounded once.
    compare("of many tiles", &whole, &rows, 1.0);
}

/// The sizes of x, the weight, and the columns around the residual.
struct LinearAdd<'a>(Shape, &'a Weight, [usize; 2]);

impl LinearAdd<'_> {
    fn inputs<B: Backend>(&self, b: &B) -> (Tensor<B>, nn::Linear<B>, Tensor<B>) {
        let weight = self.1.linear(b);
        let residual = Shape::view(self.0.rows, weight.rows(), self.2[0], self.2[1]).tensor(b, 4);
        (self.0.tensor(b, 1), weight, residual)
    }
}

impl Case for LinearAdd<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (x, weight, residual) = self.inputs(b);
        let borrowed = x.linear_add(&weight, residual.row_view(0..residual.rows())).unwrap();
        let copied = Tensor::concat_rows(&[&residual]).unwrap();
        vec![borrowed, copied, x.linear_add(&weight, residual).unwrap()]
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (x, weight, residual) = self.inputs(b);
        let sum = |residual| {
            let products = Products::Columns(&[&x], &weight);
            linear::compose(b, LinearArgs { residual: Some(residual), ..products.into() }).unwrap()
        };
        let borrowed = sum(residual.row_view(0..residual.rows()));
        let copied = Tensor::concat_rows(&[&residual]).unwrap();
        vec![borrowed, copied, sum(residual)]
    }
}

/// The composition rounds the result before the sum.
#[test]
fn linear_add_matches_its_composition() {
    let Some(cuda) = crate::cuda() else { return };
    for (rows, cols, out) in [(64, 128, 256), (1, 64, 96), (7, 24, 5), (33, 27, 3), (129, 40, 8)] {
        let weight = Weight::seeded(2, out, cols);
        for beside in [[0, 0], [8, 16], [3, 2]] {
            let case = LinearAdd(Shape::dense(rows, cols), &weight, beside);
            check_against(
                &cuda,
                &format!("linear_add {rows} x {cols} -> {out}, beside {beside:?}"),
                &case,
                WITH_EPILOGUE,
                1.5,
            );
        }
    }
}

struct LinearRows<'a>([(Shape, &'a Weight); 2]);

impl Case for LinearRows<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let [(top, top_weight), (bottom, bottom_weight)] = &self.0;
        let (x, y) = (top.tensor(b, 1), bottom.tensor(b, 2));
        vec![Tensor::linear_rows(&[(&x, &top_weight.linear(b)), (&y, &bottom_weight.linear(b))]).unwrap()]
    }
}

#[test]
fn linear_rows_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let (a, b, c, d) =
        (Weight::seeded(3, 96, 64), Weight::seeded(4, 96, 64), Weight::seeded(3, 21, 30), Weight::seeded(4, 21, 13));
    check(&cuda, "linear_rows", &LinearRows([(Shape::dense(16, 64), &a), (Shape::dense(50, 64), &b)]), 0.0);
    check(
        &cuda,
        "linear_rows of ragged parts",
        &LinearRows([(Shape::view(5, 30, 1, 2), &c), (Shape::dense(3, 13), &d)]),
        0.0,
    );
    check(&cuda, "linear_rows without text", &LinearRows([(Shape::dense(0, 64), &a), (Shape::dense(50, 64), &b)]), 0.0);
}

/// Widths of concatenated columns, in one buffer or in several.
struct LinearConcat<'a>([usize; 2], &'a Weight, bool);

impl Case for LinearConcat<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let Self([left, right], weight, adjacent) = self;
        let whole = Shape::dense(40, 8 + left + right).tensor(b, 1);
        let [_, x, y] = whole.split_cols([8, *left, *right]);
        let y = if *adjacent { y } else { Tensor::concat_rows(&[&y]).unwrap() };
        vec![Tensor::linear_concat(&[&x, &y], &weight.linear(b)).unwrap()]
    }
}

#[test]
fn linear_concat_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for widths in [[64, 128], [5, 8], [1, 30]] {
        let weight = Weight::seeded(2, 48, widths[0] + widths[1]);
        for adjacent in [true, false] {
            check(
                &cuda,
                &format!("linear_concat {widths:?}, adjacent {adjacent}"),
                &LinearConcat(widths, &weight, adjacent),
                0.0,
            );
        }
    }
}

/// Tensors adjacent in one buffer or apart, each with a weight. Weights of FLUX.3's size are adjacent on a GPU.
struct LinearSum<'a>(&'a [Weight], usize, bool);

impl Case for LinearSum<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let Self(files, rows, adjacent) = self;
        let weights = summed(b, files);
        let widths: Vec<_> = weights.iter().map(nn::Linear::cols).collect();
        let [before, x, y] =
            Shape::dense(*rows, 8 + widths.iter().sum::<usize>()).tensor(b, 1).split_cols([8, widths[0], widths[1]]);
        let x = if *adjacent { x } else { Tensor::concat_rows(&[&x]).unwrap() };
        drop(before);
        vec![Tensor::linear_sum(&[(&x, &weights[0]), (&y, &weights[1])]).unwrap()]
    }
}

/// Layers whose results are summed.
fn summed<B: Backend>(b: &B, files: &[Weight]) -> Vec<nn::Linear<B>> {
    let views: Vec<_> = files.iter().map(|file| vec![file.view()]).collect();
    let names = files.iter().map(|_| "weight".to_string()).collect();
    nn::Linear::load_summed((b, None), names, &views, Storage::Native).unwrap()
}

#[test]
fn linear_sum_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for (out, widths) in [(64, [128, 384]), (40, [256, 128]), (48, [64, 128]), (21, [128, 128]), (16, [5, 8])] {
        let files = widths.map(|cols| Weight::plain(cols as u64, out, cols));
        let weights = summed(&cuda, &files);
        let apart = weights[1].weight().address() - weights[0].weight().address();
        let lie_side_by_side = out % 8 == 0 && widths.iter().all(|cols| cols % 128 == 0);
        assert_eq!(apart == 2 * widths[0] as u64, lie_side_by_side, "{out} of {widths:?}");
        for (rows, adjacent) in [(40, true), (40, false), (7, true), (1, true)] {
            // Separate multiplications are rounded one by one.
            let (roundings, error) = if lie_side_by_side && adjacent { (1.0, 0.0) } else { (WITH_EPILOGUE, 1.5) };
            let case = LinearSum(&files, rows, adjacent);
            let what = format!("linear_sum of {rows} rows, {widths:?} -> {out}, adjacent {adjacent}");
            check_against(&cuda, &what, &case, roundings, error);
        }
    }
}

#[test]
fn weights_side_by_side_are_those_of_their_files() {
    let Some(cuda) = crate::cuda() else { return };
    // Rows of some MiB end in the middle of a copy.
    for (rows, widths) in [(8, [128, 128]), (3000, [1024, 3072])] {
        let files = widths.map(|cols| Weight::plain(cols as u64, rows, cols));
        // The second read comes from registered pages.
        for _ in 0..2 {
            for (weight, file) in summed(&cuda, &files).iter().zip(&files) {
                assert!(cuda.weight_values(weight).unwrap() == file.view().to_f32(), "{rows} x {widths:?}");
            }
        }
    }
}

/// A shape that is large enough for timing.
const TIMED: [usize; 3] = [512, 1024, 2048];

/// Runs that shape on a GPU, with cached choices in `folder`: the values' bits, and the number of host waits.
fn timed_product(folder: &Path, weight: &Weight) -> (Vec<u32>, u64, Option<String>) {
    let cuda = Cuda::with(0, None, Precision::Bf16, &GemmCache::Folder(folder.to_path_buf())).unwrap();
    let x = Shape::dense(TIMED[0], TIMED[1]).tensor(&cuda, 1);
    let weight = weight.linear(&cuda);
    let before = cuda.stats().waits;
    let out = x.linear(&weight, None).unwrap();
    let waits = cuda.stats().waits - before;
    (cuda.download(&out).unwrap().into_iter().map(f32::to_bits).collect(), waits, cuda.note())
}

#[test]
fn the_choice_of_an_algorithm_is_timed_once_and_read_back() {
    if crate::cuda().is_none() || crate::small() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let weight = Weight::seeded(2, TIMED[2], TIMED[1]);
    let (first, waits, note) = timed_product(folder.path(), &weight);
    assert!(waits > 0 && note.is_none(), "the first run times: {waits} waits, {note:?}");
    let file = std::fs::read_dir(folder.path()).unwrap().next().expect("the choice is cached").unwrap().path();
    let cached = std::fs::read_to_string(&file).unwrap();
    println!("{}: {cached}", file.display());

    let (second, waits, note) = timed_product(folder.path(), &weight);
    assert_eq!((waits, note), (0, None), "the second run only reads");
    assert_eq!(second, first);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), cached);

    // Well-formed, but the first number is no algorithm of cuBLASLt: it is timed again and corrected.
    let mut json: serde_json::Value = serde_json::from_str(&cached).unwrap();
    let number = &mut json["choices"][0]["algorithm"][0];
    *number = serde_json::json!(number.as_u64().unwrap() >> 32 << 32 | 0x7fff_ffff);
    for text in [json.to_string(), "{".to_string()] {
        std::fs::write(&file, &text).unwrap();
        let (third, waits, _) = timed_product(folder.path(), &weight);
        assert!(waits > 0, "{text}");
        assert_eq!(third.len(), first.len());
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(written != text && serde_json::from_str::<serde_json::Value>(&written).is_ok(), "{written}");
    }
}

#[test]
fn without_a_cache_nothing_is_timed() {
    if crate::cuda().is_none() {
        return;
    }
    let cuda = Cuda::with(0, None, Precision::Bf16, &GemmCache::Off).unwrap();
    let weight = Weight::seeded(2, TIMED[2], TIMED[1]);
    let (x, weight) = (Shape::dense(TIMED[0], TIMED[1]).tensor(&cuda, 1), weight.linear(&cuda));
    let before = cuda.stats();
    let _out = x.linear(&weight, None).unwrap();
    let after = cuda.stats();
    assert_eq!((after.waits - before.waits, after.launches - before.launches), (0, 1));
}

/// Timing writes to memory apart from the output: a residual that is also the output is added once.
#[test]
fn timing_leaves_the_residual_alone() {
    /// The first multiplication of its shape overwrites the residual.
    struct Over<'a>(&'a Weight);
    impl Case for Over<'_> {
        fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
            let (x, residual) =
                (Shape::dense(TIMED[0], TIMED[1]).tensor(b, 1), Shape::dense(TIMED[0], TIMED[2]).tensor(b, 4));
            vec![x.linear_add(&self.0.linear(b), residual).unwrap()]
        }
    }
    if crate::cuda().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cuda = Cuda::with(0, None, Precision::Bf16, &GemmCache::Folder(folder.path().to_path_buf())).unwrap();
    check_against(&cuda, "a timed linear_add", &Over(&Weight::seeded(2, TIMED[2], TIMED[1])), WITH_EPILOGUE, 0.0);
    let file = std::fs::read_dir(folder.path()).unwrap().next().expect("it was timed").unwrap().path();
    let cached = std::fs::read_to_string(&file).unwrap();
    assert!(cached.contains("\"residual\":true"), "{cached}");
}
