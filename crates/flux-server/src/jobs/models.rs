//! The models of a server. The most recently used ones are loaded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flux::engine::{Engine, Scheduler};
use flux::model::ModelInfo;
use flux::stage::CancelFlag;
use parking_lot::Mutex;

use crate::http::error::{ApiError, Result, shown};
use crate::upscalers::Upscalers;
use axum::http::StatusCode;
use flux_runtime::allocator;

/// Loads a model. Calls the function on each progress.
pub type Open = Box<dyn Fn(&CancelFlag, &dyn Fn()) -> flux::Result<Arc<Engine>> + Send + Sync>;

/// A model that requests may name.
pub struct Served {
    pub name: String,
    /// The configuration of the model, if it is known before the model is loaded.
    pub info: Option<Arc<ModelInfo>>,
    /// The name and the address of the licence of the weights, if known.
    pub licence: Option<(String, Option<String>)>,
    pub open: Open,
}

/// All models. The first one is the default.
pub struct Models {
    served: Vec<Served>,
    /// Adapter files by name.
    adapters: BTreeMap<String, PathBuf>,
    upscalers: Upscalers,
    /// `true` if an unknown model name is an error.
    strict: bool,
    /// Max models loaded at once.
    max_open: usize,
    open: Mutex<Vec<OpenModel>>,
    /// The scheduler of all engines.
    scheduler: Arc<Scheduler>,
    /// `true` if a client asked to unload idle models.
    closes: AtomicBool,
    /// For each model, `true` if it is distilled. Set when the model is first loaded.
    distilled: Vec<OnceLock<bool>>,
    pub cancel: CancelFlag,
}

/// File extensions of models and adapters.
const ENDINGS: [&str; 6] = [".safetensors", ".sft", ".gguf", ".ckpt", ".pt", ".bin"];

/// Returns the file name of a path.
fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or_default()
}

/// Returns the file name of a model or an adapter, without its extension.
pub fn stem(path: &str) -> &str {
    let name = file_name(path);
    let split = |ending: &&str| name.split_at_checked(name.len().checked_sub(ending.len())?);
    let is_ending = |ending: &&str| {
        split(ending).is_some_and(|(stem, found)| !stem.is_empty() && found.eq_ignore_ascii_case(ending))
    };
    ENDINGS.iter().find(|ending| is_ending(ending)).map_or(name, |ending| &name[..name.len() - ending.len()])
}

struct OpenModel {
    place: usize,
    engine: Arc<Engine>,
    used: Instant,
}

impl Models {
    pub fn new(served: Vec<Served>, adapters: BTreeMap<String, PathBuf>, strict: bool, max_open: usize) -> Self {
        let distilled = served.iter().map(|_| OnceLock::new()).collect();
        let (upscalers, open, scheduler, closes, cancel) = Default::default();
        Self { served, adapters, upscalers, strict, max_open, open, scheduler, closes, distilled, cancel }
    }

    /// Creates models of one engine that is open already, and that the program may use as well.
    pub fn from_engine(name: impl Into<String>, engine: Arc<Engine>) -> Self {
        let info = Some(Arc::new(engine.info().clone()));
        let open: Open = Box::new(move |_, _| Ok(Arc::clone(&engine)));
        Self::new(vec![Served { name: name.into(), info, licence: None, open }], BTreeMap::new(), false, 1)
    }

    /// Adds the upscalers in a folder.
    pub fn with_upscalers(self, folder: Option<PathBuf>) -> Self {
        Self { upscalers: Upscalers::new(folder), ..self }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.served.iter().map(|served| &*served.name)
    }

    pub fn name(&self, place: usize) -> &str {
        &self.served[place].name
    }

    /// Returns the configuration of a model, if it is known before the model is loaded.
    pub fn info(&self, place: usize) -> Option<Arc<ModelInfo>> {
        self.served[place].info.clone()
    }

    /// Returns the name and the address of the licence of a model's weights, if known.
    pub fn licence(&self, place: usize) -> Option<&(String, Option<String>)> {
        self.served[place].licence.as_ref()
    }

    /// Returns the index of a model, and a note if another model is used instead.
    ///
    /// Errors if the model is unknown and names are checked strictly.
    pub fn find(&self, name: Option<&str>) -> Result<(usize, Option<String>)> {
        let Some(name) = name else { return Ok((0, None)) };
        let exact = self.names().position(|known| known == name);
        let similar = || self.names().position(|known| known.eq_ignore_ascii_case(name));
        if let Some(place) = exact.or_else(similar) {
            return Ok((place, None));
        }
        if self.strict {
            return Err(self.unknown(name));
        }
        Ok((0, Some(format!("there is no model `{}`: `{}` is used instead", shown(name), self.name(0)))))
    }

    pub fn unknown(&self, name: &str) -> ApiError {
        let known: Vec<_> = self.names().collect();
        let message = format!("there is no model `{}`, expected {}", shown(name), known.join(", "));
        ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).with_param("model")
    }

    pub(crate) fn upscalers(&self) -> &Upscalers {
        &self.upscalers
    }

    /// Returns the names of the adapters.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.adapters.keys().map(String::as_str)
    }

    /// Returns the file of an adapter.
    ///
    /// Errors as [`Models::adapter_name`].
    pub fn adapter(&self, name: &str) -> Result<&PathBuf> {
        self.adapter_name(name).map(|name| &self.adapters[name])
    }

    /// Returns the server's own name of an adapter. Folders, file extension and case are ignored, unless that is
    /// ambiguous.
    ///
    /// Errors if no adapter matches, or several do.
    pub fn adapter_name(&self, name: &str) -> Result<&str> {
        let (file, named) = (file_name(name), stem(name).to_lowercase());
        let exact = [name, file, stem(name)].into_iter().find_map(|name| self.adapters.get_key_value(name));
        if let Some((own, _)) = exact {
            return Ok(own);
        }
        let like: Vec<_> = self.adapters().filter(|own| stem(own).to_lowercase() == named).collect();
        let message = match &*like {
            [only] => return Ok(only),
            [] => {
                let known: Vec<_> = self.adapters().collect();
                let known = if known.is_empty() { "no LoRA".to_string() } else { known.join(", ") };
                format!("there is no LoRA `{}`: the server has {known}", shown(name))
            }
            several => format!("the LoRA `{}` is ambiguous: expected {}", shown(name), several.join(" or ")),
        };
        Err(ApiError::value("loras", message))
    }

    /// Returns the engine of a model, if it is loaded.
    pub fn resident(&self, place: usize) -> Option<Arc<Engine>> {
        self.open.lock().iter().find(|open| open.place == place).map(|open| Arc::clone(&open.engine))
    }

    /// Returns the index of the model that was used last among the loaded ones, or of the default model.
    pub fn last_used(&self) -> usize {
        self.open.lock().iter().max_by_key(|open| open.used).map_or(0, |open| open.place)
    }

    /// Returns the scheduler of all engines.
    pub fn scheduler(&self) -> &Arc<Scheduler> {
        &self.scheduler
    }

    /// Records that a model is in use.
    pub fn touch(&self, place: usize) {
        self.open.lock().iter_mut().filter(|open| open.place == place).for_each(|open| open.used = Instant::now());
    }

    /// Returns `true` if a model is distilled, or was never loaded.
    pub fn is_distilled(&self, place: usize) -> bool {
        self.distilled[place].get().copied().unwrap_or(true)
    }

    /// Unloads all models as soon as no request needs them.
    pub fn close_when_idle(&self) {
        self.closes.store(true, Ordering::Relaxed);
    }

    /// Returns the idle time after which models are unloaded: zero if a client asked for it, else `idle`.
    pub fn closes_after(&self, idle: Option<Duration>) -> Option<Duration> {
        if self.closes.swap(false, Ordering::Relaxed) { Some(Duration::ZERO) } else { idle }
    }

    /// Returns the engine of a model, loading it if needed. The least recently used engines are unloaded to make room,
    /// and must not be in use. `progress` is called on each progress.
    ///
    /// Errors if the model cannot be loaded.
    pub fn engine(&self, place: usize, progress: &dyn Fn()) -> flux::Result<Arc<Engine>> {
        if let Some(open) = self.open.lock().iter_mut().find(|open| open.place == place) {
            open.used = Instant::now();
            return Ok(Arc::clone(&open.engine));
        }
        loop {
            let mut open = self.open.lock();
            if open.len() < self.max_open {
                break;
            }
            let Some(oldest) = (0..open.len()).min_by_key(|place| open[*place].used) else { break };
            let oldest = open.swap_remove(oldest);
            drop(open);
            drop(oldest);
            allocator::trim();
        }
        let engine = (self.served[place].open)(&self.cancel, progress)?;
        engine.join(&self.scheduler, place);
        let _ = self.distilled[place].set(engine.info().is_distilled); // the same each time
        self.open.lock().push(OpenModel { place, engine: Arc::clone(&engine), used: Instant::now() });
        Ok(engine)
    }

    /// Unloads models that were idle for this time, which must not be in use. Returns their names.
    pub fn close_unused(&self, longer_than: Duration) -> Vec<&str> {
        let closed: Vec<OpenModel> =
            self.open.lock().extract_if(.., |open| open.used.elapsed() > longer_than).collect();
        let names = closed.iter().map(|open| self.name(open.place)).collect();
        if !closed.is_empty() {
            drop(closed);
            allocator::trim();
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_found_by_its_name_without_folder_ending_and_case() {
        let names = ["ink", "Oil.v1", "oil.V1", "photo.safetensors"];
        let adapters = names.map(|name| (name.to_string(), PathBuf::from(name))).into();
        let models = Models::new(Vec::new(), adapters, false, 1);
        for (asked, own) in [
            ("ink", "ink"),
            ("styles/Ink.safetensors", "ink"),
            ("C:\\loras\\INK.SAFETENSORS", "ink"),
            ("oil.V1", "oil.V1"),
            ("x/Oil.v1.gguf", "Oil.v1"),
            ("Photo", "photo.safetensors"),
        ] {
            assert_eq!(models.adapter_name(asked).unwrap(), own, "{asked}");
            assert_eq!(models.adapter(asked).unwrap(), &PathBuf::from(own));
        }
        let wrong = |name: &str| models.adapter_name(name).unwrap_err().message;
        assert!(wrong("OIL.V1").contains("Oil.v1 or oil.V1"), "{}", wrong("OIL.V1"));
        for none in ["", "/", ".safetensors", "in", "inks", "oil", "é"] {
            assert!(wrong(none).contains("no LoRA"), "{none}: {}", wrong(none));
        }
    }
}
