//! [`Ops`] on the CPU.

use super::conv_tiles::Unit;
use super::{
    ChannelStatistics, Cpu, Precision, Rows, Weight, attention, attention_tiles, conv, conv_tiles, elementwise,
    for_rows, gemm, int8, math, norm, pixels, pool,
};
use crate::backend::Ops;
use crate::error::Result;
use crate::nn::Linear;
use crate::ops::{
    self, Attention, Conv2d, Convolved, GroupNorm, InpaintBlend, LinearArgs, Mask, Patches, PixelShuffle, Products,
    Rope, TokenLayout,
};
use crate::tensor::Tensor;

impl Cpu {
    /// Computes `out = [x_0 | x_1 | ..] weight^T`, with concatenated columns of the x; out is dense [rows,
    /// weight.rows()].
    fn product(&self, xs: &[Rows<'_>], weight: &Linear<Self>, out: &mut [f32]) {
        match weight.weight() {
            Weight::Mapped(parts) => gemm::linear(self.precision, xs, parts, out),
            Weight::Int8(weight) => int8::linear(xs, weight, out),
        }
    }
}

impl Ops for Cpu {
    /// Used in groups only; otherwise norms compute their statistics themselves.
    type ChannelStatistics = ChannelStatistics;

    fn all_reduce_statistics(
        &self,
        x: &Tensor<Self>,
        own: Option<&ChannelStatistics>,
    ) -> Result<Option<ChannelStatistics>> {
        let Some(member) = &self.member else { return Ok(None) };
        let own = own.cloned().unwrap_or_else(|| ChannelStatistics::new(Rows::new(x)));
        let all = member.exchange("all_reduce_statistics", vec![own; member.world()])?;
        ChannelStatistics::combine(&all).map(Some)
    }

    fn linear(&self, args: LinearArgs<'_, Self>) -> Result<Tensor<Self>> {
        let (rows, cols) = match args {
            LinearArgs { residual: Some(_), .. } => return ops::linear::compose(self, args),
            LinearArgs { products: Products::Columns(x, weight), .. } => (x[0].rows(), weight.rows()),
            LinearArgs { products: Products::Rows(parts), .. } => {
                (parts.iter().map(|(x, _)| x.rows()).sum(), parts[0].1.rows())
            }
        };
        let mut out = pool::values(rows * cols);
        match args.products {
            Products::Columns(x, weight) => {
                let x: Vec<_> = x.iter().map(|x| Rows::new(x)).collect();
                self.product(&x, weight, &mut out);
            }
            Products::Rows(parts) => {
                let mut rest = out.as_mut_slice();
                for (x, weight) in parts {
                    let (part, below) = rest.split_at_mut(x.rows() * cols);
                    self.product(&[Rows::new(x)], weight, part);
                    rest = below;
                }
            }
        }
        if let Some(bias) = args.bias {
            let bias = Rows::new(bias).row(0);
            for_rows(&mut out, cols, |_, row| elementwise::add(row, bias));
        }
        Ok(self.tensor(out, rows, cols))
    }

    fn conv2d(&self, conv2d: Conv2d<'_, Self>) -> Result<Convolved<Self>> {
        let kernel = conv2d.weight.weight();
        let terms = gemm::terms(self.precision, &kernel.view);
        let fused = match (conv2d.upsample, &conv2d.residual) {
            (false, None) => true,
            (false, Some(_)) => terms.is_some(),
            // Sums of weights are rounded to bfloat16, so use this only if activations are rounded too.
            (true, residual) => matches!(terms, Some((_, 1))) && residual.is_none(),
        };
        if conv2d.activation.is_some() || conv2d.norm.is_some() || conv2d.halo.is_some() || !fused {
            return ops::conv2d::compose(self, conv2d);
        }
        let (rows, cols) = (conv2d.outputs(), conv2d.weight.rows());
        let Conv2d { x, upsample, bias, conv, residual, .. } = conv2d;
        let (x, bias, adds) = (Rows::new(&x), Rows::new(bias).row(0), residual.is_some());
        let mut out = residual.map_or_else(|| pool::values(rows * cols), Self::take);
        let operands = conv_tiles::Operands { x, weight: kernel, bias, conv };
        match terms {
            Some((unit, _)) if upsample => conv_tiles::upsample_conv2d(Unit::new(unit), operands, &mut out),
            Some((unit, terms)) => conv_tiles::conv2d(Unit::new(unit), terms, operands, &mut out, adds),
            None => conv::conv2d(x, kernel, bias, conv, &mut out),
        }
        Ok(self.tensor(out, rows, cols).into())
    }

    fn attention(&self, attention: Attention<'_, Self>) -> Result<Tensor<Self>> {
        if attention.cached.is_some() {
            return ops::attention::compose(self, attention);
        }
        let Attention { q, k, v, head_dim, layout, mask, .. } = attention;
        let (q_rows, k_rows, v_rows) = (Rows::new(&q), Rows::new(k), Rows::new(v));
        let unit = gemm::unit(self.precision).filter(|_| self.precision != Precision::F32 && mask == Mask::None);
        let out = match unit {
            Some(unit) => attention_tiles::attention(unit.multiply, q_rows, k_rows, v_rows, head_dim, layout),
            None => attention::attention(q_rows, k_rows, v_rows, head_dim, layout, mask),
        };
        Ok(self.tensor(out, q.rows(), q.cols()))
    }

    fn layer_norm(&self, x: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>> {
        let x = Rows::new(x);
        Ok(self.make_rows(x.rows, x.cols, |row, out| norm::layer_norm(x.row(row), eps, out)))
    }

    fn rms_norm(&self, x: &Tensor<Self>, weight: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>> {
        let (x, weight) = (Rows::new(x), Rows::new(weight).row(0));
        Ok(self.make_rows(x.rows, x.cols, |row, out| norm::rms_norm(x.row(row), weight, eps, out)))
    }

    fn group_norm(&self, x: &Tensor<Self>, norm: &GroupNorm<'_, Self>) -> Result<Tensor<Self>> {
        let (x, (scale, shift)) = (Rows::new(x), norm::group_norm_affine(Rows::new(x), norm));
        Ok(self.make_rows(x.rows, x.cols, |row, out| elementwise::affine(x.row(row), &scale, &shift, out)))
    }

    fn group_norm_silu(&self, x: &Tensor<Self>, norm: &GroupNorm<'_, Self>) -> Result<Tensor<Self>> {
        let (x, (scale, shift)) = (Rows::new(x), norm::group_norm_affine(Rows::new(x), norm));
        Ok(self.make_rows(x.rows, x.cols, |row, out| math::affine_silu(x.row(row), &scale, &shift, out)))
    }

    fn rope(&self, x: Tensor<Self>, rope: &Rope<Self>, layout: TokenLayout) -> Result<Tensor<Self>> {
        let (cos, sin, pairs) = (Rows::new(&rope.cos), Rows::new(&rope.sin), rope.pairs);
        Ok(self.map_rows(x, |row, values| {
            let token = layout.token(row);
            elementwise::rope(values, cos.row(token), sin.row(token), pairs);
        }))
    }

    fn silu(&self, x: Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(self.map_rows(x, |_, row| math::silu(row)))
    }

    fn relu(&self, x: Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(self.map_rows(x, |_, row| elementwise::relu(row)))
    }

    fn leaky_relu(&self, x: Tensor<Self>, slope: &Tensor<Self>) -> Result<Tensor<Self>> {
        let slope = Rows::new(slope).row(0);
        Ok(self.map_rows(x, |_, row| elementwise::leaky_relu(row, slope)))
    }

    fn softcap(&self, x: Tensor<Self>, cap: f32) -> Result<Tensor<Self>> {
        Ok(self.map_rows(x, |_, row| elementwise::softcap(row, cap)))
    }

    fn add(&self, x: Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        let y = Rows::new(y);
        Ok(self.map_rows(x, |row, out| elementwise::add(out, y.row(row))))
    }

    fn mul(&self, x: Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        let y = Rows::new(y);
        Ok(self.map_rows(x, |row, out| elementwise::mul(out, y.row(if y.rows == 1 { 0 } else { row }))))
    }

    fn scale_shift(&self, x: Tensor<Self>, scale: &Tensor<Self>, shift: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (scale, shift) = (Rows::new(scale).row(0), Rows::new(shift).row(0));
        Ok(self.map_rows(x, |_, row| elementwise::scale_shift(row, scale, shift)))
    }

    fn concat_rows(&self, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let cols = parts[0].cols();
        let rows = parts.iter().map(|part| part.rows()).sum::<usize>();
        let mut values = pool::values(rows * cols);
        let mut rest = values.as_mut_slice();
        for part in parts {
            let part = Rows::new(part);
            let (own, below) = rest.split_at_mut(part.rows * cols);
            for_rows(own, cols, |row, out| out.copy_from_slice(part.row(row)));
            rest = below;
        }
        Ok(self.tensor(values, rows, cols))
    }

    fn concat_cols(&self, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let cols = parts.iter().map(|part| part.cols()).sum();
        let parts: Vec<_> = parts.iter().map(|part| Rows::new(part)).collect();
        Ok(self.make_rows(parts[0].rows, cols, |row, out| {
            let mut start = 0;
            for part in &parts {
                out[start..start + part.cols].copy_from_slice(part.row(row));
                start += part.cols;
            }
        }))
    }

    fn upsample(&self, x: &Tensor<Self>, _height: usize, width: usize) -> Result<Tensor<Self>> {
        let x = Rows::new(x);
        Ok(self.make_rows(4 * x.rows, x.cols, |row, out| {
            let (py, px) = (row / (2 * width), row % (2 * width));
            out.copy_from_slice(x.row(py / 2 * width + px / 2));
        }))
    }

    fn pixel_shuffle(&self, operands: PixelShuffle<'_, Self>) -> Result<Tensor<Self>> {
        let PixelShuffle { x, base, scale, width } = operands;
        let (x, base) = (Rows::new(x), base.map(Rows::new));
        let (rows, channels) = (x.rows * scale * scale, x.cols / (scale * scale));
        Ok(self.make_rows(rows, channels, |row, out| pixels::shuffle(x, base, [scale, width], row, out)))
    }

    fn patchify(&self, patches: Patches<'_, Self>) -> Result<Tensor<Self>> {
        let Patches { x, mean, std, width, .. } = patches;
        let (x, mean, std) = (Rows::new(x), Rows::new(mean).row(0), Rows::new(std).row(0));
        Ok(self.make_rows(x.rows / 4, 4 * x.cols, |row, out| pixels::patchify(x, mean, std, width, row, out)))
    }

    fn unpatchify(&self, patches: Patches<'_, Self>) -> Result<Tensor<Self>> {
        let Patches { x, mean, std, width, .. } = patches;
        let (x, mean, std) = (Rows::new(x), Rows::new(mean).row(0), Rows::new(std).row(0));
        Ok(self.make_rows(4 * x.rows, x.cols / 4, |row, out| pixels::unpatchify(x, mean, std, width, row, out)))
    }

    fn euler_step(&self, latents: Tensor<Self>, velocity: &Tensor<Self>, dt: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (velocity, dt) = (Rows::new(velocity), Rows::new(dt).row(0)[0]);
        Ok(self.map_rows(latents, |row, out| {
            for (x, v) in out.iter_mut().zip(velocity.row(row)) {
                *x += dt * v;
            }
        }))
    }

    fn inpaint_blend(&self, operands: InpaintBlend<'_, Self>) -> Result<Tensor<Self>> {
        let InpaintBlend { x, noise, image, mask, sigma } = operands;
        let (noise, image, mask) = (Rows::new(noise), Rows::new(image), Rows::new(mask));
        let sigma = Rows::new(sigma).row(0)[0];
        Ok(self.map_rows(x, |row, out| {
            let repainted = mask.row(row)[0];
            for ((x, noise), image) in out.iter_mut().zip(noise.row(row)).zip(image.row(row)) {
                let noisy = sigma * noise + (1.0 - sigma) * image;
                *x = repainted * *x + (1.0 - repainted) * noisy;
            }
        }))
    }

    fn guide(&self, positive: &Tensor<Self>, negative: &Tensor<Self>, guidance: f32) -> Result<Tensor<Self>> {
        let (positive, negative) = (Rows::new(positive), Rows::new(negative));
        Ok(self.make_rows(positive.rows, positive.cols, |row, out| {
            for ((out, p), n) in out.iter_mut().zip(positive.row(row)).zip(negative.row(row)) {
                *out = n + guidance * (p - n);
            }
        }))
    }
}
