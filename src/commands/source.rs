//! A recipe to begin with: that of an image, or a file of JSON.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use flux::engine::{EmbeddedFiles, ImageRecipe, ModelRecipe, NUMERICS, OfImages, Recipe};
use flux::files::{digest, open_regular};
use flux::input::{self, is_stdin};
use flux::{Error, Result};

use crate::cli::SourceArgs;

/// The longest file of JSON that is read, in bytes.
const MAX_JSON: u64 = 16 << 20;

/// A recipe to begin with.
pub struct Source {
    pub recipe: Recipe,
    /// The file that it is read from.
    pub path: PathBuf,
    /// What made the image, where it is told.
    made: Option<ImageRecipe>,
    /// Files that need not be there.
    pub embedded: EmbeddedFiles,
    /// What somebody should know of where files were found.
    pub notes: Vec<String>,
    /// The names in the recipe of files that were found elsewhere.
    renamed: BTreeMap<String, String>,
}

impl Source {
    /// The recipe that the flags name, if they name one.
    ///
    /// Errors as [`Source::of_json`] and [`Source::of_image`].
    pub fn read(args: &SourceArgs) -> Result<Option<Self>> {
        match (&args.recipe, &args.config_from_metadata) {
            (Some(path), _) => Self::of_json(path).map(Some),
            (None, Some(path)) => Self::of_image(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// What an image says of itself.
    ///
    /// Errors when it cannot be read, or says nothing.
    pub fn of_image(path: &Path) -> Result<Self> {
        let json = input::said_by(path)?.recipe.ok_or_else(|| {
            Error::new("the image does not say how it was made")
                .at_path(path)
                .hint("only images of flux do: other programs leave out what makes an image again, also when they save one anew")
        })?;
        let made = ImageRecipe::of_json(&json).map_err(|e| e.at_path(path))?;
        Self::of(made, path)
    }

    /// A file of JSON: what `flux info --json IMAGE` prints, or the recipe in it alone.
    ///
    /// Errors when it cannot be read, or is neither.
    fn of_json(path: &Path) -> Result<Self> {
        let mut json = String::new();
        let file = open_regular(path, "name a file of JSON, as `flux info --json IMAGE` prints it")?;
        let wrong = |what: String| Error::usage(what).at_path(path).hint("`flux info --json IMAGE` prints a recipe");
        file.take(MAX_JSON + 1).read_to_string(&mut json).map_err(|e| wrong(format!("cannot read the recipe: {e}")))?;
        if json.len() as u64 > MAX_JSON {
            return Err(wrong(format!("the file is longer than {} MiB", MAX_JSON >> 20)));
        }
        let json = json.strip_prefix('\u{feff}').unwrap_or(&json);
        let value: serde_json::Value =
            serde_json::from_str(json).map_err(|e| wrong(format!("the recipe is no JSON: {e}")))?;
        if !value.is_object() {
            return Err(wrong("the recipe is no object of JSON".to_string()));
        }
        if value.get("recipe").is_some() {
            let made = ImageRecipe::of_json(json).map_err(|e| e.at_path(path))?;
            return Self::of(made, path);
        }
        let recipe = serde_json::from_str(json).map_err(|e| wrong(format!("the recipe cannot be read: {e}")))?;
        Ok(Self {
            recipe,
            path: path.to_path_buf(),
            made: None,
            embedded: EmbeddedFiles::new(),
            notes: Vec::new(),
            renamed: BTreeMap::new(),
        })
    }

    fn of(made: ImageRecipe, at: &Path) -> Result<Self> {
        let embedded = made.embedded_files().map_err(|e| e.at_path(at))?;
        let folder = at.parent().unwrap_or(Path::new("")).to_path_buf();
        let recipe = made.recipe.clone();
        let mut source = Self {
            recipe,
            path: at.to_path_buf(),
            made: Some(made),
            embedded,
            notes: Vec::new(),
            renamed: BTreeMap::new(),
        };
        source.find_files(&folder);
        Ok(source)
    }

    /// Finds the files that the recipe names: where it says, in the image, or beside the image.
    fn find_files(&mut self, folder: &Path) {
        let Self { recipe, made, embedded, notes, renamed, .. } = self;
        let digests = made.as_ref().map(|made| &made.digests);
        let mut find = |path: &mut PathBuf| {
            let name = path.to_string_lossy().into_owned();
            let digest = digests.and_then(|digests| digests.get(&name));
            let is_same = |path: &Path| digest.is_none() || digest::of_file(path).ok().as_ref() == digest;
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
                notes.push(format!("`{name}` is another file now: the one that the image carries is used"));
            }
        };
        recipe.inputs.iter_mut().for_each(&mut find);
        let others = [&mut recipe.mask, &mut recipe.noise, &mut recipe.latents, &mut recipe.embeddings];
        others.into_iter().flatten().for_each(&mut find);
        recipe.adapters.iter_mut().map(|used| &mut used.file).for_each(find);
    }

    /// The model that made it, where that is told.
    pub fn model(&self) -> Option<&ModelRecipe> {
        self.made.as_ref().map(|made| &made.model)
    }

    /// Which of the images of a file it is.
    pub fn of_images(&self) -> Option<OfImages> {
        self.made.as_ref().and_then(|made| made.of)
    }

    /// Which of the images of a batch it was, where it is made again as it was: alone it would be rounded otherwise.
    /// The images in front of it have the seeds below its own.
    pub fn of_batch(&self, recipe: &Recipe) -> Option<OfImages> {
        let made = self.made.as_ref()?;
        let batch = made.batch.filter(|_| made.of.is_none() && *recipe == self.recipe)?;
        let first = recipe.seed.checked_sub(batch.place as u64)?;
        first.checked_add(batch.count as u64 - 1).map(|_| batch)
    }

    /// That it was made in a batch, where it is not made in such a batch again and nothing was asked to be otherwise.
    pub fn lost_batch(&self, recipe: &Recipe, count: usize) -> Option<String> {
        let is_same = *recipe == self.recipe && self.made.as_ref()?.batch.is_some();
        let is_lost = is_same && (count > 1 || self.of_batch(recipe).is_none());
        is_lost.then(|| "the image was made in a batch that is not made again".to_string())
    }

    /// Errors where the recipe would read standard input again, whose bytes are gone.
    pub fn check_stdin(&self, recipe: &Recipe) -> Result<()> {
        let of_recipe = |file: &Path| self.recipe.files().any(|(_, own)| own == file);
        let gone =
            recipe.files().find(|(_, file)| is_stdin(file) && of_recipe(file) && !self.embedded.contains_key(*file));
        match gone {
            Some((field, _)) => Err(Error::usage(format!(
                "the image was made from standard input, whose bytes are not in it: name the file with `{field:#}`"
            ))
            .of(field)
            .hint("`--embed-inputs` puts them into the image")),
            None => Ok(()),
        }
    }

    /// What is not as it was when the image was made, where nobody asked for it: the image may not be the same.
    /// `digests` are those of the files that it is made from now, each with its name. With `exact` it counts, too, what
    /// somebody asked for, and what the image does not say.
    pub fn changes<'a>(
        &self,
        digests: impl Iterator<Item = (&'a str, &'a str)>,
        model: &ModelRecipe,
        machine: &str,
        exact: bool,
    ) -> Vec<String> {
        let Some(made) = &self.made else { return Vec::new() };
        let is_changed = |known: Option<&String>, digest: &str| known.map_or(exact, |known| known != digest);
        let is_changed_file = |(name, digest): &(&str, &str)| {
            let name = self.renamed.get(*name).map_or(*name, String::as_str);
            is_changed(made.digests.get(name), digest)
        };
        let files = digests
            .filter(is_changed_file)
            .map(|(name, _)| format!("`{name}` is another file than the image was made from"));
        let mut changes: Vec<String> = files.collect();
        let compares_model = exact || made.model.paths == model.paths;
        let is_other = |(name, digest): &(&String, &String)| is_changed(made.model.digests.get(*name), digest);
        changes.extend(model.digests.iter().filter(|part| compares_model && is_other(part)).map(|(name, _)| {
            format!("the {} of the model is another one than made the image", name.replace('_', " "))
        }));
        let asked = |model: &ModelRecipe| (model.quantize.clone(), model.precision, model.attention, model.kv);
        if exact && asked(&made.model) != asked(model) {
            changes.push("the image was made with weights or arithmetic of another kind".to_string());
        }
        if made.device != machine {
            changes.push(format!("the image was made on {}, and is made on {machine} now", made.device));
        }
        if made.numerics != NUMERICS {
            changes.push(format!("the image was made by flux {}, whose arithmetic rounds otherwise", made.flux));
        }
        changes
    }
}
