//! Defaults of flags, from environment variables and, with lower precedence, from config files.
//!
//! | | |
//! |---|---|
//! | `FLUX_DEVICE` and so on | the environment |
//! | `flux.toml` | the current folder |
//! | `~/.config/flux/flux.toml` | the user; `XDG_CONFIG_HOME` can change the folder |
//!
//! `FLUX_CONFIG` names a file to use instead of both; if it is empty, no file is used. A file also sets flags:
//! [`IMAGE_KEYS`] for commands that generate images, the table `[serve]` for `flux serve`, and the table `[upsample]`
//! for commands with `--upsample`.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use etcetera::{AppStrategy, AppStrategyArgs};
use flux::engine::choice::{Device, ParallelChoice, PrecisionChoice};
use flux::files::open_regular;
use flux::output::NameTemplate;
use flux::{Error, Result};
use serde::Deserialize;
use toml::Spanned;

use super::values::gibibytes;

/// The name of a config file.
const FILE: &str = "flux.toml";
/// The variable that names a config file.
const VARIABLE: &str = "FLUX_CONFIG";
/// Maximum size of a config file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// All settings: the key in a file, and the variable.
pub const KEYS: [(&str, &str); 9] = [
    ("model", "FLUX_MODEL"),
    ("models", "FLUX_MODELS"),
    ("adapters", "FLUX_ADAPTERS"),
    ("output", "FLUX_OUTPUT"),
    ("device", "FLUX_DEVICE"),
    ("precision", "FLUX_PRECISION"),
    ("gpu_memory", "FLUX_GPU_MEMORY"),
    ("parallel", "FLUX_PARALLEL"),
    ("preview_decoder", "FLUX_PREVIEW_DECODER"),
];

/// The values of the settings, by index in [`KEYS`], and the flags set in files.
#[derive(Debug, Clone, Default)]
pub struct Settings([Option<Setting>; KEYS.len()], Vec<FlagSetting>);

/// A value and its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    pub value: String,
    pub from: Origin,
}

/// The commands whose flags a file sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Commands that generate images, with [`IMAGE_KEYS`] in a file.
    Images,
    /// `flux serve`, with the table `[serve]`.
    Serve,
    /// Commands with `--upsample`, with the table `[upsample]`.
    Upsample,
}

impl Table {
    /// Returns the prefix of the table's keys in the list of all keys.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Images => "",
            Self::Serve => "serve.",
            Self::Upsample => "upsample.",
        }
    }

    /// Returns the name of the table in a file, and the prefix of its flags. The keys of images are in no table.
    pub fn named(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Images => None,
            Self::Serve => Some(("serve", "")),
            Self::Upsample => Some(("upsample", "upsample-")),
        }
    }
}

/// The keys of [`Table::Images`], each with the name of its flag, except for [`RECIPE`].
pub const IMAGE_KEYS: [&str; 10] =
    ["size", "steps", "format", "quality", "lora", "expand", "wildcards", "sign_cert", "sign_key", RECIPE];
/// The key that is false for the flag `--no-recipe`.
pub const RECIPE: &str = "recipe";

/// A flag that a file sets.
#[derive(Debug, Clone)]
pub struct FlagSetting {
    pub table: Table,
    /// The key as written in the file, with hyphens or underscores.
    pub key: String,
    pub value: FlagValue,
    /// The folder to which paths are relative.
    pub folder: PathBuf,
    pub from: Origin,
}

#[derive(Debug, Clone, PartialEq)]
pub enum FlagValue {
    Flag(bool),
    Values(Vec<String>),
}

impl fmt::Display for FlagValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Values(values) => f.write_str(&values.join(", ")),
        }
    }
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    Variable(&'static str),
    /// A file and a line number, from 1.
    File(PathBuf, usize),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => f.write_str(name),
            Self::File(path, line) => write!(f, "{}, line {line}", path.display()),
        }
    }
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Loads the environment and the config files, for all commands.
///
/// Errors when a file cannot be read, is too large, is not TOML, has an unknown key, or a value is invalid.
pub fn load() -> Result<()> {
    let settings = Settings::read(|name| env::var_os(name), &files())?;
    flux_hub::look_in(settings.folders("models"));
    // Called only once.
    let _ = SETTINGS.set(settings);
    Ok(())
}

/// Reads the flags in config files, before the command line is parsed.
///
/// Errors as [`load`].
pub fn read_flags() -> Result<Vec<FlagSetting>> {
    let mut settings = Settings::default();
    files().iter().try_for_each(|file| settings.add_file(file))?;
    Ok(settings.1)
}

/// Returns the settings; empty before [`load`].
pub fn settings() -> &'static Settings {
    SETTINGS.get_or_init(Settings::default)
}

/// Returns the folders of this program for the user's files.
pub fn folders() -> Option<impl AppStrategy> {
    let program = AppStrategyArgs { app_name: "flux".to_string(), ..AppStrategyArgs::default() };
    etcetera::choose_app_strategy(program).ok()
}

/// Returns the config files, in order of increasing precedence.
fn files() -> Vec<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE) {
        return if named.is_empty() { Vec::new() } else { vec![named.into()] };
    }
    let user = folders().map(|folders| folders.config_dir().join(FILE));
    user.into_iter().chain([PathBuf::from(FILE)]).filter(|path| path.exists()).collect()
}

/// A config file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    model: Option<Spanned<String>>,
    models: Option<Spanned<Folders>>,
    adapters: Option<Spanned<Folders>>,
    output: Option<Spanned<String>>,
    device: Option<Spanned<String>>,
    precision: Option<Spanned<String>>,
    gpu_memory: Option<Spanned<f64>>,
    parallel: Option<Spanned<Parallel>>,
    preview_decoder: Option<Spanned<String>>,
    size: Option<Spanned<toml::Value>>,
    steps: Option<Spanned<toml::Value>>,
    format: Option<Spanned<toml::Value>>,
    quality: Option<Spanned<toml::Value>>,
    lora: Option<Spanned<toml::Value>>,
    expand: Option<Spanned<toml::Value>>,
    wildcards: Option<Spanned<toml::Value>>,
    sign_cert: Option<Spanned<toml::Value>>,
    sign_key: Option<Spanned<toml::Value>>,
    recipe: Option<Spanned<toml::Value>>,
    #[serde(default)]
    serve: BTreeMap<String, Spanned<toml::Value>>,
    #[serde(default)]
    upsample: BTreeMap<String, Spanned<toml::Value>>,
}

/// One folder, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Folders {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Parallel {
    Number(u64),
    Text(String),
}

impl Settings {
    /// Reads variables and files; later files take precedence over earlier ones.
    fn read(variable: impl Fn(&str) -> Option<OsString>, files: &[PathBuf]) -> Result<Self> {
        let mut settings = Self::default();
        for file in files {
            settings.add_file(file)?;
        }
        for (place, (_, name)) in KEYS.into_iter().enumerate() {
            if let Some(value) = variable(name).filter(|value| !value.is_empty()) {
                let value = value.into_string().map_err(|value| {
                    Error::usage(format!("`{}` is not valid UTF-8", value.to_string_lossy())).at(name)
                })?;
                settings.0[place] = Some(Setting { value, from: Origin::Variable(name) });
            }
        }
        settings.check()?;
        Ok(settings)
    }

    fn add_file(&mut self, path: &Path) -> Result<()> {
        let mut bytes = Vec::new();
        let file = open_regular(path, "name an existing file with FLUX_CONFIG")?;
        let wrong = |what: String| Error::usage(what).at_path(path);
        let cannot_read = |e: &dyn fmt::Display| wrong(format!("cannot read the config: {e}"));
        file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|e| cannot_read(&e))?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(wrong(format!("the config is longer than {} MiB", MAX_FILE >> 20)));
        }
        let text = str::from_utf8(&bytes).map_err(|e| cannot_read(&e))?;
        let line = |start: usize| text[..start.min(text.len())].matches('\n').count() + 1;
        let config: ConfigFile = toml::from_str(text).map_err(|e| {
            let place = e.span().map_or(1, |span| line(span.start));
            let keys = KEYS.map(|(key, _)| key).into_iter().chain(IMAGE_KEYS).collect::<Vec<_>>().join(", ");
            wrong(format!("line {place}: {}", e.message()))
                .hint(format!("keys are {keys} and the tables [serve] and [upsample]"))
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let ConfigFile { size, steps, format, quality, lora, expand, wildcards, sign_cert, sign_key, recipe, .. } =
            config;
        let values = [size, steps, format, quality, lora, expand, wildcards, sign_cert, sign_key, recipe];
        let images = IMAGE_KEYS.into_iter().zip(values);
        let images = images.filter_map(|(key, value)| Some((Table::Images, key.to_string(), value?)));
        let serve = config.serve.into_iter().map(|(key, value)| (Table::Serve, key, value));
        let upsample = config.upsample.into_iter().map(|(key, value)| (Table::Upsample, key, value));
        for (table, key, value) in images.chain(serve).chain(upsample) {
            let place = line(value.span().start);
            let value = flag_value(value.into_inner())
                .ok_or_else(|| wrong(format!("line {place}: `{key}` must be a text, a number, a boolean or a list")))?;
            let is_same =
                |known: &FlagSetting| known.table == table && known.key.replace('-', "_") == key.replace('-', "_");
            self.1.retain(|known| !is_same(known));
            let from = Origin::File(path.to_path_buf(), place);
            self.1.push(FlagSetting { table, key, value, folder: folder.to_path_buf(), from });
        }
        let output = config.output.map(|output| {
            let (output, start) = text_of(output, |output| output);
            (template(folder, &output), start)
        });
        let paths = |folders: Folders| match folders {
            Folders::One(one) => expanded(folder, &one),
            Folders::Several(several) => several.iter().map(|one| expanded(folder, one)).collect::<Vec<_>>().join(":"),
        };
        let values = [
            config.model.map(|model| text_of(model, |model| named(folder, &model))),
            config.models.map(|models| text_of(models, paths)),
            config.adapters.map(|adapters| text_of(adapters, paths)),
            output,
            config.device.map(|device| text_of(device, |device| device)),
            config.precision.map(|precision| text_of(precision, |precision| precision)),
            config.gpu_memory.map(|memory| text_of(memory, |memory| memory.to_string())),
            config.parallel.map(|parallel| {
                text_of(parallel, |parallel| match parallel {
                    Parallel::Number(number) => number.to_string(),
                    Parallel::Text(text) => text,
                })
            }),
            config.preview_decoder.map(|file| text_of(file, |file| expanded(folder, &file))),
        ];
        for (own, value) in self.0.iter_mut().zip(values) {
            if let Some((value, start)) = value {
                *own = Some(Setting { value, from: Origin::File(path.to_path_buf(), line(start)) });
            }
        }
        Ok(())
    }

    /// Returns the flags that files set.
    pub fn flags(&self) -> &[FlagSetting] {
        &self.1
    }

    /// Errors when a value is invalid.
    fn check(&self) -> Result<()> {
        self.parsed::<Device>("device")?;
        self.parsed::<PrecisionChoice>("precision")?;
        self.parsed::<ParallelChoice>("parallel")?;
        self.get("output").map_or(Ok(()), |output| {
            NameTemplate::parse(&output.value).map(drop).map_err(|e| Error::usage(e.what()).at(output.from.to_string()))
        })?;
        self.gpu_memory().map(drop)
    }

    /// Returns the setting of a key.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        let place = KEYS.iter().position(|(known, _)| *known == key)?;
        self.0[place].as_ref()
    }

    fn parsed<T: FromStr<Err = String>>(&self, key: &str) -> Result<Option<T>> {
        let Some(Setting { value, from }) = self.get(key) else { return Ok(None) };
        let wrong = |e| Error::usage(format!("`{key}` is `{value}`: {e}")).at(from.to_string());
        value.parse().map(Some).map_err(wrong)
    }

    fn gpu_memory(&self) -> Result<Option<f64>> {
        let Some(Setting { value, from }) = self.get("gpu_memory") else { return Ok(None) };
        let wrong = |e| Error::usage(format!("`gpu_memory` is `{value}`: {e}")).at(from.to_string());
        gibibytes(value).map(Some).map_err(wrong)
    }

    /// Returns the model and its origin.
    pub fn model(&self) -> Option<(PathBuf, &Origin)> {
        self.get("model").map(|setting| (PathBuf::from(&setting.value), &setting.from))
    }

    /// Returns the output path.
    pub fn output(&self) -> Option<PathBuf> {
        self.get("output").map(|setting| PathBuf::from(&setting.value))
    }

    /// Returns `--device`. This and the next three values were checked by [`load`].
    pub fn device(&self) -> Option<Device> {
        self.parsed("device").ok().flatten()
    }

    /// Returns `--gpu-memory`, in GiB.
    pub fn gpu_memory_gib(&self) -> Option<f64> {
        self.gpu_memory().ok().flatten()
    }

    /// Returns `--precision`.
    pub fn precision(&self) -> Option<PrecisionChoice> {
        self.parsed("precision").ok().flatten()
    }

    /// Returns `--parallel`.
    pub fn parallel(&self) -> Option<ParallelChoice> {
        self.parsed("parallel").ok().flatten()
    }

    /// Returns the file of the preview decoder.
    pub fn preview_decoder(&self) -> Option<PathBuf> {
        self.get("preview_decoder").map(|setting| PathBuf::from(&setting.value))
    }

    /// Returns the adapter folders.
    pub fn adapters(&self) -> Vec<PathBuf> {
        self.folders("adapters")
    }

    fn folders(&self, key: &str) -> Vec<PathBuf> {
        let folders = self.get(key).map_or("", |setting| &setting.value);
        env::split_paths(folders).filter(|folder| !folder.as_os_str().is_empty()).collect()
    }
}

/// Returns a value as text, and its byte offset.
fn text_of<T>(value: Spanned<T>, text: impl FnOnce(T) -> String) -> (String, usize) {
    let start = value.span().start;
    (text(value.into_inner()), start)
}

/// Returns the value of a flag; `None` for a table or a date.
fn flag_value(value: toml::Value) -> Option<FlagValue> {
    let text = |value: toml::Value| match value {
        toml::Value::String(text) => Some(text),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        _ => None,
    };
    match value {
        toml::Value::Boolean(flag) => Some(FlagValue::Flag(flag)),
        toml::Value::Array(values) => values.into_iter().map(text).collect::<Option<_>>().map(FlagValue::Values),
        value => text(value).map(|text| FlagValue::Values(vec![text])),
    }
}

/// Expands a path in a config file: `~/` is the user's folder, other relative paths are relative to the file.
pub fn expanded(folder: &Path, path: &str) -> String {
    let (base, rest) = based(folder, path);
    base.join(rest).to_string_lossy().into_owned()
}

/// Expands a name template, like [`expanded`]. Only the text in the file can have fields, not the folder added to it.
fn template(folder: &Path, name: &str) -> String {
    let whole = expanded(folder, name);
    // An absolute path replaces the folder.
    if Path::new(name).is_absolute() {
        return whole;
    }
    // An existing folder may have braces in its name.
    if Path::new(&whole).is_dir() {
        return NameTemplate::literal(&whole).trim_end_matches('/').to_string() + "/";
    }
    let (base, rest) = based(folder, name);
    Path::new(&NameTemplate::literal(&base.to_string_lossy())).join(rest).to_string_lossy().into_owned()
}

/// Returns the base folder of a path in a config file, and the rest of the path.
fn based<'a>(folder: &Path, path: &'a str) -> (PathBuf, &'a str) {
    match (path.strip_prefix("~/"), env::var_os("HOME")) {
        (Some(rest), Some(home)) => (home.into(), rest),
        _ => (folder.to_path_buf(), path),
    }
}

/// Returns the path of a model if it exists, otherwise the name unchanged.
pub fn named(folder: &Path, model: &str) -> String {
    let path = expanded(folder, model);
    if Path::new(&path).exists() || model.starts_with(['/', '.', '~']) { path } else { model.to_string() }
}
