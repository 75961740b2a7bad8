//! cuda/upsample_conv2d_sm90a.cu, cuda/conv2d_taps.cu and im2col of an upsampled image, against the CPU in float32.

use flux::backend::Device;
use flux::backend::cuda::Cuda;
use flux::ops::Conv;

use crate::compare::{Shape, WITH_EPILOGUE, check_against, check_choices, vector};
use crate::conv2d::{Conv2d, RAGGED, weight};

fn check_upsampled(cuda: &Cuda, [height, width]: [usize; 2], cin: usize, cout: usize, beside: [usize; 2]) {
    let weight = weight(cin, cout, 3);
    let x = Shape::view(height * width, cin, beside[0], beside[1]);
    let case = Conv2d { upsample: true, ..Conv2d::new(x, &weight, Conv::same(height, width, 3), cout) };
    // The kernel's sums of weights round once. Their errors are independent, so that they move an output by at most
    // one of its roundings.
    check_against(
        cuda,
        &format!("upsample_conv2d {height}x{width} {cin} -> {cout}, beside {beside:?}"),
        &case,
        WITH_EPILOGUE + 1.0,
        1.0,
    );
}

#[test]
fn upsample_conv2d_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for (size, cin, cout) in RAGGED.into_iter().filter(|([height, width], ..)| height * width < 4096) {
        check_upsampled(&cuda, size, cin, cout, [0, 0]);
        check_upsampled(&cuda, size, cin, cout, [8, 16]);
    }
    check_upsampled(&cuda, [9, 8], 5, 7, [0, 0]);
    check_upsampled(&cuda, [9, 8], 64, 32, [3, 0]);
    check_upsampled(&cuda, [49, 113], 64, 128, [0, 0]);
    if !crate::small() {
        check_upsampled(&cuda, [128, 128], 512, 512, [0, 0]);
        check_upsampled(&cuda, [250, 253], 256, 256, [0, 0]);
    }
}

/// More tiles than an H200 has multiprocessors, of 16 x 16 x 128, 16 x 8 x 128, and 32 x 16 x 64 with one and with
/// three boxes of channels.
#[test]
fn upsample_conv2d_of_many_ragged_tiles_matches_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    check_upsampled(&cuda, [67, 130], 24, 136, [0, 0]);
    check_upsampled(&cuda, [90, 90], 72, 128, [0, 0]);
    check_upsampled(&cuda, [99, 130], 64, 64, [8, 0]);
    check_upsampled(&cuda, [90, 200], 136, 40, [0, 16]);
}

/// Apart from the kernel for Hopper there are the one for all GPUs, and im2col. Both read the image before upsampling.
#[test]
fn each_kernel_can_be_asked_for() {
    let Some(cuda) = crate::cuda() else { return };
    check_choices(&cuda, "upsample_conv2d::upsample_conv2d_matches_the_cpu", "FLUX_CONV2D");
}

/// No upsampled image is made if a kernel needs none.
#[test]
fn hopper_launches_two_kernels_for_an_upsampled_image() {
    let Some(cuda) = crate::cuda_hopper() else { return };
    for cout in [64, 128, 320] {
        let (weight, bias) = (weight(64, cout, 3).conv(&cuda), vector(&cuda, 3, cout));
        let input = Shape::dense(9 * 11, 64).tensor(&cuda, 1);
        let before = cuda.stats().launches;
        input.upsample_conv2d(&weight, &bias, 9, 11).unwrap();
        assert_eq!(cuda.stats().launches - before, 2, "the sums of weights, and the convolution: 64 -> {cout}");
    }
}
