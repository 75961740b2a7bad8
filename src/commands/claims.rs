//! Which files a command reads and which it writes: before any work it is certain that nothing that is read is written
//! over, and that no file is written twice.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use flux::files::{FileId, ModelFiles, files_at};
use flux::{Error, Result};

use crate::cli::{Convert, Generate};

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

/// Errors when one of the files that `args` would write is another one of them, or is read. `cache` is the file of
/// `--fp8-cache`.
pub fn of_images(args: &Generate, seed: u64, model: &ModelFiles, cache: Option<&Path>) -> Result<()> {
    let mut claims = Claims { force: args.force, ..Claims::default() };
    // The cache is made of the model's files, and takes its own place alone.
    let is_cache = |path: &PathBuf| cache.is_some_and(|cache| path.file_name() == cache.file_name());
    claims.keeps("a file of the model", model.on_disk().into_iter().filter(|path| !is_cache(path)));
    for path in args.adapters.paths() {
        claims.keeps("a file of what `--lora` names", files_at(path));
    }
    let files = args.images.named_files().chain(args.tensors.inputs());
    files.for_each(|(flag, path)| claims.reads(flag, path));
    if args.reads_stdin() || args.images.reads_stdin() {
        claims.reads("standard input", Path::new(STDIN));
    }
    let outputs = if args.to_stdout() { vec![PathBuf::from(STDOUT)] } else { args.outputs(seed)? };
    outputs.into_iter().try_for_each(|path| claims.writes("--output", path))?;
    args.latents_outputs(seed).into_iter().try_for_each(|path| claims.writes("--save-latents", path))?;
    if let Some(path) = &args.tensors.save_embeddings {
        claims.writes("--save-embeddings", path.clone())?;
    }
    cache.map_or(Ok(()), |path| claims.writes("--fp8-cache", path.to_path_buf()))
}

/// Errors when the file that `args` would write is read, or belongs to the model of which a part is read.
pub fn of_conversion(args: &Convert) -> Result<()> {
    let mut claims = Claims::default();
    claims.keeps("a file of the model that is read", files_at(&args.from));
    args.tokenizer.iter().for_each(|path| claims.keeps("a file of what `--tokenizer` names", files_at(path)));
    claims.writes("OUT", args.to.clone())
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
    fn reads(&mut self, flag: &str, path: &Path) {
        let what = if path == Path::new(STDIN) { flag.to_string() } else { format!("what `{flag}` reads") };
        let read = Read { path: path.to_path_buf(), what, is_first: true };
        self.read.entry(FileId::of(path)).or_insert(read);
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

    use clap::Parser;
    use flux::files::quantised_cache::FILE;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn a_cache_takes_its_own_place_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("transformer")).unwrap();
        for name in ["model_index.json", "transformer/config.json", "transformer/a.safetensors"] {
            fs::write(at(name), "{}").unwrap();
        }
        let model = ModelFiles::open(folder.path()).unwrap();
        let check = |flags: &[&str]| {
            let words = ["flux", "-p", "x", "-S", "1", "-o"].iter().chain(flags);
            let args = Cli::try_parse_from(words).unwrap_or_else(|e| panic!("{e}")).generate;
            of_images(&args, 1, &model, Some(&at(FILE))).map_err(|e| e.to_string())
        };
        let free = at("x.png");
        assert_eq!(check(&[free.to_str().unwrap()]), Ok(()), "there is none yet");
        fs::write(at(FILE), "an older one").unwrap();
        assert_eq!(check(&[free.to_str().unwrap()]), Ok(()));
        symlink(at(FILE), at("link.png")).unwrap();
        let link = at("link.png");
        assert!(check(&[link.to_str().unwrap()]).is_err_and(|e| e.contains("by `--output` and by `--fp8-cache`")));
        fs::remove_file(at(FILE)).unwrap();
        fs::hard_link(at("transformer/a.safetensors"), at(FILE)).unwrap();
        assert!(check(&[free.to_str().unwrap()]).is_err_and(|e| e.contains("a file of the model")));
    }
}
