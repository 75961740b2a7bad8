//! What a file says about the formats of its layers, in its header or in a tensor beside each.

use std::collections::HashMap;

use serde::Deserialize;

use crate::files::recognise::{FileKind, MOST_WORDS};

/// The key of the header's metadata that has the formats of layers.
const LAYERS_KEY: &str = "_quantization_metadata";
/// The key of the header's metadata that has the format of all layers in few bits.
const WHOLE_KEY: &str = "quantization";
/// The format of a layer as the file says it.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Declaration {
    /// Its name.
    pub format: String,
    /// Whether activations are to stay as they are.
    #[serde(default, rename = "full_precision_matrix_mult")]
    pub is_weight_only: bool,
    #[serde(flatten)]
    rotation: Rotation,
    /// Where some programs say it, which counts where it is not said beside the format.
    params: Option<Rotation>,
}

/// What is said of columns that were multiplied by a Hadamard matrix in groups.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct Rotation {
    convrot: Option<bool>,
    convrot_groupsize: Option<u64>,
}

impl Declaration {
    /// Whether columns were rotated.
    pub(super) fn is_rotated(&self) -> bool {
        self.rotation.convrot.or(self.params.and_then(|params| params.convrot)).unwrap_or(false)
    }

    /// Columns of a group, if it is said.
    pub(super) fn rotated_columns(&self) -> Option<u64> {
        self.rotation.convrot_groupsize.or(self.params.and_then(|params| params.convrot_groupsize))
    }
}

/// What the header says.
#[derive(Default)]
pub struct Declarations {
    layers: HashMap<String, Declaration>,
    whole: Option<String>,
}

impl Declarations {
    /// What the header says of the layers of these `entries`, which it may name without what is in front of a part of
    /// the model, or with what was in front of it in another file.
    ///
    /// Errors with the reason when the header's metadata cannot be read.
    pub(super) fn of_header<T>(
        metadata: &HashMap<String, String>,
        entries: &HashMap<String, T>,
    ) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Layers {
            layers: HashMap<String, Declaration>,
        }
        let declared = match metadata.get(LAYERS_KEY) {
            Some(text) => serde_json::from_str::<Layers>(text).map_err(|e| format!("its `{LAYERS_KEY}`: {e}"))?.layers,
            None => HashMap::new(),
        };
        let has = |layer: &str| entries.contains_key(&format!("{layer}.weight"));
        let mut prefixes: Option<Vec<String>> = None;
        let mut layers = HashMap::new();
        for (layer, declaration) in declared {
            let ends = || layer.match_indices('.').map(|(dot, _)| &layer[dot + 1..]).take(MOST_WORDS);
            if has(&layer) {
                layers.insert(layer, declaration);
            } else if let Some(end) = ends().find(|end| has(end)).map(str::to_string) {
                layers.insert(end, declaration);
            } else {
                let prefixes =
                    prefixes.get_or_insert_with(|| FileKind::of(entries.keys().map(String::as_str), |_| None).fronts());
                let whole = prefixes.iter().map(|prefix| format!("{prefix}{layer}")).filter(|whole| has(whole));
                layers.extend(whole.map(|whole| (whole, declaration.clone())));
            }
        }
        Ok(Self { layers, whole: metadata.get(WHOLE_KEY).cloned() })
    }

    /// What the header says of a layer.
    pub fn of_layer(&self, layer: &str) -> Option<&Declaration> {
        self.layers.get(layer)
    }

    /// The format of all layers in few bits.
    pub fn whole(&self) -> Option<&str> {
        self.whole.as_deref()
    }
}
