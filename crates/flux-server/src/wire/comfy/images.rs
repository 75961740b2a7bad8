//! Images and masks of a graph: uploaded files, and the changes that nodes make. An image is decoded only if it is used
//! and its cost was counted, and only once, regardless of how many samplers use it.

use std::collections::HashSet;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use flux::input::{self, Grey, Mask, Region};
use flux::metadata::Metadata;
use flux::output::{ImageFormat, encode};
use flux::rgb::Rgb;
use flux::stage::CancelFlag;

use crate::jobs::admission::Estimate;

/// Max pixels of a changed image, and max successive changes of an image.
const MAX_PIXELS: u64 = 16 << 20;
const MAX_CHANGES: usize = 8;
/// Max product of a mask's pixels and the pixels that it grows by.
const MAX_GROWTH: u64 = 1 << 28;

type Result<T> = std::result::Result<T, String>;

/// An image that cannot be produced, with the reason. If its file is damaged, `origin` is the node's index and input.
#[derive(Debug, Clone)]
pub struct Broken {
    pub origin: Option<(usize, String)>,
    pub details: String,
    /// `true` if there was no memory for it.
    pub is_out_of_memory: bool,
}

impl From<flux::Error> for Broken {
    fn from(error: flux::Error) -> Self {
        Self { origin: None, details: error.what().to_string(), is_out_of_memory: error.is_out_of_memory() }
    }
}

type Made<T> = std::result::Result<T, Broken>;

/// An image of a graph.
#[derive(Debug)]
pub struct Picture {
    source: Source,
    /// Width and height in pixels.
    pub size: [u64; 2],
    /// The number of images, masks and files that still need its pixels.
    uses: AtomicUsize,
    /// The pixels, kept until their last use.
    pixels: Mutex<Option<Arc<Rgb>>>,
    /// The encoded file.
    encoded: Mutex<Option<Bytes>>,
}

/// The source of an image's pixels.
#[derive(Debug)]
enum Source {
    /// A file, with the index of the node and the input that name it.
    Sent {
        file: Bytes,
        origin: (usize, String),
    },
    /// An image that is not generated yet.
    Generated,
    Scaled {
        from: Arc<Picture>,
        scale: Scale,
        changes: usize,
    },
}

/// A change of size, of the whole image or of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scale {
    is_nearest: bool,
    part: Region,
    to: [usize; 2],
}

impl PartialEq for Picture {
    fn eq(&self, other: &Self) -> bool {
        let is_same_source = || match (&self.source, &other.source) {
            (Source::Sent { file, .. }, Source::Sent { file: other, .. }) => file == other,
            (Source::Generated, Source::Generated) => true,
            (Source::Scaled { from, scale, .. }, Source::Scaled { from: other, scale: other_scale, .. }) => {
                scale == other_scale && **from == **other
            }
            _ => false,
        };
        ptr::eq(self, other) || (self.size == other.size && is_same_source())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Picture {
    /// Creates the image of a file, named by an input of a node.
    pub fn sent(file: Bytes, [width, height]: [usize; 2], origin: (usize, String)) -> Arc<Self> {
        Self::new(Source::Sent { file, origin }, [width as u64, height as u64])
    }

    /// Creates the image of a sampler, which is not generated yet.
    pub fn without_file(size: [u64; 2]) -> Arc<Self> {
        Self::new(Source::Generated, size)
    }

    /// Returns a copy with a generated image as its source.
    pub fn with_file(&self, file: Bytes) -> Arc<Self> {
        let source = match &self.source {
            Source::Scaled { from, scale, changes } => {
                Source::Scaled { from: from.with_file(file), scale: *scale, changes: *changes }
            }
            Source::Sent { .. } | Source::Generated => Source::Sent { file, origin: (0, String::new()) },
        };
        Self::new(source, self.size)
    }

    /// Returns `true` if no node changes it.
    pub fn is_whole(&self) -> bool {
        !matches!(self.source, Source::Scaled { .. })
    }

    /// Returns the pixels produced by all changes.
    pub fn changed_pixels(&self) -> u64 {
        match &self.source {
            Source::Scaled { from, .. } => self.pixel_count().saturating_add(from.changed_pixels()),
            Source::Sent { .. } | Source::Generated => 0,
        }
    }

    /// Returns a part, clipped to the image.
    ///
    /// Errors if there are too many changes.
    pub fn cropped(self: &Arc<Self>, [x, y]: [u64; 2], [width, height]: [u64; 2]) -> Result<Arc<Self>> {
        let [left, top] = [x.min(self.size[0] - 1), y.min(self.size[1] - 1)];
        let to = [width.min(self.size[0] - left), height.min(self.size[1] - top)];
        if to.contains(&0) {
            return Err("the cropped area is empty".to_string());
        }
        let [left, top, width, height] = [left, top, to[0], to[1]].map(|side| side as usize);
        self.with(Scale { is_nearest: true, part: Region { left, top, width, height }, to: [width, height] })
    }

    fn with(self: &Arc<Self>, scale: Scale) -> Result<Arc<Self>> {
        let changes = match &self.source {
            Source::Scaled { changes, .. } => changes + 1,
            Source::Sent { .. } | Source::Generated => 1,
        };
        if changes > MAX_CHANGES {
            return Err(format!("the image is changed more than {MAX_CHANGES} times"));
        }
        let size = scale.to.map(|side| side as u64);
        Ok(Self::new(Source::Scaled { from: Arc::clone(self), scale, changes }, size))
    }

    fn new(source: Source, size: [u64; 2]) -> Arc<Self> {
        let (uses, pixels, encoded) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
        Arc::new(Self { source, size, uses, pixels, encoded })
    }

    /// Returns the image in another size. If `is_cut`, it is center-cropped to the new aspect ratio.
    ///
    /// Errors if the size is too large, or there are too many changes.
    pub fn scaled(self: &Arc<Self>, method: &str, to: [u64; 2], is_cut: bool) -> Result<Arc<Self>> {
        if to.contains(&0) || to[0].saturating_mul(to[1]) > MAX_PIXELS {
            return Err(format!("an image of {}x{} was requested, expected 1 to {MAX_PIXELS} pixels", to[0], to[1]));
        }
        if to == self.size {
            return Ok(Arc::clone(self));
        }
        let part = if is_cut { middle(self.size, to) } else { all(self.size) };
        self.with(Scale { is_nearest: method == "nearest-exact", part, to: to.map(|side| side as usize) })
    }

    /// Returns the original file and its origin, or `None` if the image is not generated yet.
    fn original(&self) -> Option<(&Bytes, &(usize, String))> {
        match &self.source {
            Source::Sent { file, origin } => Some((file, origin)),
            Source::Generated => None,
            Source::Scaled { from, .. } => from.original(),
        }
    }

    fn pixel_count(&self) -> u64 {
        self.size[0].saturating_mul(self.size[1])
    }

    /// Returns the pixels, which are dropped after the last use.
    ///
    /// Errors if the file cannot be read, or the work is cancelled.
    fn pixels(&self, cancel: &CancelFlag) -> Made<Arc<Rgb>> {
        let mut kept = locked(&self.pixels);
        let pixels = match &*kept {
            Some(pixels) => Arc::clone(pixels),
            None => Arc::new(self.make(cancel)?),
        };
        let before = self.uses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |uses| uses.checked_sub(1));
        *kept = before.is_ok_and(|uses| uses > 1).then(|| Arc::clone(&pixels));
        Ok(pixels)
    }

    fn make(&self, cancel: &CancelFlag) -> Made<Rgb> {
        cancel.check()?;
        match &self.source {
            Source::Sent { file, .. } => {
                let image = input::read_bytes(file).map_err(|e| self.broken(&e))?;
                let size = self.size.map(|side| side as usize);
                // A generated image may have another size than the graph stated.
                match [image.width, image.height] == size {
                    true => Ok(image),
                    false => Ok(input::resized_unless(&image, size, cancel)?),
                }
            }
            Source::Generated => Err(self.broken(&flux::Error::new("the image is not generated yet"))),
            Source::Scaled { from, scale: Scale { is_nearest, part, to }, .. } => {
                let image = from.pixels(cancel)?;
                let cut = part.cut(&image.bytes, image.width, 3);
                drop(image);
                let cut = Rgb { width: part.width, height: part.height, bytes: cut };
                match is_nearest {
                    _ if [cut.width, cut.height] == *to => Ok(cut),
                    true => Ok(nearest(&cut, *to)),
                    false => Ok(input::resized_unless(&cut, *to, cancel)?),
                }
            }
        }
    }

    fn broken(&self, error: &flux::Error) -> Broken {
        let details = error.what().to_string();
        Broken {
            origin: self.original().map(|(_, origin)| origin.clone()),
            details,
            is_out_of_memory: error.is_out_of_memory(),
        }
    }

    /// Returns its file. An unchanged image is returned as uploaded.
    ///
    /// Errors if the file cannot be read, or the work is cancelled.
    pub fn to_file(&self, cancel: &CancelFlag) -> Made<Bytes> {
        if let Source::Sent { file, .. } = &self.source {
            return Ok(file.clone());
        }
        let mut encoded = locked(&self.encoded);
        if let Some(file) = &*encoded {
            return Ok(file.clone());
        }
        let pixels = self.pixels(cancel)?;
        cancel.check()?;
        Ok(encoded.insert(png(&pixels)?).clone())
    }
}

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
            Source::Sent { .. } | Source::Generated => decode(picture),
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
        Source::Sent { .. } | Source::Generated => picture.size,
        Source::Scaled { from, .. } => return decode(from),
    };
    Estimate::decode(size.map(|side| side as usize))
}

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
    of: Arc<Picture>,
    channel: Channel,
    changes: Vec<Change>,
    /// The encoded file for an image of this size.
    encoded: Mutex<Option<([u64; 2], Bytes)>>,
}

impl PartialEq for MaskPicture {
    fn eq(&self, other: &Self) -> bool {
        *self.of == *other.of && self.channel == other.channel && self.changes == other.changes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
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
        let mut encoded = locked(&self.encoded);
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

fn png(image: &Rgb) -> Made<Bytes> {
    Ok(encode(image, ImageFormat::Png, &Metadata::default())?.into())
}

fn all(size: [u64; 2]) -> Region {
    let [width, height] = size.map(|side| side as usize);
    Region::all(width, height)
}

/// Returns the centered part of an image that has the aspect ratio of another size.
fn middle([width, height]: [u64; 2], to: [u64; 2]) -> Region {
    let (own, new) = (width as f64 / height as f64, to[0] as f64 / to[1] as f64);
    let left_out = |side: u64, kept: f64| ((side as f64 - side as f64 * kept) / 2.0).round_ties_even() as u64;
    let x = if own > new { left_out(width, new / own) } else { 0 };
    let y = if own < new { left_out(height, own / new) } else { 0 };
    let inner = [(width - 2 * x).max(1), (height - 2 * y).max(1)].map(|side| side as usize);
    Region::middle([width as usize, height as usize], inner)
}

/// Scales with nearest-neighbor sampling at pixel centers.
fn nearest(image: &Rgb, [width, height]: [usize; 2]) -> Rgb {
    let from = |place: usize, own: usize, new: usize| {
        (((place as f32 + 0.5) * (own as f32 / new as f32)) as usize).min(own - 1)
    };
    let columns: Vec<usize> = (0..width).map(|x| 3 * from(x, image.width, width)).collect();
    let rows = (0..height).map(|y| &image.bytes[3 * image.width * from(y, image.height, height)..]);
    let bytes = rows.flat_map(|row| columns.iter().flat_map(move |x| [row[*x], row[x + 1], row[x + 2]])).collect();
    Rgb { width, height, bytes }
}

/// Replaces each pixel with the max over `before` preceding and `behind` following ones, in both directions.
fn spread(grey: &mut Grey, before: usize, behind: usize) {
    let Grey { width, height, .. } = *grey;
    let brightest = |line: &[u8]| -> Vec<u8> {
        // A sliding window max: a queue of indices with decreasing values.
        let mut falling = std::collections::VecDeque::new();
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
fn grow_cross(grey: &mut Grey) {
    let Grey { width, height, .. } = *grey;
    let old = std::mem::take(&mut grey.bytes);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(rows: &[&[u8]]) -> Grey {
        Grey { width: rows[0].len(), height: rows.len(), bytes: rows.concat() }
    }

    #[test]
    fn the_nearest_pixel_is_taken_from_the_middle() {
        let image = Rgb { width: 3, height: 1, bytes: vec![0, 0, 0, 1, 1, 1, 2, 2, 2] };
        let columns = |width| nearest(&image, [width, 1]).bytes.iter().step_by(3).copied().collect::<Vec<_>>();
        assert_eq!((columns(6), columns(2), columns(1)), (vec![0, 0, 1, 1, 2, 2], vec![0, 2], vec![1]));
    }

    #[test]
    fn a_part_in_the_middle_has_the_new_proportions() {
        let region = middle([200, 100], [64, 64]);
        assert_eq!((region.size(), region.left, region.top), ([100, 100], 50, 0));
        assert_eq!(middle([100, 200], [64, 64]).size(), [100, 100]);
        assert_eq!(middle([64, 64], [64, 64]).size(), [64, 64]);
        assert_eq!(middle([1, 10_000], [10_000, 1]).size()[0], 1);
    }

    #[test]
    fn masks_grow() {
        let dot = || grey(&[&[0, 0, 0, 0, 0], &[0, 0, 9, 0, 0], &[0, 0, 0, 0, 0]]);
        let mut square = dot();
        spread(&mut square, 1, 1);
        assert_eq!(square, grey(&[&[0, 9, 9, 9, 0], &[0, 9, 9, 9, 0], &[0, 9, 9, 9, 0]]));
        let mut cross = dot();
        grow_cross(&mut cross);
        assert_eq!(cross, grey(&[&[0, 0, 9, 0, 0], &[0, 9, 9, 9, 0], &[0, 0, 9, 0, 0]]));
        let mut wide = dot();
        spread(&mut wide, 1, 0);
        assert_eq!(wide, grey(&[&[0, 0, 0, 0, 0], &[0, 0, 9, 9, 0], &[0, 0, 9, 9, 0]]));
    }

    #[test]
    fn a_part_is_cropped_inside_of_the_image() {
        let image = Rgb { width: 4, height: 2, bytes: (0..24).collect() };
        let (cancel, shape) = (CancelFlag::default(), Picture::without_file([4, 2]));
        let pixels = |part: Result<Arc<Picture>>| {
            let part = part.unwrap().with_file(png(&image).unwrap());
            (part.size, part.pixels(&cancel).unwrap().bytes.clone())
        };
        assert_eq!(pixels(shape.cropped([2, 1], [9, 9])), ([2, 1], (18..24).collect()));
        assert_eq!(pixels(shape.cropped([9, 9], [1, 1])).1, [21, 22, 23]);
        assert!(Picture::without_file([4, 2]).cropped([0, 0], [0, 1]).is_err());
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let picture = Picture::sent(Bytes::new(), [10, 10], (0, String::new()));
        assert!(picture.scaled("lanczos", [16384, 16384], false).is_err());
        assert!(picture.scaled("lanczos", [0, 10], false).is_err());
        let mut often = picture;
        for _ in 0..MAX_CHANGES {
            often = often.scaled("lanczos", [often.size[0] + 1, 10], false).unwrap();
        }
        assert!(often.scaled("lanczos", [10, 10], false).is_err());
        assert!(often.scaled("lanczos", often.size, false).is_ok(), "nothing needs to be scaled");
    }

    fn sent(width: usize, height: usize) -> Arc<Picture> {
        let bytes = (0..3 * width * height).map(|place| (place * 7) as u8).collect();
        Picture::sent(png(&Rgb { width, height, bytes }).unwrap(), [width, height], (3, "image".to_string()))
    }

    #[test]
    fn an_image_is_made_and_counted_once_however_often_it_is_used() {
        let (first, cancel) = (sent(40, 30), CancelFlag::default());
        let half = first.scaled("lanczos", [20, 15], false).unwrap();
        let ends = [[8, 8], [9, 9]].map(|size| half.scaled("nearest-exact", size, true).unwrap());
        let mut costs = Costs::default();
        let counted = ends.each_ref().map(|end| costs.file(end));
        assert_eq!(counted[0].decoded, 1200);
        assert_eq!(counted[0].scaled, 2 * 64 + (1200 + 300) + 16 * 15 + 64, "encoded, scaled twice");
        assert_eq!((counted[1].decoded, counted[1].scaled), (0, 2 * 81 + 16 * 15 + 81));
        assert_eq!(costs.file(&ends[0]), Estimate::default(), "a second sampler costs nothing more");
        let kept = || [&first, &half].map(|picture| locked(&picture.pixels).is_some());
        let file = ends[0].to_file(&cancel).unwrap();
        assert_eq!(kept(), [false, true], "until the last use");
        assert_eq!(ends[0].to_file(&cancel).unwrap().as_ptr(), file.as_ptr());
        ends[1].to_file(&cancel).unwrap();
        assert_eq!(kept(), [false, false]);
        let mask = MaskPicture::new(&half, Channel::Color(0)).grown(2, true).unwrap();
        assert!(costs.mask(&mask, [20, 15]).scaled > 0);
        assert_eq!(costs.mask(&mask, [20, 15]), Estimate::default());
        let file = mask.to_file([20, 15], &cancel).unwrap();
        assert_eq!(mask.to_file([20, 15], &cancel).unwrap().as_ptr(), file.as_ptr());
    }

    #[test]
    fn work_that_is_cancelled_ends_and_a_damaged_file_is_named() {
        let cancel = CancelFlag::default();
        cancel.cancel();
        let half = sent(40, 30).scaled("lanczos", [20, 15], false).unwrap();
        assert!(half.to_file(&cancel).is_err());
        assert!(MaskPicture::new(&half, Channel::Color(0)).to_file([20, 15], &cancel).is_err());
        let damaged = Picture::sent(Bytes::from_static(b"x"), [40, 30], (3, "image".to_string()));
        let broken = damaged.scaled("lanczos", [20, 15], false).unwrap().to_file(&CancelFlag::default()).unwrap_err();
        assert_eq!(broken.origin, Some((3, "image".to_string())));
    }
}
