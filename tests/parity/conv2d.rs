//! Convolutions against the CPU in float32.

use flux::backend::cuda::Cuda;
use flux::backend::{Backend, Device, Memory};
use flux::ops::{self, Conv, Convolved, GroupNorm};
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{
    Case, Shape, WITH_EPILOGUE, Weight, check_against, check_choices, compare, values, vector, with_variable,
};

pub struct Conv2d<'a> {
    pub x: Shape,
    pub weight: &'a Weight,
    pub conv: Conv,
    pub out: usize,
    /// Columns around the residual, if there is one.
    pub residual: Option<[usize; 2]>,
    pub activation: Option<Kind>,
    /// `true` if the image is doubled first.
    pub upsample: bool,
}

/// The kind of an activation; a leaky one has a slope for each output.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Relu,
    LeakyRelu,
}

impl<'a> Conv2d<'a> {
    pub fn new(x: Shape, weight: &'a Weight, conv: Conv, out: usize) -> Self {
        Self { x, weight, conv, out, residual: None, activation: None, upsample: false }
    }

    pub fn residual<B: Backend>(&self, b: &B) -> Option<Tensor<B>> {
        let rows = self.conv.out_height() * self.conv.out_width();
        self.residual.map(|[before, after]| Shape::view(rows, self.out, before, after).tensor(b, 4))
    }
}

impl Case for Conv2d<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (x, weight, bias) = (self.x.tensor(b, 1), self.weight.conv(b), vector(b, 3, self.out));
        let (conv, slope) = (self.conv, vector(b, 5, self.out));
        let made = match (self.upsample, self.residual(b), self.activation) {
            (false, None, None) => x.conv2d(&weight, &bias, conv),
            (false, None, Some(Kind::Relu)) => x.conv2d_relu(&weight, &bias, conv),
            (false, None, Some(Kind::LeakyRelu)) => x.conv2d_leaky_relu(&weight, &bias, conv, &slope),
            (false, Some(residual), None) => x.conv2d_add(&weight, &bias, conv, residual),
            (false, Some(residual), Some(Kind::Relu)) => x.conv2d_add_relu(&weight, &bias, conv, residual),
            (true, None, None) => x.upsample_conv2d(&weight, &bias, conv.height, conv.width),
            (true, None, Some(Kind::LeakyRelu)) => {
                x.upsample_conv2d_leaky_relu(&weight, &bias, [conv.height, conv.width], &slope)
            }
            _ => panic!("no op does all of this"),
        };
        vec![made.unwrap().pixels]
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let (x, weight, bias) = (self.x.tensor(b, 1), self.weight.conv(b), vector(b, 3, self.out));
        let residual = self.residual(b);
        if residual.is_none() && self.activation.is_none() && !self.upsample {
            return vec![x.conv2d(&weight, &bias, self.conv).unwrap().pixels];
        }
        let slope = vector(b, 5, self.out);
        let activation = self.activation.map(|kind| match kind {
            Kind::Relu => ops::Activation::Relu,
            Kind::LeakyRelu => ops::Activation::LeakyRelu(&slope),
        });
        let conv2d = ops::Conv2d::new(x, &weight, &bias, self.conv);
        let conv2d = ops::Conv2d { residual, activation, upsample: self.upsample, ..conv2d };
        vec![ops::conv2d::compose(b, conv2d).unwrap().pixels]
    }
}

pub fn weight(cin: usize, cout: usize, kernel: usize) -> Weight {
    Weight::new(&values(2, cout * cin * kernel * kernel), &[cout, cin, kernel, kernel], Dtype::F32)
}

fn check_conv(cuda: &Cuda, conv: Conv, cin: usize, cout: usize, beside: [usize; 2], residual: Option<[usize; 2]>) {
    check_activated(cuda, conv, [cin, cout], (beside, residual), false);
}

fn check_activated(
    cuda: &Cuda,
    conv: Conv,
    [cin, cout]: [usize; 2],
    (beside, residual): ([usize; 2], Option<[usize; 2]>),
    relu: bool,
) {
    let weight = weight(cin, cout, conv.kernel);
    let x = Shape::view(conv.height * conv.width, cin, beside[0], beside[1]);
    let case = Conv2d { residual, activation: relu.then_some(Kind::Relu), ..Conv2d::new(x, &weight, conv, cout) };
    // With a residual the composition rounds the convolution before the sum.
    let composed = if residual.is_some() { 1.5 } else { 0.0 };
    check_against(
        cuda,
        &format!("conv2d {conv:?} {cin} -> {cout}, beside {beside:?}, residual {residual:?}, relu {relu}"),
        &case,
        WITH_EPILOGUE,
        composed,
    );
}

#[test]
fn conv2d_and_conv2d_add_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let convs = [
        Conv::same(9, 7, 3),
        Conv::same(1, 1, 3),
        Conv::same(6, 5, 1),
        Conv::halve(8, 6),
        Conv::halve(7, 9),
        Conv::same(5, 6, 5),
    ];
    let mut sampled = crate::sampled(7);
    for conv in convs {
        for (cin, cout) in [(16, 32), (3, 8), (8, 3), (5, 7), (24, 64)] {
            for (beside, residual) in [([0, 0], None), ([8, 8], Some([0, 0])), ([1, 0], Some([3, 2]))] {
                if !sampled() {
                    continue;
                }
                check_conv(&cuda, conv, cin, cout, beside, residual);
            }
        }
    }
}

#[test]
fn conv2d_matches_at_the_decoders_sizes() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    check_conv(&cuda, Conv::same(128, 128, 3), 32, 512, [0, 0], None);
    check_conv(&cuda, Conv::same(128, 128, 3), 512, 512, [0, 0], Some([0, 0]));
    // Several pieces of im2col rows, the last shorter than the others.
    check_conv(&cuda, Conv::same(500, 509, 3), 256, 128, [0, 0], Some([0, 0]));
    check_conv(&cuda, Conv::same(512, 512, 1), 256, 128, [0, 0], None);
    check_conv(&cuda, Conv::same(1024, 1024, 3), 128, 3, [0, 0], None);
    check_conv(&cuda, Conv::halve(512, 512), 128, 128, [0, 0], None);
    check_conv(&cuda, Conv::halve(256, 256), 512, 512, [0, 0], None);
    check_conv(&cuda, Conv::same(512, 512, 3), 3, 128, [0, 0], None);
}

/// Height, width, channels in and out, of images that no tile divides. The last two have so many tiles that larger
/// ones are chosen, or several for each multiprocessor.
pub const RAGGED: [([usize; 2], usize, usize); 15] = [
    ([1, 1], 64, 8),
    ([1, 17], 64, 3),
    ([17, 1], 8, 8),
    ([17, 17], 128, 128),
    ([16, 32], 64, 256),
    ([33, 50], 192, 320),
    ([7, 65], 40, 136),
    ([17, 33], 64, 32),
    ([61, 77], 96, 48),
    ([40, 100], 72, 64),
    ([33, 65], 8, 16),
    ([200, 350], 160, 64),
    ([2, 100], 512, 512),
    ([241, 121], 64, 128),
    ([87, 190], 64, 256),
];

#[test]
fn ragged_3x3_convolutions_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for ([height, width], cin, cout) in RAGGED {
        // The second residual is a view that the result overwrites.
        for (beside, residual) in [([0, 0], None), ([0, 0], Some([0, 0])), ([8, 16], Some([16, 8]))] {
            check_conv(&cuda, Conv::same(height, width, 3), cin, cout, beside, residual);
        }
    }
}

/// More tiles than an H200 has multiprocessors, so that each kernel for Hopper gets tiles after the first, also with a
/// residual: those of 16 x 16 x 128, of 16 x 8 x 128, and of 32 x 16 x 8.
#[test]
fn convolutions_of_many_ragged_tiles_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for ([height, width], cin, cout) in [([251, 298], 16, 136), ([151, 250], 72, 128), ([281, 302], 8, 8)] {
        for (beside, residual) in [([0, 0], None), ([0, 0], Some([0, 0])), ([8, 16], Some([16, 8]))] {
            check_conv(&cuda, Conv::same(height, width, 3), cin, cout, beside, residual);
        }
    }
}

/// Also with the tiny decoder's 64 channels.
#[test]
fn rectified_convolutions_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let few = [([5, 6], 5, 7), ([33, 50], 8, 3), ([17, 17], 64, 64), ([7, 65], 40, 136), ([251, 298], 64, 64)];
    for ([height, width], cin, cout) in few {
        for beside in [([0, 0], None), ([0, 0], Some([0, 0])), ([8, 16], Some([16, 8]))] {
            check_activated(&cuda, Conv::same(height, width, 3), [cin, cout], beside, true);
        }
    }
    check_activated(&cuda, Conv::same(6, 5, 1), [16, 32], ([0, 0], None), true);
    check_activated(&cuda, Conv::halve(34, 54), [40, 136], ([0, 0], None), true);
}

/// Images whose half no tile divides, one that is smaller than a tile, odd ones, which use im2col, and one with more
/// tiles than an H200 has multiprocessors.
#[test]
fn halved_images_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let cases = [
        ([2, 2], 8, 8),
        ([2, 66], 64, 128),
        ([66, 2], 16, 40),
        ([32, 64], 64, 256),
        ([34, 54], 40, 136),
        ([18, 36], 192, 320),
        ([33, 50], 64, 128),
        ([32, 51], 64, 128),
        ([226, 274], 72, 136),
    ];
    for ([height, width], cin, cout) in cases {
        for (beside, residual) in [([0, 0], None), ([0, 0], Some([0, 0])), ([8, 16], Some([16, 8]))] {
            check_conv(&cuda, Conv::halve(height, width), cin, cout, beside, residual);
        }
    }
}

/// The norm after a halved image, by the statistics from the convolution, and by a pass over the image.
#[test]
fn a_halved_image_brings_its_own_statistics() {
    let Some(cuda) = crate::cuda() else { return };
    for ([height, width], cin, cout, groups) in [([34, 54], 40, 136, 17), ([226, 274], 72, 128, 32)] {
        let (weight, bias) = (weight(cin, cout, 3).conv(&cuda), vector(&cuda, 3, cout));
        let x = Shape::dense(height * width, cin).tensor(&cuda, 1);
        let Convolved { pixels, statistics } = x.conv2d(&weight, &bias, Conv::halve(height, width)).unwrap();
        let (norm_weight, norm_bias) = (vector(&cuda, 5, cout), vector(&cuda, 6, cout));
        let normed = |statistics| {
            let norm = GroupNorm { weight: &norm_weight, bias: &norm_bias, groups, eps: 1e-6, statistics };
            cuda.download(&pixels.group_norm(&norm).unwrap()).unwrap()
        };
        compare(&format!("norm of {height}x{width} halved"), &normed(statistics.as_ref()), &normed(None), 1.0);
    }
}

#[test]
fn each_kernel_can_be_asked_for() {
    let Some(cuda) = crate::cuda() else { return };
    check_choices(&cuda, "conv2d::ragged_3x3_convolutions_match_the_cpu", "FLUX_CONV2D");
    check_choices(&cuda, "conv2d::halved_images_match_the_cpu", "FLUX_CONV2D");
    check_choices(&cuda, "conv2d::rectified_convolutions_match_the_cpu", "FLUX_CONV2D");
}

#[test]
fn an_unknown_kernel_is_an_error_that_names_the_known_ones() {
    if crate::cuda().is_none() {
        return;
    }
    let (passed, text) = with_variable("conv2d::ragged_3x3_convolutions_match_the_cpu", "FLUX_CONV2D", "winograd");
    assert!(!passed && text.contains("`winograd`") && text.contains("`base` or `sm90`"), "{text}");
}

#[test]
fn a_residual_that_may_not_be_written_stays() {
    let Some(cuda) = crate::cuda() else { return };
    let (x, weight, bias) =
        (Shape::dense(20 * 19, 64).tensor(&cuda, 1), weight(64, 128, 3).conv(&cuda), vector(&cuda, 3, 128));
    let conv = Conv::same(20, 19, 3);
    let residual = || Shape::dense(20 * 19, 128).tensor(&cuda, 4);
    let shared = residual();
    let before = cuda.download(&shared).unwrap();
    let elsewhere = x.conv2d_add(&weight, &bias, conv, shared.row_view(0..20 * 19)).unwrap().pixels;
    let over = x.conv2d_add(&weight, &bias, conv, residual()).unwrap().pixels;
    assert!(cuda.download(&shared).unwrap() == before);
    let [elsewhere, over] = [&elsewhere, &over].map(|x| cuda.download(x).unwrap());
    if crate::is_hopper(&cuda) {
        assert!(elsewhere == over);
    } else {
        // cuBLASLt may add a residual differently when it overwrites it.
        compare("over the residual", &over, &elsewhere, WITH_EPILOGUE);
    }
}

/// No im2col rows are made if a kernel needs none.
#[test]
fn hopper_launches_one_kernel_for_a_convolution() {
    let Some(cuda) = crate::cuda_hopper() else { return };
    for cout in [3, 128, 320] {
        let (weight, bias) = (weight(64, cout, 3).conv(&cuda), vector(&cuda, 3, cout));
        let input = Shape::dense(9 * 11, 64).tensor(&cuda, 1);
        let before = cuda.stats().launches;
        input.conv2d(&weight, &bias, Conv::same(9, 11, 3)).unwrap();
        assert_eq!(cuda.stats().launches - before, 1, "64 -> {cout}");
        let input = Shape::dense(18 * 22, 64).tensor(&cuda, 1);
        let before = cuda.stats().launches;
        input.conv2d(&weight, &bias, Conv::halve(18, 22)).unwrap();
        assert_eq!(cuda.stats().launches - before, 1, "64 -> {cout}, halved");
    }
}
