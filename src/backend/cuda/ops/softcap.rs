//! Launches cuda/softcap.cu.

use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn softcap_op(&self, x: Tensor<Cuda>, cap: f32) -> Result<Tensor<Cuda>> {
        self.elementwise(["softcap", "softcap_any"], x, &[], Some(cap))
    }
}
