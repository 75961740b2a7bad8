//! Flags for templates: prompts with choices.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use flux::Result;
use flux::engine::Recipe;
use flux::engine::expand::{Expanded, Expander, Expansion};

use super::PROMPT;
use super::values::path;

/// Flags for templates.
#[derive(Args)]
pub struct ExpandArgs {
    /// Choose words by the seed: {red|blue}; --expand=all uses each once
    ///
    /// Each image has words of its own. {2$$a|b|c} picks two options, and 0.5::a halves the weight of an option. JSON
    /// stays as it is. With =all, the images are all combinations, at most 1000, each with the seed.
    #[arg(help_heading = PROMPT, long, value_name = "WORDS", value_enum, hide_short_help = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "random")]
    expand: Option<ExpandChoice>,
    /// Folder of wildcards; implies --expand
    ///
    /// __animal__ in the prompt is a random line of animal.txt in the folder, and __a/b__ of b.txt in its folder a.
    #[arg(help_heading = PROMPT, long, value_name = "FOLDER", value_parser = path(), hide_short_help = true)]
    wildcards: Option<PathBuf>,
    /// Seed of the words [default: the seed of each image]
    ///
    /// All images then have the same words. Implies --expand.
    #[arg(help_heading = PROMPT, long, value_name = "N", hide_short_help = true)]
    expand_seed: Option<u64>,
}

/// `--expand`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExpandChoice {
    /// Random words.
    Random,
    /// All combinations.
    All,
}

impl ExpandArgs {
    /// Returns `true` if the prompt is a template.
    pub fn is_on(&self) -> bool {
        self.expand.is_some() || self.wildcards.is_some() || self.expand_seed.is_some()
    }

    /// Returns `true` if the images are all combinations.
    pub fn is_all(&self) -> bool {
        self.expand == Some(ExpandChoice::All)
    }

    /// Returns the expander, if the prompt is a template.
    pub fn expander(&self) -> Option<Expander> {
        let all = self.is_all();
        let expansion = || Expansion { wildcards: self.wildcards.clone(), seed: self.expand_seed, all };
        self.is_on().then(|| Expander::new(&expansion()))
    }

    /// Returns the images of a recipe.
    ///
    /// Errors as [`Expander::expand`].
    pub fn expand(&self, recipe: Recipe, count: usize) -> Result<Expanded> {
        match self.expander() {
            Some(expander) => expander.expand(&recipe, count),
            None => Ok(Expanded::plain(recipe, count)),
        }
    }

    /// Returns the settings outside the recipe that change the words.
    pub fn salt(&self) -> String {
        if self.is_on() { format!(" expand {:?} {:?}", self.expand, self.expand_seed) } else { String::new() }
    }
}
