//! File names with fields that each image fills: `{seed}`, `{prompt:40}`, `%03d`.

use std::time::{SystemTime, UNIX_EPOCH};

use flux_base::error::{Error, Field, Result};

/// Maximum characters of a prompt in a name, unless the template has a number.
const PROMPT_CHARACTERS: usize = 48;
/// Names of fields.
const NAMES: [&str; 6] = ["seed", "n", "index", "prompt", "model", "date"];

/// A name with fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// The index of a name in [`NAMES`]; a width, and `true` if zeros fill it.
    Named(usize, Option<(usize, bool)>),
    /// `%d`: counted from 0, as in stable-diffusion.cpp.
    Counted(usize, bool),
    /// A column of a list, and the maximum number of its characters.
    Column(String, usize),
}

/// The values of an image for the fields.
#[derive(Debug, Clone)]
pub struct NameFields<'a> {
    /// Its seed.
    pub seed: u64,
    /// Its number among the images of one prompt, from 1.
    pub number: usize,
    /// The number of its prompt in a file, from 1.
    pub index: usize,
    /// Its prompt.
    pub prompt: &'a str,
    /// The model's name.
    pub model: &'a str,
    /// The time when the run began.
    pub time: SystemTime,
    /// Further fields and their values, such as the columns of a list.
    pub columns: &'a [(String, String)],
}

impl NameTemplate {
    /// Returns the template that gives exactly this text.
    pub fn literal(text: &str) -> String {
        let mut template = String::new();
        for (at, c) in text.char_indices() {
            let is_doubled = matches!(c, '{' | '}') || c == '%' && counted(&text[at..]).is_some();
            template.extend(std::iter::repeat_n(c, 1 + usize::from(is_doubled)));
        }
        template
    }

    /// Reads a template. `{{` and `}}` are braces, and `%%` before a possible number is a per cent sign.
    ///
    /// Errors if a brace is not closed, or a field is unknown.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_with(text, &[])
    }

    /// As [`NameTemplate::parse`], with the columns of a list as further fields.
    pub fn parse_with(text: &str, columns: &[String]) -> Result<Self> {
        let column = |inside: &str| column(inside, columns);
        let (mut parts, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(c) = rest.chars().next() {
            let (part, length) = match c {
                '{' | '}' if rest[1..].starts_with(c) => (None, 2),
                '{' => {
                    let end = rest.find('}').ok_or_else(|| no_field(text, rest, columns))?;
                    let field = named(&rest[1..end]).or_else(|| column(&rest[1..end]));
                    (Some(field.ok_or_else(|| no_field(text, &rest[..=end], columns))?), end + 1)
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

    /// Returns `true` if images of one prompt get different names.
    pub fn distinguishes_images(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Named(0 | 1, _) | Part::Counted(..)))
    }

    /// Returns `true` if it has a field.
    pub fn has_fields(&self) -> bool {
        self.0.iter().any(|part| !matches!(part, Part::Text(_)))
    }

    /// Returns the name of an image.
    pub fn fill(&self, fields: &NameFields<'_>) -> String {
        self.0.iter().map(|part| part.fill(fields)).collect()
    }
}

impl Part {
    fn fill(&self, fields: &NameFields<'_>) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Column(name, most) => {
                let value = fields.columns.iter().find(|(known, _)| plain_name(known) == plain_name(name));
                cell(value.map_or("", |(_, value)| value), *most)
            }
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

/// Parses `seed`, `index:04` or `prompt:40`.
fn named(inside: &str) -> Option<Part> {
    let (name, width) = inside.split_once(':').map_or((inside, None), |(name, width)| (name, Some(width)));
    let place = NAMES.iter().position(|known| *known == name)?;
    let width = match width {
        // Dates are never shortened.
        Some(_) if place == 5 => return None,
        Some(width) => Some((width.parse().ok().filter(|width| (1..=200).contains(width))?, width.starts_with('0'))),
        None => None,
    };
    Some(Part::Named(place, width))
}

/// Parses `scene` or `scene:20`, if a list has such a column.
fn column(inside: &str, columns: &[String]) -> Option<Part> {
    let is_known = |name: &str| columns.iter().any(|column| plain_name(column) == plain_name(name));
    if is_known(inside) {
        return Some(Part::Column(inside.to_string(), PROMPT_CHARACTERS));
    }
    let (name, most) = inside.rsplit_once(':')?;
    let most = most.parse().ok().filter(|most| (1..=200).contains(most))?;
    is_known(name).then(|| Part::Column(name.to_string(), most))
}

/// Returns the name of a column for comparisons: case, spaces and hyphens do not matter.
pub fn plain_name(name: &str) -> String {
    name.trim().to_lowercase().replace([' ', '-'], "_")
}

/// Returns a cell as a part of one file name, without path separators.
fn cell(text: &str, most: usize) -> String {
    let plain: String = text.trim().chars().map(|c| if is_plain(c) { c } else { '-' }).take(most).collect();
    let mut end = plain.len().min(180);
    while !plain.is_char_boundary(end) {
        end -= 1;
    }
    let plain = plain[..end].trim_matches(['.', ' ']);
    if plain.is_empty() { "none".to_string() } else { plain.to_string() }
}

/// Parses `%d`, `%4d` or `%04d` at the beginning of a text, and returns its length.
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

/// Returns the first words of a text, in lower case and joined by hyphens.
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

/// Returns the day of a time in UTC, as in 2026-11-26.
fn date(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time.max(UNIX_EPOCH)).to_string()[..10].to_string()
}

fn no_field(template: &str, field: &str, columns: &[String]) -> Error {
    let others = columns.iter().map(String::as_str).filter(|column| !NAMES.contains(column));
    let names = NAMES.into_iter().chain(others);
    let names = names.map(|name| format!("`{{{name}}}`")).collect::<Vec<_>>().join(", ");
    Error::usage(format!("unknown field `{field}` in the file name `{template}`"))
        .for_field(Field::Output)
        .hint(format!("fields are {names}, with a width as in {{index:04}}, and %03d; write `{{{{` for a brace"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn fields() -> NameFields<'static> {
        let time = UNIX_EPOCH + Duration::from_secs(1_795_651_200);
        let (prompt, model) = ("A Käse, on\nthe  moon!", "black/forest: x");
        NameFields { seed: 42, number: 3, index: 17, prompt, model, time, columns: &[] }
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
            assert_eq!((template.fill(&fields()).as_str(), template.distinguishes_images()), (name, tells_apart));
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
            assert!(error.contains("unknown field") && error.contains("{index:04}"), "{bad}: {error}");
        }
    }

    #[test]
    fn columns_of_a_list_are_fields_that_lead_to_no_other_folder() {
        let columns = ["Scene Nr", "note"].map(String::from);
        let fill = |template: &str, value: &str| {
            let columns = &[("Scene Nr".to_string(), value.to_string())];
            NameTemplate::parse_with(template, &["Scene Nr".to_string(), "note".to_string()])
                .unwrap()
                .fill(&NameFields { columns, ..fields() })
        };
        for (value, name) in [("A 1", "A 1"), ("../../x", "-..-x"), ("..", "none"), ("", "none"), ("a/b\0", "a-b-")] {
            assert_eq!(fill("{scene_nr}.png", value), format!("{name}.png"));
        }
        assert_eq!(fill("{Scene Nr:2}-{note}-{seed}.png", "abc"), "ab-none-42.png");
        let error = NameTemplate::parse_with("{scenes}.png", &columns).unwrap_err().to_string();
        assert!(error.contains("{note}"), "{error}");
    }

    #[test]
    fn a_prompt_without_letters_and_a_long_one_are_names() {
        let of = |prompt: &str| NameTemplate::parse("{prompt:200}").unwrap().fill(&NameFields { prompt, ..fields() });
        assert_eq!(of("../../etc/passwd"), "etc-passwd");
        assert_eq!([of(""), of("?!"), of("\u{0}/")], ["image"; 3]);
        assert!(of(&"猫".repeat(300)).len() <= 180);
    }
}
