//! What someone may have meant by a path where nothing is.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The most names of a folder that are looked at, and the most that are told.
const MOST_NAMES: usize = 10_000;
const MOST_TOLD: usize = 3;
/// How like two names are at least, from 0 to 1, and by how much two may be apart of which one begins with the other.
const LEAST_LIKENESS: f64 = 0.7;
const LEAST_BEGINNING: usize = 3;
/// What a name loses by another ending.
const OTHER_ENDING: f64 = 0.2;

/// What is there with a name like that of `path`, nearest first. Where a folder of the path is not there, that is the
/// name which may be wrong.
pub fn near(path: &Path) -> Vec<PathBuf> {
    let there = |folder: &Path| folder == Path::new("") || folder.is_dir();
    let Some(folder) = path.ancestors().skip(1).find(|folder| there(folder)) else { return Vec::new() };
    let mut rest = path.strip_prefix(folder).unwrap_or(path).components();
    let Some(wrong) = rest.next() else { return Vec::new() };
    let rest = rest.as_path();
    let meant = |found: PathBuf| {
        let whole = found.join(rest);
        if rest != Path::new("") && whole.exists() { whole } else { found }
    };
    near_in(folder, wrong.as_os_str()).into_iter().map(meant).collect()
}

/// What is in `folder` with a name like `name`, nearest first.
pub fn near_in(folder: &Path, name: &OsStr) -> Vec<PathBuf> {
    // The folder of a name alone is `""`.
    let place = if folder == Path::new("") { Path::new(".") } else { folder };
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten().take(MOST_NAMES);
    nearest(entries.map(|entry| folder.join(entry.file_name())), name)
}

/// Those of `paths` whose names are like `name`, nearest first.
pub fn nearest(paths: impl IntoIterator<Item = PathBuf>, name: &OsStr) -> Vec<PathBuf> {
    let wanted = name.to_string_lossy().to_lowercase();
    let mut found: Vec<(u64, PathBuf)> = paths
        .into_iter()
        .filter_map(|path| {
            let likeness = likeness(&wanted, &path.file_name()?.to_string_lossy().to_lowercase())?;
            Some(((likeness * 1000.0) as u64, path))
        })
        .collect();
    found.sort_by(|(a, one), (b, other)| (Reverse(a), one).cmp(&(Reverse(b), other)));
    found.truncate(MOST_TOLD);
    found.into_iter().map(|(_, path)| path).collect()
}

/// How like two names are, if they are like each other.
fn likeness(wanted: &str, name: &str) -> Option<f64> {
    let stem = |name: &str| Path::new(name).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
    let (a, b): (String, String) = (stem(wanted), stem(name));
    let begins = a.len().min(b.len()) >= LEAST_BEGINNING && (a.starts_with(&b) || b.starts_with(&a));
    let likeness = strsim::normalized_damerau_levenshtein(wanted, name);
    let likeness = likeness.max(strsim::normalized_damerau_levenshtein(&a, &b) - OTHER_ENDING);
    if begins {
        Some(likeness.max(LEAST_LIKENESS))
    } else {
        Some(likeness).filter(|likeness| *likeness >= LEAST_LIKENESS)
    }
}

/// The hint for a path that a user gave and where nothing is: what is there with a name like it, else `otherwise`.
pub fn hint_for(path: &Path, otherwise: impl Into<String>) -> String {
    did_you_mean(&if path.exists() { Vec::new() } else { near(path) }).unwrap_or_else(|| otherwise.into())
}

/// The hint that names `paths`; none where there are none.
pub fn did_you_mean(paths: &[PathBuf]) -> Option<String> {
    let names: Vec<_> = paths.iter().map(|path| format!("`{}`", path.display())).collect();
    let (last, others) = names.split_last()?;
    let list = if others.is_empty() { last.clone() } else { format!("{} or {last}", others.join(", ")) };
    Some(format!("did you mean {list}?"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_that_are_near_are_found_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("models/klein-4b")).unwrap();
        for name in ["style.safetensors", "cat.png", "flux-2-klein-4b-fp8.safetensors", "x", "models/klein-4b/a.gguf"] {
            fs::write(at(name), "").unwrap();
        }
        for (wanted, found) in [
            ("stlye.safetensors", &["style.safetensors"][..]),
            ("style.safetensor", &["style.safetensors"]),
            ("Style", &["style.safetensors"]),
            ("cat.jpg", &["cat.png"]),
            ("kat.png", &["cat.png"]),
            ("flux-2-klein-4b.safetensors", &["flux-2-klein-4b-fp8.safetensors"]),
            ("model/klein-4b/a.gguf", &["models/klein-4b/a.gguf"]),
            ("modles/klein-9b", &["models"]),
            ("models/klein4b", &["models/klein-4b"]),
            ("models/klein-4b/none/b", &[]),
            ("dog.png", &[]),
            ("y", &[]),
        ] {
            let paths: Vec<_> = found.iter().map(|name| at(name)).collect();
            assert_eq!(near(&at(wanted)), paths, "{wanted}");
        }
        assert_eq!(near(Path::new("Cargo.tom"))[0], PathBuf::from("Cargo.toml"), "beside a name alone");
        assert_eq!(near(Path::new("/")), [""; 0].map(PathBuf::from));
        let hint = hint_for(&at("kat.png"), "none");
        assert_eq!(hint, format!("did you mean `{}`?", at("cat.png").display()));
        assert_eq!(
            (hint_for(&at("cat.png"), "none"), hint_for(&at("dog.png"), "none")),
            ("none".into(), "none".into())
        );
    }
}
