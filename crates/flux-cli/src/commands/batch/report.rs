//! Reports of a batch while it runs: on stderr, in the manifest, and as JSON.

use std::path::Path;

use flux::error::Names;
use flux::stage::Progress;
use flux::{Error, Result};

use super::alike::Alike;
use super::items::{Item, Todo, Wrong};
use super::manifest::{Entry, Manifest};
use super::writers::Written;
use crate::cli::given_command;
use crate::commands::json::print_object;
use flux_runtime::progress::Console;

/// The number of consecutive failed writes that ends the run, because the disk is full or missing.
const MAX_FAILED_WRITES: usize = 3;

/// The progress of a batch and its outputs.
pub struct BatchReport<'a> {
    pub console: &'a mut Console,
    manifest: Option<&'a Manifest>,
    /// True if each image and error is printed as JSON.
    json: bool,
    /// The field names to use in messages.
    names: Names,
    /// The number of images to generate.
    wanted: usize,
    pub made: usize,
    pub existing: usize,
    pub failed: usize,
    /// The number of consecutive failed writes.
    failed_writes: usize,
    alike: Alike,
}

impl<'a> BatchReport<'a> {
    pub fn new(
        todo: &Todo,
        manifest: Option<&'a Manifest>,
        console: &'a mut Console,
        (json, names): (bool, Names),
    ) -> Self {
        let wanted = todo.items.len() + todo.wrong.len();
        let existing = todo.existing;
        let (made, failed, failed_writes, alike) = (0, 0, 0, Alike::default());
        Self { console, manifest, json, names, wanted, made, existing, failed, failed_writes, alike }
    }

    /// Reports an image that a thread has written, or failed to write.
    pub fn written(&mut self, written: Written) -> Result<()> {
        match written.entry {
            Ok(entry) => {
                (self.made, self.failed_writes) = (self.made + 1, 0);
                self.console.detail(&format!("wrote {}", written.item.file));
                self.print(&entry)
            }
            Err(error) => {
                self.failed_writes += 1;
                self.failed(&written.item, &error)?;
                if self.failed_writes >= MAX_FAILED_WRITES { Err(error) } else { Ok(()) }
            }
        }
    }

    /// Reports an image that cannot be generated.
    pub fn failed(&mut self, item: &Item, error: &Error) -> Result<()> {
        self.error(Entry { error: Some(error.json(self.names)), seed: None, ..item.entry() }, error)
    }

    /// Reports the invalid lines.
    pub fn wrong(&mut self, wrong: &[Wrong]) -> Result<()> {
        for Wrong { line, index, error } in wrong {
            let entry = Entry::new([*line, *index, 1], String::new());
            self.error(Entry { error: Some(error.json(self.names)), ..entry }, error)?;
        }
        self.counted();
        Ok(())
    }

    /// Prints how many errors were counted instead of printed.
    pub fn counted(&mut self) {
        self.alike.take_counted().iter().for_each(|line| self.console.error(line));
    }

    fn error(&mut self, entry: Entry, error: &Error) -> Result<()> {
        self.failed += 1;
        if let Some(text) = self.alike.print(entry.line, error, self.names) {
            self.console.error(&text);
        }
        // If the disk is full, this fails like the image, whose error is already reported.
        if let Some(Err(e)) = self.manifest.map(|manifest| manifest.append(&entry)) {
            self.console.note(e.what());
        }
        self.print(&entry)
    }

    fn print(&self, entry: &Entry) -> Result<()> {
        if self.json { print_object(entry) } else { Ok(()) }
    }

    /// Shows the current stage of the image being generated.
    pub fn stage(&mut self, progress: Progress) {
        if self.made + self.failed == 0 {
            self.console.progress(progress);
        } else {
            self.console.stage_of_images(progress);
        }
    }

    /// Shows the number of finished images.
    pub fn progress(&mut self) {
        self.console.images((self.made + self.failed) as u64, self.wanted as u64);
    }

    /// Returns the number of images that were neither generated nor failed.
    pub fn untried(&self) -> usize {
        self.wanted.saturating_sub(self.made + self.failed)
    }

    /// Prints the summary of the run, which took `seconds`.
    pub fn summary(&mut self, seconds: f64) {
        self.counted();
        let Self { made, existing, failed, .. } = &*self;
        let untried = match self.untried() {
            0 => String::new(),
            untried => format!(", {untried} not tried"),
        };
        let rate = if *made > 0 {
            format!(" in {seconds:.1} s, {:.2} per second", *made as f64 / seconds)
        } else {
            String::new()
        };
        self.console.info(&format!("{made} generated{rate}; {existing} already existed, {failed} failed{untried}"));
    }

    /// Prints the command that generates the remaining images.
    pub fn hint_to_go_on(&self, list: &Path) {
        let before = match list == Path::new("-") {
            true => "to continue, with the same list on standard input: ",
            false => "to continue: ",
        };
        if self.untried() > 0 {
            self.console.command(before, &given_command());
        }
    }

    /// Adds the number of untried images to an error that ended the run early.
    pub fn ended_by(&self, error: Error) -> Error {
        match self.untried() {
            0 => error,
            untried => error.prefixed(&format!("{untried} of {} images not tried", self.wanted + self.existing)),
        }
    }

    /// Errors if any image failed.
    pub fn result(&self, what: &str) -> Result<()> {
        if self.failed == 0 {
            return Ok(());
        }
        let all = self.wanted + self.existing;
        Err(Error::new(format!("{} of {all} images {what}", self.failed))
            .hint("correct these lines, and run the command again"))
    }
}
