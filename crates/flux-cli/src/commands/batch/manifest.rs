//! The manifest of a folder: a JSON line for each generated image and each failed line.
//!
//! A line is appended in one write once the image file has its final name. If a run is killed in between, the image
//! still contains the key of its line, see [`Found::Unlisted`]. An image without a recipe contains no key, so its line
//! is appended first.
//!
//! A file counts as generated if a manifest records its digest. It may be replaced if it also contains the key of its
//! line: a manifest can record the digest of any file.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use flux::engine::{ImageRecipe, Recipe};
use flux::files::digest::sha256;
use flux::files::open_unlinked;
use flux::{Error, Result, input, metadata};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::inputs::{Digested, InputFile, Stamp, are_at};
use super::lines::MAX_FILE;
use super::place;
use crate::cli::Shard;

/// The file name of manifests; with shards it is `manifest-1-of-4.jsonl`.
const STEM: &str = "manifest";
const ENDING: &str = ".jsonl";

/// An image's entry in the manifest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Entry {
    /// The line number in the file, and `index`, the number among its non-empty lines. Both start at 1.
    pub line: usize,
    pub index: usize,
    /// The number of the image within its line, from 1.
    pub n: usize,
    /// The file name in the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// A hash of the request.
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The hash of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Time from the start of its batch until it was generated. `save_seconds` is the time to encode and write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_seconds: Option<f64>,
    /// The number of images in its batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The input files as they were read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, InputFile>,
    /// The requested recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Recipe>,
    /// Additional values of the line, such as table columns that are not recipe fields.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub meta: Map<String, Value>,
    /// The error if there is no image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
}

impl Entry {
    /// Creates the entry of an image that is not generated yet.
    pub fn new([line, index, n]: [usize; 3], key: String) -> Self {
        Self { line, index, n, key, ..Self::default() }
    }
}

/// The manifests of a folder, one of them open for writing.
pub struct Manifest {
    folder: PathBuf,
    /// Each manifest's last entry for each file. An entry in a shard's manifest can be older than one in the manifest
    /// of all lines.
    made: HashMap<String, Vec<Entry>>,
    /// `None` if the manifest is only read.
    file: Mutex<Option<File>>,
    /// The number of lines that could not be parsed.
    pub damaged: usize,
}

/// An image that a line requests.
pub struct Wanted<'a> {
    /// The file name in the folder.
    pub file: &'a str,
    /// A hash of the request.
    pub key: &'a str,
    pub recipe: &'a Recipe,
}

/// The state of an image's file in the folder.
#[derive(Debug)]
pub enum Found {
    Nothing,
    /// The requested image.
    Same,
    /// The requested image, missing from all manifests. It contains the key of its line and can be decoded.
    Unlisted,
    /// An image of this list from another recipe or input, with this digest.
    Older(String),
    /// A file that is not provably from this list.
    Foreign(Error),
}

impl Manifest {
    /// Reads the manifests of a folder.
    ///
    /// Errors if one cannot be read, is not a regular file, or is not a manifest.
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
            let text = text(&path)?;
            let (mut last, mut unread) = (HashMap::new(), 0);
            let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let mut entries = 0;
            for line in lines {
                match serde_json::from_slice::<Entry>(line) {
                    Ok(entry) => {
                        entries += 1;
                        if let Some(file) = entry.file.clone().filter(|_| entry.error.is_none()) {
                            last.insert(file, entry);
                        }
                    }
                    Err(_) => unread += 1,
                }
            }
            // The only line of a manifest may be truncated.
            if entries == 0 && unread > usize::from(!text.ends_with(b"\n")) {
                return Err(Error::new("the file is not a manifest of `flux batch`")
                    .at_path(&path)
                    .hint("move it, or name another folder"));
            }
            damaged += unread;
            last.into_iter().for_each(|(file, entry)| made.entry(file).or_default().push(entry));
        }
        Ok(Self { folder: folder.to_path_buf(), made, file: Mutex::new(None), damaged })
    }

    /// Opens a shard's manifest for writing, with a lock, and reads all manifests of the folder.
    ///
    /// Errors if another process is writing it, if it cannot be written, and as [`Manifest::read`].
    pub fn open(folder: &Path, shard: Shard) -> Result<Self> {
        let Shard { part, parts } = shard;
        let name = if parts == 1 { format!("{STEM}{ENDING}") } else { format!("{STEM}-{part}-of-{parts}{ENDING}") };
        let path = folder.join(name);
        let mut options = OpenOptions::new();
        let mut file =
            open_unlinked(&path, options.read(true).append(true).create(true)).map_err(|e| cannot_open(&path, &e))?;
        check_names(&file).map_err(|e| e.at_path(&path))?;
        lock(&file).map_err(|e| e.at_path(&path))?;
        let manifest = Self::read(folder)?;
        end_line(&mut file).map_err(|e| cannot_open(&path, &e))?;
        Ok(Self { file: Mutex::new(Some(file)), ..manifest })
    }

    /// Returns seeds and file names of existing images, by key, so that random seeds are reused.
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

    /// Returns the state of an image's file.
    pub fn find(&self, wanted: &Wanted<'_>) -> Found {
        let name = wanted.file;
        let bytes = match place::read(&self.folder, name) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Found::Nothing,
            Err(error) => return Found::Foreign(error),
        };
        let carried = carried_by(&bytes);
        let key = carried.as_ref().and_then(|carried| carried.key.as_deref());
        let digest = sha256(&bytes);
        let entries = self.made.get(name).map(Vec::as_slice).unwrap_or_default();
        // An image without a recipe has no key.
        let is_own =
            |entry: &&Entry| entry.sha256.as_deref() == Some(&digest) && key.is_none_or(|key| key == entry.key);
        let own = entries.iter().rfind(is_own);
        if let Some(entry) = own {
            let inputs = entry.inputs.iter().map(|(name, file)| (name.as_str(), Digested::Recorded(file)));
            let is_same = entry.key == wanted.key && are_at(wanted.recipe, inputs);
            if is_same {
                return Found::Same;
            }
            if key.is_some() {
                return Found::Older(digest);
            }
        }
        let is_unlisted = |carried: &ImageRecipe| {
            let inputs = carried.digests.iter().map(|(name, digest)| (name.as_str(), Digested::Carried(digest)));
            key == Some(wanted.key) && are_at(wanted.recipe, inputs) && input::read_bytes(&bytes).is_ok()
        };
        if entries.is_empty() && carried.as_ref().is_some_and(is_unlisted) {
            return Found::Unlisted;
        }
        let why = match own {
            Some(_) => ": it has no recipe, and its prompt or an input has changed",
            None if entries.is_empty() => "",
            None => ": it was changed later",
        };
        let error = place::not_ours(name, &format!("exists, but is not the image that this list generates{why}"));
        Found::Foreign(error.hint_instead("move it, name another folder, or overwrite it with `--force`"))
    }

    /// Adds the entry of an image that is [`Found::Unlisted`].
    ///
    /// Errors if the image cannot be read, or the manifest cannot be written.
    pub fn adopt(&self, entry: Entry, name: &str) -> Result<()> {
        let gone = || Error::new(format!("`{name}` no longer exists"));
        let bytes = place::read(&self.folder, name)?.ok_or_else(gone)?;
        let carried = carried_by(&bytes).ok_or_else(gone)?;
        let input = |(name, digest): (String, String)| {
            let stamp = Stamp::from_name(&name)?;
            Some((name, InputFile { digest, stamp }))
        };
        self.append(&Entry {
            sha256: Some(sha256(&bytes)),
            bytes: Some(bytes.len() as u64),
            seed: Some(carried.recipe.seed),
            inputs: carried.digests.into_iter().filter_map(input).collect(),
            ..entry
        })
    }

    /// Appends a line in one write.
    ///
    /// Errors if it cannot be written.
    pub fn append(&self, entry: &Entry) -> Result<()> {
        let failed = |e: String| {
            Error::new(format!("cannot write the manifest: {e}"))
                .at_path(&self.folder)
                .hint("check that the disk is not full")
        };
        let mut line = serde_json::to_vec(entry).map_err(|e| failed(e.to_string()))?;
        line.push(b'\n');
        let mut file = self.file.lock();
        file.as_mut().map_or(Ok(()), |file| file.write_all(&line)).map_err(|e| failed(e.to_string()))
    }
}

/// Reads the bytes of a manifest.
fn text(path: &Path) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    open_unlinked(path, OpenOptions::new().read(true))
        .and_then(|file| file.take(MAX_FILE as u64 + 1).read_to_end(&mut text))
        .map_err(|e| cannot_open(path, &e))?;
    if text.len() > MAX_FILE {
        return Err(Error::new(format!("the manifest is longer than {} MiB", MAX_FILE >> 20))
            .at_path(path)
            .hint("name another folder"));
    }
    Ok(text)
}

/// Ends a last line that was truncated by a full disk.
fn end_line(file: &mut File) -> io::Result<()> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    if last == *b"\n" { Ok(()) } else { file.write_all(b"\n") }
}

/// Errors if a manifest has hard links, because appending would change the other file, too.
fn check_names(file: &File) -> Result<()> {
    if file.metadata().is_ok_and(|found| std::os::unix::fs::MetadataExt::nlink(&found) > 1) {
        return Err(Error::new("the manifest has other hard links, which would change with it")
            .hint("replace it with a copy, as with `cp manifest.jsonl copy && mv copy manifest.jsonl`"));
    }
    Ok(())
}

/// Locks a manifest until its file is closed, which includes the end of the process.
///
/// Errors if another process has locked it. A file system without locks is not an error.
fn lock(file: &File) -> Result<()> {
    if rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        == Err(rustix::io::Errno::WOULDBLOCK)
    {
        return Err(Error::new("another `flux batch` is writing to this folder")
            .hint("wait for it, stop it, or name another folder; parts of a list (`--shard`) can run in parallel"));
    }
    Ok(())
}

fn cannot_open(path: &Path, e: &io::Error) -> Error {
    Error::new(format!("cannot open the manifest: {e}")).at_path(path).hint("name a folder that you can write to")
}

/// Returns the recipe in an image.
fn carried_by(bytes: &[u8]) -> Option<ImageRecipe> {
    ImageRecipe::from_json(&metadata::said_by(bytes).ok()?.recipe?).ok()
}

#[cfg(test)]
mod tests {
    use flux::metadata::Metadata;
    use flux::output::{ImageFormat, encode};
    use flux::rgb::Rgb;

    use super::*;

    fn whole(folder: &Path) -> Manifest {
        Manifest::open(folder, Shard { part: 1, parts: 1 }).unwrap()
    }

    /// Returns the state of an image's file in one word.
    fn found(manifest: &Manifest, file: &str, key: &str) -> &'static str {
        word(&manifest.find(&Wanted { file, key, recipe: &Recipe::default() }))
    }

    /// An image that contains a key.
    fn image(key: &str) -> Vec<u8> {
        let rgb = Rgb { width: 16, height: 16, bytes: vec![7; 16 * 16 * 3] };
        let made = ImageRecipe { key: Some(key.to_string()), ..ImageRecipe::default() };
        encode(&rgb, ImageFormat::Png, &Metadata { recipe: Some(made.to_json()), ..Metadata::default() }).unwrap()
    }

    fn named(file: &str, key: &str) -> Entry {
        Entry { file: Some(file.to_string()), ..Entry::new([1, 1, 1], key.to_string()) }
    }

    fn entry(file: &str, key: &str) -> Entry {
        let bytes = image(key);
        Entry { sha256: Some(sha256(&bytes)), bytes: Some(bytes.len() as u64), ..named(file, key) }
    }

    /// The state in one word.
    fn word(found: &Found) -> &'static str {
        match found {
            Found::Nothing => "nothing",
            Found::Same => "same",
            Found::Unlisted => "unlisted",
            Found::Older(_) => "older",
            Found::Foreign(_) => "foreign",
        }
    }

    #[test]
    fn what_was_made_is_known_again_unless_the_file_or_its_recipe_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = whole(folder.path());
        for file in ["a.png", "gone.png"] {
            manifest.append(&entry(file, "key")).unwrap();
        }
        let failed = Entry { error: Some("bad".into()), ..entry("failed.png", "other") };
        manifest.append(&failed).unwrap();
        fs::write(folder.path().join("a.png"), image("key")).unwrap();
        fs::write(folder.path().join("failed.png"), image("other")).unwrap();
        fs::write(folder.path().join("foreign.png"), "foreign").unwrap();
        let manifest = Manifest::open(folder.path(), Shard { part: 2, parts: 3 }).unwrap();
        for (file, key, expected) in [
            ("a.png", "key", "same"),
            ("a.png", "other", "older"),
            ("gone.png", "key", "nothing"),
            ("b.png", "key", "nothing"),
            ("failed.png", "key", "foreign"),
            ("foreign.png", "key", "foreign"),
        ] {
            assert_eq!(found(&manifest, file, key), expected, "{file} {key}");
        }
        assert!(folder.path().join("manifest-2-of-3.jsonl").exists());
    }

    #[test]
    fn an_image_without_a_recipe_is_known_by_its_digest_alone() {
        let folder = tempfile::tempdir().unwrap();
        let rgb = Rgb { width: 16, height: 16, bytes: vec![7; 16 * 16 * 3] };
        let bytes = encode(&rgb, ImageFormat::Png, &Metadata::default()).unwrap();
        let manifest = whole(folder.path());
        manifest.append(&Entry { sha256: Some(sha256(&bytes)), ..named("a.png", "key") }).unwrap();
        fs::write(folder.path().join("a.png"), &bytes).unwrap();
        fs::write(folder.path().join("b.png"), &bytes).unwrap();
        let manifest = Manifest::read(folder.path()).unwrap();
        let states = [("a.png", "key"), ("a.png", "other"), ("b.png", "key")];
        assert_eq!(states.map(|(file, key)| found(&manifest, file, key)), ["same", "foreign", "foreign"]);
        fs::write(folder.path().join("a.png"), [&bytes[..], b" "].concat()).unwrap();
        assert_eq!(found(&manifest, "a.png", "key"), "foreign");
    }

    #[test]
    fn an_input_that_has_changed_makes_another_image() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("input.png");
        fs::write(&input, "one").unwrap();
        let digest = flux::files::digest::hash_bytes(b"one");
        let file = InputFile { digest, stamp: Stamp::new(std::slice::from_ref(&input)).unwrap() };
        let inputs = BTreeMap::from([(input.display().to_string(), file)]);
        whole(folder.path()).append(&Entry { inputs, ..entry("a.png", "key") }).unwrap();
        fs::write(folder.path().join("a.png"), image("key")).unwrap();
        let recipe = Recipe { inputs: vec![input.clone()], ..Recipe::default() };
        let wanted = Wanted { file: "a.png", key: "key", recipe: &recipe };
        let found = || word(&whole(folder.path()).find(&wanted));
        assert_eq!(found(), "same");
        File::options().append(true).open(&input).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(found(), "same", "a new time alone is not a change");
        fs::write(&input, "two").unwrap();
        assert_eq!(found(), "older");
        fs::remove_file(&input).unwrap();
        assert_eq!(found(), "older");
    }

    #[test]
    fn the_manifest_that_means_the_file_counts_among_several() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.png"), image("new")).unwrap();
        whole(folder.path()).append(&entry("a.png", "old")).unwrap();
        let part = Manifest::open(folder.path(), Shard { part: 1, parts: 2 }).unwrap();
        part.append(&entry("a.png", "new")).unwrap();
        let manifest = Manifest::read(folder.path()).unwrap();
        assert_eq!(["new", "old"].map(|key| found(&manifest, "a.png", key)), ["same", "older"]);
    }

    #[test]
    fn an_image_without_a_line_counts_if_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        let manifest = whole(folder.path());
        fs::write(&path, image("key")).unwrap();
        assert_eq!(found(&manifest, "a.png", "key"), "unlisted");
        manifest.adopt(named("a.png", "key"), "a.png").unwrap();
        assert_eq!(found(&Manifest::read(folder.path()).unwrap(), "a.png", "key"), "same");
        for bytes in [&image("key")[..image("key").len() - 30], &image("older")] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(found(&manifest, "a.png", "key"), "foreign");
        }
    }

    #[test]
    fn a_line_that_was_cut_off_is_told_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manifest.jsonl");
        fs::write(&path, "{\"line\": 1, \"ind").unwrap();
        fs::write(folder.path().join("a.png"), image("key")).unwrap();
        let manifest = whole(folder.path());
        assert_eq!(manifest.damaged, 1);
        manifest.append(&entry("a.png", "key")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
        drop(manifest);
        assert_eq!(found(&whole(folder.path()), "a.png", "key"), "same");
    }

    #[test]
    fn a_manifest_is_a_regular_file_of_this_program_that_one_process_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manifest.jsonl");
        let refused = || Manifest::open(folder.path(), Shard { part: 1, parts: 1 }).is_err();
        let mine = folder.path().join("mine.txt");
        fs::write(&mine, "{}\nmine\n").unwrap();
        let before = fs::read(&mine).unwrap();
        for link in [|a: &Path, b: &Path| std::os::unix::fs::symlink(a, b), |a: &Path, b: &Path| fs::hard_link(a, b)] {
            link(&mine, &path).unwrap();
            assert!(refused());
            fs::remove_file(&path).unwrap();
        }
        fs::copy(&mine, &path).unwrap();
        assert!(refused() && fs::read(&path).unwrap() == before && fs::read(&mine).unwrap() == before);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(refused());
        fs::remove_dir(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(refused());
        fs::remove_file(&path).unwrap();
        let first = whole(folder.path());
        assert!(refused());
        drop(first);
        assert!(!refused());
    }
}
