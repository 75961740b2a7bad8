//! The manifest of a folder: a line of JSON for each image that was made, and for each line that failed.
//!
//! A line is appended in one write once its image has its name. What is in the folder of a line that was killed in
//! between says itself what it is, see [`Manifest::adopt`].

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use flux::engine::{ImageRecipe, Recipe};
use flux::files::adapter;
use flux::files::digest::{self, sha256};
use flux::{Error, Result, input};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::Shard;
use crate::commands::names;

/// How manifests are called: of a part of the lines it is `manifest-1-of-4.jsonl`.
const STEM: &str = "manifest";
const ENDING: &str = ".jsonl";

/// What the manifest says of an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// The line of the file, and which of the lines that ask for something it is, both from 1.
    pub line: usize,
    pub index: usize,
    /// Which of the images of the line it is, from 1.
    pub n: usize,
    /// The name in the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// A hash of what was asked for.
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// From the beginning of its batch until it was made, and to encode and write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_seconds: Option<f64>,
    /// Images that were made at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The files that it was made from, as they were.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, InputFile>,
    /// What was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Recipe>,
    /// Why there is no image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
}

impl Entry {
    /// What is known of an image of a line, by [line, index, n], before anything is made.
    pub fn new([line, index, n]: [usize; 3], key: String) -> Self {
        Self {
            line,
            index,
            n,
            file: None,
            key,
            seed: None,
            sha256: None,
            bytes: None,
            seconds: None,
            save_seconds: None,
            batch: None,
            device: None,
            inputs: BTreeMap::new(),
            recipe: None,
            error: None,
        }
    }
}

/// A file that an image was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    pub digest: String,
    #[serde(flatten)]
    pub stamp: Stamp,
}

/// Those of the files that an image is made from, by their names in its recipe.
pub type Stamps = BTreeMap<String, Stamp>;

/// The length of a file and the time of its last change, by which it is known again without being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    bytes: u64,
    modified_ns: u64,
}

impl InputFile {
    /// Whether what a recipe calls `name` is still this file.
    fn is_at(&self, name: &str) -> bool {
        let Some(files) = files_of(name) else { return false };
        Stamp::of(&files) == Some(self.stamp) || digest::of_paths(&files).is_ok_and(|now| now == self.digest)
    }
}

impl Stamp {
    /// That of what a recipe calls `name`, as it is now.
    pub fn of_named(name: &str) -> Option<Self> {
        Self::of(&files_of(name)?)
    }

    /// Of files that belong together.
    fn of(files: &[PathBuf]) -> Option<Self> {
        let mut stamp = Self { bytes: 0, modified_ns: 0 };
        for file in files {
            let found = file.metadata().ok()?;
            let time = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            stamp.bytes += found.len();
            stamp.modified_ns = stamp.modified_ns.max(since.as_nanos() as u64);
        }
        Some(stamp)
    }
}

/// The file that a recipe names by its path; of an adapter, which may have a name or a folder, also its config.
fn files_of(name: &str) -> Option<Vec<PathBuf>> {
    let path = Path::new(name);
    let path = if path.exists() { path.to_path_buf() } else { names::adapter_at(path).ok()? };
    let may_be_adapter = path.is_dir() || path.extension().is_some_and(|ending| ending != "png");
    let files = may_be_adapter.then(|| adapter::files_of(&path)).flatten();
    files.or_else(|| path.is_file().then(|| vec![path]))
}

/// The manifests of a folder, and the one that is written.
pub struct Manifest {
    folder: PathBuf,
    /// What each manifest said last of each file: that of a part of the lines may be older than that of all.
    made: HashMap<String, Vec<Entry>>,
    /// None where it is only read.
    file: Mutex<Option<File>>,
    /// Lines that could not be read.
    pub damaged: usize,
}

/// What is in the folder in place of an image.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// The image that is asked for.
    Same,
    /// An image of this list that another recipe made.
    Older,
    /// Something that the list did not make.
    Foreign,
}

impl Manifest {
    /// Reads the manifests of a folder.
    ///
    /// Errors when one cannot be read.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .map_err(|e| cannot_open(folder, &e))?
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with(STEM) && name.ends_with(ENDING))
            .collect();
        names.sort();
        let (mut made, mut damaged) = (HashMap::<String, Vec<Entry>>::new(), 0);
        for name in names {
            let path = folder.join(name);
            let text = fs::read(&path).map_err(|e| cannot_open(&path, &e))?;
            let mut last = HashMap::new();
            for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                match serde_json::from_slice::<Entry>(line) {
                    Ok(entry) => {
                        if let Some(file) = entry.file.clone().filter(|_| entry.error.is_none()) {
                            last.insert(file, entry);
                        }
                    }
                    Err(_) => damaged += 1,
                }
            }
            last.into_iter().for_each(|(file, entry)| made.entry(file).or_default().push(entry));
        }
        Ok(Self { folder: folder.to_path_buf(), made, file: Mutex::new(None), damaged })
    }

    /// Opens the manifest of a part of the lines, to be written.
    ///
    /// Errors when it cannot be.
    pub fn open(self, shard: Shard) -> Result<Self> {
        let Shard { part, parts } = shard;
        let name = if parts == 1 { format!("{STEM}{ENDING}") } else { format!("{STEM}-{part}-of-{parts}{ENDING}") };
        let path = self.folder.join(name);
        let open = || {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
            // A disk that was full may have cut the last line.
            if file.seek(SeekFrom::End(0))? > 0 {
                let mut last = [0];
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
                if last != *b"\n" {
                    file.write_all(b"\n")?;
                }
            }
            Ok::<_, io::Error>(file)
        };
        let file = open().map_err(|e| cannot_open(&path, &e))?;
        Ok(Self { file: Mutex::new(Some(file)), ..self })
    }

    /// The seeds of images that are there, by what was asked for and the name of the file: those that were drawn at
    /// random are known again.
    pub fn seeds(&self) -> HashMap<String, Vec<(u64, String)>> {
        let mut seeds = HashMap::<String, Vec<(u64, String)>>::new();
        for (file, entry) in self.made.iter().flat_map(|(file, entries)| entries.iter().map(move |entry| (file, entry)))
        {
            if let Some(seed) = entry.seed {
                seeds.entry(entry.key.clone()).or_default().push((seed, file.clone()));
            }
        }
        seeds.values_mut().for_each(|seeds| seeds.sort());
        seeds
    }

    /// What is there of the image that `key` asks for, in the file `name`.
    pub fn find(&self, name: &str, key: &str) -> Found {
        let path = self.folder.join(name);
        let Ok(there) = fs::metadata(&path) else {
            return if fs::symlink_metadata(&path).is_ok() { Found::Foreign } else { Found::Nothing };
        };
        if !there.is_file() {
            return Found::Foreign;
        }
        match self.said_of(name, &path) {
            // A disk that went away leaves such files.
            _ if there.len() == 0 => Found::Older,
            Some(entry) if entry.bytes.is_some_and(|bytes| bytes != there.len()) => Found::Foreign,
            Some(entry) if entry.key != key => Found::Older,
            Some(entry) if entry.inputs.iter().all(|(name, file)| file.is_at(name)) => Found::Same,
            Some(_) => Found::Older,
            None => match said_by(&path) {
                Some(made) if made.key.as_deref() == Some(key) && are_at(&made.digests) => Found::Same,
                // The list wrote it, and was killed before it said so.
                Some(made) if made.key.is_some() => Found::Older,
                _ => Found::Foreign,
            },
        }
    }

    /// What the manifests say of a file; of several that say something, the one that means the file as it is.
    fn said_of(&self, name: &str, path: &Path) -> Option<&Entry> {
        let entries = self.made.get(name)?;
        let [first, others @ ..] = &entries[..] else { return None };
        if others.iter().all(|other| other.sha256 == first.sha256) {
            return entries.last();
        }
        let sum = fs::read(path).map(|bytes| sha256(&bytes)).ok();
        entries.iter().rev().find(|entry| entry.sha256 == sum)
    }

    /// Adds what is said of an image that is there and of which nothing is said yet.
    ///
    /// Errors when the image cannot be read, or the manifest not be written.
    pub fn adopt(&self, entry: Entry, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        if self.said_of(name, &path).is_some() {
            return Ok(());
        }
        let bytes = fs::read(&path).map_err(|e| Error::new(format!("cannot read the image: {e}")).at_path(&path))?;
        let made = said_by(&path);
        let seed = made.as_ref().map(|made| made.recipe.seed).or(entry.seed);
        let digests = made.map(|made| made.digests).unwrap_or_default();
        let input = |(name, digest): (String, String)| {
            let stamp = Stamp::of_named(&name)?;
            Some((name, InputFile { digest, stamp }))
        };
        let inputs = digests.into_iter().filter_map(input).collect();
        self.append(&Entry { sha256: Some(sha256(&bytes)), bytes: Some(bytes.len() as u64), seed, inputs, ..entry })
    }

    /// Appends a line in one write.
    ///
    /// Errors when it cannot be written.
    pub fn append(&self, entry: &Entry) -> Result<()> {
        let failed = |e: String| {
            Error::new(format!("the manifest cannot be written: {e}")).at_path(&self.folder).hint("is the disk full?")
        };
        let mut line = serde_json::to_vec(entry).map_err(|e| failed(e.to_string()))?;
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.as_mut().map_or(Ok(()), |file| file.write_all(&line)).map_err(|e| failed(e.to_string()))
    }
}

fn cannot_open(path: &Path, e: &io::Error) -> Error {
    Error::new(format!("the manifest cannot be opened: {e}")).at_path(path).hint("name a folder that you may write to")
}

/// Whether files that an image was made from are as they were, by their names in its recipe.
fn are_at(digests: &BTreeMap<String, String>) -> bool {
    let is_at = |files: Vec<PathBuf>, digest: &String| digest::of_paths(&files).is_ok_and(|now| now == *digest);
    digests.iter().all(|(name, digest)| files_of(name).is_some_and(|files| is_at(files, digest)))
}

fn said_by(path: &Path) -> Option<ImageRecipe> {
    let json = input::said_by(path).ok()?.recipe?;
    ImageRecipe::of_json(&json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(folder: &Path) -> Manifest {
        Manifest::read(folder).unwrap().open(Shard { part: 1, parts: 1 }).unwrap()
    }

    fn entry(file: &str, key: &str) -> Entry {
        Entry { file: Some(file.to_string()), ..Entry::new([1, 1, 1], key.to_string()) }
    }

    #[test]
    fn what_was_made_is_known_again_unless_the_file_or_its_recipe_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = whole(folder.path());
        manifest.append(&entry("a.png", "key")).unwrap();
        manifest.append(&entry("gone.png", "key")).unwrap();
        let failed = Entry { error: Some("bad".into()), ..entry("failed.png", "key") };
        manifest.append(&failed).unwrap();
        for name in ["a.png", "failed.png", "foreign.png"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let manifest = Manifest::read(folder.path()).unwrap().open(Shard { part: 2, parts: 3 }).unwrap();
        let found = |name: &str, key: &str| manifest.find(name, key);
        assert_eq!(found("a.png", "key"), Found::Same, "of another part of the lines too");
        assert_eq!(found("a.png", "other"), Found::Older);
        assert_eq!([found("gone.png", "key"), found("b.png", "key")], [Found::Nothing, Found::Nothing]);
        assert_eq!([found("failed.png", "key"), found("foreign.png", "key")], [Found::Foreign, Found::Foreign]);
        assert!(folder.path().join("manifest-2-of-3.jsonl").exists());
    }

    #[test]
    fn an_input_that_has_changed_makes_another_image() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("input.png");
        fs::write(&input, "one").unwrap();
        let file =
            InputFile { digest: digest::of_bytes(b"one"), stamp: Stamp::of(std::slice::from_ref(&input)).unwrap() };
        let inputs = BTreeMap::from([(input.display().to_string(), file)]);
        whole(folder.path()).append(&Entry { inputs, ..entry("a.png", "key") }).unwrap();
        fs::write(folder.path().join("a.png"), "image").unwrap();
        let found = || whole(folder.path()).find("a.png", "key");
        assert_eq!(found(), Found::Same);
        File::options().append(true).open(&input).unwrap().set_modified(UNIX_EPOCH).unwrap();
        assert_eq!(found(), Found::Same, "its time alone is no change");
        fs::write(&input, "two").unwrap();
        assert_eq!(found(), Found::Older);
        fs::remove_file(&input).unwrap();
        assert_eq!(found(), Found::Older);
    }

    #[test]
    fn of_several_manifests_the_one_that_means_the_file_is_heard() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.png"), "new").unwrap();
        let of = |key: &str, bytes: &str| Entry { sha256: Some(sha256(bytes.as_bytes())), ..entry("a.png", key) };
        whole(folder.path()).append(&of("old", "old")).unwrap();
        let part = Manifest::read(folder.path()).unwrap().open(Shard { part: 1, parts: 2 }).unwrap();
        part.append(&of("new", "new")).unwrap();
        let manifest = Manifest::read(folder.path()).unwrap();
        assert_eq!([manifest.find("a.png", "new"), manifest.find("a.png", "old")], [Found::Same, Found::Older]);
    }

    #[test]
    fn what_is_in_the_place_of_an_image_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = whole(folder.path());
        let path = folder.path().join("a.png");
        manifest.append(&Entry { bytes: Some(5), ..entry("a.png", "key") }).unwrap();
        let found = || Manifest::read(folder.path()).unwrap().find("a.png", "key");
        for (text, expected) in [("image", Found::Same), ("another", Found::Foreign), ("", Found::Older)] {
            fs::write(&path, text).unwrap();
            assert_eq!(found(), expected, "{text}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(found(), Found::Foreign);
    }

    #[test]
    fn a_line_that_was_cut_off_is_told_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manifest.jsonl");
        fs::write(&path, "{\"line\": 1, \"ind").unwrap();
        fs::write(folder.path().join("a.png"), "image").unwrap();
        let manifest = whole(folder.path());
        assert_eq!(manifest.damaged, 1);
        manifest.append(&entry("a.png", "key")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
        assert_eq!(whole(folder.path()).find("a.png", "key"), Found::Same);
    }
}
