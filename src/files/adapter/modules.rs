//! What an adapter may name: the layers of a model, by every name that files give them.

use std::collections::HashMap;
use std::iter;
use std::ops::Range;

use super::keys::flat;
use crate::files::own_models::Architecture;

/// Words that are in no prefix: with them a name is of another component, or of a layer inside one.
const NO_PREFIX: [&str; 21] = [
    "block",
    "blocks",
    "clip",
    "cond",
    "conditioner",
    "control",
    "controlnet",
    "decoder",
    "double",
    "embedders",
    "encoder",
    "language",
    "layer",
    "layers",
    "mode",
    "refiner",
    "single",
    "te",
    "text",
    "txt",
    "vae",
];
/// The longest prefix. Writers have two or three words.
const MOST_PREFIX: usize = 96;

/// A layer as files name it. A fused one stands for rows of several tensors of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The name with dots, without a prefix and without `.weight`.
    pub name: String,
    /// [out, in] of a matrix, \[n\] of a vector.
    pub shape: Vec<usize>,
    /// Where its rows are in the checkpoint; together they are all of its rows.
    pub places: Vec<ModuleRows>,
}

/// Where some rows of a module are in the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleRows {
    /// The tensor's key.
    pub key: String,
    /// The first of the rows in the tensor.
    pub first: usize,
    /// The rows in the module.
    pub rows: Range<usize>,
}

impl Module {
    /// The module `name` that is the tensor `key` of the checkpoint.
    pub fn whole(name: impl Into<String>, key: impl Into<String>, shape: &[usize]) -> Self {
        let rows = 0..shape.first().copied().unwrap_or(0);
        Self { name: name.into(), shape: shape.to_vec(), places: vec![ModuleRows { key: key.into(), first: 0, rows }] }
    }

    /// Output features of a matrix, values of a vector.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Input features of a matrix, 1 of a vector.
    pub fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// All modules of a model, and the sizes by which models are told apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modules {
    list: Vec<Module>,
    /// By the name with underscores alone: no two are the same.
    by_name: HashMap<String, usize>,
    /// Bytes of the longest name.
    longest: usize,
    architecture: Architecture,
    dim: usize,
    blocks: [usize; 2],
}

impl Modules {
    /// The modules of a transformer of `dim` features with so many blocks of one stream or two, and of all together.
    pub fn new(list: Vec<Module>, architecture: Architecture, dim: usize, blocks: [usize; 2]) -> Self {
        let by_name = list.iter().enumerate().map(|(index, module)| (flat(&module.name), index)).collect();
        let longest = list.iter().map(|module| module.name.len()).max().unwrap_or(0);
        Self { list, by_name, longest, architecture, dim, blocks }
    }

    /// Features of a token.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// What the transformer computes.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Double and single blocks.
    pub fn blocks(&self) -> [usize; 2] {
        self.blocks
    }

    /// The module of an index that [`Modules::find`] gave.
    pub fn get(&self, index: usize) -> &Module {
        &self.list[index]
    }

    /// All of them; a layer is there once under each of its names.
    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        self.list.iter()
    }

    /// The names that the layer `index` has in any style.
    pub fn aliases(&self, index: usize) -> impl Iterator<Item = &str> {
        let places = &self.list[index].places;
        self.list.iter().filter(move |module| module.places == *places).map(|module| module.name.as_str())
    }

    /// The index of the module that `text` names: with dots, underscores or dashes, with any prefix or none.
    pub fn find(&self, text: &str) -> Option<usize> {
        let flat = flat(text);
        starts(&flat).find_map(|start| self.by_name.get(&flat[start..]).copied())
    }

    /// The index of a module whose name is in `key`, and what follows it there. Of several names the longest counts.
    pub fn find_in<'a>(&self, key: &'a str) -> Option<(usize, &'a str)> {
        let flat = flat(key);
        starts(&flat).find_map(|start| {
            let last = flat.len().min(start + self.longest);
            let mut ends = (start..=last).rev().filter(|end| is_word_end(&flat, *end));
            ends.find_map(|end| Some((*self.by_name.get(&flat[start..end])?, &key[end..])))
        })
    }
}

/// Where the name of a layer may start in `flat`: behind what may be a prefix.
fn starts(flat: &str) -> impl Iterator<Item = usize> {
    let behind = flat.char_indices().take_while(|(place, _)| *place < MOST_PREFIX).filter(|(_, c)| *c == '_');
    let all = iter::once(0).chain(behind.map(|(place, _)| place + 1));
    all.take_while(|start| is_prefix(&flat[..*start]))
}

/// Whether the words in front of a name are those of a prefix. Writers invent them, so they are told by what they are
/// not.
fn is_prefix(words: &str) -> bool {
    let is_outside = |word: &str| NO_PREFIX.contains(&word) || word.contains(|c: char| c.is_ascii_digit());
    !words.split('_').any(|word| is_outside(&word.to_ascii_lowercase()))
}

fn is_word_end(flat: &str, end: usize) -> bool {
    end == flat.len() || flat.as_bytes()[end] == b'_'
}
