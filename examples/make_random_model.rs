//! Writes one of the random test models to a folder: `cargo run --example make_random_model -- PRESET DIR`.

#[path = "../tests/support/random_model/mod.rs"]
mod random_model;

use std::path::Path;
use std::process::ExitCode;

use random_model::{ALL_PRESETS, RandomModel};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [preset, dir] = args.as_slice() else {
        eprintln!("usage: make_random_model PRESET DIR\npresets: {}", ALL_PRESETS.join(", "));
        return ExitCode::from(2);
    };
    let Some(model) = RandomModel::preset(preset) else {
        eprintln!("error: no preset `{preset}`, expected one of {}", ALL_PRESETS.join(", "));
        return ExitCode::from(2);
    };
    match model.write(Path::new(dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot write `{dir}`: {error}");
            ExitCode::FAILURE
        }
    }
}
