//! Flags of `flux sheet`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use flux::sheet::Style;

use super::values::{path, whole};

/// The fields of a label. Templates use their names as clap does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LabelField {
    Name,
    Prompt,
    Seed,
    Steps,
    Guidance,
    Strength,
    Size,
    Model,
}

/// A part of a label template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelPart {
    Text(String),
    Field(LabelField),
}

/// `--label`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Label {
    None,
    /// The fields that differ between the images.
    Auto,
    Parts(Vec<LabelPart>),
}

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "auto" => Ok(Self::Auto),
            _ => match <LabelField as ValueEnum>::from_str(text, false) {
                Ok(field) => Ok(Self::Parts(vec![LabelPart::Field(field)])),
                Err(_) => template(text).map(Self::Parts),
            },
        }
    }
}

/// Parses a text with fields in braces. Doubled braces are literal.
fn template(text: &str) -> Result<Vec<LabelPart>, String> {
    let names = || {
        let fields = LabelField::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        fields.map(|field| format!("{{{}}}", field.get_name())).collect::<Vec<_>>().join(", ")
    };
    let (mut parts, mut literal, mut rest) = (Vec::new(), String::new(), text);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '{' | '}' if rest.starts_with(c) => {
                literal.push(c);
                rest = &rest[1..];
            }
            '{' => {
                let (name, behind) = rest.split_once('}').ok_or("a `{` has no matching `}`; write `{{` for a brace")?;
                let field = <LabelField as ValueEnum>::from_str(name, false)
                    .map_err(|_| format!("unknown field `{name}`, expected one of {}", names()))?;
                parts.extend([LabelPart::Text(std::mem::take(&mut literal)), LabelPart::Field(field)]);
                rest = behind;
            }
            '}' => return Err("a `}` has no matching `{`; write `}}` for a brace".to_string()),
            '\\' if rest.starts_with('n') => {
                literal.push('\n');
                rest = &rest[1..];
            }
            _ => literal.push(c),
        }
    }
    if parts.is_empty() {
        return Err(format!("expected none, auto, a field name, or a text with some of {}", names()));
    }
    parts.push(LabelPart::Text(literal));
    Ok(parts)
}

/// `flux sheet`
#[derive(Args)]
pub struct Sheet {
    /// Images (PNG, JPEG, WebP) or folders of images, in this order
    #[arg(value_name = "FILE", required = true, value_parser = path())]
    pub files: Vec<PathBuf>,
    /// Output file: .png, .jpg, .jpeg or .webp
    #[arg(short, long, value_name = "FILE", value_parser = path())]
    pub output: PathBuf,
    /// Images per row [default: as many as rows, or one more]
    #[arg(long, value_name = "N", value_parser = whole(1..=1024usize))]
    pub columns: Option<usize>,
    /// Max side of an image on the sheet, in pixels
    ///
    /// Larger images are scaled down.
    #[arg(long, value_name = "PIXELS", default_value_t = 256, value_parser = whole(8..=8192usize))]
    pub cell: usize,
    /// Scale up images that are smaller than --cell
    #[arg(long)]
    pub enlarge: bool,
    /// Label of each image: none, auto, a field, or a text with fields
    ///
    /// Fields are name, prompt, seed, steps, guidance, strength, size and model, from the recipe that flux stores in an
    /// image; an image without a recipe has only its name and size. In a text, fields are in braces, as in "{seed},
    /// {steps} steps", and `\n` begins a new line. auto shows the fields that differ between the images.
    #[arg(long, value_name = "LABEL", default_value = "auto")]
    pub label: Label,
    /// Title above the images
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Pixels between and around images
    #[arg(long, value_name = "PIXELS", default_value_t = Style::default().gap, value_parser = whole(0..=1024usize))]
    pub gap: usize,
    /// Background: white, black, gray, or RRGGBB in hexadecimal
    #[arg(long, value_name = "COLOR", default_value = "white", value_parser = color)]
    pub background: [u8; 3],
    /// Overwrite an input image
    #[arg(long)]
    pub force: bool,
    /// Never overwrite an existing file
    ///
    /// If the output file exists, the command fails before any work.
    #[arg(long)]
    pub no_clobber: bool,
    /// Print only errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print one JSON object: the file, its images and its size
    #[arg(long)]
    pub json: bool,
}

/// Parses a colour: a name, or three bytes in hexadecimal.
fn color(text: &str) -> Result<[u8; 3], String> {
    match text {
        "white" => return Ok([255; 3]),
        "black" => return Ok([0; 3]),
        "gray" | "grey" => return Ok([128; 3]),
        _ => {}
    }
    let digits = text.strip_prefix('#').unwrap_or(text);
    let is_hex = digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex);
    let [_, color @ ..] = number.ok_or("expected white, black, gray, or six digits such as 20a0ff")?.to_be_bytes();
    Ok(color)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_word_a_field_or_a_text_with_fields() {
        let (text, field) = (|text: &str| LabelPart::Text(text.to_string()), LabelPart::Field);
        assert_eq!("none".parse(), Ok(Label::None));
        assert_eq!("auto".parse(), Ok(Label::Auto));
        assert_eq!("seed".parse(), Ok(Label::Parts(vec![field(LabelField::Seed)])));
        let parts = [text("no. "), field(LabelField::Seed), text(" {\n"), field(LabelField::Name), text("}")];
        assert_eq!("no. {seed} {{\\n{name}}}".parse(), Ok(Label::Parts(parts.to_vec())));
    }

    #[test]
    fn a_label_that_says_the_same_of_every_image_or_has_a_slip_is_refused() {
        for (bad, why) in [
            ("seeds", "none, auto"),
            ("", "none, auto"),
            ("{sed}", "`sed`, expected one of {name}, {prompt}, {seed}"),
            ("{seed", "no matching `}`"),
            ("seed}", "no matching `{`"),
        ] {
            assert!(bad.parse::<Label>().is_err_and(|e| e.contains(why)), "{bad}");
        }
    }

    #[test]
    fn a_color_is_a_name_or_six_digits() {
        assert_eq!(
            (color("white"), color("20a0ff"), color("#20A0FF")),
            (Ok([255; 3]), Ok([32, 160, 255]), Ok([32, 160, 255]))
        );
        for bad in ["", "20a0f", "20a0ff0", "+0a0ff", "blau", "é0a0f"] {
            assert!(color(bad).is_err_and(|e| e.contains("20a0ff")), "{bad}");
        }
    }
}
