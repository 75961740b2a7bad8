//! The adapters of a session.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Field, Result};
use crate::files::adapter::{self, Adapter, AdapterUse};
use crate::model::ModelInfo;

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
    pub(super) fn of(adapters: &[AdapterUse]) -> Self {
        let uses: Vec<_> = adapters.iter().filter(|used| used.strength != 0.0).cloned().collect();
        let key = SetKey(uses.iter().map(|used| (used.adapter.id(), used.strength.to_bits())).collect());
        Self { uses, key }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    pub(super) fn uses(&self) -> &[AdapterUse] {
        &self.uses
    }

    pub(super) fn key(&self) -> &SetKey {
        &self.key
    }
}

/// What a plan says of the adapters of a request.
///
/// Errors when one is made for another model, or its strength is no number or too large.
pub(super) fn notes(adapters: &[AdapterUse], info: &ModelInfo) -> Result<Vec<String>> {
    if adapters.is_empty() {
        return Ok(Vec::new());
    }
    if adapters.len() > MAX_ADAPTERS {
        return Err(Error::usage(format!(
            "{} adapters are asked for, expected at most {MAX_ADAPTERS}",
            adapters.len()
        ))
        .of(Field::Adapters)
        .hint("leave some of them out"));
    }
    let modules = info.transformer.adapter_modules();
    let mut notes: Vec<String> = Vec::new();
    for AdapterUse { adapter, strength } in adapters {
        if strength.is_nan() || strength.abs() > MAX_STRENGTH {
            let what = format!("strength is {strength}, expected -{MAX_STRENGTH} to {MAX_STRENGTH}");
            return Err(Error::usage(what).of(Field::Adapters).hint("1 is the adapter as it was made"));
        }
        if !adapter.fits(&modules) {
            return Err(Error::usage("the adapter was opened for another model")
                .at_path(adapter.path())
                .hint("open it with the model that uses it"));
        }
        adapter.check_strength(*strength).map_err(|e| e.of(Field::Adapters))?;
        notes.extend(adapter.notes().iter().filter(|note| !notes.contains(note)).cloned().collect::<Vec<_>>());
    }
    Ok(notes)
}

impl ModelInfo {
    /// Opens an adapter for this model.
    ///
    /// Errors as [`Adapter::open`].
    pub fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        self.adapter_near(path, None)
    }

    /// The same, for a model whose transformer is the file `weights`.
    pub(super) fn adapter_near(&self, path: &Path, weights: Option<&Path>) -> Result<Arc<Adapter>> {
        let others = weights.map(adapter::folders_near).unwrap_or_default();
        Adapter::open_near(path, &self.transformer.adapter_modules(), &others).map(Arc::new)
    }
}
