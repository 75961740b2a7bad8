//! Parsing of the request fields, shared by all routes that generate images.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use flux::engine::expand::Expansion;
use flux::engine::{AdapterFile, EmbeddedFiles, Priority, Recipe};
use flux::input;
use flux::output::ImageFormat;
use flux::pipeline::Latents;
use flux::stage::CancelFlag;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::error::{ApiError, Result, shown};
use crate::jobs::admission::{Estimate, Preparation};
use crate::jobs::fields::{Faults, Fields, missing, unknown};
use crate::jobs::masks;

/// Max characters of a prompt, as in OpenAI's API.
const MAX_PROMPT: usize = 32_000;
/// The field that asks for a prompt written by a language model.
pub const UPSAMPLE: &str = "upsample";
/// Max adapters of a request.
const MAX_ADAPTERS: usize = 32;
/// Max images of a request.
pub const MAX_IMAGES: u64 = 10;
/// Max steps.
const MAX_STEPS: u64 = 1000;
/// The min and max side in pixels. The model's own limits are checked later.
const MIN_SIDE: usize = 64;
const MAX_SIDE: u64 = 1 << 20;
/// The min ratio of width to height in `aspect_ratio`. The max is its inverse.
const MIN_RATIO: f64 = 1.0 / 16.0;

/// A parsed request for images.
#[derive(Debug)]
pub struct Asked {
    /// The model name as the client wrote it.
    pub model: Option<String>,
    /// The recipe. It names the files below.
    pub recipe: Recipe,
    /// The way to expand the prompt, if requested.
    pub expansion: Option<Expansion>,
    pub files: EmbeddedFiles,
    /// The remaining work on the files.
    pub preparation: Option<Preparation>,
    /// `true` to let a language model rewrite the prompt; `None` leaves the decision to the server.
    pub upsample: Option<bool>,
    /// Adapters, named by the client or, in a recipe, by the file.
    pub adapters: Vec<Lora>,
    pub count: usize,
    pub encoding: Encoding,
    /// `true` if the files contain no recipe.
    pub no_recipe: bool,
    pub previews: Previews,
    pub priority: Priority,
    /// The time limit, counted from arrival.
    pub deadline: Option<Duration>,
    /// The end user, to distinguish users of one key.
    pub user: Option<String>,
    /// The previous image to start from, in a chain of live images.
    pub feedback: Option<Feedback>,
    /// Notes about options without effect.
    pub notes: Vec<String>,
    /// The form of the response on OpenAI's routes.
    pub answer: Answer,
}

/// The part of the previous image that an image starts from.
#[derive(Debug, Clone)]
pub struct Feedback {
    /// The weight of the previous image, from 0 to below 1.
    pub part: f32,
    /// The final latents of the previous image, if there was one.
    pub before: Option<Latents>,
}

/// The file format of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    pub format: ImageFormat,
    /// The JPEG quality, from 1 to 100.
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

/// The steps to preview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Previews {
    All,
    /// At most this number of previews, spread over the steps. The first one is that of the first step.
    AtMost(usize),
}

impl Previews {
    pub fn are_wanted(self) -> bool {
        self != Self::AtMost(0)
    }

    /// Returns the index of the preview of step `done` of `total`, if it has one. The last step has none.
    pub fn index(self, [done, total]: [usize; 2]) -> Option<usize> {
        let steps = total.saturating_sub(1);
        match self {
            Self::All => done.checked_sub(1),
            Self::AtMost(most) => (0..most.min(steps)).find(|index| 1 + index * steps / most.min(steps) == done),
        }
    }
}

/// The form of a response on OpenAI's routes.
#[derive(Debug, Default)]
pub struct Answer {
    pub as_url: bool,
    /// `true` if the client states no format, but clients of its model expect URLs.
    pub is_url_expected: bool,
    pub stream: bool,
    /// Returned unchanged.
    pub safety_identifier: Option<String>,
}

/// An adapter of the server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    #[serde(alias = "path", alias = "lora_name", alias = "id")]
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

/// The requested route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Generations,
    Edits,
    Jobs,
}

/// The defaults of a request.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    pub seed: u64,
    /// Pixels of an image with an `aspect_ratio`.
    pub pixels: usize,
}

impl Asked {
    /// Errors if a prompt is too long, or there are too many images or adapters.
    pub fn check(&self) -> Result<()> {
        let Recipe { prompt, negative, inputs, .. } = &self.recipe;
        for (field, text) in [("prompt", Some(prompt)), ("negative_prompt", negative.as_ref())] {
            check_length(field, text.map_or("", String::as_str))?;
        }
        let most = flux::pipeline::MAX_REFERENCES;
        for (field, count, most) in [("image", inputs.len(), most), ("loras", self.adapters.len(), MAX_ADAPTERS)] {
            if count > most {
                return Err(ApiError::value(field, format!("`{field}` has {count} values, expected at most {most}")));
            }
        }
        Ok(())
    }

    /// Returns the work of reading the images, estimated from their headers.
    pub fn estimate(&self) -> Estimate {
        let mut estimate = self.preparation.as_ref().map_or(Estimate::default(), |preparation| preparation.estimate);
        for (_, file) in self.recipe.files() {
            let size = self.files.get(file).and_then(|bytes| input::file_size(bytes).ok());
            estimate += size.map_or(Estimate::default(), read_estimate);
        }
        let first = self.recipe.inputs.first().and_then(|file| input::upright_size(self.files.get(file)?).ok());
        if let Some((sides, size)) = self.recipe.extend.zip(first) {
            let [width, height] = sides.grown(size).map(|side| side as u64);
            estimate += Estimate::scale(width.saturating_mul(height).saturating_mul(2));
        }
        estimate
    }

    /// Does the remaining work on the files.
    ///
    /// Errors if that fails or is cancelled.
    pub fn prepare(&mut self, cancel: &CancelFlag) -> Result<()> {
        self.preparation.take().map_or(Ok(()), |preparation| (preparation.work)(&mut self.files, cancel))
    }

    /// Parses all fields of a request.
    ///
    /// Errors if any field is invalid, missing or unknown. The error lists all of them.
    pub fn read(fields: Fields, uploads: Vec<Upload>, route: Route, defaults: Defaults) -> Result<Self> {
        let (mut notes, mut faults) = (Vec::new(), Faults::default());
        let mut fields = fields.with_own_names();
        // On the route of jobs, the field may also be a complete recipe.
        let is_whole = route == Route::Jobs && !fields.is_flag("recipe");
        let whole = if is_whole { fields.value::<Recipe>("recipe")? } else { None };
        let no_recipe = faults.ok(fields.flag("recipe")) == Some(false);
        let (recipe, files, mask, adapters) = match whole {
            Some(recipe) => {
                let (recipe, files) = with_named_files(recipe, uploads)?;
                let adapters = recipe.adapters.iter().map(Lora::from).collect();
                (recipe, files, None, adapters)
            }
            None => {
                let mut recipe = read_recipe(&mut fields, &mut faults, defaults);
                let (files, mask) = add_files(&mut recipe, uploads, route, &mut faults);
                if recipe.changes() && (recipe.width.take(), recipe.height.take()) != (None, None) {
                    notes.push("`size` has no effect: the result has the size of the edited image".to_string());
                }
                (recipe, files, mask, faults.ok(read_loras(&mut fields)).unwrap_or_default())
            }
        };
        let model = faults.ok(fields.text("model"));
        let expand_seed = faults.ok(fields.seed("expand_seed"));
        let expands = faults.ok(fields.flag("expand")).unwrap_or(expand_seed.is_some());
        let priorities = [("high", Priority::High), ("normal", Priority::Normal), ("low", Priority::Low)];
        let mut asked = Self {
            expansion: expands.then(|| Expansion { seed: expand_seed, ..Expansion::default() }),
            adapters,
            upsample: faults.ok(fields.flag(UPSAMPLE)),
            count: faults.ok(fields.whole("n", 1..=MAX_IMAGES)).unwrap_or(1) as usize,
            encoding: read_encoding(&mut fields, &mut faults, &mut notes),
            no_recipe,
            previews: read_previews(&mut fields, &mut faults, route),
            priority: faults.ok(fields.word("priority", &priorities)).unwrap_or_default(),
            deadline: faults.ok(fields.number("deadline_s", 0.0..=1e6)).map(Duration::from_secs_f64),
            user: faults.ok(fields.text("user")),
            answer: read_answer(&mut fields, &mut faults, model.as_deref()),
            feedback: None,
            model,
            recipe,
            files,
            preparation: None,
            notes,
        };
        take_without_effect(&mut fields, &mut faults);
        faults.extend(fields.finish());
        faults.check()?;
        if let Some(mask) = mask {
            let first = &asked.files[&asked.recipe.inputs[0]];
            asked.notes.extend(masks::size_note(&mask.bytes, first));
            asked.preparation = Some(masks::prepare(&mask.bytes)?);
            asked.files.insert(PathBuf::from(masks::NAME), mask.bytes.to_vec());
        }
        Ok(asked)
    }
}

/// Errors if a prompt is too long.
fn check_length(field: &'static str, text: &str) -> Result<()> {
    let length = text.chars().count();
    if length <= MAX_PROMPT {
        return Ok(());
    }
    let message = format!("the prompt has {length} characters, expected at most {MAX_PROMPT}");
    Err(ApiError::value(field, message))
}

fn read_recipe(fields: &mut Fields, faults: &mut Faults, defaults: Defaults) -> Recipe {
    let prompt = faults.ok(fields.needed_text("prompt").map(Some)).unwrap_or_default();
    faults.extend(check_length("prompt", &prompt));
    let size = read_size(fields, faults, defaults.pixels);
    let [width, height] = faults.ok(size).map_or([None, None], |size| size.map(Some));
    Recipe {
        prompt,
        boxes: faults.ok(fields.value("boxes")).unwrap_or_default(),
        negative: faults.ok(fields.text("negative_prompt")),
        width,
        height,
        steps: faults.ok(fields.whole("steps", 1..=MAX_STEPS)).map(|steps| steps as usize),
        seed: faults.ok(fields.seed("seed")).unwrap_or(defaults.seed),
        guidance: faults.ok(fields.number("guidance", 0.0..=1e4)).map(|guidance| guidance as f32),
        strength: faults.ok(fields.number("strength", 0.0..=1.0)),
        full_size: faults.ok(fields.flag("full_size")).unwrap_or(false),
        ..Recipe::default()
    }
}

/// Returns the size from `size`, from `width` and `height`, or from `aspect_ratio` at about `pixels` pixels.
fn read_size(fields: &mut Fields, faults: &mut Faults, pixels: usize) -> Result<Option<[usize; 2]>> {
    let mut side = |name| faults.ok(fields.whole(name, MIN_SIDE as u64..=MAX_SIDE)).map(|side| side as usize);
    let sides = [side("width"), side("height")];
    let size = fields.given("size").map(|(name, value)| size_of(&name, &value)).transpose()?.flatten();
    let ratio = fields.given("aspect_ratio").map(|(name, value)| ratio_of(&name, &value)).transpose()?.flatten();
    match (size, sides) {
        (None, [None, None]) => Ok(ratio.map(|ratio| with_ratio(ratio, pixels))),
        (None, [Some(width), Some(height)]) => Ok(Some([width, height])),
        (None, [None, _]) => Err(missing("width")),
        (None, [_, None]) => Err(missing("height")),
        (Some([width, height]), [across, down])
            if across.is_none_or(|across| across == width) && down.is_none_or(|down| down == height) =>
        {
            Ok(Some([width, height]))
        }
        (Some(_), _) => Err(ApiError::value("size", "`size` differs from `width` and `height`: pass one of the two")),
    }
}

/// Parses `512x768`, or an object with both sides. `auto` gives `None`.
fn size_of(name: &str, value: &Value) -> Result<Option<[usize; 2]>> {
    let sides = match value {
        Value::String(text) if text.trim().eq_ignore_ascii_case("auto") => return Ok(None),
        Value::String(text) => {
            text.split_once(['x', 'X', '×', '*']).map(|(width, height)| [width, height].map(side_of))
        }
        Value::Object(sides) => Some(["width", "height"].map(|side| {
            let side = sides.get(side)?;
            side.as_u64().map_or_else(|| side_of(side.as_str()?), |side| usize::try_from(side).ok())
        })),
        _ => None,
    };
    match sides {
        Some([Some(width), Some(height)]) if width >= MIN_SIDE && height >= MIN_SIDE => Ok(Some([width, height])),
        _ => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            let expected = format!("auto, or WIDTHxHEIGHT, each at least {MIN_SIDE}");
            let message = format!("`{}` is `{}`, expected {expected}", shown(name), shown(&text));
            Err(ApiError::value(name.to_string(), message))
        }
    }
}

fn side_of(text: &str) -> Option<usize> {
    text.trim().parse().ok()
}

/// Parses `16:9`. `auto` gives `None`, and so does the ratio of the input image, which is the default.
fn ratio_of(name: &str, value: &Value) -> Result<Option<[f64; 2]>> {
    let text = value.as_str().unwrap_or_default().trim();
    if ["auto", "match_input_image"].contains(&text) {
        return Ok(None);
    }
    let sides = text.split_once([':', '/', 'x']).map(|(width, height)| [width, height].map(|side| side.trim().parse()));
    match sides {
        Some([Ok(width), Ok(height)]) if (MIN_RATIO..=1.0 / MIN_RATIO).contains(&(width / height)) && width > 0.0 => {
            Ok(Some([width, height]))
        }
        _ => {
            let message = format!("`{}` is {}, expected a ratio such as 16:9", shown(name), shown(&value.to_string()));
            Err(ApiError::value(name.to_string(), message))
        }
    }
}

/// Returns sides of this ratio in multiples of 16, with about `pixels` pixels.
fn with_ratio([width, height]: [f64; 2], pixels: usize) -> [usize; 2] {
    let unit = (pixels as f64 / (width * height)).sqrt();
    [width, height].map(|side| ((side * unit / 16.0).round() as usize * 16).max(MIN_SIDE))
}

/// Parses adapters: a list, or a single one. Each is an object, or a text with an optional weight after a colon. An
/// object may also map names to weights.
fn read_loras(fields: &mut Fields) -> Result<Option<Vec<Lora>>> {
    let Some((name, value)) = fields.given("loras") else { return Ok(None) };
    let wrong = || {
        let message = format!("`{}` is not a list of objects with a `name` and a `weight`", shown(&name));
        ApiError::value(name.clone(), message)
    };
    let value = match value {
        Value::String(text) if text.trim_start().starts_with(['[', '{']) => {
            serde_json::from_str(&text).map_err(|_| wrong())?
        }
        value => value,
    };
    let items = match value {
        Value::Array(items) => items,
        Value::Object(weights) if !weights.is_empty() && weights.values().all(Value::is_number) => {
            weights.into_iter().map(|(name, weight)| json!({"name": name, "weight": weight})).collect()
        }
        one => vec![one],
    };
    let read = |item: Value| match item {
        Value::String(text) => {
            let weighted = text.rsplit_once(':').and_then(|(name, weight)| Some((name, weight.trim().parse().ok()?)));
            let (name, weight) = weighted.unwrap_or((&text, as_it_was_made()));
            Ok(Lora { name: name.trim().to_string(), weight })
        }
        item => serde_json::from_value(item).map_err(|_| wrong()),
    };
    items.into_iter().map(read).collect::<Result<_>>().map(Some)
}

fn read_encoding(fields: &mut Fields, faults: &mut Faults, notes: &mut Vec<String>) -> Encoding {
    let formats = [
        ("png", Some(ImageFormat::Png)),
        ("jpeg", Some(ImageFormat::Jpeg)),
        ("jpg", Some(ImageFormat::Jpeg)),
        ("webp", Some(ImageFormat::Webp)),
        ("image/png", Some(ImageFormat::Png)),
        ("image/jpeg", Some(ImageFormat::Jpeg)),
        ("image/webp", Some(ImageFormat::Webp)),
        ("gif", None),
        ("svg", None),
    ];
    let format = faults.ok(fields.word("output_format", &formats)).unwrap_or(Some(ImageFormat::Png));
    let format = format.unwrap_or_else(|| {
        faults.add(ApiError::bad("unsupported_value", "expected png, jpeg or webp").with_param("output_format"));
        ImageFormat::Png
    });
    let compression = faults.ok(fields.whole("output_compression", 0..=100));
    if compression.is_some_and(|compression| compression < 100) && format != ImageFormat::Jpeg {
        notes.push("`output_compression` has no effect: the image is lossless".to_string());
    }
    let quality = compression.filter(|_| format == ImageFormat::Jpeg).map(|quality| quality.clamp(1, 100) as u8);
    Encoding { format, quality }
}

fn read_previews(fields: &mut Fields, faults: &mut Faults, route: Route) -> Previews {
    match (faults.ok(fields.whole("partial_images", 0..=3)), route) {
        (Some(most), _) => Previews::AtMost(most as usize),
        (None, Route::Jobs) => Previews::All,
        (None, _) => Previews::AtMost(0),
    }
}

/// Parses the form of the response. OpenAI returns URLs for DALL-E, and base64 for its newer models.
fn read_answer(fields: &mut Fields, faults: &mut Faults, model: Option<&str>) -> Answer {
    let format = faults.ok(fields.word("response_format", &[("b64_json", false), ("base64", false), ("url", true)]));
    let stream = faults.ok(fields.flag("stream")).unwrap_or(false);
    let is_dall_e = model.is_some_and(|model| model.starts_with("dall-e-"));
    Answer {
        as_url: format.unwrap_or(false),
        is_url_expected: format.is_none() && is_dall_e && !stream,
        stream,
        safety_identifier: faults.ok(fields.text("safety_identifier")),
    }
}

/// Takes fields that have no effect here. Their values are checked anyway.
fn take_without_effect(fields: &mut Fields, faults: &mut Faults) {
    let words = |words: &[&'static str]| words.iter().map(|word| (*word, ())).collect::<Vec<_>>();
    let qualities = words(&["auto", "low", "medium", "high", "xhigh", "max", "standard", "hd"]);
    if let Err(mut error) = fields.word("quality", &qualities) {
        error.message += "; set the quality of a JPEG with `output_compression`";
        faults.add(error);
    }
    let backgrounds = [("auto", false), ("opaque", false), ("transparent", true)];
    if faults.ok(fields.word("background", &backgrounds)) == Some(true) {
        let message = "images are opaque: `transparent` is not supported";
        faults.add(ApiError::bad("unsupported_value", message).with_param("background"));
    }
    for field in ["moderation", "style", "input_fidelity", "complexity"] {
        faults.ok(fields.text(field));
    }
}

/// Returns the work of decoding an image of this size and scaling it for the model.
pub fn read_estimate(size: [usize; 2]) -> Estimate {
    let decode = Estimate::decode(size);
    decode + Estimate::scale(decode.decoded)
}

/// Adds the images of a request to its recipe. Returns the files, and the mask.
fn add_files(
    recipe: &mut Recipe,
    uploads: Vec<Upload>,
    route: Route,
    faults: &mut Faults,
) -> (EmbeddedFiles, Option<Upload>) {
    let (mut files, mut mask) = (EmbeddedFiles::new(), None);
    for upload in uploads {
        match &*upload.part {
            "image" if route != Route::Generations => {
                let name = file_name(&upload, recipe.inputs.len() + 1);
                faults.extend(masks::check(&upload.bytes, "image"));
                files.insert(name.clone(), upload.bytes.to_vec());
                recipe.inputs.push(name);
            }
            "mask" if route != Route::Generations && mask.is_none() => {
                faults.extend(masks::check(&upload.bytes, "mask"));
                recipe.mask = Some(PathBuf::from(masks::NAME));
                mask = Some(upload);
            }
            "mask" if mask.is_some() => faults.add(ApiError::value("mask", "there are two masks, expected one")),
            _ => faults.add(unknown(upload.part)),
        }
    }
    if recipe.inputs.is_empty() && (route == Route::Edits || mask.is_some() || recipe.strength.is_some()) {
        faults.add(missing("image"));
    }
    (files, mask)
}

/// Assigns the parts `file` to the files of a complete recipe, in order of first use.
///
/// Errors if their numbers differ, or a part is not an image.
fn with_named_files(recipe: Recipe, uploads: Vec<Upload>) -> Result<(Recipe, EmbeddedFiles)> {
    if recipe.noise.is_some() || recipe.latents.is_some() || recipe.embeddings.is_some() {
        return Err(ApiError::bad("unsupported_value", "the server does not accept tensor files").with_param("recipe"));
    }
    if recipe.inputs.len() > flux::pipeline::MAX_REFERENCES {
        return Err(ApiError::value("recipe", format!("the recipe has {} images", recipe.inputs.len())));
    }
    let mut names: Vec<PathBuf> = Vec::new();
    for (_, name) in recipe.files() {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_path_buf());
        }
    }
    if let Some(other) = uploads.iter().find(|upload| upload.part != "file") {
        let message = format!("the file `{}` is not supported with a recipe", shown(&other.part));
        return Err(ApiError::bad("unknown_parameter", message).with_param(other.part.clone()));
    }
    if uploads.len() != names.len() {
        let message = format!("the recipe names {} files, but {} were sent", names.len(), uploads.len());
        return Err(ApiError::value("file", message));
    }
    let files: EmbeddedFiles = names.into_iter().zip(uploads.iter().map(|upload| upload.bytes.to_vec())).collect();
    files.values().try_for_each(|bytes| masks::check(bytes, "file"))?;
    Ok((recipe, files))
}

/// Returns the name of an upload in the recipe: its file name, prefixed with its number to be unique.
fn file_name(upload: &Upload, number: usize) -> PathBuf {
    let given = upload.file_name.as_deref().unwrap_or_default();
    let last = given.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    let last: String = last.chars().filter(|c| plain(*c)).take(64).collect();
    PathBuf::from(if last.trim_matches('.').is_empty() { format!("{number}") } else { format!("{number}-{last}") })
}

#[cfg(test)]
impl Asked {
    /// Returns a request for tests.
    pub fn sample(count: usize) -> Self {
        let Value::Object(fields) = json!({"prompt": "x", "n": count}) else { unreachable!("it is an object") };
        let defaults = Defaults { seed: 0, pixels: 1 << 20 };
        Self::read(Fields::from_object(fields), Vec::new(), Route::Jobs, defaults).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Asked> {
        let defaults = Defaults { seed: 7, pixels: 512 * 512 };
        Asked::read(Fields::from_json(json.as_bytes())?, Vec::new(), Route::Generations, defaults)
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
        for (rest, expected) in [("", false), (r#", "recipe": true"#, false), (r#", "recipe": "false""#, true)] {
            for route in [Route::Jobs, Route::Generations] {
                let fields = Fields::from_json(format!(r#"{{"prompt": "x"{rest}}}"#).as_bytes()).unwrap();
                let asked = Asked::read(fields, Vec::new(), route, Defaults { seed: 7, pixels: 512 * 512 }).unwrap();
                assert_eq!(asked.no_recipe, expected, "{rest}");
            }
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let x = |rest: &str| format!(r#"{{"prompt": "x", {rest}}}"#);
        for (json, code, param) in [
            ("{}".to_string(), "missing_required_parameter", "prompt"),
            (x(r#""n": 11"#), "invalid_value", "n"),
            (x(r#""size": "63x64""#), "invalid_value", "size"),
            (x(r#""size": "512""#), "invalid_value", "size"),
            (x(r#""size": "512x512", "width": 256"#), "invalid_value", "size"),
            (x(r#""width": 256"#), "missing_required_parameter", "height"),
            (x(r#""aspect_ratio": "1:100""#), "invalid_value", "aspect_ratio"),
            (x(r#""aspect_ratio": "wide""#), "invalid_value", "aspect_ratio"),
            (x(r#""num_inference_steps": 0"#), "invalid_value", "num_inference_steps"),
            (x(r#""seed": -2"#), "invalid_value", "seed"),
            (x(r#""quality": 80"#), "invalid_type", "quality"),
            (x(r#""recipe": {"prompt": "x"}"#), "invalid_type", "recipe"),
            (x(r#""lora": 3"#), "invalid_value", "lora"),
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
    fn sizes_and_fields_of_other_apis_are_read() {
        let size = |rest: &str| {
            let Recipe { width, height, .. } = read(&format!(r#"{{"prompt": "x", {rest}}}"#)).unwrap().recipe;
            width.zip(height)
        };
        for rest in [
            r#""width": 512, "height": 256"#,
            r#""width": "512", "height": 256.0, "size": "512x256""#,
            r#""image_size": {"width": 512, "height": 256}"#,
            r#""size": " 512 X 256 ""#,
            r#""size": "512×256", "width": 512"#,
        ] {
            assert_eq!(size(rest), Some((512, 256)), "{rest}");
        }
        for (rest, expected) in [
            (r#""aspect_ratio": "1:1""#, Some((512, 512))),
            (r#""aspect_ratio": "16:9""#, Some((688, 384))),
            (r#""aspect_ratio": "16:9", "size": "512x256""#, Some((512, 256))),
            (r#""aspect_ratio": "match_input_image""#, None),
            (r#""size": """#, None),
            (r#""size": "AUTO""#, None),
        ] {
            assert_eq!(size(rest), expected, "{rest}");
        }
        let asked = read(
            r#"{"prompt": "x", "num_inference_steps": "3", "guidance_scale": "1.5", "batch_size": 2, "seed": -1,
                "lora": "ink:0.5", "stream": "false", "negative": "y", "output_quality": 80, "format": "jpeg"}"#,
        )
        .unwrap();
        assert_eq!((asked.recipe.steps, asked.recipe.guidance, asked.count), (Some(3), Some(1.5), 2));
        assert_eq!(
            (asked.recipe.seed, asked.recipe.negative.as_deref(), asked.encoding.quality),
            (7, Some("y"), Some(80))
        );
        let loras = |json: &str| read(&format!(r#"{{"prompt": "x", "loras": {json}}}"#)).unwrap().adapters;
        for json in [
            r#"["ink:0.5"]"#,
            r#"{"ink": 0.5}"#,
            r#"{"path": "ink", "scale": 0.5}"#,
            r#""[{\"name\": \"ink\", \"weight\": 0.5}]""#,
        ] {
            assert_eq!(loras(json), [Lora { name: "ink".to_string(), weight: 0.5 }], "{json}");
        }
    }

    #[test]
    fn dall_e_s_clients_get_addresses() {
        let as_url = |rest: &str| read(&format!(r#"{{"prompt": "x", {rest}}}"#)).unwrap().answer.is_url_expected;
        assert!(as_url(r#""model": "dall-e-2""#) && as_url(r#""model": "dall-e-3", "response_format": null"#));
        assert!(!as_url(r#""model": "dall-e-3", "response_format": "b64_json""#));
        assert!(!as_url(r#""model": "gpt-image-1""#) && !as_url(r#""n": 1"#));
    }

    #[test]
    fn all_that_is_wrong_is_named_at_once() {
        let error =
            read(r#"{"steps": 0, "cfg_scale": "x", "size": "1x1", "what": 1, "sampler": "euler"}"#).unwrap_err();
        let params: Vec<_> = error.params().collect();
        assert_eq!(params, ["prompt", "size", "steps", "cfg_scale", "sampler", "what"]);
        let answer = error.json();
        assert_eq!(
            (&answer["error"]["param"], answer["error"]["errors"].as_array().unwrap().len()),
            (&json!("prompt"), 6)
        );
        let many: String = (0..100).map(|n| format!(r#", "x{n}": 1"#)).collect();
        let answer = read(&format!(r#"{{"prompt": "x"{many}}}"#)).unwrap_err().json();
        assert_eq!(answer["error"]["errors"].as_array().unwrap().len(), 16);
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
