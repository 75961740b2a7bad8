//! Shared code of the launchers of attention kernels for Hopper.

use cudarc::driver::sys;

use crate::backend::cuda::hopper::{Axis, Choice};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::TokenLayout;

/// The choice of a kernel.
pub const CHOICE: Choice =
    Choice { op: "attention", variable: "FLUX_ATTENTION", file: "attention_sm90a", forms: &[SINGLE] };
/// The variant of Hopper's kernels without pairs of blocks.
pub const SINGLE: &str = "sm90-single";

/// Returns `true` if the text and the image of a sample are not contiguous, so that no tile contains both.
pub fn apart(layout: TokenLayout) -> bool {
    layout.batch > 1 && layout.txt > 0 && layout.image_stream() > 0
}

/// Returns a map of `x`, which is not empty and has whole heads of a multiple of 64 columns, in boxes of 64 columns and
/// `box_rows` rows.
pub fn tensor_map(x: &Tensor<Cuda>, box_rows: usize) -> Result<sys::CUtensorMap> {
    // The stride of a single row is unused, and need not be aligned.
    let step = if x.rows() > 1 { x.stride() } else { x.cols() };
    let columns = Axis { cells: x.cols(), step: 1, in_box: 64 };
    CHOICE.tensor_map(x.address(), [columns, Axis { cells: x.rows(), step, in_box: box_rows }])
}
