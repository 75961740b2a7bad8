//! Launches cuda/adaln.cu: `adaln`, alone and for a product, and `layer_norm`.

use super::launch::row_block;
use super::quantise::e4m3_block;
use super::{Cuda, Tensor, all_aligned};
use crate::error::Result;
use crate::ops::AdalnLinear;

impl Cuda {
    pub(super) fn adaln_op(&self, x: &Tensor<Cuda>, shift: &Tensor<Cuda>, scale: &Tensor<Cuda>, eps: f32) -> Result<Tensor<Cuda>> {
        let out = self.empty(x.rows(), x.cols())?;
        let block = row_block(x.cols() / 8).filter(|_| all_aligned(&[x, shift, scale, &out]));
        let kernel = if block.is_some() { "adaln_bf16" } else { "adaln_bf16_any" };
        let launch = self.launch("adaln", kernel)?.matrix(x).vector(shift).vector(scale).matrix(&out).int(x.cols()).float(eps);
        // SAFETY: argument types and order match `adaln_bf16` and `adaln_bf16_any` in cuda/adaln.cu. `Tensor::adaln` checked x
        // [rows, cols], shift and scale [1, cols]; `out` was made [rows, cols] above. A block writes one row of `out` only.
        unsafe { launch.run([x.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }

    /// As [`Cuda::adaln_op`], in e4m3.
    fn adaln_e4m3(&self, x: &Tensor<Cuda>, shift: &Tensor<Cuda>, scale: &Tensor<Cuda>, eps: f32) -> Result<Tensor<Cuda>> {
        let out = self.empty_e4m3(x.rows(), x.cols())?;
        let block = e4m3_block(x.cols()).filter(|_| all_aligned(&[x, shift, scale]));
        let kernel = if block.is_some() { "adaln_e4m3" } else { "adaln_e4m3_any" };
        let launch = self.launch("adaln", kernel)?.matrix(x).vector(shift).vector(scale).e4m3(&out).int(x.cols()).float(eps);
        // SAFETY: argument types and order match `adaln_e4m3` and `adaln_e4m3_any` in cuda/adaln.cu. `Tensor::adaln_linear` checked x
        // [rows, cols], shift and scale [1, cols]; `out` was made [rows, cols] above, its rows padded. A block writes one row of `out`
        // and its scale.
        unsafe { launch.run([x.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }

    /// Each part's norm in the form in which its product reads it, then the products.
    pub(super) fn adaln_linear_op(&self, parts: &[AdalnLinear<Cuda>], eps: f32) -> Result<Tensor<Cuda>> {
        let norm = |part: &AdalnLinear<Cuda>| {
            let AdalnLinear { x, shift, scale, weight } = part;
            if weight.is_e4m3() { self.adaln_e4m3(x, shift, scale, eps) } else { self.adaln_op(x, shift, scale, eps) }
        };
        let normed: Vec<_> = parts.iter().map(norm).collect::<Result<_>>()?;
        match (normed.as_slice(), parts) {
            ([h], [part]) => self.linear_op(h, part.weight, None),
            _ => self.linear_rows_op(&normed.iter().zip(parts).map(|(h, part)| (h, part.weight)).collect::<Vec<_>>()),
        }
    }

    pub(super) fn layer_norm_op(&self, x: &Tensor<Cuda>, eps: f32) -> Result<Tensor<Cuda>> {
        let out = self.empty(x.rows(), x.cols())?;
        let block = row_block(x.cols() / 8).filter(|_| all_aligned(&[x, &out]));
        let kernel = if block.is_some() { "layer_norm_bf16" } else { "layer_norm_bf16_any" };
        let launch = self.launch("adaln", kernel)?.matrix(x).matrix(&out).int(x.cols()).float(eps);
        // SAFETY: argument types and order match `layer_norm_bf16` and `layer_norm_bf16_any` in cuda/adaln.cu; `out` was made of the
        // shape of x above. A block writes one row of `out` only.
        unsafe { launch.run([x.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }
}
