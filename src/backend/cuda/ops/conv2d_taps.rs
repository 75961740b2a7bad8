//! Launches cuda/conv2d_taps.cu: convolutions with several taps on GPUs without dedicated kernels.

use std::ffi::c_void;

use super::conv2d_input::{Input, InputBand};
use super::leaky_relu::activation_arguments;
use crate::backend::cuda::element::Element;
use crate::backend::cuda::gemm::{Matrix, Product};
use crate::backend::cuda::launch;
use crate::backend::cuda::layout::assert_layout;
use crate::backend::cuda::{Cuda, all_aligned};
use crate::error::Result;
use crate::ops::{Activation, Conv};

/// `ROWS` and `THREADS` of cuda/conv2d_taps.cu, and the stages of its kernels.
const ROWS: usize = 128;
const THREADS: usize = 128;
const STAGES: usize = 3;
/// The smallest step; the channels must be a multiple of it.
const STEP: usize = 32;
/// The kernels for few output channels, for any number, and for a GPU with room for two blocks of long steps on a
/// multiprocessor.
const NARROW: Form = Form { kernel: "conv2d_taps_narrow", cols: 16, step: STEP };
const SHORT: Form = Form { kernel: "conv2d_taps_32", cols: 128, step: STEP };
const LONG: Form = Form { kernel: "conv2d_taps_64", cols: 128, step: 64 };

/// A kernel: output channels of a tile, and channels of a step.
#[derive(Clone, Copy)]
struct Form {
    kernel: &'static str,
    cols: usize,
    step: usize,
}

impl Form {
    fn choose(capability: (i32, i32), channels: usize, outputs: usize) -> Self {
        match capability {
            _ if outputs <= NARROW.cols => NARROW,
            // 228 KiB of shared memory; others have 100 to 164.
            (9 | 10, _) if channels.is_multiple_of(LONG.step) => LONG,
            _ => SHORT,
        }
    }

    fn shared_bytes(self) -> usize {
        STAGES * (ROWS + self.cols) * self.step * Element::BYTES
    }
}
/// The kernel has 16-bit pixel coordinates.
const MAX_SIDE: usize = 1 << 14; // leaves room for some halo rows

/// `Arguments` in cuda/conv2d_taps.cu, field by field.
#[repr(C)]
struct Arguments {
    x: u64,
    weight: u64,
    bias: u64,
    slopes: u64,
    residual: u64,
    out: u64,
    ld_x: i64,
    ld_weight: i64,
    ld_residual: i64,
    ld_out: i64,
    first_row: i32,
    rows: i32,
    channels: i32,
    out_channels: i32,
    height: i32,
    width: i32,
    kernel: i32,
    stride: i32,
    pad_before: i32,
    out_width: i32,
    above: i32,
    first_y: i32,
    doubled: i32,
    activates: i32,
}

assert_layout! { Arguments: 136, x: 0, weight: 8, bias: 16, slopes: 24, residual: 32, out: 40, ld_x: 48, ld_weight: 56,
ld_residual: 64, ld_out: 72, first_row: 80, rows: 84, channels: 88, out_channels: 92, height: 96, width: 100,
kernel: 104, stride: 108, pad_before: 112, out_width: 116, above: 120, first_y: 124, doubled: 128, activates: 132 }

/// The position of a piece's pixels.
pub(super) struct Place {
    pub conv: Conv,
    /// Rows of pixels of the halo.
    pub halo: [usize; 2],
    /// The piece's first output pixel.
    pub first_row: usize,
    /// `true` if the image repeats every pixel four times, and `conv` is one of four of the image itself.
    pub doubled: bool,
}

/// Returns the bytes of the stages of a kernel on GPUs of a capability; 0 if it is not launched there.
#[cfg(test)]
pub(super) fn shared_bytes(kernel: &str, capability: (i32, i32)) -> usize {
    let forms = [Form::choose(capability, LONG.step, NARROW.cols), Form::choose(capability, STEP, SHORT.cols)];
    let forms = forms.into_iter().chain([Form::choose(capability, LONG.step, SHORT.cols)]);
    forms.into_iter().find(|form| form.kernel == kernel).map_or(0, Form::shared_bytes)
}

/// Returns `true` if the kernel supports a matrix multiplication with gathered pixels.
pub(super) fn takes(input: &Input<'_>, conv: Conv, product: &Product) -> bool {
    let channels = input.source().cols();
    let aligned = |matrix: Matrix| matrix.address.is_multiple_of(16) && matrix.stride.is_multiple_of(8);
    let outputs = product.n.is_multiple_of(8) && [product.out, product.weight].into_iter().all(aligned);
    input.aligned()
        && channels > 0
        && channels.is_multiple_of(STEP)
        && outputs
        && product.residual.is_none_or(aligned)
        && product.bias.is_none_or(|bias| bias.is_multiple_of(4))
        && product.scales.is_none()
        && conv.width.max(conv.height) < MAX_SIDE
}

impl Cuda {
    /// Computes `product` over the pixels of a piece, if [`takes`] accepted it.
    pub(super) fn run_taps(
        &self,
        part: &InputBand,
        place: &Place,
        product: &Product,
        activation: Option<Activation<'_, Cuda>>,
    ) -> Result<()> {
        let Place { conv, halo: [above, below], first_row, doubled } = *place;
        let x = &part.pixels;
        debug_assert!(all_aligned(&[x]), "checked by `takes`");
        let form = Form::choose(self.device().capability, x.cols(), product.n);
        let int = |value: usize| launch::int(value, || format!("kernel `{}`", form.kernel));
        let (activates, slopes) = activation_arguments(activation);
        let mut arguments = Arguments {
            x: x.address(),
            weight: product.weight.address,
            bias: product.bias.unwrap_or(0),
            slopes,
            residual: product.residual.map_or(0, |residual| residual.address),
            out: product.out.address,
            ld_x: x.stride() as i64,
            ld_weight: product.weight.stride as i64,
            ld_residual: product.residual.map_or(0, |residual| residual.stride as i64),
            ld_out: product.out.stride as i64,
            first_row: int(first_row)?,
            rows: int(product.m)?,
            channels: int(x.cols())?,
            out_channels: int(product.n)?,
            height: int(above + conv.height + below)?,
            width: int(conv.width)?,
            kernel: int(conv.kernel)?,
            stride: int(conv.stride)?,
            pad_before: int(conv.pad_before)?,
            out_width: int(conv.out_width())?,
            above: int(above)?,
            first_y: int(part.first)?,
            doubled: i32::from(doubled),
            activates,
        };
        let launch = self.launch("conv2d_taps", form.kernel)?.shared(form.shared_bytes() as u32)?;
        let places = if doubled { 4 } else { 1 };
        let blocks = places * product.m.div_ceil(ROWS) * product.n.div_ceil(form.cols);
        let mut pointers: [*mut c_void; 1] = [std::ptr::from_mut(&mut arguments).cast()];
        // SAFETY: the kernel takes `Arguments`, laid out as there, with THREADS threads and the shared memory of its
        // form. It reads only inside the image and its halo, and only the rows that `rows_seen` returned, which `part`
        // has; `takes` found all rows aligned; the weight has product.n rows of taps * channels values, in whole steps,
        // the bias and the slopes as many values, and out and residual product.m rows. For a doubled image, weight and
        // out have four times as many, and there is no residual. A block reads only the cells of the residual that it
        // writes.
        unsafe { launch.run_raw([blocks, 1, 1], [THREADS, 1, 1], &mut pointers) }
    }
}
