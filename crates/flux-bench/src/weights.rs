//! Weights for measurements, written to files, because backends load weights only from files and store them in their
//! own format.

use std::path::PathBuf;

use flux::backend::{Backend, Storage};
use flux::files::adapter::Modules;
use flux::files::{Folder, TensorView};
use flux::nn::{ConvKernel, Linear, WeightPolicy};
use flux::{Error, Result};
use half::bf16;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView as FileTensor;
use tempfile::TempDir;

/// Returns values in -1..1 without a pattern.
pub fn values(n: usize) -> Vec<f32> {
    values_from(0, n)
}

/// Returns `n` of these values, starting at index `first`.
fn values_from(first: usize, n: usize) -> Vec<f32> {
    (first..first + n)
        .into_par_iter()
        .map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

/// Loads a weight matrix [rows, cols].
pub fn linear<B: Backend>(backend: &B, rows: usize, cols: usize) -> Result<Linear<B>> {
    stored(backend, rows, cols, Storage::Native)
}

/// [`linear`], stored in the policy's format for block weights.
pub fn block_linear<B: Backend>(backend: &B, rows: usize, cols: usize) -> Result<Linear<B>> {
    stored(backend, rows, cols, WeightPolicy::for_backend(backend).blocks())
}

fn stored<B: Backend>(backend: &B, rows: usize, cols: usize, storage: Storage) -> Result<Linear<B>> {
    with_view(&[rows, cols], |view| Linear::load(backend, "bench", std::slice::from_ref(view), storage))
}

/// Loads the weight of a convolution from `cin` to `cout` channels.
pub fn convolution<B: Backend>(backend: &B, cin: usize, cout: usize, side: usize) -> Result<ConvKernel<B>> {
    with_view(&[cout, cin, side, side], |view| ConvKernel::load(backend, view))
}

/// Calls `load` with a tensor in a mapped file, and then removes the file.
pub fn with_view<T>(shape: &[usize], load: impl FnOnce(&TensorView) -> Result<T>) -> Result<T> {
    let folder = tempfile::tempdir().map_err(|e| failed(&e))?;
    let bytes = small(&values(shape.iter().product()));
    let tensor = FileTensor::new(Dtype::BF16, shape.to_vec(), &bytes).map_err(|e| failed(&e))?;
    safetensors::serialize_to_file([("w", tensor)], None, &folder.path().join("w.safetensors"))
        .map_err(|e| failed(&e))?;
    let files = Folder::Disk(folder.path().to_path_buf()).tensors("w")?;
    load(&files.get("w", shape)?)
}

/// Returns the values divided by 32 as bf16 bytes, so that sums over thousands of terms stay in range.
pub fn small(values: &[f32]) -> Vec<u8> {
    values.par_iter().flat_map_iter(|v| bf16::from_f32(v / 32.0).to_le_bytes()).collect()
}

fn failed(e: &dyn std::fmt::Display) -> Error {
    Error::new(format!("cannot write the weights for the benchmark: {e}"))
        .at("the temporary folder")
        .hint("set `TMPDIR` to another folder")
}

/// Two adapters in a temporary folder, removed on drop.
pub struct AdapterFiles {
    pub paths: [PathBuf; 2],
    /// The size of one file.
    pub bytes: u64,
    _folder: TempDir,
}

/// Writes LoRAs of `rank` for all modules of the transformer's blocks, in bf16, with diffusers' names.
pub fn adapter_files(modules: &Modules, rank: usize) -> Result<AdapterFiles> {
    let folder = tempfile::tempdir().map_err(|e| failed(&e))?;
    let paths = ["first", "second"].map(|name| folder.path().join(name).with_extension("safetensors"));
    let mut next = 0;
    for path in &paths {
        let mut factors: Vec<(String, [usize; 2], Vec<u8>)> = Vec::new();
        // Only the blocks' layers may be quantized, and only diffusers uses these names.
        for module in modules.iter().filter(|module| WeightPolicy::may_quantize(&module.name)) {
            let &[rows, cols] = &module.shape[..] else { continue };
            for (half, shape) in [("lora_A", [rank, cols]), ("lora_B", [rows, rank])] {
                let len = shape[0] * shape[1];
                factors.push((
                    format!("transformer.{}.{half}.weight", module.name),
                    shape,
                    small(&values_from(next, len)),
                ));
                next += len;
            }
        }
        let tensors = factors.iter().map(|(name, shape, bytes)| {
            FileTensor::new(Dtype::BF16, shape.to_vec(), bytes).map(|tensor| (name, tensor))
        });
        let tensors = tensors.collect::<std::result::Result<Vec<_>, _>>().map_err(|e| failed(&e))?;
        safetensors::serialize_to_file(tensors, None, path).map_err(|e| failed(&e))?;
    }
    let bytes = std::fs::metadata(&paths[0]).map_err(|e| failed(&e))?.len();
    Ok(AdapterFiles { paths, bytes, _folder: folder })
}
