//! GGUF files with keys and tensors that can be changed one by one.

use std::fs;
use std::path::Path;

use crate::plain_gguf::{self, ALIGNMENT};

const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A key: its type, and the bytes of its value in the file.
#[derive(Clone)]
pub struct Entry {
    pub key: String,
    pub kind: u32,
    pub value: Vec<u8>,
}

/// A tensor; its shape has the innermost axis first.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<u64>,
    pub kind: u32,
    pub bytes: Vec<u8>,
}

/// The keys and tensors of a file.
#[derive(Clone)]
pub struct Gguf {
    pub entries: Vec<Entry>,
    pub tensors: Vec<Tensor>,
}

/// A type of tensors.
pub struct Kind {
    pub id: u32,
    pub name: &'static str,
    /// Values of a block, and its bytes.
    pub block: [usize; 2],
    /// Positions of the float16 scales in a block.
    pub scales: &'static [usize],
}

/// The types with scales.
pub const KINDS: [Kind; 12] = [
    Kind { id: 2, name: "Q4_0", block: [32, 18], scales: &[0] },
    Kind { id: 3, name: "Q4_1", block: [32, 20], scales: &[0, 2] },
    Kind { id: 6, name: "Q5_0", block: [32, 22], scales: &[0] },
    Kind { id: 7, name: "Q5_1", block: [32, 24], scales: &[0, 2] },
    Kind { id: 8, name: "Q8_0", block: [32, 34], scales: &[0] },
    Kind { id: 10, name: "Q2_K", block: [256, 84], scales: &[80, 82] },
    Kind { id: 11, name: "Q3_K", block: [256, 110], scales: &[108] },
    Kind { id: 12, name: "Q4_K", block: [256, 144], scales: &[0, 2] },
    Kind { id: 13, name: "Q5_K", block: [256, 176], scales: &[0, 2] },
    Kind { id: 14, name: "Q6_K", block: [256, 210], scales: &[208] },
    Kind { id: 20, name: "IQ4_NL", block: [32, 18], scales: &[0] },
    Kind { id: 23, name: "IQ4_XS", block: [256, 136], scales: &[0] },
];

impl Tensor {
    /// Returns its type, if the type has scales.
    pub fn kind(&self) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.id == self.kind)
    }
}

/// The rest of a file.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn string(&mut self) -> String {
        let length = self.u64() as usize;
        String::from_utf8(self.take(length).to_vec()).expect("text of ours")
    }

    fn skip(&mut self, kind: u32, count: u64) {
        for _ in 0..count {
            match kind {
                0 | 1 | 7 => drop(self.take(1)),
                2 | 3 => drop(self.take(2)),
                4..=6 => drop(self.take(4)),
                STRING => drop(self.string()),
                ARRAY => {
                    let (inner, count) = (self.u32(), self.u64());
                    self.skip(inner, count);
                }
                _ => drop(self.take(8)),
            }
        }
    }
}

impl Gguf {
    /// Reads a valid file.
    pub fn read(path: &Path) -> Self {
        let file = fs::read(path).expect("a file of ours");
        let mut cursor = Cursor(&file);
        cursor.take(8);
        let (tensors, keys) = (cursor.u64(), cursor.u64());
        let mut entries = Vec::new();
        for _ in 0..keys {
            let (key, kind) = (cursor.string(), cursor.u32());
            let start = cursor.0;
            cursor.skip(kind, 1);
            entries.push(Entry { key, kind, value: start[..start.len() - cursor.0.len()].to_vec() });
        }
        let mut found = Vec::new();
        for _ in 0..tensors {
            let name = cursor.string();
            let axes = cursor.u32();
            let shape: Vec<u64> = (0..axes).map(|_| cursor.u64()).collect();
            let (kind, offset) = (cursor.u32(), cursor.u64() as usize);
            found.push((name, shape, kind, offset));
        }
        let start = (file.len() - cursor.0.len()).next_multiple_of(ALIGNMENT);
        let mut ends: Vec<usize> = found.iter().map(|(.., offset)| *offset).collect();
        ends.push(file.len() - start);
        ends.sort_unstable();
        let tensors = found.into_iter().map(|(name, shape, kind, offset)| {
            let end = ends.iter().find(|end| **end > offset).copied().unwrap_or(offset);
            let mut bytes = file[start + offset..start + end].to_vec();
            if let Some(kind) = KINDS.iter().find(|known| known.id == kind) {
                bytes.truncate(shape.iter().product::<u64>() as usize / kind.block[0] * kind.block[1]);
            }
            Tensor { name, shape, kind, bytes }
        });
        Self { entries, tensors: tensors.collect() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let entries = self.entries.iter().map(|entry| (entry.key.as_str(), entry.kind, entry.value.clone()));
        let tensors = self.tensors.iter();
        let tensors =
            tensors.map(|tensor| (tensor.name.as_str(), tensor.shape.clone(), tensor.kind, &tensor.bytes[..]));
        plain_gguf::file(&entries.collect::<Vec<_>>(), &tensors.collect::<Vec<_>>())
    }

    pub fn write(&self, path: &Path) {
        fs::write(path, self.bytes()).expect("a temporary folder is writable");
    }
}
