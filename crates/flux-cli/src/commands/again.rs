//! `flux again`: reproduces images from their metadata.

use std::path::Path;
use std::time::Instant;

use flux::Result;
use flux::engine::expand::Expanded;
use flux::output::{ImageFormat, NameTemplate};

use super::claims;
use super::signals::Signals;
use super::source::Source;
use super::studio::{Studio, Wanted};
use crate::cli::Again;

/// Reproduces the images one by one. The metadata of all images is read before the first is generated.
pub fn run(args: &Again, start: Instant, signals: &Signals) -> Result<()> {
    args.check()?;
    let wanted = args.images.iter().map(|image| wanted(args, image)).collect::<Result<Vec<_>>>()?;
    let outputs = wanted.iter().map(|wanted| wanted.outputs(&args.output, &args.draw)).collect::<Result<Vec<_>>>()?;
    claims::check_reproduced_images(&args.images, &outputs, args.output.force)?;
    let mut studio = Studio::new(&args.draw, &args.show, signals, start).exact(args.exact);
    wanted.into_iter().try_for_each(|wanted| studio.draw(wanted, &args.output).map(drop))?;
    studio.end();
    Ok(())
}

/// Returns the work that reproduces an image.
///
/// Errors if the image has no recipe, or if it cannot be read.
pub fn wanted(args: &Again, image: &Path) -> Result<Wanted> {
    let source = Source::from_image(image)?;
    let recipe = args.draw.upsample.request(args.recipe(source.recipe.clone())?);
    let expanded = args.draw.recipe.expand.expand(recipe, args.count as usize);
    let Expanded { recipe, count, words } = expanded.map_err(|e| e.at_path(image))?;
    Ok(Wanted {
        recipe,
        model: args.draw.model(source.model())?,
        count,
        words,
        seed_is_random: args.draw.recipe.seed.is_some_and(|seed| seed.is_random()),
        prompt_place: "--prompt",
        reads_stdin: false,
        default_name: default_name(image),
        source: Some(source),
    })
}

/// Returns the default name of a reproduced image: the original name with `-again`.
fn default_name(image: &Path) -> String {
    let stem = image.file_stem().unwrap_or_default().to_string_lossy();
    let ending = image.extension().filter(|_| ImageFormat::from_path(image).is_ok());
    let ending = ending.map_or_else(|| "png".into(), |ending| ending.to_string_lossy());
    NameTemplate::literal(&format!("{stem}-again.{ending}"))
}
