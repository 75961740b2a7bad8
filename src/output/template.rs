//! Names of files with fields that each image fills: `{seed}`, `{prompt:40}`, `%03d`.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Field, Result};

/// The most characters of a prompt in a name, where the template says no number.
const PROMPT_CHARACTERS: usize = 48;
/// What stands between braces.
const NAMES: [&str; 6] = ["seed", "n", "index", "prompt", "model", "date"];

/// A name with fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// The place of a name in [`NAMES`]; a width, and whether zeros fill it.
    Named(usize, Option<(usize, bool)>),
    /// `%d`: as stable-diffusion.cpp counts, from 0.
    Counted(usize, bool),
}

/// What an image has to say for its name.
#[derive(Debug, Clone)]
pub struct NameFields<'a> {
    /// Its seed.
    pub seed: u64,
    /// Which of the images of one prompt it is, from 1.
    pub number: usize,
    /// Which of the prompts of a file it is of, from 1.
    pub index: usize,
    /// Its prompt.
    pub prompt: &'a str,
    /// The model's name.
    pub model: &'a str,
    /// When the run began.
    pub time: SystemTime,
}

impl NameTemplate {
    /// A template of this text alone.
    pub fn literal(text: &str) -> String {
        let mut template = String::new();
        for (at, c) in text.char_indices() {
            let is_doubled = matches!(c, '{' | '}') || c == '%' && counted(&text[at..]).is_some();
            template.extend(std::iter::repeat_n(c, 1 + usize::from(is_doubled)));
        }
        template
    }

    /// Reads a template. `{{` and `}}` are braces, and `%%` in front of what would be a number is a per cent sign.
    ///
    /// Errors when a brace is not closed, or there is no such field.
    pub fn parse(text: &str) -> Result<Self> {
        let (mut parts, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(c) = rest.chars().next() {
            let (part, length) = match c {
                '{' | '}' if rest[1..].starts_with(c) => (None, 2),
                '{' => {
                    let end = rest.find('}').ok_or_else(|| no_field(text, rest))?;
                    (Some(named(&rest[1..end]).ok_or_else(|| no_field(text, &rest[..=end]))?), end + 1)
                }
                '%' if rest[1..].starts_with('%') && counted(&rest[1..]).is_some() => (None, 2),
                '%' => counted(rest).map_or((None, 1), |(part, length)| (Some(part), length)),
                _ => (None, c.len_utf8()),
            };
            match part {
                Some(part) => {
                    parts.push(Part::Text(std::mem::take(&mut literal)));
                    parts.push(part);
                }
                None => literal.push(c),
            }
            rest = &rest[length..];
        }
        parts.push(Part::Text(literal));
        Ok(Self(parts))
    }

    /// Whether images of one prompt have names of their own.
    pub fn tells_apart(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Named(0 | 1, _) | Part::Counted(..)))
    }

    /// Whether it has a field.
    pub fn has_fields(&self) -> bool {
        self.0.iter().any(|part| !matches!(part, Part::Text(_)))
    }

    /// The name of an image.
    pub fn fill(&self, fields: &NameFields<'_>) -> String {
        self.0.iter().map(|part| part.fill(fields)).collect()
    }
}

impl Part {
    fn fill(&self, fields: &NameFields<'_>) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Counted(width, zeros) => padded(fields.number as u64 - 1, Some((*width, *zeros))),
            Self::Named(0, width) => padded(fields.seed, *width),
            Self::Named(1, width) => padded(fields.number as u64, *width),
            Self::Named(2, width) => padded(fields.index as u64, *width),
            Self::Named(3, width) => words(fields.prompt, width.map_or(PROMPT_CHARACTERS, |(width, _)| width)),
            Self::Named(4, width) => {
                let name: String = fields.model.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
                name.chars().take(width.map_or(usize::MAX, |(width, _)| width)).collect()
            }
            Self::Named(..) => date(fields.time),
        }
    }
}

/// `seed`, `index:04` or `prompt:40`
fn named(inside: &str) -> Option<Part> {
    let (name, width) = inside.split_once(':').map_or((inside, None), |(name, width)| (name, Some(width)));
    let place = NAMES.iter().position(|known| *known == name)?;
    let width = match width {
        // Of a date nothing is left out.
        Some(_) if place == 5 => return None,
        Some(width) => Some((width.parse().ok().filter(|width| (1..=200).contains(width))?, width.starts_with('0'))),
        None => None,
    };
    Some(Part::Named(place, width))
}

/// `%d`, `%4d` or `%04d` at the beginning of a text, and its length.
fn counted(text: &str) -> Option<(Part, usize)> {
    let digits = text[1..].chars().take_while(char::is_ascii_digit).count();
    let width = &text[1..1 + digits];
    let is_number = text[1 + digits..].starts_with('d') && digits <= 3;
    is_number.then(|| (Part::Counted(width.parse().unwrap_or(0), width.starts_with('0')), digits + 2))
}

fn padded(number: u64, width: Option<(usize, bool)>) -> String {
    match width {
        Some((width, true)) => format!("{number:0width$}"),
        Some((width, false)) => format!("{number:width$}"),
        None => number.to_string(),
    }
}

/// The first words of a text, in lower case and joined by hyphens.
fn words(text: &str, most: usize) -> String {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let name: String = words.collect::<Vec<_>>().join("-").chars().take(most).collect();
    // A name has at most 255 bytes, and more than the prompt.
    let mut end = name.len().min(180);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let name = name[..end].trim_end_matches('-');
    if name.is_empty() { "image".to_string() } else { name.to_string() }
}

fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ' | '+')
}

/// The day of a time in UTC, as in 2026-11-26. Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms",
/// `civil_from_days`.
pub fn date(time: SystemTime) -> String {
    let days = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400) + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn no_field(template: &str, field: &str) -> Error {
    let names = NAMES.map(|name| format!("{{{name}}}")).join(", ");
    Error::usage(format!("there is no field `{field}` in names of files: `{template}`"))
        .of(Field::Output)
        .hint(format!("fields are {names}, with a width as in {{index:04}}, and %03d; `{{{{` is a brace"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn fields() -> NameFields<'static> {
        let time = UNIX_EPOCH + Duration::from_secs(1_795_651_200);
        let (prompt, model) = ("A Käse, on\nthe  moon!", "black/forest: x");
        NameFields { seed: 42, number: 3, index: 17, prompt, model, time }
    }

    #[test]
    fn each_field_has_its_place() {
        for (template, name, tells_apart) in [
            ("a.png", "a.png", false),
            ("{seed}.png", "42.png", true),
            ("{index:04}-{n}.webp", "0017-3.webp", true),
            ("{index:4}.png", "  17.png", false),
            ("out_%03d.png", "out_002.png", true),
            ("%d%%.png", "2%%.png", true),
            ("100%.png", "100%.png", false),
            ("{prompt}.png", "a-käse-on-the-moon.png", false),
            ("{prompt:6}/{date}.png", "a-käse/2026-11-26.png", false),
            ("{model}.png", "black-forest- x.png", false),
            ("{{seed}}.png", "{seed}.png", false),
            ("ä}.png", "ä}.png", false),
            ("%%d-%%03d.png", "%d-%03d.png", false),
        ] {
            let template = NameTemplate::parse(template).unwrap_or_else(|e| panic!("{template}: {e}"));
            assert_eq!((template.fill(&fields()).as_str(), template.tells_apart()), (name, tells_apart));
        }
    }

    #[test]
    fn any_text_has_a_template_of_its_own() {
        for text in ["a.png", "%d", "%%d", "100%", "{seed}", "}{%03d{", "%%%5d%"] {
            let template = NameTemplate::parse(&NameTemplate::literal(text)).unwrap();
            assert!(template.fill(&fields()) == text && !template.has_fields(), "{text}");
        }
    }

    #[test]
    fn what_is_no_field_is_refused_with_those_there_are() {
        for bad in ["{sed}.png", "{}.png", "{seed.png", "{seed:x}", "{seed:}", "{prompt:0}", "{prompt:999}", "{date:3}"]
        {
            let error = NameTemplate::parse(bad).unwrap_err().to_string();
            assert!(error.contains("no field") && error.contains("{index:04}"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_prompt_without_letters_and_a_long_one_are_names() {
        let of = |prompt: &str| NameTemplate::parse("{prompt:200}").unwrap().fill(&NameFields { prompt, ..fields() });
        assert_eq!(of("../../etc/passwd"), "etc-passwd");
        assert_eq!([of(""), of("?!"), of("\u{0}/")], ["image"; 3]);
        assert!(of(&"猫".repeat(300)).len() <= 180);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, day) in [(0, "1970-01-01"), (951_782_400, "2000-02-29"), (4_102_444_799, "2099-12-31")] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), day);
        }
    }
}
