//! Opening of devices; the only module that names both `Cpu` and `Cuda`.

mod precision;

use std::env;
use std::thread::{self, JoinHandle};

pub use self::precision::describe as describe_precision;
use super::args::EngineArgs;
use super::choice::{AttentionChoice, Device, Gpus, ParallelChoice, PrecisionChoice};
use crate::backend::Memory;
use crate::backend::cpu::{self, Cpu};
pub use crate::backend::cpu::{HostFacts, host_facts};
use crate::backend::cuda::{self, Arithmetic, AttentionPrecision, Cuda, GemmCache, GroupOptions};
pub use crate::backend::cuda::{GpuFacts, KernelsBuilt, Survey, free_bytes, kernels_built, survey};
use crate::error::{Error, Field, Result};
use crate::model::ModelInfo;
use crate::pipeline::Request;
use crate::stage::Observer;

/// Environment variable that splits the CPU into several devices, to try multi-GPU features.
const CPU_DEVICES: &str = "FLUX_CPU_DEVICES";
const MAX_CPU_DEVICES: usize = 16;

/// Open devices, each with its name. Each group generates its images together, and may be one device.
pub enum Devices {
    /// The CPU. If it is split into several devices, each of them generates its own images.
    Cpu(Group<Cpu>),
    /// GPUs.
    Cuda(OpenGpus),
}

/// The devices of a group in the order of ranks.
pub type Group<B> = Vec<(String, B)>;

/// GPUs. The first group is open; the other groups are being opened while the first loads weights.
pub struct OpenGpus {
    /// The first group.
    pub first: Group<Cuda>,
    others: Vec<JoinHandle<Result<Group<Cuda>>>>,
}

impl OpenGpus {
    /// Calls `take` with each of the other groups.
    ///
    /// Errors as `take`, and if a GPU cannot be opened.
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

/// The properties of the model that the choice of devices may depend on.
pub struct Needs<'a> {
    /// The first request, if known.
    pub first: Option<&'a Request>,
    /// Returns `true` if two GPUs generate the first image faster than one GPU.
    pub gains_by_sharing: &'a dyn Fn() -> bool,
    /// Waits for the model; `None` if it cannot be opened.
    pub model: &'a dyn Fn() -> Option<&'a ModelInfo>,
}

impl Needs<'_> {
    /// The needs without a particular model.
    pub const UNKNOWN: Self = Self { first: None, gains_by_sharing: &|| false, model: &|| None };
}

/// Opens the requested devices, with at most as many groups as there are images, and returns them with their
/// precision. With an automatic choice, this is a usable GPU, or the CPU with a note of the reason. Functions of
/// `needs` are called only if the choice depends on them.
///
/// Errors if a device cannot be opened, or does not support the requested type.
pub fn open(args: &EngineArgs, needs: &Needs<'_>, observer: &mut dyn Observer) -> Result<(Devices, PrecisionChoice)> {
    let number = match &args.device {
        Device::Cpu => None,
        Device::Auto => Some(0),
        Device::Cuda(gpus) => numbers(gpus)?.first().copied(),
    };
    let precision =
        number.map_or(args.precision, |number| precision::resolve(args, number, needs.first, needs.model, observer));
    let args = &EngineArgs { precision, ..args.clone() };
    if args.precision == PrecisionChoice::F32 && matches!(args.device, Device::Cuda(_)) {
        return Err(Error::usage("a GPU computes in 16 bits, not in f32")
            .for_field(Field::Precision)
            .hint(format!("use `{:#} cpu` for f32", Field::Device)));
    }
    if args.precision == PrecisionChoice::Fp8 && args.device == Device::Cpu {
        return Err(Error::usage("the CPU computes in f32, bf16 or int8, not in fp8")
            .for_field(Field::Precision)
            .hint(format!("use `{:#} cuda` for fp8", Field::Device)));
    }
    let on_cpu = args.device == Device::Cpu || args.precision == PrecisionChoice::F32;
    if !args.attention.is_auto() && on_cpu {
        return Err(Error::usage("the CPU computes attention in f32")
            .for_field(Field::Attention)
            .hint(format!("leave out `{:#}`", Field::Attention)));
    }
    match &args.device {
        Device::Cpu => cpu(args, needs, observer),
        Device::Cuda(gpus) => {
            let numbers = numbers(gpus)?;
            args.parallel.check_enough(numbers.len(), gpus)?;
            let images = args.images.unwrap_or(usize::MAX);
            let world = match args.parallel {
                ParallelChoice::Auto => soonest(&numbers, images, needs.gains_by_sharing, observer)?,
                ParallelChoice::Off => 1,
                ParallelChoice::Gpus(gpus) => gpus,
            };
            let groups = numbers.len() / world;
            let used = &numbers[..images.clamp(1, groups) * world];
            if used.len() < numbers.len() {
                observer.note(&unused(used, &numbers, images, world));
            }
            open_gpus(args, used.chunks(world)).map(|gpus| (Devices::Cuda(gpus), precision))
        }
        Device::Auto if args.precision == PrecisionChoice::F32 => {
            observer.note("using the CPU: a GPU computes in 16 bits, not in f32");
            cpu(args, needs, observer)
        }
        Device::Auto => match (open_gpu(args, 0), for_gpus_alone(args)) {
            (Ok(gpu), _) => Ok((only(gpu), precision)),
            (Err(error), Some((field, value))) => {
                let capability = match (value, field) {
                    ("fp8", Field::Precision) => " of compute capability 8.9, 9.0 or 12.x",
                    ("fp8", _) => " of compute capability 9.0",
                    _ => "",
                };
                let hint = format!("use an NVIDIA GPU{capability} for {value}, or leave out `{field:#}`");
                Err(error.at(format!("{field:#} {value}")).for_field(field).hint(hint))
            }
            (Err(why), None) => {
                let why = format!("using the CPU: {}", why.what());
                // Without any GPU, using the CPU is expected, so it is only a detail.
                if cuda::count_gpus().is_ok_and(|count| count > 0) {
                    observer.note(&why)
                } else {
                    observer.detail(&why)
                }
                cpu(args, needs, observer)
            }
        },
    }
}

/// Returns the field and value that the CPU does not support, if any.
fn for_gpus_alone(args: &EngineArgs) -> Option<(Field, &'static str)> {
    match (args.precision, args.attention) {
        (PrecisionChoice::Fp8, _) => Some((Field::Precision, args.precision.name())),
        (_, AttentionChoice::Auto) => None,
        (_, attention) => Some((Field::Attention, attention.name())),
    }
}

/// Opens the CPU, as one device or as several that share its cores, and returns it with its precision.
///
/// Errors if [`CPU_DEVICES`] is not a valid number of devices.
fn cpu(args: &EngineArgs, needs: &Needs<'_>, observer: &mut dyn Observer) -> Result<(Devices, PrecisionChoice)> {
    let count = cpu_devices(env::var(CPU_DEVICES).ok().as_deref())?;
    let precision = precision::resolve_on_cpu(args.precision, needs.model, observer);
    let cpu = Cpu::new(match precision {
        PrecisionChoice::Bf16 => cpu::Precision::Bf16,
        PrecisionChoice::Int8 => cpu::Precision::Int8,
        PrecisionChoice::W4a8 => cpu::Precision::W4a8,
        // fp8 never gets here: without a GPU it is an error.
        PrecisionChoice::Auto
        | PrecisionChoice::Fast
        | PrecisionChoice::Native
        | PrecisionChoice::F32
        | PrecisionChoice::Fp8 => cpu::Precision::F32,
    });
    if let Some(note) = cpu.note() {
        observer.note(note);
    }
    let cpus = match count {
        1 => vec![("cpu".to_string(), cpu)],
        count => (0..count).map(|number| (format!("cpu:{number}"), cpu.clone())).collect(),
    };
    Ok((Devices::Cpu(cpus), precision))
}

/// Returns the number of devices that the CPU is split into.
fn cpu_devices(value: Option<&str>) -> Result<usize> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(1) };
    value.parse().ok().filter(|count| (1..=MAX_CPU_DEVICES).contains(count)).ok_or_else(|| {
        Error::usage(format!("`{value}` is not a number of devices, expected 1 to {MAX_CPU_DEVICES}"))
            .at(CPU_DEVICES)
            .hint("leave it out to use the CPU as one device")
    })
}

/// Returns the numbers of GPUs, at least one. If there are several, all of them exist.
fn numbers(gpus: &Gpus) -> Result<Vec<usize>> {
    let count = || cuda::count_gpus().map_err(|e| explained(e, gpus));
    match gpus {
        Gpus::All => match count()? {
            0 => Err(explained(Error::new("this machine has no GPU"), gpus)),
            count => Ok((0..count).collect()),
        },
        // Opening a single GPU reports if it does not exist.
        Gpus::Numbers(numbers) if numbers.len() == 1 => Ok(numbers.clone()),
        Gpus::Numbers(numbers) => {
            let count = count()?;
            match numbers.iter().find(|number| **number >= count) {
                Some(missing) => Err(Error::usage(format!("no GPU {missing}: this machine has {count}"))
                    .at(format!("{:#} {gpus}", Field::Device))
                    .for_field(Field::Device)
                    .hint(format!(
                        "count GPUs from 0, list them with `nvidia-smi -L`, or use all with `{:#} cuda:all`",
                        Field::Device
                    ))),
                None => Ok(numbers.clone()),
            }
        }
    }
}

/// Returns the number of GPUs that generate each image together with `--parallel auto`: two if there are two for each
/// image and two are faster; otherwise one, because independent GPUs generate the most images. More than two were not
/// measured.
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
    // `may_share` has checked that there are enough GPUs.
    for pair in numbers.chunks_exact(PAIR).take(images) {
        if !cuda::are_linked(pair)? {
            let pair = Gpus::Numbers(pair.to_vec());
            observer.detail(&format!("{pair} are of different kinds or not linked, so each image uses one GPU"));
            return Ok(1);
        }
    }
    observer.detail(&format!(
        "two GPUs share each image, which is faster than one; use one with `{:#} off`",
        Field::Parallel
    ));
    Ok(PAIR)
}

/// Returns a note for the user if not `all` GPUs are `used`.
fn unused(used: &[usize], all: &[usize], images: usize, world: usize) -> String {
    let made = match images {
        1 => "one image is generated".to_string(),
        _ => format!("{images} images are generated"),
    };
    let note = format!("{made} on {} only, not on all {} GPUs", Gpus::Numbers(used.to_vec()), all.len());
    if world > 1 { note } else { format!("{note}; use `{:#} N` to share each image between N GPUs", Field::Parallel) }
}

/// Opens groups of GPUs: the first immediately, the others concurrently on their own threads. The driver opens GPUs
/// one after the other, so the first must not wait.
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

/// Returns the first GPU alone.
fn only(gpu: Cuda) -> Devices {
    Devices::Cuda(OpenGpus { first: vec![named(0, gpu)], others: Vec::new() })
}

fn explained(error: Error, gpus: &Gpus) -> Error {
    let device = Field::Device;
    let hint = format!("list the GPUs with `nvidia-smi`, or use `{device:#} cpu`");
    error.at(format!("{device:#} {gpus}")).for_field(device).hint(hint)
}

fn open_gpu(args: &EngineArgs, number: usize) -> Result<Cuda> {
    let cuda = Cuda::with(number, args.gpu_memory, arithmetic(args), &GemmCache::from_environment())?;
    check_type(args, &cuda)?;
    Ok(cuda)
}

/// Opens the GPUs of a list as ranks that generate each image together.
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
        PrecisionChoice::Auto
        | PrecisionChoice::Fast
        | PrecisionChoice::Native
        | PrecisionChoice::F32
        | PrecisionChoice::Bf16 => cuda::Precision::Bf16,
    };
    let attention = match args.attention {
        AttentionChoice::Auto => None,
        AttentionChoice::Bf16 => Some(AttentionPrecision::Bf16),
        AttentionChoice::Fp8 => Some(AttentionPrecision::Fp8),
        AttentionChoice::Int8 => Some(AttentionPrecision::Int8),
    };
    Arithmetic { products, attention }
}

/// Errors if bf16 is requested and the GPU does not support it, or if attention in fp8 is requested and this program
/// has no kernel for it.
fn check_type(args: &EngineArgs, cuda: &Cuda) -> Result<()> {
    let asks_for_bf16 = [
        (Field::Precision, args.precision == PrecisionChoice::Bf16),
        (Field::Attention, args.attention == AttentionChoice::Bf16),
    ];
    if let Some((field, _)) = asks_for_bf16.into_iter().find(|(_, asks)| *asks && !cuda.computes_in_bf16()) {
        return Err(Error::usage(format!("{} computes in fp16, not in bf16", cuda.describe()))
            .for_field(field)
            .hint(format!("leave out `{field:#}`")));
    }
    if args.attention == AttentionChoice::Fp8 && cuda.attention_precision() != AttentionPrecision::Fp8 {
        return Err(Error::usage("this program was built without the fp8 attention kernel")
            .for_field(Field::Attention)
            .hint(format!("leave out `{:#}`, or build for compute capability 9.0", Field::Attention)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Unobserved;

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
        let unasked = || -> bool { panic!("there are fewer than two GPUs per image") };
        assert!(by_itself(&[0], 1, &unasked) && by_itself(&[0, 1], 2, &unasked) && by_itself(&[2, 5, 7], 2, &unasked));
        assert!(by_itself(&[0, 1], usize::MAX, &unasked));
        assert!(by_itself(&[0, 1], 1, &|| false) && by_itself(&[0, 1, 2, 3], 2, &|| false));
    }
}
