//! Launches cuda/linear_int8.cu, cuda/linear_w4a8.cu and cuda/linear_e4m3_sm89.cu: products of rows of 8 bits by
//! mma.sync, and what follows on the columns of an MLP.

use super::project::rows_of_tiles;
use crate::backend::cuda::buffer::BufferKind;
use crate::backend::cuda::element::Element;
use crate::backend::cuda::gemm::Matrix;
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::ops::QkNormRope;
use crate::ops::project::{Heads, Projection};

/// `ROWS`, `COLS`, `STEP` and `THREADS` of cuda/linear_quantised.cuh.
const ROWS: usize = 128;
const COLS: usize = 256;
const STEP: usize = 64;
const THREADS: usize = 256;
/// The file with the kernels of 8-bit floats.
pub(super) const E4M3_FILE: &str = "linear_e4m3_sm89";

/// Bytes of the stages, or of a tile of results, which takes their place.
pub(super) fn shared_bytes(element: Element) -> usize {
    let stages = match element {
        Element::Bf16 => 4,
        Element::F16 => 2,
    };
    (stages * (ROWS + COLS) * STEP).max(ROWS * COLS * Element::BYTES)
}

impl Cuda {
    /// `x weight^T + bias` of the first `plain` rows of a weight of 8 bits to as many columns of `out`, and behind them
    /// `silu(gate) * up` of the following `mlp` rows of gate and of up. x is as [`Cuda::operand`] makes it.
    ///
    /// # Safety
    /// x has the weight's columns. The weight, with its padding, has `plain + 2 mlp` rows, `out` is memory for the rows
    /// of x and `plain + mlp` columns, and a bias has memory for `plain` values.
    pub(super) unsafe fn linear_quantised(
        &self,
        x: &Tensor<Cuda>,
        weight: &Weight,
        bias: Option<&Tensor<Cuda>>,
        out: Matrix,
        [plain, mlp]: [usize; 2],
    ) -> Result<()> {
        let rows_of_x = x.rows().div_ceil(ROWS);
        let tiles = rows_of_x * (plain.div_ceil(COLS) + mlp.div_ceil(COLS / 2));
        let (file, kernel) = match weight.quantised_kind() {
            Some(BufferKind::E4m3) => (E4M3_FILE, "linear_e4m3"),
            Some(BufferKind::W4a8 { .. }) => ("linear_w4a8", "linear_w4a8"),
            _ => ("linear_int8", "linear_int8"),
        };
        let launch = self.launch(file, kernel)?.shared(shared_bytes(self.element()) as u32)?;
        let launch = launch.address(x.address()).long(x.stride()).address(x.scales());
        let launch = launch.address(weight.address()).long(weight.stride()).address(weight.scales());
        let launch = launch.address(bias.map_or(0, Tensor::address)).address(out.address).long(out.stride);
        let launch = launch.int(x.rows()).int(plain).int(mlp).int(x.stride()).int(rows_of_tiles(rows_of_x));
        // SAFETY: argument types and order match `LINEAR_QUANTISED` in cuda/linear_quantised.cuh. x and weight are rows
        // of whole 16 bytes with zeros behind their columns, each with a scale; the rest is as the caller promises.
        unsafe { launch.run([tiles, 1, 1], [THREADS, 1, 1]) }
    }

    /// `project` with weights of 8 bits without factors beside them, which mma.sync multiplies.
    pub(super) fn project_quantised(
        &self,
        operands: &[(&Operand<Cuda>, &Linear<Cuda>)],
        heads: Option<&Heads<'_, Cuda>>,
    ) -> Result<Projection<Cuda>> {
        let parts: Vec<_> = operands.iter().map(|(x, weight)| (x.tensor(), weight.weight())).collect();
        let dim = heads.map_or(0, |heads| heads.dim);
        let mlp = (parts[0].1.rows() - 3 * dim) / 2;
        let out = self.empty(parts.iter().map(|(x, _)| x.rows()).sum(), 3 * dim + mlp)?;
        let mut row = 0;
        for ((x, weight), fresh) in parts.iter().zip(self.operands(&parts)?) {
            let out = Matrix::of(&out).row(row, Element::BYTES);
            // SAFETY: `Tensor::project` checked the shapes; `out` was made of all rows, and of columns for all results.
            unsafe { self.linear_quantised(fresh.as_ref().unwrap_or(x), weight, None, out, [3 * dim, mlp]) }?;
            row += x.rows();
        }
        let [k, v, q, mlp] = out.split_cols([dim, dim, dim, mlp]);
        let (q, k) = match heads {
            Some(&Heads { norm, rope, layout, .. }) => self.qk_norm_rope_op(QkNormRope { q, k, norm, rope, layout })?,
            None => (q, k),
        };
        let without_query = heads.map_or(0, |heads| heads.layout.rows_without_query());
        let ((_, q), (_, mlp)) = (q.split_rows(without_query), mlp.split_rows(without_query));
        Ok(Projection { kvq: [k, v, q], mlp })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_fit_the_shared_memory_of_each_gpu() {
        // A block may have 99 KiB on 8.6, 8.9 and 12.0, 64 KiB on 7.5.
        assert_eq!([Element::Bf16, Element::F16].map(shared_bytes), [96 << 10, 64 << 10]);
    }
}
