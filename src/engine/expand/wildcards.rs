//! Files of wildcards.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::template::split_weight;
use crate::error::Field;
use crate::files::{near, open_regular};
use crate::pipeline::MAX_PROMPT_BYTES;

/// Maximum size of a file, and of all files of an expander, in bytes.
const MAX_FILE: usize = 1 << 20;
const MAX_FILES: usize = 16 << 20;
/// Maximum number of lines of a file.
const MAX_LINES: usize = 10_000;

/// The files of a folder, each read once.
pub(super) struct Wildcards {
    folder: Option<PathBuf>,
    lists: RefCell<HashMap<String, Rc<[Entry]>>>,
    bytes: Cell<usize>,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    /// The line number, from 1.
    pub line: usize,
    pub weight: f64,
    /// The template.
    pub text: String,
}

/// The reason why a wildcard cannot be used, and a hint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub what: String,
    pub hint: Option<String>,
}

impl From<String> for Refusal {
    fn from(what: String) -> Self {
        Self { what, hint: None }
    }
}

impl Wildcards {
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, lists: RefCell::default(), bytes: Cell::new(0) }
    }

    /// Returns the entries of a wildcard.
    ///
    /// Errors if there is no such file in the folder, or if it is too long or not text.
    pub fn get(&self, name: &str) -> Result<Rc<[Entry]>, Refusal> {
        let known = self.lists.borrow().get(name).map(Rc::clone);
        if let Some(known) = known {
            return Ok(known);
        }
        let read: Rc<[Entry]> = self.read(name)?.into();
        self.lists.borrow_mut().insert(name.to_string(), Rc::clone(&read));
        Ok(read)
    }

    fn read(&self, name: &str) -> Result<Vec<Entry>, Refusal> {
        let Some(folder) = &self.folder else {
            let hint = format!("name the folder with `{:#}`, or write `\\_` for `_`", Field::Wildcards);
            return Err(Refusal { what: format!("`__{name}__` has no folder of wildcards"), hint: Some(hint) });
        };
        let root =
            folder.canonicalize().map_err(|e| Refusal::from(format!("cannot open the folder of wildcards: {e}")))?;
        let is_plain = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
        let path = root.join(format!("{name}.txt"));
        let Some(real) = path.canonicalize().ok().filter(|_| is_plain) else {
            let hint = if is_plain { near_names(&root, &path) } else { None };
            return Err(Refusal { what: format!("there is no wildcard `__{name}__`"), hint });
        };
        if !real.starts_with(&root) {
            return Err(format!("the file of `__{name}__` is outside the folder of wildcards").into());
        }
        let cannot = |e: &dyn std::fmt::Display| format!("cannot read the file of `__{name}__`: {e}");
        let mut bytes = Vec::new();
        let file = open_regular(&real, "name an existing wildcard").map_err(|e| cannot(&e.what()))?;
        file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(|e| cannot(&e))?;
        if bytes.len() > MAX_FILE {
            return Err(format!("the file of `__{name}__` is longer than {} MiB", MAX_FILE >> 20).into());
        }
        self.bytes.set(self.bytes.get() + bytes.len());
        if self.bytes.get() > MAX_FILES {
            return Err(format!("the files of all wildcards are longer than {} MiB", MAX_FILES >> 20).into());
        }
        let text = str::from_utf8(&bytes).map_err(|e| cannot(&e))?;
        let entries = entries(text).map_err(|what| format!("`__{name}__`, {what}"))?;
        if entries.is_empty() {
            return Err(format!("the file of `__{name}__` has no entries").into());
        }
        Ok(entries)
    }
}

/// Returns the entries of a file: its lines, except blank ones and comments.
fn entries(text: &str) -> Result<Vec<Entry>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut entries = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        if line > MAX_LINES {
            return Err(format!("line {line}: a file has at most {MAX_LINES} lines"));
        }
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (weight, text) = split_weight(text).map_err(|what| format!("line {line}: {what}"))?;
        if text.len() > MAX_PROMPT_BYTES {
            return Err(format!("line {line}: an entry has at most {MAX_PROMPT_BYTES} bytes"));
        }
        entries.push(Entry { line, weight, text: text.to_string() });
    }
    Ok(entries)
}

/// Returns the hint that suggests wildcards with a similar name.
fn near_names(root: &Path, path: &Path) -> Option<String> {
    let name = |found: &PathBuf| {
        let is_inside = found.canonicalize().is_ok_and(|real| real.is_file() && real.starts_with(root));
        let name = found.strip_prefix(root).ok()?.to_str()?.strip_suffix(".txt")?;
        is_inside.then(|| PathBuf::from(format!("__{name}__")))
    };
    near::did_you_mean(&near::near(path).iter().filter_map(name).collect::<Vec<_>>())
}
