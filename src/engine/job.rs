//! Jobs.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::expand::Words;
use super::{Enlarging, Inputs, OfImages, Recipe};
use crate::pipeline::Request;
use crate::stage::CancelFlag;

/// A job: images to generate.
#[derive(Debug, Clone)]
pub struct Job {
    /// Request for the first image; other images have the following seeds.
    pub request: Request,
    /// Number of images, at least one.
    pub count: usize,
    /// Input images of the request, see [`Inputs::apply`]: written results are composited over them.
    pub inputs: Arc<Inputs>,
    /// Recipe of the request. Image files contain it, so that the image can be reproduced.
    pub recipe: Option<Arc<Recipe>>,
    /// Words of each image, if images have prompts of their own, as in [`Expanded`](super::expand::Expanded).
    pub words: Arc<[Words]>,
    /// Image to enlarge, instead of images to generate.
    pub enlarging: Option<Arc<Enlarging>>,
    /// Index in a file of noise or latents, if the request has only one of its images.
    pub of: Option<OfImages>,
    /// Hash of the request, for the metadata of image files.
    pub key: Option<String>,
    /// `true` if XMP metadata declares that a model generated the image, and if a signer of the engine signs it.
    pub provenance: bool,
    /// `true` if image files contain neither the recipe nor texts about the request.
    pub no_recipe: bool,
    /// Owner of the job. Owners take turns by the cost of their images.
    pub owner: Owner,
    /// Priority: higher ones begin first; jobs of one owner and priority begin in the order of submission.
    pub priority: Priority,
    /// Time at which the job fails unless it was started.
    pub deadline: Option<Instant>,
    /// Maximum batch size when sharing batches with other jobs; 1 forbids sharing.
    pub max_together: usize,
    /// Maximum estimated time of a batch that the job shares with other jobs.
    pub max_latency: Option<Duration>,
    /// Time for which the job waits for others to share a batch with.
    pub window: Duration,
    /// `true` to send the text features too.
    pub embeddings: bool,
    /// `true` to send the final latents of each image too.
    pub latents: bool,
    /// `true` to send a small preview of each step.
    pub previews: bool,
    /// Cancel flag, see [`Ticket::cancel`](super::Ticket::cancel).
    pub cancel: CancelFlag,
}

impl Job {
    /// Creates a job for `count` images of a request. Seeds count up from the request's seed.
    pub fn new(request: Request, count: usize) -> Self {
        Self {
            request,
            count,
            inputs: Arc::default(),
            recipe: None,
            words: Arc::default(),
            enlarging: None,
            of: None,
            key: None,
            provenance: true,
            no_recipe: false,
            owner: Owner::default(),
            priority: Priority::default(),
            deadline: None,
            max_together: usize::MAX,
            max_latency: None,
            window: Duration::ZERO,
            embeddings: false,
            latents: false,
            previews: false,
            cancel: CancelFlag::default(),
        }
    }

    /// Creates a job that enlarges an image. It sends [`Event::Enlarged`](super::Event::Enlarged).
    pub fn enlarging(enlarging: Enlarging) -> Self {
        Self { enlarging: Some(Arc::new(enlarging)), max_together: 1, ..Self::new(Request::new("", 0), 1) }
    }

    /// Returns a job of one of the images.
    pub fn part(&self, image: usize) -> Self {
        let recipe = self.recipe.as_ref().map(|recipe| Arc::new(self.image_recipe(recipe, image)));
        Self { request: self.image_request(image), recipe, words: Arc::default(), count: 1, ..self.clone() }
    }

    /// Returns the request of one of the images.
    pub fn image_request(&self, image: usize) -> Request {
        let request = self.request.part(image..image + 1);
        match self.words.get(image) {
            Some(words) => Request { prompt: self.image_prompt(image).into_owned(), seed: words.seed, ..request },
            None => request,
        }
    }

    /// Returns a recipe of the job with the words and the seed of one of the images.
    pub fn image_recipe(&self, recipe: &Recipe, image: usize) -> Recipe {
        match self.words.get(image) {
            Some(words) => words.recipe(recipe),
            None => Recipe { seed: self.request.seed.saturating_add(image as u64), ..recipe.clone() },
        }
    }

    /// Returns the prompt of one of the images.
    pub fn image_prompt(&self, image: usize) -> Cow<'_, str> {
        match (self.words.get(image), &self.recipe) {
            (Some(words), Some(recipe)) => Cow::Owned(words.recipe(recipe).full_prompt().into_owned()),
            (Some(words), None) => Cow::Borrowed(&words.prompt),
            (None, _) => Cow::Borrowed(&self.request.prompt),
        }
    }
}

/// The identity of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub(super) u64);

/// The owner of a job. Keys take turns, and so do the users of a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// The name of a client, for example.
    pub key: Arc<str>,
    /// The user of the key.
    pub user: Arc<str>,
}

/// The priority of a job among those of all owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// After all others.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before all others.
    High,
}
