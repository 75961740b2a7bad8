//! Weights with a change of low rank, made on the device from a weight that is there.

use super::Cuda;
use super::buffer::Buffer;
use super::gemm::{Matrix, Product};
use super::weight::Weight;
use crate::backend::Storage;
use crate::error::Result;
use crate::nn::LowRank;

impl Cuda {
    /// `base + up down` in 16 bits, quantised after that where `storage` says so. `base` is so, too.
    pub(crate) fn merge_weight_op(&self, base: &Weight, low_rank: &LowRank<Cuda>, storage: Storage) -> Result<Weight> {
        let merged = self.merged(base, low_rank)?;
        match storage {
            Storage::Native => Ok(merged),
            Storage::Fp8 | Storage::Int8 | Storage::W4a8 => {
                self.0.uploader.quantised(self.device(), self.device().stream(), &merged, storage)
            }
        }
    }

    /// 16 bits, summed in float32 and rounded once.
    fn merged(&self, base: &Weight, low_rank: &LowRank<Cuda>) -> Result<Weight> {
        let (up, down) = (low_rank.up.weight(), low_rank.down.weight());
        let (rows, cols) = (base.padded_rows(), base.padded_cols());
        let buffer = Buffer::new(self.device(), self.element().kind(), rows * cols)?;
        // The padding, which is zeros in all of them, takes part, so that it is zeros in the sum.
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
        // SAFETY: up [base.rows(), rank] and base are padded to the same number of rows, down [rank, base.cols()] to as
        // many rows as up has columns, and to the columns of base: all are 16-bit weights, padded by the same rule. The
        // buffer was made for as many values as base has with its padding, and is no part of it.
        unsafe { self.gemm()?.run(&product) }?;
        Ok(Weight::new(buffer, base.rows(), base.cols()))
    }
}
