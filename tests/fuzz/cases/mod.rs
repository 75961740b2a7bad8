//! The cases: their kinds, and their frequencies.

mod adapters;
mod arguments;
mod extremes;
mod images;
mod lists;
mod misplaced;
mod models;
mod outputs;
mod prompts;
mod quantized;
mod single;
mod work;

pub use models::ATTACH_TO;

use std::fs;
use std::path::{Path, PathBuf};

use super::expect::{End, Expected};
use super::rng::Rng;
use super::run::{Case, quiet};
use super::sources::Sources;

/// The kinds of cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A configuration of a model.
    Json,
    Tokenizer,
    Weights,
    /// A model file that is replaced by another kind of file.
    NotAFile,
    Cache,
    Adapter,
    /// Images to compare, and to show.
    Image,
    /// Images and masks to edit.
    Input,
    Prompt,
    Arguments,
    /// Outputs that collide with inputs or with each other.
    Output,
    /// Finite values that overflow or vanish in computations.
    Extreme,
    /// Scales of quantized weights.
    Scales,
    /// Components in single files: prefixed names, several in one file, metadata.
    Single,
    /// Valid files for the wrong flags.
    Misplaced,
    /// Lists of images for `flux batch`.
    List,
    Sound,
}

/// The number of runs of each kind, in a thousand.
const SHARES: [(Kind, usize); 17] = [
    (Kind::Json, 90),
    (Kind::Tokenizer, 50),
    (Kind::Weights, 60),
    (Kind::NotAFile, 60),
    (Kind::Cache, 20),
    (Kind::Adapter, 60),
    (Kind::Image, 130),
    (Kind::Input, 60),
    (Kind::Prompt, 40),
    (Kind::Arguments, 70),
    (Kind::Output, 90),
    (Kind::Extreme, 60),
    (Kind::Scales, 70),
    (Kind::Single, 80),
    (Kind::Misplaced, 40),
    (Kind::List, 10),
    (Kind::Sound, 10),
];

impl Kind {
    /// Picks the kind of a run.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut number = rng.below(SHARES.iter().map(|(_, share)| share).sum());
        for (kind, share) in SHARES {
            if number < share {
                return kind;
            }
            number -= share;
        }
        unreachable!("the number is below the sum")
    }

    /// Returns the kind of this name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        SHARES.into_iter().map(|(kind, _)| kind).find(|kind| format!("{kind:?}").eq_ignore_ascii_case(name))
    }
}

/// A run's own folder, and the sources of its case.
struct Place<'a> {
    sources: &'a Sources,
    /// The folder of the run.
    own: &'a Path,
    /// The folder in it in which the program runs.
    out: PathBuf,
}

impl Place<'_> {
    /// Returns a case of the program without faults.
    fn case(&self) -> Case {
        Case {
            what: String::new(),
            command: quiet(&self.sources.program),
            stdin: Vec::new(),
            out: self.out.clone(),
            expected: Expected::default(),
        }
    }

    /// Returns a path in the folder of the run.
    fn at(&self, name: &str) -> PathBuf {
        self.own.join(name)
    }
}

impl Sources {
    /// Creates a case in `own`, a folder of the run's own.
    pub fn case(&self, kind: Kind, own: &Path, rng: &mut Rng) -> Case {
        let out = own.join("out");
        fs::create_dir(&out).expect("a temporary folder is writable");
        let place = Place { sources: self, own, out };
        match kind {
            Kind::Json | Kind::Tokenizer | Kind::Weights | Kind::NotAFile => models::damaged(&place, kind, rng),
            Kind::Cache => models::cache(&place, rng),
            Kind::Adapter => adapters::damaged(&place, rng),
            Kind::Image => images::looked_at(&place, rng),
            Kind::Input => images::edited(&place, rng),
            Kind::Prompt => prompts::any(&place, rng),
            Kind::Arguments => arguments::any(&place, rng),
            Kind::Output => outputs::over_inputs(&place, rng),
            Kind::Extreme => extremes::any(&place, rng),
            Kind::Scales => quantized::with_damaged_scales(&place, rng),
            Kind::Single => single::any(&place, rng),
            Kind::Misplaced => misplaced::any(&place, rng),
            Kind::List => lists::any(&place, rng),
            Kind::Sound => {
                let mut case = if rng.one_of(2) { models::sound(&place, rng) } else { quantized::sound(&place, rng) };
                case.expected.end = End::Success;
                case
            }
        }
    }
}

/// Creates a link `name` to a file.
fn link(file: &Path, name: &Path) {
    std::os::unix::fs::symlink(file, name).expect("a temporary folder takes links");
}
