//! Suggestions for a path that does not exist: existing paths with a similar name.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use flux_base::error::{Error, Result};

/// The max number of names in a folder that are compared, and of suggestions.
const MAX_ENTRIES: usize = 10_000;
const MAX_LISTED: usize = 3;
/// The max number of files that a message names.
pub(crate) const MAX_NAMES: usize = 8;
/// The min likeness of similar names, from 0 to 1, and the min length of a name that is the beginning of another.
const MIN_LIKENESS: f64 = 0.7;
const MIN_BEGINNING: usize = 3;
/// The penalty for a different file extension.
const OTHER_ENDING: f64 = 0.2;

/// Returns the path of `name` below `folder`, ignoring the case of each path component; an exact match wins.
///
/// Errors if several entries differ from a component only by case.
pub fn ignoring_case(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    let mut at = folder.to_path_buf();
    for part in Path::new(name) {
        let exact = at.join(part);
        if exact.symlink_metadata().is_ok() {
            at = exact;
            continue;
        }
        let wanted = part.to_string_lossy().to_lowercase();
        let entries = std::fs::read_dir(&at).into_iter().flatten().flatten().take(MAX_ENTRIES);
        let mut same: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        same.retain(|name| name.to_string_lossy().to_lowercase() == wanted);
        same.sort();
        match &same[..] {
            [] => return Ok(None),
            [only] => at.push(only),
            [one, other, ..] => {
                let (one, other) = (one.display(), other.display());
                let part = part.display();
                return Err(Error::usage(format!("`{part}` may be `{one}` or `{other}`, which differ only in case"))
                    .at_path(&at)
                    .hint(format!("write the exact name, `{one}` or `{other}`")));
            }
        }
    }
    Ok(Some(at))
}

/// Returns existing paths with a name similar to that of `path`, nearest first. If a folder of the path does not exist,
/// the name of the folder is compared.
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

/// Returns the entries of `folder` with a name similar to `name`, nearest first.
pub fn near_in(folder: &Path, name: &OsStr) -> Vec<PathBuf> {
    // The parent of a bare file name is `""`.
    let place = if folder == Path::new("") { Path::new(".") } else { folder };
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten().take(MAX_ENTRIES);
    nearest(entries.map(|entry| folder.join(entry.file_name())), name)
}

/// Returns the paths with a name similar to `name`, nearest first.
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
    found.truncate(MAX_LISTED);
    found.into_iter().map(|(_, path)| path).collect()
}

/// Returns the likeness of two names, from 0 to 1; `None` if they are not similar.
fn likeness(wanted: &str, name: &str) -> Option<f64> {
    let stem = |name: &str| Path::new(name).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
    let (a, b): (String, String) = (stem(wanted), stem(name));
    let begins = a.len().min(b.len()) >= MIN_BEGINNING && (a.starts_with(&b) || b.starts_with(&a));
    let likeness = strsim::normalized_damerau_levenshtein(wanted, name);
    let likeness = likeness.max(strsim::normalized_damerau_levenshtein(&a, &b) - OTHER_ENDING);
    if begins { Some(likeness.max(MIN_LIKENESS)) } else { Some(likeness).filter(|likeness| *likeness >= MIN_LIKENESS) }
}

/// Returns the hint for a path that does not exist: similar paths if there are any, else `otherwise`.
pub fn hint_for(path: &Path, otherwise: impl Into<String>) -> String {
    did_you_mean(&if path.exists() { Vec::new() } else { near(path) }).unwrap_or_else(|| otherwise.into())
}

/// Returns the error of a path that does not exist, with the hint of [`hint_for`].
pub(crate) fn no_such(path: &Path, otherwise: impl Into<String>) -> Error {
    Error::new(format!("no such file or folder: `{}`", path.display())).hint(hint_for(path, otherwise))
}

/// Returns the first `max` names of a list, and the number of further names.
pub(crate) fn listed(names: impl ExactSizeIterator<Item = impl Display>, max: usize) -> String {
    let more = names.len().saturating_sub(max);
    let shown: Vec<String> = names.take(max).map(|name| format!("`{name}`")).collect();
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// Returns the hint that suggests `paths`; `None` if `paths` is empty.
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
        assert_eq!(near(Path::new("Cargo.tom"))[0], PathBuf::from("Cargo.toml"), "next to a bare name");
        assert_eq!(near(Path::new("/")), [""; 0].map(PathBuf::from));
        let hint = hint_for(&at("kat.png"), "none");
        assert_eq!(hint, format!("did you mean `{}`?", at("cat.png").display()));
        assert_eq!(
            (hint_for(&at("cat.png"), "none"), hint_for(&at("dog.png"), "none")),
            ("none".into(), "none".into())
        );
    }
}
