//! Which models to fetch, to list and to remove.

use std::path::PathBuf;

use clap::Args;

use super::ProgressChoice;
use super::values::{path, seconds};

/// `flux download`
#[derive(Args)]
pub struct Download {
    /// 4b, 9b, base-4b, base-9b, 9b-kv, flux3, flux3-base, owner/name of a repository, or owner/name:FILE
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "REV")]
    pub revision: Option<String>,
    /// Put the files into a plain folder instead of the cache
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub folder: Option<PathBuf>,
    /// Compute the checksums of files that are there once more, and fetch damaged ones again
    #[arg(long)]
    pub verify: bool,
    /// Print one JSON object for each model in place of its path
    #[arg(long)]
    pub json: bool,
    /// How long to wait before a broken transfer goes on, longer each time
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, hide = true)]
    pub retry_wait: f64,
    /// How to show how far it is: a bar on a terminal, plain lines, or nothing
    #[arg(long, value_name = "KIND", value_enum, default_value_t = ProgressChoice::Auto)]
    pub progress: ProgressChoice,
    /// Print nothing but errors, and the path
    #[arg(short, long)]
    pub quiet: bool,
}

/// `flux list`
#[derive(Args)]
pub struct List {
    /// Print names alone, a line each: of models, of adapters, or all
    #[arg(long, value_name = "KIND", conflicts_with = "json")]
    pub names: Option<NamesOf>,
    /// Print one JSON object for each of them
    #[arg(long)]
    pub json: bool,
}

/// Whose names are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum NamesOf {
    Models,
    Adapters,
    All,
}

/// `flux rm`
#[derive(Args)]
pub struct Remove {
    /// As with `flux download`: 4b, owner/name, or owner/name:FILE
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Remove this revision alone, a branch, tag or commit, instead of all that are in the cache
    #[arg(long, value_name = "REV")]
    pub revision: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Print one JSON object for each model: its name and the bytes that are free again
    #[arg(long)]
    pub json: bool,
}
