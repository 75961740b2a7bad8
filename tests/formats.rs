//! Weights in every format: what their bytes mean.
//!
//! The files in `tests/formats/` are small tensors in each format, each file beside what it means in float32. They are
//! made by `scripts/dump_formats.py`.

#[path = "formats/folder.rs"]
mod folder;
#[path = "formats/golden.rs"]
mod golden;
#[path = "formats/hostile.rs"]
mod hostile;
#[path = "formats/images.rs"]
mod images;
#[path = "support/model_copy.rs"]
mod model_copy;
#[path = "support/program.rs"]
mod program;
#[path = "formats/refused.rs"]
mod refused;
