//! Values of flags, from text.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PathBufValueParser, TypedValueParser};
use flux::Error;

/// `--device`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU when there is one.
    Auto,
    Cpu,
    /// GPUs.
    Cuda(Gpus),
}

/// Which GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gpus {
    /// All of this machine.
    All,
    /// Those with these numbers: at least one, each once.
    Numbers(Vec<usize>),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(Gpus::Numbers(vec![0]))),
            "cuda:all" => Ok(Self::Cuda(Gpus::All)),
            _ => text.strip_prefix("cuda:").map_or_else(|| Err(NO_DEVICE.to_string()), numbers).map(Self::Cuda),
        }
    }
}

impl DeviceChoice {
    /// How many devices it names; none where that depends on the machine.
    pub fn count(&self) -> Option<usize> {
        match self {
            Self::Auto | Self::Cpu => Some(1),
            Self::Cuda(Gpus::Numbers(numbers)) => Some(numbers.len()),
            Self::Cuda(Gpus::All) => None,
        }
    }
}

const NO_DEVICE: &str = "expected auto, cpu, cuda, cuda:N, several GPUs as in cuda:0,1, or cuda:all";

fn numbers(list: &str) -> Result<Gpus, String> {
    let mut numbers = Vec::new();
    for number in list.split(',') {
        let number = number.parse().map_err(|_| NO_DEVICE.to_string())?;
        if numbers.contains(&number) {
            return Err(format!("GPU {number} is there twice"));
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

/// `--parallel`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParallelChoice {
    /// As many GPUs as make an image soonest.
    Auto,
    /// Each GPU makes images of its own.
    Off,
    /// So many, at least one.
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
    /// How many GPUs make an image together where that is for the program to choose. More were not measured.
    pub const PAIR: usize = 2;

    /// Whether some of `gpus`, or of an unknown number, may make one of the images together.
    pub fn may_share(self, gpus: Option<usize>, images: usize) -> bool {
        match self {
            Self::Off => false,
            Self::Gpus(world) => world > 1,
            Self::Auto => gpus.is_none_or(|gpus| images.checked_mul(Self::PAIR).is_some_and(|pairs| pairs <= gpus)),
        }
    }

    /// How many GPUs make each image together, at least.
    pub fn least(self) -> usize {
        match self {
            Self::Auto | Self::Off => 1,
            Self::Gpus(gpus) => gpus,
        }
    }

    /// Errors when `gpus` are `there`, fewer than this.
    pub fn check_enough(self, there: usize, gpus: &Gpus) -> flux::Result<()> {
        let world = self.least();
        if world <= there {
            return Ok(());
        }
        let what = format!("`--parallel {world}` needs {world} GPUs, and `--device {gpus}` is {there}");
        Err(Error::usage(what).hint("name as many, as in `--device cuda:0,1`, or use `--device cuda:all`"))
    }

    /// Errors where no GPUs are named, and this needs several.
    pub fn check_alone(self) -> flux::Result<()> {
        let world = self.least();
        if world == 1 {
            return Ok(());
        }
        Err(Error::usage(format!("`--parallel {world}` needs {world} GPUs, and `--device` names none"))
            .hint("name them, as in `--device cuda:0,1`, or use `--device cuda:all`"))
    }
}

/// `--precision`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrecisionChoice {
    Auto,
    F32,
    Bf16,
    Fp8,
}

/// `--variant`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VariantChoice {
    Distilled,
    Base,
    Kv,
}

/// `--timings`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TimingsFormat {
    Text,
    Json,
}

/// Why `-` is no file where no standard input or output is meant.
pub const NO_HYPHEN: &str =
    "neither standard input nor standard output can take its place: name a file, or `./-` where that is its name";

/// A text, and not `-`.
pub fn no_hyphen(text: &str) -> Result<String, String> {
    if text == "-" {
        Err("the prompt alone is read from standard input: give the text itself".to_string())
    } else {
        Ok(text.to_string())
    }
}

/// A path, and not `-`.
pub fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| if path == Path::new("-") { Err(NO_HYPHEN) } else { Ok(path) })
}

/// A number from 0 to `max`.
fn number(text: &str, max: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=max).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from 0 to {max}")),
    }
}

pub fn seconds(text: &str) -> Result<f64, String> {
    number(text, 60.0)
}

pub fn gibibytes(text: &str) -> Result<f64, String> {
    number(text, 4096.0).and_then(|value| if value > 0.0 { Ok(value) } else { Err("expected more than 0".to_string()) })
}

pub fn decibels(text: &str) -> Result<f64, String> {
    number(text, 1000.0)
}

/// `--seed`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seed {
    /// `random`, or -1 as in other programs.
    Random,
    Given(u64),
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "random" | "-1" => Ok(Self::Random),
            _ => {
                text.parse().map(Self::Given).map_err(|_| format!("expected a number from 0 to {} or random", u64::MAX))
            }
        }
    }
}

/// `--size`, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub width: usize,
    pub height: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (width, height) = text.split_once(['x', 'X']).unwrap_or((text, text));
        match (width.parse(), height.parse()) {
            (Ok(width), Ok(height)) => Ok(Self { width, height }),
            _ => Err("expected WIDTHxHEIGHT or the side of a square, such as 768x512 or 512".to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_two_numbers_or_the_side_of_a_square() {
        assert_eq!("768x512".parse(), Ok(Size { width: 768, height: 512 }));
        assert_eq!("768X512".parse(), Ok(Size { width: 768, height: 512 }));
        assert_eq!("512".parse(), Ok(Size { width: 512, height: 512 }));
        for bad in ["", "x", "512x", "x512", "512x512x512", "512 x 512", "-512", "1e3", "512x99999999999999999999"] {
            assert!(bad.parse::<Size>().is_err_and(|e| e.contains("WIDTHxHEIGHT")), "{bad}");
        }
    }

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
        let count = |text: &str| text.parse().map(|device: DeviceChoice| device.count());
        assert_eq!(
            ["auto", "cpu", "cuda", "cuda:3,1"].map(count),
            [Ok(Some(1)), Ok(Some(1)), Ok(Some(1)), Ok(Some(2))]
        );
        assert_eq!(count("cuda:all"), Ok(None));
    }

    #[test]
    fn a_seed_is_a_number_or_random() {
        assert_eq!("7".parse(), Ok(Seed::Given(7)));
        assert_eq!("18446744073709551615".parse(), Ok(Seed::Given(u64::MAX)));
        assert_eq!("random".parse(), Ok(Seed::Random));
        assert_eq!("-1".parse(), Ok(Seed::Random));
        for bad in ["", "-2", "abc", "1.5", "18446744073709551616"] {
            assert!(bad.parse::<Seed>().is_err_and(|e| e.contains("random")), "{bad}");
        }
    }
}
