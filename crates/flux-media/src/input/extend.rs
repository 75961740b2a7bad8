//! Extension of an image to a larger canvas.

use serde::{Deserialize, Serialize};

use super::mask::{Grey, Mask};
use super::region::Region;
use super::size::CELL;
use crate::rgb::Rgb;

/// Number of regenerated pixels along a side that grows, at most a quarter of the image.
const OVERLAP: usize = 16;

/// The pixels by which an image grows at each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with left, top, right and bottom")]
pub struct Sides {
    /// Columns added on the left.
    pub left: usize,
    /// Rows added on top.
    pub top: usize,
    /// Columns added on the right.
    pub right: usize,
    /// Rows added at the bottom.
    pub bottom: usize,
}

impl Sides {
    /// Returns the size of the extended image.
    pub fn grown(&self, [width, height]: [usize; 2]) -> [usize; 2] {
        let sum = |a: usize, b: usize, c: usize| a.saturating_add(b).saturating_add(c);
        [sum(self.left, width, self.right), sum(self.top, height, self.bottom)]
    }
}

/// Returns the canvas and the mask of its new area. The canvas has sides that are multiples of 16, so nothing is
/// stretched: up to 15 more columns and rows are at the right and the bottom.
pub(super) fn extended(image: &Rgb, sides: Sides, mask: Option<&Mask>) -> (Rgb, Mask) {
    let size = [image.width, image.height];
    let grown = sides.grown(size);
    let canvas = grown.map(|side| side.next_multiple_of(CELL));
    let place = Region { left: sides.left, top: sides.top, width: image.width, height: image.height };
    let bytes = bordered::<3>(&image.bytes, place, canvas);
    let mut white = vec![255; grown[0] * grown[1]];
    let overlap = |grows: usize, side: usize| if grows > 0 { OVERLAP.min(side / 4) } else { 0 };
    let kept_columns = overlap(sides.left, size[0])..size[0] - overlap(sides.right, size[0]);
    let kept_rows = overlap(sides.top, size[1])..size[1] - overlap(sides.bottom, size[1]);
    let painted = mask.map(|mask| mask.grey(size).bytes);
    for y in kept_rows {
        for x in kept_columns.clone() {
            let value = painted.as_ref().map_or(0, |painted| painted[y * size[0] + x]);
            white[(place.top + y) * grown[0] + place.left + x] = value;
        }
    }
    // The filled part continues its neighbours in the mask: white there would fade into the image.
    let white = bordered::<1>(&white, Region::all(grown[0], grown[1]), canvas);
    let mask = Mask::from(Grey { width: canvas[0], height: canvas[1], bytes: white });
    (Rgb { width: canvas[0], height: canvas[1], bytes }, mask)
}

/// Places pixels [place.height, place.width, CHANNELS] in `size = [width, height]`, and repeats the nearest pixel
/// around them.
pub(super) fn bordered<const CHANNELS: usize>(pixels: &[u8], place: Region, size: [usize; 2]) -> Vec<u8> {
    let mut out = Vec::with_capacity(size[0] * size[1] * CHANNELS);
    for y in 0..size[1] {
        let row = y.saturating_sub(place.top).min(place.height - 1) * place.width * CHANNELS;
        let row = &pixels[row..][..place.width * CHANNELS];
        let (first, last) = (&row[..CHANNELS], &row[row.len() - CHANNELS..]);
        (0..place.left).for_each(|_| out.extend_from_slice(first));
        out.extend_from_slice(row);
        (place.left + place.width..size[0]).for_each(|_| out.extend_from_slice(last));
    }
    out
}
