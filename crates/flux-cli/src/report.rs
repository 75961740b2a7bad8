//! `--timings`: time and memory of an image, as text or JSON. Images of one batch share the stages' times.

use std::borrow::Cow;
use std::fmt::Write;
use std::fs;
use std::iter::once;
use std::path::Path;

use flux::engine::{AdapterFile, Recipe};
use flux::files::adapter::BlockStrengths;
use flux::pipeline::{Plan, Timings};
use serde::Serialize;

/// The full report of `--timings` for one image.
#[derive(Serialize)]
pub struct Report<'a> {
    /// The image's path.
    pub output: &'a str,
    pub model: &'a str,
    pub device: &'a str,
    pub adapters: Vec<ReportedAdapter<'a>>,
    pub plan: &'a Plan,
    /// The tensor files that were read.
    pub tensors: ReportedTensors<'a>,
    pub timings: &'a Timings,
    /// Time of finding and opening the device.
    pub device_s: f64,
    /// Time of opening and checking the model without its tokenizer, in parallel with opening the device.
    pub open_s: f64,
    /// Time of quantizing weights, or of reading or writing their cache.
    pub quantize_s: f64,
    /// Time of encoding and writing the file.
    pub save_s: f64,
    /// Time from the program's start until the file was written.
    pub total_s: f64,
    /// Peak host memory of the program, including mapped weights.
    pub peak_host_bytes: Option<u64>,
}

/// The tensor files that were read.
#[derive(Serialize)]
pub struct ReportedTensors<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latents: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<&'a Path>,
}

impl<'a> From<&'a Recipe> for ReportedTensors<'a> {
    fn from(recipe: &'a Recipe) -> Self {
        let Recipe { noise, latents, embeddings, .. } = recipe;
        Self { noise: noise.as_deref(), latents: latents.as_deref(), embeddings: embeddings.as_deref() }
    }
}

/// An adapter that was used.
#[derive(Serialize)]
pub struct ReportedAdapter<'a> {
    /// The file's name.
    file: Cow<'a, str>,
    strength: f32,
    #[serde(skip_serializing_if = "BlockStrengths::is_empty")]
    blocks: &'a BlockStrengths,
}

impl<'a> From<&'a AdapterFile> for ReportedAdapter<'a> {
    fn from(AdapterFile { file, strength, blocks }: &'a AdapterFile) -> Self {
        Self { file: file.file_name().unwrap_or_default().to_string_lossy(), strength: *strength, blocks }
    }
}

impl Report<'_> {
    /// Formats one line per stage, without a line break at the end. If several devices generated the images together,
    /// each has a column, in the order of ranks.
    pub fn text(&self) -> String {
        let devices: Vec<&Timings> = once(self.timings).chain(&self.timings.other_devices).collect();
        let of_each = |seconds: fn(&Timings) -> f64| devices.iter().map(|timings| seconds(timings)).collect();
        let before: [(&str, Vec<f64>); 10] = [
            ("device", vec![self.device_s]),
            ("open", vec![self.open_s]),
            ("quantize", vec![self.quantize_s]),
            ("load", of_each(|timings| timings.load_s)),
            ("text", of_each(|timings| timings.text_s)),
            ("encode", of_each(|timings| timings.encode_s)),
            ("references", of_each(|timings| timings.references_s)),
            ("factors", of_each(|timings| timings.factors_s)),
            ("merge", of_each(|timings| timings.merge_s)),
            ("prepare", of_each(|timings| timings.prepare_s)),
        ];
        // Rare stages: `quantize` needs its flag, `encode` input images, `references` a model that caches them,
        // `factors` and `merge` adapters.
        let rare = ["quantize", "encode", "references", "factors", "merge"];
        let before =
            before.into_iter().filter(|(name, times)| !rare.contains(name) || times.iter().any(|time| *time > 0.0));
        let step = |step: usize| {
            let times = devices.iter().filter_map(|timings| timings.steps_s.get(step).copied());
            (format!("step {}", step + 1), times.collect())
        };
        let mut times: Vec<(String, Vec<f64>)> = before.map(|(name, times)| (name.to_string(), times)).collect();
        times.extend((0..self.timings.steps_s.len()).map(step));
        times.extend([
            ("decode".to_string(), of_each(|timings| timings.decode_s)),
            ("save".to_string(), vec![self.save_s]),
            ("total".to_string(), vec![self.total_s]),
        ]);

        let mut text = String::new(); // writing to a string does not fail
        let mut line = |name: &str, values: &[f64], digits: usize, unit: &str| {
            let _ = write!(text, "{name:12}");
            for value in values {
                let _ = write!(text, " {value:>10.digits$} {unit}");
            }
            let _ = writeln!(text);
        };
        if devices.len() > 1 {
            line("rank", &(0..devices.len()).map(|rank| rank as f64).collect::<Vec<_>>(), 0, "  ");
        }
        for (name, seconds) in times {
            line(&name, &seconds.iter().map(|seconds| seconds * 1e3).collect::<Vec<_>>(), 1, "ms");
        }
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        if let Some(bytes) = self.peak_host_bytes {
            line("host peak", &[gib(bytes)], 3, "GiB");
        }
        let peaks: Vec<f64> = devices.iter().map(|timings| gib(timings.device.peak_memory_bytes)).collect();
        line("device peak", &peaks, 3, "GiB");
        let images = self.timings.images;
        if images > 1 {
            text = format!("{:12} {images:>10} images share the times from load to decode\n{text}", "batch");
        }
        let composed: usize = devices.iter().map(|timings| timings.device.composed as usize).sum();
        if composed > 0 {
            let _ = writeln!(text, "{:12} {composed:>10} ops ran without their kernel", "composed");
        }
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the peak memory of the program according to the system; `None` if unknown.
pub fn peak_host_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
