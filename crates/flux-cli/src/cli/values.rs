//! Parsers for values of flags.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use flux::engine::choice::{AttentionChoice, PrecisionChoice};
use flux::output::ImageFormat;
use flux::sampler::random_seed;

/// `--timings`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TimingsFormat {
    /// Text on stderr.
    Text,
    /// JSON on stdout.
    Json,
}

/// The reason why `-` is rejected for arguments that cannot be standard input or output.
pub const NO_HYPHEN: &str =
    "standard input and output cannot be used here: name a file, or `./-` for a file of this name";

/// Parses a text other than `-`.
pub fn no_hyphen(text: &str) -> Result<String, String> {
    if text == "-" {
        Err("only the prompt can be read from standard input: pass the text itself".to_string())
    } else {
        Ok(text.to_string())
    }
}

/// Parses a path other than `-`.
pub fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| if path == Path::new("-") { Err(NO_HYPHEN) } else { Ok(path) })
}

/// Parses `--precision`.
pub fn precision() -> impl TypedValueParser<Value = PrecisionChoice> {
    PossibleValuesParser::new(PrecisionChoice::NAMES).try_map(|name| name.parse())
}

/// Parses `--attention`.
pub fn attention() -> impl TypedValueParser<Value = AttentionChoice> {
    PossibleValuesParser::new(AttentionChoice::NAMES).try_map(|name| name.parse())
}

/// Returns a parser for an image format.
pub fn image_format() -> impl TypedValueParser<Value = ImageFormat> {
    let names = [PossibleValue::new("png"), PossibleValue::new("jpeg").alias("jpg"), PossibleValue::new("webp")];
    PossibleValuesParser::new(names).map(|name| ImageFormat::from_name(&name).expect("a possible value"))
}

/// Returns a parser for one of `choices`, by name.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = choices.iter().map(|(name, _)| *name);
    PossibleValuesParser::new(names)
        .map(|name| choices.iter().find(|(known, _)| *known == name).expect("a possible value").1)
}

/// `--progress`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProgressChoice {
    /// Bars on a terminal, otherwise lines for long runs.
    Auto,
    /// Bars.
    Bar,
    /// Plain lines.
    Plain,
    /// No progress.
    None,
}

/// The allowed sides of an image.
pub const SIDE: &str = "pixels, from 16 to 8192";

/// Parses a whole number in `range`.
pub fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + fmt::Display + Clone + Send + Sync + 'static,
{
    move |text| match text.parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(format!("expected a whole number from {} to {}", range.start(), range.end())),
    }
}

/// Parses `--count`.
pub fn count(text: &str) -> Result<u64, String> {
    let expected = whole(1..=super::MAX_COUNT)(text);
    let is_text = text.parse::<f64>().is_err();
    expected.map_err(|why| if is_text { format!("{why}; set a negative prompt with --negative") } else { why })
}

/// Parses a whole number. `expected` describes the accepted values; the model checks them.
pub fn whole_of(expected: &'static str) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| text.parse().map_err(|_| format!("expected a whole number of {expected}"))
}

/// Parses a number. `expected` describes the accepted values; the model checks them.
pub fn decimal<T: FromStr>(
    expected: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| text.parse().map_err(|_| format!("expected a number {expected}{}", point(text)))
}

/// Returns a suggestion if a number has a decimal comma.
fn point(text: &str) -> String {
    let with_point = text.replacen(',', ".", 1);
    let is_number = with_point != text && with_point.parse::<f64>().is_ok();
    if is_number { format!(", with a point: {with_point}") } else { String::new() }
}

/// Parses a number from 0 to `max`.
pub fn number(text: &str, max: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=max).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from 0 to {max}{}", point(text))),
    }
}

pub fn seconds(text: &str) -> Result<f64, String> {
    number(text, 60.0)
}

/// Parses a time limit in seconds.
pub fn time_limit(text: &str) -> Result<f64, String> {
    positive(text, 3600.0)
}

pub fn gibibytes(text: &str) -> Result<f64, String> {
    positive(text, 4096.0)
}

fn positive(text: &str, max: f64) -> Result<f64, String> {
    number(text, max).and_then(|value| if value > 0.0 { Ok(value) } else { Err("expected more than 0".to_string()) })
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

impl Seed {
    /// Returns `true` if the seed is random.
    pub fn is_random(self) -> bool {
        self == Self::Random
    }

    /// Returns the seed. A random seed is generated by this call.
    pub fn value(self) -> u64 {
        match self {
            Self::Given(seed) => seed,
            Self::Random => random_seed(),
        }
    }
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

/// `--size` of an image. A single number is the longer side of an edited input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeOrSide {
    Size(Size),
    Side(usize),
}

impl SizeOrSide {
    /// Returns width and height; a single number is a square.
    pub fn size(self) -> Size {
        match self {
            Self::Size(size) => size,
            Self::Side(side) => Size { width: side, height: side },
        }
    }
}

impl FromStr for SizeOrSide {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size: Size = text.parse()?;
        Ok(if text.contains(['x', 'X']) { Self::Size(size) } else { Self::Side(size.width) })
    }
}

/// Errors if `url`, from the flag or variable `place`, is not the address of a server.
#[cfg(feature = "server")]
pub fn check_server(url: &str, place: &str) -> flux::Result<()> {
    let is_address = |scheme: &&str| url.strip_prefix(*scheme).is_some_and(|rest| !rest.is_empty());
    if ["http://", "https://", "unix:"].iter().any(is_address) {
        return Ok(());
    }
    Err(flux::Error::usage(format!("`{url}` is not a valid address"))
        .at(place)
        .hint("use an address such as http://127.0.0.1:7860, or unix: and the path of a socket"))
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
    fn numbers_are_refused_with_what_is_expected() {
        assert_eq!((whole(1..=8u64)("8"), decimal::<f32>("from 0 to 9")("3.5")), (Ok(8), Ok(3.5)));
        for bad in ["", "0", "9", "x", "1.5", "99999999999999999999"] {
            assert!(whole(1..=8u64)(bad).is_err_and(|why| why.ends_with(" 1 to 8")), "{bad}");
        }
        assert_eq!(whole_of("pixels")("1e3"), Err("expected a whole number of pixels".to_string()));
        let comma = decimal::<f32>("from 0 to 9")("3,5");
        assert!(comma.is_err_and(|why| why.contains(" 0 to 9,") && why.ends_with(" 3.5")));
        assert!(count("blurry").is_err_and(|why| why.contains("--negative")));
        assert!(count("0").is_err_and(|why| why.ends_with(" 1 to 10000")));
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
