//! Factors of low rank beside a weight, as cuda/project_sm90a.cu reads them: down like the weight, up in bf16. Beside a
//! weight in e4m3 the rows of up are divided by the weight's scales, by which the sums are multiplied afterwards
//! (cuda/unscale.cu): once for all products, or in front of each where the scales have no place of their own.

use super::dequantise::Ready;
use crate::backend::Storage;
use crate::backend::cuda::Cuda;
use crate::backend::cuda::buffer::Buffer;
use crate::backend::cuda::launch::row_tiles;
use crate::backend::cuda::weight::Weight;
use crate::error::Result;
use crate::nn::{Linear, LowRank};

/// What is beside one weight, ready for a launch.
pub(super) struct Factors<'a> {
    pub(super) down: Ready<'a>,
    pub(super) up: Ready<'a>,
}

impl Cuda {
    /// See [`WeightStore::factors_beside`](crate::backend::WeightStore::factors_beside).
    pub(crate) fn factors_beside_op(&self, base: &Linear<Cuda>, factors: LowRank<Cuda>) -> Result<LowRank<Cuda>> {
        let LowRank { mut down, mut up } = factors;
        if !base.weight().is_e4m3() {
            return Ok(LowRank { down, up });
        }
        if down.weight().quantised_kind().is_none() {
            let (device, ready) = (self.device(), self.ready(down.weight())?);
            let quantised = self.0.uploader.quantised(device, device.stream(), &ready, Storage::Fp8)?;
            down = down.with_weight(quantised);
        }
        if up.weight().quantised_kind().is_none() && !base.weight().is_streamed() && self.projects_in_one()? {
            let ready = self.ready(up.weight())?;
            let device = self.device();
            let out = Buffer::of_weights(device, device.stream(), self.element().kind(), values(&ready))?;
            let divided = self.divided(&ready, base.weight(), out)?;
            up = up.with_weight(up.weight().with_divided(divided));
        }
        Ok(LowRank { down, up })
    }

    /// The factors as the kernel reads them beside `weight`.
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

    /// `up` [out, rank] in `out`, each row divided by the scale of that row of `weight`, which is in e4m3.
    fn divided(&self, up: &Weight, weight: &Weight, out: Buffer) -> Result<Weight> {
        let (rows, stride) = (up.rows(), up.stride());
        let launch = self.launch("unscale", "unscale")?.address(up.address()).long(up.stride());
        let launch = launch.address(weight.scales()).address(out.address()).long(stride).int(rows).int(stride);
        let (grid, block) = row_tiles(rows, stride / 8);
        // SAFETY: argument types and order match `unscale` in cuda/unscale.cu. Rows of weights are padded with zeros to
        // whole chunks of 8; `out` was made for as many values. The weight has a scale for each row of up, because both
        // are beside each other in a layer.
        unsafe { launch.run(grid, block) }?;
        Ok(Weight::new(out, rows, up.cols()))
    }
}

/// How many values a weight in 16 bits has, with its padding.
fn values(weight: &Weight) -> usize {
    weight.padded_rows() * weight.stride()
}
