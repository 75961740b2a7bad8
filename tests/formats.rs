//! Weights in every format: what their bytes mean.
//!
//! The files in `tests/formats/` are small tensors in each format, each file beside what it means in float32. They are
//! made by `scripts/dump_formats.py`.

#[path = "formats/folder.rs"]
mod folder;
#[path = "formats/golden.rs"]
mod golden;
