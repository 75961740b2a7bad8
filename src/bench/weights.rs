//! Weights to measure with. A backend loads weights from files only, and stores them in its own format.

use flux::backend::{Backend, Storage};
use flux::files::{ModelFiles, TensorView};
use flux::nn::{ConvKernel, Linear, WeightPolicy};
use flux::{Error, Result};
use half::bf16;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView as FileTensor;

/// Values in -1..1 without a pattern.
pub fn values(n: usize) -> Vec<f32> {
    (0..n)
        .into_par_iter()
        .map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

/// A weight matrix [rows, cols].
pub fn linear<B: Backend>(backend: &B, rows: usize, cols: usize) -> Result<Linear<B>> {
    stored(backend, rows, cols, Storage::Native)
}

/// As [`linear`], but stored as the policy stores the weights of a block's products.
pub fn block_linear<B: Backend>(backend: &B, rows: usize, cols: usize) -> Result<Linear<B>> {
    stored(backend, rows, cols, WeightPolicy::of(backend).blocks())
}

fn stored<B: Backend>(backend: &B, rows: usize, cols: usize, storage: Storage) -> Result<Linear<B>> {
    with_view(&[rows, cols], |view| Linear::load(backend, "bench", std::slice::from_ref(view), storage))
}

/// The weight of a convolution from `cin` to `cout` channels.
pub fn convolution<B: Backend>(backend: &B, cin: usize, cout: usize, side: usize) -> Result<ConvKernel<B>> {
    with_view(&[cout, cin, side, side], |view| ConvKernel::load(backend, view))
}

/// Calls `load` with a tensor in a mapped file, and then removes the file.
pub fn with_view<T>(shape: &[usize], load: impl FnOnce(&TensorView) -> Result<T>) -> Result<T> {
    let failed = |e: &dyn std::fmt::Display| {
        Error::new(format!("cannot write weights to measure with: {e}")).at("the folder for temporary files")
    };
    let folder = tempfile::tempdir().map_err(|e| failed(&e))?;
    std::fs::create_dir(folder.path().join("w")).map_err(|e| failed(&e))?;
    // A small factor, so that products of thousands of terms stay in range.
    let bytes: Vec<u8> =
        values(shape.iter().product()).par_iter().flat_map_iter(|v| bf16::from_f32(v / 32.0).to_le_bytes()).collect();
    let tensor = FileTensor::new(Dtype::BF16, shape.to_vec(), &bytes).map_err(|e| failed(&e))?;
    safetensors::serialize_to_file([("w", tensor)], None, &folder.path().join("w/w.safetensors"))
        .map_err(|e| failed(&e))?;
    let files = ModelFiles::Folder(folder.path().to_path_buf()).tensors("w", "w")?;
    load(&files.get("w", shape)?)
}
