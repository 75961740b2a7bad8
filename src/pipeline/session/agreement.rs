//! What the devices of a group agree on: once before each stage, so that all do the same, whatever each has cached or
//! has room for. A device that is alone agrees with itself.
//!
//! Every device comes to every meeting, in the order of the stages: nothing that only some of them know may lead around
//! one.

use crate::backend::Backend;
use crate::error::Result;
use crate::pipeline::residency::timings::Timings;

/// What a device knows before the first step.
#[derive(Debug, Clone, Copy)]
pub(super) struct BeforeSteps {
    /// Whether it has cached the keys and values of all references; also where they are not cached at all.
    pub has_references: bool,
    /// Which batch of this shape it has cached: equal numbers are equal batches, 0 is none.
    pub batch: u64,
    /// Bytes that the batch may take.
    pub available: u64,
}

/// What all do before the first step.
pub(super) struct Steps {
    /// Whether all read cached keys and values of references. Else all make them.
    pub has_references: bool,
    /// Whether all have cached the same batch. Else all make one.
    pub has_batch: bool,
    /// Bytes that the batch may take on each of them.
    pub available: u64,
}

/// Which images are encoded: those that any device lacks.
pub(super) fn images<B: Backend>(backend: &B, lacks: Vec<bool>) -> Result<Vec<bool>> {
    let mut all = backend.gather_host("the images", lacks)?.into_iter();
    let first = all.next().unwrap_or_default();
    Ok(all.fold(first, |all, own| all.iter().zip(own).map(|(lack, own)| lack | own).collect()))
}

/// The first device has the text, and all have loaded what encodes images, for which devices may need minutes.
pub(super) fn encoders<B: Backend>(backend: &B) -> Result<()> {
    backend.gather_host("the text and the encoder", ()).map(drop)
}

/// What is made before the first step.
pub(super) fn steps<B: Backend>(backend: &B, own: BeforeSteps) -> Result<Steps> {
    let all = backend.gather_host("the batch", own)?;
    Ok(Steps {
        has_references: all.iter().all(|one| one.has_references),
        has_batch: own.batch != 0 && all.iter().all(|one| one.has_references && one.batch == own.batch),
        available: all.iter().map(|one| one.available).min().unwrap_or_default(),
    })
}

/// All have loaded the decoder, and the caller of each has done with the image before this one.
pub(super) fn decoder<B: Backend>(backend: &B) -> Result<()> {
    backend.gather_host("an image to decode", ()).map(drop)
}

/// Where the time of each went, in the order of ranks; this device's own on the others than the first.
pub(super) fn timings<B: Backend>(backend: &B, own: Timings) -> Result<Timings> {
    if backend.world() == 1 {
        return Ok(own);
    }
    let mut all = backend.gather_host("the timings", own)?;
    let others = all.split_off(1);
    let first = all.swap_remove(0);
    Ok(match backend.rank() {
        0 => Timings { other_devices: others, ..first },
        rank => others.into_iter().nth(rank - 1).unwrap_or(first),
    })
}
