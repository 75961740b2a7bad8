//! Which device computes; the only file that names `Cpu` and `Cuda` together.

use flux::backend::cpu::{self, Cpu};
use flux::backend::cuda::{self, Cuda, GemmCache};
use flux::{Error, Result};

use crate::cli::{DeviceArgs, DeviceChoice, PrecisionChoice};
use crate::progress::Console;

/// A device that was opened.
pub enum Device {
    Cpu(Cpu),
    Cuda(Cuda),
}

/// Opens the device that the flags name. With `auto` that is a GPU where one can be used; else it is the CPU, and a
/// note says why.
pub fn choose_device(args: &DeviceArgs, console: &Console) -> Result<Device> {
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
            // fp8 does not come here: without a GPU it is an error.
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
