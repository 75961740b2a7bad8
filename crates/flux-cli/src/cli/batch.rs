//! Flags of `flux batch`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use flux::{Error, Result};

use super::values::{no_hyphen, path};
use super::{DrawArgs, OUTPUT, SAMPLING, values};

/// `flux batch`
#[derive(Args)]
pub struct Batch {
    /// List of prompts: .txt, .jsonl or .csv; `-` is standard input
    ///
    /// Each line of a .txt file is a prompt; blank lines and lines that begin with # are skipped. Each line of a .jsonl
    /// file is an object, and a .csv file has a header line. Fields are those of a recipe, and `output`, `n` and
    /// `size`.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Folder for the images; created if missing
    #[arg(value_name = "FOLDER", value_parser = path())]
    pub folder: PathBuf,
    /// Format of the list [default: by extension]
    ///
    /// From standard input, the default is jsonl if the list begins with a brace, otherwise txt.
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub format: Option<BatchFormat>,
    /// Template of the image names
    ///
    /// Fields are {index:04}, {seed}, {prompt:40}, {model} and {date}.
    #[arg(help_heading = OUTPUT, long, value_name = "TEMPLATE", default_value = "{index:04}-{prompt:48}.png")]
    #[arg(value_parser = no_hyphen)]
    pub name: String,
    /// Images per line, with consecutive seeds
    #[arg(help_heading = SAMPLING, short = 'n', long, value_name = "K", default_value_t = 1)]
    #[arg(allow_negative_numbers = true, value_parser = values::count)]
    pub count: u64,
    /// Regenerate existing images
    #[arg(help_heading = OUTPUT, long)]
    pub force: bool,
    /// Part of the lines to generate, as in 1/4
    ///
    /// The parts can run at the same time, on several machines.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    pub shard: Shard,
    /// Check all lines without generating images
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub draw: DrawArgs,
}

/// The format of a file of many images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BatchFormat {
    /// One prompt per line.
    Txt,
    /// One JSON object per line.
    Jsonl,
    /// A table with a header line.
    Csv,
}

/// `--shard`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// The number of this part, from 1.
    pub part: usize,
    pub parts: usize,
}

impl Shard {
    /// Returns `true` if the part contains the line with this number, from 1.
    pub fn has(self, index: usize) -> bool {
        (index - 1) % self.parts == self.part - 1
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
        match numbers {
            Some((part, parts)) if (1..=parts).contains(&part) => Ok(Self { part, parts }),
            _ => Err("expected I/N, as in 1/4 for the first of four parts".to_string()),
        }
    }
}

impl Batch {
    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        let times = self.draw.console.timings.is_some().then_some("--timings");
        if let Some(flag) = self.draw.recipe.tensors.saves().or(times) {
            return Err(Error::usage(format!("`{flag}` is for a single image, not for a batch"))
                .at(flag)
                .hint("leave it out: the manifest in the folder contains the times"));
        }
        self.draw.recipe.images.check_no_stdin()?;
        self.draw.check(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_each_line_once() {
        for parts in 1..5 {
            for index in 1..20 {
                let having = (1..=parts).filter(|&part| Shard { part, parts }.has(index)).count();
                assert_eq!(having, 1, "{index} of {parts}");
            }
        }
        assert_eq!("2/3".parse(), Ok(Shard { part: 2, parts: 3 }));
        for bad in ["", "0/3", "4/3", "1", "1/0", "a/b", "1/2/3", "-1/2"] {
            assert!(bad.parse::<Shard>().is_err_and(|e| e.contains("1/4")), "{bad}");
        }
    }
}
