//! Which files a command reads and which it writes: before any work it is certain that nothing that is read is written
//! over, and that no file is written twice.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use flux::engine::Recipe;
use flux::error::Form;
use flux::files::{FileId, ModelFiles, files_at};
use flux::hub::{Wanted, resolve};
use flux::input::is_stdin;
use flux::{Error, Result};

use super::outputs::Outputs;
use crate::cli::{Compare, Convert, Sheet, flag};
use crate::progress::{log_path, withdraw_log};

const STDIN: &str = "/dev/stdin";
const STDOUT: &str = "/dev/stdout";

/// The files of a command.
#[derive(Default)]
struct Claims {
    read: HashMap<FileId, Read>,
    written: HashMap<FileId, (&'static str, PathBuf)>,
    /// Whether what is read as a whole beforehand may be written over.
    force: bool,
}

/// A file that is read.
struct Read {
    path: PathBuf,
    /// What it is, for messages.
    what: String,
    /// Whether all of it is read before anything is written.
    is_first: bool,
}

/// Errors when one of the files that a run would write is another one of them, or is read. `cache` is the file of
/// `--fp8-cache`; with `force`, what is read as a whole beforehand may be written over. `source` is the file that the
/// recipe comes from.
pub fn of_images(
    (recipe, source): (&Recipe, Option<&Path>),
    outputs: &Outputs,
    model: &ModelFiles,
    cache: Option<&Path>,
    [force, reads_stdin]: [bool; 2],
) -> Result<()> {
    let mut claims = Claims { force, ..Claims::default() };
    // The cache is made of the model's files, and takes its own place alone.
    let is_cache = |path: &PathBuf| cache.is_some_and(|cache| path.file_name() == cache.file_name());
    claims.keeps("a file of the model", model.on_disk().into_iter().filter(|path| !is_cache(path)));
    for used in &recipe.adapters {
        claims.keeps("a file of what `--lora` names", files_at(&used.file));
    }
    for (field, path) in recipe.files().filter(|(_, path)| !is_stdin(path)) {
        claims.reads(format!("what `{}` reads", flag(field, Form::Full)), path);
    }
    source.iter().for_each(|path| claims.reads("what the recipe is read from", path));
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

/// Errors when one of the files that images are written to again is another one of them, or one of those `images`.
pub fn of_images_again(images: &[PathBuf], outputs: &[Outputs], force: bool) -> Result<()> {
    let mut claims = Claims { force, ..Claims::default() };
    images.iter().for_each(|path| claims.reads("one of the images that are made again", path));
    let written = outputs.iter().flat_map(|outputs| outputs.images.iter().cloned());
    written.into_iter().try_for_each(|path| claims.writes("--output", path))
}

/// Errors when the file that `args` would write is read, or belongs to the model of which a part is read.
pub fn of_conversion(args: &Convert) -> Result<()> {
    let mut claims = Claims::default();
    let from = resolve(&args.from, Wanted::Model).unwrap_or_else(|_| args.from.clone());
    claims.keeps("a file of the model that is read", files_at(&from));
    args.tokenizer.iter().for_each(|path| claims.keeps("a file of what `--tokenizer` names", files_at(path)));
    claims.writes("OUT", args.to.clone())?;
    claims.logs()
}

/// Errors when the sheet that `args` would write is one of its images.
pub fn of_sheet(args: &Sheet) -> Result<()> {
    let mut claims = Claims { force: args.force, ..Claims::default() };
    for path in &args.files {
        let read = Read { path: path.clone(), what: "one of the images".to_string(), is_first: true };
        claims.read.entry(FileId::of(path)).or_insert(read);
    }
    claims.writes("--output", args.output.clone())?;
    claims.logs()
}

/// Errors when the image of differences that `args` would write is one of the two images.
pub fn of_comparison(args: &Compare) -> Result<()> {
    let mut claims = Claims::default();
    claims.keeps("one of the images", [args.a.clone(), args.b.clone()]);
    args.diff.iter().try_for_each(|path| claims.writes("--diff", path.clone()))?;
    claims.logs()
}

impl Claims {
    /// Files that are read while others are written.
    fn keeps(&mut self, what: &str, files: impl IntoIterator<Item = PathBuf>) {
        for path in files.into_iter().filter(|path| path.exists()) {
            let read = Read { what: what.to_string(), is_first: false, path };
            self.read.insert(FileId::of(&read.path), read);
        }
    }

    /// A file that is read before any other is written.
    fn reads(&mut self, what: impl Into<String>, path: &Path) {
        let read = Read { path: path.to_path_buf(), what: what.into(), is_first: true };
        self.read.entry(FileId::of(path)).or_insert(read);
    }

    /// Errors when the log is another file of the command. It is open already, and is left as it was before.
    fn logs(&mut self) -> Result<()> {
        let Some(path) = log_path() else { return Ok(()) };
        if let Some(read) = self.read.get_mut(&FileId::of(path)) {
            read.is_first = false; // lines are added all the time
        }
        self.writes("--log", path.to_path_buf()).inspect_err(|_| withdraw_log())
    }

    /// Errors when the file is read, or written by another flag or for another image.
    fn writes(&mut self, flag: &'static str, path: PathBuf) -> Result<()> {
        let (id, name) = (FileId::of(&path), name(&path));
        match self.read.get(&id) {
            Some(read) if !(read.is_first && self.force) => return Err(read.kept(flag, &path)),
            _ => {}
        }
        match self.written.insert(id, (flag, path)) {
            None => Ok(()),
            Some((other, _)) if other != flag => {
                Err(Error::usage(format!("{name} is written twice: by `{other}` and by `{flag}`"))
                    .at(flag)
                    .hint("name two files"))
            }
            Some((_, first)) => Err(Error::usage(format!(
                "{} and {name} are the same file, and each image needs its own",
                self::name(&first)
            ))
            .at(flag)
            .hint("name another file, or remove the link")),
        }
    }
}

impl Read {
    /// The error of a flag that would write over it.
    fn kept(&self, flag: &str, path: &Path) -> Error {
        let also = if self.path == path || self.path == Path::new(STDIN) {
            String::new()
        } else {
            format!(", {}", name(&self.path))
        };
        let error = Error::usage(format!("{} is {}{also}", name(path), self.what)).at(flag);
        if self.is_first {
            error.hint("name another file; with `--force` it is written over once it has been read")
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

    use flux::files::quantised_cache::FILE;

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
            };
            let recipe = Recipe::new("x", 1);
            of_images((&recipe, None), &outputs, &model, Some(&at(FILE)), [false; 2]).map_err(|e| e.to_string())
        };
        let free = at("x.png");
        assert_eq!(check(&free), Ok(()), "there is none yet");
        fs::write(at(FILE), "an older one").unwrap();
        assert_eq!(check(&free), Ok(()));
        symlink(at(FILE), at("link.png")).unwrap();
        let link = at("link.png");
        assert!(check(&link).is_err_and(|e| e.contains("by `--output` and by `--fp8-cache`")));
        fs::remove_file(at(FILE)).unwrap();
        fs::hard_link(at("transformer/a.safetensors"), at(FILE)).unwrap();
        assert!(check(&free).is_err_and(|e| e.contains("a file of the model")));
    }
}
