//! The adapters of a session, and the transformers that were made with them.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lru::LruCache;

use super::memory::Needs;
use super::progress::Caller;
use super::residency::Residency;
use super::timings::Clock;
use super::{Model, ModelInfo, OpenModel, Request};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::files::adapter::{Adapter, AdapterUse};
use crate::nn::Placement;
use crate::transformer::Transformer;

/// How many transformers with adapters are cached.
const MAX_SETS: NonZeroUsize = NonZeroUsize::new(3).unwrap();
/// The most adapters of a request, and the strongest: more is a mistake.
const MAX_ADAPTERS: usize = 64;
const MAX_STRENGTH: f32 = 1000.0;

/// What tells sets of adapters apart: the number and the bits of the strength of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct SetKey(Vec<(u64, u32)>);

/// The adapters of a session that change anything.
#[derive(Debug, Clone, Default)]
pub(super) struct AdapterSet {
    uses: Vec<AdapterUse>,
    key: SetKey,
}

impl AdapterSet {
    pub(super) fn of(request: &Request) -> Self {
        let uses: Vec<_> = request.adapters.iter().filter(|used| used.strength != 0.0).cloned().collect();
        let key = SetKey(uses.iter().map(|used| (used.adapter.id(), used.strength.to_bits())).collect());
        Self { uses, key }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    pub(super) fn key(&self) -> &SetKey {
        &self.key
    }
}

/// What a plan says of a request's adapters.
///
/// Errors when one is made for another model, or its strength is no number or too large.
pub(super) fn notes(request: &Request, info: &ModelInfo) -> Result<Vec<String>> {
    let adapters = &request.adapters;
    if adapters.is_empty() {
        return Ok(Vec::new());
    }
    if adapters.len() > MAX_ADAPTERS {
        return Err(Error::usage(format!(
            "{} adapters are asked for, expected at most {MAX_ADAPTERS}",
            adapters.len()
        ))
        .at("--lora")
        .hint("leave some of them out"));
    }
    let modules = info.transformer.adapter_modules();
    let mut notes: Vec<String> = Vec::new();
    for AdapterUse { adapter, strength } in adapters {
        if strength.is_nan() || strength.abs() > MAX_STRENGTH {
            let what = format!("strength is {strength}, expected -{MAX_STRENGTH} to {MAX_STRENGTH}");
            return Err(Error::usage(what).at("--lora").hint("1 is the adapter as it was made"));
        }
        if !adapter.fits(&modules) {
            return Err(Error::usage("the adapter was opened for another model")
                .at_path(adapter.path())
                .hint("open it with the model that uses it"));
        }
        notes.extend(adapter.notes().iter().filter(|note| !notes.contains(note)).cloned().collect::<Vec<_>>());
    }
    Ok(notes)
}

impl ModelInfo {
    /// Opens an adapter for this model.
    ///
    /// Errors as [`Adapter::open`].
    pub fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        Adapter::open(path, &self.transformer.adapter_modules()).map(Arc::new)
    }
}

impl OpenModel {
    /// Opens an adapter for this model.
    ///
    /// Errors as [`Adapter::open`].
    pub fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        self.info.adapter(path)
    }
}

impl<B: Backend> Model<B> {
    /// Opens an adapter for this model.
    ///
    /// Errors as [`Adapter::open`].
    pub fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        self.info().adapter(path)
    }
}

/// A transformer with adapters.
pub(super) struct Adapted<B: Backend> {
    pub(super) transformer: Arc<Transformer<B>>,
    /// The transformer without them, with which it shares weights.
    base: Weak<Transformer<B>>,
    /// Where the changes of low rank are, for the curious.
    pub(super) remark: String,
}

/// The last transformers with adapters.
pub(super) struct AdaptedCache<B: Backend>(Mutex<LruCache<SetKey, Arc<Adapted<B>>>>);

impl<B: Backend> AdaptedCache<B> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LruCache::new(MAX_SETS)))
    }

    fn sets(&self) -> MutexGuard<'_, LruCache<SetKey, Arc<Adapted<B>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &SetKey, base: &Arc<Transformer<B>>) -> Option<Arc<Adapted<B>>> {
        let found = self.sets().get(key).cloned();
        found.filter(|adapted| adapted.base.as_ptr() == Arc::as_ptr(base))
    }

    /// Drops all of them. A session that uses one keeps it.
    pub(super) fn clear(&self) {
        while let Some(dropped) = self.pop() {
            drop(dropped);
        }
    }

    /// The least recently used one, which is no longer cached. The lock is released, because dropping it may wait.
    fn pop(&self) -> Option<(SetKey, Arc<Adapted<B>>)> {
        self.sets().pop_lru()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sets().len()
    }
}

impl<B: Backend> Residency<B> {
    /// `base` with a set of adapters, made where it is absent: without reading the weights that no adapter changes.
    ///
    /// Errors when memory runs out, a file was changed, or the caller cancels.
    pub(super) fn adapted(
        &self,
        base: &Arc<Transformer<B>>,
        set: &AdapterSet,
        needs: &Needs,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Arc<Adapted<B>>> {
        if let Some(found) = self.adapted.get(set.key(), base) {
            return Ok(found);
        }
        let _loading = self.loading();
        if let Some(found) = self.adapted.get(set.key(), base) {
            return Ok(found);
        }
        caller.check()?;
        self.files.transformer.check_lengths()?;
        set.uses.iter().try_for_each(|used| used.adapter.check_length())?;
        let placement = self.placement(base, set, needs);
        let layers = base.layers().adapted(&set.uses, placement)?;
        let remark = match (layers.low_ranks(), placement) {
            (0, _) => "adapters: merged into copies of the weights that they change".to_string(),
            (layers, Placement::Beside) => {
                format!("adapters: beside the weights of {layers} layers, for want of memory for merged copies")
            }
            (layers, Placement::Merged) => format!("adapters: beside the weights of {layers} layers"),
        };
        let transformer = Arc::new(base.with_layers(&self.files.transformer, &layers)?);
        let adapted = Arc::new(Adapted { transformer, base: Arc::downgrade(base), remark });
        let evicted = self.adapted.sets().push(set.key().clone(), Arc::clone(&adapted));
        self.forget(evicted.map(|(key, _)| key));
        clock.loaded()?;
        Ok(adapted)
    }

    /// Merged where there is memory for a second copy of all weights that change beside the activations of a step, for
    /// which other sets leave first.
    fn placement(&self, base: &Transformer<B>, set: &AdapterSet, needs: &Needs) -> Placement {
        let changed = base.layers().changed_elements(&set.uses);
        let bytes: u64 = changed.iter().map(|(storage, count)| self.backend.weight_bytes(*count, *storage)).sum();
        let is_short = || self.backend.available_bytes() < bytes.saturating_add(needs.step);
        while bytes > 0 && is_short() {
            match self.adapted.pop() {
                Some((key, _)) => self.forget(Some(key)),
                None => break,
            }
        }
        if bytes > 0 && is_short() {
            self.free_shapes();
            self.free_text_encoder();
        }
        if bytes > 0 && is_short() { Placement::Beside } else { Placement::Merged }
    }

    /// Drops what was kept for a set that is no longer cached, and holds its weights.
    fn forget(&self, key: Option<SetKey>) {
        if let Some(gone) = key {
            self.steps.retain(|(key, _)| *key != gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{Cpu, Precision};
    use crate::files::ModelFiles;
    use safetensors::tensor::{Dtype, TensorView};

    #[test]
    fn the_last_sets_are_cached_and_their_steps_leave_with_them() {
        let dir = ModelFiles::open("models/tiny".as_ref()).unwrap();
        let model = Model::load(Cpu::new(Precision::F32), &dir).unwrap();
        let dim = model.info().transformer.dim();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adapter.safetensors");
        let bytes = 0.01f32.to_le_bytes().repeat(dim);
        let tensor = |shape| TensorView::new(Dtype::F32, shape, &bytes).unwrap();
        let name = |half: &str| format!("transformer_blocks.0.attn.to_q.lora_{half}.weight");
        let pair = [(name("A"), tensor(vec![1, dim])), (name("B"), tensor(vec![dim, 1]))];
        safetensors::serialize_to_file(pair, None, &path).unwrap();
        let adapter = model.adapter(&path).unwrap();
        let make = |strength| {
            let adapters = vec![AdapterUse { adapter: Arc::clone(&adapter), strength }];
            let request =
                Request { width: Some(32), height: Some(32), steps: Some(1), adapters, ..Request::new("a cat", 1) };
            model.generate(&request).unwrap().rgb
        };
        let counts = || (model.residency.adapted.len(), model.residency.steps.len());
        let base = make(0.0);
        assert_eq!(counts(), (0, 1), "strength 0 is the model itself");
        let first = make(1.0);
        assert_eq!(counts(), (1, 2));
        make(2.0);
        make(3.0);
        assert_eq!(counts(), (3, 4));
        make(4.0);
        assert_eq!(counts().0, 3, "the least recently used leaves");
        assert!(make(1.0) == first && make(0.0) == base, "neither is changed by others");
        model.residency.make_room(u64::MAX, super::super::residency::Component::Transformer);
        assert_eq!(counts(), (0, 0));
        assert!(make(1.0) == first);
        assert!(
            model
                .plan(&Request { adapters: vec![AdapterUse { adapter, strength: f32::NAN }], ..Request::new("a", 1) })
                .is_err()
        );
    }
}
