//! Factors of low rank beside a weight, as kernels read them that add them to their sums: in bf16 `x down^T` and up.
//! Beside a weight in e4m3 down is brought to e4m3 too, each row with a scale as x has, and both factors are divided by
//! the scales that the sums are multiplied by afterwards (cuda/unscale.cu).

use crate::backend::cuda::buffer::BufferKind;
use crate::backend::cuda::gemm::Matrix;
use crate::backend::cuda::ops::quantise::quantised_block;
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::files::e4m3::MULTIPLE;
use crate::nn::LowRank;

/// What is beside the product of one x with a weight.
pub(super) struct Factors {
    /// x down^T [rows, rank].
    pub(super) low: Tensor<Cuda>,
    /// [out, rank], which lies in `own` or in the layer.
    pub(super) up: Matrix,
    pub(super) up_rows: usize,
    /// Keeps `up` until the launch that reads it.
    _own: Option<Tensor<Cuda>>,
}

impl Cuda {
    /// The factors beside `weight` for x, which is as [`Cuda::operand`] makes it.
    pub(super) fn factors(&self, x: &Tensor<Cuda>, weight: &Weight, factors: &LowRank<Cuda>) -> Result<Factors> {
        let LowRank { down, up } = factors;
        let (low, up) = (self.linear_of(x, down, None)?, up.weight());
        let of_up = Matrix { address: up.address(), stride: up.stride() };
        if !weight.is_e4m3() {
            return Ok(Factors { low, up: of_up, up_rows: up.rows(), _own: None });
        }
        let low = self.unscale(Matrix::of(&low), [low.rows(), low.cols()], x.scales())?;
        let own = self.unscale(of_up, [up.rows(), up.cols()], weight.scales())?;
        Ok(Factors { low, up: Matrix::of(&own), up_rows: up.rows(), _own: Some(own) })
    }

    /// The matrix `x` [rows, cols] in bf16, each row divided by its scale. Rows of the result are aligned.
    fn unscale(&self, x: Matrix, [rows, cols]: [usize; 2], scales: u64) -> Result<Tensor<Cuda>> {
        let padding = cols.next_multiple_of(MULTIPLE) - cols;
        let [out, _] = self.empty(rows, cols + padding)?.split_cols([cols, padding]);
        let wide = cols.is_multiple_of(8) && x.stride.is_multiple_of(8) && x.address.is_multiple_of(16);
        let launch = self.launch("unscale", if wide { "unscale" } else { "unscale_any" })?;
        let launch = launch.address(x.address).long(x.stride).address(scales).matrix(&out).int(rows).int(cols);
        // SAFETY: argument types and order match `unscale` and `unscale_any` in cuda/unscale.cu. `out` was made for all
        // rows and columns; what calls this has a scale for each row.
        unsafe { launch.run_rows(rows, cols, wide) }?;
        Ok(out)
    }

    /// The rows of a weight of 16 bits in e4m3, as [`Cuda::quantise`] brings an activation there. Rows behind them are
    /// padding, whose values mean nothing.
    pub(super) fn rows_in_e4m3(&self, weight: &Weight) -> Result<Tensor<Cuda>> {
        let (rows, cols) = (weight.rows(), weight.cols());
        let out = self.empty_quantised(BufferKind::E4m3, rows.next_multiple_of(MULTIPLE), cols)?;
        let block = quantised_block(cols).filter(|_| cols.is_multiple_of(8));
        let kernel = if block.is_some() { "quantise_bf16" } else { "quantise_bf16_any" };
        let launch = self.launch("quantise", kernel)?.address(weight.address()).long(weight.stride());
        let launch = launch.quantised(&out).int(rows).int(cols);
        // SAFETY: argument types and order match `quantise_bf16` and `quantise_bf16_any` in cuda/quantise.cu; `out` has
        // the weight's rows and more, and its columns, padded. A block writes one row of `out`, and its scale.
        unsafe { launch.run([rows, 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }
}
