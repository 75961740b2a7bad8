//! The kernel table that build.rs made: one fatbin for each file in cuda/ and each type that it is compiled for.

use super::element::Element;
use crate::error::{Error, Result};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

fn of(element: Element) -> &'static [(&'static str, &'static [u8])] {
    match element {
        Element::Bf16 => KERNELS,
        Element::F16 => HALF_KERNELS,
    }
}

/// The fatbin of `cuda/<file>.cu` for values of `element`; none when it was not built.
pub fn fatbin(file: &str, element: Element) -> Option<&'static [u8]> {
    of(element).iter().find(|(name, _)| *name == file).map(|(_, fatbin)| *fatbin)
}

/// The files that were built for values of `element`.
pub fn files(element: Element) -> impl Iterator<Item = &'static str> {
    of(element).iter().map(|(name, _)| *name)
}

/// Errors when this program was built without kernels for values of `element`.
pub fn require(element: Element) -> Result<()> {
    if !of(element).is_empty() {
        return Ok(());
    }
    Err(Error::new(format!("this program was built without kernels for {}", element.name()))
        .hint("build it without `FLUX_CUDA_ARCHS`, or with `75` in it for fp16"))
}

/// Whether nvcc was there when this program was built.
pub fn built() -> bool {
    !KERNELS.is_empty() || !HALF_KERNELS.is_empty()
}
