//! The chunks of a PNG.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::{Picture, any_bytes};
use crate::expect::End;
use crate::mutate;
use crate::rng::Rng;

const MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The types of chunks in the standard, and those of animations.
const TYPES: [&[u8; 4]; 24] = [
    b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"cHRM", b"gAMA", b"iCCP", b"sBIT", b"sRGB", b"cICP", b"mDCV",
    b"cLLI", b"tEXt", b"zTXt", b"iTXt", b"bKGD", b"hIST", b"pHYs", b"sPLT", b"eXIf", b"tIME", b"acTL", b"fcTL",
];

struct Chunk {
    kind: [u8; 4],
    data: Vec<u8>,
    /// Offsets added to the length and to the checksum.
    wrong: [u32; 2],
}

fn chunk(kind: &[u8; 4], data: Vec<u8>) -> Chunk {
    Chunk { kind: *kind, data, wrong: [0; 2] }
}

fn parse(mut file: &[u8]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    file = file.get(8..).unwrap_or_default();
    while let [a, b, c, d, rest @ ..] = file {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let (Some(kind), Some(data)) = (rest.first_chunk(), rest.get(4..4 + length)) else { break };
        chunks.push(chunk(kind, data.to_vec()));
        file = rest.get(8 + length..).unwrap_or_default();
    }
    chunks
}

fn write(chunks: &[Chunk]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    for Chunk { kind, data, wrong } in chunks {
        let mut crc = flate2::Crc::new();
        crc.update(kind);
        crc.update(data);
        file.extend((data.len() as u32).wrapping_add(wrong[0]).to_be_bytes());
        file.extend(kind);
        file.extend(data);
        file.extend(crc.sum().wrapping_add(wrong[1]).to_be_bytes());
    }
    file
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

/// Returns the number of bytes of all rows, each with its filter byte.
fn length([width, height]: [usize; 2], bits: usize, is_interlaced: bool) -> usize {
    let rows = |width: usize, height: usize| if width == 0 { 0 } else { height * (1 + (width * bits).div_ceil(8)) };
    if !is_interlaced {
        return rows(width, height);
    }
    let passes = [[0, 0, 8, 8], [4, 0, 8, 8], [0, 4, 4, 8], [2, 0, 4, 4], [0, 2, 2, 4], [1, 0, 2, 2], [0, 1, 1, 2]];
    let of_pass = |[x, y, across, down]: [usize; 4]| {
        rows(width.saturating_sub(x).div_ceil(across), height.saturating_sub(y).div_ceil(down))
    };
    passes.into_iter().map(of_pass).sum()
}

/// Returns an image of any kind with noise, with one possible fault.
pub fn fresh(rng: &mut Rng) -> Picture {
    let (kind, samples) = *rng.pick(&[(0u8, 1), (2, 3), (3, 1), (4, 2), (6, 4), (1, 1), (7, 4)]);
    let depth = *rng.pick(&[1u8, 2, 4, 8, 16, 8, 8, 3, 0]);
    let is_interlaced = rng.one_of(3);
    let size = [1 + rng.below(90), 1 + rng.below(90)];
    let mut rows = vec![0; length(size, samples * usize::from(depth), is_interlaced)];
    let change = rng.below(8);
    if change > 2 {
        rows.iter_mut().for_each(|byte| *byte = rng.any() as u8 & if change == 3 { 0xff } else { 3 });
    }
    match change {
        4 => rows.truncate(rng.below(rows.len() + 1)),
        5 => rows.extend(any_bytes(rng, 300)),
        _ => {}
    }
    let mut header = Vec::new();
    size.iter().for_each(|side| header.extend((*side as u32).to_be_bytes()));
    header.extend([depth, kind, 0, 0, u8::from(is_interlaced)]);
    let mut chunks = vec![chunk(b"IHDR", header)];
    let palette = *rng.pick(&[0, 3, 6, 48, 768, 771, 4, 5, 1, 767]);
    if kind == 3 && !rng.one_of(10) || rng.one_of(10) {
        chunks.push(chunk(b"PLTE", (0..palette).map(|_| rng.any() as u8).collect()));
    }
    let transparent = *rng.pick(&[0, 1, 2, 6, 16, 256, 257, 300]);
    if rng.one_of(3) {
        chunks.push(chunk(b"tRNS", (0..transparent).map(|_| rng.any() as u8).collect()));
    }
    let data = deflated(&rows);
    for part in data.chunks(1 + rng.below(data.len())) {
        chunks.push(chunk(b"IDAT", part.to_vec()));
    }
    chunks.push(chunk(b"IEND", Vec::new()));
    let what = format!(
        "a PNG of type {kind}, {depth} bits, {size:?}, interlaced {is_interlaced}, palette {palette}, change {change}"
    );
    Picture { bytes: write(&chunks), what, end: End::Any }
}

/// Returns the chunks of an image with up to three changes.
pub fn damaged(file: &[u8], rng: &mut Rng) -> Picture {
    let mut chunks = parse(file);
    let mut what = Vec::new();
    for _ in 0..1 + rng.below(3) {
        if chunks.is_empty() {
            break;
        }
        let at = rng.below(chunks.len());
        let name = String::from_utf8_lossy(&chunks[at].kind).into_owned();
        let change = rng.below(12);
        match change {
            0 => drop(chunks.remove(at)),
            1 => {
                let to = rng.below(chunks.len());
                chunks.swap(at, to);
            }
            2 => {
                let Chunk { kind, data, .. } = &chunks[at];
                let copy = chunk(kind, data.clone());
                chunks.insert(rng.below(chunks.len() + 1), copy);
            }
            3 => chunks[at].wrong[0] = rng.any() as u32 >> rng.below(32),
            4 => chunks[at].wrong[1] = 1,
            5 => {
                let length = rng.below(chunks[at].data.len() + 1);
                chunks[at].data.truncate(length);
            }
            6 => chunks[at].data.extend(any_bytes(rng, 64)),
            7 => chunks[at].kind = **rng.pick(&TYPES),
            8 => chunks[at].kind[rng.below(4)] = rng.any() as u8,
            9 => chunks[at].data = mutate::damaged(&chunks[at].data, rng),
            10 => {
                // A profile, a text or an animation frame that is short, long, or a decompression bomb.
                let kind = rng.pick(&TYPES);
                let mut data = any_bytes(rng, 40);
                if rng.one_of(3) {
                    data = [b"name\0\0".to_vec(), deflated(&vec![0; 1 << rng.below(22)])].concat();
                }
                chunks.insert(at, chunk(kind, data));
            }
            _ => {
                let header = &mut chunks[0].data;
                if header.len() == 13 {
                    let place = rng.below(13);
                    header[place] = *rng.pick(&[0, 1, 2, 3, 4, 6, 8, 16, 0x7f, 0x80, 0xff]);
                }
            }
        }
        what.push(format!("{name} {change}"));
    }
    Picture { bytes: write(&chunks), what: format!("the chunks of a PNG: {}", what.join(", ")), end: End::Any }
}
