//! `flux` without a subcommand: generates images and writes them to files.

use std::io::{self, IsTerminal};
use std::time::Instant;

use flux::engine::expand::Expanded;
use flux::{Error, Result};

use super::outputs::DEFAULT_NAME;
#[cfg(feature = "server")]
use super::remote;
use super::signals::Signals;
use super::source::Source;
use super::studio::{Studio, Wanted};
use crate::cli::Generate;
use flux_runtime::progress::say;

/// Generates the images.
pub fn run(args: &Generate, start: Instant, signals: &Signals) -> Result<()> {
    args.check()?;
    if args.reads_stdin() && !args.draw.console.quiet && io::stdin().is_terminal() {
        say("type the prompt, then press Ctrl-D on an empty line");
    }
    let images = &args.draw.recipe.images;
    if images.reads_stdin() && io::stdin().is_terminal() {
        return Err(Error::usage("standard input is a terminal, expected an image")
            .at("--input")
            .hint("redirect a file to it, as with `-i - < image.png`, or name the file"));
    }
    let source = Source::read(&args.source)?;
    let base = source.as_ref().map(|source| source.recipe.clone());
    let recipe = args.draw.upsample.request(args.recipe(base.clone(), &mut io::stdin())?);
    let expanded = args.draw.recipe.expand.expand(recipe, args.count as usize);
    let Expanded { recipe, count, words } = expanded.map_err(|e| e.at(args.prompt_place()))?;
    let wanted = Wanted {
        seed_is_random: args.draw.recipe.seed.map_or(base.is_none(), |seed| seed.is_random()),
        recipe,
        model: args.draw.model(source.as_ref().and_then(Source::model))?,
        count,
        words,
        prompt_place: args.prompt_place(),
        reads_stdin: args.reads_stdin() || images.reads_stdin(),
        default_name: DEFAULT_NAME.to_string(),
        source,
    };
    #[cfg(feature = "server")]
    if let Some(url) = args.server()? {
        signals.listen()?;
        return remote::draw(&url, &wanted, (&args.output, &args.draw), (start, &signals.cancel_flag()));
    }
    let mut studio = Studio::new(&args.draw, &args.show, signals, start);
    studio.draw(wanted, &args.output)?;
    studio.end();
    Ok(())
}
