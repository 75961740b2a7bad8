//! Masks of a graph.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use flux::input::{Grey, Mask};
use flux::rgb::Rgb;
use flux::stage::CancelFlag;
use parking_lot::Mutex;

use super::{Broken, MAX_CHANGES, Made, Picture, Result, png};

/// Max product of a mask's pixels and the pixels that it grows by.
const MAX_GROWTH: u64 = 1 << 28;

/// The channel that a mask is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Transparent areas are regenerated.
    Alpha,
    /// Bright areas of red, green or blue.
    Color(usize),
}

impl Channel {
    /// Returns the channel with this name.
    pub fn from_name(name: &str) -> Self {
        match name {
            "red" => Self::Color(0),
            "green" => Self::Color(1),
            "blue" => Self::Color(2),
            _ => Self::Alpha,
        }
    }
}

/// A mask: a channel of an image, with changes.
#[derive(Debug)]
pub struct MaskPicture {
    pub(super) of: Arc<Picture>,
    pub(super) channel: Channel,
    pub(super) changes: Vec<Change>,
    /// The encoded file for an image of this size.
    encoded: Mutex<Option<([u64; 2], Bytes)>>,
}

impl PartialEq for MaskPicture {
    fn eq(&self, other: &Self) -> bool {
        *self.of == *other.of && self.channel == other.channel && self.changes == other.changes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Invert,
    /// Grows by this number of pixels in all directions. `true` tapers the corners.
    Grow(usize, bool),
    /// Dilates by a window of this many pixels.
    Widen(usize),
}

impl MaskPicture {
    pub fn new(of: &Arc<Picture>, channel: Channel) -> Self {
        Self { of: Arc::clone(of), channel, changes: Vec::new(), encoded: Mutex::default() }
    }

    fn with(&self, change: Change) -> Result<Self> {
        if self.changes.len() >= MAX_CHANGES {
            return Err(format!("the mask is changed more than {MAX_CHANGES} times"));
        }
        let changes = self.changes.iter().copied().chain([change]).collect();
        Ok(Self { changes, ..Self::new(&self.of, self.channel) })
    }

    fn same(&self) -> Self {
        Self { changes: self.changes.clone(), ..Self::new(&self.of, self.channel) }
    }

    pub fn inverted(&self) -> Result<Self> {
        self.with(Change::Invert)
    }

    /// Grows the mask as `GrowMask` does.
    pub fn grown(&self, by: u64, is_tapered: bool) -> Result<Self> {
        if self.of.size[0].saturating_mul(self.of.size[1]).saturating_mul(by) > MAX_GROWTH {
            return Err(format!("the mask is too large to grow by {by} pixels: scale it down first"));
        }
        if by == 0 { Ok(self.same()) } else { self.with(Change::Grow(by as usize, is_tapered)) }
    }

    /// Dilates the mask as `VAEEncodeForInpaint` does.
    pub fn widened(&self, by: u64) -> Result<Self> {
        if by == 0 { Ok(self.same()) } else { self.with(Change::Widen(by as usize)) }
    }

    /// Returns the file of the mask for an image of this size: white in the area to regenerate.
    ///
    /// Errors if the source has no mask, or the work is cancelled.
    pub fn to_file(&self, of_size: [u64; 2], cancel: &CancelFlag) -> Made<Bytes> {
        let mut encoded = self.encoded.lock();
        if let Some((_, file)) = encoded.as_ref().filter(|(size, _)| *size == of_size) {
            return Ok(file.clone());
        }
        let mut grey = self.grey(cancel)?;
        for change in &self.changes {
            cancel.check()?;
            match *change {
                Change::Invert => grey.bytes.iter_mut().for_each(|value| *value = 255 - *value),
                Change::Grow(by, false) => spread(&mut grey, by, by),
                Change::Grow(by, true) => (0..by).try_for_each(|_| {
                    grow_cross(&mut grey);
                    cancel.check()
                })?,
                Change::Widen(by) => spread(&mut grey, by / 2, (by - 1) / 2),
            }
        }
        cancel.check()?;
        let size = of_size.map(|side| side as usize);
        let grey = if [grey.width, grey.height] == size { grey } else { Mask::from(grey).grey(size) };
        let bytes = grey.bytes.iter().flat_map(|value| [*value; 3]).collect();
        let file = png(&Rgb { width: grey.width, height: grey.height, bytes })?;
        Ok(encoded.insert((of_size, file)).1.clone())
    }

    fn grey(&self, cancel: &CancelFlag) -> Made<Grey> {
        if let Channel::Color(channel) = self.channel {
            let image = self.of.pixels(cancel)?;
            let bytes = image.bytes.chunks_exact(3).map(|pixel| pixel[channel]).collect();
            return Ok(Grey { width: image.width, height: image.height, bytes });
        }
        cancel.check()?;
        let file = self.of.original().map_or(&[][..], |(file, _)| file);
        let mask = Mask::read_transparent(file).map_err(|e| self.of.broken(&e))?;
        let details = "the image has the same opacity everywhere, so it has no mask".to_string();
        let mask = mask.ok_or(Broken { origin: None, details, is_out_of_memory: false })?;
        Ok(mask.grey(mask.size()))
    }
}

/// Replaces each pixel with the max over `before` preceding and `behind` following ones, in both directions.
pub(super) fn spread(grey: &mut Grey, before: usize, behind: usize) {
    let Grey { width, height, .. } = *grey;
    let brightest = |line: &[u8]| -> Vec<u8> {
        // A sliding window max: a queue of indices with decreasing values.
        let mut falling = VecDeque::new();
        let mut next = 0;
        (0..line.len())
            .map(|place| {
                while next < line.len().min(place + behind + 1) {
                    while falling.back().is_some_and(|last: &usize| line[*last] <= line[next]) {
                        falling.pop_back();
                    }
                    falling.push_back(next);
                    next += 1;
                }
                while falling.front().is_some_and(|first| first + before < place) {
                    falling.pop_front();
                }
                falling.front().map_or(0, |first| line[*first])
            })
            .collect()
    };
    grey.bytes = grey.bytes.chunks_exact(width).flat_map(brightest).collect();
    for x in 0..width {
        let column: Vec<u8> = (0..height).map(|y| grey.bytes[y * width + x]).collect();
        for (y, value) in brightest(&column).into_iter().enumerate() {
            grey.bytes[y * width + x] = value;
        }
    }
}

/// Replaces each pixel with the max of itself and its four neighbors.
pub(super) fn grow_cross(grey: &mut Grey) {
    let Grey { width, height, .. } = *grey;
    let old = mem::take(&mut grey.bytes);
    let at = |x: usize, y: usize| old[y * width + x];
    let pixel = |place: usize| {
        let (x, y) = (place % width, place / width);
        let mut value = old[place];
        for (x, y) in [(x.wrapping_sub(1), y), (x + 1, y), (x, y.wrapping_sub(1)), (x, y + 1)] {
            if x < width && y < height {
                value = value.max(at(x, y));
            }
        }
        value
    };
    grey.bytes = (0..old.len()).map(pixel).collect();
}
