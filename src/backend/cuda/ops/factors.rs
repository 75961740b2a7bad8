//! Factors of low rank beside a weight, as kernels read them that add them to their sums: in bf16 `x down^T` and up.
//! Beside a weight in e4m3 down is in e4m3, too, and `x down^T` and up are divided by the scales that the sums are
//! multiplied by afterwards (cuda/unscale.cu).

use std::ffi::c_void;
use std::ptr;

use crate::backend::cuda::gemm::Matrix;
use crate::backend::cuda::launch::{self, row_tiles};
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::files::e4m3::MULTIPLE;
use crate::nn::LowRank;

/// `MATRICES` in cuda/unscale.cu: both factors beside two weights.
const MATRICES: usize = 4;

/// x as [`Cuda::operand`] makes it, a weight, and the factors that are beside that in its layer.
pub(super) type WithFactors<'a> = (&'a Tensor<Cuda>, &'a Weight, Option<&'a LowRank<Cuda>>);

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

/// `Matrices` in cuda/unscale.cu, field by field.
#[repr(C)]
#[derive(Default)]
struct Matrices {
    x: [u64; MATRICES],
    ld_x: [i64; MATRICES],
    scale: [u64; MATRICES],
    out: [u64; MATRICES],
    ld_out: [i64; MATRICES],
    rows: [i32; MATRICES],
    cols: [i32; MATRICES],
}

/// A matrix [rows, cols] in bf16, and a scale for each row.
struct Scaled {
    x: Matrix,
    shape: [usize; 2],
    scales: u64,
}

impl Cuda {
    /// The factors beside each of at most two weights, which are all in e4m3, or none.
    pub(super) fn factors(&self, parts: &[WithFactors<'_>]) -> Result<Vec<Option<Factors>>> {
        let plain = |&(x, _, low_rank): &WithFactors<'_>| {
            let Some(LowRank { down, up }) = low_rank else { return Ok(None) };
            let (low, up) = (self.linear_of(x, down, None)?, up.weight());
            let of_up = Matrix { address: up.address(), stride: up.stride() };
            Ok(Some(Factors { low, up: of_up, up_rows: up.rows(), _own: None }))
        };
        let mut all = parts.iter().map(plain).collect::<Result<Vec<_>>>()?;
        if all.iter().all(Option::is_none) || !parts.iter().any(|(_, weight, _)| weight.is_e4m3()) {
            return Ok(all);
        }
        let scaled = parts.iter().zip(&all).filter_map(|((x, weight, _), factors)| {
            let Factors { low, up, up_rows, .. } = factors.as_ref()?;
            let of_low = Scaled { x: Matrix::of(low), shape: [low.rows(), low.cols()], scales: x.scales() };
            Some([of_low, Scaled { x: *up, shape: [*up_rows, low.cols()], scales: weight.scales() }])
        });
        let mut unscaled = self.unscale(&scaled.flatten().collect::<Vec<_>>())?.into_iter();
        for factors in all.iter_mut().flatten() {
            if let (Some(low), Some(up)) = (unscaled.next(), unscaled.next()) {
                *factors = Factors { low, up: Matrix::of(&up), up_rows: up.rows(), _own: Some(up) };
            }
        }
        Ok(all)
    }

    /// The matrices, each row divided by its scale. Rows of the results are aligned.
    fn unscale(&self, matrices: &[Scaled]) -> Result<Vec<Tensor<Cuda>>> {
        let out = matrices.iter().map(|Scaled { shape: [rows, cols], .. }| {
            let padding = cols.next_multiple_of(MULTIPLE) - cols;
            let [out, _] = self.empty(*rows, cols + padding)?.split_cols([*cols, padding]);
            Ok(out)
        });
        let out = out.collect::<Result<Vec<_>>>()?;
        let wide = matrices.iter().all(|Scaled { x, shape: [_, cols], .. }| {
            cols.is_multiple_of(8) && x.stride.is_multiple_of(8) && x.address.is_multiple_of(16)
        });
        let launch = self.launch("unscale", if wide { "unscale" } else { "unscale_any" })?;
        let int = |value: usize| launch::int(value, || "kernel `unscale`".to_string());
        let mut given = Matrices::default();
        for (place, (Scaled { x, shape: [rows, cols], scales }, out)) in matrices.iter().zip(&out).enumerate() {
            (given.x[place], given.ld_x[place], given.scale[place]) = (x.address, x.stride as i64, *scales);
            (given.out[place], given.ld_out[place]) = (out.address(), out.stride() as i64);
            (given.rows[place], given.cols[place]) = (int(*rows)?, int(*cols)?);
        }
        let most = |side: usize| matrices.iter().map(|Scaled { shape, .. }| shape[side]).max().unwrap_or(0);
        let ([tiles, _, _], block) = row_tiles(most(0), most(1).div_ceil(if wide { 8 } else { 1 }));
        let mut arguments: [*mut c_void; 1] = [ptr::from_mut(&mut given).cast()];
        // SAFETY: the kernels in cuda/unscale.cu take `Matrices`, laid out as there. Each `out` was made for all rows
        // and columns; what calls this has a scale for each row. There are at most MATRICES, one for each y of the
        // grid.
        unsafe { launch.run_raw([tiles, matrices.len(), 1], block, &mut arguments) }?;
        Ok(out)
    }
}
