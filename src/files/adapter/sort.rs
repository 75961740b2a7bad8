//! Which tensors of a file are of which layer of the model, and what is left over.

use std::collections::{BTreeMap, BTreeSet};

use super::foreign;
use super::keys::{self, Role, is_of_text_encoder};
use super::modules::Modules;
use crate::error::{Error, Result};
use crate::files::safetensors::Safetensors;

/// How many names a message shows.
const MOST_NAMES: usize = 4;
const READ: &str = "this program takes LoRA, LoKr, LoHa, DoRA and differences for the transformer of FLUX.2 klein";

/// The tensors of a file that name one module.
pub struct Named {
    /// As the file has it.
    pub text: String,
    /// Role and key.
    pub keys: BTreeMap<Role, String>,
}

/// Modules by index with their tensors, and notes on what was left over.
pub type Sorted = (BTreeMap<usize, Named>, Vec<String>);

/// Sorts the tensors of a file by the modules that they name.
///
/// Errors when none of them is a layer of the model, most are another model's, a tensor of a layer is of no known kind,
/// or is there twice.
pub fn sort(file: &Safetensors, modules: &Modules) -> Result<Sorted> {
    let mut names: Vec<&str> = file.names().collect();
    names.sort_unstable();
    foreign::check_names(&names, |key| file.shape(key), modules)?;
    let (mut named, mut unknown, mut of_text_encoder) = (BTreeMap::<usize, Named>::new(), BTreeSet::new(), Vec::new());
    for key in names {
        let parsed = keys::parse(key);
        if let Some((index, (text, role))) = parsed.and_then(|parsed| Some((modules.find(parsed.0)?, parsed))) {
            let module = named.entry(index).or_insert_with(|| Named { text: text.to_string(), keys: BTreeMap::new() });
            if let Some(other) = module.keys.insert(role, key.to_string()) {
                return Err(Error::new(format!("tensors `{other}` and `{key}` are the same factor of the same layer"))
                    .hint("two files were joined: use each of them as an adapter of its own"));
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
        let what = format!("the adapter changes no layer of the model: it names {}", list(names));
        return Err(Error::new(what).hint(READ));
    }
    let name = file.path().file_name().unwrap_or_default().to_string_lossy();
    let mut notes = Vec::new();
    if let Some(first) = unknown.first() {
        notes.push(format!(
            "of the {all} layers that adapter `{name}` names, {found} are in the model; \
             the first of the others is `{first}`"
        ));
    }
    if let Some(first) = of_text_encoder.first() {
        let count = of_text_encoder.len();
        notes.push(format!(
            "adapter `{name}` has {count} tensors for a text encoder, which are left out; the first is `{first}`"
        ));
    }
    Ok((named, notes))
}

/// The first names of a list, and how many more there are.
fn list(names: &Vec<&str>) -> String {
    if names.is_empty() {
        return "none".to_string();
    }
    let shown: Vec<String> = names.iter().take(MOST_NAMES).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(MOST_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
