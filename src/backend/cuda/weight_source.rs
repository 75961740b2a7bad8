//! The choice to copy a GPU's weights from another GPU.

use super::peers::{Reach, broken_link};
use super::{Cuda, Link};
use crate::backend::Memory;
use crate::error::Result;

impl Cuda {
    /// See [`crate::backend::WeightStore::copy_weights_from`].
    pub(super) fn copy_weights_from_op(&self, other: &Self) -> Result<bool> {
        let alike = |cuda: &Self| (cuda.element(), cuda.device().capability, cuda.0.products);
        let may = !self.is_same_device(other) && alike(self) == alike(other) && Link::wished()?.is_none();
        if !may {
            return Ok(false);
        }
        let why = match self.device().reach(other.device())? {
            Reach::Open => {
                self.0.uploader.copy_from(&other.0.uploader, other.device().numbered_name());
                return Ok(true);
            }
            Reach::Closed => return Ok(false),
            Reach::Refused(why) => why,
            Reach::Broken => broken_link(self.device(), other.device()),
        };
        self.0.uploader.cannot_copy(&why);
        Ok(false)
    }
}
