//! Throughput of several devices that generate images together, compared with one of them.

use std::time::Instant;

use flux::Result;
use flux::backend::Backend;
use flux::engine::Engine;
use flux::files::ModelFiles;
use flux::pipeline::{Image, Replicas, Request};
use flux::stage::CancelFlag;
use serde::Serialize;

use super::PROMPT;
use super::{Bench, median, round};

/// Returns the name of the row for a size and number of devices.
pub fn name(size: usize, devices: usize) -> String {
    format!("replicas/{size}x{size} x {devices}")
}

/// The medians of a row, for `--json`.
#[derive(Serialize)]
struct Row {
    name: String,
    size: usize,
    devices: usize,
    /// Images per batch on each device.
    batch: usize,
    /// Images per second of the first device alone and of all, from an encoded prompt to RGB bytes on the host.
    one_images_s: f64,
    all_images_s: f64,
    /// The throughput of all devices divided by that of the first.
    factor: f64,
}

impl Row {
    fn text(&self) -> String {
        let Self { name, batch, one_images_s, all_images_s, factor, .. } = self;
        let head = if *batch == 1 { name.clone() } else { format!("{name} batch {batch}") };
        let line = |what: &str, images_s: f64| {
            format!("{:<52} {:10.2} ms per image  {images_s:9.3} images/s", format!("{head} {what}"), 1e3 / images_s)
        };
        format!("{}\n{}  {factor:.3} times one device", line("one", *one_images_s), line("all", *all_images_s))
    }
}

/// Measures images of `sizes` from the model in `dir`: a batch on each device, and a batch on the first alone.
pub fn measure<B: Backend>(bench: &mut Bench<'_, B>, dir: &ModelFiles, sizes: &[usize]) -> Result<()> {
    if sizes.is_empty() {
        return Ok(());
    }
    let devices = bench.devices.len();
    let replicas = Replicas::new(bench.devices.to_vec(), bench.open(dir)?)?;
    let engine = Engine::from_replicas(&replicas)?;
    let (batch, steps, runs) = (bench.settings.batch, bench.settings.steps, bench.settings.effort.image_runs);
    for &size in sizes {
        let request = Request { width: Some(size), height: Some(size), steps, ..Request::new(PROMPT, 42) };
        let (mut one_s, mut all_s) = (Vec::new(), Vec::new());
        // The first runs load weights and capture CUDA graphs.
        let warm_up = runs.div_ceil(2).max(2);
        for run in 0..warm_up + runs {
            let one = timed(bench, || replicas.first().model().generate_batch(&request, batch))?;
            let cancel = CancelFlag::default();
            let all = timed(bench, || engine.generate_images(&request, batch * devices, &cancel, &mut |_| {}))?;
            if run >= warm_up {
                one_s.push(one);
                all_s.push(all);
            }
        }
        let [one, all] = [one_s, all_s].map(|seconds| 1.0 / median(seconds));
        let (one_images_s, all_images_s, factor) = (round(one, 4), round(all, 4), round(all / one, 3));
        let row = Row { name: name(size, devices), size, devices, batch, one_images_s, all_images_s, factor };
        bench.line(|| row.text(), &row)?;
    }
    Ok(())
}

/// Returns the seconds per image.
fn timed<B: Backend>(bench: &Bench<'_, B>, make: impl FnOnce() -> Result<Vec<Image>>) -> Result<f64> {
    bench.settings.pause.iter().copied().for_each(std::thread::sleep);
    let start = Instant::now();
    let images = make()?;
    Ok(start.elapsed().as_secs_f64() / images.len() as f64)
}

#[cfg(test)]
mod tests {
    use flux::backend::cpu::{Cpu, Precision};
    use flux::model::Quantization;

    use super::*;
    use crate::{Effort, Settings, run};

    /// Returns the output lines for a number of CPU devices.
    fn lines(devices: usize, json: bool) -> Result<Vec<String>> {
        let settings = Settings {
            names: vec!["replicas".to_string()],
            sizes: vec![40],
            references: Vec::new(),
            kv: false,
            quantization: Quantization::default(),
            prompt: String::new(),
            batch: 3,
            steps: Some(1),
            in_a_row: None,
            pause: None,
            json,
            effort: Effort { image_runs: 1, ..Effort::CPU },
        };
        let cpus: Vec<_> = (0..devices).map(|n| (n.to_string(), Cpu::new(Precision::F32))).collect();
        let model = || ModelFiles::open("../../models/tiny".as_ref());
        let mut lines = Vec::new();
        run(&cpus, None, settings, model, &mut |line| {
            lines.push(line.to_string());
            Ok(())
        })?;
        Ok(lines)
    }

    #[test]
    fn several_devices_have_a_row_and_one_has_none() {
        let rows = lines(2, true).unwrap();
        let row: serde_json::Value = serde_json::from_str(&rows[0]).unwrap();
        let expected = serde_json::json!(["replicas/32x32 x 2", 2, 3, 32]);
        assert_eq!(serde_json::json!([row["name"], row["devices"], row["batch"], row["size"]]), expected);
        let [one, all, factor] =
            ["one_images_s", "all_images_s", "factor"].map(|field| row[field].as_f64().expect("a number"));
        assert!(one > 0.0 && (factor - all / one).abs() < 0.002 && rows.len() == 1, "{rows:?}");
        let text = lines(2, false).unwrap().join("\n");
        assert!(text.contains("replicas/32x32 x 2 batch 3 all ") && text.ends_with(" times one device"), "{text}");
        assert!(lines(1, true).unwrap_err().to_string().contains("replicas"));
    }
}
