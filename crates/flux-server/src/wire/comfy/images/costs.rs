//! The work of producing the images and masks of a graph.

use std::collections::HashSet;
use std::ptr;
use std::sync::atomic::Ordering;

use super::mask::{Change, Channel, MaskPicture};
use super::{Picture, Source};
use crate::jobs::admission::Estimate;

/// The work of producing the images and masks of a graph. Each is counted once.
#[derive(Default)]
pub struct Costs {
    /// Pixels and files that were counted, by address.
    seen: HashSet<(*const Picture, bool)>,
    masks: HashSet<(*const MaskPicture, [u64; 2])>,
}

impl Costs {
    /// Returns the work of producing the file of an image.
    pub fn file(&mut self, picture: &Picture) -> Estimate {
        match picture.source {
            Source::Scaled { .. } if self.seen.insert((ptr::from_ref(picture), true)) => {
                Estimate::scale(picture.pixel_count().saturating_mul(2)) + self.pixels(picture)
            }
            _ => Estimate::default(),
        }
    }

    /// Returns the work of producing the file of a mask.
    pub fn mask(&mut self, mask: &MaskPicture, size: [u64; 2]) -> Estimate {
        if !self.masks.insert((ptr::from_ref(mask), size)) {
            return Estimate::default();
        }
        let pixels = mask.of.pixel_count();
        let source = match mask.channel {
            Channel::Color(_) => self.pixels(&mask.of),
            Channel::Alpha => decode(&mask.of),
        };
        let change = |change: &Change| match *change {
            Change::Invert => pixels,
            Change::Grow(by, true) => pixels.saturating_mul(1 + by as u64 / 2),
            Change::Grow(_, false) | Change::Widen(_) => pixels.saturating_mul(4),
        };
        let changes: u64 = mask.changes.iter().map(change).fold(0, u64::saturating_add);
        source + Estimate::scale(changes.saturating_add(size[0].saturating_mul(size[1]).saturating_mul(3)))
    }

    /// Returns the work of one more use of an image's pixels.
    fn pixels(&mut self, picture: &Picture) -> Estimate {
        picture.uses.fetch_add(1, Ordering::Relaxed);
        if !self.seen.insert((ptr::from_ref(picture), false)) {
            return Estimate::default();
        }
        match &picture.source {
            Source::Sent { .. } | Source::Generated(_) | Source::Enlarged { .. } => decode(picture),
            Source::Scaled { from, scale, .. } => {
                let pixels = scale.part.width as u64 * scale.part.height as u64 + picture.pixel_count();
                Estimate { largest: pixels, ..Estimate::scale(pixels) } + self.pixels(from)
            }
        }
    }
}

/// Returns the work of decoding the file of an image.
fn decode(picture: &Picture) -> Estimate {
    let size = match &picture.source {
        Source::Sent { .. } | Source::Generated(_) | Source::Enlarged { .. } => picture.size,
        Source::Scaled { from, .. } => return decode(from),
    };
    Estimate::decode(size.map(|side| side as usize))
}
