//! `flux submit`: submits the images of a file as the jobs of a batch.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flux::engine::expand::Expander;
use flux::engine::{AdapterFile, ModelRecipe, Recipe};
use flux::error::{Field, KEYS, Names};
use flux::files::open_regular;
use flux::{Error, ImageFormat, Result};

use super::batch::alike::Alike;
use super::batch::lines::{self, Asked, Defaults, Images, Line, List};
use super::json::print_object;
use super::queue::{broker, store};
use super::signals::Signals;
use super::{batch, names, print};
use crate::cli::{BatchFormat, Seed, Submit, flag};
use flux_queue::batch::{Batch, Planned};
use flux_queue::message::{self, FileFormat, check_tensors};
use flux_queue::names::{check_model, input};
use flux_queue::store::Store;
use flux_queue::submit::{How, Submitted, submit};
use flux_queue::worker::described;
use flux_runtime::progress::{Console, Shown};

/// Maximum size of an uploaded image and of an uploaded adapter, in bytes.
const MAX_IMAGE_BYTES: u64 = 64 << 20;
const MAX_ADAPTER_BYTES: u64 = 4 << 30;

/// An image of a line.
struct One {
    line: usize,
    n: usize,
    recipe: Recipe,
}

/// Submits the images of a file that do not exist yet.
pub fn run(args: &Submit, signals: &Signals) -> Result<()> {
    args.check()?;
    let (store, broker) = (store(&args.to)?, broker(&args.to)?);
    let mut console = Console::new(args.quiet, false, Shown::Auto);
    let format = FileFormat::new(args.output_format, args.quality);
    let (images, wrong) = images(args, format.image_format(), &mut console)?;
    let patience = Duration::from_secs(args.wait);
    let how = How { retries_failed: args.retry_failed, is_dry: args.dry_run, patience };
    signals.listen()?;
    let cancel = signals.cancel_flag();
    let submitting = async {
        let (name, model) = model(args.model.as_deref(), &store).await?;
        let mut inputs = Inputs { store: &store, known: HashMap::new(), is_dry: args.dry_run };
        let mut planned = Vec::with_capacity(images.len());
        for One { line, n, recipe } in images {
            let recipe = inputs.sent(recipe).await.map_err(|e| e.prefixed(&format!("line {line}: ")))?;
            let key = message::key(&model, &recipe, format)?;
            planned.push(Planned { line, n, key, recipe });
        }
        let asked = planned.len();
        let batch = Batch::new(&name, format, planned)?;
        let note = console_note(args.quiet);
        let mut told = |sent: usize, all: usize| console.images(sent as u64, all as u64);
        let submitted = submit(&batch, &store, &broker, &name, how, &mut told, &mut { note }).await?;
        Ok::<_, Error>((batch.id, submitted, asked))
    };
    let ended = async {
        while cancel.check().is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let done = flux_queue::run(async {
        tokio::select! {
            done = submitting => done,
            () = ended => Err(Error::cancelled()),
        }
    });
    console.end_images();
    let (id, submitted, asked) = done?;
    print_summary(args, &console, &id, submitted, asked)?;
    match wrong {
        0 => Ok(()),
        wrong => Err(Error::new(format!("{wrong} lines were not submitted"))
            .hint("correct the lines reported above, and run the command again")),
    }
}

/// Errors if workers cannot generate the image, or its file cannot hold it.
fn check(recipe: &Recipe, format: ImageFormat) -> Result<()> {
    check_tensors(recipe).and_then(|()| recipe.check_format(format))
}

fn console_note(quiet: bool) -> impl FnMut(&str) {
    let console = Console::new(quiet, false, Shown::Nothing);
    move |text: &str| console.note(text)
}

fn print_summary(args: &Submit, console: &Console, id: &str, submitted: Submitted, asked: usize) -> Result<()> {
    let Submitted { jobs, done, failed, sent, went_on_at } = submitted;
    let verb = if args.dry_run { "to send" } else { "sent" };
    console.info(&format!("{jobs} jobs: {sent} {verb}, {done} already done, {failed} failed before"));
    if asked > jobs {
        console.note(&format!("{} lines request the same as an earlier line", asked - jobs));
    }
    if went_on_at > 0 {
        console.note(&format!("resumed at job {went_on_at}; run the command again to resend lost jobs"));
    }
    if args.json {
        return print_object(&serde_json::json!({
            "batch": id, "jobs": jobs, "sent": sent, "done": done, "failed": failed, "dry_run": args.dry_run,
        }));
    }
    print(id.as_bytes())
}

/// Returns the images of the valid lines. Invalid lines are reported and counted. Unspecified seeds are derived from a
/// hash of the file, so the same file always gets the same seeds.
fn images(args: &Submit, image_format: ImageFormat, console: &mut Console) -> Result<(Vec<One>, usize)> {
    let bytes = batch::read(&args.file)?;
    let format = args.format.map_or_else(|| lines::format_of(&args.file, &bytes), Ok)?;
    let hash = blake3::hash(&bytes);
    let seed = args.recipe.seed.filter(|seed| !seed.is_random()).map(Seed::value);
    let recipe = Recipe { seed: 0, ..args.recipe.apply(Recipe::default())? };
    let defaults = Defaults { recipe, no_recipe: false, seed, count: args.count as usize, upsample: false };
    let List { lines, meta, .. } = lines::read(&bytes, format, &defaults).map_err(|e| e.at_path(&args.file))?;
    let names: Names = if format == BatchFormat::Txt { flag } else { KEYS };
    let expander = args.recipe.expand.expander();
    let (mut images, mut wrong, mut named, mut alike) = (Vec::new(), 0, 0, Alike::default());
    for Line { line, asked, .. } in lines {
        let asked = match asked {
            Asked::Images(asked) if asked.no_recipe => {
                let error = Error::usage("`recipe` is false, but the store identifies images by their recipes");
                Err(error.hint("leave it out, and remove the recipes with `flux strip` later"))
            }
            Asked::Images(asked) if asked.upsample => {
                Err(Error::usage("workers have no language model for `upsample`")
                    .hint("write the prompts with `flux upsample` before you submit the list"))
            }
            Asked::Images(asked) => check(&asked.recipe, image_format).and_then(|()| {
                let own = line_images(line, &asked, &hash, expander.as_ref()).map_err(|e| e.for_field(Field::Prompt));
                own.map(|own| (asked, own))
            }),
            Asked::Wrong(error) => Err(error),
        };
        match asked {
            Ok((asked, own)) => {
                named += usize::from(asked.output.is_some());
                images.extend(own);
            }
            Err(error) => {
                wrong += 1;
                alike.print(line, &error, names).iter().for_each(|text| console.error(text));
            }
        }
    }
    alike.take_counted().iter().for_each(|line| console.error(line));
    if !meta.is_empty() {
        console.note(&format!("not recipe fields, ignored: `{}`", meta.join("`, `")));
    }
    if named > 0 {
        console.note(&format!("`output` of {named} lines is ignored: results are named by hash, see the manifest"));
    }
    Ok((images, wrong))
}

/// Returns the images of a line.
///
/// Errors as [`Expander::image`].
fn line_images(line: usize, images: &Images, file: &blake3::Hash, expander: Option<&Expander>) -> Result<Vec<One>> {
    let Images { recipe, seed_is_random, count, .. } = images;
    let combinations = expander.map_or(Ok(1), |expander| expander.combinations(recipe))?;
    let one = |number: usize| {
        let image = number / combinations;
        let drawn = || {
            let hash = blake3::hash(format!("{file} {line} {image}").as_bytes());
            let [a, b, c, d, ..] = *hash.as_bytes();
            u64::from(u32::from_le_bytes([a, b, c, d]))
        };
        let seed = if *seed_is_random { drawn() } else { recipe.seed + image as u64 };
        let recipe = Recipe { seed, ..recipe.clone() };
        let recipe = expander.map_or(Ok(recipe.clone()), |expander| expander.image(&recipe, number % combinations))?;
        Ok(One { line, n: number + 1, recipe })
    };
    (0..count * combinations).map(one).collect()
}

/// Returns the model's name and description, as registered by workers.
///
/// Errors when no worker has registered the model.
pub async fn model(name: Option<&str>, store: &Store) -> Result<(String, ModelRecipe)> {
    let missing = |what: String| {
        Error::usage(what)
            .at("--model")
            .hint("start a `flux worker`, or run it with `--register`, which does not need a device")
    };
    let name = match name {
        Some(name) => {
            check_model(name).map_err(|e| e.at("--model"))?;
            name.to_string()
        }
        None => {
            let names = store.names("models").await?;
            let names: Vec<_> = names.iter().filter_map(|name| name.strip_suffix(".json")).collect();
            match names[..] {
                [name] => name.to_string(),
                [] => return Err(missing("the store has no model".to_string())),
                _ => {
                    return Err(Error::usage(format!("the store has several models: {}", names.join(", ")))
                        .at("--model")
                        .hint("name one of them"));
                }
            }
        }
    };
    match described(store, &name).await? {
        Some(model) => Ok((name, model)),
        None => Err(missing(format!("the store has no model `{name}`"))),
    }
}

/// Uploads recipes' input files into the store, named by their hashes.
struct Inputs<'a> {
    store: &'a Store,
    known: HashMap<PathBuf, PathBuf>,
    is_dry: bool,
}

impl Inputs<'_> {
    /// Uploads the files of a recipe, and returns the recipe with their names in the store.
    ///
    /// Errors when a file cannot be read, or is too large.
    async fn sent(&mut self, recipe: Recipe) -> Result<Recipe> {
        let mut sent = recipe;
        for file in sent.images_mut() {
            *file = self.object(file, MAX_IMAGE_BYTES).await?;
        }
        for AdapterFile { file, .. } in &mut sent.adapters {
            let found = names::adapter(file)?;
            *file = self.object(&found, MAX_ADAPTER_BYTES).await?;
        }
        Ok(sent)
    }

    async fn object(&mut self, file: &Path, most: u64) -> Result<PathBuf> {
        if let Some(known) = self.known.get(file) {
            return Ok(known.clone());
        }
        let bytes = read(file, most)?;
        let name = input(blake3::hash(&bytes).to_hex().as_str());
        if !self.is_dry && !self.store.has(&name).await? {
            self.store.put(&name, bytes).await?;
        }
        self.known.insert(file.to_path_buf(), PathBuf::from(&name));
        Ok(PathBuf::from(name))
    }
}

fn read(file: &Path, most: u64) -> Result<Vec<u8>> {
    let failed = |what: String| Error::usage(what).at_path(file);
    let mut bytes = Vec::new();
    let opened: File = open_regular(file, "name a file")?;
    opened.take(most + 1).read_to_end(&mut bytes).map_err(|e| failed(format!("cannot read the file: {e}")))?;
    if bytes.len() as u64 > most {
        return Err(failed(format!("the file is longer than {} MiB", most >> 20)));
    }
    Ok(bytes)
}
