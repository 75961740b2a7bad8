//! The header of a safetensors file.

use std::collections::{BTreeMap, HashMap};

use safetensors::Dtype;
use serde_json::{Map, json};

use super::{TensorTarget, TensorWriter};
use flux_base::error::{Error, Result};

/// Tensor data begins at a multiple of this, as in the `safetensors` crate.
const ALIGNMENT: usize = 8;

/// A tensor of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name of the tensor.
    pub name: String,
    /// The type of the elements.
    pub dtype: Dtype,
    /// Elements along each axis.
    pub shape: Vec<usize>,
}

/// Begins a safetensors file with these tensors.
///
/// Errors if the file cannot be written.
pub fn safetensors(
    target: &TensorTarget,
    metadata: &BTreeMap<String, String>,
    entries: &[Entry],
) -> Result<TensorWriter> {
    // Readers view the bytes in place, so elements must be at a multiple of their size: the widest types come first.
    let mut order: Vec<&Entry> = entries.iter().collect();
    order.sort_by_key(|entry| (std::cmp::Reverse(entry.dtype.bitsize()), &entry.name));
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_string(), json!(metadata));
    }
    let (mut places, mut end) = (HashMap::new(), 0u64);
    for Entry { name, dtype, shape } in order {
        let start = end;
        end += (dtype.bitsize() / 8 * shape.iter().product::<usize>()) as u64;
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] }));
        places.insert(name.clone(), start..end);
    }
    let mut text = serde_json::to_vec(&header).map_err(|e| Error::new(format!("cannot write the header: {e}")))?;
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    let start = 8 + text.len() as u64;
    places.values_mut().for_each(|place| *place = start + place.start..start + place.end);
    TensorWriter::new(target, &[(text.len() as u64).to_le_bytes().as_slice(), &text].concat(), places, start + end)
}
