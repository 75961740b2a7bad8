//! Communication of a device group in a transformer block: heads of keys, values and queries before attention, and
//! queries after it.

use std::sync::Arc;
use std::thread;

use flux::backend::{Backend, Participants, Remark};
use flux::ops::TokenSplit;
use flux::tensor::Tensor;
use flux::{Error, Result};
use serde::Serialize;

use super::{Bench, Shapes, Times, round, tensor};

/// Returns the name of the row for a size and number of devices.
pub fn name(size: usize, devices: usize) -> String {
    format!("exchange/{size}x{size} over {devices}")
}

/// The times of one block for `--json`, on the slowest device of each run.
#[derive(Serialize)]
struct Row {
    name: String,
    size: usize,
    devices: usize,
    block_us: f64,
    min_us: f64,
    max_us: f64,
    /// The rate at which a device receives data from the others.
    gb_s: f64,
    /// The reason for a reduced speed, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Row {
    fn text(&self) -> String {
        let Self { name, block_us, min_us, max_us, gb_s, note, .. } = self;
        let head = format!("{name}, one block");
        let mut line = format!("{head:<52} {block_us:10.1} us  [{min_us:.1} .. {max_us:.1}]  {gb_s:9.2} GB/s received");
        line.extend(note.iter().flat_map(|note| ["\n", note]));
        line
    }
}

/// The data that a device exchanges.
struct Own<B: Backend> {
    kvq: [Tensor<B>; 3],
    head_dim: usize,
    blocks: usize,
    split: TokenSplit,
}

impl<B: Backend> Own<B> {
    fn new(rank: &B, shapes: &Shapes, split: TokenSplit) -> Result<Self> {
        let rows = split.own().rows();
        let kvq = [tensor(rank, rows, shapes.dim)?, tensor(rank, rows, shapes.dim)?, tensor(rank, rows, shapes.dim)?];
        Ok(Self { kvq, head_dim: shapes.head_dim, blocks: shapes.double_blocks + shapes.single_blocks, split })
    }

    /// Runs the exchanges of all blocks of a step. Returns the first row of the result.
    fn exchange(&self) -> Result<Tensor<B>> {
        let once = || {
            let kvq = self.kvq.each_ref().map(|x| x.row_view(0..x.rows()));
            let [_, _, q] = Tensor::all_to_all_heads(kvq, self.head_dim, &self.split)?;
            q.all_to_all_rows(&self.split)
        };
        let mut back = once()?;
        for _ in 1..self.blocks {
            back = once()?;
        }
        Ok(back.row_view(0..1))
    }

    /// Returns the bytes that a device receives per block.
    fn bytes(&self) -> u64 {
        let (split, [k, ..]) = (&self.split, &self.kvq);
        let heads = 3 * (split.whole().rows() - split.own().rows()) * k.cols() / split.world();
        let rows = split.own().rows() * (k.cols() - k.cols() / split.world());
        (heads + rows) as u64 * k.backend().costs().element_bytes
    }
}

/// Measures the communication of a device group for square images of `sizes`, captured in graphs as during generation.
pub fn measure<B: Backend>(bench: &mut Bench<'_, B>, ranks: &[B], shapes: &Shapes, sizes: &[usize]) -> Result<()> {
    let (runs, devices) = (bench.settings.effort.op_runs, ranks.len());
    let blocks = (shapes.double_blocks + shapes.single_blocks) as f64;
    for &size in sizes {
        let layout = shapes.layout(bench.settings.batch, size);
        let times = on_all(ranks, |rank| {
            let own = Own::new(rank, shapes, TokenSplit::new(layout, rank.rank(), devices))?;
            timed(rank, &Arc::new(own), runs)
        })?;
        let slowest = |run: usize| times.iter().map(|(_, seconds)| seconds[run]).fold(0.0, f64::max);
        let Times { median, min, max, .. } = Times::from_seconds((0..runs).map(|run| slowest(run) / blocks).collect());
        let [block_us, min_us, max_us] = [median, min, max].map(|seconds| round(seconds * 1e6, 1));
        let most = times.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
        let gb_s = round(most as f64 / median / 1e9, 2);
        let note = bench.backend.remarks().into_iter().find_map(|remark| match remark {
            Remark::Warning(text) => Some(text),
            Remark::Detail(_) => None,
        });
        let row = Row { name: name(size, devices), size, devices, block_us, min_us, max_us, gb_s, note };
        bench.line(|| row.text(), &row)?;
    }
    Ok(())
}

/// Runs `work` for each rank on its own thread, and returns the results. A failure aborts the others.
fn on_all<B: Backend, T: Send>(ranks: &[B], work: impl Fn(&B) -> Result<T> + Sync) -> Result<Vec<T>> {
    let one = |rank: &B| work(rank).inspect_err(|error| rank.abort_collectives(error));
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| one(rank))).collect();
        let panicked = || Err(Error::new("an exchange thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    })
}

/// Returns the bytes that a device receives per block, and the seconds of `runs` steps after a warm-up.
fn timed<B: Backend>(rank: &B, own: &Arc<Own<B>>, runs: usize) -> Result<(u64, Vec<f64>)> {
    let (mut graph, mut seconds) = (B::Graph::default(), Vec::with_capacity(runs));
    // The first run of a graph is enqueued op by op, and captured afterwards.
    let warm_up = 1 + runs.div_ceil(4);
    for run in 0..warm_up + runs {
        // All ranks start a run together.
        rank.gather_soon("a benchmark run", run as u64)?;
        let from = rank.event()?;
        drop(rank.run_graph(&mut graph, Participants::All, own, [], |own, []| own.exchange())?);
        let to = rank.event()?;
        rank.wait(&to)?;
        if run >= warm_up {
            seconds.push(rank.elapsed(&from, &to)?.as_secs_f64());
        }
    }
    Ok((own.bytes(), seconds))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flux::backend::cpu::{Cpu, Precision};
    use flux::files::ModelFiles;
    use flux::model::Quantization;

    use crate::{Effort, Settings, run_over};

    #[test]
    fn each_size_has_a_row() {
        let settings = Settings {
            names: vec!["exchange".to_string()],
            sizes: vec![32, 64],
            references: Vec::new(),
            kv: false,
            quantization: Quantization::default(),
            prompt: String::new(),
            batch: 1,
            steps: None,
            in_a_row: None,
            pause: None,
            json: true,
            effort: Effort::CPU,
        };
        let ranks = Cpu::group(Precision::F32, 2, Duration::from_secs(60)).unwrap();
        let (model, mut rows) = (ModelFiles::open("../../models/tiny".as_ref()).unwrap(), Vec::new());
        let built_in = || panic!("no image is generated");
        run_over(&ranks, Some(&model), settings, built_in, &mut |line| {
            rows.push(serde_json::from_str::<serde_json::Value>(line).expect("a row is JSON"));
            Ok(())
        })
        .unwrap();
        let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().expect("a name")).collect();
        assert_eq!(names, ["exchange/32x32 over 2", "exchange/64x64 over 2"]);
        for row in &rows {
            let field = |name: &str| row[name].as_f64().expect("a number");
            assert!(field("min_us") > 0.0 && field("min_us") <= field("block_us"), "{row}");
            assert!(field("gb_s") > 0.0, "{row}");
        }
    }
}
