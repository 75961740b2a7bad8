//! The values of a GGUF file's keys, decoded from the file's bytes on access.

use std::ops::Range;

use super::{CUT_OFF, string};
use crate::containers::cursor::Cursor;

/// The max nesting depth of arrays.
const MAX_DEPTH: usize = 4;
/// Value types, indexed by type id. Arrays have id 9.
const KINDS: [ValueKind; 13] = [
    ValueKind { name: "an integer", size: Some(1) },
    ValueKind { name: "an integer", size: Some(1) },
    ValueKind { name: "an integer", size: Some(2) },
    ValueKind { name: "an integer", size: Some(2) },
    ValueKind { name: "an integer", size: Some(4) },
    ValueKind { name: "an integer", size: Some(4) },
    ValueKind { name: "a float", size: Some(4) },
    ValueKind { name: "true or false", size: Some(1) },
    ValueKind { name: "a string", size: None },
    ValueKind { name: "an array", size: None },
    ValueKind { name: "an integer", size: Some(8) },
    ValueKind { name: "an integer", size: Some(8) },
    ValueKind { name: "a float", size: Some(8) },
];
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
const F64: u32 = 12;

struct ValueKind {
    name: &'static str,
    /// Bytes per value; `None` if values vary in size.
    size: Option<usize>,
}

/// The value of a key.
pub struct Value {
    /// The value type, or the element type of an array.
    type_id: u32,
    /// The number of elements if the value is an array.
    count: Option<u64>,
    /// The byte range of the value, or of an array's elements.
    place: Range<usize>,
}

impl Value {
    /// Reads a type id and the value that follows.
    ///
    /// Errors with the reason if the type is unknown, or the value ends past the end of the file.
    pub fn read(cursor: &mut Cursor<'_>) -> Result<Self, String> {
        let mut type_id = cursor.u32()?;
        let mut count = None;
        if type_id == ARRAY {
            type_id = cursor.u32()?;
            count = Some(cursor.u64()?);
        }
        let start = cursor.place();
        skip(cursor, type_id, count.unwrap_or(1), 1)?;
        Ok(Self { type_id, count, place: start..cursor.place() })
    }

    /// Returns the type of the value, for messages.
    pub fn kind(&self) -> String {
        let name = KINDS[self.type_id as usize].name;
        self.count.map_or_else(|| name.to_string(), |count| format!("an array of {count} elements, each {name}"))
    }

    /// Returns the value if it is an integer that fits `u32`.
    pub fn u32(&self, file: &[u8]) -> Option<u32> {
        let bytes = self.single(file)?;
        let is_signed = match self.type_id {
            0 | 2 | 4 | 10 => false,
            1 | 3 | 5 | 11 => true,
            _ => return None,
        };
        let is_negative = is_signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let value = bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        u32::try_from(value).ok().filter(|_| !is_negative)
    }

    /// Returns the value if it is a float.
    pub fn f64(&self, file: &[u8]) -> Option<f64> {
        let bytes = self.single(file)?;
        match self.type_id {
            F32 => Some(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
            F64 => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
            _ => None,
        }
    }

    /// Returns the value if it is a string.
    pub fn string<'a>(&self, file: &'a [u8]) -> Option<&'a str> {
        let bytes = self.single(file).filter(|_| self.type_id == STRING)?;
        string(&mut Cursor::new(bytes, 0, CUT_OFF)).ok()
    }

    /// Returns the elements if the value is an array of strings.
    pub fn strings<'a>(&self, file: &'a [u8]) -> Option<Vec<&'a str>> {
        let count = self.count.filter(|_| self.type_id == STRING)?;
        let mut cursor = Cursor::new(&file[self.place.clone()], 0, CUT_OFF);
        (0..count).map(|_| string(&mut cursor).ok()).collect()
    }

    /// Returns the elements if the value is an array of 32-bit integers.
    pub fn i32s(&self, file: &[u8]) -> Option<Vec<i32>> {
        self.count.filter(|_| self.type_id == I32)?;
        let (values, _) = file[self.place.clone()].as_chunks();
        Some(values.iter().map(|value| i32::from_le_bytes(*value)).collect())
    }

    /// Returns the bytes of the value if it is not an array.
    fn single<'a>(&self, file: &'a [u8]) -> Option<&'a [u8]> {
        if self.count.is_some() { None } else { Some(&file[self.place.clone()]) }
    }
}

/// Skips `count` values of a type.
fn skip(cursor: &mut Cursor<'_>, type_id: u32, count: u64, depth: usize) -> Result<(), String> {
    let kind = KINDS.get(type_id as usize).ok_or_else(|| format!("a value has the unknown type {type_id}"))?;
    if let Some(size) = kind.size {
        return cursor.skip_values(count, size).map(drop);
    }
    // Each value has a length of at least 8 bytes, so the loop stops at the end of the file whatever the count.
    for _ in 0..count {
        if type_id == STRING {
            string(cursor)?;
        } else if depth < MAX_DEPTH {
            let (inner, count) = (cursor.u32()?, cursor.u64()?);
            skip(cursor, inner, count, depth + 1)?;
        } else {
            return Err(format!("arrays are nested more than {MAX_DEPTH} deep"));
        }
    }
    Ok(())
}
