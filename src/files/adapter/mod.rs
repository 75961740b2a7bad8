//! Adapters: files that change the weights of a transformer, such as LoRA.
//!
//! Writers name the layers in many ways. The names are looked up in a table of the model's [`Modules`], and what is
//! left over is reported. An [`Adapter`] says for each tensor of the checkpoint which [`Change`]s its rows get. The
//! numbers stay in the mapped file.
//!
//! | kind | keys | the weight becomes |
//! |---|---|---|
//! | LoRA | `lora_A`, `lora_B`; `lora_down`, `lora_up` | `W + s B A` |
//! | LoKr | `lokr_w1`, `lokr_w2`, or `_a` and `_b` of them | `W + s kron(w1, w2)` |
//! | LoHa | `hada_w1_a` to `hada_w2_b` | `W + alpha / rank * (w1_a w1_b) * (w2_a w2_b)` |
//! | DoRA | one of these with `dora_scale` | that sum, its rows or columns brought to these lengths |
//! | difference | `diff`, `set_weight` | `W + diff`; `set_weight` |
//!
//! s is `alpha / rank`, or what PEFT's metadata says, and 1 where neither is there; of LoKr also where no factor is a
//! product.

mod change;
mod foreign;
mod keys;
mod merge;
mod metadata;
mod modules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use change::{Change, LowRank};
pub use merge::ColumnLengths;
pub use modules::{Module, Modules, Place};

use super::safetensors::Safetensors;
use crate::error::{Error, Result};
use change::Tensors;
use keys::{Role, is_of_text_encoder};
use metadata::Metadata;

const FETCH_AGAIN: &str = "the file is damaged or its download was cut off: fetch it again";
/// How many names a message shows.
const MOST_NAMES: usize = 4;

/// The changes of a file to the weights of one model.
pub struct Adapter {
    path: PathBuf,
    file: Safetensors,
    id: u64,
    /// By the key of the tensor in the checkpoint.
    changes: BTreeMap<String, Vec<Piece>>,
    modules: Modules,
    notes: Vec<String>,
}

/// The change of some rows of a tensor.
#[derive(Clone)]
pub struct Piece {
    /// The change of the module that the rows are of.
    pub change: Arc<Change>,
    /// Where they are.
    pub place: Place,
}

/// An adapter with the strength at which it is used.
#[derive(Clone)]
pub struct AdapterUse {
    /// The adapter.
    pub adapter: Arc<Adapter>,
    /// Multiplies the change: 1 as the file has it, 0 none; may be negative.
    pub strength: f32,
}

impl PartialEq for AdapterUse {
    fn eq(&self, other: &Self) -> bool {
        self.adapter.id == other.adapter.id && self.strength.to_bits() == other.strength.to_bits()
    }
}

impl std::fmt::Debug for AdapterUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.adapter.path.display(), self.strength)
    }
}

/// The tensors of a file that name one module.
struct Named {
    /// As the file has it.
    text: String,
    /// Role and key.
    keys: BTreeMap<Role, String>,
}

impl Adapter {
    /// Opens a file and checks all of it against the model of these `modules`.
    ///
    /// Errors when it is no safetensors file, changes no layer of the model, is made for another model, lacks a tensor
    /// or has one of another shape, or holds values that are not finite.
    pub fn open(path: &Path, modules: &Modules) -> Result<Self> {
        Self::of_file(Safetensors::open(path, FETCH_AGAIN)?, modules).map_err(|e| e.at_path(path).hint(FETCH_AGAIN))
    }

    /// As [`Adapter::open`].
    fn of_file(file: Safetensors, modules: &Modules) -> Result<Self> {
        let (named, notes) = sort(&file, modules)?;
        let metadata = Metadata::read(file.metadata())?;
        file.check_finite()?;
        let mut changes: BTreeMap<String, Vec<Piece>> = BTreeMap::new();
        for (index, Named { text, keys }) in &named {
            let module = modules.get(*index);
            let tensors = keys.iter().map(|(role, key)| Ok((*role, (key.clone(), file.tensor(key)?))));
            let tensors: Tensors = tensors.collect::<Result<_>>()?;
            foreign::check_shape(&tensors, module, modules)?;
            // PEFT writes metadata, and its factors are A and B; alpha of other writers is a tensor.
            let is_peft = keys.values().any(|key| key.contains(".lora_A"));
            let scale = |rank| metadata.as_ref().filter(|_| is_peft)?.scale(&module.name, rank);
            for change in
                Change::all(tensors, module, scale).map_err(|e| e.at(format!("`{text}`, {}", file.path().display())))?
            {
                let change = Arc::new(change);
                for place in &module.places {
                    let piece = Piece { change: Arc::clone(&change), place: place.clone() };
                    changes.entry(place.key.clone()).or_default().push(piece);
                }
            }
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { path: file.path().to_path_buf(), file, id, changes, modules: modules.clone(), notes })
    }

    /// Whether it was opened for a model of these modules.
    pub fn fits(&self, modules: &Modules) -> bool {
        self.modules == *modules
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A number that no other adapter of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What the user should know: what in the file has no effect.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The changes of a tensor of the checkpoint.
    pub fn changes(&self, key: &str) -> &[Piece] {
        self.changes.get(key).map_or(&[], Vec::as_slice)
    }

    /// Errors when the file is not as long as when it was opened.
    pub fn check_length(&self) -> Result<()> {
        self.file.check_length()
    }
}

/// Modules by index with their tensors, and notes on what was left over.
type Sorted = (BTreeMap<usize, Named>, Vec<String>);

/// Sorts the tensors of a file by the modules that they name.
///
/// Errors when none of them is a layer of the model, most are another model's, or a tensor is there twice.
fn sort(file: &Safetensors, modules: &Modules) -> Result<Sorted> {
    let mut names: Vec<&str> = file.names().collect();
    names.sort_unstable();
    let (mut named, mut unknown, mut of_text_encoder) = (BTreeMap::<usize, Named>::new(), BTreeSet::new(), Vec::new());
    for key in names {
        let parsed = keys::parse(key);
        let Some((index, (text, role))) = parsed.and_then(|parsed| Some((modules.find(parsed.0)?, parsed))) else {
            if is_of_text_encoder(key) {
                of_text_encoder.push(key);
            } else {
                unknown.insert(parsed.map_or(key, |(text, _)| text).to_string());
            }
            continue;
        };
        let module = named.entry(index).or_insert_with(|| Named { text: text.to_string(), keys: BTreeMap::new() });
        if let Some(other) = module.keys.insert(role, key.to_string()) {
            return Err(Error::new(format!("tensors `{other}` and `{key}` are the same factor of the same layer"))
                .hint("two files were joined: use each of them as an adapter of its own"));
        }
    }
    let texts = named.values().map(|named| named.text.as_str()).chain(unknown.iter().map(String::as_str));
    foreign::check_names(texts, unknown.iter().map(String::as_str), modules)?;
    let (found, all) = (named.len(), named.len() + unknown.len());
    if found == 0 {
        let names = if all == 0 { &of_text_encoder } else { &unknown.iter().map(String::as_str).collect() };
        return Err(Error::new(format!("the adapter changes no layer of the model: it names {}", list(names)))
            .hint("this program takes LoRA, LoKr, LoHa, DoRA and differences for the transformer of FLUX.2 klein"));
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
