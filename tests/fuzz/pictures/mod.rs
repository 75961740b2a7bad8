//! Image files with structural faults: every part but one is valid.

mod jpeg;
mod png;
mod riff;

use super::expect::End;
use super::mutate;
use super::rng::Rng;

/// A file, its fault, and the allowed ends of reading it.
pub struct Picture {
    pub bytes: Vec<u8>,
    pub what: String,
    pub end: End,
}

/// Returns an image like `bytes` with structural faults.
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

/// Returns up to `most` arbitrary bytes.
fn any_bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    (0..rng.below(most + 1)).map(|_| rng.any() as u8).collect()
}
