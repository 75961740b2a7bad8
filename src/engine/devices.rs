//! Opens devices; the only file that names `Cpu` and `Cuda` together.

use std::env;
use std::thread::{self, JoinHandle};

use super::args::{EngineArgs, Observer};
use super::choice::{AttentionChoice, DeviceChoice, Gpus, ParallelChoice, PrecisionChoice};
use crate::backend::Memory;
use crate::backend::cpu::{self, Cpu};
pub use crate::backend::cpu::{HostFacts, host_facts};
use crate::backend::cuda::{self, Arithmetic, Cuda, GemmCache, GroupOptions};
pub use crate::backend::cuda::{Fastest, GpuFacts, KernelsBuilt, Survey, free_bytes, kernels_built, survey};
use crate::error::{Error, Field, Result};

/// Has the CPU count as several devices, to try what several GPUs do.
const CPU_DEVICES: &str = "FLUX_CPU_DEVICES";
const MOST_CPU_DEVICES: usize = 16;

/// Devices, each with its name. Each group makes its images together, and may be one device.
pub enum Devices {
    /// The CPU. Where it is several devices, each of them makes its own images.
    Cpu(Group<Cpu>),
    /// GPUs.
    Cuda(OpenGpus),
}

/// In the order of ranks.
pub type Group<B> = Vec<(String, B)>;

/// GPUs of which the first group is open; the others are being opened, while that loads weights.
pub struct OpenGpus {
    /// The first group.
    pub first: Group<Cuda>,
    others: Vec<JoinHandle<Result<Group<Cuda>>>>,
}

impl OpenGpus {
    /// Calls `take` with each of the other groups.
    ///
    /// Errors as `take`, and when a GPU cannot be opened.
    pub fn take_others(mut self, mut take: impl FnMut(Group<Cuda>) -> Result<()>) -> Result<()> {
        while !self.others.is_empty() {
            let group = self.others.remove(0).join();
            take(group.unwrap_or_else(|_| Err(Error::new("a thread that opens a GPU panicked")))?)?;
        }
        Ok(())
    }
}

impl Drop for OpenGpus {
    /// Waits for the threads: a program must not end while one of them is in the driver.
    fn drop(&mut self) {
        self.others.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Opens the devices that are asked for, no more groups of them than there are images to make. Where the choice is left
/// to the program, that is a GPU where one can be used; else it is the CPU, and a line says why. `gains_by_sharing`
/// says whether two GPUs make one of the images sooner than one does; it is asked where that is to be decided.
///
/// Errors when a device cannot be opened, or computes in no such type.
pub fn open(args: &EngineArgs, gains_by_sharing: &dyn Fn() -> bool, observer: &mut dyn Observer) -> Result<Devices> {
    if args.precision == PrecisionChoice::F32 && matches!(args.device, DeviceChoice::Cuda(_)) {
        return Err(Error::usage("a GPU computes in 16 bits, not in f32")
            .of(Field::Precision)
            .hint(format!("use `{:#} cpu` for f32", Field::Device)));
    }
    if args.precision == PrecisionChoice::Fp8 && args.device == DeviceChoice::Cpu {
        return Err(Error::usage("the CPU computes in f32, bf16 or int8, not in fp8")
            .of(Field::Precision)
            .hint(format!("use `{:#} cuda` for fp8", Field::Device)));
    }
    let on_cpu = args.device == DeviceChoice::Cpu || args.precision == PrecisionChoice::F32;
    if !args.attention.is_auto() && on_cpu {
        return Err(Error::usage("the CPU computes attention in f32")
            .of(Field::Attention)
            .hint(format!("leave out `{:#}`", Field::Attention)));
    }
    match &args.device {
        DeviceChoice::Cpu => cpu(args, observer),
        DeviceChoice::Cuda(gpus) => {
            let numbers = numbers(gpus)?;
            args.parallel.check_enough(numbers.len(), gpus)?;
            let images = args.images.unwrap_or(usize::MAX);
            let world = match args.parallel {
                ParallelChoice::Auto => soonest(&numbers, images, gains_by_sharing, observer)?,
                ParallelChoice::Off => 1,
                ParallelChoice::Gpus(gpus) => gpus,
            };
            let groups = numbers.len() / world;
            let used = &numbers[..images.clamp(1, groups) * world];
            if used.len() < numbers.len() {
                observer.note(&unused(used, &numbers, images, world));
            }
            open_gpus(args, used.chunks(world)).map(Devices::Cuda)
        }
        DeviceChoice::Auto if args.precision == PrecisionChoice::F32 => {
            observer.note("using the CPU: a GPU computes in 16 bits, not in f32");
            cpu(args, observer)
        }
        DeviceChoice::Auto => match (open_gpu(args, 0), for_gpus_alone(args)) {
            (Ok(gpu), _) => Ok(only(gpu)),
            (Err(error), Some((field, value))) => {
                let capability = match (value, field) {
                    ("fp8", Field::Precision) => " of compute capability 8.9, 9.0 or 12.x",
                    ("fp8", _) => " of compute capability 9.0",
                    _ => "",
                };
                let hint = format!("{value} needs an NVIDIA GPU{capability}; leave out `{field:#}` without one");
                Err(error.at(format!("{field:#} {value}")).of(field).hint(hint))
            }
            (Err(why), None) => {
                let why = format!("using the CPU: {}", why.what());
                // Where there is no GPU that this program could use, that is as it always is.
                if cuda::count_gpus().is_ok_and(|count| count > 0) {
                    observer.note(&why)
                } else {
                    observer.detail(&why)
                }
                cpu(args, observer)
            }
        },
    }
}

/// What is asked for that the CPU does not have, and in which field.
fn for_gpus_alone(args: &EngineArgs) -> Option<(Field, &'static str)> {
    match (args.precision, args.attention) {
        (PrecisionChoice::Fp8, _) => Some((Field::Precision, args.precision.name())),
        (_, AttentionChoice::Auto) => None,
        (_, attention) => Some((Field::Attention, attention.name())),
    }
}

/// The CPU, as one device or as several that share its cores.
///
/// Errors when [`CPU_DEVICES`] is no number of devices.
fn cpu(args: &EngineArgs, observer: &mut dyn Observer) -> Result<Devices> {
    let count = cpu_devices(env::var(CPU_DEVICES).ok().as_deref())?;
    let cpu = Cpu::new(match args.precision {
        PrecisionChoice::Bf16 => cpu::Precision::Bf16,
        PrecisionChoice::Int8 => cpu::Precision::Int8,
        PrecisionChoice::W4a8 => cpu::Precision::W4a8,
        // fp8 does not come here: without a GPU it is an error.
        PrecisionChoice::Auto | PrecisionChoice::F32 | PrecisionChoice::Fp8 => cpu::Precision::F32,
    });
    if let Some(note) = cpu.note() {
        observer.note(note);
    }
    Ok(Devices::Cpu(match count {
        1 => vec![("cpu".to_string(), cpu)],
        count => (0..count).map(|number| (format!("cpu:{number}"), cpu.clone())).collect(),
    }))
}

/// As how many devices the CPU counts.
fn cpu_devices(value: Option<&str>) -> Result<usize> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(1) };
    value.parse().ok().filter(|count| (1..=MOST_CPU_DEVICES).contains(count)).ok_or_else(|| {
        Error::usage(format!("`{value}` is no number of devices, expected 1 to {MOST_CPU_DEVICES}"))
            .at(CPU_DEVICES)
            .hint("leave it out: the CPU is one device")
    })
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
                    .at(format!("{:#} {gpus}", Field::Device))
                    .of(Field::Device)
                    .hint(format!(
                        "GPUs count from 0; `nvidia-smi -L` lists them, and `{:#} cuda:all` uses all",
                        Field::Device
                    ))),
                None => Ok(numbers.clone()),
            }
        }
    }
}

/// How many GPUs make each image together with `--parallel auto`: two where there are two for each, which gain by it;
/// one else, because GPUs that each make images of their own make the most. More than two were not measured.
fn soonest(
    numbers: &[usize],
    images: usize,
    gains_by_sharing: &dyn Fn() -> bool,
    observer: &mut dyn Observer,
) -> Result<usize> {
    const PAIR: usize = ParallelChoice::PAIR;
    if !ParallelChoice::Auto.may_share(Some(numbers.len()), images) || !gains_by_sharing() {
        return Ok(1);
    }
    // `may_share` has seen to it that there are so many.
    for pair in numbers.chunks_exact(PAIR).take(images) {
        if !cuda::are_linked(pair)? {
            let pair = Gpus::Numbers(pair.to_vec());
            observer.detail(&format!(
                "{pair} are not of one kind or out of each other's reach, so one GPU makes each image"
            ));
            return Ok(1);
        }
    }
    observer.detail(&format!(
        "two GPUs make each image together, which takes less time than one; `{:#} off` has one do it",
        Field::Parallel
    ));
    Ok(PAIR)
}

/// What to say where not `all` GPUs are `used`.
fn unused(used: &[usize], all: &[usize], images: usize, world: usize) -> String {
    let made = match images {
        1 => "one image is made".to_string(),
        _ => format!("{images} images are made"),
    };
    let note = format!("{made} by {} alone, not by all {} GPUs", Gpus::Numbers(used.to_vec()), all.len());
    if world > 1 { note } else { format!("{note}; `{:#} N` has N of them make each image together", Field::Parallel) }
}

/// Opens groups of GPUs: the first at once, and all others at the same time by threads of their own. The driver opens
/// GPUs one after the other, so the first one is not to wait.
fn open_gpus<'a>(args: &EngineArgs, mut groups: impl Iterator<Item = &'a [usize]>) -> Result<OpenGpus> {
    let open = |args: &EngineArgs, numbers: &[usize]| {
        let list = Gpus::Numbers(numbers.to_vec());
        let gpus = match numbers {
            [number] => open_gpu(args, *number).map(|gpu| vec![gpu]).map_err(|e| explained(e, &list)),
            _ => open_group(args, &list),
        };
        gpus.map(|gpus| numbers.iter().copied().zip(gpus).map(|(number, gpu)| named(number, gpu)).collect())
    };
    let first = open(args, groups.next().unwrap_or_default())?;
    let mut gpus = OpenGpus { first, others: Vec::new() };
    for numbers in groups {
        let (args, numbers) = (args.clone(), numbers.to_vec());
        let opening = thread::Builder::new().spawn(move || open(&args, &numbers));
        gpus.others.push(opening.map_err(|e| Error::no_thread(&e))?);
    }
    Ok(gpus)
}

fn named(number: usize, gpu: Cuda) -> (String, Cuda) {
    (format!("cuda:{number}"), gpu)
}

/// The first GPU alone.
fn only(gpu: Cuda) -> Devices {
    Devices::Cuda(OpenGpus { first: vec![named(0, gpu)], others: Vec::new() })
}

fn explained(error: Error, gpus: &Gpus) -> Error {
    let device = Field::Device;
    let hint = format!("`{device:#} cpu` works without a GPU; `nvidia-smi` lists the GPUs");
    error.at(format!("{device:#} {gpus}")).of(device).hint(hint)
}

fn open_gpu(args: &EngineArgs, number: usize) -> Result<Cuda> {
    let cuda = Cuda::with(number, args.gpu_memory, arithmetic(args), &GemmCache::from_environment())?;
    check_type(args, &cuda)?;
    Ok(cuda)
}

/// The GPUs of a list as ranks that make each image together.
pub fn open_group(args: &EngineArgs, gpus: &Gpus) -> Result<Vec<Cuda>> {
    let cache = GemmCache::from_environment();
    let ranks = Cuda::group(&numbers(gpus)?, args.gpu_memory, arithmetic(args), &cache, GroupOptions::default())
        .map_err(|e| explained(e, gpus))?;
    ranks.iter().try_for_each(|cuda| check_type(args, cuda))?;
    Ok(ranks)
}

fn arithmetic(args: &EngineArgs) -> Arithmetic {
    let products = match args.precision {
        PrecisionChoice::Fp8 => cuda::Precision::Fp8,
        PrecisionChoice::Int8 => cuda::Precision::Int8,
        PrecisionChoice::W4a8 => cuda::Precision::W4a8,
        PrecisionChoice::Auto | PrecisionChoice::F32 | PrecisionChoice::Bf16 => cuda::Precision::Bf16,
    };
    match args.attention {
        AttentionChoice::Auto => products.into(),
        attention => Arithmetic { products, fp8_attention: Some(attention == AttentionChoice::Fp8) },
    }
}

/// Errors when bf16 is asked for and the GPU has none, or attention in fp8 and this program has none.
fn check_type(args: &EngineArgs, cuda: &Cuda) -> Result<()> {
    let asks_for_bf16 = [
        (Field::Precision, args.precision == PrecisionChoice::Bf16),
        (Field::Attention, args.attention == AttentionChoice::Bf16),
    ];
    if let Some((field, _)) = asks_for_bf16.into_iter().find(|(_, asks)| *asks && !cuda.computes_in_bf16()) {
        return Err(Error::usage(format!("{} computes in fp16, not in bf16", cuda.describe()))
            .of(field)
            .hint(format!("leave out `{field:#}`")));
    }
    if args.attention == AttentionChoice::Fp8 && !cuda.has_fp8_attention() {
        return Err(Error::usage("this program was built without the kernel for attention in fp8")
            .of(Field::Attention)
            .hint(format!("leave out `{:#}`, or build for compute capability 9.0", Field::Attention)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::args::Unobserved;
    use super::*;

    #[test]
    fn the_cpu_is_as_many_devices_as_the_variable_says() {
        assert_eq!([None, Some(""), Some("1"), Some("16")].map(|value| cpu_devices(value).unwrap()), [1, 1, 1, 16]);
        for wrong in ["0", "17", "-1", "two"] {
            assert!(cpu_devices(Some(wrong)).unwrap_err().to_string().contains(CPU_DEVICES), "{wrong}");
        }
    }

    #[test]
    fn one_gpu_makes_an_image_where_there_is_none_to_spare_or_two_gain_nothing() {
        let by_itself = |numbers: &[usize], images: usize, gains_by_sharing: &dyn Fn() -> bool| {
            soonest(numbers, images, gains_by_sharing, &mut Unobserved).unwrap() == 1
        };
        let unasked = || -> bool { panic!("there are not two GPUs for each image") };
        assert!(by_itself(&[0], 1, &unasked) && by_itself(&[0, 1], 2, &unasked) && by_itself(&[2, 5, 7], 2, &unasked));
        assert!(by_itself(&[0, 1], usize::MAX, &unasked));
        assert!(by_itself(&[0, 1], 1, &|| false) && by_itself(&[0, 1, 2, 3], 2, &|| false));
    }
}
