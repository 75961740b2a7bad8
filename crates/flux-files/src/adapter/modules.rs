//! The layers of a model that an adapter may change, by every name that files give them.

use std::collections::HashMap;
use std::iter;
use std::ops::Range;

use super::keys::flat;
use super::values::is_word_of;
use crate::catalog::own_models::Architecture;

/// Words that are in no prefix: a name after one of them belongs to another component, or to a layer inside one.
const NO_PREFIX: &str = "block blocks clip cond conditioner control controlnet decoder double embed embedders encoder guidance language \
    layer layers mode ref refiner single target te text txt vae";
/// The max length of a prefix. Writers use two or three words.
const MAX_PREFIX: usize = 96;

/// A layer as files name it. A fused layer stands for rows of several tensors of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The name with dots, without prefix and without `.weight`.
    pub name: String,
    /// [out, in] of a matrix, \[n\] of a vector.
    pub shape: Vec<usize>,
    /// The places of all its rows in the checkpoint.
    pub places: Vec<ModuleRows>,
}

/// The place of some rows of a module in the checkpoint.
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
    /// Creates the module `name` that is the whole tensor `key` of the checkpoint.
    pub fn whole(name: impl Into<String>, key: impl Into<String>, shape: &[usize]) -> Self {
        let rows = 0..shape.first().copied().unwrap_or(0);
        Self { name: name.into(), shape: shape.to_vec(), places: vec![ModuleRows { key: key.into(), first: 0, rows }] }
    }

    /// Returns the output features of a matrix, or the values of a vector.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Returns the input features of a matrix, or 1 for a vector.
    pub fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// All modules of a model, and the sizes that tell models apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modules {
    list: Vec<Module>,
    /// Indices by the name with underscores alone. All names differ.
    by_name: HashMap<String, usize>,
    /// Bytes of the longest name.
    longest: usize,
    architecture: Architecture,
    dim: usize,
    blocks: [usize; 2],
}

impl Modules {
    /// Creates the modules of a transformer of `dim` features. `blocks` is the number of double blocks (for FLUX.3, of
    /// each stream) and of single blocks (of all streams).
    pub fn new(list: Vec<Module>, architecture: Architecture, dim: usize, blocks: [usize; 2]) -> Self {
        let by_name = list.iter().enumerate().map(|(index, module)| (flat(&module.name), index)).collect();
        let longest = list.iter().map(|module| module.name.len()).max().unwrap_or(0);
        Self { list, by_name, longest, architecture, dim, blocks }
    }

    /// Returns the features of a token.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the architecture of the transformer.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Returns the number of double and of single blocks.
    pub fn blocks(&self) -> [usize; 2] {
        self.blocks
    }

    /// Returns the module at an index from [`Modules::find`].
    pub fn get(&self, index: usize) -> &Module {
        &self.list[index]
    }

    /// Returns all modules. A layer occurs once under each of its names.
    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        self.list.iter()
    }

    /// Returns the names that the layer `index` has in any style.
    pub fn aliases(&self, index: usize) -> impl Iterator<Item = &str> {
        let places = &self.list[index].places;
        self.list.iter().filter(move |module| module.places == *places).map(|module| module.name.as_str())
    }

    /// Returns the index of the module that `text` names, with dots, underscores or dashes, with any prefix or none.
    pub fn find(&self, text: &str) -> Option<usize> {
        let flat = flat(text);
        starts(&flat).find_map(|start| self.by_name.get(&flat[start..]).copied())
    }

    /// Returns the index of a module whose name is in `key`, and the rest of `key` after the name. The longest name
    /// counts.
    pub fn find_in<'a>(&self, key: &'a str) -> Option<(usize, &'a str)> {
        let flat = flat(key);
        starts(&flat).find_map(|start| {
            let last = flat.len().min(start + self.longest);
            let mut ends = (start..=last).rev().filter(|end| is_word_end(&flat, *end));
            ends.find_map(|end| Some((*self.by_name.get(&flat[start..end])?, &key[end..])))
        })
    }
}

/// Returns the positions in `flat` at which the name of a layer may start: after anything that may be a prefix.
fn starts(flat: &str) -> impl Iterator<Item = usize> {
    let behind = flat.char_indices().take_while(|(place, _)| *place < MAX_PREFIX).filter(|(_, c)| *c == '_');
    let all = iter::once(0).chain(behind.map(|(place, _)| place + 1));
    all.take_while(|start| is_prefix(&flat[..*start]))
}

/// Returns `true` if the words before a name may be a prefix. Writers invent prefixes, so only the words that exclude a
/// prefix are known.
fn is_prefix(words: &str) -> bool {
    let is_outside = |word: &str| is_word_of(NO_PREFIX, word) || word.contains(|c: char| c.is_ascii_digit());
    !words.split('_').any(|word| is_outside(&word.to_ascii_lowercase()))
}

fn is_word_end(flat: &str, end: usize) -> bool {
    end == flat.len() || flat.as_bytes()[end] == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_after_words_of_another_layer_is_not_found() {
        let names = ["timestep_embedder.linear_1", "time_in.in_layer"];
        let list = names.map(|name| Module::whole(name, name, &[8, 8])).to_vec();
        let modules = Modules::new(list, Architecture::Flux3, 8, [0, 1]);
        for prefix in ["", "transformer.", "base_model.model.", "lora_unet_", "diffusion_model."] {
            for (index, name) in names.iter().enumerate() {
                assert_eq!(modules.find(&format!("{prefix}{name}")), Some(index), "{prefix}{name}");
            }
            for other in ["target_timestep_embedder.linear_1", "ref_time_in.in_layer"] {
                assert_eq!(modules.find(&format!("{prefix}{other}")), None, "{prefix}{other}");
            }
            let flux2 = "time_guidance_embed.timestep_embedder.linear_1";
            assert_eq!(modules.find(&format!("{prefix}{flux2}")), None, "{prefix}{flux2}");
        }
    }
}
