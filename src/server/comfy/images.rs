//! Images and masks of a graph: files that were sent, and what nodes do to them. Nothing is decoded before it is known
//! to be used.

use bytes::Bytes;
use flux::input::{self, Grey, Mask, Region};
use flux::metadata::Metadata;
use flux::output::{ImageFormat, encode};
use flux::rgb::Rgb;

/// The most pixels of an image that a node makes, and the most nodes after one another that change one.
const MOST_PIXELS: u64 = 16 << 20;
const MOST_CHANGES: usize = 8;
/// The most pixels of a mask that grows, times the pixels that it grows by.
const MOST_GROWTH: u64 = 1 << 28;

type Result<T> = std::result::Result<T, String>;

/// An image: a file, and how it is scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    pub file: Bytes,
    scales: Vec<Scale>,
    /// Pixels, after all of it.
    pub size: [u64; 2],
}

/// A change of size, of the middle of the image or of all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scale {
    is_nearest: bool,
    part: Region,
    to: [usize; 2],
}

impl Picture {
    /// The file of an image that can be read, and its size.
    pub fn new(file: Bytes, [width, height]: [usize; 2]) -> Self {
        Self { file, scales: Vec::new(), size: [width as u64, height as u64] }
    }

    /// Whether it is the file as it was sent.
    pub fn is_whole(&self) -> bool {
        self.scales.is_empty()
    }

    /// In another size; all of it, or the part in its middle that has the new proportions.
    ///
    /// Errors when that is too large, or too much.
    pub fn scaled(&self, method: &str, to: [u64; 2], is_cut: bool) -> Result<Self> {
        if to.contains(&0) || to[0].saturating_mul(to[1]) > MOST_PIXELS {
            return Err(format!("an image of {}x{} is asked for, expected 1 to {MOST_PIXELS} pixels", to[0], to[1]));
        }
        if to == self.size {
            return Ok(self.clone());
        }
        if self.scales.len() >= MOST_CHANGES {
            return Err(format!("the image is changed more than {MOST_CHANGES} times"));
        }
        let mut scaled = self.clone();
        let part = if is_cut { middle(self.size, to) } else { all(self.size) };
        scaled.scales.push(Scale { is_nearest: method == "nearest-exact", part, to: to.map(|side| side as usize) });
        scaled.size = to;
        Ok(scaled)
    }

    /// Its pixels.
    ///
    /// Errors when the file cannot be read.
    fn pixels(&self) -> Result<Rgb> {
        let mut image = input::read_bytes(&self.file).map_err(|e| e.what().to_string())?;
        for Scale { is_nearest, part, to } in &self.scales {
            let cut = part.cut(&image.bytes, image.width, 3);
            let cut = Rgb { width: part.width, height: part.height, bytes: cut };
            image = if *is_nearest { nearest(&cut, *to) } else { input::resized(&cut, *to) };
        }
        Ok(image)
    }

    /// Its file: the one that was sent, where nothing was done to it.
    ///
    /// Errors when that cannot be read.
    pub fn to_file(&self) -> Result<Vec<u8>> {
        if self.is_whole() { Ok(self.file.to_vec()) } else { png(&self.pixels()?) }
    }
}

/// Where a mask is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// What is transparent is drawn anew.
    Alpha,
    /// What is bright in red, green or blue.
    Color(usize),
}

impl Channel {
    /// By its name.
    pub fn of(name: &str) -> Self {
        match name {
            "red" => Self::Color(0),
            "green" => Self::Color(1),
            "blue" => Self::Color(2),
            _ => Self::Alpha,
        }
    }
}

/// A mask: a channel of an image, and what is done to it.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskPicture {
    of: Picture,
    channel: Channel,
    changes: Vec<Change>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Invert,
    /// By so many pixels, to all sides; with corners that are cut off or not.
    Grow(usize, bool),
    /// By a window of so many pixels.
    Widen(usize),
}

impl MaskPicture {
    pub fn new(of: &Picture, channel: Channel) -> Self {
        Self { of: of.clone(), channel, changes: Vec::new() }
    }

    fn with(&self, change: Change) -> Result<Self> {
        if self.changes.len() >= MOST_CHANGES {
            return Err(format!("the mask is changed more than {MOST_CHANGES} times"));
        }
        let mut changed = self.clone();
        changed.changes.push(change);
        Ok(changed)
    }

    pub fn inverted(&self) -> Result<Self> {
        self.with(Change::Invert)
    }

    /// As `GrowMask` does it.
    pub fn grown(&self, by: u64, is_tapered: bool) -> Result<Self> {
        if self.of.size[0].saturating_mul(self.of.size[1]).saturating_mul(by) > MOST_GROWTH {
            return Err(format!("the mask is too large to grow by {by} pixels: scale it down first"));
        }
        if by == 0 { Ok(self.clone()) } else { self.with(Change::Grow(by as usize, is_tapered)) }
    }

    /// As `VAEEncodeForInpaint` does it.
    pub fn widened(&self, by: u64) -> Result<Self> {
        if by == 0 { Ok(self.clone()) } else { self.with(Change::Widen(by as usize)) }
    }

    /// The file of the mask for an image: white where that is drawn anew.
    ///
    /// Errors when there is none in its file.
    pub fn to_file(&self, of_size: [u64; 2]) -> Result<Vec<u8>> {
        let mut grey = self.grey()?;
        for change in &self.changes {
            match *change {
                Change::Invert => grey.bytes.iter_mut().for_each(|value| *value = 255 - *value),
                Change::Grow(by, false) => spread(&mut grey, by, by),
                Change::Grow(by, true) => (0..by).for_each(|_| grow_cross(&mut grey)),
                Change::Widen(by) => spread(&mut grey, by / 2, (by - 1) / 2),
            }
        }
        let size = of_size.map(|side| side as usize);
        let grey = if [grey.width, grey.height] == size { grey } else { Mask::from(grey).grey(size) };
        let bytes = grey.bytes.iter().flat_map(|value| [*value; 3]).collect();
        png(&Rgb { width: grey.width, height: grey.height, bytes })
    }

    fn grey(&self) -> Result<Grey> {
        if let Channel::Color(channel) = self.channel {
            let image = self.of.pixels()?;
            let bytes = image.bytes.chunks_exact(3).map(|pixel| pixel[channel]).collect();
            return Ok(Grey { width: image.width, height: image.height, bytes });
        }
        let mask = Mask::read_transparent(&self.of.file).map_err(|e| e.what().to_string())?;
        let mask = mask.ok_or("the image is as opaque everywhere, so it has no mask")?;
        Ok(mask.grey(mask.size()))
    }
}

fn png(image: &Rgb) -> Result<Vec<u8>> {
    encode(image, ImageFormat::Png, &Metadata::default()).map_err(|e| e.what().to_string())
}

fn all(size: [u64; 2]) -> Region {
    let [width, height] = size.map(|side| side as usize);
    Region::all(width, height)
}

/// The part in the middle of an image that has the proportions of another size.
fn middle([width, height]: [u64; 2], to: [u64; 2]) -> Region {
    let (own, new) = (width as f64 / height as f64, to[0] as f64 / to[1] as f64);
    let left_out = |side: u64, kept: f64| ((side as f64 - side as f64 * kept) / 2.0).round_ties_even() as u64;
    let x = if own > new { left_out(width, new / own) } else { 0 };
    let y = if own < new { left_out(height, own / new) } else { 0 };
    let inner = [(width - 2 * x).max(1), (height - 2 * y).max(1)].map(|side| side as usize);
    Region::middle([width as usize, height as usize], inner)
}

/// Scales by taking the nearest pixel, from the middle of each.
fn nearest(image: &Rgb, [width, height]: [usize; 2]) -> Rgb {
    let from = |place: usize, own: usize, new: usize| {
        (((place as f32 + 0.5) * (own as f32 / new as f32)) as usize).min(own - 1)
    };
    let columns: Vec<usize> = (0..width).map(|x| 3 * from(x, image.width, width)).collect();
    let rows = (0..height).map(|y| &image.bytes[3 * image.width * from(y, image.height, height)..]);
    let bytes = rows.flat_map(|row| columns.iter().flat_map(move |x| [row[*x], row[x + 1], row[x + 2]])).collect();
    Rgb { width, height, bytes }
}

/// Each pixel becomes the brightest of those so far before it and behind it, in both directions.
fn spread(grey: &mut Grey, before: usize, behind: usize) {
    let Grey { width, height, .. } = *grey;
    let brightest = |line: &[u8]| -> Vec<u8> {
        // A window that slides: the places in it of values that fall.
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

/// Each pixel becomes the brightest of itself and the four beside it.
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
    fn what_is_too_large_is_refused() {
        let picture = Picture::new(Bytes::new(), [10, 10]);
        assert!(picture.scaled("lanczos", [16384, 16384], false).is_err());
        assert!(picture.scaled("lanczos", [0, 10], false).is_err());
        let mut often = picture;
        for _ in 0..MOST_CHANGES {
            often = often.scaled("lanczos", [often.size[0] + 1, 10], false).unwrap();
        }
        assert!(often.scaled("lanczos", [10, 10], false).is_err());
        assert!(often.scaled("lanczos", often.size, false).is_ok(), "nothing is to be done");
    }
}
