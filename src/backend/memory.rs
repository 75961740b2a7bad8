//! `trait Memory`: tensors of a backend, and transfers between backend and host.

use std::sync::Arc;

use super::Reservations;
use crate::error::Result;
use crate::tensor::{Dtype, Tensor};

/// The memory of a device, which holds its tensors.
///
/// A backend is a cheap handle: clones share one device. Work is enqueued in program order. Only [`Memory::download`],
/// [`Memory::take_download`], [`Memory::take_rgb8`] and [`Device::wait`](super::Device::wait) wait for work, and an
/// allocation if it has to collect freed memory.
pub trait Memory: Clone + Send + Sync + Sized + 'static {
    /// Memory that tensors view.
    type Buffer: Send + Sync;
    /// Pixels on their way to the host.
    type Rgb8;
    /// Activations on their way to the host.
    type Download;

    /// Returns the type of the values in `buffer`.
    fn dtype(buffer: &Self::Buffer) -> Dtype;
    /// Returns the type of activations.
    fn activation_dtype(&self) -> Dtype;
    /// Returns `true` if `other` is a handle to the same device, so that one op may use tensors of both.
    fn is_same_device(&self, other: &Self) -> bool;
    /// Returns one line for the user: the device name and how it computes.
    fn describe(&self) -> String;
    /// Returns the bytes that may still be allocated; `u64::MAX` if the amount is unknown.
    fn available_bytes(&self) -> u64;
    /// Returns the free bytes on the device, including those that this backend may not allocate.
    fn device_bytes(&self) -> u64 {
        self.available_bytes()
    }
    /// Returns the reservations on the device, and a number that identifies the backend's memory pool on it.
    fn reservations(&self) -> (Arc<Reservations>, usize);
    /// Uploads host values as activations, [rows, cols].
    fn upload(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Self>>;
    /// Uploads host values that stay float32 on every backend: rope tables, latent statistics.
    fn upload_f32(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Self>>;
    /// Downloads activations as host values, row-major and dense. Waits.
    fn download(&self, x: &Tensor<Self>) -> Result<Vec<f32>>;
    /// Starts a download of activations as they are after the work so far; does not wait.
    fn download_soon(&self, x: Tensor<Self>) -> Result<Self::Download>;
    /// Returns the values, as [`Memory::download`] does. Waits for them, but not for work that was enqueued later.
    fn take_download(&self, download: Self::Download) -> Result<Vec<f32>>;
    /// Uploads the RGB bytes of an image, three per pixel, as pixels [height * width, 3]: `2 * (byte / 255) - 1`,
    /// computed in float32.
    ///
    /// Errors unless there are three bytes per pixel.
    fn upload_rgb8(&self, bytes: &[u8], height: usize, width: usize) -> Result<Tensor<Self>>;
    /// Converts pixels [height * width, 3] in -1..1 to RGB bytes: `round_half_even(255 * clamp(x / 2 + 1 / 2))`.
    fn rgb8(&self, x: &Tensor<Self>) -> Result<Self::Rgb8>;
    /// Returns the bytes. Waits for them, but not for work that was enqueued later.
    ///
    /// Errors if a pixel is NaN, a sign of damaged weights.
    fn take_rgb8(&self, rgb: Self::Rgb8) -> Result<Vec<u8>>;
}
