//! Templates of prompts: choices, and wildcards, which are files of choices.
//!
//! ```text
//! a {red|blue} __animal__, {1-2$$, $$0.5::oil|ink|{chalk|pencil}}
//! ```
//!
//! The grammar is a part of that of Dynamic Prompts. A *template* is the text with choices, a *prompt* is the text for
//! the model, and the *words* of an image are its prompt and its seed. JSON stays as it is, such as a table of boxes.
//! Start reading at [`Expander`].

mod template;
#[cfg(test)]
mod tests;
mod wildcards;
mod words;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use self::template::{Node, Place};
use self::wildcards::Wildcards;
use super::Recipe;
use crate::error::{Error, Result};

/// Maximum number of combinations of a template.
pub const MAX_COMBINATIONS: usize = 1000;

/// The way to expand templates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expansion {
    /// The folder of wildcards.
    pub wildcards: Option<PathBuf>,
    /// The seed of the words, in place of the seed of each image.
    pub seed: Option<u64>,
    /// `true` for all combinations in place of random words.
    pub all: bool,
}

/// The words of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words {
    /// The expanded prompt.
    pub prompt: String,
    /// The seed of the image.
    pub seed: u64,
}

impl Words {
    /// Returns a recipe with these words.
    pub fn recipe(&self, recipe: &Recipe) -> Recipe {
        Recipe { prompt: self.prompt.clone(), seed: self.seed, ..recipe.clone() }
    }

    /// Returns `true` if all images have the prompt of the recipe and consecutive seeds.
    pub fn are_plain(words: &[Self], recipe: &Recipe) -> bool {
        let is_plain = |(image, words): (usize, &Self)| {
            words.prompt == recipe.prompt && words.seed == recipe.seed.saturating_add(image as u64)
        };
        words.iter().enumerate().all(is_plain)
    }
}

/// The images of an expanded recipe.
#[derive(Debug, Clone, PartialEq)]
pub struct Expanded {
    /// The recipe of the first image, with the template.
    pub recipe: Recipe,
    /// Number of images.
    pub count: usize,
    /// The words of each image; empty if all images have the prompt of the recipe and consecutive seeds.
    pub words: Vec<Words>,
}

impl Expanded {
    /// Creates images of one prompt.
    pub fn plain(recipe: Recipe, count: usize) -> Self {
        Self { recipe, count, words: Vec::new() }
    }
}

/// Expands the templates of recipes. Each file is read once.
pub struct Expander {
    expansion: Expansion,
    files: Wildcards,
    /// The combinations of the last template.
    listed: RefCell<(String, Rc<[String]>)>,
}

impl Expander {
    /// Creates an expander. Files are read when a template names them.
    pub fn new(expansion: &Expansion) -> Self {
        let files = Wildcards::new(expansion.wildcards.clone());
        Self { expansion: expansion.clone(), files, listed: RefCell::new((String::new(), Rc::default())) }
    }

    /// Returns the number of images for each seed: the combinations, or 1 with random words.
    ///
    /// Errors if the template is invalid, names a wildcard that does not exist, or has too many combinations.
    pub fn combinations(&self, recipe: &Recipe) -> Result<usize> {
        if self.expansion.all { self.list(template(recipe)).map(|all| all.len()) } else { Ok(1) }
    }

    /// Returns the recipe of an image: with one of the combinations, or with random words by its seed.
    ///
    /// Errors as [`Expander::combinations`], and if the prompt gets too long.
    pub fn image(&self, recipe: &Recipe, combination: usize) -> Result<Recipe> {
        let template = template(recipe);
        let prompt = if self.expansion.all {
            self.list(template)?.get(combination).cloned().unwrap_or_default()
        } else {
            words::random(template, self.expansion.seed.unwrap_or(recipe.seed), &self.files)?
        };
        let template = Some(template.to_string()).filter(|template| *template != prompt);
        if prompt == recipe.prompt {
            return Ok(Recipe { template, ..recipe.clone() });
        }
        // New words replace the prompt that a language model wrote.
        Ok(Recipe { prompt, template, ..recipe.clone().before_upsampling() })
    }

    /// Returns the images of a recipe with `count` consecutive seeds. With all combinations, these are all of them for
    /// each seed.
    ///
    /// Errors as [`Expander::image`], and if there are too many images.
    pub fn expand(&self, recipe: &Recipe, count: usize) -> Result<Expanded> {
        let combinations = self.combinations(recipe)?;
        let images = count.saturating_mul(combinations);
        if combinations > 1 && images > MAX_COMBINATIONS {
            let what = format!("{combinations} combinations with {count} seeds are {images} images");
            return Err(Error::usage(format!("{what}, expected at most {MAX_COMBINATIONS}")).hint("use fewer seeds"));
        }
        let with_seed = |image: usize| recipe.seed.saturating_add((image / combinations) as u64);
        let image =
            |image: usize| self.image(&Recipe { seed: with_seed(image), ..recipe.clone() }, image % combinations);
        let first = image(0)?;
        if images <= 1 || first.template.is_none() {
            return Ok(Expanded::plain(first, images));
        }
        let words = (0..images).map(|at| image(at).map(|Recipe { prompt, seed, .. }| Words { prompt, seed }));
        Ok(Expanded { recipe: first, count: images, words: words.collect::<Result<_>>()? })
    }

    fn list(&self, template: &str) -> Result<Rc<[String]>> {
        let mut listed = self.listed.borrow_mut();
        if listed.1.is_empty() || listed.0 != template {
            *listed = (template.to_string(), words::all(template, &self.files)?.into());
        }
        Ok(Rc::clone(&listed.1))
    }
}

fn template(recipe: &Recipe) -> &str {
    recipe.template.as_deref().unwrap_or(&recipe.prompt)
}

/// Returns `true` if an expansion of the text would make choices.
pub fn has_choices(text: &str) -> bool {
    let is_choice = |node: &Node| !matches!(node, Node::Text(_));
    template::parse(text, Place::START).is_ok_and(|nodes| nodes.iter().any(is_choice))
}
