//! The golden model of FLUX.3-klein as an undistilled model.

use std::fs;
use std::path::Path;

use crate::support::{copy_folder, root};

/// Writes the model without the parts that mark it as distilled.
pub fn write_base(folder: &Path) {
    let from = root().join("tests/golden/flux3/model");
    for name in ["text_encoder", "tokenizer", "vae", "scheduler", "transformer"] {
        copy_folder(&from.join(name), &folder.join(name));
    }
    fs::copy(from.with_file_name("base-transformer-config.json"), folder.join("transformer/config.json")).unwrap();
    let index = fs::read_to_string(from.join("modular_model_index.json")).unwrap();
    fs::write(folder.join("modular_model_index.json"), index.replace("Distilled", "")).unwrap();
}
