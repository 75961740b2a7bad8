//! What is told of a list while it is made: on stderr, in the manifest, and as JSON.

use flux::error::Names;
use flux::{Error, Result};

use super::items::{Item, Todo, Wrong};
use super::manifest::{Entry, Manifest};
use super::writers::Written;
use crate::commands::json::print_object;
use crate::progress::Console;

/// So many writes in a row that fail end the run: the disk is full, or away.
const MOST_FAILED_WRITES: usize = 3;

/// How far the list is, and who hears of it.
pub struct Told<'a> {
    pub console: &'a mut Console,
    manifest: Option<&'a Manifest>,
    /// Whether each image and error is printed as JSON.
    json: bool,
    /// How the lines name fields.
    names: Names,
    /// Images to make.
    wanted: usize,
    pub made: usize,
    pub existing: usize,
    pub failed: usize,
    /// Writes that failed since one did not.
    failed_writes: usize,
}

impl<'a> Told<'a> {
    pub fn new(
        todo: &Todo,
        manifest: Option<&'a Manifest>,
        console: &'a mut Console,
        (json, names): (bool, Names),
    ) -> Self {
        let wanted = todo.items.len() + todo.wrong.len();
        let existing = todo.existing;
        Self { console, manifest, json, names, wanted, made: 0, existing, failed: 0, failed_writes: 0 }
    }

    /// What became of an image that a thread wrote.
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
                if self.failed_writes >= MOST_FAILED_WRITES { Err(error) } else { Ok(()) }
            }
        }
    }

    /// An image cannot be made.
    pub fn failed(&mut self, item: &Item, error: &Error) -> Result<()> {
        self.error(Entry { error: Some(error.json(self.names)), seed: None, ..item.entry() }, error)
    }

    /// A line asks for nothing that can be made.
    pub fn wrong(&mut self, wrong: &Wrong) -> Result<()> {
        let Wrong { line, index, error } = wrong;
        self.error(
            Entry { error: Some(error.json(self.names)), ..Entry::new([*line, *index, 1], String::new()) },
            error,
        )
    }

    fn error(&mut self, entry: Entry, error: &Error) -> Result<()> {
        self.failed += 1;
        self.console.error(&format!("line {}: {}", entry.line, error.shown_with(self.names)));
        // A disk that takes no image takes no line either, and the error of the image says so.
        if let Some(Err(e)) = self.manifest.map(|manifest| manifest.append(&entry)) {
            self.console.note(e.what());
        }
        self.print(&entry)
    }

    fn print(&self, entry: &Entry) -> Result<()> {
        if self.json { print_object(entry) } else { Ok(()) }
    }

    /// Shows how far it is.
    pub fn progress(&mut self) {
        self.console.images((self.made + self.failed) as u64, self.wanted as u64);
    }

    /// What was done in so many seconds.
    pub fn summary(&self, seconds: f64) {
        let Self { made, existing, failed, .. } = self;
        let rate = if *made > 0 {
            format!(" in {seconds:.1} s, {:.2} a second", *made as f64 / seconds)
        } else {
            String::new()
        };
        self.console.info(&format!("{made} made{rate}; {existing} there already, {failed} failed"));
    }

    /// Errors where something failed.
    pub fn result(&self, what: &str) -> Result<()> {
        if self.failed == 0 {
            return Ok(());
        }
        let all = self.wanted + self.existing;
        Err(Error::new(format!("{} of {all} images {what}", self.failed))
            .hint("each is told above with its line; mend these, and give the command again"))
    }
}
