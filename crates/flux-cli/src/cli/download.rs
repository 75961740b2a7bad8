//! Flags of `flux download`, `flux list` and `flux rm`.

use std::path::PathBuf;

use clap::Args;

use super::ProgressChoice;
use super::values::{path, seconds};

/// `flux download`
#[derive(Args)]
pub struct Download {
    /// Model or repository: a short name, owner/name, or owner/name:FILE
    ///
    /// Short names are 4b, 9b, base-4b, base-9b, 9b-kv, flux3 and flux3-base. flux3-prompts is the file of system
    /// prompts for --upsample.
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "REV")]
    pub revision: Option<String>,
    /// Download to a plain folder instead of the cache
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub folder: Option<PathBuf>,
    /// Verify existing files by checksum, and replace damaged ones
    #[arg(long)]
    pub verify: bool,
    /// Print one JSON object per model instead of its path
    #[arg(long)]
    pub json: bool,
    /// Delay before a broken transfer is retried; it grows with each retry
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, hide = true)]
    pub retry_wait: f64,
    /// Progress display
    #[arg(long, value_name = "KIND", value_enum, default_value_t = ProgressChoice::Auto)]
    pub progress: ProgressChoice,
    /// Print only errors and the path
    #[arg(short, long)]
    pub quiet: bool,
}

/// `flux list`
#[derive(Args)]
pub struct List {
    /// Print only names, one per line
    #[arg(long, value_name = "KIND", conflicts_with = "json")]
    pub names: Option<NamesOf>,
    /// Print one JSON object per entry
    #[arg(long)]
    pub json: bool,
}

/// The names that `flux list --names` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum NamesOf {
    /// Models for `--dir`
    Models,
    /// Adapters for `--lora`
    Adapters,
    /// Everything on this machine
    All,
    /// Short names for `flux download`
    Published,
    /// Devices for `--device`
    Devices,
}

/// `flux rm`
#[derive(Args)]
pub struct Remove {
    /// Models, named as for `flux download`
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Remove only this branch, tag or commit [default: all revisions]
    #[arg(long, value_name = "REV")]
    pub revision: Option<String>,
    /// Remove without confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print one JSON object per model: its name and the freed bytes
    #[arg(long)]
    pub json: bool,
}
