//! Lines of a batch file: from text, JSON or a table to recipes.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

use flux::engine::Recipe;
use flux::pipeline::Request;
use flux::{Error, Result};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::fields::{self, COUNT, FIELDS, META, OUTPUT, RECIPE, SIZE, UPSAMPLE};
use super::table::{self, Row, Table};
use super::{flags, text};
use crate::cli::BatchFormat;

/// Maximum size of a file, in bytes.
pub const MAX_FILE: usize = 1 << 30;
/// Maximum number of images of a line.
const MAX_COUNT: u64 = 10_000;
const SEED: &str = "seed";

/// A parsed file.
#[derive(Debug)]
pub struct List {
    pub lines: Vec<Line>,
    /// The keys of its lines, which may be used as fields in file names.
    pub columns: Vec<String>,
    /// Table columns that are not fields of a recipe.
    pub meta: Vec<String>,
}

/// A parsed line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The line number in the file, from 1.
    pub line: usize,
    /// The number among the lines that are not empty, from 1.
    pub index: usize,
    pub asked: Asked,
}

/// The result of parsing a line.
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
    /// The recipe, with the seed of the first image unless the seed is random.
    pub recipe: Recipe,
    /// True if the files contain no recipe.
    pub no_recipe: bool,
    pub seed_is_random: bool,
    pub count: usize,
    /// `true` if a language model rewrites the prompt.
    pub upsample: bool,
    /// The file name, if the line has one.
    pub output: Option<String>,
    pub meta: Map<String, Value>,
    /// The values of the line as text, for file names.
    pub columns: Vec<(String, String)>,
}

/// Defaults for all lines.
#[derive(Debug, Clone)]
pub struct Defaults {
    pub recipe: Recipe,
    pub no_recipe: bool,
    /// The seed of the first line, counted up for the following lines. `None` if seeds are random.
    pub seed: Option<u64>,
    pub count: usize,
    /// `true` if a language model rewrites prompts.
    pub upsample: bool,
}

/// Returns the format of a file.
///
/// Errors when it cannot be determined from the name.
pub fn format_of(file: &Path, bytes: &[u8]) -> Result<BatchFormat> {
    let ending = file.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    match ending.as_deref() {
        Some("txt") => Ok(BatchFormat::Txt),
        Some("jsonl" | "ndjson") => Ok(BatchFormat::Jsonl),
        Some("csv" | "tsv") => Ok(BatchFormat::Csv),
        _ if file == Path::new("-") => {
            let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
            Ok(if first == Some(&b'{') { BatchFormat::Jsonl } else { BatchFormat::Txt })
        }
        _ => Err(Error::usage("the file name does not end with .txt, .jsonl or .csv")
            .at_path(file)
            .hint("set the format with `--format`")),
    }
}

/// Parses the lines of a file that are not empty.
///
/// Errors if the file is too large, is not text, or is a table with an invalid header line.
pub fn read(bytes: &[u8], format: BatchFormat, defaults: &Defaults) -> Result<List> {
    if bytes.len() > MAX_FILE {
        return Err(Error::usage(format!("the file is longer than {} MiB", MAX_FILE >> 20)).hint("split it"));
    }
    let text = text::decode(bytes)?;
    let prompt = |line: &str| Ok(Map::from_iter([("prompt".to_string(), line.into())]));
    let Table { rows, mut columns, meta } = match format {
        BatchFormat::Txt => Table::from_rows(
            numbered(&text)
                .filter(|(_, line)| !line.trim_start().starts_with('#'))
                .map(|(number, line)| (number, flags::row(line).unwrap_or_else(|| prompt(line))))
                .collect(),
        ),
        BatchFormat::Jsonl => Table::from_rows(numbered(&text).map(|(number, line)| (number, object(line))).collect()),
        BatchFormat::Csv => table::read(&text)?,
    };
    let line = |(place, (line, row)): (usize, Row)| {
        let asked = row.and_then(|row| images(row, place, defaults));
        let asked = asked.map_or_else(Asked::Wrong, |images| Asked::Images(Box::new(images)));
        Line { line, index: place + 1, asked }
    };
    let lines: Vec<_> = rows.into_iter().enumerate().map(line).collect();
    for line in &lines {
        if let Asked::Images(images) = &line.asked {
            let new = images.columns.iter().filter(|(name, _)| !columns.contains(name)).map(|(name, _)| name.clone());
            columns.extend(new.collect::<Vec<_>>());
        }
    }
    Ok(List { lines, columns, meta })
}

/// Returns the lines that are not blank, with their numbers.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    lines.enumerate().filter(|(_, line)| !line.trim().is_empty()).map(|(place, line)| (place + 1, line))
}

fn object(line: &str) -> Result<Map<String, Value>> {
    let object: Object = serde_json::from_str(line).map_err(|e| {
        Error::usage(format!("the line is not a JSON object: {e}")).hint(r#"as in {"prompt": "a cat"}"#)
    })?;
    Ok(object.0)
}

/// A JSON object without duplicate keys, which would otherwise be dropped silently.
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
                        return Err(A::Error::custom(format!("`{key}` appears twice")));
                    }
                    object.insert(key, value);
                }
                Ok(Object(object))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// Parses a row. `place` is its index, from 0.
fn images(mut row: Map<String, Value>, place: usize, defaults: &Defaults) -> Result<Images> {
    let meta = match row.remove(META) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(meta)) => meta,
        Some(other) => return Err(wrong(META, &other, "an object")),
    };
    if let Some(unknown) = row.keys().find(|key| !FIELDS.contains(&key.as_str())) {
        return Err(Error::usage(format!("unknown field `{unknown}`"))
            .hint(format!("the fields are {}, and `{META}` for values to keep in the manifest", fields::names())));
    }
    let columns = row.iter().chain(&meta).filter_map(|(name, value)| Some((name.clone(), cell(value)?))).collect();
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
    let no_recipe = match row.remove(RECIPE) {
        None | Some(Value::Null) => defaults.no_recipe,
        Some(Value::Bool(has_recipe)) => !has_recipe,
        Some(other) => return Err(wrong(RECIPE, &other, "true or false")),
    };
    let upsample = match row.remove(UPSAMPLE) {
        None | Some(Value::Null) => defaults.upsample,
        Some(Value::Bool(upsample)) => upsample,
        Some(other) => return Err(wrong(UPSAMPLE, &other, "true or false")),
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
                return Err(
                    Error::usage(format!("`{side}` cannot be used with `{SIZE}`")).hint("leave one of them out")
                );
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
        Some(None) => return Err(Error::usage("the seeds exceed the maximum").hint("start with a smaller seed")),
        Some(Some(seed)) => seed,
        None => 0,
    };
    let base = Recipe { seed: first, ..defaults.recipe.clone() };
    let (says_prompt, is_blank) = (row.contains_key("prompt"), |text: &str| text.trim().is_empty());
    let recipe = over(base, row)?;
    let recipe = if upsample { recipe.before_upsampling() } else { recipe };
    if recipe.embeddings.is_none() && (is_blank(&recipe.prompt) && !(says_prompt && recipe.prompt.is_empty())) {
        return Err(
            Error::usage("the line has no prompt").hint(r#"use `"prompt": ""` in a JSON line for an empty prompt"#)
        );
    }
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
        return Err(Error::usage(format!("`{COUNT}` is {count}, but every image would start from the same `{field}`"))
            .hint(format!("leave out `{COUNT}`, and give each image its own line and file")));
    }
    let seed_is_random = !has_seed && seed.is_none();
    Ok(Images { recipe, no_recipe, seed_is_random, count, upsample, output, meta, columns })
}

/// Formats a value for a file name.
fn cell(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Returns a recipe with some fields replaced, in the notation of a table.
pub fn varied(base: &Recipe, values: &[(&str, &str)]) -> Result<Recipe> {
    let row = values.iter().map(|(field, value)| Ok((field.to_string(), table::value(field, value, ',')?)));
    let defaults =
        Defaults { recipe: base.clone(), no_recipe: false, seed: Some(base.seed), count: 1, upsample: false };
    let images = images(row.collect::<Result<_>>()?, 0, &defaults)?;
    if images.upsample {
        return Err(Error::usage(format!("`{UPSAMPLE}` cannot vary")).hint("pass `--upsample` for all images"));
    }
    Ok(images.recipe)
}

/// Returns a recipe with the fields of a row in place of its own.
fn over(base: Recipe, row: Map<String, Value>) -> Result<Recipe> {
    let cannot = |e: serde_json::Error| Error::usage(format!("cannot read the line: {e}"));
    let read = |row: Map<String, Value>| serde_json::from_value::<Recipe>(Value::Object(row));
    // Parsed on its own first, so that an alias in the row replaces the default's field instead of duplicating it.
    let alone = read(row.clone()).map_err(|e| {
        // The error of a value does not name its field.
        let is_wrong =
            |(field, value): &(&String, &Value)| read(Map::from_iter([((*field).clone(), (*value).clone())])).is_err();
        match row.iter().find(is_wrong) {
            Some((field, _)) => Error::usage(format!("cannot read the line: `{field}`: {e}")),
            None => cannot(e),
        }
    })?;
    let alone = serde_json::to_value(alone).map_err(cannot)?;
    let mut all = serde_json::to_value(base).map_err(cannot)?;
    if let (Some(all), Value::Object(alone)) = (all.as_object_mut(), alone) {
        // A prompt and embeddings replace each other, and a prompt replaces a template and the request of a language
        // model.
        if alone.contains_key("prompt") {
            all.remove("embeddings");
            all.remove("template");
            all.remove("upsampled");
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
        let recipe = Recipe { steps: Some(2), ..Recipe::default() };
        Defaults { recipe, no_recipe: false, seed: Some(10), count: 1, upsample: false }
    }

    fn read_text(text: &str, format: BatchFormat) -> Vec<Line> {
        read(text.as_bytes(), format, &defaults()).unwrap().lines
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
            (1, "`no_self_reference`, `sparse`"),
            (2, "not a JSON object"),
            (3, "`feather` requires `inputs`"),
            (4, "four"),
            (5, "from 1 to 10000"),
            (6, "WIDTHxHEIGHT"),
            (7, "too large"),
            (9, "`prompt` appears twice"),
            (10, "`width` cannot be used with `size`"),
            (11, "the same `latents`"),
            (12, "expected at most 65536"),
            (13, "not a JSON object"),
        ] {
            assert!(error(&lines[line]).contains(words), "{}", error(&lines[line]));
        }
    }

    #[test]
    fn the_error_of_a_value_names_its_field_in_plain_words() {
        for (value, words) in [
            (r#""extend": "1,2""#, "`extend`: invalid type: string \"1,2\", expected an object with left, top, right"),
            (r#""adapters": ["x"]"#, "`adapters`: invalid type: string \"x\", expected an object with file and"),
            (r#""controls": [1]"#, "`controls`: invalid type: integer `1`, expected an object with kind and input"),
            (r#""schedule": "sigmas:2""#, "`schedule`: a noise level is 2"),
            (r#""resize": "x""#, "`resize`: expected the longer side or WIDTHxHEIGHT"),
        ] {
            let told = error(&read_text(&format!(r#"{{"prompt": "a", {value}}}"#), BatchFormat::Jsonl)[0]);
            assert!(told.contains(words) && told.lines().count() == 1, "{told}");
        }
    }

    #[test]
    fn the_fields_are_those_of_a_recipe() {
        let unknown = serde_json::from_str::<Recipe>(r#"{"x": 1}"#).unwrap_err().to_string();
        let (_, expected) = unknown.split_once("expected one of ").unwrap();
        let own = [SIZE, OUTPUT, COUNT, RECIPE, UPSAMPLE];
        let mut expected: Vec<_> = expected.split('`').skip(1).step_by(2).chain(own).collect();
        let mut fields = FIELDS.clone();
        expected.sort();
        fields.sort();
        assert_eq!(fields, expected);
    }

    #[test]
    fn a_line_without_a_prompt_is_wrong_unless_it_says_so() {
        let lines = read_text(
            "{\"seed\": 1}\n{\"prompt\": \"  \"}\n{\"prompt\": \"\"}\n{\"embeddings\": \"e\"}",
            BatchFormat::Jsonl,
        );
        assert_eq!([error(&lines[0]), error(&lines[1])].map(|why| why.contains("no prompt")), [true; 2]);
        assert_eq!(images(&lines[2]).recipe.prompt, "");
        images(&lines[3]);
        assert!(error(&read_text("prompt,seed\n,5\n", BatchFormat::Csv)[0]).contains("no prompt"));
    }

    #[test]
    fn a_line_has_further_values_in_meta() {
        let lines = read_text(r#"{"prompt": "a", "meta": {"scene": 7, "tags": ["x"]}}"#, BatchFormat::Jsonl);
        let (meta, columns) = (&images(&lines[0]).meta, &images(&lines[0]).columns);
        assert_eq!(Value::Object(meta.clone()), serde_json::json!({"scene": 7, "tags": ["x"]}));
        assert!(columns.contains(&("scene".to_string(), "7".to_string())));
        assert!(error(&read_text(r#"{"prompt": "a", "meta": 7}"#, BatchFormat::Jsonl)[0]).contains("`meta`"));
    }

    #[test]
    fn without_a_seed_they_are_random() {
        let random = Defaults { seed: None, ..defaults() };
        let lines =
            read(b"{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"seed\": 3}", BatchFormat::Jsonl, &random).unwrap().lines;
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
}
