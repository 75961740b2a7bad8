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
//! | DoRA | one of these with a magnitude | that sum, its rows or columns brought to these lengths |
//! | difference | `diff`, `set_weight` | `W + diff`; `set_weight` |
//!
//! s is `alpha / rank`, see [`scaling`], and 1 where no alpha is said; of LoKr also where no factor is a product. A
//! tensor of a known layer that is of none of these kinds is an error.

mod change;
mod extent;
mod foreign;
mod keys;
mod locate;
mod merge;
mod modules;
mod patterns;
mod peft;
mod scaling;
mod sort;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub use change::{Change, LowRank};
pub use locate::{files_of, folders_near};
pub use merge::ColumnLengths;
pub use modules::{Module, ModuleRows, Modules};

use super::digest;
use super::safetensors::Safetensors;
use super::tensor_view::TensorView;
use crate::error::{Error, Result};
use change::Tensors;
use keys::{ALPHA, DOWN, MAGNITUDE};
use locate::Found;
use peft::Peft;
use scaling::{Factors, Scaling};
use sort::{Named, sort};

const FETCH_AGAIN: &str = "the file is damaged or its download was cut off: fetch it again";

/// The changes of a file to the weights of one model.
pub struct Adapter {
    path: PathBuf,
    file: Safetensors,
    id: u64,
    /// By the key of the tensor in the checkpoint.
    changes: BTreeMap<String, Vec<ChangedRows>>,
    modules: Modules,
    notes: Vec<String>,
    extent: f64,
    /// The config beside the file.
    config: Option<PathBuf>,
    digest: OnceLock<String>,
}

/// The change of some rows of a tensor.
#[derive(Clone)]
pub struct ChangedRows {
    /// The change of the module that the rows are of.
    pub change: Arc<Change>,
    /// Where they are.
    pub place: ModuleRows,
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

impl Adapter {
    /// Opens a file, or the folder of one, and checks all of it against the model of these `modules`.
    ///
    /// Errors when it is no safetensors file, changes no layer of the model, is made for another model, lacks a tensor,
    /// has one that is not read or of another shape, holds values that are not finite or overflow, or says how it is
    /// scaled in a way that is not understood.
    pub fn open(path: &Path, modules: &Modules) -> Result<Self> {
        Self::open_near(path, modules, &[])
    }

    /// [`Adapter::open`]; where there is no such file, the error tells files of similar names beside it and in the
    /// folders `others`.
    ///
    /// Errors as it does.
    pub fn open_near(path: &Path, modules: &Modules, others: &[PathBuf]) -> Result<Self> {
        let Found { file, config, note } = locate::find(path, others)?;
        let peft = config.as_deref().map(Peft::of_file).transpose()?;
        let at = file.path().to_path_buf();
        let mut adapter = Self::of_file(path, file, peft, modules).map_err(|e| e.at_path(&at).hint(FETCH_AGAIN))?;
        adapter.config = config;
        adapter.notes.extend(note);
        Ok(adapter)
    }

    /// As [`Adapter::open`].
    fn of_file(path: &Path, file: Safetensors, config: Option<Peft>, modules: &Modules) -> Result<Self> {
        let (named, mut notes) = sort(&file, modules)?;
        notes.extend(file.note());
        file.check_finite()?;
        let mut changes: BTreeMap<String, Vec<ChangedRows>> = BTreeMap::new();
        let scaling = Scaling::new(file.metadata(), config)?;
        let (mut extent, mut overridden, mut layers) = (0.0, Vec::new(), Vec::new());
        for (index, Named { text, keys }) in &named {
            let module = modules.get(*index);
            let alpha = keys.get(ALPHA).map(|key| Ok((key.as_str(), file.scalar(key)?))).transpose()?;
            let tensors = keys.iter().filter(|(role, _)| **role != ALPHA);
            let tensors = tensors.map(|(role, key)| Ok((*role, (key.clone(), without_ones(file.tensor(key)?)))));
            let tensors: Tensors = tensors.collect::<Result<_>>()?;
            foreign::check_shape(&tensors, module, modules)?;
            let own = text.strip_prefix("base_model.model.").unwrap_or(text);
            let names: Vec<String> = modules.aliases(*index).chain([own]).map(str::to_string).collect();
            let is_peft = keys.values().any(|key| key.contains("lora_A"));
            let is_overridden = Cell::new(false);
            let scale = |rank| {
                let (scale, is_other) = scaling.of(&Factors { names: &names, alpha, is_peft }, rank)?;
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
                "adapter `{}` says alpha twice for {} layers, of which its metadata counts; the first is `{first}`",
                path.display(),
                overridden.len()
            ));
        }
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

    /// Errors when values of the change overflow at this strength.
    pub fn check_strength(&self, strength: f32) -> Result<()> {
        let extent = self.extent * f64::from(strength.abs());
        if extent <= change::LARGEST {
            return Ok(());
        }
        let what = format!("at strength {strength} the changes of the adapter overflow: they are up to {extent:.1e}");
        Err(Error::usage(what).at_path(&self.path).hint("give a smaller strength, or use another adapter"))
    }

    /// Whether it was opened for a model of these modules.
    pub fn fits(&self, modules: &Modules) -> bool {
        self.modules == *modules
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The digest of its file, and of the config beside it.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| {
            let config = self.config.as_deref().and_then(|config| std::fs::read(config).ok());
            let file = [self.file.bytes().as_slice()];
            digest::of_files(&file.into_iter().chain(config.as_deref()).collect::<Vec<_>>())
        })
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
    pub fn changes(&self, key: &str) -> &[ChangedRows] {
        self.changes.get(key).map_or(&[], Vec::as_slice)
    }

    /// Errors when the file is not as long as when it was opened.
    pub fn check_length(&self) -> Result<()> {
        self.file.check_length()
    }
}

/// A tensor without axes of 1 behind the second: factors of a convolution of 1 x 1 are matrices.
fn without_ones(view: TensorView) -> TensorView {
    match *view.shape() {
        [rows, cols, ref ones @ ..] if !ones.is_empty() && ones.iter().all(|one| *one == 1) => {
            view.with_shape(&[rows, cols])
        }
        _ => view,
    }
}
