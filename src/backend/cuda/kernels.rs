//! The kernel table that build.rs made: one fatbin for each file in cuda/.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The fatbin of `cuda/<file>.cu`; none when it was not built.
pub fn fatbin(file: &str) -> Option<&'static [u8]> {
    KERNELS.iter().find(|(name, _)| *name == file).map(|(_, fatbin)| *fatbin)
}

/// The files that were built.
pub fn files() -> impl Iterator<Item = &'static str> {
    KERNELS.iter().map(|(name, _)| *name)
}

/// Whether nvcc was there when this program was built.
pub fn built() -> bool {
    !KERNELS.is_empty()
}
