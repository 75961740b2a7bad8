//! Generates an image from a prompt and writes it: `cargo run --profile quick --example text_to_image`.

use std::path::Path;

use flux::{Device, Engine};

fn main() -> flux::Result<()> {
    text_to_image("heart.png".as_ref())
}

/// Writes the image to `file`.
pub fn text_to_image(file: &Path) -> flux::Result<()> {
    // `Engine::builder("models/klein-4b")` opens another model.
    let flux = Engine::built_in().device(Device::Auto).open()?;
    let image = flux.generate("a red heart inside a yellow star").size(128, 128).seed(45).run()?;
    // The file contains the recipe, so that `flux again heart.png` generates the image again.
    image.save(file)
}
