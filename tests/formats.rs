//! Weights in every format: what their bytes mean.
//!
//! The files in `tests/formats/` are small tensors in each format, each file beside what it means in float32. They are
//! made by `scripts/dump_formats.py`.

mod folder;
mod golden;
mod hostile;
mod images;
mod refused;
