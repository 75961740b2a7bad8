//! Flags that name a recipe to start from.

use std::path::PathBuf;

use clap::Args;

use super::PROMPT;
use super::values::path;

/// Flags for a recipe to start from.
#[derive(Args)]
pub struct SourceArgs {
    /// Generate from a recipe file of JSON; flags override it
    ///
    /// The file is the output of `flux info --json IMAGE`.
    #[arg(help_heading = PROMPT, long = "recipe", id = "recipe_file", value_name = "FILE", value_parser = path())]
    #[arg(hide_short_help = true, conflicts_with = "config_from_metadata")]
    pub recipe: Option<PathBuf>,
    /// Generate from the recipe in an image; flags override it
    #[arg(help_heading = PROMPT, long, value_name = "IMAGE", value_parser = path(), hide_short_help = true)]
    pub config_from_metadata: Option<PathBuf>,
}
