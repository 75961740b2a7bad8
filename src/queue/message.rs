//! What messages say: a job, an event of a job, and what all workers hear.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flux::engine::{ModelRecipe, NUMERICS, Recipe};
use flux::files::ModelPaths;
use flux::pipeline::MAX_REFERENCES;
use flux::{Error, Result};
use serde::{Deserialize, Serialize};

use super::names::{self, Ending, INPUTS, Key, Lane};

/// Of the form of messages.
pub const VERSION: u32 = 1;
/// The longest message: pictures are in the store.
pub const MOST_BYTES: usize = 64 << 10;
/// The most images of a job, with its mask, and the most adapters.
const MOST_INPUTS: usize = MAX_REFERENCES + 1;
const MOST_ADAPTERS: usize = 16;

/// A job: one image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobMessage {
    pub v: u32,
    pub job: String,
    /// None where somebody waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// The line of the batch, and which of the images of the line it is, both from 1.
    #[serde(default)]
    pub line: usize,
    #[serde(default)]
    pub n: usize,
    pub key: Key,
    pub model: String,
    /// Files are named by their objects in the store.
    pub recipe: Recipe,
    pub format: FileFormat,
    /// Who asked, for whoever looks at the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    pub priority: Lane,
    /// After which nobody wants it, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// In seconds since 1970.
    pub submitted: u64,
}

/// What file a result is.
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
    pub fn ending(self) -> Ending {
        match self {
            Self::Png => Ending::Png,
            Self::Jpeg { .. } => Ending::Jpeg,
            Self::Webp => Ending::Webp,
        }
    }
}

/// What a result is the hash of: whatever makes another image or another file.
#[derive(Serialize)]
struct Canonical<'a> {
    numerics: u32,
    model: &'a ModelRecipe,
    recipe: &'a Recipe,
    format: FileFormat,
}

/// Where the result of a recipe lies. Two deliveries of one job, and two jobs that ask for the same, meet there;
/// devices may round otherwise.
///
/// Errors when the recipe names files by what is no text.
pub fn key(model: &ModelRecipe, recipe: &Recipe, format: FileFormat) -> Result<Key> {
    // A name and paths are of one machine; digests say what the model is.
    let model = &ModelRecipe { name: String::new(), paths: ModelPaths::default(), ..model.clone() };
    let canonical = Canonical { numerics: NUMERICS, model, recipe, format };
    let json = serde_json::to_vec(&canonical).map_err(|e| Error::usage(format!("cannot hash the recipe: {e}")))?;
    Ok(Key { hash: blake3::hash(&json), ending: format.ending() })
}

impl JobMessage {
    /// Reads a message, which may come from anyone who may write into the queue.
    ///
    /// Errors when it is no job that this version knows, or names what is no input.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MOST_BYTES {
            return Err(Error::usage(format!("the message has {} bytes, expected at most {MOST_BYTES}", bytes.len())));
        }
        /// What all versions have.
        #[derive(Deserialize)]
        struct Versioned {
            v: u32,
        }
        let wrong = |e: serde_json::Error| Error::usage(format!("the message is no job: {e}"));
        let Versioned { v } = serde_json::from_slice(bytes).map_err(wrong)?;
        if v != VERSION {
            return Err(Error::usage(format!("the message is of version {v}, expected {VERSION}")));
        }
        let message: Self = serde_json::from_slice(bytes).map_err(wrong)?;
        message.check().map(|()| message)
    }

    fn check(&self) -> Result<()> {
        if !names::is_job(&self.job) {
            return Err(Error::usage("`job` is no name of a job"));
        }
        if self.batch.as_deref().is_some_and(|batch| !names::is_batch(batch)) {
            return Err(Error::usage("`batch` is no name of a batch"));
        }
        if let FileFormat::Jpeg { quality: Some(quality) } = self.format
            && !(1..=100).contains(&quality)
        {
            return Err(Error::usage(format!("`quality` is {quality}, expected 1 to 100")));
        }
        names::check_model(&self.model)?;
        let (inputs, adapters) = (self.inputs().count(), self.recipe.adapters.len());
        if inputs > MOST_INPUTS || adapters > MOST_ADAPTERS {
            return Err(Error::usage(format!(
                "the recipe names {inputs} images and {adapters} adapters, expected at most {MOST_INPUTS} and \
                 {MOST_ADAPTERS}"
            )));
        }
        check_recipe(&self.recipe)
    }

    /// What is sent.
    ///
    /// Errors when it is too long, or no worker would take it.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        let bytes = serde_json::to_vec(self).map_err(|e| Error::usage(format!("cannot write the job: {e}")))?;
        if bytes.len() <= MOST_BYTES {
            return Ok(bytes);
        }
        Err(Error::usage(format!("the job has {} bytes, expected at most {MOST_BYTES}", bytes.len()))
            .hint("shorten the prompt"))
    }

    /// For how long it is wanted from now on; none where that is for ever. Who waits takes a clock that never jumps.
    pub fn wanted_for(&self) -> Option<Duration> {
        self.deadline.map(|deadline| Duration::from_secs(deadline.saturating_sub(unix_time())))
    }

    /// The inputs that it names, by their hashes.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        self.recipe.files().filter_map(|(_, file)| hash_of(file))
    }
}

/// The hash of an input that a recipe names.
pub fn hash_of(file: &std::path::Path) -> Option<&str> {
    file.to_str()?.strip_prefix(INPUTS).filter(|hash| names::is_hash(hash))
}

/// Errors when a recipe cannot be sent: when it is wrong in itself, or names files that are not in the store.
fn check_recipe(recipe: &Recipe) -> Result<()> {
    recipe.check()?;
    check_tensors(recipe)?;
    let adapters = recipe.adapters.iter().map(|used| used.file.as_path());
    match recipe.files().map(|(_, file)| file).chain(adapters).find(|file| hash_of(file).is_none()) {
        Some(file) => Err(Error::usage(format!("`{}` is no input", flux::error::shown(&file.to_string_lossy())))),
        None => Ok(()),
    }
}

/// Errors when a recipe begins with tensors.
pub fn check_tensors(recipe: &Recipe) -> Result<()> {
    let tensors = [&recipe.noise, &recipe.latents, &recipe.embeddings];
    if tensors.into_iter().all(Option::is_none) {
        return Ok(());
    }
    Err(Error::usage("noise, latents and text features are not drawn from a queue")
        .hint("`flux batch` takes files of them"))
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// What happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Happened {
    Started,
    /// A step is done, of a job that somebody waits for.
    Step,
    Done,
    Failed,
}

impl Happened {
    /// The last part of the routing key.
    pub fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Step => "step",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// What a worker tells of a job. Such messages may be lost.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventMessage {
    pub v: u32,
    pub job: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    pub event: Happened,
    pub key: Key,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What is drawn, of one that somebody waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanSaid>,
    /// The step, and how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<[u64; 2]>,
}

/// What the model makes of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlanSaid {
    pub width: usize,
    pub height: usize,
    pub steps: usize,
    pub text_tokens: usize,
    /// Of references.
    pub image_tokens: usize,
    /// What is to be said of it, as of a prompt that was cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What all workers hear.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlMessage {
    pub v: u32,
    /// A batch or a job that is not to be drawn any more.
    pub cancel: String,
}

#[cfg(test)]
mod tests {
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
        let adapters = vec![AdapterFile { file: input.clone().into(), strength: 0.7 }];
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
        let adapter = AdapterFile { file: format!("in/{}", blake3::hash(b"adapter")).into(), strength: 1.0 };
        for (count, is_sent) in [(MOST_ADAPTERS, true), (MOST_ADAPTERS + 1, false)] {
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
        let long = serde_json::json!({"prompt": "x".repeat(MOST_BYTES), "seed": 1});
        for (bytes, words) in [
            (Vec::new(), "no job"),
            (b"\xff\xfe".to_vec(), "no job"),
            (b"[1, 2]".to_vec(), "no job"),
            ("[".repeat(60_000).into_bytes(), "no job"),
            (with("v", 2.into()), "of version 2"),
            (with("v", "1".into()), "no job"),
            (with("job", "../../x".into()), "`job`"),
            (with("batch", "b-../x".into()), "`batch`"),
            (with("key", "out/../../etc/passwd".into()), "`key`"),
            (with("key", 7.into()), "no job"),
            (with("model", "../x".into()), "no name for a model"),
            (with("format", serde_json::json!({"type": "exe"})), "no job"),
            (with("format", serde_json::json!({"type": "jpeg", "quality": 0})), "`quality`"),
            (with("recipe", long), "bytes"),
            (with("recipe", serde_json::json!({"prompt": "a", "seed": 1, "inputs": ["/etc/passwd"]})), "no input"),
            (with("recipe", serde_json::json!({"prompt": "a", "seed": 1, "inputs": ["in/../x"]})), "no input"),
            (with("recipe", serde_json::json!({"prompt": "a", "seed": 1, "inputs": ["-"]})), "no input"),
            (with("recipe", serde_json::json!({"prompt": "a", "seed": 1, "noise": "/dev/zero"})), "noise"),
            (
                with("recipe", serde_json::json!({"prompt": "a", "adapters": [{"file": "/etc", "strength": 1}]})),
                "no input",
            ),
            (with("recipe", serde_json::json!({"prompt": "a", "seed": 1, "steps": -1})), "no job"),
            (with("shell", "rm -rf /".into()), "no job"),
        ] {
            let error = JobMessage::read(&bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
