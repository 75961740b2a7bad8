//! The JSON messages: jobs, events of jobs, and orders to all workers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flux::engine::{ModelRecipe, NUMERICS, Recipe};
use flux::error::Field;
use flux::files::ModelPaths;
use flux::output::ImageFormat;
use flux::pipeline::MAX_REFERENCES;
use flux::{Error, Result};
use serde::{Deserialize, Serialize};

use super::names::{self, INPUTS, Key, Lane};

/// The version of the message format.
pub const VERSION: u32 = 1;
/// The max size of a message in bytes. Images are in the store, not in messages.
pub const MAX_BYTES: usize = 64 << 10;
/// Max input images of a job, including its mask, and max adapters.
const MAX_INPUTS: usize = MAX_REFERENCES + 1;
const MAX_ADAPTERS: usize = 16;

/// A job: one image to generate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobMessage {
    pub v: u32,
    pub job: String,
    /// The ID of the batch. `None` for online jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// The line of the prompt file, and the number of the image within this line. Both count from 1.
    #[serde(default)]
    pub line: usize,
    #[serde(default)]
    pub n: usize,
    pub key: Key,
    pub model: String,
    /// The recipe. Its files are names of objects in the store.
    pub recipe: Recipe,
    pub format: FileFormat,
    /// The client that sent the request, shown in listings of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    pub priority: Lane,
    /// The time after which the job is dropped, in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// The time of submission, in Unix seconds.
    pub submitted: u64,
}

/// The file format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum FileFormat {
    #[default]
    Png,
    Jpeg {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quality: Option<u8>,
    },
    Webp,
}

impl FileFormat {
    pub fn new(format: ImageFormat, quality: Option<u8>) -> Self {
        match format {
            ImageFormat::Png => Self::Png,
            ImageFormat::Jpeg => Self::Jpeg { quality },
            ImageFormat::Webp => Self::Webp,
        }
    }

    pub fn image_format(self) -> ImageFormat {
        match self {
            Self::Png => ImageFormat::Png,
            Self::Jpeg { .. } => ImageFormat::Jpeg,
            Self::Webp => ImageFormat::Webp,
        }
    }
}

/// The input of a result's hash: everything that changes the image or the file.
#[derive(Serialize)]
struct Canonical<'a> {
    numerics: u32,
    model: &'a ModelRecipe,
    recipe: &'a Recipe,
    format: FileFormat,
}

/// Returns the key of a recipe's result. Repeated deliveries of a job, and jobs with equal recipes, share one key.
/// Results may differ by rounding between devices.
///
/// Errors if a path of the recipe is not valid UTF-8.
pub fn key(model: &ModelRecipe, recipe: &Recipe, format: FileFormat) -> Result<Key> {
    // A name and paths differ between machines. The model is identified by its digests.
    let model = &ModelRecipe { name: String::new(), paths: ModelPaths::default(), ..model.clone() };
    let canonical = Canonical { numerics: NUMERICS, model, recipe, format };
    let json = serde_json::to_vec(&canonical).map_err(|e| Error::usage(format!("cannot hash the recipe: {e}")))?;
    Ok(Key { hash: blake3::hash(&json), format: format.image_format() })
}

impl JobMessage {
    /// Parses and checks a message, which is untrusted.
    ///
    /// Errors if the message is not a job of this version, or names invalid inputs.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_BYTES {
            return Err(Error::usage(format!("the message has {} bytes, expected at most {MAX_BYTES}", bytes.len())));
        }
        /// The field that all versions share.
        #[derive(Deserialize)]
        struct Versioned {
            v: u32,
        }
        let wrong = |e: serde_json::Error| Error::usage(format!("the message is not a valid job: {e}"));
        let Versioned { v } = serde_json::from_slice(bytes).map_err(wrong)?;
        if v != VERSION {
            return Err(Error::usage(format!("the message has version {v}, expected {VERSION}")));
        }
        let message: Self = serde_json::from_slice(bytes).map_err(wrong)?;
        message.check().map(|()| message)
    }

    fn check(&self) -> Result<()> {
        if !names::is_job(&self.job) {
            return Err(Error::usage("`job` is not a valid job ID"));
        }
        if self.batch.as_deref().is_some_and(|batch| !names::is_batch(batch)) {
            return Err(Error::usage("`batch` is not a valid batch ID"));
        }
        if let FileFormat::Jpeg { quality: Some(quality) } = self.format
            && !(1..=100).contains(&quality)
        {
            return Err(Error::usage(format!("`quality` is {quality}, expected 1 to 100")));
        }
        names::check_model(&self.model)?;
        let (inputs, adapters) = (self.inputs().count(), self.recipe.adapters.len());
        if inputs > MAX_INPUTS || adapters > MAX_ADAPTERS {
            return Err(Error::usage(format!(
                "the recipe names {inputs} images and {adapters} adapters, expected at most {MAX_INPUTS} and \
                 {MAX_ADAPTERS}"
            )));
        }
        check_recipe(&self.recipe)
    }

    /// Serializes the message.
    ///
    /// Errors if the message is too long, or workers would refuse it.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        let bytes = serde_json::to_vec(self).map_err(|e| Error::usage(format!("cannot write the job: {e}")))?;
        if bytes.len() <= MAX_BYTES {
            return Ok(bytes);
        }
        Err(Error::usage(format!("the job has {} bytes, expected at most {MAX_BYTES}", bytes.len()))
            .hint("shorten the prompt"))
    }

    /// Returns the time left until the deadline, or `None` without a deadline. Callers measure it with a monotonic
    /// clock.
    pub fn wanted_for(&self) -> Option<Duration> {
        self.deadline.map(|deadline| Duration::from_secs(deadline.saturating_sub(unix_time())))
    }

    /// Returns the hashes of the job's input images.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        self.recipe.files().filter_map(|(_, file)| hash_of(file))
    }
}

/// Returns the hash of an input that a recipe names.
pub fn hash_of(file: &std::path::Path) -> Option<&str> {
    file.to_str()?.strip_prefix(INPUTS).filter(|hash| names::is_hash(hash))
}

/// Errors if a recipe is invalid, or names files that are not in the store.
fn check_recipe(recipe: &Recipe) -> Result<()> {
    recipe.check()?;
    check_tensors(recipe)?;
    let adapters = recipe.adapters.iter().map(|used| used.file.as_path());
    match recipe.files().map(|(_, file)| file).chain(adapters).find(|file| hash_of(file).is_none()) {
        Some(file) => Err(Error::usage(format!("`{}` is not an input", flux::error::shown(&file.to_string_lossy())))),
        None => Ok(()),
    }
}

/// Errors if a recipe starts from tensors, or names an upscaler, which is a file of the worker's machine.
pub fn check_tensors(recipe: &Recipe) -> Result<()> {
    let tensors = [&recipe.noise, &recipe.latents, &recipe.embeddings];
    if recipe.upscaler().is_some() {
        return Err(Error::usage("an upscaler cannot be sent through a queue")
            .for_field(Field::Hires)
            .hint("leave it out: a Lanczos filter enlarges the image"));
    }
    if tensors.into_iter().all(Option::is_none) {
        return Ok(());
    }
    Err(Error::usage("noise, latents and text features cannot be sent through a queue")
        .hint("use `flux batch`, which accepts such files"))
}

/// Returns the current time in Unix seconds.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Happened {
    Started,
    /// A denoising step is done. Sent for online jobs only.
    Step,
    Done,
    Failed,
}

impl Happened {
    /// Returns the last part of the routing key.
    pub fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Step => "step",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// An event of a job, sent by a worker. Events may be lost.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventMessage {
    pub v: u32,
    pub job: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    pub event: Happened,
    pub key: Key,
    /// The error of a failed job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The plan of an online job, sent when it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanSaid>,
    /// The number of completed steps, and of all steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<[u64; 2]>,
}

/// The plan that the model made for a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlanSaid {
    pub width: usize,
    pub height: usize,
    pub steps: usize,
    pub text_tokens: usize,
    /// Tokens of reference images.
    pub image_tokens: usize,
    /// Notes for the user, for example about a truncated prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// An order to all workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlMessage {
    pub v: u32,
    /// The ID of a batch or a job to cancel.
    pub cancel: String,
}

#[cfg(test)]
pub mod tests {
    use flux::engine::AdapterFile;

    use super::*;

    pub fn sample() -> JobMessage {
        let recipe = Recipe { steps: Some(4), width: Some(64), ..Recipe::new("a cat", 42) };
        let format = FileFormat::Png;
        let hash = blake3::hash(b"job");
        JobMessage {
            v: VERSION,
            job: names::id(&hash),
            batch: Some(format!("b-{}", names::id(&hash))),
            line: 17,
            n: 1,
            key: key(&ModelRecipe::default(), &recipe, format).unwrap(),
            model: "tiny".to_string(),
            recipe,
            format,
            client: None,
            priority: Lane::Batch,
            deadline: None,
            submitted: 1_795_324_199,
        }
    }

    fn with(field: &str, value: serde_json::Value) -> Vec<u8> {
        let mut json = serde_json::to_value(sample()).unwrap();
        json[field] = value;
        serde_json::to_vec(&json).unwrap()
    }

    #[test]
    fn a_job_is_the_same_after_json() {
        let input = format!("in/{}", blake3::hash(b"picture"));
        let adapters = vec![AdapterFile::new(input.clone(), 0.7)];
        let recipe = Recipe { inputs: vec![input.into()], adapters, ..sample().recipe };
        for format in [FileFormat::Webp, FileFormat::Jpeg { quality: Some(80) }] {
            let key = key(&ModelRecipe::default(), &recipe, format).unwrap();
            let job = JobMessage { format, key, recipe: recipe.clone(), ..sample() };
            let read = JobMessage::read(&job.to_bytes().unwrap()).unwrap();
            assert_eq!(read, job);
            assert_eq!(super::key(&ModelRecipe::default(), &read.recipe, read.format).unwrap(), job.key);
        }
    }

    #[test]
    fn what_no_worker_takes_is_not_sent() {
        let adapter = AdapterFile::new(format!("in/{}", blake3::hash(b"adapter")), 1.0);
        for (count, is_sent) in [(MAX_ADAPTERS, true), (MAX_ADAPTERS + 1, false)] {
            let recipe = Recipe { adapters: vec![adapter.clone(); count], ..sample().recipe };
            let sent = JobMessage { recipe, ..sample() }.to_bytes();
            assert_eq!(sent.is_ok(), is_sent, "{count} adapters");
        }
    }

    #[test]
    fn the_key_is_of_all_that_makes_another_image_and_of_nothing_else() {
        let of = |model: &ModelRecipe, recipe: &Recipe, format| key(model, recipe, format).unwrap().hash;
        let (model, recipe) = (ModelRecipe::default(), sample().recipe);
        let first = of(&model, &recipe, FileFormat::Png);
        let digests = [("vae".to_string(), "sha256:1".to_string())].into();
        for (model, recipe, format) in [
            (ModelRecipe { digests, ..model.clone() }, recipe.clone(), FileFormat::Png),
            (ModelRecipe { kv: true, ..model.clone() }, recipe.clone(), FileFormat::Png),
            (model.clone(), Recipe { seed: 43, ..recipe.clone() }, FileFormat::Png),
            (model.clone(), Recipe { prompt: "a dog".to_string(), ..recipe.clone() }, FileFormat::Png),
            (model.clone(), recipe.clone(), FileFormat::Webp),
            (model.clone(), recipe.clone(), FileFormat::Jpeg { quality: Some(80) }),
        ] {
            assert_ne!(of(&model, &recipe, format), first);
        }
        let paths = ModelPaths { model: Some("/models/klein".into()), ..ModelPaths::default() };
        let elsewhere = ModelRecipe { name: "other".to_string(), paths, ..model };
        assert_eq!(of(&elsewhere, &recipe, FileFormat::Png), first);
    }

    #[test]
    fn a_deadline_is_a_time_from_now_on() {
        let of = |deadline| JobMessage { deadline, ..sample() }.wanted_for();
        assert_eq!(
            (of(None), of(Some(0)), of(Some(unix_time() - 1))),
            (None, Some(Duration::ZERO), Some(Duration::ZERO))
        );
        assert!(of(Some(unix_time() + 60)).is_some_and(|left| (58..=60).contains(&left.as_secs())));
        assert!(of(Some(u64::MAX)).is_some());
    }

    #[test]
    fn hostile_messages_are_errors() {
        let long = serde_json::json!({"prompt": "x".repeat(MAX_BYTES), "seed": 1});
        for (bytes, words) in [
            (Vec::new(), "not a valid job"),
            (b"\xff\xfe".to_vec(), "not a valid job"),
            (b"[1, 2]".to_vec(), "not a valid job"),
            ("[".repeat(60_000).into_bytes(), "not a valid job"),
            (with("v", 2.into()), "version 2"),
            (with("v", "1".into()), "not a valid job"),
            (with("job", "../../x".into()), "`job`"),
            (with("batch", "b-../x".into()), "`batch`"),
            (with("key", "out/../../etc/passwd".into()), "`key`"),
            (with("key", 7.into()), "not a valid job"),
            (with("model", "../x".into()), "not a valid model name"),
            (with("format", serde_json::json!({"type": "exe"})), "not a valid job"),
            (with("format", serde_json::json!({"type": "jpeg", "quality": 0})), "`quality`"),
            (with("recipe", long), "bytes"),
            (with("recipe", serde_json::json!({"prompt": "a", "seed": 1, "inputs": ["/etc/passwd"]})), "not an input"),
            (with("recipe", serde_json::json!({"prompt": "a", "seed": 1, "inputs": ["in/../x"]})), "not an input"),
            (with("recipe", serde_json::json!({"prompt": "a", "seed": 1, "inputs": ["-"]})), "not an input"),
            (with("recipe", serde_json::json!({"prompt": "a", "seed": 1, "noise": "/dev/zero"})), "noise"),
            (
                with("recipe", serde_json::json!({"prompt": "a", "adapters": [{"file": "/etc", "strength": 1}]})),
                "not an input",
            ),
            (with("recipe", serde_json::json!({"prompt": "a", "seed": 1, "steps": -1})), "not a valid job"),
            (with("shell", "rm -rf /".into()), "not a valid job"),
        ] {
            let error = JobMessage::read(&bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
