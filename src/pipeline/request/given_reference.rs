//! A reference image as it was given. How it is read depends on the kind of the model, which is not known where files
//! are read.

use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::input::{self, Region};
use crate::model::registry::ReferenceSizes;
use crate::rgb::Rgb;

/// The image, and what is made of it once that is asked for.
#[derive(Debug)]
pub struct GivenReference {
    /// As it is where it is alone; of several, as large as every model reads it at most.
    image: Rgb,
    /// The size that it was given in.
    size: [usize; 2],
    is_alone: bool,
    /// Where it comes from, for messages.
    place: String,
    cropped: OnceLock<Result<Arc<Rgb>>>,
    whole: OnceLock<Result<(Arc<Rgb>, Region)>>,
}

impl GivenReference {
    /// The only image, from `place`.
    pub fn alone(image: Rgb, place: String) -> Self {
        let size = [image.width, image.height];
        Self { image, size, is_alone: true, place, cropped: OnceLock::new(), whole: OnceLock::new() }
    }

    /// One of several images, from `place`.
    pub fn of_several(image: Rgb, place: String) -> Self {
        let size = [image.width, image.height];
        Self { size, is_alone: false, ..Self::alone(input::capped(image), place) }
    }

    /// The image as models read it that have such references.
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

    /// Where the image lies in a result of this size, where the model reads it as a whole and it gave the result its
    /// size.
    pub fn place_in(&self, size: [usize; 2]) -> Option<Region> {
        let (canvas, place) = self.whole.get()?.as_ref().ok()?;
        ([canvas.width, canvas.height] == size).then_some(*place)
    }

    /// Bytes of its pixels.
    pub fn bytes(&self) -> usize {
        self.image.bytes.len()
    }
}

impl PartialEq for GivenReference {
    fn eq(&self, other: &Self) -> bool {
        (&self.image, self.size, self.is_alone) == (&other.image, other.size, other.is_alone)
    }
}
