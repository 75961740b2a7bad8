//! The header of a safetensors file.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, json};

use super::{TensorTarget, TensorWriter};
use crate::error::{Error, Result};

/// Tensors begin at a multiple of this, as those of the `safetensors` crate do.
const ALIGNMENT: usize = 8;

/// What the bytes of a tensor are called in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE single precision
    F32,
    /// bfloat16
    Bf16,
    /// IEEE half precision
    F16,
    /// Floats of 4 bits of exponent and 3 of mantissa.
    E4m3,
    /// Signed integers of 8 bits.
    I8,
    /// Bytes.
    U8,
}

impl ElementType {
    fn name_and_bytes(self) -> (&'static str, usize) {
        match self {
            Self::F32 => ("F32", 4),
            Self::Bf16 => ("BF16", 2),
            Self::F16 => ("F16", 2),
            Self::E4m3 => ("F8_E4M3", 1),
            Self::I8 => ("I8", 1),
            Self::U8 => ("U8", 1),
        }
    }
}

/// A tensor of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// What its elements are.
    pub element: ElementType,
    /// Elements along each axis.
    pub shape: Vec<usize>,
}

/// Begins a safetensors file of these tensors.
///
/// Errors when it cannot be written.
pub fn safetensors(
    target: &TensorTarget,
    metadata: &BTreeMap<String, String>,
    entries: &[Entry],
) -> Result<TensorWriter> {
    // Readers take views of the bytes, for which elements must lie at a multiple of their size: the widest come first.
    let mut order: Vec<&Entry> = entries.iter().collect();
    order.sort_by_key(|entry| (std::cmp::Reverse(entry.element.name_and_bytes().1), &entry.name));
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_string(), json!(metadata));
    }
    let (mut places, mut end) = (HashMap::new(), 0u64);
    for Entry { name, element, shape } in order {
        let (dtype, bytes) = element.name_and_bytes();
        let start = end;
        end += (bytes * shape.iter().product::<usize>()) as u64;
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] }));
        places.insert(name.clone(), start..end);
    }
    let mut text = serde_json::to_vec(&header).map_err(|e| Error::new(format!("cannot write the header: {e}")))?;
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    let start = 8 + text.len() as u64;
    places.values_mut().for_each(|place| *place = start + place.start..start + place.end);
    TensorWriter::new(target, &[(text.len() as u64).to_le_bytes().as_slice(), &text].concat(), places, start + end)
}
