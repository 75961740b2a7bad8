//! Generates an image, edits it, and edits a half of the result: `cargo run --profile quick --example edit`.

use std::path::Path;

use flux::{Device, Engine, RgbImage};

fn main() -> flux::Result<()> {
    edit(".".as_ref())
}

/// Writes the images into `folder`.
pub fn edit(folder: &Path) -> flux::Result<()> {
    let flux = Engine::built_in().device(Device::Auto).open()?;
    let heart = flux.generate("a red heart").size(128, 128).seed(45).run()?;
    heart.save(folder.join("heart.png"))?;
    // An image, the path of a file, or pixels.
    let blue = flux.edit("make the heart blue", &heart).seed(1).run()?;
    blue.save(folder.join("blue.png"))?;
    // The white area of a mask is regenerated, and the rest stays.
    let pixels = blue.to_rgb_image()?;
    let mut mask = RgbImage::new(pixels.width(), pixels.height());
    for (x, _, pixel) in mask.enumerate_pixels_mut() {
        pixel.0 = [if x < pixels.width() / 2 { 255 } else { 0 }; 3];
    }
    flux.edit("a green star", pixels).mask(mask).seed(1).run()?.save(folder.join("half.png"))
}
