//! The models of a server: all have names, and those that were asked for last are open.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flux::engine::Engine;
use flux::stage::CancelFlag;

use super::error::{ApiError, Result};
use super::fields::shown;
use crate::allocator;
use axum::http::StatusCode;

/// Opens a model.
pub type Open = Box<dyn Fn(&CancelFlag) -> flux::Result<Engine> + Send + Sync>;

/// A model that may be asked for.
pub struct Served {
    pub name: String,
    pub open: Open,
}

/// All of them; the first is the default.
pub struct Models {
    served: Vec<Served>,
    /// Files of adapters by their names.
    adapters: BTreeMap<String, PathBuf>,
    /// Whether a name that is none of them is an error.
    strict: bool,
    /// Models that may be open at once.
    most_open: usize,
    open: Mutex<Vec<OpenModel>>,
    pub cancel: CancelFlag,
}

struct OpenModel {
    place: usize,
    engine: Arc<Engine>,
    used: Instant,
}

impl Models {
    pub fn new(served: Vec<Served>, adapters: BTreeMap<String, PathBuf>, strict: bool, most_open: usize) -> Self {
        Self { served, adapters, strict, most_open, open: Mutex::default(), cancel: CancelFlag::default() }
    }

    fn open(&self) -> MutexGuard<'_, Vec<OpenModel>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.served.iter().map(|served| &*served.name)
    }

    pub fn name(&self, place: usize) -> &str {
        &self.served[place].name
    }

    /// The place of a model by its name, and what is to be said of a name that is another's.
    ///
    /// Errors when there is no such model, where that counts.
    pub fn find(&self, name: Option<&str>) -> Result<(usize, Option<String>)> {
        let Some(name) = name else { return Ok((0, None)) };
        if let Some(place) = self.names().position(|known| known == name) {
            return Ok((place, None));
        }
        if self.strict {
            return Err(self.unknown(name));
        }
        Ok((0, Some(format!("there is no model `{}` here: `{}` is used", shown(name), self.name(0)))))
    }

    pub fn unknown(&self, name: &str) -> ApiError {
        let known: Vec<_> = self.names().collect();
        let message = format!("there is no model `{}`, expected {}", shown(name), known.join(", "));
        ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).of("model")
    }

    /// The names of the adapters.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.adapters.keys().map(String::as_str)
    }

    /// The file of an adapter.
    ///
    /// Errors when there is none of this name.
    pub fn adapter(&self, name: &str) -> Result<&PathBuf> {
        self.adapters.get(name).ok_or_else(|| {
            let known: Vec<_> = self.adapters().collect();
            let known = if known.is_empty() {
                "there is none here".to_string()
            } else {
                format!("expected {}", known.join(", "))
            };
            ApiError::value("loras", format!("there is no LoRA `{}`: {known}", shown(name)))
        })
    }

    /// The engine of a model that is open.
    pub fn resident(&self, place: usize) -> Option<Arc<Engine>> {
        self.open().iter().find(|open| open.place == place).map(|open| Arc::clone(&open.engine))
    }

    /// Whether a model is distilled; one that is not open is taken to be.
    pub fn is_distilled(&self, place: usize) -> bool {
        self.resident(place).is_none_or(|engine| engine.info().is_distilled)
    }

    /// The engine of a model, which is opened unless it is open; those that were not used for longest make room. Nobody
    /// may be using them.
    ///
    /// Errors when it cannot be opened.
    pub fn engine(&self, place: usize) -> flux::Result<Arc<Engine>> {
        if let Some(open) = self.open().iter_mut().find(|open| open.place == place) {
            open.used = Instant::now();
            return Ok(Arc::clone(&open.engine));
        }
        loop {
            let mut open = self.open();
            if open.len() < self.most_open {
                break;
            }
            let Some(oldest) = (0..open.len()).min_by_key(|place| open[*place].used) else { break };
            let oldest = open.swap_remove(oldest);
            drop(open);
            drop(oldest);
            allocator::trim();
        }
        let engine = Arc::new((self.served[place].open)(&self.cancel)?);
        self.open().push(OpenModel { place, engine: Arc::clone(&engine), used: Instant::now() });
        Ok(engine)
    }

    /// Closes those that were not used for so long. Nobody may be using them. Returns their names.
    pub fn close_unused(&self, longer_than: Duration) -> Vec<&str> {
        let closed: Vec<OpenModel> = self.open().extract_if(.., |open| open.used.elapsed() > longer_than).collect();
        let names = closed.iter().map(|open| self.name(open.place)).collect();
        if !closed.is_empty() {
            drop(closed);
            allocator::trim();
        }
        names
    }
}
