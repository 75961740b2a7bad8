//! A GGUF file of the same tensors, with values by key.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

use std::path::Path;

use safetensors::tensor::Dtype;

/// A value by key.
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

const ALIGNMENT: usize = 32;

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

pub fn write(path: &Path, values: &[(&str, Value<'_>)], tensors: &[Tensor<'_>]) {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    for (key, value) in values {
        put(&mut out, key);
        let array = |out: &mut Vec<u8>, kind: u32, len: usize| {
            out.extend([9u32.to_le_bytes(), kind.to_le_bytes()].concat());
            out.extend((len as u64).to_le_bytes());
        };
        match value {
            Value::Int(int) => out.extend([4u32.to_le_bytes(), int.to_le_bytes()].concat()),
            Value::Float(float) => out.extend([6u32.to_le_bytes(), float.to_le_bytes()].concat()),
            Value::Double(double) => {
                out.extend(12u32.to_le_bytes());
                out.extend(double.to_le_bytes());
            }
            Value::Text(text) => {
                out.extend(8u32.to_le_bytes());
                put(&mut out, text);
            }
            Value::Texts(texts) => {
                array(&mut out, 8, texts.len());
                texts.iter().for_each(|text| put(&mut out, text));
            }
            Value::Ints(ints) => {
                array(&mut out, 5, ints.len());
                ints.iter().for_each(|int| out.extend(int.to_le_bytes()));
            }
        }
    }
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        put(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        // The innermost axis comes first.
        shape.iter().rev().for_each(|axis| out.extend((*axis as u64).to_le_bytes()));
        let kind: u32 = match dtype {
            Dtype::F32 => 0,
            Dtype::BF16 => 30,
            other => panic!("no tensors in {other:?}"),
        };
        out.extend(kind.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend_from_slice(bytes);
        data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out.extend(data);
    std::fs::write(path, out).unwrap();
}
