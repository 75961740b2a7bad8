//! Prompt upsampling: a language model rewrites a short prompt as the caption that an image model was trained on.
//!
//! ```text
//! Recipe, images -> Request -> cache, else POST /chat/completions -> prompt, reconciled with the boxes -> Recipe
//! ```
//!
//! The language model runs in another program with the API of OpenAI. Nothing here knows commands or the image server.
//! Start with [`Upsampler`].

mod answer;
mod cache;
mod client;
mod pictures;
mod request;
mod system;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flux::engine::{EmbeddedFiles, Recipe, Upsampled};
use flux::error::{Error, ErrorKind, Field, Result};
use flux::files::digest::sha256;
use flux::model::ModelInfo;
use flux::stage::CancelFlag;
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use self::cache::Cache;
use self::client::Client;

pub use request::Request;
pub use system::{BflPrompts, System};

/// Maximum number of answers in memory.
const MAX_ANSWERS: NonZeroUsize = NonZeroUsize::new(1024).expect("a positive number");
/// Fields of the body that extra fields do not replace.
const FIXED: [&str; 2] = ["messages", "stream"];

/// The language model and how it is asked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Base address of an OpenAI API, such as `http://127.0.0.1:8080/v1`.
    pub url: String,
    /// Name of the model; without one, the first model of the server.
    pub model: Option<String>,
    /// System prompts.
    pub system: System,
    /// API key.
    pub key: Option<String>,
    /// Maximum time of an attempt.
    pub timeout: Duration,
    /// `true` to keep the prompt of the request if upsampling fails.
    pub falls_back: bool,
    /// Fields to add to the request; `null` removes one.
    pub extra: Map<String, Value>,
    /// `true` to allow addresses of other machines without encryption.
    pub insecure: bool,
    /// Folder for answers.
    pub cache: Option<PathBuf>,
}

/// An answer in memory; locked while the language model is asked.
type Slot = Arc<Mutex<Option<String>>>;

/// A language model that rewrites prompts.
pub struct Upsampler {
    config: Config,
    /// The name of the server's first model, once it is known.
    model: Mutex<Option<String>>,
    cache: Option<Cache>,
    answers: Mutex<LruCache<String, Slot>>,
}

/// A recipe with a rewritten prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Rewritten {
    /// The recipe.
    pub recipe: Recipe,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Upsampler {
    /// Creates an upsampler. Does not use the network.
    ///
    /// Errors if the address is invalid or not encrypted, or extra fields are not allowed.
    pub fn new(config: Config) -> Result<Self> {
        client::check(&config.url, config.insecure)?;
        if let Some(field) = FIXED.into_iter().find(|field| config.extra.contains_key(*field)) {
            return Err(Error::usage(format!("`{field}` cannot be replaced"))
                .at("--upsample-extra")
                .hint("leave it out"));
        }
        let cache = config.cache.clone().map(Cache::new);
        Ok(Self { config, model: Mutex::default(), cache, answers: Mutex::new(LruCache::new(MAX_ANSWERS)) })
    }

    /// Rewrites the prompt of a recipe; `files` has the bytes of its input images.
    ///
    /// Errors as [`Upsampler::request`] and [`Upsampler::ask`].
    pub fn upsample(
        &self,
        recipe: &Recipe,
        files: &EmbeddedFiles,
        info: &ModelInfo,
        cancel: &CancelFlag,
    ) -> Result<Rewritten> {
        self.ask(self.request(recipe, files, info)?, cancel)
    }

    /// Creates the request for a recipe, which takes time for images but no network.
    ///
    /// Errors as [`Request::new`].
    pub fn request(&self, recipe: &Recipe, files: &EmbeddedFiles, info: &ModelInfo) -> Result<Request> {
        Request::new(recipe, files, info, &self.config.system)
    }

    /// Asks the language model, unless the answer is known. Equal requests at the same time are sent once.
    ///
    /// Errors if the language model gives no prompt, unless the configuration says otherwise, and if cancelled.
    pub fn ask(&self, request: Request, cancel: &CancelFlag) -> Result<Rewritten> {
        match self.prompt(&request, cancel) {
            Ok((prompt, model)) => {
                let notes = answer::notes(&prompt, &request.recipe.prompt);
                let Recipe { prompt: before, boxes, .. } = request.recipe.clone();
                let system = sha256(request.system.as_bytes());
                let upsampled = Some(Upsampled { request: before, boxes, model, system });
                let recipe = Recipe { prompt, boxes: Vec::new(), upsampled, ..request.recipe };
                Ok(Rewritten { recipe, notes })
            }
            Err(error) if self.config.falls_back && error.kind() == ErrorKind::Failure => {
                let notes = vec![format!("the prompt is used as it is: {}", error.what())];
                Ok(Rewritten { recipe: request.recipe, notes })
            }
            Err(error) => Err(error.for_field(Field::Upsample)),
        }
    }

    /// Returns the prompt and the name of the language model.
    fn prompt(&self, request: &Request, cancel: &CancelFlag) -> Result<(String, String)> {
        let model = self.model(cancel)?;
        let key = request.key(&model, &self.config.extra);
        let slot = {
            let mut answers = self.answers.lock();
            Arc::clone(answers.get_or_insert(key.clone(), Slot::default))
        };
        let mut answer = slot.lock();
        cancel.check()?;
        if let Some(prompt) = answer.clone().or_else(|| self.cache.as_ref()?.get(&key)) {
            return Ok((answer.insert(prompt).clone(), model));
        }
        let prompt = self.generate(request, &model, cancel)?;
        if let Some(cache) = &self.cache {
            cache.put(&key, &prompt);
        }
        Ok((answer.insert(prompt).clone(), model))
    }

    fn client<'a>(&'a self, cancel: &'a CancelFlag) -> Client<'a> {
        let Config { url, key, timeout, .. } = &self.config;
        Client { url, key: key.as_deref(), timeout: *timeout, cancel }
    }

    /// Returns the name of the language model. Asks the server if none is set.
    fn model(&self, cancel: &CancelFlag) -> Result<String> {
        if let Some(model) = &self.config.model {
            return Ok(model.clone());
        }
        let mut known = self.model.lock();
        if let Some(model) = &*known {
            return Ok(model.clone());
        }
        let models = self.client(cancel).send("/models", None)?.json()?;
        let name = models["data"][0]["id"].as_str().filter(|name| !name.is_empty());
        let none = || Error::new("the server lists no language model").hint("name it with `--upsample-model`");
        Ok(known.insert(name.ok_or_else(none)?.to_string()).clone())
    }

    /// Asks the language model. Fields that the server does not know are left out.
    fn generate(&self, request: &Request, model: &str, cancel: &CancelFlag) -> Result<String> {
        let mut body = request.body(model, &self.config.extra);
        loop {
            let json = serde_json::to_vec(&body).map_err(|e| Error::new(format!("cannot write the request: {e}")))?;
            let answer = self.client(cancel).send("/chat/completions", Some(&json))?;
            if matches!(answer.status, 400 | 422) && request::without_named(&mut body, &answer.text) {
                continue;
            }
            return answer::prompt(&answer.json()?, &request.recipe);
        }
    }
}
