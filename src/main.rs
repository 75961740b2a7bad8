//! The command line program: parse, check what is cheap to check, choose the device, run, print the error.

mod cli;
mod progress;
mod report;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use flux::backend::Backend;
use flux::backend::cpu::{self, Cpu};
use flux::backend::cuda::{self, Cuda};
use flux::compare::difference;
use flux::default_model::default_model;
use flux::error::Kind;
use flux::model_dir::ModelDir;
use flux::output::{Rgb, Target, read_png};
use flux::pipeline::{Pipeline, Plan, Request};
use flux::{Error, Result};

use crate::cli::{Cli, Command, DeviceChoice, Generate, PrecisionChoice, TimingsFormat};
use crate::progress::{Console, say};
use crate::report::{Report, peak_host_bytes};

fn main() -> ExitCode {
    let start = Instant::now();
    let cli = Cli::parse();
    let done = match &cli.command {
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

/// One picture from request to file. What fails without a model fails before one is loaded.
fn generate(args: &Generate, start: Instant) -> Result<()> {
    args.check()?;
    let request = args.request()?;
    let (target, dir) = (Target::new(&args.output(request.seed))?, model(args)?);
    let mut console = Console::new(args.quiet, args.verbose);
    let choosing = Instant::now();
    let device = choose_device(args, &console)?;
    let job = Job { args, target, dir, request, start, device_s: choosing.elapsed().as_secs_f64() };
    match device {
        Device::Cpu(backend) => job.run(backend, &mut console),
        Device::Cuda(backend) => job.run(backend, &mut console),
    }
}

fn model(args: &Generate) -> Result<ModelDir> {
    match args.dir() {
        Some(folder) => ModelDir::open(&folder).map_err(|e| e.at(if args.names_dir() { "--dir" } else { "FLUX_MODEL" })),
        None => default_model(),
    }
}

enum Device {
    Cpu(Cpu),
    Cuda(Cuda),
}

/// The device that was asked for; with `auto` a GPU where one can be used, else the CPU and a line why.
fn choose_device(args: &Generate, console: &Console) -> Result<Device> {
    if args.precision == PrecisionChoice::F32 && matches!(args.device, DeviceChoice::Cuda(_)) {
        return Err(Error::usage("a GPU computes in bf16, not in f32").at("--precision").hint("use `--device cpu` for f32"));
    }
    if args.precision == PrecisionChoice::Fp8 && args.device == DeviceChoice::Cpu {
        return Err(Error::usage("the CPU computes in f32 or bf16, not in fp8").at("--precision").hint("use `--device cuda` for fp8"));
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
        DeviceChoice::Cuda(ordinal) => open_gpu(args, ordinal)
            .map_err(|e| e.at(format!("--device cuda:{ordinal}")).hint("`--device cpu` works without a GPU; `nvidia-smi` lists the GPUs")),
        DeviceChoice::Auto if args.precision == PrecisionChoice::F32 => {
            console.note("using the CPU: a GPU computes in bf16, not in f32");
            Ok(cpu())
        }
        DeviceChoice::Auto if args.precision == PrecisionChoice::Fp8 => open_gpu(args, 0)
            .map_err(|e| e.at("--precision fp8").hint("fp8 needs an NVIDIA GPU of compute capability 9.0; leave out `--precision` without one")),
        DeviceChoice::Auto => open_gpu(args, 0).or_else(|why| {
            console.note(&format!("using the CPU: {}", why.what()));
            Ok(cpu())
        }),
    }
}

fn open_gpu(args: &Generate, ordinal: usize) -> Result<Device> {
    let precision = if args.precision == PrecisionChoice::Fp8 { cuda::Precision::Fp8 } else { cuda::Precision::Bf16 };
    Cuda::with_precision(ordinal, args.gpu_memory_bytes(), precision).map(Device::Cuda)
}

/// A picture to make, all of it checked but for what only the model knows.
struct Job<'a> {
    args: &'a Generate,
    request: Request,
    target: Target,
    dir: ModelDir,
    start: Instant,
    device_s: f64,
}

impl Job<'_> {
    fn run<B: Backend>(self, backend: B, console: &mut Console) -> Result<()> {
        let (device, model) = (backend.describe(), self.dir.name());
        console.detail(&format!("device: {device}"));
        let opening = Instant::now();
        let mut pipeline = Pipeline::load(backend, &self.dir)?;
        let plan = pipeline.plan(&self.request)?;
        let open_s = opening.elapsed().as_secs_f64();
        for note in &plan.notes {
            console.note(note);
        }
        let Plan { width, height, steps, guidance, seed, .. } = plan;
        if self.args.quiet && self.args.seed_is_random() {
            say(&format!("seed {seed}")); // a picture that nobody can make again is of little use
        }
        console.info(&format!("seed {seed}, {width}x{height}, {steps} {}, model {model}", if steps == 1 { "step" } else { "steps" }));

        let picture = pipeline.generate(&self.request, console)?;
        console.finish();

        let facts = [
            ("prompt", self.request.prompt.clone()),
            ("seed", seed.to_string()),
            ("steps", steps.to_string()),
            ("guidance", guidance.to_string()),
            ("size", format!("{width}x{height}")),
            ("model", model.clone()),
            ("Software", concat!("flux ", env!("CARGO_PKG_VERSION")).to_string()),
        ];
        let saving = Instant::now();
        self.target.write(&Rgb { width, height, bytes: picture.rgb }, &facts)?;
        let save_s = saving.elapsed().as_secs_f64();

        let output = self.target.path().display().to_string();
        let total_s = self.start.elapsed().as_secs_f64();
        console.info(&format!("wrote {output} in {total_s:.1} s"));
        let report = Report {
            output: &output,
            model: &model,
            device: &device,
            plan: &plan,
            timings: &picture.timings,
            device_s: self.device_s,
            open_s,
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
            print(self.target.path().as_os_str().as_encoded_bytes())?;
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

fn compare(a: &Path, b: &Path, min_psnr: Option<f64>) -> Result<()> {
    let found = difference(&read_png(a)?, &read_png(b)?)?;
    print(format!("max {} mean {:.4} psnr {:.2} dB", found.max, found.mean, found.psnr_db).as_bytes())?;
    match min_psnr {
        Some(bound) if found.psnr_db < bound => {
            Err(Error::new(format!("the pictures are {:.2} dB apart, expected at least {bound} dB", found.psnr_db)).at(b.display().to_string()))
        }
        _ => Ok(()),
    }
}
