//! Agreement between the devices of a group before each stage, so that all do the same, whatever each has cached or
//! has room for. A single device agrees with itself.
//!
//! Every device takes part in every agreement, in the order of the stages. No device may skip one because of facts
//! unknown to other devices.

use crate::backend::Backend;
use crate::error::Result;
use crate::pipeline::residency::timings::Timings;

/// The state of a device before the first step.
#[derive(Debug, Clone, Copy)]
pub(super) struct BeforeSteps {
    /// `true` if the device has cached the keys and values of all references, or if the model does not cache them.
    pub has_references: bool,
    /// The cached batch of this shape: equal numbers are equal batches, 0 is none.
    pub batch: u64,
    /// Bytes that the batch may take.
    pub available: u64,
}

/// The decisions of all devices before the first step.
pub(super) struct Steps {
    /// `true` if all devices read cached keys and values of references; otherwise all compute them.
    pub has_references: bool,
    /// `true` if all devices have cached the same batch; otherwise all create one.
    pub has_batch: bool,
    /// Bytes that the batch may take on each device.
    pub available: u64,
}

/// Agrees on the images to encode: those that any device lacks.
pub(super) fn images<B: Backend>(backend: &B, lacks: Vec<bool>) -> Result<Vec<bool>> {
    let mut all = backend.gather_host("the images", lacks)?.into_iter();
    let first = all.next().unwrap_or_default();
    Ok(all.fold(first, |all, own| all.iter().zip(own).map(|(lack, own)| lack | own).collect()))
}

/// Waits until the first device has the text and all devices have loaded the image encoder, which may take minutes.
pub(super) fn encoders<B: Backend>(backend: &B) -> Result<()> {
    backend.gather_host("the text and the encoder", ()).map(drop)
}

/// Agrees on what to compute before the first step.
pub(super) fn steps<B: Backend>(backend: &B, own: BeforeSteps) -> Result<Steps> {
    let all = backend.gather_host("the batch", own)?;
    Ok(Steps {
        has_references: all.iter().all(|one| one.has_references),
        has_batch: own.batch != 0 && all.iter().all(|one| one.has_references && one.batch == own.batch),
        available: all.iter().map(|one| one.available).min().unwrap_or_default(),
    })
}

/// Waits until all devices have loaded the decoder, and the callers on all devices are done with the previous image.
pub(super) fn decoder<B: Backend>(backend: &B) -> Result<()> {
    backend.gather_host("an image to decode", ()).map(drop)
}

/// Gathers the timings of all devices in the order of ranks. The first device gets all of them, each other device its
/// own.
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
