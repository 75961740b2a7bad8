//! Choices of devices and of the type of their arithmetic.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Field};

/// The devices to open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// A GPU if there is one, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// GPUs.
    Cuda(Gpus),
}

/// A selection of GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gpus {
    /// All GPUs of this machine.
    All,
    /// GPUs with these numbers: at least one, each once.
    Numbers(Vec<usize>),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(Gpus::Numbers(vec![0]))),
            "cuda:all" => Ok(Self::Cuda(Gpus::All)),
            _ => text.strip_prefix("cuda:").map_or_else(|| Err(no_device(text)), numbers).map(Self::Cuda),
        }
    }
}

impl Device {
    /// Returns the number of devices; `None` if it depends on the machine.
    pub fn count(&self) -> Option<usize> {
        match self {
            Self::Auto | Self::Cpu => Some(1),
            Self::Cuda(Gpus::Numbers(numbers)) => Some(numbers.len()),
            Self::Cuda(Gpus::All) => None,
        }
    }
}

/// Returns an error message that lists the valid devices, with a suggestion for `text`.
fn no_device(text: &str) -> String {
    const OTHERS: [&str; 9] = ["mps", "metal", "mlx", "rocm", "hip", "vulkan", "xpu", "opencl", "directml"];
    let plain = text.to_lowercase();
    let numbers = plain.trim_start_matches(|c: char| !c.is_ascii_digit()).replace(' ', "");
    let meant = if OTHERS.iter().any(|other| plain.starts_with(other)) {
        "; this program supports NVIDIA GPUs and CPUs".to_string()
    } else if !numbers.is_empty() && numbers.split(',').all(|number| number.parse::<usize>().is_ok()) {
        format!("; write cuda:{numbers}")
    } else if ["gpu", "cuda", "nvidia"].contains(&plain.as_str()) {
        "; cuda is the first GPU".to_string()
    } else {
        String::new()
    };
    format!("expected auto, cpu, cuda, cuda:N, several GPUs as in cuda:0,1, or cuda:all{meant}")
}

fn numbers(list: &str) -> Result<Gpus, String> {
    let mut numbers = Vec::new();
    for number in list.split(',') {
        let number = number.parse().map_err(|_| no_device(list))?;
        if numbers.contains(&number) {
            return Err(format!("GPU {number} is listed twice"));
        }
        numbers.push(number);
    }
    Ok(Gpus::Numbers(numbers))
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("cuda:all"),
            Self::Numbers(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
                write!(f, "cuda:{}", numbers.join(","))
            }
        }
    }
}

/// The number of GPUs that generate each image together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ParallelChoice {
    /// As many GPUs as are fastest for one image.
    #[default]
    Auto,
    /// Each GPU generates its own images.
    Off,
    /// This number of GPUs, at least one.
    Gpus(usize),
}

impl FromStr for ParallelChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => match text.parse() {
                Ok(gpus) if gpus > 0 => Ok(Self::Gpus(gpus)),
                _ => Err("expected a number of GPUs, auto or off".to_string()),
            },
        }
    }
}

impl ParallelChoice {
    /// Number of GPUs that generate an image together with [`ParallelChoice::Auto`]. More were not measured.
    pub const PAIR: usize = 2;

    /// Returns `true` if some of `gpus` GPUs may generate an image together; `None` is an unknown number of GPUs.
    pub fn may_share(self, gpus: Option<usize>, images: usize) -> bool {
        match self {
            Self::Off => false,
            Self::Gpus(world) => world > 1,
            Self::Auto => gpus.is_none_or(|gpus| images.checked_mul(Self::PAIR).is_some_and(|pairs| pairs <= gpus)),
        }
    }

    /// Returns the minimum number of GPUs for each image.
    pub fn least(self) -> usize {
        match self {
            Self::Auto | Self::Off => 1,
            Self::Gpus(gpus) => gpus,
        }
    }

    /// Errors if `there`, the number of `gpus`, is too small.
    pub fn check_enough(self, there: usize, gpus: &Gpus) -> crate::error::Result<()> {
        let world = self.least();
        if world <= there {
            return Ok(());
        }
        let what =
            format!("`{:#} {world}` needs {world} GPUs, but `{:#} {gpus}` has {there}", Field::Parallel, Field::Device);
        Err(Error::usage(what)
            .hint(format!("list as many, as in `{0:#} cuda:0,1`, or use `{0:#} cuda:all`", Field::Device)))
    }

    /// Errors if this choice needs several GPUs. Called when no GPUs are named.
    pub fn check_alone(self) -> crate::error::Result<()> {
        let world = self.least();
        if world == 1 {
            return Ok(());
        }
        Err(Error::usage(format!(
            "`{:#} {world}` needs {world} GPUs, but `{:#}` lists none",
            Field::Parallel,
            Field::Device
        ))
        .hint(format!("list them, as in `{0:#} cuda:0,1`, or use `{0:#} cuda:all`", Field::Device)))
    }
}

/// The type in which devices compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionChoice {
    /// The fastest precision that computes correctly on the device, except that Hopper GPUs and small models compute as
    /// `Native`.
    #[default]
    Auto,
    /// As `Auto`, and `Fp8` on Hopper GPUs.
    Fast,
    /// float32 on the CPU, bf16 on a GPU, fp16 on a GPU without bf16.
    Native,
    /// float32, only on the CPU.
    F32,
    /// bf16.
    Bf16,
    /// e4m3 in the transformer's matrix multiplications, on GPUs of compute capability 8.9, 9.0 and 12.x.
    Fp8,
    /// 8-bit integers in the transformer's matrix multiplications.
    Int8,
    /// 8-bit integers in the transformer's matrix multiplications, with 4-bit weights.
    W4a8,
}

impl PrecisionChoice {
    /// The names of all precisions.
    pub const NAMES: [&str; 8] = ["auto", "fast", "native", "f32", "bf16", "fp8", "int8", "w4a8"];

    /// Returns the precision that reproduces an image whose recipe has this one: `auto` was `native` then.
    pub fn recorded(self) -> Self {
        if self == Self::Auto { Self::Native } else { self }
    }

    /// Returns the name of the precision.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for PrecisionChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        use PrecisionChoice::{Auto, Bf16, F32, Fast, Fp8, Int8, Native, W4a8};
        named(text, &Self::NAMES, &[Auto, Fast, Native, F32, Bf16, Fp8, Int8, W4a8])
    }
}

/// The type in which attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionChoice {
    /// If matrix multiplications are in 8 bits, fp8 on Hopper GPUs with fp8, and int8 on GeForce GPUs; otherwise the
    /// type of all other arithmetic.
    #[default]
    Auto,
    /// bf16, on GPUs.
    Bf16,
    /// Queries, keys, values and weights of long attention without a mask in e4m3, on Hopper GPUs.
    Fp8,
    /// Queries and keys of long attention without a mask in 8-bit integers, on GPUs with bf16.
    Int8,
}

impl AttentionChoice {
    /// The names of all choices.
    pub const NAMES: [&str; 4] = ["auto", "bf16", "fp8", "int8"];

    /// Returns the name of the choice.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Returns `true` if the choice is left to the program.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

impl FromStr for AttentionChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(text, &Self::NAMES, &[Self::Auto, Self::Bf16, Self::Fp8, Self::Int8])
    }
}

/// Returns the choice with this name.
fn named<T: Copy>(text: &str, names: &[&str], choices: &[T]) -> Result<T, String> {
    let found = names.iter().zip(choices).find(|(name, _)| **name == text);
    found.map(|(_, choice)| *choice).ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_that_make_an_image_together_are_a_number_auto_or_off() {
        let least = |text: &str| text.parse().map(ParallelChoice::least);
        assert_eq!(["auto", "off", "1", "4"].map(least), [Ok(1), Ok(1), Ok(1), Ok(4)]);
        for bad in ["", "0", "-2", "two", "1.5"] {
            assert!(least(bad).is_err_and(|e| e.contains("auto or off")), "{bad}");
        }
    }

    #[test]
    fn gpus_may_share_images_where_there_are_two_for_each() {
        use ParallelChoice::{Auto, Gpus, Off};
        for (parallel, gpus, images, expected) in [
            (Auto, Some(1), 1, false),
            (Auto, Some(2), 1, true),
            (Auto, Some(3), 2, false),
            (Auto, Some(8), usize::MAX, false),
            (Auto, None, 100, true),
            (Off, None, 1, false),
            (Gpus(1), Some(4), 1, false),
            (Gpus(2), Some(2), 9, true),
        ] {
            assert_eq!(parallel.may_share(gpus, images), expected, "{parallel:?} {gpus:?} {images}");
        }
        let count = |text: &str| text.parse().map(|device: Device| device.count());
        assert_eq!(
            ["auto", "cpu", "cuda", "cuda:3,1"].map(count),
            [Ok(Some(1)), Ok(Some(1)), Ok(Some(1)), Ok(Some(2))]
        );
        assert_eq!(count("cuda:all"), Ok(None));
    }

    #[test]
    fn a_device_that_is_none_is_told_what_was_meant() {
        for (text, meant) in [
            (":0,5", "write cuda:0,5"),
            ("0", "write cuda:0"),
            ("0, 1", "write cuda:0,1"),
            ("gpu:1", "write cuda:1"),
            ("cuda0", "write cuda:0"),
            ("GPU", "first GPU"),
            ("CUDA", "first GPU"),
            ("mps", "supports NVIDIA GPUs and CPUs"),
            ("rocm:0", "supports NVIDIA GPUs and CPUs"),
        ] {
            assert!(text.parse::<Device>().is_err_and(|why| why.ends_with(meant)), "{text}");
        }
        for text in ["", "cuda:", "cuda:x", "tpu"] {
            assert!(text.parse::<Device>().is_err_and(|why| why.ends_with("or cuda:all")), "{text}");
        }
    }

    #[test]
    fn every_name_of_a_precision_is_one() {
        assert!(AttentionChoice::NAMES.iter().all(|name| name.parse::<AttentionChoice>().unwrap().name() == *name));
        assert!("int4".parse::<AttentionChoice>().is_err_and(|e| e.contains("auto, bf16, fp8, int8")));
        assert!(PrecisionChoice::NAMES.iter().all(|name| name.parse::<PrecisionChoice>().unwrap().name() == *name));
        assert!(
            "fp16"
                .parse::<PrecisionChoice>()
                .is_err_and(|e| e.contains("auto, fast, native, f32, bf16, fp8, int8, w4a8"))
        );
    }
}
