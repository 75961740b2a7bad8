//! An upscaler of the size of Real-ESRGAN x4plus, with random weights: 23 blocks of 64 features.

use std::time::Instant;

use flux::backend::Backend;
use flux::rgb::Rgb;
use flux::stage::{Caller, CancelFlag};
use flux::upscaler::{Tiles, Upscaler, UpscalerFile};
use flux::{Error, Result};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::{Bench, Times, Work, weights};

const BLOCKS: usize = 23;
pub const FEATURES: usize = 64;
pub const GROWN: usize = 32;
/// Enlarged images of one measurement, after the first.
const RUNS: usize = 5;

/// Returns the name of the measurement of an image with sides of `size` pixels.
pub fn name(size: usize) -> String {
    format!("upscale/rrdb {size}x{size} x4")
}

/// Measures images by the host's clock, from bytes to bytes, if the measurement is named: it takes minutes on a CPU.
pub fn measure<B: Backend>(bench: &mut Bench<'_, B>, size: usize) -> Result<()> {
    let name = name(size);
    if bench.settings.names.is_empty() || !bench.is_new(&name) {
        return Ok(());
    }
    bench.ceiling()?;
    let folder = tempfile::tempdir().map_err(|e| Error::new(format!("cannot create a temporary folder: {e}")))?;
    let path = folder.path().join("rrdb.safetensors");
    write(&path)?;
    let upscaler = Upscaler::load(&bench.backend.clone(), &UpscalerFile::open(&path)?)?;
    let bytes = (0..3 * size * size).map(|i| (i * 7 % 256) as u8).collect();
    let image = Rgb { width: size, height: size, bytes };
    let run = || {
        let start = Instant::now();
        upscaler.enlarge(&image, Tiles::Auto, &Caller::new(&mut |_| {}, &CancelFlag::default()))?;
        Ok(start.elapsed().as_secs_f64())
    };
    run()?; // the first one also chooses kernels and allocates memory
    let seconds = (0..RUNS).map(|_| run()).collect::<Result<Vec<f64>>>()?;
    bench.row(&name, Work::Flops(flops(size * size)), Times::from_seconds(seconds), None)
}

/// Returns the layers: names, outputs and inputs.
fn layers() -> Vec<(String, usize, usize)> {
    let mut layers = vec![("conv_first".to_string(), FEATURES, 3)];
    for (block, dense) in (0..BLOCKS).flat_map(|block| (1..=3).map(move |dense| (block, dense))) {
        layers.extend((1..=5).map(|conv| {
            let outs = if conv == 5 { FEATURES } else { GROWN };
            (format!("body.{block}.rdb{dense}.conv{conv}"), outs, FEATURES + (conv - 1) * GROWN)
        }));
    }
    let after = ["conv_body", "conv_up1", "conv_up2", "conv_hr"].map(|name| (name.to_string(), FEATURES, FEATURES));
    layers.extend(after);
    layers.push(("conv_last".to_string(), 3, FEATURES));
    layers
}

/// Returns the operations for an image: the last layers compute 4 and 16 values for each pixel.
fn flops(pixels: usize) -> u64 {
    let layer = |(name, outs, inputs): (String, usize, usize)| {
        let area = match &*name {
            "conv_up1" => 4,
            "conv_up2" | "conv_hr" | "conv_last" => 16,
            _ => 1,
        };
        2 * 9 * area * outs * inputs
    };
    (pixels * layers().into_iter().map(layer).sum::<usize>()) as u64
}

fn write(path: &std::path::Path) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| Error::new(format!("cannot write random weights: {e}"));
    let layers = layers();
    let data: Vec<_> = layers
        .iter()
        .map(|(_, outs, inputs)| {
            (weights::small(&weights::values(9 * outs * inputs)), weights::small(&vec![0.0; *outs]))
        })
        .collect();
    let mut tensors = Vec::new();
    for ((name, outs, inputs), (weight, bias)) in layers.iter().zip(&data) {
        let tensor = |shape: Vec<usize>, bytes| TensorView::new(Dtype::BF16, shape, bytes).map_err(|e| failed(&e));
        tensors.push((format!("{name}.weight"), tensor(vec![*outs, *inputs, 3, 3], weight)?));
        tensors.push((format!("{name}.bias"), tensor(vec![*outs], bias)?));
    }
    safetensors::serialize_to_file(tensors, None, path).map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_megapixel_takes_38_teraflop() {
        assert_eq!((flops(1 << 20) as f64 / 1e12).round(), 38.0);
        assert_eq!(layers().len(), 1 + BLOCKS * 15 + 5);
    }
}
