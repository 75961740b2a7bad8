//! The upscalers of a server: files of one folder, which clients name without their ending.
//!
//! The folder is read for each request, so that new files appear. A name is only compared with the names in the folder,
//! and never becomes a path.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use flux::upscaler::UpscalerFile;
use parking_lot::Mutex;

use crate::http::error::{ApiError, Result, shown};

/// The Lanczos filter, which every server has.
pub const LANCZOS: &str = "Lanczos";
/// File extensions of upscalers.
const ENDINGS: [&str; 4] = ["safetensors", "pth", "pt", "ckpt"];
/// Max upscalers of a folder, and max files that stay open.
const MAX_FILES: usize = 1000;
const MAX_OPEN: usize = 4;

/// The upscalers of a server. See the [module](self).
#[derive(Default)]
pub struct Upscalers {
    folder: Option<PathBuf>,
    /// The newest last.
    open: Mutex<Vec<Opened>>,
}

/// An open file, with its path and the time of its last change.
struct Opened {
    path: PathBuf,
    changed: Option<SystemTime>,
    file: Arc<UpscalerFile>,
}

impl Upscalers {
    /// Creates the list of a folder; without one, there is only the Lanczos filter.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, open: Mutex::default() }
    }

    /// Returns the files in the folder, sorted by name.
    fn files(&self) -> Vec<PathBuf> {
        let entries = self.folder.as_deref().and_then(|folder| fs::read_dir(folder).ok());
        let is_upscaler = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            ENDINGS.iter().any(|known| known.eq_ignore_ascii_case(ending)) && path.is_file()
        };
        let paths = entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let mut files: Vec<_> =
            paths.filter(|path| path.file_name().is_some_and(|name| name.to_str().is_some())).collect();
        files.sort_unstable_by(|a, b| (stem(a), a).cmp(&(stem(b), b)));
        files.into_iter().filter(is_upscaler).take(MAX_FILES).collect()
    }

    /// Returns the names of the files, without the Lanczos filter. Two files that differ only in their endings have
    /// their whole names.
    pub fn names(&self) -> Vec<String> {
        let files = self.files();
        let is_unique = |path: &PathBuf| files.iter().filter(|other| stem(other) == stem(path)).count() == 1;
        let name = |path: &PathBuf| if is_unique(path) { stem(path) } else { file_name(path) }.to_string();
        files.iter().map(name).collect()
    }

    /// Returns the names of the Lanczos filter and of the files.
    pub fn all_names(&self) -> Vec<String> {
        [LANCZOS.to_string()].into_iter().chain(self.names()).collect()
    }

    /// Returns the names of the files with their endings.
    pub fn file_names(&self) -> Vec<String> {
        self.files().iter().map(|path| file_name(path).to_string()).collect()
    }

    /// Returns `true` for the name of the Lanczos filter.
    pub fn is_filter(name: &str) -> bool {
        name.eq_ignore_ascii_case(LANCZOS)
    }

    /// Returns the file of a name, with or without its ending. Case is ignored, unless that is ambiguous.
    ///
    /// Errors if no file matches, or several do. The error lists the known names.
    pub fn find(&self, name: &str) -> Result<PathBuf> {
        let files = self.files();
        let names = |path: &Path| [file_name(path).to_string(), stem(path).to_string()];
        let exact = files.iter().find(|path| names(path).iter().any(|known| known == name));
        if let Some(path) = exact {
            return Ok(path.clone());
        }
        let is_like = |path: &&PathBuf| names(path).iter().any(|known| known.eq_ignore_ascii_case(name));
        match &*files.iter().filter(is_like).collect::<Vec<_>>() {
            [only] => Ok((*only).clone()),
            _ => {
                let (name, known) = (shown(name), self.all_names().join(", "));
                let message = format!("there is no upscaler `{name}`: the server has {known}");
                Err(ApiError::value("upscaler", message))
            }
        }
    }

    /// Returns the upscaler of a name, and opens its file if necessary.
    ///
    /// Errors as [`Upscalers::find`], and if the file is not an upscaler.
    pub fn open(&self, name: &str) -> Result<Arc<UpscalerFile>> {
        let path = self.find(name)?;
        let changed = fs::metadata(&path).and_then(|data| data.modified()).ok();
        let mut open = self.open.lock();
        let known = open.iter().position(|known| known.path == path && known.changed == changed);
        let opened = match known {
            Some(place) => open.remove(place),
            None => {
                let file = UpscalerFile::open(&path).map_err(|e| {
                    let message = format!("the upscaler `{}` cannot be used: {}", shown(stem(&path)), e.what());
                    ApiError::value("upscaler", message)
                })?;
                open.retain(|known| known.path != path);
                let oldest = (open.len() + 1).saturating_sub(MAX_OPEN);
                open.drain(..oldest);
                Opened { path, changed, file: Arc::new(file) }
            }
        };
        let file = Arc::clone(&opened.file);
        open.push(opened);
        Ok(file)
    }
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Returns the name of a file without its ending.
pub fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|name| name.to_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_file_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let add = |name: &str| fs::write(folder.path().join(name), "x").unwrap();
        ["b.pth", "A.safetensors", "note.txt", "two.pth", "two.safetensors", "Case.pth", "case.pth"]
            .into_iter()
            .for_each(add);
        fs::create_dir(folder.path().join("folder.pth")).unwrap();
        let upscalers = Upscalers::new(Some(folder.path().to_path_buf()));
        assert_eq!(upscalers.names(), ["A", "Case", "b", "case", "two.pth", "two.safetensors"]);
        for (name, file) in [
            ("A", "A.safetensors"),
            ("a", "A.safetensors"),
            ("b.pth", "b.pth"),
            ("B.PTH", "b.pth"),
            ("two", "two.pth"),
            ("two.safetensors", "two.safetensors"),
            ("case", "case.pth"),
        ] {
            assert_eq!(upscalers.find(name).unwrap(), folder.path().join(file), "{name}");
        }
        let outside = folder.path().join("b.pth").display().to_string();
        for name in ["", ".", "..", "../b", "./b.pth", "folder", "note", "CASE", "b\0", &outside] {
            let error = upscalers.find(name).unwrap_err();
            assert!(error.message.contains("Lanczos, A, Case, b"), "{name}: {}", error.message);
        }
        add("new.pth");
        assert!(upscalers.find("new").is_ok() && Upscalers::default().names().is_empty());
        assert!(upscalers.open("new").is_err_and(|error| error.message.contains("`new`")));
    }
}
