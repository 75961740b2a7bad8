//! Image files that are wrong in their structure: each part by itself is what it should be, but for one.

mod jpeg;
mod png;
mod riff;

use super::expect::End;
use super::mutate;
use super::rng::Rng;

/// A file, what is wrong with it, and how reading it may end.
pub struct Picture {
    pub bytes: Vec<u8>,
    pub what: String,
    pub end: End,
}

/// An image like `bytes` with faults in its structure.
pub fn damaged(bytes: &[u8], rng: &mut Rng) -> Picture {
    let mut picture = match bytes {
        [0x89, ..] if rng.one_of(2) => png::fresh(rng),
        [0x89, ..] => png::damaged(bytes, rng),
        [0xff, ..] => jpeg::damaged(bytes, rng),
        _ => riff::damaged(bytes, rng),
    };
    if rng.one_of(12) {
        picture.bytes = mutate::damaged(&picture.bytes, rng);
        picture.end = End::Any;
        picture.what += ", and bytes";
    }
    picture
}

/// Any bytes, as many as a part of a file has.
fn any_bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    (0..rng.below(most + 1)).map(|_| rng.any() as u8).collect()
}
