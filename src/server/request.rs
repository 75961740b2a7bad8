//! What clients ask for: one reading of the fields of every route that makes images.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use flux::engine::{AdapterFile, EmbeddedFiles, Recipe};
use flux::output::ImageFormat;
use flux::pipeline::Latents;
use serde::Deserialize;

use super::error::{ApiError, Result};
use super::fields::{Fields, missing, shown};
use super::masks;

/// The longest prompt, in characters, as OpenAI has it.
const MOST_PROMPT: usize = 32_000;
/// The most images of a request.
pub const MOST_IMAGES: u64 = 10;
/// The most steps.
const MOST_STEPS: u64 = 1000;
/// The shortest side, in pixels.
const LEAST_SIDE: usize = 64;

/// Images to make.
#[derive(Debug)]
pub struct Asked {
    /// As the client wrote it.
    pub model: Option<String>,
    /// Its files are those below.
    pub recipe: Recipe,
    pub files: EmbeddedFiles,
    /// By the names of the server.
    pub adapters: Vec<Lora>,
    pub count: usize,
    pub encoding: Encoding,
    pub previews: Previews,
    pub priority: Priority,
    /// From its arrival on.
    pub deadline: Option<Duration>,
    /// Whom the client asks for, told apart from others of the same key.
    pub user: Option<String>,
    /// With which part of an image before it begins, where one comes behind the other.
    pub feedback: Option<Feedback>,
    /// What has no effect.
    pub notes: Vec<String>,
    /// How the answer is given; other routes have their own ways.
    pub answer: Answer,
}

/// A part of an image before, with which one begins.
#[derive(Debug, Clone)]
pub struct Feedback {
    /// From 0 to below 1.
    pub part: f32,
    /// The final latents of the image before, where there was one.
    pub before: Option<Latents>,
}

/// How images become files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    pub format: ImageFormat,
    /// Of JPEG, from 1 to 100.
    pub quality: Option<u8>,
}

impl Encoding {
    pub fn name(self) -> &'static str {
        match self.format {
            ImageFormat::Png => "png",
            ImageFormat::Jpeg => "jpeg",
            ImageFormat::Webp => "webp",
        }
    }

    pub fn media_type(self) -> &'static str {
        match self.format {
            ImageFormat::Png => "image/png",
            ImageFormat::Jpeg => "image/jpeg",
            ImageFormat::Webp => "image/webp",
        }
    }
}

/// Which steps are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Previews {
    All,
    /// At most so many, spread over the steps; the first is that of the first step.
    AtMost(usize),
}

impl Previews {
    pub fn are_wanted(self) -> bool {
        self != Self::AtMost(0)
    }

    /// Which preview step `done` of `total` is; none comes after the last step.
    pub fn index(self, [done, total]: [usize; 2]) -> Option<usize> {
        let steps = total.saturating_sub(1);
        match self {
            Self::All => done.checked_sub(1),
            Self::AtMost(most) => (0..most.min(steps)).find(|index| 1 + index * steps / most.min(steps) == done),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    Low,
    #[default]
    Normal,
    High,
}

/// How OpenAI's routes answer.
#[derive(Debug, Default)]
pub struct Answer {
    pub as_url: bool,
    pub stream: bool,
    /// Sent back as it came.
    pub safety_identifier: Option<String>,
}

/// An adapter of the server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    pub name: String,
    #[serde(default = "as_it_was_made", alias = "strength", alias = "scale")]
    pub weight: f32,
}

impl From<&AdapterFile> for Lora {
    fn from(used: &AdapterFile) -> Self {
        Self { name: used.file.to_string_lossy().into_owned(), weight: used.strength }
    }
}

fn as_it_was_made() -> f32 {
    1.0
}

/// A file of a form.
#[derive(Debug)]
pub struct Upload {
    /// The name of the part.
    pub part: String,
    pub file_name: Option<String>,
    pub bytes: Bytes,
}

/// Which route is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Generations,
    Edits,
    Jobs,
}

impl Asked {
    /// Reads all fields of a request.
    ///
    /// Errors when one cannot be honoured, is missing, or is not known.
    pub fn read(mut fields: Fields, uploads: Vec<Upload>, route: Route, default_seed: u64) -> Result<Self> {
        let mut notes = Vec::new();
        let whole = if route == Route::Jobs { fields.value::<Recipe>("recipe")? } else { None };
        let (recipe, files, of_recipe) = match whole {
            Some(recipe) => {
                let (recipe, files) = with_named_files(recipe, uploads)?;
                let loras = recipe.adapters.iter().map(Lora::from).collect();
                (recipe, files, Some(loras))
            }
            None => {
                let (recipe, files) = with_files(read_recipe(&mut fields, default_seed)?, uploads, route)?;
                (recipe, files, None)
            }
        };
        let mut recipe = recipe;
        if of_recipe.is_none() && recipe.changes() && (recipe.width.take(), recipe.height.take()) != (None, None) {
            notes.push("`size` has no effect: the image that is changed gives it".to_string());
        }
        let adapters: Vec<Lora> = match of_recipe {
            Some(loras) => loras,
            None => fields.value("loras")?.unwrap_or_default(),
        };
        let asked = Self {
            model: fields.text("model")?,
            adapters,
            count: fields.whole("n", 1..=MOST_IMAGES)?.unwrap_or(1) as usize,
            encoding: read_encoding(&mut fields, &mut notes)?,
            previews: read_previews(&mut fields, route)?,
            priority: fields
                .word("priority", &[("high", Priority::High), ("normal", Priority::Normal), ("low", Priority::Low)])?
                .unwrap_or_default(),
            deadline: fields.number("deadline_s", 0.0..=1e6)?.map(Duration::from_secs_f64),
            user: fields.text("user")?,
            answer: Answer {
                as_url: fields.word("response_format", &[("b64_json", false), ("url", true)])?.unwrap_or(false),
                stream: fields.flag("stream")?.unwrap_or(false),
                safety_identifier: fields.text("safety_identifier")?,
            },
            feedback: None,
            recipe,
            files,
            notes,
        };
        take_without_effect(&mut fields)?;
        fields.finish()?;
        Ok(asked)
    }
}

fn read_recipe(fields: &mut Fields, default_seed: u64) -> Result<Recipe> {
    let prompt = fields.needed_text("prompt")?;
    let length = prompt.chars().count();
    if length > MOST_PROMPT {
        let message = format!("the prompt has {length} characters, expected at most {MOST_PROMPT}");
        return Err(ApiError::value("prompt", message));
    }
    let [width, height] = match fields.text("size")?.as_deref() {
        None | Some("auto") => [None, None],
        Some(size) => read_size(size)?.map(Some),
    };
    Ok(Recipe {
        prompt,
        negative: fields.text("negative_prompt")?,
        width,
        height,
        steps: fields.whole("steps", 1..=MOST_STEPS)?.map(|steps| steps as usize),
        seed: fields.whole("seed", 0..=u64::MAX)?.unwrap_or(default_seed),
        guidance: fields.number("guidance", 0.0..=1e4)?.map(|guidance| guidance as f32),
        strength: fields.number("strength", 0.0..=1.0)?,
        ..Recipe::default()
    })
}

/// `512x768`.
fn read_size(text: &str) -> Result<[usize; 2]> {
    let sides = text.split_once(['x', 'X']).map(|(width, height)| [width.parse().ok(), height.parse().ok()]);
    match sides {
        Some([Some(width), Some(height)]) if width >= LEAST_SIDE && height >= LEAST_SIDE => Ok([width, height]),
        _ => {
            let expected = format!("auto, or WIDTHxHEIGHT, each at least {LEAST_SIDE}");
            Err(ApiError::value("size", format!("`size` is `{}`, expected {expected}", shown(text))))
        }
    }
}

fn read_encoding(fields: &mut Fields, notes: &mut Vec<String>) -> Result<Encoding> {
    let formats = [
        ("png", Some(ImageFormat::Png)),
        ("jpeg", Some(ImageFormat::Jpeg)),
        ("jpg", Some(ImageFormat::Jpeg)),
        ("webp", Some(ImageFormat::Webp)),
        ("gif", None),
        ("svg", None),
    ];
    let format = fields.word("output_format", &formats)?.unwrap_or(Some(ImageFormat::Png));
    let format =
        format.ok_or_else(|| ApiError::bad("unsupported_value", "images are png, jpeg or webp").of("output_format"))?;
    let compression = fields.whole("output_compression", 0..=100)?;
    if compression.is_some_and(|compression| compression < 100) && format != ImageFormat::Jpeg {
        notes.push("`output_compression` has no effect: the image is lossless".to_string());
    }
    let quality = compression.filter(|_| format == ImageFormat::Jpeg).map(|quality| quality.clamp(1, 100) as u8);
    Ok(Encoding { format, quality })
}

fn read_previews(fields: &mut Fields, route: Route) -> Result<Previews> {
    let asked = fields.whole("partial_images", 0..=3)?;
    Ok(match (asked, route) {
        (Some(most), _) => Previews::AtMost(most as usize),
        (None, Route::Jobs) => Previews::All,
        (None, _) => Previews::AtMost(0),
    })
}

/// Fields that clients send and that change nothing here; what they may be is checked all the same.
fn take_without_effect(fields: &mut Fields) -> Result<()> {
    let words = |words: &[&'static str]| words.iter().map(|word| (*word, ())).collect::<Vec<_>>();
    fields.word("quality", &words(&["auto", "low", "medium", "high", "xhigh", "max", "standard", "hd"]))?;
    if fields.word("background", &[("auto", false), ("opaque", false), ("transparent", true)])? == Some(true) {
        return Err(
            ApiError::bad("unsupported_value", "images are opaque: `transparent` cannot be had").of("background")
        );
    }
    for field in ["moderation", "style", "input_fidelity", "complexity"] {
        fields.text(field)?;
    }
    Ok(())
}

/// Gives a recipe the images of a form.
fn with_files(recipe: Recipe, uploads: Vec<Upload>, route: Route) -> Result<(Recipe, EmbeddedFiles)> {
    let mut recipe = recipe;
    let mut files = BTreeMap::new();
    let mut mask = None;
    for upload in uploads {
        match &*upload.part {
            "image" | "image[]" if route != Route::Generations => {
                let name = file_name(&upload, recipe.inputs.len() + 1);
                files.insert(name.clone(), upload.bytes.to_vec());
                recipe.inputs.push(name);
            }
            "mask" if route != Route::Generations && mask.is_none() => mask = Some(upload),
            "mask" if mask.is_some() => return Err(ApiError::value("mask", "there are two masks, expected one")),
            _ => {
                let message = format!("the file `{}` is not known here", shown(&upload.part));
                return Err(ApiError::bad("unknown_parameter", message).of(upload.part));
            }
        }
    }
    if recipe.inputs.is_empty() && (route == Route::Edits || mask.is_some() || recipe.strength.is_some()) {
        return Err(missing("image"));
    }
    for name in &recipe.inputs {
        masks::check(&files[name], "image")?;
    }
    if let Some(upload) = mask {
        let name = PathBuf::from("mask.png");
        let first = &files[&recipe.inputs[0]];
        files.insert(name.clone(), masks::read(&upload.bytes, first)?);
        recipe.mask = Some(name);
    }
    Ok((recipe, files))
}

/// Gives a whole recipe its files: the parts `file`, in the order in which the recipe names them first.
///
/// Errors when there are fewer or more, or one is no image.
fn with_named_files(recipe: Recipe, uploads: Vec<Upload>) -> Result<(Recipe, EmbeddedFiles)> {
    if recipe.noise.is_some() || recipe.latents.is_some() || recipe.embeddings.is_some() {
        return Err(ApiError::bad("unsupported_value", "files of tensors are not taken").of("recipe"));
    }
    let mut names: Vec<PathBuf> = Vec::new();
    for (_, name) in recipe.files() {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_path_buf());
        }
    }
    if let Some(other) = uploads.iter().find(|upload| upload.part != "file") {
        let message = format!("the file `{}` is not known beside a recipe", shown(&other.part));
        return Err(ApiError::bad("unknown_parameter", message).of(other.part.clone()));
    }
    if uploads.len() != names.len() {
        let message = format!("the recipe names {} files, and {} are there", names.len(), uploads.len());
        return Err(ApiError::value("file", message));
    }
    let files: EmbeddedFiles = names.into_iter().zip(uploads.iter().map(|upload| upload.bytes.to_vec())).collect();
    files.values().try_for_each(|bytes| masks::check(bytes, "file"))?;
    Ok((recipe, files))
}

/// What a recipe calls an upload: the last part of its name, behind its number so that none comes twice.
fn file_name(upload: &Upload, number: usize) -> PathBuf {
    let given = upload.file_name.as_deref().unwrap_or_default();
    let last = given.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    let last: String = last.chars().filter(|c| plain(*c)).take(64).collect();
    PathBuf::from(if last.trim_matches('.').is_empty() { format!("{number}") } else { format!("{number}-{last}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Asked> {
        Asked::read(Fields::from_json(json.as_bytes())?, Vec::new(), Route::Generations, 7)
    }

    fn wrong(json: &str) -> (&'static str, String) {
        let error = read(json).unwrap_err();
        (error.code, error.param.unwrap_or_default().into_owned())
    }

    #[test]
    fn what_clients_send_is_read() {
        let asked = read(
            r#"{"prompt": "a cat", "model": "gpt-image-1", "n": 2, "size": "512x256", "quality": "high", "user": "u",
                "response_format": "url", "output_format": "jpeg", "output_compression": 80, "background": "auto",
                "moderation": "low", "style": "vivid", "stream": true, "partial_images": 2, "steps": 3, "seed": 5,
                "loras": [{"name": "ink", "weight": 0.5}, {"name": "oil"}], "priority": "high", "deadline_s": 2.5}"#,
        )
        .unwrap();
        let Recipe { width, height, steps, seed, .. } = asked.recipe;
        assert_eq!((width, height, steps, seed), (Some(512), Some(256), Some(3), 5));
        assert_eq!(asked.encoding, Encoding { format: ImageFormat::Jpeg, quality: Some(80) });
        assert_eq!((asked.count, asked.previews, asked.priority), (2, Previews::AtMost(2), Priority::High));
        assert_eq!(asked.adapters[1], Lora { name: "oil".to_string(), weight: 1.0 });
        assert!(asked.answer.as_url && asked.answer.stream && asked.notes.is_empty());
        let asked = read(r#"{"prompt": "x", "size": "auto", "n": null, "output_compression": 50}"#).unwrap();
        assert_eq!((asked.count, asked.recipe.seed, asked.recipe.width), (1, 7, None));
        assert_eq!(asked.notes.len(), 1, "a PNG has no quality");
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let x = |rest: &str| format!(r#"{{"prompt": "x", {rest}}}"#);
        for (json, code, param) in [
            ("{}".to_string(), "missing_required_parameter", "prompt"),
            (x(r#""n": 11"#), "invalid_value", "n"),
            (x(r#""size": "63x64""#), "invalid_value", "size"),
            (x(r#""size": "512""#), "invalid_value", "size"),
            (x(r#""output_format": "gif""#), "unsupported_value", "output_format"),
            (x(r#""output_format": "bmp""#), "invalid_value", "output_format"),
            (x(r#""background": "transparent""#), "unsupported_value", "background"),
            (x(r#""quality": "best""#), "invalid_value", "quality"),
            (x(r#""markup": "x""#), "unknown_parameter", "markup"),
            (x(r#""frame_count": 3"#), "unknown_parameter", "frame_count"),
            (x(r#""strength": 0.5"#), "missing_required_parameter", "image"),
            (x(r#""loras": [{"weight": 1}]"#), "invalid_value", "loras"),
            (x(r#""partial_images": 4"#), "invalid_value", "partial_images"),
            (format!(r#"{{"prompt": "{}"}}"#, "x".repeat(32_001)), "invalid_value", "prompt"),
        ] {
            assert_eq!(wrong(&json), (code, param.to_string()), "{json}");
        }
    }

    #[test]
    fn previews_are_spread_over_the_steps() {
        let shown = |previews: Previews, total| {
            (1..total).filter_map(|done| previews.index([done, total]).map(|index| (index, done))).collect::<Vec<_>>()
        };
        assert_eq!(shown(Previews::AtMost(1), 4), [(0, 1)]);
        assert_eq!(shown(Previews::AtMost(2), 4), [(0, 1), (1, 2)]);
        assert_eq!(shown(Previews::AtMost(3), 4), [(0, 1), (1, 2), (2, 3)]);
        assert_eq!(shown(Previews::AtMost(3), 2), [(0, 1)]);
        assert_eq!(shown(Previews::AtMost(3), 10), [(0, 1), (1, 4), (2, 7)]);
        assert_eq!(shown(Previews::AtMost(3), 1), []);
        assert_eq!(shown(Previews::All, 4), [(0, 1), (1, 2), (2, 3)]);
    }

    #[test]
    fn uploads_have_names_of_their_own_whatever_they_are_called() {
        let name = |given: Option<&str>| {
            let upload =
                Upload { part: "image".to_string(), file_name: given.map(str::to_string), bytes: Bytes::new() };
            file_name(&upload, 2).display().to_string()
        };
        assert_eq!(name(Some("cat.png")), "2-cat.png");
        assert_eq!(name(Some("../../etc/passwd")), "2-passwd");
        assert_eq!(name(Some("C:\\a\\b c.jpg")), "2-bc.jpg");
        assert_eq!([None, Some(".."), Some("-")].map(name), ["2", "2", "2--"]);
    }
}
