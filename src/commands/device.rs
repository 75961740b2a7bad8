//! Which device computes; the only file that names `Cpu` and `Cuda` together.

use std::{io, thread};

use flux::backend::Backend;
use flux::backend::cpu::{self, Cpu};
use flux::backend::cuda::{self, Cuda, GemmCache};
use flux::{Error, Result};

use crate::cli::{DeviceArgs, DeviceChoice, Gpus, PrecisionChoice};
use crate::progress::Console;

/// Devices that were opened, each with its name; at least one.
pub enum Devices {
    Cpu(Vec<(String, Cpu)>),
    Cuda(Vec<(String, Cuda)>),
}

/// Opens the devices that the flags name, as many as there are `images` to make. With `auto` that is a GPU where one
/// can be used; else it is the CPU, and a note says why.
pub fn choose_devices(args: &DeviceArgs, images: usize, console: &Console) -> Result<Devices> {
    if args.precision == PrecisionChoice::F32 && matches!(args.device, DeviceChoice::Cuda(_)) {
        return Err(Error::usage("a GPU computes in 16 bits, not in f32")
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
            // fp8 does not come here: without a GPU it is an error.
            PrecisionChoice::Auto | PrecisionChoice::F32 | PrecisionChoice::Fp8 => cpu::Precision::F32,
        });
        if let Some(note) = cpu.note() {
            console.note(note);
        }
        Devices::Cpu(vec![("cpu".to_string(), cpu)])
    };
    match &args.device {
        DeviceChoice::Cpu => Ok(cpu()),
        DeviceChoice::Cuda(gpus) => {
            let numbers = numbers(gpus)?;
            let used = &numbers[..images.clamp(1, numbers.len())];
            if used.len() < numbers.len() {
                let (used, all) = (Gpus::Numbers(used.to_vec()), numbers.len());
                let made =
                    if images == 1 { "one image is made".to_string() } else { format!("{images} images are made") };
                console.note(&format!("{made} by {used} alone, not by all {all} GPUs"));
            }
            open_gpus(args, used)
        }
        DeviceChoice::Auto if args.precision == PrecisionChoice::F32 => {
            console.note("using the CPU: a GPU computes in 16 bits, not in f32");
            Ok(cpu())
        }
        DeviceChoice::Auto if args.precision == PrecisionChoice::Fp8 => open_gpu(args, 0).map(only).map_err(|e| {
            e.at("--precision fp8")
                .hint("fp8 needs an NVIDIA GPU of compute capability 9.0; leave out `--precision` without one")
        }),
        DeviceChoice::Auto => open_gpu(args, 0).map(only).or_else(|why| {
            console.note(&format!("using the CPU: {}", why.what()));
            Ok(cpu())
        }),
    }
}

/// The numbers of GPUs, at least one. Of several, all are there.
fn numbers(gpus: &Gpus) -> Result<Vec<usize>> {
    let count = || cuda::count_gpus().map_err(|e| explained(e, gpus));
    match gpus {
        Gpus::All => match count()? {
            0 => Err(explained(Error::new("this machine shows no GPU"), gpus)),
            count => Ok((0..count).collect()),
        },
        // Opening one tells whether it is there.
        Gpus::Numbers(numbers) if numbers.len() == 1 => Ok(numbers.clone()),
        Gpus::Numbers(numbers) => {
            let count = count()?;
            match numbers.iter().find(|number| **number >= count) {
                Some(missing) => Err(Error::usage(format!("no GPU {missing}: this machine shows {count}"))
                    .at(format!("--device {gpus}"))
                    .hint("GPUs count from 0; `nvidia-smi -L` lists them, and `--device cuda:all` uses all")),
                None => Ok(numbers.clone()),
            }
        }
    }
}

/// Opens GPUs at the same time.
fn open_gpus(args: &DeviceArgs, numbers: &[usize]) -> Result<Devices> {
    let open = |number: usize| {
        open_gpu(args, number).map_err(|e| explained(e, &Gpus::Numbers(vec![number]))).map(|gpu| named(number, gpu))
    };
    if let [number] = numbers {
        return Ok(Devices::Cuda(vec![open(*number)?]));
    }
    thread::scope(|scope| {
        let opening = |&number| thread::Builder::new().spawn_scoped(scope, move || open(number));
        let opening = numbers.iter().map(opening).collect::<io::Result<Vec<_>>>().map_err(|e| Error::no_thread(&e))?;
        let opened = opening
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Error::new("a thread that opens a GPU panicked"))));
        opened.collect::<Result<_>>().map(Devices::Cuda)
    })
}

fn named(number: usize, gpu: Cuda) -> (String, Cuda) {
    (format!("cuda:{number}"), gpu)
}

/// The first GPU alone.
fn only(gpu: Cuda) -> Devices {
    Devices::Cuda(vec![named(0, gpu)])
}

fn explained(error: Error, gpus: &Gpus) -> Error {
    error.at(format!("--device {gpus}")).hint("`--device cpu` works without a GPU; `nvidia-smi` lists the GPUs")
}

fn open_gpu(args: &DeviceArgs, number: usize) -> Result<Cuda> {
    let cuda = Cuda::with(number, args.gpu_memory_bytes(), precision(args), &GemmCache::from_environment())?;
    check_type(args, &cuda)?;
    Ok(cuda)
}

/// The GPUs of a list as ranks that make each image together.
pub fn open_group(args: &DeviceArgs, gpus: &Gpus) -> Result<Vec<Cuda>> {
    let cache = GemmCache::from_environment();
    let ranks = Cuda::group(&numbers(gpus)?, args.gpu_memory_bytes(), precision(args), &cache, Cuda::GROUP_LIMIT)
        .map_err(|e| explained(e, gpus))?;
    ranks.iter().try_for_each(|cuda| check_type(args, cuda))?;
    Ok(ranks)
}

fn precision(args: &DeviceArgs) -> cuda::Precision {
    if args.precision == PrecisionChoice::Fp8 { cuda::Precision::Fp8 } else { cuda::Precision::Bf16 }
}

/// Errors when bf16 is asked for and the GPU has none.
fn check_type(args: &DeviceArgs, cuda: &Cuda) -> Result<()> {
    if args.precision != PrecisionChoice::Bf16 || cuda.computes_in_bf16() {
        return Ok(());
    }
    Err(Error::usage(format!("{} computes in fp16, not in bf16", cuda.describe()))
        .at("--precision")
        .hint("leave out `--precision`"))
}
