//! The memory costs of a device, for plans of an image.

use super::Storage;

/// Workspace of cuBLASLt for split-K sums. NVIDIA recommends at least 32 MiB on Hopper.
pub const GEMM_WORKSPACE_BYTES: usize = 64 << 20;
/// The max bytes of im2col rows, or of the output of a matrix multiplication that needs no im2col rows.
pub const IM2COL_BYTES: usize = 256 << 20;
/// The max bytes of the scores of some queries, in attention without a kernel for its head size.
pub const SCORES_BYTES: usize = 256 << 20;
/// The max bytes of rows of images in host memory that a convolution has on the device: a piece of a 1 x 1 convolution,
/// whose input is at most twice as large as its output. Rows of 3 x 3 convolutions and their im2col rows take less.
const STAGED_BYTES: u64 = 3 * IM2COL_BYTES as u64;
/// Reserve for unaccounted memory: statistics, tables, staging, and fragmentation of the driver's pools, whose chunks
/// are 32 MiB. With 96 MiB the built-in model in fp8 did not always fit as planned.
const MARGIN_BYTES: u64 = 160 << 20;

/// Height of the row bands in which the normed input of a convolution is computed. It changes the memory and not the
/// result. An image of at most two bands is computed as one, because two bands save little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bands {
    /// Large bands, without a cost in time.
    Wide,
    /// Small bands, which leave more memory for other uses.
    Narrow,
    /// Small bands of images in host memory, if they are larger than [`Bands::max_resident`].
    Host,
}

impl Bands {
    /// The max bytes of a band.
    pub fn bytes(self) -> usize {
        match self {
            Self::Wide => 256 << 20,
            Self::Narrow | Self::Host => 64 << 20,
        }
    }

    /// The max bytes of an image in device memory; see
    /// [`Device::with_max_resident`](super::Device::with_max_resident).
    pub fn max_resident(self) -> u64 {
        match self {
            Self::Wide | Self::Narrow => u64::MAX,
            Self::Host => 512 << 20,
        }
    }
}

/// The memory costs and limits of a device, for plans of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Bytes of one activation value.
    pub element_bytes: u64,
    /// The max number of values of a tensor that every op accepts; `u64::MAX` if only memory limits it.
    /// [`Tensor::project`](crate::tensor::Tensor::project) computes larger projections in pieces.
    pub max_tensor_values: u64,
    /// Storage of the weights of large matrix multiplications; see [`WeightPolicy`](crate::nn::WeightPolicy).
    pub products: Storage,
    /// Bytes that ops need besides operands and results, and that the arena doesn't serve.
    pub workspace_bytes: u64,
    /// Devices that generate an image together, each with its own memory.
    pub world: usize,
    kind: DeviceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceKind {
    /// Weights are used in the mapped files, except quantized ones; images are normed as a whole.
    Host,
    /// Convolutions on GPUs other than Hopper copy their input to im2col rows.
    Gpu { im2col: bool },
}

impl Costs {
    /// Returns `true` if the device computes asynchronously to the host.
    pub fn is_asynchronous(&self) -> bool {
        self.kind != DeviceKind::Host
    }

    /// Returns the costs of a host, which computes in float32. `products` is the storage of the weights of large matrix
    /// multiplications.
    pub fn host(products: Storage, world: usize) -> Self {
        let (element_bytes, max_tensor_values) = (4, u64::MAX);
        Self { element_bytes, max_tensor_values, products, workspace_bytes: 0, world, kind: DeviceKind::Host }
    }

    /// Returns the costs of a GPU without opening it. `products` is the storage of the weights of large matrix
    /// multiplications; `im2col` is `true` if convolutions copy their input to im2col rows.
    pub fn gpu(products: Storage, im2col: bool, world: usize) -> Self {
        Self {
            element_bytes: 2,
            // cuBLASLt 13.6 fails for some tensors of 2^31 values or more, and kernels index with int.
            // Source: https://github.com/NVIDIA/raft/pull/3098
            max_tensor_values: i32::MAX as u64,
            products,
            workspace_bytes: GEMM_WORKSPACE_BYTES as u64 + MARGIN_BYTES,
            world,
            kind: DeviceKind::Gpu { im2col },
        }
    }

    /// Returns the costs of one Hopper GPU in bf16.
    pub fn hopper() -> Self {
        Self::gpu(Storage::Native, false, 1)
    }

    /// Returns the bytes of a weight of `elements` elements; zero if it is used in the mapped file.
    pub fn weight_bytes(&self, elements: u64, storage: Storage) -> u64 {
        match (self.kind, storage) {
            (DeviceKind::Host, Storage::Native) => 0,
            (DeviceKind::Gpu { .. }, Storage::Native) => 2 * elements,
            // A sixteenth for the scales and for the 16-bit copy of the weight that is being uploaded.
            (DeviceKind::Gpu { .. }, Storage::W4a8) => elements / 8 * 5 + elements / 16,
            // The host stores all of them as 8-bit integers.
            (_, Storage::Fp8 | Storage::Int8 | Storage::W4a8) => elements + elements / 16,
        }
    }

    /// Returns the bytes on the device of work whose images have these bytes at its steps, if larger images are in host
    /// memory; `None` if the device has no memory of its own, or shares images with other devices.
    pub fn resident_bytes<const N: usize>(&self, steps: impl Iterator<Item = [u64; N]>) -> Option<u64> {
        let of_image = |bytes: u64| if bytes > Bands::Host.max_resident() { 0 } else { bytes };
        let of_step = |images: [u64; N]| images.into_iter().map(of_image).sum::<u64>();
        let may = self.kind != DeviceKind::Host && self.world == 1;
        may.then(|| steps.map(of_step).max().unwrap_or(0) + STAGED_BYTES)
    }

    /// Returns the max bytes that a 3 x 3 convolution of a normed image allocates besides its input and output, when
    /// the whole normed image is `whole` bytes and is computed in `bands`.
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
