//! Values of flags, from text.

use std::fmt;
use std::ops::RangeInclusive;
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
            _ => text.strip_prefix("cuda:").map_or_else(|| Err(no_device(text)), numbers).map(Self::Cuda),
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

/// What is expected in place of `text`, and what may have been meant by it.
fn no_device(text: &str) -> String {
    const OTHERS: [&str; 9] = ["mps", "metal", "mlx", "rocm", "hip", "vulkan", "xpu", "opencl", "directml"];
    let plain = text.to_lowercase();
    let numbers = plain.trim_start_matches(|c: char| !c.is_ascii_digit()).replace(' ', "");
    let meant = if OTHERS.iter().any(|other| plain.starts_with(other)) {
        "; this program computes on NVIDIA GPUs and on CPUs".to_string()
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

/// `--progress`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProgressChoice {
    /// Bars on a terminal, and elsewhere lines of a run that takes long.
    Auto,
    Bar,
    Plain,
    None,
}

/// What a side of an image may be.
pub const SIDE: &str = "pixels, from 16 to 8192";

/// A whole number of `range`.
pub fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + fmt::Display + Clone + Send + Sync + 'static,
{
    move |text| match text.parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(format!("expected a whole number from {} to {}", range.start(), range.end())),
    }
}

/// `--count`
pub fn count(text: &str) -> Result<u64, String> {
    let expected = whole(1..=super::MAX_COUNT)(text);
    let is_text = text.parse::<f64>().is_err();
    expected
        .map_err(|why| if is_text { format!("{why}; what the image should lean away from is --negative") } else { why })
}

/// A whole number; the model decides which it takes, of those that `expected` tells.
pub fn whole_of(expected: &'static str) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| text.parse().map_err(|_| format!("expected a whole number of {expected}"))
}

/// A number; the model decides which it takes, of those that `expected` tells.
pub fn decimal<T: FromStr>(
    expected: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| text.parse().map_err(|_| format!("expected a number {expected}{}", point(text)))
}

/// What to say of a number with a decimal comma.
fn point(text: &str) -> String {
    let with_point = text.replacen(',', ".", 1);
    let is_number = with_point != text && with_point.parse::<f64>().is_ok();
    if is_number { format!(", with a point: {with_point}") } else { String::new() }
}

/// A number from 0 to `max`.
fn number(text: &str, max: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=max).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from 0 to {max}{}", point(text))),
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
    fn a_device_that_is_none_is_told_what_was_meant() {
        for (text, meant) in [
            (":0,5", "write cuda:0,5"),
            ("0", "write cuda:0"),
            ("0, 1", "write cuda:0,1"),
            ("gpu:1", "write cuda:1"),
            ("cuda0", "write cuda:0"),
            ("GPU", "cuda is the first GPU"),
            ("CUDA", "cuda is the first GPU"),
            ("mps", "on NVIDIA GPUs and on CPUs"),
            ("rocm:0", "on NVIDIA GPUs and on CPUs"),
        ] {
            assert!(text.parse::<DeviceChoice>().is_err_and(|why| why.ends_with(meant)), "{text}");
        }
        for text in ["", "cuda:", "cuda:x", "tpu"] {
            assert!(text.parse::<DeviceChoice>().is_err_and(|why| why.ends_with("or cuda:all")), "{text}");
        }
    }

    #[test]
    fn numbers_are_refused_with_what_is_expected() {
        assert_eq!((whole(1..=8u64)("8"), decimal::<f32>("from 0 to 9")("3.5")), (Ok(8), Ok(3.5)));
        for bad in ["", "0", "9", "x", "1.5", "99999999999999999999"] {
            assert_eq!(whole(1..=8u64)(bad), Err("expected a whole number from 1 to 8".to_string()), "{bad}");
        }
        assert_eq!(whole_of("pixels")("1e3"), Err("expected a whole number of pixels".to_string()));
        let comma = decimal::<f32>("from 0 to 9")("3,5");
        assert_eq!(comma, Err("expected a number from 0 to 9, with a point: 3.5".to_string()));
        assert!(count("blurry").is_err_and(|why| why.contains("--negative")));
        assert!(count("0").is_err_and(|why| why == "expected a whole number from 1 to 10000"));
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
