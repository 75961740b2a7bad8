//! The chunks of a WebP.

use super::{Picture, any_bytes};
use crate::expect::End;
use crate::mutate;
use crate::rng::Rng;

const TYPES: [&[u8; 4]; 10] =
    [b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF", b"ICCP", b"EXIF", b"XMP ", b"junk"];

struct Chunk {
    kind: [u8; 4],
    data: Vec<u8>,
    /// An offset added to the length.
    wrong: u32,
}

fn parse(file: &[u8]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut rest = file.get(12..).unwrap_or_default();
    while let Some((kind, [a, b, c, d, data @ ..])) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let Some(bytes) = data.get(..length) else { break };
        chunks.push(Chunk { kind: *kind, data: bytes.to_vec(), wrong: 0 });
        rest = data.get(length.next_multiple_of(2)..).unwrap_or_default();
    }
    chunks
}

fn write(chunks: &[Chunk], wrong: u32) -> Vec<u8> {
    let mut body = b"WEBP".to_vec();
    for Chunk { kind, data, wrong } in chunks {
        body.extend(kind);
        body.extend((data.len() as u32).wrapping_add(*wrong).to_le_bytes());
        body.extend(data);
        body.resize(body.len().next_multiple_of(2), 0);
    }
    let mut file = b"RIFF".to_vec();
    file.extend((body.len() as u32).wrapping_add(wrong).to_le_bytes());
    file.extend(body);
    file
}

/// Returns the chunks of an image with up to three changes.
pub fn damaged(file: &[u8], rng: &mut Rng) -> Picture {
    let mut chunks = parse(file);
    let mut wrong = 0;
    let mut what = Vec::new();
    for _ in 0..1 + rng.below(3) {
        let change = rng.below(10);
        let Some(at) = (!chunks.is_empty()).then(|| rng.below(chunks.len())) else { break };
        let name = String::from_utf8_lossy(&chunks[at].kind).into_owned();
        match change {
            0 => drop(chunks.remove(at)),
            1 => {
                let Chunk { kind, data, wrong } = &chunks[at];
                let copy = Chunk { kind: *kind, data: data.clone(), wrong: *wrong };
                chunks.insert(rng.below(chunks.len() + 1), copy);
            }
            2 => chunks[at].wrong = rng.any() as u32 >> rng.below(32),
            3 => wrong = rng.any() as u32 >> rng.below(32),
            4 => {
                let length = rng.below(chunks[at].data.len() + 1);
                chunks[at].data.truncate(length);
            }
            5 => chunks[at].kind = **rng.pick(&TYPES),
            6 => {
                // Flags and a size that may differ from the image's.
                let mut data = vec![rng.any() as u8, 0, 0, 0];
                data.extend([rng.any() as u8 & 127, 0, 0, rng.any() as u8 & 127, 0, 0]);
                chunks.insert(0, Chunk { kind: *b"VP8X", data, wrong: 0 });
            }
            7 => {
                let kind = **rng.pick(&TYPES);
                chunks.insert(at, Chunk { kind, data: any_bytes(rng, 60), wrong: 0 });
            }
            8 => chunks[at].data = mutate::damaged(&chunks[at].data, rng),
            _ => {
                // The header of the pixels: signature, sides, version.
                if let Some(byte) = chunks[at].data.get_mut(rng.below(10)) {
                    *byte ^= 1 << rng.below(8);
                }
            }
        }
        what.push(format!("{name:?} {change}"));
    }
    Picture { bytes: write(&chunks, wrong), what: format!("the chunks of a WebP: {}", what.join(", ")), end: End::Any }
}
