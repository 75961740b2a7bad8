//! `trait Memory`: tensors of a backend, and what crosses between it and the host.

use std::sync::Arc;

use super::Reservations;
use crate::error::Result;
use crate::tensor::{Dtype, Tensor};

/// A place where tensors live.
///
/// It is a cheap handle: clones share one device. Work is enqueued in program order. Only [`Memory::download`],
/// [`Memory::take_download`], [`Memory::take_rgb8`] and [`Device::wait`](super::Device::wait) wait for it, and an
/// allocation when it has to collect freed memory.
pub trait Memory: Clone + Send + Sync + Sized + 'static {
    /// Memory that tensors view.
    type Buffer: Send + Sync;
    /// Pixels on their way to the host.
    type Rgb8;
    /// Activations on their way to the host.
    type Download;

    /// The type of the values in `buffer`.
    fn dtype(buffer: &Self::Buffer) -> Dtype;
    /// The type of activations.
    fn activation_dtype(&self) -> Dtype;
    /// Whether `other` is a handle to the same device, so that tensors of both may be operands of one op.
    fn is_same_device(&self, other: &Self) -> bool;
    /// One line for the user: device name and how it computes.
    fn describe(&self) -> String;
    /// Bytes that may still be allocated; `u64::MAX` where the amount is unknown.
    fn available_bytes(&self) -> u64;
    /// Bytes that are free on the device, whether this backend may allocate them or not.
    fn device_bytes(&self) -> u64 {
        self.available_bytes()
    }
    /// What is promised on the device, and a number that tells the backend's pool of memory from others on it.
    fn reservations(&self) -> (Arc<Reservations>, usize);
    /// Host values as activations, [rows, cols].
    fn upload(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Self>>;
    /// Host values that stay float32 on every backend: rope tables, latent statistics.
    fn upload_f32(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Self>>;
    /// Activations as host values, row-major and dense. Waits.
    fn download(&self, x: &Tensor<Self>) -> Result<Vec<f32>>;
    /// Activations as they are behind the work so far; does not wait.
    fn download_soon(&self, x: Tensor<Self>) -> Result<Self::Download>;
    /// The values, as of [`Memory::download`]. Waits for them, but not for work that was enqueued after them.
    fn take_download(&self, download: Self::Download) -> Result<Vec<f32>>;
    /// RGB bytes of an image, three a pixel, as pixels [height * width, 3]: `2 * (byte / 255) - 1`, computed in
    /// float32.
    ///
    /// Errors when the bytes are not three for each pixel.
    fn upload_rgb8(&self, bytes: &[u8], height: usize, width: usize) -> Result<Tensor<Self>>;
    /// Pixels [height * width, 3] in -1..1 as RGB bytes: `round_half_even(255 * clamp(x / 2 + 1 / 2))`.
    fn rgb8(&self, x: &Tensor<Self>) -> Result<Self::Rgb8>;
    /// The bytes. Waits for them, but not for work that was enqueued after them.
    ///
    /// Errors when a pixel is not a number, which damaged weights lead to.
    fn take_rgb8(&self, rgb: Self::Rgb8) -> Result<Vec<u8>>;
}
