//! Parsing of the request fields, shared by all routes that generate images.

mod enlarging;
mod recipe;
mod size;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use flux::engine::expand::Expansion;
use flux::engine::{AdapterFile, EmbeddedFiles, Priority, Recipe};
use flux::files::adapter::BlockStrengths;
use flux::input;
use flux::output::ImageFormat;
use flux::pipeline::{Latents, Transparency};
use flux::stage::CancelFlag;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::Value;

use crate::http::error::{ApiError, Result, shown};
use crate::jobs::admission::{Estimate, Preparation};
use crate::jobs::fields::{Faults, Fields, missing, unknown};
use crate::jobs::masks;
pub use enlarging::{Enlargement, MAX_FACTOR, NAME as ENLARGED};
pub use recipe::{MAX_PROMPT, own_names, read_own};
use recipe::{check_length, read_loras, read_recipe};

/// The field that asks for a prompt written by a language model.
pub const UPSAMPLE: &str = "upsample";
/// Max adapters of a request.
const MAX_ADAPTERS: usize = 32;
/// Max images of a request.
pub const MAX_IMAGES: u64 = 10;
/// The values of `priority`.
const PRIORITIES: [(&str, Priority); 3] =
    [("high", Priority::High), ("normal", Priority::Normal), ("low", Priority::Low)];

/// A parsed request for images.
#[derive(Debug)]
pub struct Asked {
    /// The model name as the client wrote it.
    pub model: Option<String>,
    /// The recipe. It names the files below.
    pub recipe: Recipe,
    /// The enlargement of the image, instead of images to generate.
    pub enlarging: Option<Enlargement>,
    /// The way to expand the prompt, if requested.
    pub expansion: Option<Expansion>,
    pub files: EmbeddedFiles,
    /// `true` to edit the first input in its own size, even above a megapixel, which no recipe can state.
    pub edits_whole: bool,
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
    #[serde(default = "as_it_was_made", alias = "strength", alias = "scale", deserialize_with = "number")]
    pub weight: f32,
    /// Factors of the weight by blocks of the transformer.
    #[serde(default)]
    pub blocks: BlockStrengths,
}

impl From<&AdapterFile> for Lora {
    fn from(used: &AdapterFile) -> Self {
        let AdapterFile { file, strength, blocks } = used;
        Self { name: file.to_string_lossy().into_owned(), weight: *strength, blocks: blocks.clone() }
    }
}

fn as_it_was_made() -> f32 {
    1.0
}

/// Reads a number, or a text that contains one.
fn number<'de, D: Deserializer<'de>>(value: D) -> std::result::Result<f32, D::Error> {
    let value = Value::deserialize(value)?;
    let number = value.as_str().map_or_else(|| f32::deserialize(&value).ok(), |text| text.trim().parse().ok());
    number.ok_or_else(|| D::Error::custom(format!("`{value}` is not a number")))
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
    Upscale,
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
    /// Creates a request for one PNG of a recipe, without previews.
    pub fn new(recipe: Recipe, files: EmbeddedFiles) -> Self {
        Self {
            model: None,
            recipe,
            enlarging: None,
            expansion: None,
            files,
            edits_whole: false,
            preparation: None,
            upsample: None,
            adapters: Vec::new(),
            count: 1,
            encoding: Encoding { format: ImageFormat::Png, quality: None },
            no_recipe: false,
            previews: Previews::AtMost(0),
            priority: Priority::Normal,
            deadline: None,
            user: None,
            feedback: None,
            notes: Vec::new(),
            answer: Answer::default(),
        }
    }

    /// Errors if a prompt is too long, or there are too many images or adapters.
    pub fn check(&self) -> Result<()> {
        let Recipe { prompt, negative, inputs, hires, .. } = &self.recipe;
        let second = hires.as_ref().and_then(|hires| hires.prompt.as_ref());
        for (field, text) in [("prompt", Some(prompt)), ("negative_prompt", negative.as_ref()), ("hires", second)] {
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
        if let (Some(enlargement), Some(file)) = (&self.enlarging, self.recipe.inputs.first()) {
            estimate += self.files.get(file).map_or(Estimate::default(), |file| enlargement.estimate(file));
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
        if route == Route::Upscale || route == Route::Jobs && fields.has(enlarging::FIELD) {
            return Self::read_enlarging(fields, uploads, route);
        }
        // On the route of jobs, the field may also be a complete recipe.
        let is_whole = route == Route::Jobs && !fields.is_flag("recipe");
        let whole = if is_whole { fields.value::<Recipe>("recipe")? } else { None };
        let no_recipe = faults.ok(fields.flag("recipe")) == Some(false);
        let (mut recipe, files, mask, adapters) = match whole {
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
        let encoding = read_encoding(&mut fields, &mut faults, &mut notes);
        let backgrounds =
            [("auto", Transparency::No), ("opaque", Transparency::No), ("transparent", Transparency::Edit)];
        let background = faults.ok(fields.word("background", &backgrounds)).unwrap_or_default();
        if recipe.transparent == Transparency::No {
            recipe.transparent = background;
        }
        let holds = recipe.check_format(encoding.format);
        faults.extend(holds.map_err(|e| ApiError::bad("unsupported_value", e.what()).with_param("output_format")));
        let mut asked = Self {
            expansion: expands.then(|| Expansion { seed: expand_seed, ..Expansion::default() }),
            adapters,
            upsample: faults.ok(fields.flag(UPSAMPLE)),
            count: faults.ok(fields.whole("n", 1..=MAX_IMAGES)).unwrap_or(1) as usize,
            encoding,
            no_recipe,
            previews: read_previews(&mut fields, &mut faults, route),
            priority: faults.ok(fields.word("priority", &PRIORITIES)).unwrap_or_default(),
            deadline: faults.ok(fields.number("deadline_s", 0.0..=1e6)).map(Duration::from_secs_f64),
            user: faults.ok(fields.text("user")),
            answer: read_answer(&mut fields, &mut faults, model.as_deref()),
            model,
            notes,
            ..Self::new(recipe, files)
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
    if recipe.inputs.is_empty()
        && (matches!(route, Route::Edits | Route::Upscale) || mask.is_some() || recipe.strength.is_some())
    {
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
        let fields = Fields::from_json(format!(r#"{{"prompt": "x", "n": {count}}}"#).as_bytes()).unwrap();
        Self::read(fields, Vec::new(), Route::Jobs, Defaults { seed: 0, pixels: 1 << 20 }).unwrap()
    }
}
