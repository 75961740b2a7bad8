//! `--timings`: where the time and the memory of an image went, as text or as JSON. Images of one batch share the
//! stages' times.

use std::fmt::{self, Display, Formatter, Write};
use std::fs;

use flux::pipeline::{Plan, Timings};
use serde::Serialize;

use crate::cli::TensorArgs;

/// Everything that `--timings` prints of one image.
#[derive(Serialize)]
pub struct Report<'a> {
    /// The image's path.
    pub output: &'a str,
    pub model: &'a str,
    pub device: &'a str,
    pub adapters: Vec<ReportedAdapter>,
    pub plan: &'a Plan,
    /// The files of tensors that were read.
    pub tensors: &'a TensorArgs,
    pub timings: &'a Timings,
    /// Finding and opening the device.
    pub device_s: f64,
    /// Opening and checking the model without its tokenizer, at the same time as opening the device.
    pub open_s: f64,
    /// Encoding and writing the file.
    pub save_s: f64,
    /// From the start of the program to the written file.
    pub total_s: f64,
    /// The most memory of the host that the program held at once, mapped weights included.
    pub peak_host_bytes: Option<u64>,
}

/// An adapter that was used.
#[derive(Serialize)]
pub struct ReportedAdapter {
    /// The file's name.
    pub file: String,
    pub strength: f32,
}

impl Display for ReportedAdapter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.strength)
    }
}

impl Report<'_> {
    /// One line per stage, without a line end after the last.
    pub fn text(&self) -> String {
        let Timings { images, load_s, text_s, encode_s, references_s, prepare_s, steps_s, decode_s, device, .. } =
            self.timings;
        let Timings { factors_s, merge_s, .. } = self.timings;
        let before = [
            ("device", self.device_s),
            ("open", self.open_s),
            ("load", *load_s),
            ("text", *text_s),
            ("encode", *encode_s),
            ("references", *references_s),
            ("factors", *factors_s),
            ("merge", *merge_s),
            ("prepare", *prepare_s),
        ];
        // Without images there is nothing to encode, most models cache nothing of references, and without adapters there
        // is nothing to merge.
        let rare = ["encode", "references", "factors", "merge"];
        let before = before.into_iter().filter(|(name, seconds)| !rare.contains(name) || *seconds > 0.0);
        let mut times: Vec<_> = before.map(|(name, seconds)| (name.to_string(), seconds)).collect();
        times.extend(steps_s.iter().enumerate().map(|(i, step)| (format!("step {}", i + 1), *step)));
        times.extend([
            ("decode".to_string(), *decode_s),
            ("save".to_string(), self.save_s),
            ("total".to_string(), self.total_s),
        ]);

        let mut text = String::new(); // writing to it does not fail
        if *images > 1 {
            let _ = writeln!(text, "{:12} {images:>10} images share the times from load to decode", "batch");
        }
        for (name, seconds) in times {
            let _ = writeln!(text, "{name:12} {:>10.1} ms", seconds * 1e3);
        }
        for (name, bytes) in [("host peak", self.peak_host_bytes), ("device peak", Some(device.peak_memory_bytes))] {
            if let Some(bytes) = bytes {
                let _ = writeln!(text, "{name:12} {:>10.3} GiB", bytes as f64 / f64::from(1 << 30));
            }
        }
        if device.composed > 0 {
            let _ = writeln!(text, "{:12} {:>10} ops ran without their kernel", "composed", device.composed);
        }
        text.trim_end().to_string()
    }
}

/// The most memory that this program held at once, as the system counts it; `None` where the system does not tell.
pub fn peak_host_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
