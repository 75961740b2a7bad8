//! The files that a run writes, named by flags and by properties of the images.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flux::engine::expand::Words;
use flux::output::{Encoding, ImageFormat, NameFields, NameTemplate};
use flux::{Error, Result};

use super::create_folder;
use crate::cli::{OutputArgs, TensorArgs};

/// The default name of an image.
pub const DEFAULT_NAME: &str = "flux-{seed}.png";

/// The files that a run writes.
pub struct Outputs {
    /// A file for each image; empty if the image goes to standard output.
    pub images: Vec<PathBuf>,
    /// A file for each image, if latents are saved.
    pub latents: Vec<PathBuf>,
    /// The file of text features, if they are saved.
    pub embeddings: Option<PathBuf>,
    /// Folders to create.
    pub folders: Vec<PathBuf>,
    /// Never overwrite an existing file.
    pub no_clobber: bool,
    /// The requested encoding.
    pub encoding: Encoding,
}

/// The values of the fields in name templates.
pub struct Named<'a> {
    pub seed: u64,
    pub count: usize,
    pub prompt: &'a str,
    /// The words of each image, if images have prompts of their own.
    pub words: &'a [Words],
    pub model: &'a str,
}

impl Named<'_> {
    /// Returns the prompt and the seed of an image.
    fn image(&self, image: usize) -> (&str, u64) {
        match self.words.get(image) {
            Some(Words { prompt, seed }) => (prompt, *seed),
            None => (self.prompt, self.seed + image as u64),
        }
    }

    /// Returns the number that distinguishes the name of each image: its seed, or if images share seeds its number.
    fn suffixes(&self) -> Vec<u64> {
        let seeds: Vec<_> = (0..self.count).map(|image| self.image(image).1).collect();
        if is_distinct(&seeds) { seeds } else { (1..=self.count as u64).collect() }
    }
}

impl Outputs {
    /// Returns the files that the flags name. `default` is the name template if the flags name none, or only a folder.
    ///
    /// Errors when a template has an unknown field, or the seeds would overflow.
    pub fn new(output: &OutputArgs, tensors: &TensorArgs, default: &str, named: &Named<'_>) -> Result<Self> {
        let Named { seed, count, .. } = *named;
        if seed.checked_add(count as u64 - 1).is_none() {
            return Err(Error::usage(format!("seed {seed} is too large for {count} images")).at("--seed"));
        }
        let suffixes = named.suffixes();
        let latents = tensors.save_latents.iter();
        let latents =
            latents.flat_map(|path| suffixes.iter().map(|suffix| with_suffix(path, *suffix, count))).collect();
        let encoding = output.encoding();
        let default = &*in_format(default, encoding);
        let (images, folders) = if output.to_stdout() {
            (Vec::new(), Vec::new())
        } else {
            images(output.path().as_deref(), default, named)?
        };
        Ok(Self {
            images,
            latents,
            embeddings: tensors.save_embeddings.clone(),
            folders,
            no_clobber: output.no_clobber,
            encoding,
        })
    }

    /// Creates missing folders, which are removed again on drop if they are empty.
    ///
    /// Errors when a folder cannot be created.
    pub fn make_folders(&self) -> Result<MadeFolders> {
        let mut made = MadeFolders(Vec::new());
        for folder in &self.folders {
            let missing = folder.ancestors().take_while(|folder| *folder != Path::new("") && !folder.exists());
            made.0.extend(missing.map(Path::to_path_buf));
            create_folder(folder)?;
        }
        Ok(made)
    }
}

/// Folders that a run created, inner ones first.
pub struct MadeFolders(Vec<PathBuf>);

impl Drop for MadeFolders {
    fn drop(&mut self) {
        // Fails for folders with files in them, which stay.
        self.0.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

/// Returns the name template with the extension of the requested format. A quality implies JPEG.
fn in_format(default: &str, encoding: Encoding) -> Cow<'_, str> {
    let format = encoding.format.or(encoding.quality.map(|_| ImageFormat::Jpeg));
    let is_other = |format: &ImageFormat| ImageFormat::from_path(Path::new(default)).is_ok_and(|own| own != *format);
    match (format.filter(is_other), default.rsplit_once('.')) {
        (Some(format), Some((stem, _))) => Cow::Owned(format!("{stem}.{}", format.ending())),
        _ => Cow::Borrowed(default),
    }
}

/// Returns the files of the images, and the folders to create.
fn images(output: Option<&Path>, default: &str, named: &Named<'_>) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let path = match output {
        None => PathBuf::from(default),
        Some(path) if is_folder(path, named.count) => path.join(default),
        Some(path) => path.to_path_buf(),
    };
    let makes_folders = output.is_some_and(|output| is_folder(output, named.count) || has_fields(output));
    // A name that is not UTF-8 cannot have fields.
    let Some(text) = path.to_str() else {
        let suffixes = named.suffixes().into_iter();
        let images = suffixes.map(|suffix| with_suffix(&path, suffix, named.count)).collect();
        return Ok((images, Vec::new()));
    };
    let template = NameTemplate::parse(text)?;
    let time = SystemTime::now();
    let image = |image: usize| {
        let ((prompt, seed), model) = (named.image(image), named.model);
        let fields = NameFields { seed, number: image + 1, index: 1, prompt, model, time, columns: &[] };
        PathBuf::from(template.fill(&fields))
    };
    let mut images: Vec<PathBuf> = (0..named.count).map(image).collect();
    if !template.distinguishes_images() || !is_distinct(&images) {
        let suffixed = images.iter().zip(named.suffixes());
        images = suffixed.map(|(path, suffix)| with_suffix(path, suffix, named.count)).collect();
    }
    let mut folders = Vec::new();
    if makes_folders {
        for folder in images.iter().filter_map(|image| image.parent()).filter(|folder| !folder.exists()) {
            if folders.last().is_none_or(|last| last != folder) {
                folders.push(folder.to_path_buf());
            }
        }
    }
    Ok((images, folders))
}

/// Returns `true` if a path is a folder or looks like one. For several images this includes a name without extension.
fn is_folder(path: &Path, count: usize) -> bool {
    let is_bare = count > 1 && path.extension().is_none() && !path.exists() && path.file_name().is_some();
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") || is_bare && !has_fields(path)
}

fn is_distinct<T: Eq + Hash>(values: &[T]) -> bool {
    values.iter().collect::<HashSet<_>>().len() == values.len()
}

fn has_fields(path: &Path) -> bool {
    path.to_str().is_some_and(|text| NameTemplate::parse(text).is_ok_and(|template| template.has_fields()))
}

/// Returns the file of one of `count` images. With several images, the suffix is appended to the name.
fn with_suffix(path: &Path, suffix: u64, count: usize) -> PathBuf {
    if count == 1 {
        return path.to_path_buf();
    }
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{suffix}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn outputs(line: &str, seed: u64) -> std::result::Result<Vec<PathBuf>, String> {
        let cli = Cli::try_parse_from(format!("flux -p x {line}").split_whitespace()).unwrap();
        let args = cli.generate;
        let named = Named { seed, count: args.count as usize, prompt: "a Cat", words: &[], model: "m" };
        let outputs = Outputs::new(&args.output, &args.draw.recipe.tensors, DEFAULT_NAME, &named);
        outputs.map(|outputs| outputs.images).map_err(|e| e.to_string())
    }

    #[test]
    fn several_images_have_names_of_their_own() {
        let paths = |names: &[&str]| Ok(names.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(outputs("", 7), paths(&["flux-7.png"]));
        assert_eq!(outputs("-o a.b/out.x.png", 7), paths(&["a.b/out.x.png"]));
        assert_eq!(outputs("-o a.b/out.x.png -n 2", 7), paths(&["a.b/out.x-7.png", "a.b/out.x-8.png"]));
        assert_eq!(outputs("-o none/ -n 2", 7), paths(&["none/flux-7.png", "none/flux-8.png"]));
        assert_eq!(outputs("-o none -n 2", 7), paths(&["none/flux-7.png", "none/flux-8.png"]), "a folder");
        assert_eq!(outputs("-o none", 7), paths(&["none"]), "which has no format");
        assert_eq!(outputs("-o {n}-{prompt}.png -n 2", 7), paths(&["1-a-cat.png", "2-a-cat.png"]));
        assert_eq!(outputs("-o {prompt}.png -n 2", 7), paths(&["a-cat-7.png", "a-cat-8.png"]));
        assert_eq!(
            outputs("--count 2", u64::MAX - 1),
            paths(&["flux-18446744073709551614.png", "flux-18446744073709551615.png"])
        );
        assert_eq!(outputs("--format webp", 7), paths(&["flux-7.webp"]));
        assert_eq!(outputs("--format jpg -o none/ -n 2", 7), paths(&["none/flux-7.jpg", "none/flux-8.jpg"]));
        assert_eq!(outputs("--quality 80", 7), paths(&["flux-7.jpg"]));
        assert_eq!(outputs("--format webp -o a.png", 7), paths(&["a.png"]), "which is refused when it is opened");
        assert!(outputs("--count 2", u64::MAX).unwrap_err().contains("--seed"));
        assert!(outputs("-o {sede}.png", 7).unwrap_err().contains("unknown field"));
    }
}
