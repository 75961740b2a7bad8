//! Edits and references, through the program: against the reference, and by their content.
//!
//! The cases and their images are in golden/editing; golden/README.md describes how they were made.

mod masks;
mod meaning;
mod originals;
mod reference;
