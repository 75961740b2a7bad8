//! A reference image before resizing. Resizing depends on the kind of the model, which is not known when files are
//! read.

use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::input::{self, Region};
use crate::model::registry::ReferenceSizes;
use crate::rgb::Rgb;

/// A reference image, and its resized versions, which are computed on first use.
#[derive(Debug)]
pub struct GivenReference {
    /// A single image is unchanged; one of several is at most as large as the largest size that any model reads.
    image: Rgb,
    /// Original size, [width, height] in pixels.
    size: [usize; 2],
    is_alone: bool,
    /// Origin of the image, for messages.
    place: String,
    cropped: OnceLock<Result<Arc<Rgb>>>,
    whole: OnceLock<Result<(Arc<Rgb>, Region)>>,
}

impl GivenReference {
    /// Creates a reference from the only image of a request, read from `place`.
    pub fn alone(image: Rgb, place: String) -> Self {
        let size = [image.width, image.height];
        Self { image, size, is_alone: true, place, cropped: OnceLock::new(), whole: OnceLock::new() }
    }

    /// Creates a reference from one of several images, read from `place`.
    pub fn among_several(image: Rgb, place: String) -> Self {
        let size = [image.width, image.height];
        Self { size, is_alone: false, ..Self::alone(input::capped(image), place) }
    }

    /// Returns the image as models with such reference sizes read it.
    ///
    /// Errors as [`input::reference`], [`input::reference_of_any_size`] and [`input::reference_alone`].
    pub fn read(&self, sizes: ReferenceSizes) -> Result<Arc<Rgb>> {
        let at = |e: crate::error::Error| e.at(self.place.as_str());
        if sizes == ReferenceSizes::Cropped {
            input::check_reference(self.size).map_err(at)?;
        } else if self.is_alone {
            let make = || input::reference_alone(&self.image).map(|(image, place)| (Arc::new(image), place));
            return self.whole.get_or_init(|| make().map_err(at)).clone().map(|(image, _)| image);
        }
        self.cropped.get_or_init(|| input::reference_of_any_size(&self.image).map(Arc::new).map_err(at)).clone()
    }

    /// Returns a note if such models read the image with fewer pixels than it has.
    pub fn note(&self, sizes: ReferenceSizes) -> Option<String> {
        let read = self.read(sizes).ok()?;
        let ([width, height], place) = (self.size, &self.place);
        input::is_reduced(self.size, [read.width, read.height])
            .then(|| format!("`{place}`, {width}x{height}, is reduced to {}x{} for the model", read.width, read.height))
    }

    /// Returns the region of the image in a result of this size, if the model reads the image uncropped and the size
    /// comes from the image.
    pub fn place_in(&self, size: [usize; 2]) -> Option<Region> {
        let (canvas, place) = self.whole.get()?.as_ref().ok()?;
        ([canvas.width, canvas.height] == size).then_some(*place)
    }

    /// Returns the original size, [width, height] in pixels.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Returns the bytes of the image's pixels.
    pub fn bytes(&self) -> usize {
        self.image.bytes.len()
    }
}

impl PartialEq for GivenReference {
    fn eq(&self, other: &Self) -> bool {
        (&self.image, self.size, self.is_alone) == (&other.image, other.size, other.is_alone)
    }
}
