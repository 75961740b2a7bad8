//! The stages of an image once a model is loaded, PNG encoding, and VAE encoding.

use std::time::Instant;

use flux::Result;
use flux::backend::Backend;
use flux::files::ModelFiles;
use flux::metadata::Metadata;
use flux::model::ModelInfo;
use flux::nn::Weights;
use flux::output::{ImageFormat, Rgb, encode};
use flux::pipeline::{Plan, Request, Timings};
use flux::vae::{self, Encoder, Grid};
use serde::Serialize;

use super::maker::Maker;
use super::{Bench, Shapes, Work, gib, ms, tflop_s};

/// Returns the name of the row for a size.
pub fn name(size: usize) -> String {
    format!("stages/{size}x{size}")
}

/// Returns the name of the VAE encoding row for a size.
pub fn encode_name(size: usize) -> String {
    format!("vae_encode/{size}x{size}")
}

/// Medians of several images in ms, for `--json`. With a batch, the times are for the whole batch.
#[derive(Serialize)]
struct Row {
    name: String,
    size: usize,
    batch: usize,
    text_ms: f64,
    text_tflop_s: f64,
    prepare_ms: f64,
    step_ms: f64,
    step_tflop_s: f64,
    /// A step of an image with a cached prompt, for models with separate text blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    known_step_ms: Option<f64>,
    decode_ms: f64,
    decode_tflop_s: f64,
    /// Host time until all work is enqueued, without its waits for steps.
    enqueue_ms: f64,
    /// Time from the prompt's text to RGB bytes on the host.
    total_ms: f64,
    /// The total time of an image with a cached prompt, for models with separate text blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    known_total_ms: Option<f64>,
    /// Time of encoding one image as PNG, in memory.
    png_ms: f64,
    png_bytes: usize,
    peak_gib: f64,
}

impl Row {
    fn text(&self) -> String {
        let Self { name, batch, .. } = self;
        let head = if *batch == 1 { name.clone() } else { format!("{name} batch {batch}") };
        let rate = |tflop_s: f64| format!("  {tflop_s:9.2} TFLOP/s");
        let lines = [
            ("text", self.text_ms, rate(self.text_tflop_s)),
            ("prepare", self.prepare_ms, String::new()),
            ("step", self.step_ms, rate(self.step_tflop_s)),
            ("decode", self.decode_ms, rate(self.decode_tflop_s)),
            (
                "image, prompt to RGB on the host",
                self.total_ms,
                format!("  peak {:.2} GiB, enqueued in {:.2} ms", self.peak_gib, self.enqueue_ms),
            ),
            ("PNG", self.png_ms, format!("  {} bytes", self.png_bytes)),
        ];
        let known = [("step, known prompt", self.known_step_ms), ("image, known prompt", self.known_total_ms)];
        let known = known.into_iter().filter_map(|(stage, ms)| Some((stage, ms?, String::new())));
        let line = |(stage, ms, more)| format!("{:<52} {ms:10.2} ms{more}", format!("{head} {stage}"));
        lines.into_iter().chain(known).map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Images of one size.
struct Images {
    timings: Vec<Timings>,
    /// Seconds from the prompt's text to RGB bytes on the host; `pngs` are seconds for encoding one image as PNG.
    totals: Vec<f64>,
    pngs: Vec<f64>,
    plan: Plan,
    png_bytes: usize,
}

impl Images {
    /// Generates images of a size and measures the last of them. `prompt` returns the prompt for the number of a run.
    fn make<B: Backend>(
        bench: &Bench<'_, B>,
        maker: &Maker<B>,
        size: usize,
        prompt: impl Fn(usize) -> String,
    ) -> Result<Option<Self>> {
        let (asked, steps, runs) = (bench.settings.batch, bench.settings.steps, bench.settings.effort.image_runs);
        let (mut timings, mut totals, mut pngs) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = None;
        // The second image is captured as CUDA graphs, so the third is the first that only launches them.
        let warm_up = runs.div_ceil(2);
        for run in 0..warm_up + runs {
            let request = Request { width: Some(size), height: Some(size), steps, ..Request::new(prompt(run), 42) };
            if let Some(pause) = bench.settings.pause {
                std::thread::sleep(pause);
            }
            let start = Instant::now();
            let mut images = maker.generate_batch(&request, asked)?;
            let total_s = start.elapsed().as_secs_f64();
            let Some(image) = images.pop() else { continue };
            let rgb = Rgb { width: image.plan.width, height: image.plan.height, bytes: image.rgb };
            let start = Instant::now();
            let png = encode(
                &rgb,
                ImageFormat::Png,
                &Metadata { texts: vec![("prompt", request.prompt)], ..Metadata::default() },
            )?;
            let png_s = start.elapsed().as_secs_f64();
            if run >= warm_up {
                totals.push(total_s);
                pngs.push(png_s);
                timings.push(image.timings);
            }
            last = Some((image.plan, png.len()));
        }
        Ok(last.map(|(plan, png_bytes)| Self { timings, totals, pngs, plan, png_bytes }))
    }

    /// Returns the median of a time, in seconds.
    fn median(&self, of: fn(&Timings) -> f64) -> f64 {
        super::median(self.timings.iter().map(of).collect())
    }

    fn step_s(&self) -> f64 {
        self.median(|t| t.steps_s.iter().sum::<f64>() / t.steps_s.len().max(1) as f64)
    }
}

/// Measures images of `sizes` with a model.
pub fn measure<B: Backend>(bench: &mut Bench<'_, B>, maker: &Maker<B>, sizes: &[usize]) -> Result<()> {
    let shapes = Shapes::new(maker.info());
    for &size in sizes {
        // A cached prompt would not be encoded.
        let prompt = |run: usize| format!("{} {size} {run}", bench.settings.prompt);
        let Some(images) = Images::make(bench, maker, size, prompt)? else { continue };
        let Some(first) = images.timings.first() else { continue };
        let known = match maker.info().transformer.has_early_blocks() {
            true => Images::make(bench, maker, size, |_| prompt(0))?,
            false => None,
        };
        let (step_s, text_s, decode_s) = (images.step_s(), images.median(|t| t.text_s), images.median(|t| t.decode_s));
        let (plan, batch) = (&images.plan, first.images);
        let evaluations = if plan.guided() { 2 } else { 1 };
        let shapes = shapes.with_text(plan.text_tokens);
        let step_flops = evaluations * shapes.step_flops(shapes.layout(batch, plan.width), 0);
        let row = Row {
            name: maker.name(name(size)),
            size: plan.width,
            batch,
            text_ms: ms(text_s),
            // Guidance's empty prompt is encoded too, but only for the first image.
            text_tflop_s: tflop_s(shapes.text_flops(), text_s),
            prepare_ms: ms(images.median(|t| t.prepare_s)),
            step_ms: ms(step_s),
            step_tflop_s: tflop_s(step_flops, step_s),
            known_step_ms: known.as_ref().map(|known| ms(known.step_s())),
            decode_ms: ms(decode_s),
            decode_tflop_s: tflop_s(batch as u64 * shapes.decode_flops(plan.width), decode_s),
            enqueue_ms: ms(images.median(|t| t.enqueue_s)),
            total_ms: ms(super::median(images.totals.clone())),
            known_total_ms: known.map(|known| ms(super::median(known.totals))),
            png_ms: ms(super::median(images.pngs.clone())),
            png_bytes: images.png_bytes,
            peak_gib: gib(first.device.peak_memory_bytes),
        };
        bench.line(|| row.text(), &row)?;
    }
    Ok(())
}

/// Measures the VAE encoder of the model in `dir` on images of `sizes`, from bytes on the device to packed latents.
pub fn measure_encodes<B: Backend>(bench: &mut Bench<'_, B>, dir: &ModelFiles, sizes: &[usize]) -> Result<()> {
    if sizes.is_empty() {
        return Ok(());
    }
    let (info, files) = (ModelInfo::read(dir)?, vae::open(dir)?);
    let (backend, shapes) = (bench.backend.clone(), Shapes::new(&info));
    let encoder = {
        let load =
            |uploads: &B::Uploads| Encoder::load(&Weights::new(&backend, &files).with_uploads(uploads), &info.vae);
        backend.load(load, &mut |_| {})?
    };
    for &size in sizes {
        let name = encode_name(size);
        if !bench.is_new(&name) {
            continue;
        }
        let rgb: Vec<u8> = (0..3 * size * size).map(|i| ((i * 0x9e37) >> 8) as u8).collect();
        let image = || Ok(Grid::new(backend.upload_rgb8(&rgb, size, size)?, size, size));
        let work = Work::Flops(shapes.encode_flops(size));
        bench.op(&name, work, image, |image| encoder.forward(image, None, |_| Ok(())))?;
    }
    Ok(())
}
