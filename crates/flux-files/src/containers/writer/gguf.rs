//! The header of a GGUF file.

use std::collections::HashMap;

use super::{TensorTarget, TensorWriter};
use crate::containers::gguf::MAGIC;
use crate::containers::gguf::values::{ARRAY, BOOL, F32, I32, STRING, U32};
use crate::formats::format::Format;
use flux_base::error::Result;

/// The alignment that readers assume if a file names none.
const ALIGNMENT: u64 = 32;
const VERSION: u32 = 3;

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An unsigned integer.
    U32(u32),
    /// A float.
    F32(f32),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// An array of strings.
    Texts(Vec<String>),
    /// An array of integers.
    Ints(Vec<i32>),
}

impl Value {
    fn put(&self, out: &mut Vec<u8>) {
        let number = |out: &mut Vec<u8>, kind: u32, bytes: [u8; 4]| out.extend([kind.to_le_bytes(), bytes].concat());
        let array = |out: &mut Vec<u8>, kind: u32, count: usize| {
            number(out, ARRAY, kind.to_le_bytes());
            out.extend((count as u64).to_le_bytes());
        };
        match self {
            Self::U32(value) => number(out, U32, value.to_le_bytes()),
            Self::F32(value) => number(out, F32, value.to_le_bytes()),
            Self::Bool(value) => {
                out.extend(BOOL.to_le_bytes());
                out.push(u8::from(*value));
            }
            Self::Text(text) => {
                out.extend(STRING.to_le_bytes());
                put_text(out, text);
            }
            Self::Texts(texts) => {
                array(out, STRING, texts.len());
                texts.iter().for_each(|text| put_text(out, text));
            }
            Self::Ints(values) => {
                array(out, I32, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Begins a GGUF file with these values and tensors: names, formats and shapes, outermost axis first.
///
/// Errors if the file cannot be written.
///
/// Panics if GGUF cannot hold a format or a tensor.
pub fn gguf(
    target: &TensorTarget,
    values: &[(String, Value)],
    tensors: &[(String, Format, Vec<usize>)],
) -> Result<TensorWriter> {
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((values.len() as u64).to_le_bytes());
    for (key, value) in values {
        put_text(&mut header, key);
        value.put(&mut header);
    }
    let (mut places, mut end) = (HashMap::new(), 0u64);
    for (name, format, shape) in tensors {
        let len = format.bytes(shape).expect("the shape of a tensor") as u64;
        put_text(&mut header, name);
        header.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|axis| header.extend((*axis as u64).to_le_bytes()));
        header.extend(format.row().gguf.expect("a format of GGUF").type_id.to_le_bytes());
        header.extend(end.to_le_bytes());
        places.insert(name.clone(), end..end + len);
        end = (end + len).next_multiple_of(ALIGNMENT);
    }
    let start = (header.len() as u64).next_multiple_of(ALIGNMENT);
    header.resize(start as usize, 0);
    places.values_mut().for_each(|place| *place = start + place.start..start + place.end);
    TensorWriter::new(target, &header, places, start + end)
}
