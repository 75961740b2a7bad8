//! What an adapter may name: the layers of a model, by every name that files give them.

use std::collections::HashMap;
use std::ops::Range;

/// What writers put in front of the name of a layer.
const PREFIXES: [&str; 8] = [
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    "lora_unet_",
    "lora_transformer_",
    "lycoris_",
    "model.",
];
/// Some writers put two of them.
const MOST_PREFIXES: usize = 2;

/// A layer as files name it. A fused one stands for rows of several tensors of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The name with dots, without a prefix and without `.weight`.
    pub name: String,
    /// [out, in] of a matrix, [n] of a vector.
    pub shape: Vec<usize>,
    /// Where its rows are in the checkpoint; together they are all of its rows.
    pub places: Vec<Place>,
}

/// Where some rows of a module are in the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
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
        Self { name: name.into(), shape: shape.to_vec(), places: vec![Place { key: key.into(), first: 0, rows }] }
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
    by_name: HashMap<String, usize>,
    dim: usize,
    blocks: [usize; 2],
}

impl Modules {
    /// The modules of a transformer of `dim` features with so many double and single blocks.
    pub fn new(list: Vec<Module>, dim: usize, blocks: [usize; 2]) -> Self {
        let mut by_name = HashMap::new();
        for (index, module) in list.iter().enumerate() {
            // No two names are the same with underscores in place of dots, so these are looked up and not parsed.
            by_name.insert(module.name.replace('.', "_"), index);
            by_name.insert(module.name.clone(), index);
        }
        Self { list, by_name, dim, blocks }
    }

    /// Features of a token.
    pub fn dim(&self) -> usize {
        self.dim
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

    /// The index of the module that `text` names: dotted or with underscores, with or without a prefix.
    pub fn find(&self, text: &str) -> Option<usize> {
        self.find_within(text, MOST_PREFIXES)
    }

    fn find_within(&self, text: &str, prefixes: usize) -> Option<usize> {
        let found = self.by_name.get(text).copied();
        if found.is_some() || prefixes == 0 {
            return found;
        }
        PREFIXES
            .iter()
            .filter_map(|prefix| text.strip_prefix(prefix))
            .find_map(|rest| self.find_within(rest, prefixes - 1))
    }
}
