//! The lines of a file of many images: from text, JSON or a table to recipes.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

use flux::engine::Recipe;
use flux::pipeline::Request;
use flux::{Error, Result};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::table::{self, Row};
use crate::cli::BatchFormat;

/// The longest file, in bytes.
pub const MAX_FILE: usize = 1 << 30;
/// The most images of one line.
const MAX_COUNT: u64 = 10_000;
/// The keys of a line beside those of a recipe.
const OUTPUT: &str = "output";
const COUNT: &str = "n";
const SIZE: &str = "size";
const SEED: &str = "seed";

/// What a line asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The number of the line in the file, from 1.
    pub line: usize,
    /// Which of the lines that ask for something it is, from 1.
    pub index: usize,
    pub asked: Asked,
}

/// What a line says, where it says something that is right.
#[derive(Debug, Clone)]
pub enum Asked {
    Images(Box<Images>),
    Wrong(Error),
}

impl PartialEq for Asked {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Images(a), Self::Images(b)) => a == b,
            _ => false,
        }
    }
}

/// The images of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Images {
    /// Its seed is that of the first image, unless it is random.
    pub recipe: Recipe,
    pub seed_is_random: bool,
    pub count: usize,
    /// The name, where the line has one.
    pub output: Option<String>,
}

/// What is the same for all lines unless they say otherwise.
#[derive(Debug, Clone)]
pub struct Defaults {
    pub recipe: Recipe,
    /// The seed of the first line; the others have those that follow. None where seeds are random.
    pub seed: Option<u64>,
    pub count: usize,
}

/// The format of a file.
///
/// Errors when its name does not tell it.
pub fn format_of(file: &Path, bytes: &[u8]) -> Result<BatchFormat> {
    let ending = file.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    match ending.as_deref() {
        Some("txt") => Ok(BatchFormat::Txt),
        Some("jsonl" | "ndjson") => Ok(BatchFormat::Jsonl),
        Some("csv") => Ok(BatchFormat::Csv),
        _ if file == Path::new("-") => {
            let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
            Ok(if first == Some(&b'{') { BatchFormat::Jsonl } else { BatchFormat::Txt })
        }
        _ => Err(Error::usage("its name ends with none of .txt, .jsonl and .csv")
            .at_path(file)
            .hint("say what it is with `--format`")),
    }
}

/// The lines of a file that ask for something.
///
/// Errors when the file is too long, is not UTF-8, or is a table without names.
pub fn read(bytes: &[u8], format: BatchFormat, defaults: &Defaults) -> Result<Vec<Line>> {
    if bytes.len() > MAX_FILE {
        return Err(Error::usage(format!("the file is longer than {} MiB", MAX_FILE >> 20)).hint("divide it"));
    }
    let text = str::from_utf8(bytes).map_err(|e| {
        let line = bytes[..e.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        Error::usage(format!("line {line} is not valid UTF-8")).hint("save the file in UTF-8")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let rows: Vec<Row> = match format {
        BatchFormat::Txt => numbered(text)
            .filter(|(_, line)| !line.trim_start().starts_with('#'))
            .map(|(number, line)| (number, Ok(Map::from_iter([("prompt".to_string(), line.into())]))))
            .collect(),
        BatchFormat::Jsonl => numbered(text).map(|(number, line)| (number, object(line))).collect(),
        BatchFormat::Csv => table::rows(text)?,
    };
    let line = |(place, (line, row)): (usize, (usize, Result<Map<_, _>>))| {
        let asked = row.and_then(|row| images(row, place, defaults));
        let asked = asked.map_or_else(Asked::Wrong, |images| Asked::Images(Box::new(images)));
        Line { line, index: place + 1, asked }
    };
    Ok(rows.into_iter().enumerate().map(line).collect())
}

/// The lines that are not blank, with their numbers.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    lines.enumerate().filter(|(_, line)| !line.trim().is_empty()).map(|(place, line)| (place + 1, line))
}

fn object(line: &str) -> Result<Map<String, Value>> {
    let object: Object = serde_json::from_str(line).map_err(|e| {
        Error::usage(format!("the line is no object of JSON: {e}")).hint(r#"as in {"prompt": "a cat"}"#)
    })?;
    Ok(object.0)
}

/// An object of JSON none of whose keys is there twice: of two values one would be left out in silence.
struct Object(Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Object;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> std::result::Result<Object, A::Error> {
                let mut object = Map::new();
                while let Some((key, value)) = pairs.next_entry::<String, Value>()? {
                    if object.contains_key(&key) {
                        return Err(A::Error::custom(format!("`{key}` is there twice")));
                    }
                    object.insert(key, value);
                }
                Ok(Object(object))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// What a row asks for; it is the `place`-th, from 0.
fn images(mut row: Map<String, Value>, place: usize, defaults: &Defaults) -> Result<Images> {
    let output = match row.remove(OUTPUT) {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) => Some(name),
        Some(other) => return Err(wrong(OUTPUT, &other, "a name")),
    };
    let count = match row.remove(COUNT) {
        None | Some(Value::Null) => defaults.count,
        Some(value) => match value.as_u64().filter(|count| (1..=MAX_COUNT).contains(count)) {
            Some(count) => count as usize,
            None => return Err(wrong(COUNT, &value, "a number of images from 1 to 10000")),
        },
    };
    if let Some(size) = row.remove(SIZE).filter(|size| !size.is_null()) {
        let side = |text: &str| text.trim().parse::<u64>().ok();
        let sides = match &size {
            Value::String(text) => match text.split_once(['x', 'X']) {
                Some((width, height)) => side(width).zip(side(height)),
                None => side(text).map(|side| (side, side)),
            },
            side => side.as_u64().map(|side| (side, side)),
        };
        let (width, height) = sides.ok_or_else(|| wrong(SIZE, &size, "WIDTHxHEIGHT, or the side of a square"))?;
        for (side, pixels) in [("width", width), ("height", height)] {
            if row.insert(side.to_string(), pixels.into()).is_some_and(|given| !given.is_null()) {
                return Err(Error::usage(format!("`{side}` does not go with `{SIZE}`")).hint("leave one of them out"));
            }
        }
    }
    let has_random_seed = row.get(SEED).is_some_and(|seed| seed == "random" || seed.as_i64() == Some(-1));
    if has_random_seed {
        row.remove(SEED);
    }
    row.retain(|_, value| !value.is_null());
    let has_seed = row.contains_key(SEED);
    let seed = defaults.seed.filter(|_| !has_random_seed);
    let first = seed.map(|seed| seed.checked_add((place * defaults.count) as u64));
    let first = match first {
        Some(None) => return Err(Error::usage("the seeds exceed the largest one").hint("begin with a smaller one")),
        Some(Some(seed)) => seed,
        None => 0,
    };
    let base = Recipe { seed: first, ..defaults.recipe.clone() };
    let recipe = over(base, row)?;
    recipe.check()?;
    let Recipe { prompt, negative, .. } = &recipe;
    Request { negative: negative.clone(), ..Request::new(prompt, 0) }.check_prompt()?;
    if recipe.seed.checked_add(count as u64 - 1).is_none() {
        return Err(Error::usage(format!("seed {} is too large for {count} images", recipe.seed)));
    }
    if let Some((field, _)) =
        [("noise", &recipe.noise), ("latents", &recipe.latents)].iter().find(|(_, file)| file.is_some())
        && count > 1
    {
        return Err(Error::usage(format!(
            "`{COUNT}` is {count}, and each of the images would begin with the same `{field}`"
        ))
        .hint(format!("leave out `{COUNT}`, and give each image a line and a file of its own")));
    }
    Ok(Images { recipe, seed_is_random: !has_seed && seed.is_none(), count, output })
}

/// A recipe with these values, as a table has them, in place of its own.
pub fn varied(base: &Recipe, values: &[(&str, &str)]) -> Result<Recipe> {
    let row = values.iter().map(|(field, value)| Ok((field.to_string(), table::value(field, value)?)));
    let defaults = Defaults { recipe: base.clone(), seed: Some(base.seed), count: 1 };
    images(row.collect::<Result<_>>()?, 0, &defaults).map(|images| images.recipe)
}

/// A recipe with the fields of a row in place of its own.
fn over(base: Recipe, row: Map<String, Value>) -> Result<Recipe> {
    let cannot = |e: serde_json::Error| Error::usage(format!("the line cannot be read: {e}"));
    // A name that a field also has would stand beside the default's.
    let alone: Recipe = serde_json::from_value(Value::Object(row.clone())).map_err(cannot)?;
    let alone = serde_json::to_value(alone).map_err(cannot)?;
    let mut all = serde_json::to_value(base).map_err(cannot)?;
    if let (Some(all), Value::Object(alone)) = (all.as_object_mut(), alone) {
        // Features take the place of a prompt, and a prompt that of features.
        if alone.contains_key("prompt") {
            all.remove("embeddings");
        }
        all.extend(alone.into_iter().filter(|(key, _)| key != SEED || row.contains_key(SEED)));
    }
    serde_json::from_value(all).map_err(cannot)
}

fn wrong(key: &str, value: &Value, expected: &str) -> Error {
    Error::usage(format!("`{key}` is `{value}`, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Defaults {
        Defaults { recipe: Recipe { steps: Some(2), ..Recipe::default() }, seed: Some(10), count: 1 }
    }

    fn read_text(text: &str, format: BatchFormat) -> Vec<Line> {
        read(text.as_bytes(), format, &defaults()).unwrap()
    }

    fn images(line: &Line) -> &Images {
        match &line.asked {
            Asked::Images(images) => images,
            Asked::Wrong(error) => panic!("{error}"),
        }
    }

    fn error(line: &Line) -> String {
        match &line.asked {
            Asked::Images(_) => panic!("{line:?}"),
            Asked::Wrong(error) => error.to_string(),
        }
    }

    #[test]
    fn a_text_has_a_prompt_a_line() {
        let lines = read_text("\u{feff}a cat\r\n\n  \n# a note\nein Käse 🧀\n", BatchFormat::Txt);
        let read: Vec<_> = lines.iter().map(|line| (line.line, line.index, images(line))).collect();
        let prompts: Vec<_> = read.iter().map(|(.., images)| images.recipe.prompt.as_str()).collect();
        assert_eq!(prompts, ["a cat", "ein Käse 🧀"]);
        assert_eq!((read[1].0, read[1].1, read[1].2.recipe.seed, read[1].2.recipe.steps), (5, 2, 11, Some(2)));
    }

    #[test]
    fn an_object_has_any_field_of_a_recipe_and_the_flags_what_it_leaves_out() {
        let text = r#"{"prompt": "a", "seed": 7, "size": "64x32", "n": 3, "output": "a.webp"}
{"prompt": "b", "steps": 4, "negative_prompt": "fog", "seed": "random", "mask": null}
{"prompt": "c", "inputs": ["a.png"], "strength": 0.5, "schedule": "power:1.5"}"#;
        let lines = read_text(text, BatchFormat::Jsonl);
        let first = images(&lines[0]);
        assert_eq!((first.recipe.width, first.recipe.height, first.recipe.seed), (Some(64), Some(32), 7));
        assert_eq!((first.count, first.output.as_deref(), first.seed_is_random), (3, Some("a.webp"), false));
        let second = images(&lines[1]);
        assert_eq!((second.recipe.steps, second.recipe.negative.as_deref()), (Some(4), Some("fog")));
        assert!(second.seed_is_random);
        assert_eq!((images(&lines[2]).recipe.seed, images(&lines[2]).recipe.strength), (12, Some(0.5)));
    }

    #[test]
    fn a_line_that_is_wrong_is_alone_wrong() {
        let long = format!(r#"{{"prompt": "{}"}}"#, "x".repeat(70_000));
        let text = r#"{"prompt": "a"}
{"promt": "b"}
not JSON
{"prompt": "c", "feather": 4}
{"prompt": "d", "steps": "four"}
{"prompt": "e", "n": 0}
{"prompt": "f", "size": "large"}
{"prompt": "g", "seed": 18446744073709551615, "n": 2}
{"prompt": "h"}
{"prompt": "i", "prompt": "j"}
{"prompt": "k", "size": 64, "width": 32}
{"prompt": "l", "latents": "l.safetensors", "n": 2}
LONG
["m", null, 64]"#;
        let lines = read_text(&text.replace("LONG", &long), BatchFormat::Jsonl);
        assert_eq!((images(&lines[0]).recipe.seed, images(&lines[8]).recipe.seed), (10, 18));
        for (line, words) in [
            (1, "promt"),
            (2, "no object of JSON"),
            (3, "`feather` has no meaning without `inputs`"),
            (4, "four"),
            (5, "from 1 to 10000"),
            (6, "WIDTHxHEIGHT"),
            (7, "too large"),
            (9, "`prompt` is there twice"),
            (10, "`width` does not go with `size`"),
            (11, "the same `latents`"),
            (12, "expected at most 65536"),
            (13, "no object of JSON"),
        ] {
            assert!(error(&lines[line]).contains(words), "{}", error(&lines[line]));
        }
    }

    #[test]
    fn without_a_seed_they_are_random() {
        let random = Defaults { seed: None, ..defaults() };
        let lines =
            read(b"{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"seed\": 3}", BatchFormat::Jsonl, &random).unwrap();
        assert_eq!([0, 1].map(|line| images(&lines[line]).seed_is_random), [true, false]);
    }

    #[test]
    fn the_format_is_what_the_name_says() {
        let of = |name: &str, bytes: &[u8]| format_of(Path::new(name), bytes).map_err(|e| e.to_string());
        assert_eq!(of("a.TXT", b"{"), Ok(BatchFormat::Txt));
        assert_eq!(of("a.jsonl", b""), Ok(BatchFormat::Jsonl));
        assert_eq!([of("-", b" {}"), of("-", b"a")], [Ok(BatchFormat::Jsonl), Ok(BatchFormat::Txt)]);
        assert!(of("prompts", b"a").is_err_and(|e| e.contains("--format")));
    }

    #[test]
    fn what_is_no_text_is_told_with_its_line() {
        let error = read(b"a\nb\xff", BatchFormat::Txt, &defaults()).unwrap_err().to_string();
        assert!(error.contains("line 2 is not valid UTF-8"), "{error}");
    }
}
