//! A GGUF file of given tensors and metadata.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

use std::path::Path;

use safetensors::tensor::Dtype;

/// A metadata value.
pub enum Value<'a> {
    Text(&'a str),
    Texts(Vec<String>),
    Ints(Vec<i32>),
    Int(u32),
    Float(f32),
    Double(f64),
}

/// Name, dtype, shape and bytes of a tensor.
pub type Tensor<'a> = (String, Dtype, &'a [usize], &'a [u8]);

/// The alignment of tensor data, in bytes.
pub const ALIGNMENT: usize = 32;

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A key, its type, and the bytes of its value.
pub type Entry<'a> = (&'a str, u32, Vec<u8>);

/// Name, shape with the innermost axis first, type and bytes of a tensor.
pub type Stored<'a> = (&'a str, Vec<u64>, u32, &'a [u8]);

/// Returns the bytes of a file.
pub fn file(entries: &[Entry<'_>], tensors: &[Stored<'_>]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    for (key, kind, value) in entries {
        put(&mut out, key);
        out.extend(kind.to_le_bytes());
        out.extend(value);
    }
    let mut data = Vec::new();
    for (name, shape, kind, bytes) in tensors {
        put(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|axis| out.extend(axis.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend_from_slice(bytes);
        data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out.extend(data);
    out
}

/// Returns the type of a value, and its bytes.
fn stored(value: &Value<'_>) -> (u32, Vec<u8>) {
    let mut out = Vec::new();
    let array = |kind: u32, len: usize| [&kind.to_le_bytes()[..], &(len as u64).to_le_bytes()].concat();
    match value {
        Value::Int(int) => (4, int.to_le_bytes().to_vec()),
        Value::Float(float) => (6, float.to_le_bytes().to_vec()),
        Value::Double(double) => (12, double.to_le_bytes().to_vec()),
        Value::Text(text) => {
            put(&mut out, text);
            (8, out)
        }
        Value::Texts(texts) => {
            out.extend(array(8, texts.len()));
            texts.iter().for_each(|text| put(&mut out, text));
            (9, out)
        }
        Value::Ints(ints) => {
            out.extend(array(5, ints.len()));
            ints.iter().for_each(|int| out.extend(int.to_le_bytes()));
            (9, out)
        }
    }
}

pub fn write(path: &Path, values: &[(&str, Value<'_>)], tensors: &[Tensor<'_>]) {
    let entries = values.iter().map(|(key, value)| {
        let (kind, bytes) = stored(value);
        (*key, kind, bytes)
    });
    let entries: Vec<Entry<'_>> = entries.collect();
    let kind = |dtype: &Dtype| match dtype {
        Dtype::F32 => 0,
        Dtype::BF16 => 30,
        other => panic!("no tensors in {other:?}"),
    };
    let tensors: Vec<Stored<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            (name.as_str(), shape.iter().rev().map(|axis| *axis as u64).collect(), kind(dtype), *bytes)
        })
        .collect();
    std::fs::write(path, file(&entries, &tensors)).unwrap();
}
