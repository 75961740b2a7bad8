//! The formats of layers that a file declares, in its header or in a tensor next to each layer.

use std::collections::HashMap;

use serde::Deserialize;

use crate::catalog::recognise::{FileKind, MAX_WORDS};

/// The key of the layers' formats in the header's metadata.
const LAYERS_KEY: &str = "_quantization_metadata";
/// The key of the format of all quantized layers in the header's metadata.
const WHOLE_KEY: &str = "quantization";
/// The declared format of a layer.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Declaration {
    /// The name of the format.
    pub format: String,
    /// `true` if activations stay unquantized.
    #[serde(default, rename = "full_precision_matrix_mult")]
    pub is_weight_only: bool,
    #[serde(flatten)]
    rotation: Rotation,
    /// Further parameters, in which some programs declare the rotation; used if there is none next to the format.
    params: Option<Rotation>,
}

/// The declared rotation: the columns are multiplied by a Hadamard matrix in groups.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct Rotation {
    convrot: Option<bool>,
    convrot_groupsize: Option<u64>,
}

impl Declaration {
    /// Returns `true` if columns are rotated.
    pub(super) fn is_rotated(&self) -> bool {
        self.rotation.convrot.or(self.params.and_then(|params| params.convrot)).unwrap_or(false)
    }

    /// Returns the columns of a group, if declared.
    pub(super) fn rotated_columns(&self) -> Option<u64> {
        self.rotation.convrot_groupsize.or(self.params.and_then(|params| params.convrot_groupsize))
    }
}

/// The declarations in a header.
#[derive(Default)]
pub struct Declarations {
    layers: HashMap<String, Declaration>,
    whole: Option<String>,
}

impl Declarations {
    /// Returns the header's declarations for the layers of `entries`. The header may name layers without the prefix of
    /// a model part, or with a prefix from another file.
    ///
    /// Errors with the reason if the header's metadata cannot be parsed.
    pub(super) fn from_header<T>(
        metadata: &HashMap<String, String>,
        entries: &HashMap<String, T>,
    ) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Layers {
            layers: HashMap<String, Declaration>,
        }
        let declared = match metadata.get(LAYERS_KEY) {
            Some(text) => serde_json::from_str::<Layers>(text).map_err(|e| format!("bad `{LAYERS_KEY}`: {e}"))?.layers,
            None => HashMap::new(),
        };
        let has = |layer: &str| entries.contains_key(&format!("{layer}.weight"));
        let mut prefixes: Option<Vec<String>> = None;
        let mut layers = HashMap::new();
        for (layer, declaration) in declared {
            let ends = || layer.match_indices('.').map(|(dot, _)| &layer[dot + 1..]).take(MAX_WORDS);
            if has(&layer) {
                layers.insert(layer, declaration);
            } else if let Some(end) = ends().find(|end| has(end)).map(str::to_string) {
                layers.insert(end, declaration);
            } else {
                let prefixes = prefixes.get_or_insert_with(|| {
                    FileKind::from_tensors(entries.keys().map(String::as_str), |_| None).fronts()
                });
                let whole = prefixes.iter().map(|prefix| format!("{prefix}{layer}")).filter(|whole| has(whole));
                layers.extend(whole.map(|whole| (whole, declaration.clone())));
            }
        }
        Ok(Self { layers, whole: metadata.get(WHOLE_KEY).cloned() })
    }

    /// Returns the declaration of a layer.
    pub fn get(&self, layer: &str) -> Option<&Declaration> {
        self.layers.get(layer)
    }

    /// Returns the format of all quantized layers.
    pub fn whole(&self) -> Option<&str> {
        self.whole.as_deref()
    }
}
