//! The cost of adapters: a step with and without them, and switching between them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use flux::Result;
use flux::backend::Backend;
use flux::files::ModelFiles;
use flux::files::adapter::AdapterUse;
use flux::pipeline::{Model, Placement, Request, Session, Timings};
use flux::stage::CancelFlag;
use serde::Serialize;

use super::weights::{AdapterFiles, adapter_files};
use super::{Bench, PROMPT, gib, median, ms};

/// The rank of the adapters, which change every module of the blocks.
const RANK: usize = 32;
/// The files have no alpha or metadata, so a strength other than 1 makes loading scale the factors, as for most
/// adapters.
const STRENGTH: f32 = 0.75;

/// Returns the name of the row for a size.
pub fn name(size: usize) -> String {
    format!("adapters/{size}x{size}")
}

/// Medians in ms, for `--json`.
#[derive(Serialize)]
struct Row {
    name: String,
    size: usize,
    rank: usize,
    file_bytes: u64,
    /// A step without adapters.
    step_ms: f64,
    /// A step with one merged adapter, if the backend merges.
    #[serde(skip_serializing_if = "Option::is_none")]
    merged_step_ms: Option<f64>,
    /// A step with one adapter that is not merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside_step_ms: Option<f64>,
    /// Opening an adapter, which reads its whole file from the page cache.
    open_ms: f64,
    /// Time from a request with an unused adapter until the device is ready for the first step. Available memory
    /// decides where the factors are stored.
    first_ms: f64,
    /// The part of `first_ms` that uploads the factors.
    factors_ms: f64,
    /// The part of `first_ms` that merges the factors.
    merge_ms: f64,
    /// `first_ms` for a cached adapter, after a request with another one.
    again_ms: f64,
    /// `first_ms` for a request without adapters.
    without_ms: f64,
    placement: &'static str,
    peak_gib: f64,
}

impl Row {
    fn text(&self) -> String {
        let Self { name, rank, step_ms, .. } = self;
        let more = |ms: f64| format!("  {:+.1}%", (ms / step_ms - 1.0) * 100.0);
        let mut lines = vec![("step without adapters", *step_ms, String::new())];
        lines.extend(self.merged_step_ms.map(|ms| ("step, merged", ms, more(ms))));
        lines.extend(self.beside_step_ms.map(|ms| ("step, unmerged", ms, more(ms))));
        let (factors, merge) = (self.factors_ms, self.merge_ms);
        let first = format!("  {factors:.2} ms for factors, {merge:.2} ms for merging; {}", self.placement);
        lines.extend([
            ("open a file", self.open_ms, format!("  rank {rank}, {} bytes", self.file_bytes)),
            ("ready for a step, first use", self.first_ms, first),
            ("ready for a step, cached", self.again_ms, String::new()),
            ("ready for a step, none", self.without_ms, format!("  peak {:.2} GiB", self.peak_gib)),
        ]);
        let line =
            |(what, ms, more): (&str, f64, String)| format!("{:<52} {ms:10.2} ms{more}", format!("{name} {what}"));
        lines.into_iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Measures adapters of the model in `dir` on images of `sizes`.
pub fn measure<B: Backend>(bench: &mut Bench<'_, B>, dir: &ModelFiles, sizes: &[usize]) -> Result<()> {
    if sizes.is_empty() {
        return Ok(());
    }
    let model = bench.load(&bench.backend, dir)?;
    let files = adapter_files(&model.info().transformer.adapter_modules()?, RANK)?;
    for &size in sizes {
        let (steps, runs) = (bench.settings.steps, bench.settings.effort.image_runs);
        let row = Measured { backend: &bench.backend, model: &model, files: &files, size, steps, runs }.row()?;
        bench.line(|| row.text(), &row)?;
    }
    Ok(())
}

/// A measurement and its settings.
struct Measured<'a, B: Backend> {
    backend: &'a B,
    model: &'a Arc<Model<B>>,
    files: &'a AdapterFiles,
    size: usize,
    steps: Option<usize>,
    runs: usize,
}

/// A session that is ready for its first step: the seconds until then, and the session's timings.
struct Ready {
    seconds: f64,
    placement: Option<Placement>,
    timings: Timings,
}

impl<B: Backend> Measured<'_, B> {
    fn row(&self) -> Result<Row> {
        let adapters = [self.open(0)?, self.open(1)?];
        let beside = self.steps(&adapters[..1], Placement::Unmerged)?;
        let merged = self.steps(&adapters[..1], Placement::Merged)?;
        let base = [&beside, &merged].into_iter().flatten().flat_map(|[base, _]| base.clone()).collect();
        let with_adapter = |steps: Option<[Vec<f64>; 2]>| steps.map(|[_, steps]| ms(median(steps)));

        self.model.place_adapters(None);
        let without = self.median(|_| Ok(self.ready(&[])?.seconds))?;
        let (open, mut first) = self.first_uses()?;
        let again = self.median(|run| Ok(self.ready(&adapters[run % 2..=run % 2])?.seconds))?;
        let part = |of: fn(&Timings) -> f64| median(first.iter().map(|ready| of(&ready.timings)).collect());
        let (factors, merge) = (part(|timings| timings.factors_s), part(|timings| timings.merge_s));
        let seconds = median(first.iter().map(|ready| ready.seconds).collect());
        let last = first.pop();
        let is_merged = last.as_ref().and_then(|ready| ready.placement) == Some(Placement::Merged);
        let peak = last.map_or(0, |ready| ready.timings.device.peak_memory_bytes);
        Ok(Row {
            name: name(self.size),
            size: self.size,
            rank: RANK,
            file_bytes: self.files.bytes,
            step_ms: ms(median(base)),
            merged_step_ms: with_adapter(merged),
            beside_step_ms: with_adapter(beside),
            open_ms: ms(open),
            first_ms: ms(seconds),
            factors_ms: ms(factors),
            merge_ms: ms(merge),
            again_ms: ms(again),
            without_ms: ms(without),
            placement: if is_merged { "merged" } else { "beside" },
            peak_gib: gib(peak),
        })
    }

    /// Opens the adapter of one of the files.
    fn open(&self, file: usize) -> Result<AdapterUse> {
        let path: &Path = &self.files.paths[file];
        Ok(AdapterUse::new(self.model.adapter(path)?, STRENGTH))
    }

    /// Returns the median of several runs, after a warm-up.
    fn median(&self, mut run: impl FnMut(usize) -> Result<f64>) -> Result<f64> {
        let warm_up = self.warm_up();
        let seconds = (0..warm_up + self.runs).map(&mut run).collect::<Result<Vec<_>>>()?;
        Ok(median(seconds[warm_up..].to_vec()))
    }

    /// Returns the number of warm-up runs. The second image of a shape is captured as CUDA graphs, so the third is the
    /// first that only launches them; each of the two adapters is used once.
    fn warm_up(&self) -> usize {
        self.runs.div_ceil(2).max(2)
    }

    fn session(&self, adapters: &[AdapterUse]) -> Result<Session<B>> {
        let (width, height, steps) = (Some(self.size), Some(self.size), self.steps);
        let request = Request { width, height, steps, adapters: adapters.to_vec(), ..Request::new(PROMPT, 42) };
        self.model.session(&request, 1, &CancelFlag::default())
    }

    /// Returns the seconds of steps without and with adapters, interleaved because a GPU changes its clock as it gets
    /// warm. `None` if the backend does not support the placement.
    fn steps(&self, adapters: &[AdapterUse], placement: Placement) -> Result<Option<[Vec<f64>; 2]>> {
        self.model.place_adapters(Some(placement));
        let mut steps = [Vec::new(), Vec::new()];
        for run in 0..self.warm_up() + self.runs {
            for (steps, adapters) in steps.iter_mut().zip([&[], adapters]) {
                let mut session = self.session(adapters)?;
                session.prepare(&mut |_| {})?;
                if session.adapter_placement().is_some_and(|found| found != placement) {
                    return Ok(None);
                }
                while session.step(&mut |_| {})? {}
                let steps_s = session.finish()?.steps_s;
                if run >= self.warm_up() {
                    steps.push(steps_s.iter().sum::<f64>() / steps_s.len().max(1) as f64);
                }
            }
        }
        Ok(Some(steps))
    }

    /// Prepares a session with these adapters.
    fn ready(&self, adapters: &[AdapterUse]) -> Result<Ready> {
        let start = Instant::now();
        let mut session = self.session(adapters)?;
        session.prepare(&mut |_| {})?;
        let prepared = self.backend.event()?;
        self.backend.wait(&prepared)?;
        let (seconds, placement) = (start.elapsed().as_secs_f64(), session.adapter_placement());
        Ok(Ready { seconds, placement, timings: session.finish()? })
    }

    /// Returns the seconds of opening an adapter, and sessions that use an adapter for the first time, each after a
    /// session with another one.
    fn first_uses(&self) -> Result<(f64, Vec<Ready>)> {
        let mut ready = Vec::new();
        let open = self.median(|run| {
            let start = Instant::now();
            let adapter = self.open(run % 2)?;
            let seconds = start.elapsed().as_secs_f64();
            ready.push(self.ready(&[adapter])?);
            Ok(seconds)
        })?;
        Ok((open, ready.split_off(self.warm_up())))
    }
}
