//! Adapters: files that change the weights of a transformer, such as LoRA.
//!
//! Writers name the layers in many ways. [`Adapter::open`], the place to start reading, looks the names up in the
//! [`Modules`] of the model and reports those that are not found. An [`Adapter`] holds the [`Change`]s for each tensor
//! of the checkpoint, by rows. The numbers stay in the mapped file. Nothing here depends on a device, or on how a model
//! computes.
//!
//! | kind | keys | the weight becomes |
//! |---|---|---|
//! | LoRA | `lora_A`, `lora_B`; `lora_down`, `lora_up` | `W + s B A` |
//! | LoKr | `lokr_w1`, `lokr_w2`, or their `_a` and `_b` | `W + s kron(w1, w2)` |
//! | LoHa | `hada_w1_a` to `hada_w2_b` | `W + alpha / rank * (w1_a w1_b) * (w2_a w2_b)` |
//! | DoRA | one of these with a magnitude | the sum above, its rows or columns scaled to the magnitudes |
//! | difference | `diff`, `set_weight` | `W + diff`; `set_weight` |
//!
//! s is `alpha / rank`, see [`scaling`]. It is 1 without alpha, and for LoKr also if no factor is a product. A tensor
//! of a known layer that has none of these kinds is an error.

mod blocks;
mod change;
mod extent;
mod foreign;
mod header;
mod keys;
mod locate;
mod merge;
mod modules;
mod norms;
mod patterns;
mod peft;
mod scaling;
mod sort;
#[cfg(test)]
mod tests;
mod values;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub use blocks::BlockStrengths;
pub use change::{Change, LowRank};
pub use locate::{files_of, folders_near};
pub use merge::ColumnLengths;
pub use modules::{Module, ModuleRows, Modules};
pub use norms::{AdapterNorms, BlockNorm};

use crate::containers::safetensors::Safetensors;
use crate::formats::tensor_view::TensorView;
use crate::io::regular::read_bounded;
use crate::models::digest;
use change::Tensors;
use flux_base::error::{Error, Result};
use keys::{ALPHA, DOWN, MAGNITUDE, Role};
use locate::Found;
use peft::Peft;
use scaling::{Factors, Scaling};
use sort::{Named, sort};

/// The max size of a config next to an adapter, in bytes.
const MAX_CONFIG: usize = 1 << 20;

const FETCH_AGAIN: &str = "the file is damaged or its download was cut off: fetch it again";

/// The changes that a file makes to the weights of one model.
pub struct Adapter {
    path: PathBuf,
    file: Safetensors,
    id: u64,
    /// Changes by the key of the tensor in the checkpoint.
    changes: BTreeMap<String, Vec<ChangedRows>>,
    modules: Modules,
    notes: Vec<String>,
    extent: f64,
    /// The config next to the file.
    config: Option<PathBuf>,
    digest: OnceLock<String>,
}

/// The change of some rows of a tensor.
#[derive(Clone)]
pub struct ChangedRows {
    /// The change of the whole module.
    pub change: Arc<Change>,
    /// The rows in the module and in the checkpoint.
    pub place: ModuleRows,
}

/// An adapter with its strength.
#[derive(Clone)]
pub struct AdapterUse {
    /// The adapter.
    pub adapter: Arc<Adapter>,
    /// The multiplier of the change: 1 applies it as stored, 0 not at all; may be negative.
    pub strength: f32,
    /// Factors of the strength by blocks.
    pub blocks: BlockStrengths,
}

impl AdapterUse {
    /// Creates a use with one strength for all blocks.
    pub fn new(adapter: Arc<Adapter>, strength: f32) -> Self {
        Self { adapter, strength, blocks: BlockStrengths::default() }
    }

    /// Returns the strength in a layer by its key in the checkpoint.
    pub fn strength_in(&self, key: &str) -> f32 {
        self.strength * self.blocks.factor(key, self.adapter.modules.architecture())
    }

    /// Returns the changes of a tensor of the checkpoint; none if their strength is 0.
    pub fn changes(&self, key: &str) -> &[ChangedRows] {
        if self.strength_in(key) == 0.0 { &[] } else { self.adapter.changes(key) }
    }

    /// Errors if the model lacks a block with a factor, or if values of the change overflow.
    pub fn check(&self) -> Result<()> {
        self.blocks.check(&self.adapter.modules)?;
        self.adapter.check_strength(self.strength * self.blocks.largest())
    }
}

impl PartialEq for AdapterUse {
    fn eq(&self, other: &Self) -> bool {
        self.adapter.id == other.adapter.id
            && self.strength.to_bits() == other.strength.to_bits()
            && self.blocks == other.blocks
    }
}

impl std::fmt::Debug for AdapterUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}{}", self.adapter.path.display(), self.strength, self.blocks.suffix())
    }
}

impl Adapter {
    /// Opens a file, or the folder of one, and checks all of it against the model with these `modules`.
    ///
    /// Errors if the file is no safetensors file, changes no layer of the model, is made for another model, lacks a
    /// tensor, has a tensor that is not read or has another shape, holds values that are not finite or overflow, or
    /// gives its scale in a way that is not understood.
    pub fn open(path: &Path, modules: &Modules) -> Result<Self> {
        Self::open_near(path, modules, &[])
    }

    /// Opens an adapter as [`Adapter::open`]. If there is no such file, the error suggests files of similar names next
    /// to it and in the folders `others`.
    ///
    /// Errors as [`Adapter::open`].
    pub fn open_near(path: &Path, modules: &Modules, others: &[PathBuf]) -> Result<Self> {
        let Found { file, config, note } = locate::find(path, others)?;
        let peft = config.as_deref().map(Peft::from_file).transpose()?;
        let at = file.path().to_path_buf();
        let mut adapter = Self::from_file(path, file, peft, modules).map_err(|e| e.at_path(&at).hint(FETCH_AGAIN))?;
        adapter.config = config;
        adapter.notes.extend(note);
        Ok(adapter)
    }

    /// Creates the adapter of an opened file, as [`Adapter::open`]. `config` is the one next to the file.
    fn from_file(path: &Path, file: Safetensors, config: Option<Peft>, modules: &Modules) -> Result<Self> {
        let (named, mut notes) = sort(&file, modules)?;
        notes.extend(file.notes());
        file.check_finite()?;
        let mut changes: BTreeMap<String, Vec<ChangedRows>> = BTreeMap::new();
        let scaling = Scaling::new(file.metadata(), config)?;
        let (mut extent, mut overridden, mut layers) = (0.0, Vec::new(), Vec::new());
        for (index, Named { text, keys }) in &named {
            let module = modules.get(*index);
            let (alpha, tensors) = read_layer(&file, keys)?;
            foreign::check_shape(&tensors, module, modules)?;
            let own = without_prefix(text);
            let names: Vec<String> = modules.aliases(*index).chain([own]).map(str::to_string).collect();
            let is_peft = is_peft(keys);
            let is_overridden = Cell::new(false);
            let scale = |rank| {
                let (scale, is_other) = scaling.scale_for(&Factors { names: &names, alpha, is_peft }, rank)?;
                is_overridden.set(is_other);
                Ok(scale)
            };
            let made = || {
                if keys.contains_key(DOWN) {
                    scaling.peft().iter().try_for_each(|peft| peft.check_dora(text, keys.contains_key(MAGNITUDE)))?;
                }
                Change::all(tensors, alpha.is_some(), module, scale)
            };
            for change in made().map_err(|e| e.at(format!("`{text}`, {}", file.path().display())))? {
                extent = change.extent().max(extent);
                let change = Arc::new(change);
                for place in &module.places {
                    let piece = ChangedRows { change: Arc::clone(&change), place: place.clone() };
                    changes.entry(place.key.clone()).or_default().push(piece);
                }
            }
            overridden.extend(is_overridden.get().then_some(text));
            layers.push(names);
        }
        if let Some(first) = overridden.first() {
            notes.push(format!(
                "adapter `{}` has two alphas for {} layers, its metadata takes precedence; \
                 the first layer is `{first}`",
                path.display(),
                overridden.len()
            ));
        }
        let name = path.display();
        notes.extend(scaling.note().map(|note| format!("adapter `{name}`: {note}")));
        let of_layers = layers.iter().map(Vec::as_slice);
        notes.extend(scaling.peft().iter().flat_map(|peft| peft.notes(of_layers.clone())));
        if changes.values().flatten().all(|piece| piece.change.is_nothing()) {
            let path = path.display();
            notes.push(format!("adapter `{path}` changes nothing: its alpha, or one factor of each layer, is zero"));
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            path: path.to_path_buf(),
            file,
            id,
            changes,
            modules: modules.clone(),
            notes,
            extent,
            config: None,
            digest: OnceLock::new(),
        })
    }

    /// Errors if values of the change overflow at this strength.
    pub fn check_strength(&self, strength: f32) -> Result<()> {
        let extent = self.extent * f64::from(strength.abs());
        if extent <= change::LARGEST {
            return Ok(());
        }
        let what = format!("at strength {strength} the changes of the adapter overflow: they reach {extent:.1e}");
        Err(Error::usage(what).at_path(&self.path).hint("use a smaller strength, or use another adapter"))
    }

    /// Returns `true` if the adapter was opened for a model with these modules.
    pub fn fits(&self, modules: &Modules) -> bool {
        self.modules == *modules
    }

    /// Returns the path that the adapter was opened by, of a file or a folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the digest of the file and of the config next to it.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| {
            let config = self.config.as_deref().and_then(|config| read_bounded(config, MAX_CONFIG, "").ok());
            let file = [self.file.bytes().as_slice()];
            digest::hash_files(&file.into_iter().chain(config.as_deref()).collect::<Vec<_>>())
        })
    }

    /// Returns a number that no other adapter of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns notes for the user, such as parts of the file that have no effect.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the changes of a tensor of the checkpoint.
    pub fn changes(&self, key: &str) -> &[ChangedRows] {
        self.changes.get(key).map_or(&[], Vec::as_slice)
    }

    /// Errors if the file's length has changed since it was opened.
    pub fn check_length(&self) -> Result<()> {
        self.file.check_length()
    }
}

/// The keys of a layer's tensors by their roles.
type Keys = BTreeMap<Role, String>;

/// Returns the alpha of a layer with its key, and its other tensors.
fn read_layer<'a>(file: &Safetensors, keys: &'a Keys) -> Result<(Option<(&'a str, f64)>, Tensors)> {
    let alpha = keys.get(ALPHA).map(|key| Ok((key.as_str(), file.scalar(key)?))).transpose()?;
    let tensors = keys.iter().filter(|(role, _)| **role != ALPHA);
    let tensors = tensors.map(|(role, key)| Ok((*role, (key.clone(), without_ones(file.tensor(key)?)))));
    Ok((alpha, tensors.collect::<Result<_>>()?))
}

/// Returns `true` if the factors have PEFT's names.
fn is_peft(keys: &Keys) -> bool {
    keys.values().any(|key| key.contains("lora_A"))
}

/// Returns the name of a layer without PEFT's prefix.
fn without_prefix(layer: &str) -> &str {
    layer.strip_prefix("base_model.model.").unwrap_or(layer)
}

/// Drops axes of 1 after the second axis: factors of a 1 x 1 convolution are matrices.
fn without_ones(view: TensorView) -> TensorView {
    match *view.shape() {
        [rows, cols, ref ones @ ..] if !ones.is_empty() && ones.iter().all(|one| *one == 1) => {
            view.with_shape(&[rows, cols])
        }
        _ => view,
    }
}
