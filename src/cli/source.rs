//! Flags that name a recipe to begin with.

use std::path::PathBuf;

use clap::Args;

use super::PROMPT;
use super::values::path;

/// The recipe that flags change.
#[derive(Args)]
pub struct SourceArgs {
    /// Make what this file of JSON says, as `flux info --json IMAGE` prints it; flags change it
    #[arg(help_heading = PROMPT, long = "recipe", id = "recipe_file", value_name = "FILE", value_parser = path())]
    #[arg(hide_short_help = true, conflicts_with = "config_from_metadata")]
    pub recipe: Option<PathBuf>,
    /// Make what this image says of itself; flags change it
    #[arg(help_heading = PROMPT, long, value_name = "IMAGE", value_parser = path(), hide_short_help = true)]
    pub config_from_metadata: Option<PathBuf>,
}
