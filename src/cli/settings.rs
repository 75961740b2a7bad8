//! What holds where no flag says otherwise: variables of the environment, and below them config files.
//!
//! | | |
//! |---|---|
//! | `FLUX_DEVICE` and so on | the environment |
//! | `flux.toml` | the current folder |
//! | `~/.config/flux/flux.toml` | the user, or where `XDG_CONFIG_HOME` says |
//!
//! `FLUX_CONFIG` names a file in place of both, or with an empty value none.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use etcetera::{AppStrategy, AppStrategyArgs};
use flux::engine::choice::{DeviceChoice, ParallelChoice, PrecisionChoice};
use flux::files::open_regular;
use flux::output::NameTemplate;
use flux::{Error, Result};
use serde::Deserialize;
use toml::Spanned;

use super::values::gibibytes;

/// The name of a config file.
const FILE: &str = "flux.toml";
/// The variable that names one.
const VARIABLE: &str = "FLUX_CONFIG";
/// The longest config file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// What may be set: the key in a file, and the variable.
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

/// What is set, by the place of its key in [`KEYS`].
#[derive(Debug, Clone, Default)]
pub struct Settings([Option<Setting>; KEYS.len()]);

/// A value, and where it was set.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    pub value: String,
    pub from: Origin,
}

/// Where a value was set.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    Variable(&'static str),
    /// A file, and its line from 1.
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

/// Reads the environment and the config files, for all commands.
///
/// Errors when a file cannot be read, is too long, is no TOML, has a key that there is not, or a value is wrong.
pub fn load() -> Result<()> {
    let settings = Settings::read(|name| env::var_os(name), &files())?;
    flux::hub::look_in(settings.folders("models"));
    // It is loaded once.
    let _ = SETTINGS.set(settings);
    Ok(())
}

/// What is set; nothing before it is loaded.
pub fn settings() -> &'static Settings {
    SETTINGS.get_or_init(Settings::default)
}

/// The files that are read, the weaker one first.
fn files() -> Vec<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE) {
        return if named.is_empty() { Vec::new() } else { vec![named.into()] };
    }
    let strategy = etcetera::choose_app_strategy(AppStrategyArgs {
        top_level_domain: String::new(),
        author: String::new(),
        app_name: "flux".to_string(),
    });
    let user = strategy.ok().map(|strategy| strategy.config_dir().join(FILE));
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
    /// What variables and files say; later files are over earlier ones.
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
        let file = open_regular(path, "name a file that is there with FLUX_CONFIG")?;
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
            let keys = KEYS.map(|(key, _)| key).join(", ");
            wrong(format!("line {place}: {}", e.message())).hint(format!("keys are {keys}"))
        })?;
        let ConfigFile { model, models, adapters, output, device, precision, gpu_memory, parallel, preview_decoder } =
            config;
        let folder = path.parent().unwrap_or(Path::new(""));
        let output = output.map(|output| {
            let (output, start) = text_of(output, |output| output);
            (template(folder, &output), start)
        });
        let paths = |folders: Folders| match folders {
            Folders::One(one) => expanded(folder, &one),
            Folders::Several(several) => several.iter().map(|one| expanded(folder, one)).collect::<Vec<_>>().join(":"),
        };
        let values = [
            model.map(|model| text_of(model, |model| named(folder, &model))),
            models.map(|models| text_of(models, paths)),
            adapters.map(|adapters| text_of(adapters, paths)),
            output,
            device.map(|device| text_of(device, |device| device)),
            precision.map(|precision| text_of(precision, |precision| precision)),
            gpu_memory.map(|memory| text_of(memory, |memory| memory.to_string())),
            parallel.map(|parallel| {
                text_of(parallel, |parallel| match parallel {
                    Parallel::Number(number) => number.to_string(),
                    Parallel::Text(text) => text,
                })
            }),
            preview_decoder.map(|file| text_of(file, |file| expanded(folder, &file))),
        ];
        for (own, value) in self.0.iter_mut().zip(values) {
            if let Some((value, start)) = value {
                *own = Some(Setting { value, from: Origin::File(path.to_path_buf(), line(start)) });
            }
        }
        Ok(())
    }

    /// Errors when a value is not of its kind.
    fn check(&self) -> Result<()> {
        self.parsed::<DeviceChoice>("device")?;
        self.parsed::<PrecisionChoice>("precision")?;
        self.parsed::<ParallelChoice>("parallel")?;
        self.get("output").map_or(Ok(()), |output| {
            NameTemplate::parse(&output.value).map(drop).map_err(|e| Error::usage(e.what()).at(output.from.to_string()))
        })?;
        self.gpu_memory().map(drop)
    }

    /// What is set, by its key.
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

    /// The model, and where it was set.
    pub fn model(&self) -> Option<(PathBuf, &Origin)> {
        self.get("model").map(|setting| (PathBuf::from(&setting.value), &setting.from))
    }

    /// Where images go.
    pub fn output(&self) -> Option<PathBuf> {
        self.get("output").map(|setting| PathBuf::from(&setting.value))
    }

    /// `--device`, in GiB `--gpu-memory`, `--precision` and `--parallel`; all were checked.
    pub fn device(&self) -> Option<DeviceChoice> {
        self.parsed("device").ok().flatten()
    }

    /// See [`Settings::device`].
    pub fn gpu_memory_gib(&self) -> Option<f64> {
        self.gpu_memory().ok().flatten()
    }

    /// See [`Settings::device`].
    pub fn precision(&self) -> Option<PrecisionChoice> {
        self.parsed("precision").ok().flatten()
    }

    /// See [`Settings::device`].
    pub fn parallel(&self) -> Option<ParallelChoice> {
        self.parsed("parallel").ok().flatten()
    }

    /// The file of the decoder that draws steps.
    pub fn preview_decoder(&self) -> Option<PathBuf> {
        self.get("preview_decoder").map(|setting| PathBuf::from(&setting.value))
    }

    /// The folders of adapters.
    pub fn adapters(&self) -> Vec<PathBuf> {
        self.folders("adapters")
    }

    fn folders(&self, key: &str) -> Vec<PathBuf> {
        let folders = self.get(key).map_or("", |setting| &setting.value);
        env::split_paths(folders).filter(|folder| !folder.as_os_str().is_empty()).collect()
    }
}

/// A value as text, and where it begins.
fn text_of<T>(value: Spanned<T>, text: impl FnOnce(T) -> String) -> (String, usize) {
    let start = value.span().start;
    (text(value.into_inner()), start)
}

/// A path of a config file: `~/` is the user's folder, and what is not absolute is seen from the file.
fn expanded(folder: &Path, path: &str) -> String {
    let (base, rest) = based(folder, path);
    base.join(rest).to_string_lossy().into_owned()
}

/// A name of images, as [`expanded`]. Fields are in what the file says alone, not in the folder from which it is seen.
fn template(folder: &Path, name: &str) -> String {
    let whole = expanded(folder, name);
    // An absolute path takes the place of the folder.
    if Path::new(name).is_absolute() {
        return whole;
    }
    // With its fields, a folder that is there would not be seen as one.
    if Path::new(&whole).is_dir() {
        return NameTemplate::literal(&whole).trim_end_matches('/').to_string() + "/";
    }
    let (base, rest) = based(folder, name);
    Path::new(&NameTemplate::literal(&base.to_string_lossy())).join(rest).to_string_lossy().into_owned()
}

/// The folder from which a path of a config file is seen, and the path in it.
fn based<'a>(folder: &Path, path: &'a str) -> (PathBuf, &'a str) {
    match (path.strip_prefix("~/"), env::var_os("HOME")) {
        (Some(rest), Some(home)) => (home.into(), rest),
        _ => (folder.to_path_buf(), path),
    }
}

/// A model: a path where there is one, else the name as it is.
fn named(folder: &Path, model: &str) -> String {
    let path = expanded(folder, model);
    if Path::new(&path).exists() || model.starts_with(['/', '.', '~']) { path } else { model.to_string() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(text: &str, variables: &[(&str, &str)]) -> std::result::Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        fs::write(&path, text).unwrap();
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Settings::read(variable, &[path]).map_err(|e| e.to_string())
    }

    #[test]
    fn the_environment_is_over_a_file() {
        let text = "# mine\ndevice = \"cpu\"\nprecision = \"bf16\"\ngpu_memory = 8\nparallel = 2\nmodel = \"/m\"\n";
        let settings = read(text, &[("FLUX_PRECISION", "fp8"), ("FLUX_DEVICE", "")]).unwrap();
        assert_eq!((settings.device(), settings.precision()), (Some(DeviceChoice::Cpu), Some(PrecisionChoice::Fp8)));
        assert_eq!((settings.gpu_memory_gib(), settings.parallel()), (Some(8.0), Some(ParallelChoice::Gpus(2))));
        assert_eq!(settings.get("precision").unwrap().from, Origin::Variable("FLUX_PRECISION"));
        assert!(matches!(&settings.get("device").unwrap().from, Origin::File(_, 2)));
        assert_eq!(settings.model().unwrap().0, Path::new("/m"));
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told_with_its_line() {
        for (text, words) in [
            ("device = \"tpu\"\n", &["`device` is `tpu`", "line 1"][..]),
            ("\nprecison = \"fp8\"\n", &["line 2", "precison", "keys are model"]),
            ("device = \n", &["line 1"]),
            ("gpu_memory = -1\n", &["gpu_memory"]),
            ("output = \"{sed}.png\"\n", &["no field"]),
        ] {
            let error = read(text, &[]).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
        assert!(read("", &[("FLUX_DEVICE", "tpu")]).is_err_and(|e| e.contains("in: FLUX_DEVICE")));
    }

    #[test]
    fn a_file_that_is_too_long_is_refused_and_not_cut() {
        let most = MAX_FILE as usize;
        let text = |length: usize| format!("device = \"cpu\"\n#{}", "ä".repeat(length)) + "\n";
        let longest = text((most - 17) / 2);
        assert!(longest.len() <= most && read(&longest, &[]).is_ok());
        let error = read(&(longest + "precision = \"fp8\"\n"), &[]).unwrap_err();
        assert!(error.contains("longer than 1 MiB") && error.contains(FILE), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_no_text_is_an_error() {
        use std::os::unix::ffi::OsStringExt;
        let variable = |name: &str| (name == "FLUX_DEVICE").then(|| OsString::from_vec(b"cp\xff".to_vec()));
        let error = Settings::read(variable, &[]).unwrap_err().to_string();
        assert!(error.contains("is not valid UTF-8") && error.contains("in: FLUX_DEVICE"), "{error}");
    }

    #[test]
    fn paths_are_seen_from_the_file() {
        let settings = read(
            "output = \"images/{seed}.png\"\npreview_decoder = \"t.sft\"\nadapters = [\"a\", \"/b\"]\nmodel = \"4b\"\n",
            &[],
        )
        .unwrap();
        let output = settings.output().unwrap();
        assert!(output.is_absolute() && output.ends_with("images/{seed}.png"), "{output:?}");
        assert_eq!(
            settings.preview_decoder(),
            output.parent().and_then(Path::parent).map(|folder| folder.join("t.sft"))
        );
        let adapters = settings.adapters();
        assert!(adapters[0].is_absolute() && adapters[1] == Path::new("/b"));
        assert_eq!(settings.model().unwrap().0, Path::new("4b"), "the name of a model");
    }

    #[test]
    fn the_folder_of_a_file_has_no_fields() {
        let folder = tempfile::tempdir().unwrap();
        let output = |name: &str, output: &str| {
            let inner = folder.path().join(name);
            fs::create_dir_all(inner.join("images{n}")).unwrap();
            fs::write(inner.join(FILE), format!("# mine\noutput = \"{output}\"\n")).unwrap();
            let settings = Settings::read(|_| None, &[inner.join(FILE)]).unwrap();
            let output = settings.output().unwrap();
            output.to_str().unwrap().replacen(folder.path().to_str().unwrap(), "", 1)
        };
        assert_eq!(output("c{x}", "{seed}.png"), "/c{{x}}/{seed}.png");
        assert_eq!(output("c{x}", "/a/{seed}.png"), "/a/{seed}.png");
        assert_eq!(output("c{x}", "images{n}"), "/c{{x}}/images{{n}}/", "a folder that is there");
        assert_eq!(output("50%", "%d.png"), "/50%/%d.png");
        assert_eq!(output("c%d", "{seed}.png"), "/c%%d/{seed}.png");
        assert_eq!(output("c%d", "/a/{seed}.png"), "/a/{seed}.png");
    }
}
