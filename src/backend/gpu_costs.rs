//! What values take in the memory of a GPU, known without one.

use super::Storage;

/// What algorithms of cuBLASLt may use for split sums. NVIDIA asks for at least 32 MiB on Hopper.
pub const GEMM_WORKSPACE_BYTES: usize = 64 << 20;
/// The most memory that im2col rows may take at once, or that a product without them may write.
pub const IM2COL_BYTES: usize = 256 << 20;
/// For what is in no other account: statistics, tables, staging, and fragments of the driver's pools, whose chunks are of
/// 32 MiB. With 96 MiB the built-in model in fp8 did not always fit where it was planned to.
const MARGIN_BYTES: u64 = 160 << 20;

/// How an image is normed that a convolution reads: in bands of rows, which changes how much memory that takes and not
/// the result. An image of at most two bands is done as one, because two would save little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bands {
    /// They cost no time.
    Wide,
    /// They leave the memory to other things.
    Narrow,
}

impl Bands {
    /// The most bytes of a band.
    pub fn bytes(self) -> usize {
        match self {
            Self::Wide => 256 << 20,
            Self::Narrow => 64 << 20,
        }
    }
}

/// How a GPU computes, as far as memory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuCosts {
    /// How the weights of large products are stored.
    pub products: Storage,
    /// Whether convolutions copy their input to im2col rows.
    pub im2col: bool,
}

impl Default for GpuCosts {
    /// In bf16, on Hopper.
    fn default() -> Self {
        Self { products: Storage::Native, im2col: false }
    }
}

impl GpuCosts {
    /// Bytes of one value of an activation, which is bf16.
    pub fn element_bytes(&self) -> u64 {
        2
    }

    /// Bytes of the weights of `elements` elements.
    pub fn weight_bytes(&self, elements: u64, storage: Storage) -> u64 {
        match storage {
            Storage::Native => 2 * elements,
            // A sixteenth for the scales, and for the bf16 copy of the weight that is on its way.
            Storage::Fp8 => elements + elements / 16,
        }
    }

    /// The most memory that a norm of an image of `whole` bytes takes while a convolution of 3 x 3 pixels reads it.
    pub fn norm_conv2d_bytes(&self, whole: u64, bands: Bands) -> u64 {
        let band = bands.bytes() as u64;
        let normed = if whole <= 2 * band { whole } else { band };
        let rows = if self.im2col { whole.saturating_mul(9).min(IM2COL_BYTES as u64) } else { 0 };
        normed + rows
    }

    /// Bytes that are in no other account.
    pub fn workspace_bytes(&self) -> u64 {
        GEMM_WORKSPACE_BYTES as u64 + MARGIN_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_norm_takes_the_whole_image_or_a_band() {
        let need = |mib: u64, bands, im2col| {
            GpuCosts { im2col, ..GpuCosts::default() }.norm_conv2d_bytes(mib << 20, bands) >> 20
        };
        assert_eq!([500, 512, 513].map(|mib| need(mib, Bands::Wide, false)), [500, 512, 256]);
        assert_eq!([128, 129, 1 << 20].map(|mib| need(mib, Bands::Narrow, false)), [128, 64, 64]);
        assert_eq!([1, 512, 8192].map(|mib| need(mib, Bands::Wide, true)), [10, 768, 512]);
    }
}
