//! Images from images, through the program: against the reference, and what they mean.
//!
//! The cases and their images are in golden/editing; golden/README.md says how they were made.

mod masks;
mod meaning;
mod originals;
mod reference;
