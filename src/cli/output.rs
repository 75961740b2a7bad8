//! Flags that say where images go.

use std::path::{Path, PathBuf};

use clap::Args;
use flux::{Error, Result};

use super::settings::settings;
use super::{ConsoleArgs, OUTPUT, ShowArgs};

/// Where images go.
#[derive(Args)]
pub struct OutputArgs {
    /// File to write [default: flux-SEED.png]
    ///
    /// It ends with .png, .jpg, .jpeg or .webp, and may have fields: {seed}, {prompt:40}, {model}, {date}, %03d. A
    /// folder gets flux-SEED.png, and `-` writes a PNG to standard output.
    #[arg(help_heading = OUTPUT, short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Fail before any work when a file to write is there already, instead of overwriting it
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub no_clobber: bool,
    /// Write over an image or tensors that this run reads, once they have been read
    #[arg(help_heading = OUTPUT, long, hide_short_help = true, conflicts_with = "no_clobber")]
    pub force: bool,
    /// Print the path of the image to stdout
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub print_path: bool,
}

impl OutputArgs {
    /// A file, or a template of a name, whose file is not there yet.
    pub fn new_file(path: PathBuf) -> Self {
        Self { output: Some(path), no_clobber: true, force: false, print_path: false }
    }

    /// The same where a file may be there.
    pub fn with_force(self) -> Self {
        Self { no_clobber: false, force: true, ..self }
    }

    /// Where images go: what the flag says, else what is set.
    pub fn path(&self) -> Option<PathBuf> {
        self.output.clone().or_else(|| settings().output())
    }

    /// Whether the image goes to standard output.
    pub fn to_stdout(&self) -> bool {
        self.output.as_deref() == Some(Path::new("-"))
    }

    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self, count: u64, console: &ConsoleArgs, show: &ShowArgs) -> Result<()> {
        let other = console.on_stdout();
        if let Some(other) = other.filter(|_| self.print_path) {
            return Err(Error::usage(format!("`--print-path` and `{other}` both write to standard output"))
                .hint("leave out `--print-path`: the JSON names the file under `output`"));
        }
        let shows = show.protocol().map(|_| if show.show_steps { "--show-steps" } else { "--show" });
        if let (Some(shows), Some(other)) = (shows, other.or(self.print_path.then_some("--print-path"))) {
            return Err(Error::usage(format!("`{shows}` and `{other}` both write to standard output"))
                .hint("leave one of them out"));
        }
        if !self.to_stdout() {
            return Ok(());
        }
        let flag = other.or(shows).or(self.print_path.then_some("--print-path")).or((count > 1).then_some("--count"));
        match flag {
            Some(flag) => Err(Error::usage(format!("`{flag}` does not go with an image on standard output"))
                .at("--output")
                .hint(format!("leave out `{flag}`, or name a file with `-o`"))),
            None => Ok(()),
        }
    }
}
