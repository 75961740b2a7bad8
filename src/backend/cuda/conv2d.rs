//! `conv2d` and `conv2d_add`. Launches cuda/conv2d.cu: a GEMM over im2col rows, some pixels at a time, for every convolution on every GPU.
//! Hopper has a kernel of its own for 3 x 3 over whole 16 bytes of channels, in `conv2d_hopper`.

use super::conv2d_hopper::{CHOICE, Call, takes};
use super::gemm::{Matrix, Product};
use super::launch::row_tiles;
use super::pool::{Buffer, Kind};
use super::{Cuda, Tensor, all_aligned};
use crate::error::Result;
use crate::ops::Conv;

/// The most that im2col rows may take.
const WORKSPACE_BYTES: usize = 256 << 20;

impl Cuda {
    /// `conv2d(x) + residual`; the result goes over `residual` where that is writable.
    ///
    /// Errors when `FLUX_CONV2D` names no kernel that is here.
    pub(super) fn conv2d_op(
        &self,
        x: &Tensor<Cuda>,
        weight: &Tensor<Cuda>,
        bias: &Tensor<Cuda>,
        conv: Conv,
        residual: Option<Tensor<Cuda>>,
    ) -> Result<Tensor<Cuda>> {
        let hopper = self.hopper_wanted(CHOICE)?;
        let rows = conv.out_height() * conv.out_width();
        let fresh = match &residual {
            Some(residual) => self.unless_writable(residual)?,
            None => Some(self.linear_output(rows, weight, Some(bias))?),
        };
        let out = fresh.as_ref().or(residual.as_ref()).expect("one of both is there: `unless_writable` makes a tensor unless residual serves");
        let same = conv == Conv::same(conv.height, conv.width, 3);
        let mut moments = None;
        if hopper && same && takes(x, weight, bias) && all_aligned(&[out]) && residual.as_ref().is_none_or(Tensor::aligned) {
            moments = self.run_hopper_conv2d(&Call { x, weight, bias, residual: residual.as_ref(), out, height: conv.height, width: conv.width })?;
        } else {
            let from_residual = residual.as_ref().map(Matrix::of);
            let product = Product { bias: Some(bias.address()), residual: from_residual, ..self.product(x, weight, Matrix::of(out), out.cols()) };
            if conv.kernel == 1 && conv.stride == 1 && conv.pad_before + conv.pad_after == 0 {
                self.gemm()?.run(&product)?;
            } else {
                self.conv2d_rows(x, weight, conv, rows, &product)?;
            }
        }
        let out = fresh.or(residual).expect("as above");
        let rest = out.cols() - weight.rows();
        let [out, _] = out.split_cols([weight.rows(), rest]);
        Ok(match moments {
            // Not of columns that pad the output.
            Some(moments) if rest == 0 => out.with_moments(moments),
            _ => out,
        })
    }

    fn conv2d_rows(&self, x: &Tensor<Cuda>, weight: &Tensor<Cuda>, conv: Conv, rows: usize, product: &Product) -> Result<()> {
        let stride = weight.cols().next_multiple_of(8);
        // The columns behind the last are zeros in im2col rows; where they are in the weight as well, they may take part.
        let k = if weight.buffer().zero_padded() && weight.stride() == stride { stride } else { weight.cols() };
        let most_rows = (WORKSPACE_BYTES / (2 * stride)).max(1);
        let pieces = rows.div_ceil(most_rows);
        // Pieces of one size, so that one plan serves all but the last; whole tiles of the GEMM.
        let piece_rows = rows.div_ceil(pieces).next_multiple_of(128).min(most_rows).max(1);
        let columns = Buffer::new(self.device(), Kind::Bf16, piece_rows.min(rows) * stride)?;
        let wide = all_aligned(&[x]);
        let taps = conv.kernel * conv.kernel;
        let mut first = 0;
        while first < rows {
            let count = piece_rows.min(rows - first);
            let launch = self.launch("conv2d", if wide { "im2col_bf16" } else { "im2col_bf16_any" })?;
            let launch = launch.matrix(x).address(columns.address()).long(stride).int(first).int(count).int(x.cols());
            let launch = launch.int(conv.height).int(conv.width).int(conv.kernel).int(conv.stride).int(conv.pad_before).int(conv.out_width());
            let (grid, block) = row_tiles(count, if wide { x.cols() / 8 } else { x.cols() });
            // SAFETY: argument types and order match cuda/conv2d.cu. `Tensor::conv2d` checked x to have height * width rows; the kernel reads
            // inside the picture only and writes `count` rows of `stride` values, for which `columns` has room. The GEMM before, which read
            // `columns`, is ahead of it on the same stream.
            unsafe { launch.run([grid[0] * taps, 1, 1], block) }?;
            self.gemm()?.run(&Product {
                m: count,
                k,
                x: Matrix { address: columns.address(), stride },
                residual: product.residual.map(|residual| residual.row(first, 2)),
                out: product.out.row(first, 2),
                ..*product
            })?;
            first += count;
        }
        Ok(())
    }
}
