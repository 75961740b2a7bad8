//! Launches cuda/linear_int8.cu, cuda/linear_w4a8.cu and cuda/linear_e4m3_sm89.cu: matrix multiplications of 8-bit rows
//! with mma.sync, and the activation function of an MLP's columns.

use super::project_tiles::rows_of_tiles;
use crate::backend::cuda::buffer::BufferKind;
use crate::backend::cuda::element::Element;
use crate::backend::cuda::gemm::Matrix;
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::ops::QkNormRope;
use crate::ops::project::{Heads, Projection};

/// `ROWS` of cuda/linear_quantized.cuh.
const ROWS: usize = 128;
/// The file with the kernels for 8-bit floats.
pub(super) const E4M3_FILE: &str = "linear_e4m3_sm89";

/// A kernel, as in its file's `LINEAR_QUANTIZED`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    file: &'static str,
    pub(super) kernel: &'static str,
    /// Columns of a tile, one thread each.
    cols: usize,
    /// Bytes of a step of x.
    step: usize,
    stages: usize,
    /// `true` if weights are in 4 bits.
    packed: bool,
}

impl Form {
    const fn new(file: &'static str, kernel: &'static str, [cols, step, stages]: [usize; 3]) -> Self {
        Self { file, kernel, cols, step, stages, packed: false }
    }

    /// Returns the kernel for weights of a kind on a GPU of a capability.
    pub(super) fn choose(kind: BufferKind, element: Element, capability: (i32, i32)) -> Self {
        match (kind, element, capability) {
            (BufferKind::E4m3, ..) => Self::new(E4M3_FILE, "linear_e4m3", [256, 64, 4]),
            (BufferKind::W4a8 { .. }, ..) => {
                Self { packed: true, ..Self::new("linear_w4a8", "linear_w4a8", [128, 64, 3]) }
            }
            // Two blocks fit in 228 KiB, or in 164.
            (_, Element::Bf16, (9 | 10, _)) => Self::new("linear_int8", "linear_int8_128x128", [128, 128, 3]),
            (_, Element::Bf16, (8, 0)) => Self::new("linear_int8", "linear_int8_128x64", [128, 64, 4]),
            _ => Self::new("linear_int8", "linear_int8_256x64", [256, 64, 4]),
        }
    }

    /// Returns the bytes of the stages, or of a tile of results, which reuses their memory.
    pub(super) fn shared_bytes(self, element: Element) -> usize {
        let stages = match element {
            Element::Bf16 => self.stages,
            Element::F16 => 2,
        };
        let weights = if self.packed { self.cols * self.step / 2 } else { self.cols * self.step };
        // The multipliers of 4-bit weights: 16 bytes of a column for two steps.
        let multipliers = if self.packed { self.cols * 16 } else { 0 };
        (stages * (ROWS * self.step + weights + multipliers)).max(ROWS * self.cols * Element::BYTES)
    }

    /// Returns the blocks for `rows` rows of x, plain columns, and columns of an MLP.
    fn tiles(self, rows: usize, plain: usize, mlp: usize) -> usize {
        rows.div_ceil(ROWS) * (plain.div_ceil(self.cols) + mlp.div_ceil(self.cols / 2))
    }
}

impl Cuda {
    /// Computes `x weight^T + bias` of the first `plain` rows of an 8-bit weight into as many columns of `out`,
    /// followed by `silu(gate) * up` of the next `mlp` rows of gate and of up. x is as [`Cuda::operand`] returns it.
    ///
    /// # Safety
    /// x has the weight's columns. The weight, with its padding, has `plain + 2 mlp` rows, `out` is memory for the rows
    /// of x and `plain + mlp` columns, and a bias has memory for `plain` values.
    pub(super) unsafe fn linear_quantized(
        &self,
        x: &Tensor<Cuda>,
        weight: &Weight,
        bias: Option<&Tensor<Cuda>>,
        out: Matrix,
        [plain, mlp]: [usize; 2],
    ) -> Result<()> {
        let kind = weight.quantized_kind().unwrap_or(BufferKind::Int8 { group: 1 });
        let form = Form::choose(kind, self.element(), self.device().capability);
        let launch = self.launch(form.file, form.kernel)?.shared(form.shared_bytes(self.element()) as u32)?;
        let launch = launch.address(x.address()).long(x.stride()).address(x.scales());
        let launch = launch.address(weight.address()).long(weight.stride()).address(weight.scales());
        let launch = launch.address(bias.map_or(0, Tensor::address)).address(out.address).long(out.stride);
        let launch =
            launch.int(x.rows()).int(plain).int(mlp).int(x.stride()).int(rows_of_tiles(x.rows().div_ceil(ROWS)));
        // SAFETY: argument types and order match `LINEAR_QUANTIZED` in cuda/linear_quantized.cuh. x and weight are rows
        // of whole 16 bytes with zeros behind their columns, each with a scale; the rest is as the caller promises.
        unsafe { launch.run([form.tiles(x.rows(), plain, mlp), 1, 1], [form.cols, 1, 1]) }
    }

    /// Computes `project` with 8-bit weights without low-rank factors, with mma.sync.
    pub(super) fn project_quantized(
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
            let out = Matrix::new(&out).row(row, Element::BYTES);
            // SAFETY: `Tensor::project` checked the shapes; `out` was made for all rows, with columns for all results.
            unsafe { self.linear_quantized(fresh.as_ref().unwrap_or(x), weight, None, out, [3 * dim, mlp]) }?;
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
    fn as_many_blocks_fit_the_shared_memory_of_each_gpu_as_registers_do() {
        // A multiprocessor has this much shared memory, minus 1 KiB per block, and 65536 registers, all used by 256
        // threads.
        for (capability, kib, element) in [
            ((7, 5), 64, Element::F16),
            ((8, 0), 164, Element::Bf16),
            ((8, 6), 100, Element::Bf16),
            ((9, 0), 228, Element::Bf16),
            ((12, 0), 100, Element::Bf16),
        ] {
            for kind in [BufferKind::E4m3, BufferKind::Int8 { group: 1 }, BufferKind::W4a8 { group: 1 }] {
                let form = Form::choose(kind, element, capability);
                let reserved = usize::from(element == Element::Bf16);
                let bytes = 256 / form.cols * (form.shared_bytes(element) + (reserved << 10));
                assert!(bytes <= kib << 10, "{form:?} on {capability:?}: {bytes}");
            }
        }
    }
}
