//! Puts images side by side in one PNG: `cargo run --example contact_sheet -- OUT.png PNG...`.

#[path = "../tests/support/contact_sheet.rs"]
mod contact_sheet;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use flux::input::read;
use flux::{Error, Result};
use image::codecs::png::{CompressionType, FilterType, PngEncoder};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [out, images @ ..] = args.as_slice() else {
        eprintln!("usage: contact_sheet OUT.png PNG...");
        return ExitCode::from(2);
    };
    match write(out, images) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(out: &str, images: &[String]) -> Result<()> {
    let images = images.iter().map(|path| read(Path::new(path))).collect::<Result<_>>()?;
    let cannot =
        |e: &dyn std::fmt::Display| Error::new(format!("cannot write the contact sheet: {e}")).at_path(Path::new(out));
    let file = File::create(out).map_err(|e| cannot(&e))?;
    // The file lies in git, so it is compressed as well as possible.
    let encoder = PngEncoder::new_with_quality(file, CompressionType::Best, FilterType::Adaptive);
    contact_sheet::contact_sheet(images).write_with_encoder(encoder).map_err(|e| cannot(&e))
}
