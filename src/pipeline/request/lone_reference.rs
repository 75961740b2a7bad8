//! A reference image that is alone. How it is read depends on the kind of the model, which is not known where files are
//! read.

use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::input::{self, Region};
use crate::model::registry::ReferenceSizes;
use crate::rgb::Rgb;

/// The image, and what is made of it once that is asked for.
#[derive(Debug)]
pub struct LoneReference {
    original: Rgb,
    /// Where it comes from, for messages.
    place: String,
    cropped: OnceLock<Result<Arc<Rgb>>>,
    whole: OnceLock<Result<(Arc<Rgb>, Region)>>,
}

impl LoneReference {
    /// The image from `place`.
    pub fn new(original: Rgb, place: String) -> Self {
        Self { original, place, cropped: OnceLock::new(), whole: OnceLock::new() }
    }

    /// The image as models read it that have such references.
    ///
    /// Errors as [`input::reference`] and [`input::reference_alone`].
    pub fn read(&self, sizes: ReferenceSizes) -> Result<Arc<Rgb>> {
        let at = |e: crate::error::Error| e.at(self.place.as_str());
        match sizes {
            ReferenceSizes::Cropped => {
                self.cropped.get_or_init(|| input::reference(&self.original).map(Arc::new).map_err(at)).clone()
            }
            ReferenceSizes::AloneWhole => {
                let make = || input::reference_alone(&self.original).map(|(image, place)| (Arc::new(image), place));
                self.whole.get_or_init(|| make().map_err(at)).clone().map(|(image, _)| image)
            }
        }
    }

    /// Where the image lies in a result of this size, where the model reads it as a whole and it gave the result its
    /// size.
    pub fn place_in(&self, size: [usize; 2]) -> Option<Region> {
        let (canvas, place) = self.whole.get()?.as_ref().ok()?;
        ([canvas.width, canvas.height] == size).then_some(*place)
    }

    /// Bytes of its pixels.
    pub fn bytes(&self) -> usize {
        self.original.bytes.len()
    }
}

impl PartialEq for LoneReference {
    fn eq(&self, other: &Self) -> bool {
        self.original == other.original
    }
}
