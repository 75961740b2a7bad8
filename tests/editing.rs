//! Images from images, through the program: against the reference, and what they mean.
//!
//! The cases and their images are in golden/editing; golden/README.md says how they were made.

#[path = "editing/masks.rs"]
mod masks;
#[path = "editing/meaning.rs"]
mod meaning;
#[path = "editing/originals.rs"]
mod originals;
#[path = "support/program.rs"]
mod program;
#[path = "editing/reference.rs"]
mod reference;
#[path = "support/reference_mask.rs"]
mod reference_mask;
mod support;
