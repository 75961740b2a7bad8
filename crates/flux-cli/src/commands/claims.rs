//! The files that a command reads and writes. Checked before any work starts: no input is overwritten and no file is
//! written twice.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use flux::engine::Recipe;
use flux::error::Form;
use flux::files::{FileId, ModelFiles, files_at};
use flux::input::is_stdin;
use flux::{Error, Result};
use flux_hub::{Wanted, resolve};

use super::outputs::Outputs;
use crate::cli::{Compare, Convert, Sheet, flag};
use flux_runtime::progress::{log_path, withdraw_log};

const STDIN: &str = "/dev/stdin";
const STDOUT: &str = "/dev/stdout";

/// The files of a command.
#[derive(Default)]
struct Claims {
    read: HashMap<FileId, Read>,
    written: HashMap<FileId, (&'static str, PathBuf)>,
    /// True if inputs that are read completely beforehand may be overwritten.
    force: bool,
}

/// A file that is read.
struct Read {
    path: PathBuf,
    /// A description for messages.
    what: String,
    /// True if the whole file is read before anything is written.
    is_first: bool,
}

/// Errors if two outputs of a run are the same file, or if an output is also an input. `cache` is the file of
/// `--fp8-cache`. With `force`, inputs that are read completely beforehand may be overwritten. `source` is the file
/// that the recipe comes from.
pub fn check_images(
    (recipe, source): (&Recipe, Option<&Path>),
    outputs: &Outputs,
    model: &ModelFiles,
    cache: Option<&Path>,
    [force, reads_stdin]: [bool; 2],
) -> Result<()> {
    let mut claims = Claims { force, ..Claims::default() };
    // The cache is derived from the model's files and only overwrites itself.
    let is_cache = |path: &PathBuf| cache.is_some_and(|cache| path.file_name() == cache.file_name());
    claims.keeps("a file of the model", model.on_disk().into_iter().filter(|path| !is_cache(path)));
    for used in &recipe.adapters {
        claims.keeps("a file of the adapter in `--lora`", files_at(&used.file));
    }
    claims.keeps("the upscaler in `--hires-upscaler`", recipe.upscaler().map(Path::to_path_buf));
    for (field, path) in recipe.files().filter(|(_, path)| !is_stdin(path)) {
        claims.reads(format!("the file that `{}` reads", flag(field, Form::Full)), path);
    }
    source.iter().for_each(|path| claims.reads("the file that the recipe is read from", path));
    if reads_stdin {
        claims.reads("standard input", Path::new(STDIN));
    }
    let stdout = outputs.images.is_empty().then(|| PathBuf::from(STDOUT));
    outputs.images.iter().cloned().chain(stdout).try_for_each(|path| claims.writes("--output", path))?;
    outputs.latents.iter().cloned().try_for_each(|path| claims.writes("--save-latents", path))?;
    if let Some(path) = &outputs.embeddings {
        claims.writes("--save-embeddings", path.clone())?;
    }
    cache.map_or(Ok(()), |path| claims.writes("--fp8-cache", path.to_path_buf()))?;
    claims.logs()
}

/// Errors if two outputs of reproduced images are the same file, or if an output is one of `images`.
pub fn check_reproduced_images(images: &[PathBuf], outputs: &[Outputs], force: bool) -> Result<()> {
    let mut claims = Claims { force, ..Claims::default() };
    images.iter().for_each(|path| claims.reads("one of the images to reproduce", path));
    let written = outputs.iter().flat_map(|outputs| outputs.images.iter().cloned());
    written.into_iter().try_for_each(|path| claims.writes("--output", path))
}

/// Errors if the output of `args` is an input, or belongs to the model that is converted.
pub fn check_conversion(args: &Convert) -> Result<()> {
    let mut claims = Claims::default();
    let from = resolve(&args.from, Wanted::Model).unwrap_or_else(|_| args.from.clone());
    claims.keeps("a file of the input model", files_at(&from));
    args.tokenizer.iter().for_each(|path| claims.keeps("a file of the tokenizer in `--tokenizer`", files_at(path)));
    claims.writes("OUT", args.to.clone())?;
    claims.logs()
}

/// Errors if the sheet of `args` would overwrite one of its images, `files`.
pub fn check_sheet(args: &Sheet, files: &[PathBuf]) -> Result<()> {
    let mut claims = Claims { force: args.force, ..Claims::default() };
    for path in files {
        let read = Read { path: path.clone(), what: "one of the images".to_string(), is_first: true };
        claims.read.entry(FileId::from_path(path)).or_insert(read);
    }
    claims.writes("--output", args.output.clone())?;
    claims.logs()
}

/// Errors if the difference image of `args` would overwrite one of the images.
pub fn check_comparison(args: &Compare) -> Result<()> {
    let mut claims = Claims::default();
    claims.keeps("one of the images", args.files.clone());
    args.diff.iter().try_for_each(|path| claims.writes("--diff", path.clone()))?;
    claims.logs()
}

impl Claims {
    /// Adds files that are read while others are written.
    fn keeps(&mut self, what: &str, files: impl IntoIterator<Item = PathBuf>) {
        for path in files.into_iter().filter(|path| path.exists()) {
            let read = Read { what: what.to_string(), is_first: false, path };
            self.read.insert(FileId::from_path(&read.path), read);
        }
    }

    /// Adds a file that is read before anything is written.
    fn reads(&mut self, what: impl Into<String>, path: &Path) {
        let read = Read { path: path.to_path_buf(), what: what.into(), is_first: true };
        self.read.entry(FileId::from_path(path)).or_insert(read);
    }

    /// Errors if the log is another file of the command. The log is already open; on error it is restored to its
    /// previous state.
    fn logs(&mut self) -> Result<()> {
        let Some(path) = log_path() else { return Ok(()) };
        if let Some(read) = self.read.get_mut(&FileId::from_path(path)) {
            read.is_first = false; // the log is appended to all the time
        }
        self.writes("--log", path.to_path_buf()).inspect_err(|_| withdraw_log())
    }

    /// Errors if the file is an input, or an output of another flag or image.
    fn writes(&mut self, flag: &'static str, path: PathBuf) -> Result<()> {
        let (id, name) = (FileId::from_path(&path), name(&path));
        match self.read.get(&id) {
            Some(read) if !(read.is_first && self.force) => return Err(read.kept(flag, &path)),
            _ => {}
        }
        match self.written.insert(id, (flag, path)) {
            None => Ok(()),
            Some((other, _)) if other != flag => {
                Err(Error::usage(format!("{name} is written twice: by `{other}` and by `{flag}`"))
                    .at(flag)
                    .hint("name two different files"))
            }
            Some((_, first)) => Err(Error::usage(format!(
                "{} and {name} are the same file, but each image needs its own",
                self::name(&first)
            ))
            .at(flag)
            .hint("name another file, or remove the link")),
        }
    }
}

impl Read {
    /// Returns the error for a flag that would overwrite this file.
    fn kept(&self, flag: &str, path: &Path) -> Error {
        let also = if self.path == path || self.path == Path::new(STDIN) {
            String::new()
        } else {
            format!(", {}", name(&self.path))
        };
        let error = Error::usage(format!("{} is {}{also}", name(path), self.what)).at(flag);
        if self.is_first {
            error.hint("name another file, or pass `--force` to overwrite it after reading")
        } else {
            error.hint("name another file to write")
        }
    }
}

fn name(path: &Path) -> String {
    if path == Path::new(STDOUT) { "standard output".to_string() } else { format!("`{}`", path.display()) }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use flux::files::quantized_cache::FILE;

    use flux::output::Encoding;

    use super::*;

    #[test]
    fn a_cache_takes_its_own_place_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("transformer")).unwrap();
        for name in ["model_index.json", "transformer/config.json", "transformer/a.safetensors"] {
            fs::write(at(name), "{}").unwrap();
        }
        let model = ModelFiles::open(folder.path()).unwrap();
        let check = |output: &Path| {
            let outputs = Outputs {
                images: vec![output.to_path_buf()],
                latents: Vec::new(),
                embeddings: None,
                folders: Vec::new(),
                no_clobber: false,
                encoding: Encoding::default(),
            };
            let recipe = Recipe::new("x", 1);
            check_images((&recipe, None), &outputs, &model, Some(&at(FILE)), [false; 2]).map_err(|e| e.to_string())
        };
        let free = at("x.png");
        assert_eq!(check(&free), Ok(()), "there is none yet");
        fs::write(at(FILE), "an older one").unwrap();
        assert_eq!(check(&free), Ok(()));
        symlink(at(FILE), at("link.png")).unwrap();
        let link = at("link.png");
        assert!(check(&link).is_err_and(|e| e.contains("`--output`") && e.contains("`--fp8-cache`")));
        fs::remove_file(at(FILE)).unwrap();
        fs::hard_link(at("transformer/a.safetensors"), at(FILE)).unwrap();
        assert!(check(&free).is_err_and(|e| e.contains("a file of the model")));
    }
}
