//! The identity of files: the file behind a path, the files of a model, and weights that must not be overwritten.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::catalog::role::Role;
use crate::containers::inspect;
use crate::containers::quantized_cache;
use crate::models::component::open_weights;
use crate::models::model_files::{ModelFiles, TokenizerFile, has_index};
use flux_base::error::{Error, Result};

/// File extensions of models and adapters.
const ENDINGS: [&str; 9] = ["json", "safetensors", "sft", "gguf", "txt", "jinja", "model", "bin", "pt"];

/// The identity of a file: links, hard links and other spellings of a path are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileId(Entry);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Entry {
    There(Inode),
    /// A file that does not exist yet: its folder and its name.
    New(Option<Inode>, OsString),
}

type Inode = (u64, u64);

/// Returns the identity of an existing file.
fn inode(path: &Path) -> Option<Inode> {
    use std::os::unix::fs::MetadataExt;
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}

impl FileId {
    /// Returns the identity of the file at `path`, or of the file that would be created there.
    pub fn from_path(path: &Path) -> Self {
        if let Some(inode) = inode(path) {
            return Self(Entry::There(inode));
        }
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        // Nothing can be created without the folder, so the whole path serves as the name.
        let found = inode(folder);
        let name = if found.is_some() { path.file_name() } else { None };
        Self(Entry::New(found, name.unwrap_or(path.as_os_str()).to_os_string()))
    }
}

/// Returns the files of the adapter, model part or whole model at `path`. A folder returns its files with known
/// extensions. A file in the folder of a whole model returns all files of that model.
pub fn files_at(path: &Path) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    // A link and its target may have different parent folders.
    for path in [Some(path.to_path_buf()), path.canonicalize().ok()].into_iter().flatten() {
        add(&path, &mut files);
        path.ancestors().skip(1).take(2).filter(|folder| is_whole(folder)).for_each(|folder| add(folder, &mut files));
    }
    files
}

fn is_whole(folder: &Path) -> bool {
    has_index(folder)
}

fn add(path: &Path, files: &mut BTreeSet<PathBuf>) {
    // The parent of a bare file name is `""`.
    let folder = if path == Path::new("") { Path::new(".") } else { path };
    if !folder.is_dir() {
        files.insert(path.to_path_buf());
        let beside = ["config.json", "adapter_config.json"].map(|name| path.with_file_name(name));
        files.extend(beside.into_iter().filter(|config| config.is_file()));
        return;
    }
    let is_whole = is_whole(folder);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            let inner = std::fs::read_dir(&path).into_iter().flatten().flatten().filter(|_| is_whole);
            files.extend(inner.map(|entry| entry.path()).filter(|path| has_ending(path)));
        } else if has_ending(&path) && !(is_whole && holds_other_tensors(&path)) {
            files.insert(path);
        }
    }
}

/// Returns `true` if a file next to the model parts holds tensors that are not weights, such as latents of an earlier
/// run.
fn holds_other_tensors(path: &Path) -> bool {
    let is_cache = path.file_name().is_some_and(|name| name == quantized_cache::FILE);
    let is_safetensors = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("safetensors"));
    is_safetensors && !is_cache && check_replaceable(path, None).is_ok()
}

fn has_ending(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Checks that writing a file at `path` destroys no weights. The component `by` may replace weights of the same
/// component.
///
/// Errors if the file holds other weights.
pub fn check_replaceable(path: &Path, by: Option<Role>) -> Result<()> {
    let Ok(files) = open_weights(path).map(|file| [file]) else { return Ok(()) };
    let kind = inspect::kind(&files);
    let is_quantized = inspect::check_forms(&files).is_err();
    if by.is_some_and(|role| kind.is_only(role)) || !(kind.is_known() || is_quantized) {
        return Ok(());
    }
    let title = if kind.is_known() { kind.title() } else { "a weights file".to_string() };
    Err(Error::usage(format!("`{}` is {title} and is never overwritten", path.display()))
        .hint("name another file, or remove this one first"))
}

impl ModelFiles {
    /// Returns the model's files on disk, including unused files in its folders.
    pub fn on_disk(&self) -> BTreeSet<PathBuf> {
        let parts = Role::ALL.map(|role| self.component(role).path());
        let tokenizer = match self.tokenizer() {
            TokenizerFile::Json(folder, name) => Some(folder.path(name)),
            TokenizerFile::Gguf(path) => Some(path.clone()),
            TokenizerFile::Carried => None,
        };
        let index = self.index.as_ref().and_then(|folder| folder.on_disk()).map(Path::to_path_buf);
        parts.iter().chain(&tokenizer).chain(&index).flat_map(|path| files_at(path)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_the_same_by_every_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "a").unwrap();
        fs::write(at("b"), "a").unwrap();
        fs::create_dir(at("below")).unwrap();
        fs::hard_link(at("a"), at("hard")).unwrap();
        std::os::unix::fs::symlink("a", at("link")).unwrap();
        std::os::unix::fs::symlink("below", at("other")).unwrap();
        for name in ["./a", "below/../a", "hard", "link", "other/../link"] {
            assert_eq!(FileId::from_path(&at(name)), FileId::from_path(&at("a")), "{name}");
        }
        assert_ne!(FileId::from_path(&at("b")), FileId::from_path(&at("a")));
        // Files that do not exist yet.
        assert_eq!(FileId::from_path(&at("below/new")), FileId::from_path(&at("other/new")));
        assert_ne!(FileId::from_path(&at("below/new")), FileId::from_path(&at("below/newer")));
        assert_ne!(FileId::from_path(&at("new")), FileId::from_path(&at("below/new")));
        assert_ne!(FileId::from_path(&at("none/new")), FileId::from_path(&at("none too/new")));
        assert_eq!(FileId::from_path(Path::new("none.png")), FileId::from_path(Path::new("./none.png")));
    }

    #[test]
    fn a_model_has_the_files_of_all_its_folders() {
        let tiny = Path::new("../../models/tiny");
        let names = |path: &Path| -> Vec<String> {
            let below = |file: &PathBuf| Some(file.strip_prefix(tiny).ok()?.to_str()?.to_string());
            files_at(path).iter().filter_map(below).collect()
        };
        let all = names(tiny);
        for file in [
            "model_index.json",
            "scheduler/scheduler_config.json",
            "text_encoder/config.json",
            "tokenizer/tokenizer.json",
            "transformer/diffusion_pytorch_model.safetensors",
            "vae/diffusion_pytorch_model.safetensors",
        ] {
            assert!(all.iter().any(|name| name == file), "{file}: {all:?}");
        }
        assert_eq!(names(&tiny.join("vae")), all, "a part of it");
        assert_eq!(names(&tiny.join("vae/diffusion_pytorch_model.safetensors")), all, "a file of it");
        let model = ModelFiles::open(tiny).unwrap();
        assert!(all.iter().all(|name| model.on_disk().contains(&tiny.join(name))));
    }
}
