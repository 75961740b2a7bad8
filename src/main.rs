//! The command line program: parse, check what is cheap to check, choose the device, run, print the error.

mod bench;
mod cli;
mod progress;
mod report;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use flux::backend::cpu::{self, Cpu};
use flux::backend::cuda::{self, Cuda, GemmCache};
use flux::backend::{Backend, Remark};
use flux::compare::difference;
use flux::default_model::default_model;
use flux::error::Kind;
use flux::files::ModelFiles;
use flux::output::{Rgb, Target, read_png};
use flux::pipeline::{Image, OpenModel, Pipeline, Plan, Request};
use flux::{Error, Result};

use crate::bench::{Effort, Settings};
use crate::cli::{Bench, Cli, Command, DeviceArgs, DeviceChoice, Generate, ModelArgs, PrecisionChoice, TimingsFormat};
use crate::progress::{Console, say};
use crate::report::{Report, peak_host_bytes};

fn main() -> ExitCode {
    let start = Instant::now();
    let cli = Cli::parse();
    let done = match &cli.command {
        Some(Command::Bench(args)) => bench(args),
        Some(Command::Compare { a, b, min_psnr }) => compare(a, b, *min_psnr),
        None => generate(&cli.generate, start),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::from(match error.kind() {
                Kind::Usage => 2,
                Kind::Failure => 1,
            })
        }
    }
}

/// Images from request to file. What fails without a model fails before one is loaded.
fn generate(args: &Generate, start: Instant) -> Result<()> {
    args.check()?;
    let request = args.request()?;
    let targets = args.outputs(request.seed)?.iter().map(|path| Target::new(path)).collect::<Result<_>>()?;
    let dir = model(&args.model).and_then(|dir| dir.map_or_else(default_model, Ok))?;
    let fp8_folder = args.fp8_cache.then(|| fp8_folder(&dir)).transpose()?;
    let mut console = Console::new(args.quiet, args.verbose, args.count > 1);
    // The driver takes long to open a GPU: the model is opened meanwhile, and its tokenizer read until a prompt is to
    // be encoded.
    let name = dir.name();
    let opening = thread::spawn(move || timed(|| OpenModel::open(&dir)));
    let (device, device_s) = timed(|| choose_device(&args.on, &console));
    let device = device?;
    let (model, open_s) =
        opening.join().unwrap_or_else(|_| (Err(Error::new("the thread that opens the model panicked")), 0.0));
    let mut model = model?;
    if let Some(folder) = fp8_folder {
        let cache = model.keep_fp8(&folder, &mut console)?;
        console.finish();
        if let Some(note) = cache.note() {
            console.note(&note);
        }
    }
    let job = Job { args, targets, name, request, start, device_s, open_s };
    match device {
        Device::Cpu(backend) => job.run(Pipeline::new(backend, model), &mut console),
        Device::Cuda(backend) => job.run(Pipeline::new(backend, model), &mut console),
    }
}

/// What `work` returns, and the seconds that it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_secs_f64())
}

/// The model folder that is named, if one is.
fn model(args: &ModelArgs) -> Result<Option<ModelFiles>> {
    let open = |folder: PathBuf| {
        ModelFiles::open(&folder).map_err(|e| e.at(if args.names_dir() { "--dir" } else { "FLUX_MODEL" }))
    };
    args.dir().map(open).transpose()
}

/// Where the weights in fp8 are kept.
fn fp8_folder(dir: &ModelFiles) -> Result<PathBuf> {
    let folder = dir.folder().map(Path::to_path_buf);
    folder.ok_or_else(|| {
        Error::usage("the built-in model is in no folder, where weights could be kept")
            .at("--fp8-cache")
            .hint("name a model with `-d`")
    })
}

enum Device {
    Cpu(Cpu),
    Cuda(Cuda),
}

/// The device that was asked for; with `auto` a GPU where one can be used, else the CPU and a line why.
fn choose_device(args: &DeviceArgs, console: &Console) -> Result<Device> {
    if args.precision == PrecisionChoice::F32 && matches!(args.device, DeviceChoice::Cuda(_)) {
        return Err(Error::usage("a GPU computes in bf16, not in f32")
            .at("--precision")
            .hint("use `--device cpu` for f32"));
    }
    if args.precision == PrecisionChoice::Fp8 && args.device == DeviceChoice::Cpu {
        return Err(Error::usage("the CPU computes in f32 or bf16, not in fp8")
            .at("--precision")
            .hint("use `--device cuda` for fp8"));
    }
    let cpu = || {
        let cpu = Cpu::new(match args.precision {
            PrecisionChoice::Bf16 => cpu::Precision::Bf16,
            // fp8 never comes here: it is an error without a GPU.
            PrecisionChoice::Auto | PrecisionChoice::F32 | PrecisionChoice::Fp8 => cpu::Precision::F32,
        });
        if let Some(note) = cpu.note() {
            console.note(note);
        }
        Device::Cpu(cpu)
    };
    match args.device {
        DeviceChoice::Cpu => Ok(cpu()),
        DeviceChoice::Cuda(ordinal) => open_gpu(args, ordinal).map_err(|e| {
            e.at(format!("--device cuda:{ordinal}"))
                .hint("`--device cpu` works without a GPU; `nvidia-smi` lists the GPUs")
        }),
        DeviceChoice::Auto if args.precision == PrecisionChoice::F32 => {
            console.note("using the CPU: a GPU computes in bf16, not in f32");
            Ok(cpu())
        }
        DeviceChoice::Auto if args.precision == PrecisionChoice::Fp8 => open_gpu(args, 0).map_err(|e| {
            e.at("--precision fp8")
                .hint("fp8 needs an NVIDIA GPU of compute capability 9.0; leave out `--precision` without one")
        }),
        DeviceChoice::Auto => open_gpu(args, 0).or_else(|why| {
            console.note(&format!("using the CPU: {}", why.what()));
            Ok(cpu())
        }),
    }
}

fn open_gpu(args: &DeviceArgs, ordinal: usize) -> Result<Device> {
    let precision = if args.precision == PrecisionChoice::Fp8 { cuda::Precision::Fp8 } else { cuda::Precision::Bf16 };
    Cuda::with(ordinal, args.gpu_memory_bytes(), precision, &GemmCache::from_environment()).map(Device::Cuda)
}

/// Images to make, all of it checked but for what only the model knows.
struct Job<'a> {
    args: &'a Generate,
    request: Request,
    /// One for each image.
    targets: Vec<Target>,
    /// Of the model.
    name: String,
    start: Instant,
    device_s: f64,
    open_s: f64,
}

impl Job<'_> {
    fn run<B: Backend>(mut self, mut pipeline: Pipeline<B>, console: &mut Console) -> Result<()> {
        let device = pipeline.backend().describe();
        console.detail(&format!("device: {device}"));
        pipeline.start_loading(&self.request)?;
        let plan = pipeline.plan(&self.request)?;
        for note in &plan.notes {
            console.note(note);
        }
        let Plan { width, height, steps, seed, .. } = plan;
        let seeds = match self.targets.len() as u64 {
            1 => format!("seed {seed}"),
            count => format!("seeds {seed} to {}", seed + count - 1),
        };
        if self.args.quiet && self.args.seed_is_random() {
            say(&seeds); // an image that nobody can make again is of little use
        }
        console.info(&format!(
            "{seeds}, {width}x{height}, {steps} {}, model {}",
            if steps == 1 { "step" } else { "steps" },
            self.name
        ));

        let mut targets = self.targets.as_slice();
        while !targets.is_empty() {
            let images = pipeline.generate_batch(&self.request, targets.len(), console)?;
            console.finish();
            let (now, later) = targets.split_at(images.len());
            for (image, target) in images.into_iter().zip(now) {
                self.save(image, target, &device, console)?;
            }
            self.request.seed = self.request.seed.saturating_add(now.len() as u64);
            targets = later;
        }
        for remark in pipeline.backend().remarks() {
            match remark {
                Remark::Detail(text) => console.detail(&text),
                Remark::Warning(text) => console.note(&text),
            }
        }
        // The program ends here: the system takes back at once what would be freed piece by piece.
        std::mem::forget(pipeline);
        Ok(())
    }

    /// Writes an image and says so.
    fn save(&self, image: Image, target: &Target, device: &str, console: &Console) -> Result<()> {
        let Image { rgb, plan, timings } = image;
        let Plan { width, height, steps, guidance, seed, .. } = plan;
        let facts = [
            ("prompt", self.request.prompt.clone()),
            ("seed", seed.to_string()),
            ("steps", steps.to_string()),
            ("guidance", guidance.to_string()),
            ("size", format!("{width}x{height}")),
            ("model", self.name.clone()),
            ("Software", concat!("flux ", env!("CARGO_PKG_VERSION")).to_string()),
        ];
        let saving = Instant::now();
        target.write(&Rgb { width, height, bytes: rgb }, &facts)?;
        let save_s = saving.elapsed().as_secs_f64();

        let output = target.path().display().to_string();
        let total_s = self.start.elapsed().as_secs_f64();
        console.info(&format!("wrote {output} in {total_s:.1} s"));
        let report = Report {
            output: &output,
            model: &self.name,
            device,
            plan: &plan,
            timings: &timings,
            device_s: self.device_s,
            open_s: self.open_s,
            save_s,
            total_s,
            peak_host_bytes: peak_host_bytes(),
        };
        match self.args.timings {
            Some(TimingsFormat::Text) => say(&report.text()),
            Some(TimingsFormat::Json) => print(json(&report)?.as_bytes())?,
            None => {}
        }
        if self.args.print_path {
            print(target.path().as_os_str().as_encoded_bytes())?;
        }
        Ok(())
    }
}

fn json(report: &Report<'_>) -> Result<String> {
    serde_json::to_string(report).map_err(|e| Error::new(format!("cannot write the timings as JSON: {e}")))
}

/// A line on stdout.
fn print(line: &[u8]) -> Result<()> {
    let mut stdout = io::stdout();
    stdout
        .write_all(line)
        .and_then(|()| stdout.write_all(b"\n"))
        .and_then(|()| stdout.flush())
        .map_err(|e| Error::new(format!("cannot write to standard output: {e}")))
}

/// Measures, and prints each line when it is known.
fn bench(args: &Bench) -> Result<()> {
    args.on.check()?;
    let dir = model(&args.model)?;
    let device = choose_device(&args.on, &Console::new(args.json, false, false))?;
    let (mut effort, size) = match device {
        Device::Cpu(_) => (Effort::CPU, 256),
        Device::Cuda(_) => (Effort::GPU, 1024),
    };
    if let Some(runs) = args.runs {
        (effort.op_runs, effort.image_runs) = (runs as usize, runs as usize);
    }
    let settings = Settings {
        names: args.names.clone(),
        sizes: if args.sizes.is_empty() { vec![size] } else { args.sizes.iter().map(|&size| size as usize).collect() },
        batch: args.batch as usize,
        steps: args.steps.map(|steps| steps as usize),
        in_a_row: args.in_a_row,
        pause: args.pause.map(Duration::from_secs_f64),
        json: args.json,
        effort,
    };
    let print = &mut |line: &str| print(line.as_bytes());
    match device {
        Device::Cpu(backend) => bench::run(&backend, dir.as_ref(), settings, default_model, print),
        Device::Cuda(backend) => bench::run(&backend, dir.as_ref(), settings, default_model, print),
    }
}

fn compare(a: &Path, b: &Path, min_psnr: Option<f64>) -> Result<()> {
    let found = difference(&read_png(a)?, &read_png(b)?)?;
    print(format!("max {} mean {:.4} psnr {:.2} dB", found.max, found.mean, found.psnr_db).as_bytes())?;
    match min_psnr {
        Some(bound) if found.psnr_db < bound => {
            Err(Error::new(format!("the images are {:.2} dB apart, expected at least {bound} dB", found.psnr_db))
                .at(b.display().to_string()))
        }
        _ => Ok(()),
    }
}
