//! Weights in every format: the values of their bytes.
//!
//! The files in `tests/formats/` are small tensors in each format, each file next to its values in float32.
//! `scripts/dump_formats.py` makes them.

mod folder;
mod golden;
mod hostile;
mod images;
mod refused;
