//! What a file says about the formats of its layers, in its header or in a tensor beside each.

use std::collections::HashMap;

use serde::Deserialize;

/// The key of the header's metadata that has the formats of layers.
const LAYERS_KEY: &str = "_quantization_metadata";
/// The key of the header's metadata that has the format of all layers in few bits.
const WHOLE_KEY: &str = "quantization";
/// Prefixes of names that the header may leave out.
const PREFIXES: [&str; 2] = ["model.diffusion_model.", "diffusion_model."];

/// The format of a layer as the file says it.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Declaration {
    /// Its name.
    pub format: String,
    /// Whether activations are to stay as they are.
    #[serde(default, rename = "full_precision_matrix_mult")]
    pub is_weight_only: bool,
    /// Whether groups of columns were multiplied by a Hadamard matrix.
    #[serde(default)]
    pub convrot: bool,
    /// Columns of such a group.
    #[serde(default)]
    pub convrot_groupsize: Option<u64>,
}

/// What the header says.
#[derive(Default)]
pub struct Declarations {
    layers: HashMap<String, Declaration>,
    whole: Option<String>,
}

impl Declarations {
    /// Errors with the reason when the header's metadata cannot be read.
    pub fn of_header(metadata: &HashMap<String, String>) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Layers {
            layers: HashMap<String, Declaration>,
        }
        let layers = match metadata.get(LAYERS_KEY) {
            Some(text) => serde_json::from_str::<Layers>(text).map_err(|e| format!("its `{LAYERS_KEY}`: {e}"))?.layers,
            None => HashMap::new(),
        };
        Ok(Self { layers, whole: metadata.get(WHOLE_KEY).cloned() })
    }

    /// What the header says of a layer, which it may call without its prefix.
    pub fn of_layer(&self, layer: &str) -> Option<&Declaration> {
        let short = PREFIXES.iter().find_map(|prefix| layer.strip_prefix(prefix));
        self.layers.get(layer).or_else(|| self.layers.get(short?))
    }

    /// The format of all layers in few bits.
    pub fn whole(&self) -> Option<&str> {
        self.whole.as_deref()
    }
}
