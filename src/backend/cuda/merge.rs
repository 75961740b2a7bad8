//! Merging of low-rank changes into weights, on the device.

use super::Cuda;
use super::buffer::Buffer;
use super::gemm::{Matrix, Product};
use super::weight::Weight;
use crate::backend::Storage;
use crate::error::Result;
use crate::nn::LowRank;

impl Cuda {
    /// Returns `base + up down` in 16 bits, then quantized to `storage`. `base` is in 16 bits.
    pub(crate) fn merge_weight_op(&self, base: &Weight, low_rank: &LowRank<Cuda>, storage: Storage) -> Result<Weight> {
        let merged = self.merged(base, low_rank)?;
        match storage {
            Storage::Native => Ok(merged),
            Storage::Fp8 | Storage::Int8 | Storage::W4a8 => {
                self.0.uploader.quantized(self.device(), self.device().stream, &merged, storage)
            }
        }
    }

    /// Returns the sum in 16 bits, accumulated in float32 and rounded once.
    fn merged(&self, base: &Weight, low_rank: &LowRank<Cuda>) -> Result<Weight> {
        let (up, down) = (low_rank.up.weight(), low_rank.down.weight());
        let (rows, cols) = (base.padded_rows(), base.padded_cols());
        let buffer = Buffer::new(self.device(), self.element().kind(), rows * cols)?;
        // The padding takes part, zeros in all operands, so that it is zeros in the sum.
        let product = Product {
            m: rows,
            n: cols,
            k: up.stride(),
            x: Matrix { address: up.address(), stride: up.stride() },
            weight: Matrix { address: down.address(), stride: down.stride() },
            scales: None,
            weight_is_kn: true,
            bias: None,
            residual: Some(Matrix { address: base.address(), stride: base.stride() }),
            out: Matrix { address: buffer.address(), stride: cols },
            out_f32: false,
        };
        // SAFETY: up [base.rows(), rank] and base are padded to equal numbers of rows, down [rank, base.cols()] to as
        // many rows as up has columns, and to the columns of base: all are 16-bit weights, padded by the same rule. The
        // buffer was allocated for the values of base including its padding, and does not overlap it.
        unsafe { self.gemm()?.run(&product) }?;
        Ok(Weight::new(buffer, base.rows(), base.cols()))
    }
}
