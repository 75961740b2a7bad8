//! Architectures of transformers.

/// The architecture of a transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Double blocks, then single blocks.
    Flux2,
    /// Blocks of text, of references and of the image alone, then blocks of all streams.
    Flux3,
}
