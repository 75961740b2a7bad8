//! The adapters of a session.

use crate::error::{Error, Field, Result};
use crate::files::adapter::AdapterUse;
use crate::model::info::ModelInfo;

/// Upper bounds for adapters of a request and for their strength; larger values are mistakes.
const MAX_ADAPTERS: usize = 64;
const MAX_STRENGTH: f32 = 1000.0;

/// The identity of a set of adapters: for each the ID, the strength bits and the factors by blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct SetKey(Vec<(u64, u32, String)>);

/// The adapters of a session, without those of strength 0.
#[derive(Debug, Clone, Default)]
pub(crate) struct AdapterSet {
    uses: Vec<AdapterUse>,
    key: SetKey,
}

impl AdapterSet {
    pub(crate) fn new(adapters: &[AdapterUse]) -> Self {
        let uses: Vec<_> = adapters.iter().filter(|used| used.strength != 0.0).cloned().collect();
        let key = |used: &AdapterUse| (used.adapter.id(), used.strength.to_bits(), used.blocks.to_string());
        let key = SetKey(uses.iter().map(key).collect());
        Self { uses, key }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    pub(crate) fn uses(&self) -> &[AdapterUse] {
        &self.uses
    }

    pub(crate) fn key(&self) -> &SetKey {
        &self.key
    }
}

/// Returns the notes of a plan about the adapters of its request.
///
/// Errors if there are too many adapters, one is made for another model, or a strength is NaN or too large.
pub(crate) fn notes(adapters: &[AdapterUse], info: &ModelInfo) -> Result<Vec<String>> {
    if adapters.is_empty() {
        return Ok(Vec::new());
    }
    if adapters.len() > MAX_ADAPTERS {
        return Err(Error::usage(format!(
            "{} adapters were requested, expected at most {MAX_ADAPTERS}",
            adapters.len()
        ))
        .for_field(Field::Adapters)
        .hint("leave some of them out"));
    }
    let modules = info.transformer.adapter_modules()?;
    let mut notes: Vec<String> = Vec::new();
    for used in adapters {
        let AdapterUse { adapter, strength, blocks } = used;
        if strength.is_nan() || (strength * blocks.largest()).abs() > MAX_STRENGTH {
            let what = format!("strength is {strength}{}, expected -{MAX_STRENGTH} to {MAX_STRENGTH}", blocks.suffix());
            return Err(Error::usage(what).for_field(Field::Adapters).hint("use 1 for the adapter as it was trained"));
        }
        if !adapter.fits(&modules) {
            return Err(Error::usage("the adapter was opened for another model")
                .at_path(adapter.path())
                .hint("open it with the model that uses it"));
        }
        used.check().map_err(|e| e.for_field(Field::Adapters))?;
        notes.extend(adapter.notes().iter().filter(|note| !notes.contains(note)).cloned().collect::<Vec<_>>());
    }
    Ok(notes)
}
