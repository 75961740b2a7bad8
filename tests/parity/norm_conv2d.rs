//! Norms and convolutions in bands of rows: against the CPU, against other bands, and their memory.

use std::sync::Arc;

use flux::backend::cuda::{Cuda, Graph};
use flux::backend::{Backend, Bands, Device, Memory, Participants};
use flux::files::Folder;
use flux::files::TensorFiles;
use flux::nn::{ConvKernel, Weights};
use flux::ops::{self, Conv, Convolved, GroupNorm};
use flux::pipeline::{Model, Request};
use flux::tensor::Tensor;
use flux::vae::{Grid, ResnetBlock};
use safetensors::Dtype;
use safetensors::tensor::TensorView as FileTensor;

use crate::compare::{
    Case, Shape, WITH_EPILOGUE, Weight, check_against, check_choices, compare, values, vector, with_variable,
};
use crate::conv2d::Conv2d;
use crate::pipeline::default_model;

/// A convolution after a norm.
struct NormConv2d<'a> {
    conv2d: Conv2d<'a>,
    groups: usize,
}

impl NormConv2d<'_> {
    fn apply<B: Backend>(&self, b: &B, composed: bool) -> Vec<Tensor<B>> {
        let Conv2d { x, weight, conv, out, .. } = self.conv2d;
        let (norm_weight, norm_bias) = (vector(b, 5, x.cols), vector(b, 6, x.cols));
        let (x, weight, bias) = (x.tensor(b, 1), weight.conv(b), vector(b, 3, out));
        let norm =
            GroupNorm { weight: &norm_weight, bias: &norm_bias, groups: self.groups, eps: 1e-6, statistics: None };
        let out = match (self.conv2d.residual(b), composed) {
            (residual, true) => {
                let conv2d = ops::Conv2d::new(x, &weight, &bias, conv);
                ops::conv2d::compose(b, ops::Conv2d { norm: Some(&norm), residual, ..conv2d })
            }
            (Some(residual), false) => x.norm_conv2d_add(&norm, &weight, &bias, conv, residual),
            (None, false) => x.norm_conv2d(&norm, &weight, &bias, conv),
        };
        vec![out.unwrap().pixels]
    }
}

impl Case for NormConv2d<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.apply(b, false)
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.apply(b, true)
    }
}

fn weight(cin: usize, cout: usize, kernel: usize) -> Weight {
    let scale = 2.0 / (kernel * kernel * cin) as f32;
    let weight: Vec<f32> = values(2, cout * cin * kernel * kernel).iter().map(|v| v * scale.sqrt()).collect();
    Weight::new(&weight, &[cout, cin, kernel, kernel], Dtype::F32)
}

#[test]
fn norm_conv2d_and_norm_conv2d_add_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let convs =
        [Conv::same(17, 9, 3), Conv::same(1, 1, 3), Conv::same(40, 35, 3), Conv::same(33, 5, 1), Conv::halve(36, 7)];
    let mut sampled = crate::sampled(7);
    for conv in convs {
        for (cin, cout, groups) in [(16, 32, 8), (64, 3, 32), (9, 7, 3), (64, 136, 16)] {
            for (beside, residual) in [([0, 0], None), ([8, 8], Some([0, 0])), ([1, 0], Some([3, 2]))] {
                if !sampled() {
                    continue;
                }
                let weight = weight(cin, cout, conv.kernel);
                let x = Shape::view(conv.height * conv.width, cin, beside[0], beside[1]);
                let case = NormConv2d { conv2d: Conv2d { residual, ..Conv2d::new(x, &weight, conv, cout) }, groups };
                for limit in [usize::MAX, 0] {
                    cuda.limit_bands(limit);
                    let beside = format!("beside {beside:?}, residual {residual:?}");
                    let what = format!("norm_conv2d {conv:?} {cin} -> {cout}, {beside}, bands of {limit}");
                    // The values between norm and convolution are rounded once. Their errors are independent, so
                    // together they move an output by at most one of its roundings.
                    check_against(&cuda, &what, &case, WITH_EPILOGUE + 1.0, 1.0);
                }
            }
        }
    }
}

/// Returns `true` if the kernel for Hopper takes aligned operands.
fn on_hopper(cuda: &Cuda) -> bool {
    crate::is_hopper(cuda) && std::env::var_os("FLUX_CONV2D").is_none_or(|kernel| kernel != "base")
}

/// A residual block: its halves, and a norm of its result by the statistics that they compute.
struct Block {
    conv: Conv,
    norm_x: [Tensor<Cuda>; 2],
    norm_h: [Tensor<Cuda>; 2],
    groups: [usize; 2],
    up: ConvKernel<Cuda>,
    same: ConvKernel<Cuda>,
    shortcut: Option<ConvKernel<Cuda>>,
    bias: Tensor<Cuda>,
}

impl Block {
    fn new(cuda: &Cuda, [height, width]: [usize; 2], cin: usize, cout: usize, groups: [usize; 2]) -> Self {
        Self {
            conv: Conv::same(height, width, 3),
            norm_x: [vector(cuda, 5, cin), vector(cuda, 6, cin)],
            norm_h: [vector(cuda, 7, cout), vector(cuda, 8, cout)],
            groups,
            up: weight(cin, cout, 3).conv(cuda),
            same: weight(cout, cout, 3).conv(cuda),
            shortcut: (cin != cout).then(|| weight(cin, cout, 1).conv(cuda)),
            bias: vector(cuda, 3, cout),
        }
    }

    fn norm<'a>([weight, bias]: &'a [Tensor<Cuda>; 2], groups: usize, x: &'a Convolved<Cuda>) -> GroupNorm<'a, Cuda> {
        GroupNorm { weight, bias, groups, eps: 1e-6, statistics: x.statistics.as_ref() }
    }

    fn first(&self, x: &Convolved<Cuda>) -> flux::Result<Convolved<Cuda>> {
        x.pixels.norm_conv2d(&Self::norm(&self.norm_x, self.groups[0], x), &self.up, &self.bias, self.conv)
    }

    fn second(&self, h: Convolved<Cuda>, residual: Tensor<Cuda>) -> flux::Result<Convolved<Cuda>> {
        let [weight, bias] = &self.norm_h;
        let Convolved { pixels, statistics } = h;
        let norm = GroupNorm { weight, bias, groups: self.groups[1], eps: 1e-6, statistics: statistics.as_ref() };
        pixels.norm_conv2d_add(&norm, &self.same, &self.bias, self.conv, residual)
    }

    fn forward(&self, x: Convolved<Cuda>) -> flux::Result<Convolved<Cuda>> {
        let h = self.first(&x)?;
        let conv = Conv::same(self.conv.height, self.conv.width, 1);
        let residual = match &self.shortcut {
            Some(shortcut) => x.pixels.conv2d_over(shortcut, &self.bias, conv)?.pixels,
            None => x.pixels,
        };
        self.second(h, residual)
    }

    fn norm_of(&self, y: &Convolved<Cuda>) -> flux::Result<Tensor<Cuda>> {
        y.pixels.group_norm(&Self::norm(&self.norm_h, self.groups[1], y))
    }
}

/// Height, width, channels in and out, groups of both. The last cases have more tiles than there are multiprocessors,
/// the largest even in one band.
type Ragged = ([usize; 2], [usize; 2], [usize; 2]);

fn ragged() -> Vec<Ragged> {
    let mut cases = vec![
        ([17, 33], [64, 128], [32, 32]),
        ([100, 5], [24, 96], [8, 32]),
        ([49, 1], [128, 128], [32, 1]),
        ([1, 77], [16, 40], [1, 8]),
        ([65, 50], [136, 136], [17, 17]),
        ([50, 31], [16, 640], [4, 32]),
        ([37, 20], [9, 7], [3, 7]),
        ([70, 41], [64, 3], [32, 1]),
        ([250, 253], [8, 128], [8, 32]),
        ([190, 187], [128, 128], [32, 32]),
        ([515, 509], [64, 128], [32, 32]),
    ];
    if crate::small() {
        cases.retain(|([height, width], [_, out], _)| height * width * out < 1 << 20);
    }
    cases
}

#[test]
fn bands_change_no_byte() {
    let Some(cuda) = crate::cuda() else { return };
    for (size, [cin, cout], groups) in ragged() {
        let block = Block::new(&cuda, size, cin, cout, groups);
        let x = || Convolved::from(Shape::dense(size[0] * size[1], cin).tensor(&cuda, 1));
        let run = |limit: usize| {
            cuda.limit_bands(limit);
            let h = block.first(&x()).unwrap();
            let y = block.forward(x()).unwrap();
            let after = block.norm_of(&y).unwrap();
            [h.pixels, y.pixels, after].map(|tensor| cuda.download(&tensor).unwrap())
        };
        let whole = run(usize::MAX);
        // Bands of sixteen rows, of about a third of the image, and of almost half.
        let image = 2 * size[0] * size[1] * cin.max(cout);
        for limit in [0, image / 3, image / 2 - 1] {
            assert!(run(limit) == whole, "{size:?} {cin} -> {cout} in bands of {limit} of {image} bytes");
        }
    }
}

#[test]
fn bands_are_what_was_asked_for() {
    let Some(cuda) = crate::cuda() else { return };
    for (size, [cin, cout], groups) in ragged().into_iter().filter(|(_, [cin, _], _)| cin % 8 == 0) {
        let block = Block::new(&cuda, size, cin, cout, groups);
        let x = Shape::dense(size[0] * size[1], cin).tensor(&cuda, 1).into();
        let launches = |limit: usize| {
            cuda.limit_bands(limit);
            let before = cuda.stats().launches;
            block.first(&x).unwrap();
            cuda.stats().launches - before
        };
        let (whole, banded) = (launches(usize::MAX), launches(0));
        if on_hopper(&cuda) {
            // Two kernels for the statistics, then a norm and a convolution for each band. A last band of one row
            // needs no norm of its own: the previous band, which reads that row too, normed it.
            let bands = size[0].div_ceil(16) as u64;
            let norms = bands - u64::from(bands > 1 && size[0] % 16 == 1);
            assert_eq!((whole, banded), (2 + 2, 2 + norms + bands), "{size:?} {cin} -> {cout}");
        } else {
            assert!(banded >= whole, "{size:?} {cin} -> {cout}");
        }
    }
}

/// The image is so large that im2col rows are made in pieces. Bands do not change the pieces: each piece finds the
/// rows that it needs.
#[test]
fn bands_change_no_byte_where_im2col_comes_in_pieces() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    let size = [500, 509];
    let block = Block::new(&cuda, size, 256, 128, [32, 32]);
    let run = |limit: usize| {
        cuda.limit_bands(limit);
        let x = Shape::dense(size[0] * size[1], 256).tensor(&cuda, 1);
        let before = cuda.stats().launches;
        let y = block.forward(x.into()).unwrap();
        let launches = cuda.stats().launches - before;
        (launches, cuda.download(&y.pixels).unwrap())
    };
    let (launches, whole) = run(usize::MAX);
    for limit in [0, 20 << 20, 60 << 20] {
        let (banded, bytes) = run(limit);
        assert!(banded > launches && bytes == whole, "bands of {limit} bytes, {banded} launches");
    }
}

#[test]
fn each_convolution_does_bands() {
    let Some(cuda) = crate::cuda() else { return };
    check_choices(&cuda, "norm_conv2d::bands_change_no_byte", "FLUX_CONV2D");
    for test in
        ["bands_change_no_byte_where_im2col_comes_in_pieces", "a_residual_block_holds_its_input_its_middle_and_a_band"]
    {
        let (passed, text) = with_variable(&format!("norm_conv2d::{test}"), "FLUX_CONV2D", "base");
        assert!(passed, "{test}: {text}");
    }
}

#[test]
fn bands_give_the_same_bytes_every_time_also_captured() {
    let Some(cuda) = crate::cuda() else { return };
    cuda.limit_bands(0);
    let size = if crate::small() { [20, 33] } else { [70, 65] };
    let (first, second) = (Block::new(&cuda, size, 128, 64, [32, 32]), Block::new(&cuda, size, 64, 64, [32, 16]));
    let work = |x: &Tensor<Cuda>| {
        // A tensor of its own, because the block may overwrite it.
        let x = Tensor::concat_rows(&[x])?;
        second.norm_of(&second.forward(first.forward(x.into())?)?)
    };
    let reads = Arc::new(());
    let mut graph = Graph::default();
    for seed in [1, 1, 2, 3, 1] {
        let x = Shape::dense(size[0] * size[1], 128).tensor(&cuda, seed);
        let expected = cuda.download(&work(&x).unwrap()).unwrap();
        let waits = cuda.stats().waits;
        let got = cuda.run_graph(&mut graph, Participants::One, &reads, [&x], |_, [x]| work(x)).unwrap();
        assert_eq!(cuda.stats().waits, waits);
        assert!(cuda.download(&got).unwrap() == expected, "captured, seed {seed}");
    }
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
    assert!(matches!(graph, Graph::Captured(_)));
}

/// The sum overwrites a residual that has no other use; a residual in use stays unchanged.
#[test]
fn a_sum_goes_over_its_residual() {
    let Some(cuda) = crate::cuda() else { return };
    let size = [33, 50];
    let block = Block::new(&cuda, size, 64, 64, [32, 16]);
    let x = || Shape::dense(size[0] * size[1], 64).tensor(&cuda, 1).into();
    let made = || block.first(&x()).unwrap();
    let shared = made().pixels;
    let before = cuda.download(&shared).unwrap();
    let elsewhere = block.second(made(), shared.row_view(0..shared.rows())).unwrap();
    assert!(cuda.download(&shared).unwrap() == before, "a residual that is still in use was written");
    assert!(cuda.download(&elsewhere.pixels).unwrap() != before);
    let (h, residual) = (made(), made().pixels);
    let image = (2 * residual.rows() * residual.cols()) as u64;
    let held = cuda.stats().memory_bytes;
    let over = block.second(h, residual).unwrap();
    let now = cuda.stats().memory_bytes;
    assert!(
        now + image <= held + STATISTICS_BYTES && now + 2 * image > held,
        "h should be freed, and the sum take no memory: {held} before, {now} after"
    );
    let [over_pixels, elsewhere_pixels] = [&over, &elsewhere].map(|y| cuda.download(&y.pixels).unwrap());
    let norms = [&over, &elsewhere].map(|y| cuda.download(&block.norm_of(y).unwrap()).unwrap());
    if on_hopper(&cuda) {
        assert!(over_pixels == elsewhere_pixels);
        assert!(norms[0] == norms[1], "the statistics are of the old values");
    } else {
        // cuBLASLt may add a residual differently when it overwrites it.
        compare("over the residual", &over_pixels, &elsewhere_pixels, WITH_EPILOGUE);
        compare("its norm", &norms[0], &norms[1], 2.0 * WITH_EPILOGUE);
    }
}

/// More than the statistics of a small image need.
const STATISTICS_BYTES: u64 = 1 << 18;

/// Doubles height and width, on the device.
fn doubled(x: &Tensor<Cuda>, [height, width]: [usize; 2], times: usize) -> Tensor<Cuda> {
    let mut x = x.upsample(height, width).unwrap();
    for step in 1..times {
        x = x.upsample(height << step, width << step).unwrap();
    }
    x
}

#[test]
fn a_small_conv2d_over_is_conv2d() {
    let Some(cuda) = crate::cuda() else { return };
    for (cin, cout) in [(64, 32), (32, 64), (24, 24), (9, 7)] {
        let (weight, bias, conv) = (weight(cin, cout, 1).conv(&cuda), vector(&cuda, 3, cout), Conv::same(19, 7, 1));
        let x = || Shape::dense(19 * 7, cin).tensor(&cuda, 1);
        let expected = cuda.download(&x().conv2d(&weight, &bias, conv).unwrap().pixels).unwrap();
        let over = x().conv2d_over(&weight, &bias, conv).unwrap().pixels;
        assert!(cuda.download(&over).unwrap() == expected, "{cin} -> {cout}");
    }
}

/// Two pieces and a few more rows: the first piece, or all of them, are written to other memory and then copied.
#[test]
fn a_large_conv2d_over_is_conv2d_in_the_memory_of_its_input() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    for (cin, cout) in [(256, 128), (136, 128)] {
        let small = [257, 256];
        let [height, width] = small.map(|side| 4 * side);
        let seed = Shape::dense(small[0] * small[1], cin).tensor(&cuda, 1);
        let (weight, bias, conv) =
            (weight(cin, cout, 1).conv(&cuda), vector(&cuda, 3, cout), Conv::same(height, width, 1));
        let x = doubled(&seed, small, 2);
        let expected = x.conv2d(&weight, &bias, conv).unwrap().pixels;
        let shared = x.row_view(0..x.rows());
        let elsewhere = x.conv2d_over(&weight, &bias, conv).unwrap().pixels;
        let last = height * width - 5000..height * width;
        let rows = |tensor: &Tensor<Cuda>, rows: std::ops::Range<usize>| cuda.download(&tensor.row_view(rows)).unwrap();
        let [first_of_x, last_of_x] = [0..5000, last.clone()].map(|range| rows(&shared, range));
        let again = doubled(&seed, small, 2);
        assert!(
            rows(&again, 0..5000) == first_of_x && rows(&again, last) == last_of_x,
            "an input that is still in use was written"
        );
        drop(shared);
        let held = cuda.stats().memory_bytes;
        let over = again.conv2d_over(&weight, &bias, conv).unwrap().pixels;
        assert_eq!(cuda.stats().memory_bytes, held, "{cin} -> {cout}: the memory of the input is that of the result");
        let expected = cuda.download(&expected).unwrap();
        assert!(cuda.download(&elsewhere).unwrap() == expected, "{cin} -> {cout}");
        assert!(cuda.download(&over).unwrap() == expected, "{cin} -> {cout} over its input");
    }
}

/// The weights of a residual block.
fn resnet_files(folder: &tempfile::TempDir, cin: usize, cout: usize) -> TensorFiles {
    let shapes = [
        ("norm1.weight", vec![cin]),
        ("norm1.bias", vec![cin]),
        ("conv1.weight", vec![cout, cin, 3, 3]),
        ("conv1.bias", vec![cout]),
        ("norm2.weight", vec![cout]),
        ("norm2.bias", vec![cout]),
        ("conv2.weight", vec![cout, cout, 3, 3]),
        ("conv2.bias", vec![cout]),
        ("conv_shortcut.weight", vec![cout, cin, 1, 1]),
        ("conv_shortcut.bias", vec![cout]),
    ];
    let bytes: Vec<Vec<u8>> = (10..)
        .zip(&shapes)
        .map(|(seed, (_, shape))| {
            let scale = (2.0 / shape[1..].iter().product::<usize>() as f32).sqrt();
            values(seed, shape.iter().product()).iter().flat_map(|v| (v * scale).to_le_bytes()).collect()
        })
        .collect();
    let views = shapes
        .iter()
        .zip(&bytes)
        .map(|((name, shape), bytes)| (*name, FileTensor::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &folder.path().join("w.safetensors")).unwrap();
    Folder::Disk(folder.path().to_path_buf()).tensors("w").unwrap()
}

/// The block of klein's decoder that needs the most memory, for 2048 x 2048 pixels.
#[test]
fn a_residual_block_holds_its_input_its_middle_and_a_band() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    if cuda.available_bytes() < 8 << 30 {
        println!("skipped: less than 8 GiB of GPU memory are free");
        return;
    }
    let (side, cin, cout) = (2048, 256, 128);
    let folder = tempfile::tempdir().unwrap();
    let files = resnet_files(&folder, cin, cout);
    let block = ResnetBlock::load(&Weights::new(&cuda, &files), cin, cout, 32).unwrap();
    let seed = Shape::dense(128 * 128, cin).tensor(&cuda, 1);
    let run = || {
        let x = Grid::new(doubled(&seed, [128, 128], 4), side, side);
        let before = cuda.stats();
        let y = block.forward(x).unwrap().pixels;
        // Some rows of pixels, from several tiles, bands and pieces.
        let rows = [0, 15, 127, 511, 1024, 1777, 2047]
            .map(|row| cuda.download(&y.row_view(row * side..(row + 1) * side)).unwrap());
        (before, cuda.stats(), rows)
    };
    // The library's workspace, statistics, and rows around a band.
    let few = 128u64 << 20;
    let [x_bytes, h_bytes] = [cin, cout].map(|channels| (2 * side * side * channels) as u64);
    let (before, after, banded) = run();
    let bound = before.memory_bytes + h_bytes + cuda.costs().norm_conv2d_bytes(x_bytes, Bands::Wide) + few;
    let mib = |bytes: u64| bytes >> 20;
    println!(
        "{} MiB before, at most {} MiB, bound {} MiB",
        mib(before.memory_bytes),
        mib(after.peak_memory_bytes),
        mib(bound)
    );
    assert!(cuda.costs().norm_conv2d_bytes(x_bytes, Bands::Wide) <= 512 << 20);
    assert!(after.peak_memory_bytes <= bound, "{} of {bound} bytes", after.peak_memory_bytes);
    cuda.limit_bands(usize::MAX);
    let (_, after, whole) = run();
    assert!(after.peak_memory_bytes > bound, "a whole norm takes more");
    assert!(banded == whole, "bands changed the result");
}

#[test]
fn an_image_in_bands_is_the_same_image() {
    let Some(cuda) = crate::cuda() else { return };
    let side = crate::small().then_some(64);
    let request = |seed| Request { width: side, height: side, ..Request::new("a ghost", seed) };
    let images = |limit: usize| {
        cuda.limit_bands(limit);
        let model = Model::load(cuda.clone(), &default_model()).unwrap();
        // The second decode is captured, and later ones are launched as graphs.
        [1, 1, 2, 1].map(|seed| model.generate(&request(seed)).unwrap().rgb)
    };
    let whole = images(usize::MAX);
    assert!(images(0) == whole);
    assert!(whole[0] == whole[1] && whole[0] == whole[3] && whole[0] != whole[2]);
}
