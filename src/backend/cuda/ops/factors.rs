//! Low-rank factors of a weight, as cuda/project_sm90a.cu reads them: down in the weight's type, up in bf16. For a
//! weight in e4m3 the rows of up are divided by the weight's scales, because the sums are multiplied by them afterwards
//! (cuda/unscale.cu): once for all matrix multiplications, or before each one if the scales have no fixed address.

use super::dequantize::Ready;
use crate::backend::Storage;
use crate::backend::cuda::Cuda;
use crate::backend::cuda::buffer::Buffer;
use crate::backend::cuda::launch::row_tiles;
use crate::backend::cuda::weight::Weight;
use crate::error::Result;
use crate::nn::{Linear, LowRank};

/// The factors of one weight, ready for a launch.
pub(super) struct Factors<'a> {
    pub(super) down: Ready<'a>,
    pub(super) up: Ready<'a>,
}

impl Cuda {
    /// See [`WeightStore::factors_for`](crate::backend::WeightStore::factors_for).
    pub(crate) fn factors_for_op(&self, base: &Linear<Cuda>, factors: LowRank<Cuda>) -> Result<LowRank<Cuda>> {
        let LowRank { mut down, mut up } = factors;
        if !base.weight().is_e4m3() {
            return Ok(LowRank { down, up });
        }
        if down.weight().quantized_kind().is_none() {
            let (device, ready) = (self.device(), self.ready(down.weight())?);
            let quantized = self.0.uploader.quantized(device, device.stream, &ready, Storage::Fp8)?;
            down = down.with_weight(quantized);
        }
        if up.weight().quantized_kind().is_none() && !base.weight().is_streamed() && self.projects_in_one()? {
            let ready = self.ready(up.weight())?;
            let device = self.device();
            let out = Buffer::for_weights(device, device.stream, self.element().kind(), values(&ready))?;
            let divided = self.divided(&ready, base.weight(), out)?;
            up = up.with_weight(up.weight().with_divided(divided));
        }
        Ok(LowRank { down, up })
    }

    /// Returns the factors as the kernel reads them with `weight`.
    pub(super) fn factors<'a>(&self, weight: &Weight, factors: &'a LowRank<Cuda>) -> Result<Factors<'a>> {
        let (down, up) = (self.ready(factors.down.weight())?, factors.up.weight());
        let up = match up.divided() {
            _ if !weight.is_e4m3() => self.ready(up)?,
            Some(divided) => Ready::There(divided),
            None => {
                let ready = self.ready(up)?;
                let out = Buffer::new(self.device(), self.element().kind(), values(&ready))?;
                Ready::Made(self.divided(&ready, weight, out)?)
            }
        };
        Ok(Factors { down, up })
    }

    /// Writes `up` [out, rank] to `out`, each row divided by the scale of that row of `weight`, which is in e4m3.
    fn divided(&self, up: &Weight, weight: &Weight, out: Buffer) -> Result<Weight> {
        let (rows, stride) = (up.rows(), up.stride());
        let launch = self.launch("unscale", "unscale")?.address(up.address()).long(up.stride());
        let launch = launch.address(weight.scales()).address(out.address()).long(stride).int(rows).int(stride);
        let (grid, block) = row_tiles(rows, stride / 8);
        // SAFETY: argument types and order match `unscale` in cuda/unscale.cu. Rows of weights are padded with zeros to
        // whole chunks of 8; `out` has room for as many values. The weight has a scale for each row of up, because both
        // belong to one layer.
        unsafe { launch.run(grid, block) }?;
        Ok(Weight::new(out, rows, up.cols()))
    }
}

/// Returns the number of values of a weight in 16 bits, including its padding.
fn values(weight: &Weight) -> usize {
    weight.padded_rows() * weight.stride()
}
