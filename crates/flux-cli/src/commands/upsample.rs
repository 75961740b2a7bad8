//! `flux upsample`: prints the prompt that a language model writes. Other commands use its [`upsampler`].

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcetera::AppStrategy;
use flux::engine::{EmbeddedFiles, InputSource, Recipe};
use flux::files::read_text;
use flux::model::ModelInfo;
use flux::stage::CancelFlag;
use flux::{Error, Result};
use flux_hub::{FLUX3_PROMPTS, Found, Wanted, find};
use flux_upsample::{BflPrompts, Config, Rewritten, System, Upsampler};

use super::signals::Signals;
use super::{json, model, print};
use crate::cli::settings::folders;
use crate::cli::{Upsample, UpsampleArgs, UpsampleFails};
use flux_runtime::address;
use flux_runtime::progress::{Console, Shown};

/// Variables with the API key. The second one is for the server of OpenAI alone.
const KEY_VARIABLE: &str = "FLUX_UPSAMPLE_KEY";
const OPENAI_KEY_VARIABLE: &str = "OPENAI_API_KEY";
const OPENAI: &str = "https://api.openai.com";
/// Maximum bytes of a key file, and of a file with system prompts.
const MAX_KEY: usize = 4096;
const MAX_SYSTEM: usize = 1 << 20;
/// The folder of answers in the user's cache folder.
const ANSWERS: &str = "upsample";

/// Prints the prompt.
pub fn run(args: &Upsample, signals: &Signals) -> Result<()> {
    let recipe = args.recipe()?;
    let upsampler = upsampler(&args.upsample)?;
    let info = ModelInfo::read(&model(&args.model)?)?;
    let files = loaded(&recipe)?;
    signals.listen()?;
    let Rewritten { recipe, notes } = upsampler.upsample(&recipe, &files, &info, &signals.cancel_flag())?;
    let console = Console::new(args.quiet, false, Shown::Nothing);
    notes.iter().for_each(|note| console.note(note));
    if args.json {
        let Recipe { prompt, upsampled, .. } = recipe;
        return json::print_object(&serde_json::json!({ "prompt": prompt, "upsampled": upsampled }));
    }
    print(recipe.prompt.as_bytes())
}

/// Returns the bytes of the input images of a recipe, from files.
///
/// Errors if one of them cannot be read.
pub fn loaded(recipe: &Recipe) -> Result<EmbeddedFiles> {
    let mut nothing = io::empty();
    let mut source = InputSource::new(&mut nothing);
    source.load(recipe)?;
    Ok(source.embedded)
}

/// Creates the upsampler that flags and settings describe.
///
/// Errors when they name no language model, or a file of theirs cannot be read.
pub fn upsampler(args: &UpsampleArgs) -> Result<Upsampler> {
    let none = || {
        Error::usage("no address of a language model is set").at("--upsample").hint(
            "pass it as `--upsample=URL`, such as http://127.0.0.1:8080/v1, or set `url` in the table [upsample] of \
             flux.toml",
        )
    };
    let url = args.url().ok_or_else(none)?;
    Upsampler::new(Config {
        url: url.to_string(),
        model: args.upsample_model.clone(),
        system: system(args.upsample_system.as_deref())?,
        key: key(args, url)?,
        timeout: Duration::from_secs_f64(args.upsample_timeout),
        falls_back: args.upsample_fails == UpsampleFails::Plain,
        extra: extra(args.upsample_extra.as_deref())?,
        insecure: args.upsample_insecure,
        cache: folders().filter(|_| !args.upsample_no_cache).map(|folders| folders.cache_dir().join(ANSWERS)),
    })
}

fn extra(json: Option<&str>) -> Result<serde_json::Map<String, serde_json::Value>> {
    serde_json::from_str(json.unwrap_or("{}")).map_err(|e| {
        Error::usage(format!("the extra fields are not a JSON object: {e}"))
            .at("--upsample-extra")
            .hint(r#"write an object, such as {"top_k": 1}"#)
    })
}

/// Returns the system prompts: as the flag says, else those of Black Forest Labs if they were downloaded.
fn system(named: Option<&Path>) -> Result<System> {
    let bfl =
        |path: &Path| read_text(path, MAX_SYSTEM).and_then(|json| BflPrompts::read(&json)).map_err(|e| e.at_path(path));
    let downloaded = || -> Result<Option<PathBuf>> {
        Ok(match find(Path::new(FLUX3_PROMPTS), Wanted::Model)? {
            Found::Path(path) => Some(path).filter(|path| path.is_file()),
            Found::Missing(_) => None,
        })
    };
    match named.map(|path| (path, path.to_str())) {
        None => Ok(downloaded()?.map_or(Ok(System::Own), |path| bfl(&path).map(System::BflOrOwn))?),
        Some((_, Some("own"))) => Ok(System::Own),
        Some((_, Some("bfl"))) => {
            let none = || {
                Error::usage("the system prompts of Black Forest Labs are not in the cache")
                    .at("--upsample-system")
                    .hint(format!("download them with `flux download {FLUX3_PROMPTS}`"))
            };
            bfl(&downloaded()?.ok_or_else(none)?).map(System::Bfl)
        }
        Some((path, _)) => {
            let text = read_text(path, MAX_SYSTEM).map_err(|e| e.at("--upsample-system"))?;
            Ok(BflPrompts::read(&text).map_or_else(|_| System::Text(text.trim().to_string()), System::Bfl))
        }
    }
}

/// Returns the API key: from the file, else from a variable.
///
/// Errors when the file cannot be read, or the key has characters that no header may have.
fn key(args: &UpsampleArgs, url: &str) -> Result<Option<String>> {
    let variable = |name: &str| env::var(name).ok().filter(|key| !key.trim().is_empty());
    let of_variable =
        || variable(KEY_VARIABLE).or_else(|| variable(OPENAI_KEY_VARIABLE).filter(|_| address::is_of(url, OPENAI)));
    let key = match &args.upsample_key_file {
        Some(path) => Some(read_text(path, MAX_KEY).map_err(|e| e.at("--upsample-key-file"))?),
        None => of_variable(),
    };
    let key = key.map(|key| key.trim().to_string());
    match key.as_ref().is_some_and(|key| key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        true => Err(Error::usage("the key of the language model is empty, or contains spaces or line breaks")
            .at(if args.upsample_key_file.is_some() { "--upsample-key-file" } else { KEY_VARIABLE })),
        false => Ok(key),
    }
}

/// An upsampler that is created when it is needed.
pub struct LazyUpsampler<'a> {
    args: &'a UpsampleArgs,
    upsampler: Option<Upsampler>,
    /// `true` if prompts are rewritten.
    pub is_on: bool,
}

impl<'a> LazyUpsampler<'a> {
    pub fn new(args: &'a UpsampleArgs) -> Self {
        Self { args, upsampler: None, is_on: args.is_on() }
    }

    /// Errors as [`upsampler`].
    pub fn get(&mut self) -> Result<&Upsampler> {
        let created = match self.upsampler.take() {
            Some(upsampler) => upsampler,
            None => upsampler(self.args)?,
        };
        Ok(self.upsampler.insert(created))
    }
}

/// Rewrites the prompt of a recipe, and prints the prompt and the notes.
///
/// Errors as [`Upsampler::upsample`].
pub fn rewrite(
    upsampler: &Upsampler,
    recipe: &Recipe,
    files: &EmbeddedFiles,
    info: &ModelInfo,
    (console, cancel): (&Console, &CancelFlag),
) -> Result<Recipe> {
    let Rewritten { recipe, notes } = upsampler.upsample(recipe, files, info, cancel)?;
    notes.iter().for_each(|note| console.note(note));
    if recipe.upsampled.is_some() {
        console.info(&format!("prompt: {}", recipe.prompt));
    }
    Ok(recipe)
}
