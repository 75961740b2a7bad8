//! What values take in the memory of a device.

use super::Storage;

/// What algorithms of cuBLASLt may use for split sums. NVIDIA asks for at least 32 MiB on Hopper.
pub const GEMM_WORKSPACE_BYTES: usize = 64 << 20;
/// The most memory that im2col rows may take at once, or that a product without them may write.
pub const IM2COL_BYTES: usize = 256 << 20;
/// For what is in no other account: statistics, tables, staging, and fragments of the driver's pools, whose chunks are
/// of 32 MiB. With 96 MiB the built-in model in fp8 did not always fit where it was planned to.
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

/// What values take in the memory of a device, and what it can hold: what plans of an image are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Bytes of one value of an activation.
    pub element_bytes: u64,
    /// The largest number of values with which every op takes a tensor; `u64::MAX` where only memory limits it.
    pub max_tensor_values: u64,
    /// How the weights of large products are to be stored; see [`WeightPolicy`](crate::nn::WeightPolicy).
    pub products: Storage,
    /// Bytes that ops take beside their operands and results, and that memory in pieces does not serve.
    pub workspace_bytes: u64,
    /// Devices that make an image together, each in memory of its own.
    pub world: usize,
    kind: DeviceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceKind {
    /// Weights are used in the mapped files, but for quantised ones, and images are normed as a whole.
    Host,
    /// Convolutions of GPUs other than Hopper copy their input to im2col rows.
    Gpu { im2col: bool },
}

impl Costs {
    /// Whether the device computes while the host does something else.
    pub fn is_beside_host(&self) -> bool {
        self.kind != DeviceKind::Host
    }

    /// Of a host, which computes in float32. `products` says how it stores the weights of large products.
    pub fn host(products: Storage, world: usize) -> Self {
        let (element_bytes, max_tensor_values) = (4, u64::MAX);
        Self { element_bytes, max_tensor_values, products, workspace_bytes: 0, world, kind: DeviceKind::Host }
    }

    /// Of a GPU, known without one. `products` says how it stores the weights of large products, `im2col` whether its
    /// convolutions copy their input to im2col rows.
    pub fn gpu(products: Storage, im2col: bool, world: usize) -> Self {
        Self {
            element_bytes: 2,
            // cuBLASLt 13.6 fails for some tensors of 2^31 values and more, and kernels index with int.
            // Source: https://github.com/NVIDIA/raft/pull/3098
            max_tensor_values: i32::MAX as u64,
            products,
            workspace_bytes: GEMM_WORKSPACE_BYTES as u64 + MARGIN_BYTES,
            world,
            kind: DeviceKind::Gpu { im2col },
        }
    }

    /// Of one GPU in bf16, Hopper.
    pub fn hopper() -> Self {
        Self::gpu(Storage::Native, false, 1)
    }

    /// Bytes that weights of `elements` elements take: zero where they are used in the mapped file.
    pub fn weight_bytes(&self, elements: u64, storage: Storage) -> u64 {
        match (self.kind, storage) {
            (DeviceKind::Host, Storage::Native) => 0,
            (DeviceKind::Gpu { .. }, Storage::Native) => 2 * elements,
            // A sixteenth for the scales, and for the copy in 16 bits of the weight that is on its way.
            (DeviceKind::Gpu { .. }, Storage::W4a8) => elements / 8 * 5 + elements / 16,
            // The host has all of them as 8-bit integers.
            (_, Storage::Fp8 | Storage::Int8 | Storage::W4a8) => elements + elements / 16,
        }
    }

    /// The most bytes that a convolution of 3 x 3 pixels of a normed image allocates beside its input and output, when
    /// the whole normed image is `whole` bytes and it is made in `bands`.
    pub fn norm_conv2d_bytes(&self, whole: u64, bands: Bands) -> u64 {
        let DeviceKind::Gpu { im2col } = self.kind else { return whole };
        let band = bands.bytes() as u64;
        let normed = if whole <= 2 * band { whole } else { band };
        let rows = if im2col { whole.saturating_mul(9).min(IM2COL_BYTES as u64) } else { 0 };
        normed + rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_norm_takes_the_whole_image_or_a_band() {
        let need =
            |mib: u64, bands, im2col| Costs::gpu(Storage::Native, im2col, 1).norm_conv2d_bytes(mib << 20, bands) >> 20;
        assert_eq!([500, 512, 513].map(|mib| need(mib, Bands::Wide, false)), [500, 512, 256]);
        assert_eq!([128, 129, 1 << 20].map(|mib| need(mib, Bands::Narrow, false)), [128, 64, 64]);
        assert_eq!([1, 512, 8192].map(|mib| need(mib, Bands::Wide, true)), [10, 768, 512]);
    }
}
