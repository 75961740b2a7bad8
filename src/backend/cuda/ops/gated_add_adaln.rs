//! Launches cuda/gated_add_adaln.cu.

use super::quantize::SPLIT_MULTIPLE;
use crate::backend::cuda::buffer::BufferKind;
use crate::backend::cuda::launch::row_block;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::ops::{self, GatedAddAdaln};

/// The longest row of a block: 256 threads with 4 chunks of 8 values each.
const MAX_COLS: usize = 8192;

/// The threads for a row of `gated_add_adaln_3072`, with 3 chunks each, and its columns.
const SHORT_BLOCK: usize = 128;
const SHORT_COLS: usize = 3 * 8 * SHORT_BLOCK;

impl Cuda {
    pub(crate) fn gated_add_adaln_op(
        &self,
        operands: GatedAddAdaln<'_, Cuda>,
    ) -> Result<(Tensor<Cuda>, Operand<Cuda>)> {
        let GatedAddAdaln { x, gates, y, norms, adaln } = operands;
        let [txt, img] = [0, 1].map(|part| [gates[part], norms[part].shift, norms[part].scale]);
        let aligned = all_aligned(&[&x, y]) && all_aligned(&txt) && all_aligned(&img);
        // A quantized row is padded to a multiple of 16 values.
        let Some(block) = row_block(x.cols().div_ceil(16) * 2).filter(|_| aligned && x.cols() <= MAX_COLS) else {
            self.device().count_composed();
            return ops::gated_add_adaln::compose(self, GatedAddAdaln { x, ..operands });
        };
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        // Two layers read text and image, each with its own scales. Low-rank factors of integer weights read 16 bits.
        let read_by = |reader: &Linear<Cuda>| {
            let has_factors = reader.low_rank().is_some();
            let kind = reader.weight().quantized_kind().map(BufferKind::operand_kind);
            kind.filter(|kind| !has_factors || *kind == BufferKind::E4m3)
        };
        let [txt_reads, img_reads] = norms.map(|norm| read_by(norm.reader));
        let is_split = adaln.txt_rows.is_multiple_of(SPLIT_MULTIPLE);
        let quantized = txt_reads.filter(|kind| img_reads == Some(*kind) && is_split);
        let h = match quantized {
            Some(kind) => self.empty_quantized(kind, x.rows(), x.cols())?,
            None => self.empty(x.rows(), x.cols())?,
        };
        let kernel = match quantized {
            None if x.cols() <= SHORT_COLS && block == SHORT_BLOCK => "gated_add_adaln_3072",
            None => "gated_add_adaln",
            Some(BufferKind::Int8 { .. }) => "gated_add_adaln_int8",
            Some(_) => "gated_add_adaln_e4m3",
        };
        let launch = self.launch("gated_add_adaln", kernel)?.matrix(&x).matrix(y).matrix(out);
        let launch = if quantized.is_some() { launch.quantized(&h) } else { launch.matrix(&h) };
        let launch = txt.into_iter().chain(img).fold(launch, |launch, vector| launch.vector(vector));
        let launch = launch.int(adaln.txt_rows).int(x.cols()).float(adaln.eps);
        let launch = if let Some(BufferKind::Int8 { group }) = quantized { launch.int(group) } else { launch };
        // SAFETY: argument types and order match the kernels in cuda/gated_add_adaln.cu. `Tensor::gated_add_adaln`
        // checked x and y [rows, cols] and all vectors [1, cols]; `out` is x, or new and of its shape, as is `h`, with
        // padding if its rows are quantized. A block reads one row before it writes it, and has threads for all
        // columns.
        unsafe { launch.run([x.rows(), 1, 1], [block, 1, 1]) }?;
        Ok((fresh.unwrap_or(x), h.into()))
    }
}
