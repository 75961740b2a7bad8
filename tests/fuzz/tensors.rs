//! Safetensors files with parts that can be changed one by one, also to invalid ones.

use std::fs;
use std::path::Path;

use half::{bf16, f16};
use serde_json::{Map, Value, json};

use super::rng::Rng;

/// A tensor as its file has it.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// The tensors of a safetensors file, and its metadata.
#[derive(Clone, Default)]
pub struct TensorFile {
    pub metadata: Map<String, Value>,
    pub tensors: Vec<Tensor>,
}

/// Finite values at the limits of types, and values close to zero.
const EXTREMES: [f64; 22] = [
    1e38, -1e38, 3.4e38, 1e37, 1e30, 1e19, 1e10, 65504.0, -65504.0, 65519.0, 448.0, 57344.0, 1e-3, 1e-7, 6e-8, 1e-20,
    1e-38, 1e-45, -1e-45, 0.0, -0.0, 1e39,
];

impl Tensor {
    pub fn new(name: impl Into<String>, dtype: &str, shape: &[usize], bytes: Vec<u8>) -> Self {
        Self { name: name.into(), dtype: dtype.to_string(), shape: shape.to_vec(), bytes }
    }

    /// Creates a tensor of float32 values.
    pub fn f32(name: impl Into<String>, shape: &[usize], values: &[f32]) -> Self {
        Self::new(name, "F32", shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Returns the bytes of a value; `None` if its size is unknown or no whole number of bytes.
    pub fn size(&self) -> Option<usize> {
        match self.dtype.as_str() {
            "F64" | "I64" => Some(8),
            "F32" | "I32" => Some(4),
            "F16" | "BF16" | "I16" => Some(2),
            "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "BOOL" => Some(1),
            _ => None,
        }
    }

    pub fn is_float(&self) -> bool {
        matches!(self.dtype.as_str(), "F64" | "F32" | "F16" | "BF16")
    }

    /// Returns `true` if all values are floats and zero, of either sign.
    pub fn is_zero(&self) -> bool {
        let is_zero = |value: &[u8]| {
            value.split_last().is_some_and(|(sign, rest)| sign & 0x7f == 0 && rest.iter().all(|byte| *byte == 0))
        };
        self.is_float() && self.bytes.chunks_exact(self.size().unwrap_or(1)).all(is_zero)
    }

    /// Encodes a float in this tensor's type, as infinity if the type has no such value.
    pub fn encode(&self, value: f64) -> Vec<u8> {
        match self.dtype.as_str() {
            "F64" => value.to_le_bytes().to_vec(),
            "F32" => (value as f32).to_le_bytes().to_vec(),
            "F16" => f16::from_f64(value).to_le_bytes().to_vec(),
            "BF16" => bf16::from_f64(value).to_le_bytes().to_vec(),
            _ => vec![value as i64 as u8; self.size().unwrap_or(1)],
        }
    }

    /// Returns one finite value, the largest of the type if the type lacks the drawn value.
    pub fn extreme(&self, rng: &mut Rng) -> (f64, Vec<u8>) {
        let most = match self.dtype.as_str() {
            "F16" => f16::MAX.to_f64(),
            "BF16" => bf16::MAX.to_f64(),
            "F32" => f64::from(f32::MAX),
            _ => 1e300,
        };
        let value = rng.pick(&EXTREMES).clamp(-most, most);
        (value, self.encode(value))
    }

    /// Sets one value, a run of values, or all.
    pub fn fill(&mut self, value: &[u8], rng: &mut Rng) -> &'static str {
        let count = self.bytes.len() / value.len().max(1);
        if count == 0 {
            return "none";
        }
        let (first, end, how) = match rng.below(3) {
            0 => (0, count, "all"),
            1 => {
                let first = rng.below(count);
                (first, first + 1, "one")
            }
            _ => {
                let first = rng.below(count);
                (first, count.min(first + 1 + rng.below(64)), "some")
            }
        };
        for place in first..end {
            self.bytes[place * value.len()..][..value.len()].copy_from_slice(value);
        }
        how
    }
}

impl TensorFile {
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).expect("a file of ours");
        Self::parse(&bytes).expect("a safetensors file of ours")
    }

    /// Returns `None` if the bytes are no safetensors file.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let length = u64::from_le_bytes(*bytes.first_chunk()?) as usize;
        let (header, data) = bytes.get(8..)?.split_at_checked(length)?;
        let Value::Object(header) = serde_json::from_slice(header).ok()? else { return None };
        let mut file = Self::default();
        for (name, entry) in header {
            if name == "__metadata__" {
                file.metadata = entry.as_object()?.clone();
                continue;
            }
            let places = |key: &str| -> Option<Vec<usize>> {
                entry.get(key)?.as_array()?.iter().map(|place| Some(place.as_u64()? as usize)).collect()
            };
            let (shape, offsets) = (places("shape")?, places("data_offsets")?);
            let bytes = data.get(*offsets.first()?..*offsets.get(1)?)?.to_vec();
            file.tensors.push(Tensor { name, dtype: entry.get("dtype")?.as_str()?.to_string(), shape, bytes });
        }
        Some(file)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut header = Map::new();
        if !self.metadata.is_empty() {
            header.insert("__metadata__".to_string(), Value::Object(self.metadata.clone()));
        }
        let mut data = Vec::new();
        for Tensor { name, dtype, shape, bytes } in &self.tensors {
            let start = data.len();
            data.extend_from_slice(bytes);
            header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }));
        }
        let header = serde_json::to_vec(&header).expect("JSON");
        [&(header.len() as u64).to_le_bytes(), header.as_slice(), &data].concat()
    }

    pub fn write(&self, path: &Path) {
        fs::write(path, self.bytes()).expect("a temporary folder is writable");
    }

    /// Picks one of the tensors that `fits`.
    pub fn pick(&mut self, rng: &mut Rng, fits: impl Fn(&Tensor) -> bool) -> Option<&mut Tensor> {
        let mut fitting: Vec<&mut Tensor> = self.tensors.iter_mut().filter(|tensor| fits(tensor)).collect();
        (!fitting.is_empty()).then(|| fitting.swap_remove(rng.below(fitting.len())))
    }
}
