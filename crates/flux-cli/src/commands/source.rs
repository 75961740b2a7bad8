//! Recipes to start from: an image's metadata or a JSON file.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use flux::engine::{EmbeddedFiles, ImageRecipe, ModelRecipe, NUMERICS, OfImages, Recipe};
use flux::files::{digest, open_regular};
use flux::input::{self, is_stdin};
use flux::metadata::Settings;
use flux::{Error, Result};

use super::foreign;
use crate::cli::SourceArgs;

/// Maximum size of a JSON file, in bytes.
const MAX_JSON: u64 = 16 << 20;

/// A recipe to start from, with its origin.
pub struct Source {
    pub recipe: Recipe,
    /// The file that the recipe was read from.
    pub path: PathBuf,
    /// The metadata of the image, if it has any.
    made: Option<ImageRecipe>,
    /// True if another program generated the image.
    is_foreign: bool,
    /// Input files that are embedded in the image.
    pub embedded: EmbeddedFiles,
    /// Notes about where files were found.
    pub notes: Vec<String>,
    /// The original names of files that were found elsewhere.
    renamed: BTreeMap<String, String>,
}

impl Source {
    /// Reads the recipe that the flags name, if any.
    ///
    /// Errors as [`Source::from_json`] and [`Source::from_image`].
    pub fn read(args: &SourceArgs) -> Result<Option<Self>> {
        match (&args.recipe, &args.config_from_metadata) {
            (Some(path), _) => Self::from_json(path).map(Some),
            (None, Some(path)) => Self::from_image(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Reads an image's metadata: its recipe, otherwise the settings of another program.
    ///
    /// Errors when the file cannot be read or has neither.
    pub fn from_image(path: &Path) -> Result<Self> {
        let said = input::said_by(path)?;
        if let Some(json) = &said.recipe {
            let made = ImageRecipe::from_json(json).map_err(|e| e.at_path(path))?;
            return Self::from_image_recipe(made, path);
        }
        let (recipe, notes) = Settings::read(&said).as_ref().and_then(foreign::recipe).ok_or_else(|| {
            Error::new("the image does not record how it was generated")
                .at_path(path)
                .hint("`flux info IMAGE` prints its metadata; pass the prompt itself: `flux \"a prompt\"`")
        })?;
        Ok(Self { notes, is_foreign: true, ..Self::from_recipe(recipe, path) })
    }

    /// Wraps a recipe without metadata.
    fn from_recipe(recipe: Recipe, path: &Path) -> Self {
        Self {
            recipe,
            path: path.to_path_buf(),
            made: None,
            is_foreign: false,
            embedded: EmbeddedFiles::new(),
            notes: Vec::new(),
            renamed: BTreeMap::new(),
        }
    }

    /// Reads a JSON file: the output of `flux info --json IMAGE`, or only the recipe in it.
    ///
    /// Errors when the file cannot be read or is neither.
    fn from_json(path: &Path) -> Result<Self> {
        let mut json = String::new();
        let file = open_regular(path, "name a JSON file, as printed by `flux info --json IMAGE`")?;
        let wrong = |what: String| Error::usage(what).at_path(path).hint("`flux info --json IMAGE` prints a recipe");
        file.take(MAX_JSON + 1).read_to_string(&mut json).map_err(|e| wrong(format!("cannot read the recipe: {e}")))?;
        if json.len() as u64 > MAX_JSON {
            return Err(wrong(format!("the file is longer than {} MiB", MAX_JSON >> 20)));
        }
        let json = json.strip_prefix('\u{feff}').unwrap_or(&json);
        let value: serde_json::Value =
            serde_json::from_str(json).map_err(|e| wrong(format!("the recipe is not valid JSON: {e}")))?;
        if !value.is_object() {
            return Err(wrong("the recipe is not a JSON object".to_string()));
        }
        if value.get("recipe").is_some() {
            let made = ImageRecipe::from_json(json).map_err(|e| e.at_path(path))?;
            return Self::from_image_recipe(made, path);
        }
        let recipe = serde_json::from_str(json).map_err(|e| wrong(format!("cannot read the recipe: {e}")))?;
        Ok(Self::from_recipe(recipe, path))
    }

    fn from_image_recipe(made: ImageRecipe, at: &Path) -> Result<Self> {
        let embedded = made.embedded_files().map_err(|e| e.at_path(at))?;
        let folder = at.parent().unwrap_or(Path::new("")).to_path_buf();
        let recipe = made.recipe.clone();
        let mut source = Self { made: Some(made), embedded, ..Self::from_recipe(recipe, at) };
        source.find_files(&folder);
        Ok(source)
    }

    /// Finds the recipe's files: at their path, embedded in the image, or next to the image.
    fn find_files(&mut self, folder: &Path) {
        let Self { recipe, made, embedded, notes, renamed, .. } = self;
        let digests = made.as_ref().map(|made| &made.digests);
        let mut find = |path: &mut PathBuf| {
            let name = path.to_string_lossy().into_owned();
            let digest = digests.and_then(|digests| digests.get(&name));
            let is_same = |path: &Path| digest.is_none() || digest::hash_file(path).ok().as_ref() == digest;
            if is_stdin(path) || path.is_dir() {
                return;
            }
            if path.exists() && is_same(path) {
                embedded.remove(path);
            } else if !embedded.contains_key(path) {
                let places = [folder.join(&*path), folder.join(path.file_name().unwrap_or_default())];
                if let Some(beside) = places.into_iter().find(|place| place.exists() && is_same(place)) {
                    notes.push(format!("`{name}` is read from `{}`", beside.display()));
                    renamed.insert(beside.to_string_lossy().into_owned(), name);
                    *path = beside;
                }
            } else if path.exists() {
                notes.push(format!("`{name}` is a different file now: the one embedded in the image is used"));
            }
        };
        recipe.images_mut().for_each(&mut find);
        let others = [&mut recipe.noise, &mut recipe.latents, &mut recipe.embeddings];
        others.into_iter().flatten().for_each(&mut find);
        recipe.adapters.iter_mut().map(|used| &mut used.file).for_each(find);
    }

    /// Returns the model that generated the image, if known.
    pub fn model(&self) -> Option<&ModelRecipe> {
        self.made.as_ref().map(|made| &made.model)
    }

    /// Returns the position of the image among the images of a file of latents or noise.
    pub fn position(&self) -> Option<OfImages> {
        self.made.as_ref().and_then(|made| made.of)
    }

    /// Returns the original batch of the image if it is reproduced unchanged: a single image would round differently.
    /// Earlier images of the batch have lower seeds.
    pub fn original_batch(&self, recipe: &Recipe) -> Option<OfImages> {
        let made = self.made.as_ref()?;
        let batch = made.batch.filter(|_| made.of.is_none() && *recipe == self.recipe)?;
        let first = recipe.seed.checked_sub(batch.place as u64)?;
        first.checked_add(batch.count as u64 - 1).map(|_| batch)
    }

    /// Returns a note if the image came from a batch, the recipe is unchanged, and the batch cannot be reproduced.
    pub fn lost_batch(&self, recipe: &Recipe, count: usize) -> Option<String> {
        let is_same = *recipe == self.recipe && self.made.as_ref()?.batch.is_some();
        let is_lost = is_same && (count > 1 || self.original_batch(recipe).is_none());
        is_lost.then(|| "the image was generated in a batch that is not reproduced".to_string())
    }

    /// Errors if the recipe reads standard input, whose bytes are not stored in the image.
    pub fn check_stdin(&self, recipe: &Recipe) -> Result<()> {
        let of_recipe = |file: &Path| self.recipe.files().any(|(_, own)| own == file);
        let gone =
            recipe.files().find(|(_, file)| is_stdin(file) && of_recipe(file) && !self.embedded.contains_key(*file));
        match gone {
            Some((field, _)) => Err(Error::usage(format!(
                "the image was generated from standard input, which it does not contain: name the file with `{field:#}`"
            ))
            .for_field(field)
            .hint("`--embed-inputs` embeds input files in the image")),
            None => Ok(()),
        }
    }

    /// Lists unrequested differences from the original run, after which the image may not be the same. `digests` are
    /// the names and digests of the files in use now. With `exact`, requested changes and facts missing from the
    /// metadata are listed, too.
    pub fn changes<'a>(
        &self,
        digests: impl Iterator<Item = (&'a str, &'a str)>,
        model: &ModelRecipe,
        machine: &str,
        exact: bool,
    ) -> Vec<String> {
        let Some(made) = &self.made else {
            let foreign = "the image was generated by another program".to_string();
            return if self.is_foreign && exact { vec![foreign] } else { Vec::new() };
        };
        let is_changed = |known: Option<&String>, digest: &str| known.map_or(exact, |known| known != digest);
        let is_changed_file = |(name, digest): &(&str, &str)| {
            let name = self.renamed.get(*name).map_or(*name, String::as_str);
            is_changed(made.digests.get(name), digest)
        };
        let files = digests
            .filter(is_changed_file)
            .map(|(name, _)| format!("`{name}` is not the file that the image was generated from"));
        let mut changes: Vec<String> = files.collect();
        let compares_model = exact || made.model.paths == model.paths;
        let is_other = |(name, digest): &(&String, &String)| is_changed(made.model.digests.get(*name), digest);
        changes.extend(model.digests.iter().filter(|part| compares_model && is_other(part)).map(|(name, _)| {
            format!("the {} of the model is not the one that generated the image", name.replace('_', " "))
        }));
        let asked = |model: &ModelRecipe| (model.quantize.clone(), model.precision, model.attention, model.kv);
        if exact && asked(&made.model) != asked(model) {
            changes.push("the image was generated with a different format of weights or arithmetic".to_string());
        }
        if made.device != machine {
            changes.push(format!("the image was generated on {}, and is now generated on {machine}", made.device));
        }
        if made.numerics != NUMERICS {
            changes.push(format!("the image was generated by flux {}, whose arithmetic rounds differently", made.flux));
        }
        changes
    }
}
