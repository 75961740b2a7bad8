//! The stages of an image with reference images, and of further images with the same references.

use std::sync::Arc;
use std::time::Instant;

use flux::backend::Backend;
use flux::input;
use flux::metadata::Metadata;
use flux::output::{ImageFormat, Rgb, encode};
use flux::pipeline::{Image, MAX_REFERENCES, Request, Timings};
use flux::{Error, Result};
use rayon::prelude::*;
use serde::Serialize;

use super::maker::Maker;
use super::{Bench, Shapes, gib, median, ms, tflop_s};

/// A square image to generate from reference images.
#[derive(Debug, Clone, Copy)]
pub struct Edit {
    /// Pixels on a side of the image, and of each reference's file.
    pub size: usize,
    /// The number of references.
    pub references: usize,
}

impl Edit {
    /// Returns the name of the row.
    pub fn name(self) -> String {
        let Self { size, references } = self;
        format!("stages/edit-{size}x{size}+{references}")
    }

    /// Errors when references of this size are rejected.
    pub fn check(self) -> Result<()> {
        input::reference(&photograph(self.size, 0))
            .map(drop)
            .map_err(|e| Error::usage(e.what()).at("--size").hint("use a larger size, or leave out `--references`"))
    }
}

/// Medians of several images in ms, for `--json`. Each run has its own references, so the references are read and
/// encoded for the first prompt. Further prompts use the same references.
#[derive(Serialize)]
struct Row {
    name: String,
    size: usize,
    references: usize,
    /// True if keys and values of the references are cached for all steps.
    kv: bool,
    /// Host time for all files, from PNG bytes to the model's input.
    read_ms: f64,
    file_bytes: usize,
    text_ms: f64,
    /// Time of encoding all references with the VAE.
    encode_ms: f64,
    encode_tflop_s: f64,
    /// Time of computing keys and values of the references.
    #[serde(skip_serializing_if = "Option::is_none")]
    references_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    references_tflop_s: Option<f64>,
    prepare_ms: f64,
    /// A step of the last prompt.
    step_ms: f64,
    step_tflop_s: f64,
    decode_ms: f64,
    /// Host time until all work of the first prompt is enqueued, without its waits for steps.
    enqueue_ms: f64,
    /// Time from the prompt's text and PNG bytes to RGB bytes on the host.
    total_ms: f64,
    /// The total time of a second prompt, for which no file is read.
    second_ms: f64,
    /// The total time of a third prompt, if steps depend on the references: their CUDA graphs are captured with the
    /// second prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    third_ms: Option<f64>,
    peak_gib: f64,
}

impl Row {
    fn text(&self) -> String {
        let rate = |tflop_s: f64| format!("  {tflop_s:9.2} TFLOP/s");
        let files = if self.references == 1 { "file" } else { "files" };
        let mut lines = vec![
            ("read", self.read_ms, format!("  {} {files}, {} bytes", self.references, self.file_bytes)),
            ("text", self.text_ms, String::new()),
            ("encode", self.encode_ms, rate(self.encode_tflop_s)),
        ];
        let kv = self.references_ms.zip(self.references_tflop_s);
        lines.extend(kv.map(|(ms, tflop_s)| ("keys and values of references", ms, rate(tflop_s))));
        lines.extend([
            ("prepare", self.prepare_ms, String::new()),
            ("step", self.step_ms, rate(self.step_tflop_s)),
            ("decode", self.decode_ms, String::new()),
            (
                "image, prompt and files to RGB",
                self.total_ms,
                format!("  peak {:.2} GiB, enqueued in {:.2} ms", self.peak_gib, self.enqueue_ms),
            ),
            ("image, second prompt", self.second_ms, String::new()),
        ]);
        lines.extend(self.third_ms.map(|ms| ("image, third prompt", ms, String::new())));
        let line = |(stage, ms, more)| format!("{:<52} {ms:10.2} ms{more}", format!("{} {stage}", self.name));
        lines.into_iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// An image, and the seconds from its prompt to its pixels.
struct Made {
    total_s: f64,
    image: Image,
}

/// The images of one set of references.
struct Run {
    read_s: f64,
    file_bytes: usize,
    /// The first image; its time includes reading the files.
    first: Made,
    second: Made,
    third: Option<Made>,
}

/// Measures `edits` with a model.
pub fn measure<B: Backend>(bench: &mut Bench<'_, B>, maker: &Maker<B>, edits: &[Edit]) -> Result<()> {
    let (runs, steps, prompt) = (bench.settings.effort.image_runs, bench.settings.steps, bench.settings.prompt.clone());
    // A run generates at least two images, and the third image is the first that only launches CUDA graphs.
    let warm_up = runs.div_ceil(2);
    for &edit in edits {
        let mut counted = Vec::with_capacity(runs);
        for round in 0..warm_up + runs {
            if let Some(pause) = bench.settings.pause {
                std::thread::sleep(pause);
            }
            let run = run(maker, edit, (&prompt, steps), round)?;
            if round >= warm_up {
                counted.push(run);
            }
        }
        if let Some(row) = row(maker, edit, &counted) {
            bench.line(|| row.text(), &row)?;
        }
    }
    Ok(())
}

/// Reads references that no other run has, and generates images from them.
fn run<B: Backend>(maker: &Maker<B>, edit: Edit, (prompt, steps): (&str, Option<usize>), round: usize) -> Result<Run> {
    const SETS: usize = MAX_REFERENCES + 1;
    let Edit { size, references: count } = edit;
    let file =
        |i: usize| encode(&photograph(size, (round * SETS + count) * SETS + i), ImageFormat::Png, &Metadata::default());
    let files = (0..count).map(file).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let read = |file: &Vec<u8>| input::reference(&input::read_bytes(file)?).map(Arc::new);
    let references = files.iter().map(read).collect::<Result<Vec<_>>>()?;
    let read_s = start.elapsed().as_secs_f64();
    let make = |start: Instant, which: &str| {
        // A cached prompt would not be encoded.
        let prompt = format!("{prompt} {} {round} {which}", edit.name());
        let (width, height, references) = (Some(size), Some(size), references.clone());
        let image = maker.generate(&Request { width, height, steps, references, ..Request::new(prompt, 42) })?;
        Ok(Made { total_s: start.elapsed().as_secs_f64(), image })
    };
    let first = make(start, "first")?;
    let second = make(Instant::now(), "second")?;
    let third = maker.info().caches_references.then(|| make(Instant::now(), "third")).transpose()?;
    Ok(Run { read_s, file_bytes: files.iter().map(Vec::len).sum(), first, second, third })
}

/// Returns the row of these runs, or `None` if there are none.
fn row<B: Backend>(maker: &Maker<B>, edit: Edit, runs: &[Run]) -> Option<Row> {
    let Run { file_bytes, first: Made { image: Image { plan, timings, .. }, .. }, .. } = runs.first()?;
    let kv = maker.info().caches_references;
    let of_runs = |of: &dyn Fn(&Run) -> f64| median(runs.iter().map(of).collect());
    let of_first = |of: fn(&Timings) -> f64| of_runs(&|run| of(&run.first.image.timings));
    let step_s = of_runs(&|run| {
        let steps_s = &run.third.as_ref().unwrap_or(&run.second).image.timings.steps_s;
        steps_s.iter().sum::<f64>() / steps_s.len().max(1) as f64
    });
    let shapes = Shapes::new(maker.info());
    let tokens = |side: usize| (side / shapes.patch()).pow(2);
    // Files above a megapixel are scaled down when read.
    let sides = plan.references.iter().map(|&[side, _]| side);
    let shapes = &shapes.with_text(plan.text_tokens);
    let (encode_flops, tokens) =
        sides.fold((0, 0), |(flops, sum), side| (flops + shapes.encode_flops(side), sum + tokens(side)));
    let (layout, cached) =
        if kv { (shapes.layout(1, plan.width), tokens) } else { (shapes.edit_layout(plan.width, tokens), 0) };
    let evaluations = if plan.guided() { 2 } else { 1 };
    let (encode_s, references_s) = (of_first(|t| t.encode_s), of_first(|t| t.references_s));
    Some(Row {
        name: maker.name(edit.name()),
        size: plan.width,
        references: edit.references,
        kv,
        read_ms: ms(of_runs(&|run| run.read_s)),
        file_bytes: *file_bytes,
        text_ms: ms(of_first(|t| t.text_s)),
        encode_ms: ms(encode_s),
        encode_tflop_s: tflop_s(encode_flops, encode_s),
        references_ms: kv.then(|| ms(references_s)),
        references_tflop_s: kv.then(|| tflop_s(shapes.reference_flops(tokens), references_s)),
        prepare_ms: ms(of_first(|t| t.prepare_s)),
        step_ms: ms(step_s),
        step_tflop_s: tflop_s(evaluations * shapes.step_flops(layout, cached), step_s),
        decode_ms: ms(of_first(|t| t.decode_s)),
        enqueue_ms: ms(of_first(|t| t.enqueue_s)),
        total_ms: ms(of_runs(&|run| run.first.total_s)),
        second_ms: ms(of_runs(&|run| run.second.total_s)),
        third_ms: kv.then(|| ms(of_runs(&|run| run.third.as_ref().map_or(0.0, |third| third.total_s)))),
        peak_gib: gib(timings.device.peak_memory_bytes),
    })
}

/// Returns a square image with sides of `side` pixels, different for each seed. It is smooth except for four bits of
/// noise, so that its PNG is about as large as a photograph's.
fn photograph(side: usize, seed: usize) -> Rgb {
    let wave = |v: usize| (v % 480).min(480 - v % 480);
    let value = |i: usize| {
        let (x, y, channel) = (i / 3 % side, i / 3 / side, i % 3);
        let mixed = ((seed << 32) as u64 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let noise = (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        (wave(x + 2 * y + 160 * channel + 7 * seed) as u64 + noise) as u8
    };
    Rgb { width: side, height: side, bytes: (0..3 * side * side).into_par_iter().map(value).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn photographs_differ_and_their_files_are_as_long_as_those_of_real_ones() {
        let [a, b] = [1, 2].map(|seed| photograph(128, seed));
        assert_ne!(a, b);
        let share = encode(&a, ImageFormat::Png, &Metadata::default()).unwrap().len() as f64 / a.bytes.len() as f64;
        assert!((0.4..0.8).contains(&share), "{share}");
    }

    #[test]
    fn references_that_are_too_small_are_refused() {
        assert!(Edit { size: 64, references: 1 }.check().is_ok());
        let text = Edit { size: 48, references: 1 }.check().unwrap_err().to_string();
        assert!(text.contains("48x48") && text.contains("--size") && text.contains("hint"), "{text}");
    }
}
