//! Images and masks of a graph: uploaded files, and the changes that nodes make. An image is decoded only if it is used
//! and its cost was counted, and only once, regardless of how many samplers use it.

mod costs;
mod mask;
#[cfg(test)]
mod tests;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use flux::input::{self, Region};
use flux::metadata::Metadata;
use flux::output::{ImageFormat, encode};
use flux::rgb::Rgb;
use flux::stage::CancelFlag;
use parking_lot::Mutex;

pub use costs::Costs;
pub use mask::{Channel, MaskPicture};

/// Max pixels of a changed image, and max successive changes of an image.
const MAX_PIXELS: u64 = 16 << 20;
const MAX_CHANGES: usize = 8;

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

/// An upscaler of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upscaler {
    pub name: Arc<str>,
    /// The factor of width and height.
    pub scale: u64,
    /// Max pixels of an enlarged image.
    pub max_pixels: u64,
}

/// The job that makes an image: the index of its node, and `true` if the masked area is pasted back.
pub type Maker = (usize, bool);

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
#[derive(Debug, Clone)]
enum Source {
    /// A file, with the index of the node and the input that name it.
    Sent {
        file: Bytes,
        origin: (usize, String),
    },
    /// An image that a job has not made yet.
    Generated(Maker),
    Scaled {
        from: Arc<Picture>,
        scale: Scale,
        changes: usize,
    },
    /// An image that an upscaler has not enlarged yet.
    Enlarged {
        from: Arc<Picture>,
        upscaler: Upscaler,
        /// The index of the node.
        node: usize,
        changes: usize,
    },
}

/// The first enlargement of an image: the image before it, the upscaler, and the index of the node.
pub type Enlargement<'a> = (&'a Arc<Picture>, &'a Upscaler, usize);

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
            (Source::Generated(maker), Source::Generated(other)) => maker == other,
            (Source::Scaled { from, scale, .. }, Source::Scaled { from: other, scale: other_scale, .. }) => {
                scale == other_scale && **from == **other
            }
            (Source::Enlarged { from, upscaler, .. }, Source::Enlarged { from: other, upscaler: by, .. }) => {
                upscaler == by && **from == **other
            }
            _ => false,
        };
        ptr::eq(self, other) || (self.size == other.size && is_same_source())
    }
}

impl Picture {
    /// Creates the image of a file, named by an input of a node.
    pub fn sent(file: Bytes, [width, height]: [usize; 2], origin: (usize, String)) -> Arc<Self> {
        Self::new(Source::Sent { file, origin }, [width as u64, height as u64])
    }

    /// Creates an image of one brightness, from 0 to 1.
    ///
    /// Errors if it is too large.
    pub fn solid(value: f64, size @ [width, height]: [u64; 2], origin: (usize, String)) -> Result<Arc<Self>> {
        if width * height > MAX_PIXELS {
            return Err(format!("an image of {width}x{height} was requested, expected at most {MAX_PIXELS} pixels"));
        }
        // A file of another size is stretched.
        let pixel = Rgb { width: 1, height: 1, bytes: vec![(value * 255.0).round() as u8; 3] };
        Ok(Self::new(Source::Sent { file: png(&pixel).map_err(|broken| broken.details)?, origin }, size))
    }

    /// Creates the image of a job, which is not made yet.
    pub fn generated(maker: Maker, size: [u64; 2]) -> Arc<Self> {
        Self::new(Source::Generated(maker), size)
    }

    /// Returns the job of its original, or `None` if that is an uploaded file.
    pub fn maker(&self) -> Option<Maker> {
        match &self.source {
            Source::Sent { .. } => None,
            Source::Generated(maker) => Some(*maker),
            Source::Scaled { from, .. } | Source::Enlarged { from, .. } => from.maker(),
        }
    }

    /// Returns the uploaded file of its original, if it has one.
    pub fn sent_file(&self) -> Option<&Bytes> {
        self.original().map(|(file, _)| file)
    }

    /// Returns `true` if a job has to make it, or to enlarge it.
    pub fn is_awaited(&self) -> bool {
        self.maker().is_some() || self.first_enlargement().is_some()
    }

    /// Returns a copy with a generated image as its source.
    pub fn with_file(&self, file: Bytes) -> Arc<Self> {
        match &self.source {
            Source::Scaled { from, .. } | Source::Enlarged { from, .. } => self.with_base(from.with_file(file)),
            Source::Sent { .. } | Source::Generated(_) => {
                Self::new(Source::Sent { file, origin: (0, String::new()) }, self.size)
            }
        }
    }

    /// Returns a copy with the same change of another image.
    fn with_base(&self, base: Arc<Self>) -> Arc<Self> {
        let mut source = self.source.clone();
        if let Source::Scaled { from, .. } | Source::Enlarged { from, .. } = &mut source {
            *from = base;
        }
        Self::new(source, self.size)
    }

    /// Returns `true` if no node changes it.
    pub fn is_whole(&self) -> bool {
        matches!(self.source, Source::Sent { .. } | Source::Generated(_))
    }

    /// Returns the pixels produced by all changes.
    pub fn changed_pixels(&self) -> u64 {
        match &self.source {
            Source::Scaled { from, .. } | Source::Enlarged { from, .. } => {
                self.pixel_count().saturating_add(from.changed_pixels())
            }
            Source::Sent { .. } | Source::Generated(_) => 0,
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
        let changes = self.next_change()?;
        let size = scale.to.map(|side| side as u64);
        Ok(Self::new(Source::Scaled { from: Arc::clone(self), scale, changes }, size))
    }

    /// Returns the number of changes after one more.
    ///
    /// Errors if there are too many.
    fn next_change(&self) -> Result<usize> {
        let changes = match &self.source {
            Source::Scaled { changes, .. } | Source::Enlarged { changes, .. } => changes + 1,
            Source::Sent { .. } | Source::Generated(_) => 1,
        };
        if changes > MAX_CHANGES {
            return Err(format!("the image is changed more than {MAX_CHANGES} times"));
        }
        Ok(changes)
    }

    /// Returns the image that an upscaler makes of this one, for the node with the index `node`.
    ///
    /// Errors if it is too large, or there are too many changes.
    pub fn enlarged(self: &Arc<Self>, upscaler: &Upscaler, node: usize) -> Result<Arc<Self>> {
        let size = self.size.map(|side| side.saturating_mul(upscaler.scale));
        if size[0].saturating_mul(size[1]) > upscaler.max_pixels {
            let (size, most) = (format!("{}x{}", size[0], size[1]), upscaler.max_pixels);
            return Err(format!("the image would be {size}, expected at most {most} pixels"));
        }
        let (from, upscaler, changes) = (Arc::clone(self), upscaler.clone(), self.next_change()?);
        Ok(Self::new(Source::Enlarged { from, upscaler, node, changes }, size))
    }

    /// Returns the first enlargement of the image, if there is one.
    pub fn first_enlargement(&self) -> Option<Enlargement<'_>> {
        match &self.source {
            Source::Enlarged { from, upscaler, node, .. } => from.first_enlargement().or(Some((from, upscaler, *node))),
            Source::Scaled { from, .. } => from.first_enlargement(),
            Source::Sent { .. } | Source::Generated(_) => None,
        }
    }

    /// Returns a copy with the result of the first enlargement as its source, or an image that is not generated yet.
    pub fn with_first_enlarged(&self, file: Option<&Bytes>) -> Arc<Self> {
        let source = match &self.source {
            Source::Enlarged { from, node, .. } if from.first_enlargement().is_none() => match file {
                Some(file) => Source::Sent { file: file.clone(), origin: (0, String::new()) },
                None => Source::Generated((*node, false)),
            },
            Source::Scaled { from, .. } | Source::Enlarged { from, .. } => {
                return self.with_base(from.with_first_enlarged(file));
            }
            Source::Sent { .. } | Source::Generated(_) => self.source.clone(),
        };
        Self::new(source, self.size)
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
            Source::Generated(_) => None,
            Source::Scaled { from, .. } | Source::Enlarged { from, .. } => from.original(),
        }
    }

    fn pixel_count(&self) -> u64 {
        self.size[0].saturating_mul(self.size[1])
    }

    /// Returns the pixels, which are dropped after the last use.
    ///
    /// Errors if the file cannot be read, or the work is cancelled.
    fn pixels(&self, cancel: &CancelFlag) -> Made<Arc<Rgb>> {
        let mut kept = self.pixels.lock();
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
            Source::Generated(_) | Source::Enlarged { .. } => {
                Err(self.broken(&flux::Error::new("the image is not generated yet")))
            }
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
        let mut encoded = self.encoded.lock();
        if let Some(file) = &*encoded {
            return Ok(file.clone());
        }
        let pixels = self.pixels(cancel)?;
        cancel.check()?;
        Ok(encoded.insert(png(&pixels)?).clone())
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
