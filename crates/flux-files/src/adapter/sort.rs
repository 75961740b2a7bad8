//! Assignment of a file's tensors to the layers of the model, with notes on the rest.

use std::collections::{BTreeMap, BTreeSet};

use super::keys::{self, is_of_text_encoder};
use super::modules::Modules;
use super::{Keys, foreign};
use crate::containers::safetensors::Safetensors;
use crate::io::{name_of, near::listed};
use flux_base::error::{Error, Result};

/// The max number of names in a message.
const MAX_NAMES: usize = 4;
const READ: &str = "use a LoRA, LoKr, LoHa, DoRA or difference adapter for the transformer of FLUX.2 klein";

/// The tensors of a file that name one module.
pub struct Named {
    /// The module's name as the file has it.
    pub text: String,
    /// Keys by role.
    pub keys: Keys,
}

/// Modules by index with their tensors, and notes on the tensors that were left out.
pub type Sorted = (BTreeMap<usize, Named>, Vec<String>);

/// Sorts the tensors of a file by the modules that they name.
///
/// Errors if no tensor belongs to a layer of the model, if most belong to another model, or if a tensor of a layer has
/// no known kind or occurs twice.
pub fn sort(file: &Safetensors, modules: &Modules) -> Result<Sorted> {
    let mut names: Vec<&str> = file.names().collect();
    names.sort_unstable();
    foreign::check_names(&names, |key| file.shape(key), modules)?;
    let (mut named, mut unknown, mut of_text_encoder) = (BTreeMap::<usize, Named>::new(), BTreeSet::new(), Vec::new());
    for key in names {
        let parsed = keys::parse(key);
        if let Some((index, (text, role))) = parsed.and_then(|parsed| Some((modules.find(parsed.0)?, parsed))) {
            let module = named.entry(index).or_insert_with(|| Named { text: text.to_string(), keys: Keys::new() });
            if let Some(other) = module.keys.insert(role, key.to_string()) {
                return Err(Error::new(format!("tensors `{other}` and `{key}` are the same factor of the same layer"))
                    .hint("two files were merged: use each file as a separate adapter"));
            }
        } else if let Some((index, end)) = modules.find_in(key) {
            let (layer, why) = (&modules.get(index).name, keys::why_unread(end));
            return Err(Error::new(format!("tensor `{key}` of layer `{layer}` {why}")).hint(READ));
        } else if is_of_text_encoder(key) {
            of_text_encoder.push(key);
        } else {
            unknown.insert(parsed.map_or(key, |(text, _)| text).to_string());
        }
    }
    let (found, all) = (named.len(), named.len() + unknown.len());
    if found == 0 {
        let names = if all == 0 { &of_text_encoder } else { &unknown.iter().map(String::as_str).collect() };
        let names = if names.is_empty() { "none".to_string() } else { listed(names.iter(), MAX_NAMES) };
        let what = format!("the adapter changes no layer of the model: it names {names}");
        return Err(Error::new(what).hint(READ));
    }
    let name = name_of(file.path());
    let mut notes = Vec::new();
    if let Some(first) = unknown.first() {
        notes.push(format!(
            "of the {all} layers that adapter `{name}` names, {found} are in the model; \
             the first missing one is `{first}`"
        ));
    }
    if let Some(first) = of_text_encoder.first() {
        let count = of_text_encoder.len();
        notes.push(format!(
            "adapter `{name}` has {count} tensors for a text encoder, which are ignored; the first is `{first}`"
        ));
    }
    Ok((named, notes))
}
