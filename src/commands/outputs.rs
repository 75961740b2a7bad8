//! The files that a run writes: their names, from the flags and from what is made.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flux::output::{NameFields, NameTemplate};
use flux::{Error, Result};

use crate::cli::{OutputArgs, TensorArgs};

/// The name of an image where none is given.
pub const DEFAULT_NAME: &str = "flux-{seed}.png";

/// The files that a run writes.
pub struct Outputs {
    /// One of each image; none where the image goes to standard output.
    pub images: Vec<PathBuf>,
    /// One of each image, where latents are wanted.
    pub latents: Vec<PathBuf>,
    /// Where text features are wanted.
    pub embeddings: Option<PathBuf>,
    /// Folders that are missing.
    pub folders: Vec<PathBuf>,
    /// Whether a file that is there stays.
    pub no_clobber: bool,
}

/// What the names of images are made of.
pub struct Named<'a> {
    pub seed: u64,
    pub count: usize,
    pub prompt: &'a str,
    pub model: &'a str,
}

impl Outputs {
    /// The files that the flags name; `default` is the template of a name where they name none, or a folder.
    ///
    /// Errors when a template has a field that there is not, or the seeds would exceed the largest one.
    pub fn of(output: &OutputArgs, tensors: &TensorArgs, default: &str, named: &Named<'_>) -> Result<Self> {
        let Named { seed, count, .. } = *named;
        let last = seed
            .checked_add(count as u64 - 1)
            .ok_or_else(|| Error::usage(format!("seed {seed} is too large for {count} images")).at("--seed"))?;
        let latents = tensors.save_latents.iter();
        let latents = latents.flat_map(|path| (seed..=last).map(move |seed| of_seed(path, seed, count))).collect();
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
        })
    }

    /// Makes the folders that are missing, which go again when nothing is in them at the end.
    ///
    /// Errors when one cannot be made.
    pub fn make_folders(&self) -> Result<MadeFolders> {
        let mut made = MadeFolders(Vec::new());
        for folder in &self.folders {
            let missing = folder.ancestors().take_while(|folder| *folder != Path::new("") && !folder.exists());
            made.0.extend(missing.map(Path::to_path_buf));
            fs::create_dir_all(folder).map_err(|e| {
                Error::new(format!("cannot make the folder: {e}"))
                    .at_path(folder)
                    .hint("name a folder that you may write to with `-o`")
            })?;
        }
        Ok(made)
    }
}

/// Folders that a run has made, the inner ones first.
pub struct MadeFolders(Vec<PathBuf>);

impl Drop for MadeFolders {
    fn drop(&mut self) {
        // One with files in it stays.
        self.0.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

/// The files of images, and folders that are missing.
fn images(output: Option<&Path>, default: &str, named: &Named<'_>) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let path = match output {
        None => PathBuf::from(default),
        Some(path) if is_folder(path, named.count) => path.join(default),
        Some(path) => path.to_path_buf(),
    };
    let makes_folders = output.is_some_and(|output| is_folder(output, named.count) || has_fields(output));
    // A name that is no text has no fields.
    let Some(text) = path.to_str() else {
        let images = (0..named.count as u64).map(|image| of_seed(&path, named.seed + image, named.count)).collect();
        return Ok((images, Vec::new()));
    };
    let template = NameTemplate::parse(text)?;
    let time = SystemTime::now();
    let image = |image: usize| {
        let seed = named.seed + image as u64;
        let fields = NameFields { seed, number: image + 1, index: 1, prompt: named.prompt, model: named.model, time };
        let path = PathBuf::from(template.fill(&fields));
        if template.tells_apart() { path } else { of_seed(&path, seed, named.count) }
    };
    let images: Vec<PathBuf> = (0..named.count).map(image).collect();
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

/// Whether a path is a folder, or is written as one: several images go into one that has no ending.
fn is_folder(path: &Path, count: usize) -> bool {
    let is_bare = count > 1 && path.extension().is_none() && !path.exists() && path.file_name().is_some();
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") || is_bare && !has_fields(path)
}

fn has_fields(path: &Path) -> bool {
    path.to_str().is_some_and(|text| NameTemplate::parse(text).is_ok_and(|template| template.has_fields()))
}

/// The file of one image of `count` whose file the user calls `path`: of several, each has its seed in the name.
fn of_seed(path: &Path, seed: u64, count: usize) -> PathBuf {
    if count == 1 {
        return path.to_path_buf();
    }
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{seed}"));
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
        let named = Named { seed, count: args.count as usize, prompt: "a Cat", model: "m" };
        let outputs = Outputs::of(&args.output, &args.draw.recipe.tensors, DEFAULT_NAME, &named);
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
        assert!(outputs("--count 2", u64::MAX).unwrap_err().contains("--seed"));
        assert!(outputs("-o {sede}.png", 7).unwrap_err().contains("no field"));
    }
}
