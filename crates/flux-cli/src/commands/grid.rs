//! `flux grid`: one recipe with varied field values, as a contact sheet.

use std::path::{Path, PathBuf};
use std::time::Instant;

use flux::engine::Recipe;
use flux::files::ModelFiles;
use flux::input::read;
use flux::model::ModelInfo;
use flux::output::{Encoding, NameTemplate, Target};
use flux::sheet::{Cell, Style, check_size, fitted};
use flux::{Error, Result};

use super::batch::{prepare, varied};
use super::outputs::{MadeFolders, Outputs};
use super::signals::Signals;
use super::studio::{Studio, Wanted};
use super::{claims, console, model_at, names, sheet};
use crate::cli::{Grid, OutputArgs, Seed, ShowArgs};

/// An image of the grid.
struct Place {
    recipe: Recipe,
    /// The image's value of each varied field.
    label: Vec<String>,
    file: PathBuf,
}

/// Generates the images, then the sheet. Everything that can be validated is validated before the first image.
pub fn run(args: &Grid, start: Instant, signals: &Signals) -> Result<()> {
    args.check()?;
    let target = free(&args.output, args.force)?;
    let base = args.draw.recipe.apply(Recipe { prompt: args.prompt().to_string(), ..Recipe::default() })?;
    let seed_is_random = args.draw.recipe.seed.is_none_or(Seed::is_random) && !args.varies("seed");
    let base = if seed_is_random { Recipe { seed: Seed::Random.value(), ..base } } else { base };
    let places = places(args, &base)?;
    let style = Style {
        columns: args.vary.last().map(|varied| varied.values.len()),
        title: Some(args.prompt().to_string()).filter(|_| !args.varies("prompt")),
        ..Style::default()
    };
    check_size(places.len(), args.cell, args.vary.len(), &style)?;
    let model = args.draw.model(None)?;
    let files = model_at(&model.paths, model.place.as_deref())?;
    check_recipes(args, &places, &files)?;
    let folder = make_folder(args, &places, &files)?;
    let mut studio = Studio::new(&args.draw, &ShowArgs::default(), signals, start);
    let mut cells = Vec::with_capacity(places.len());
    for Place { recipe, label, file } in places {
        let wanted = Wanted {
            recipe,
            model: model.clone(),
            count: 1,
            words: Vec::new(),
            source: None,
            prompt_place: "--prompt",
            seed_is_random,
            reads_stdin: false,
            default_name: String::new(),
        };
        let output = OutputArgs::new_file(template(&file));
        studio.draw(wanted, &if args.force { output.with_force() } else { output })?;
        cells.push(Cell { image: fitted(&read(&file)?, args.cell, false).into_owned(), label });
    }
    drop(folder);
    sheet::write(&target, &cells, &style, args.draw.console.json, &console(&args.draw.console))?;
    studio.end();
    Ok(())
}

/// Lists all images. The last field varies fastest.
fn places(args: &Grid, base: &Recipe) -> Result<Vec<Place>> {
    let folder = args.output.with_extension("");
    if folder == args.output || folder.as_os_str().is_empty() {
        return Err(Error::usage("the folder of the images cannot be named after the sheet").at("--output"));
    }
    let expander = args.draw.recipe.expand.expander();
    let mut rows: Vec<Vec<(&str, String)>> = vec![Vec::new()];
    for varied in &args.vary {
        let values = varied.each();
        let with = |row: &Vec<_>, value: &String| [&row[..], &[(varied.field.as_str(), value.clone())]].concat();
        rows = rows.iter().flat_map(|row| values.iter().map(move |value| with(row, value))).collect();
    }
    let place = |(at, row): (usize, &Vec<(&str, String)>)| {
        let values: Vec<_> = row.iter().map(|(field, value)| (*field, value.as_str())).collect();
        let recipe = varied(base, &values).map_err(|e| e.at("--vary"))?;
        let recipe = expander.as_ref().map_or(Ok(recipe.clone()), |expander| expander.image(&recipe, 0));
        let recipe = recipe.map_err(|e| e.at("--prompt"))?;
        let label = values.iter().map(|(field, value)| format!("{field} {}", short(value))).collect();
        let file = folder.join(format!("{:03}.png", at + 1));
        Ok(Place { recipe, label, file })
    };
    rows.iter().enumerate().map(place).collect()
}

/// Returns a value with the folder of a path removed.
fn short(value: &str) -> &str {
    Path::new(value).file_name().and_then(|name| name.to_str()).filter(|_| value.contains('/')).unwrap_or(value)
}

/// Returns a name template that always gives this file. A name that is not UTF-8 is returned unchanged.
fn template(file: &Path) -> PathBuf {
    file.to_str().map_or_else(|| file.to_path_buf(), |name| NameTemplate::literal(name).into())
}

/// Errors when the model cannot generate an image, or a file of its recipe cannot be read.
fn check_recipes(args: &Grid, places: &[Place], files: &ModelFiles) -> Result<()> {
    let info = ModelInfo::read(files)?;
    for Place { recipe, .. } in places {
        let (request, _) = prepare(recipe, args.draw.embed_inputs)?;
        recipe.adapters.iter().try_for_each(|used| names::existing_adapter(&used.file).map(drop))?;
        info.check_request(&request)?;
    }
    Ok(())
}

/// Creates the folder of the images. The folder is removed again if it is empty at the end.
///
/// Errors when a file cannot be written, exists already, or is an input of an image.
fn make_folder(args: &Grid, places: &[Place], files: &ModelFiles) -> Result<MadeFolders> {
    let mut outputs = Outputs {
        images: places.iter().map(|place| place.file.clone()).collect(),
        latents: Vec::new(),
        embeddings: None,
        folders: vec![args.output.with_extension("")],
        no_clobber: !args.force,
        encoding: Encoding::default(),
    };
    let folder = outputs.make_folders()?;
    outputs.images.iter().try_for_each(|file| free(file, args.force).map(drop))?;
    let mut read: Vec<Recipe> = Vec::new();
    for place in places {
        let recipe = only_files(&names::with_adapters(&place.recipe)?);
        if !read.contains(&recipe) {
            read.push(recipe);
        }
    }
    let check = |outputs: &Outputs, force| {
        let claimed = |recipe| claims::check_images((recipe, None), outputs, files, None, [force, false]);
        read.iter().try_for_each(claimed)
    };
    // Images may share inputs. The sheet is written last, so it may overwrite an input with `--force`.
    check(&outputs, false).map_err(|e| e.hint_instead("name another sheet with `-o`"))?;
    outputs.images.push(args.output.clone());
    check(&outputs, args.force)?;
    Ok(folder)
}

/// Returns a recipe with only the file fields.
fn only_files(recipe: &Recipe) -> Recipe {
    let Recipe { inputs, mask, regions, noise, latents, embeddings, adapters, .. } = recipe.clone();
    Recipe { inputs, mask, regions, noise, latents, embeddings, adapters, ..Recipe::default() }
}

/// Returns a target after checking that it is writable.
///
/// Errors if the file exists, unless `force` is set.
fn free(file: &Path, force: bool) -> Result<Target> {
    let target = Target::new(file)?;
    if force {
        return Ok(target);
    }
    let hint = "name another sheet with `-o`, or overwrite existing files with `--force`";
    target.without_overwriting().map_err(|e| e.hint_instead(hint))
}
