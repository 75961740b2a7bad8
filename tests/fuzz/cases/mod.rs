//! What is tried: each kind of case, and how often.

mod adapters;
mod arguments;
mod extremes;
mod images;
mod lists;
mod misplaced;
mod models;
mod outputs;
mod prompts;
mod quantised;
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
    /// A file of a model that is no file, or another one.
    NotAFile,
    Cache,
    Adapter,
    /// Images to compare, and to look at.
    Image,
    /// Images and masks to edit.
    Input,
    Prompt,
    Arguments,
    /// What is written where something is read, or twice.
    Output,
    /// Finite values that nothing computes with.
    Extreme,
    /// Scales of weights in few bits.
    Scales,
    /// Components in files of their own: names with others in front, several in one file, metadata.
    Single,
    /// Files that are given to flags of others.
    Misplaced,
    /// Lists of images for `flux batch`.
    List,
    Sound,
}

/// Of a thousand runs, how many are of each kind.
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
    /// The kind of a run.
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

    /// The kind of this name, in any case.
    pub fn of_name(name: &str) -> Option<Self> {
        SHARES.into_iter().map(|(kind, _)| kind).find(|kind| format!("{kind:?}").eq_ignore_ascii_case(name))
    }
}

/// A run's own folder, and what its case is made from.
struct Place<'a> {
    sources: &'a Sources,
    /// The folder of the run.
    own: &'a Path,
    /// The one in it in which the program runs.
    out: PathBuf,
}

impl Place<'_> {
    /// A case of the program in which nothing is wrong yet.
    fn case(&self) -> Case {
        Case {
            what: String::new(),
            command: quiet(&self.sources.program),
            stdin: Vec::new(),
            out: self.out.clone(),
            expected: Expected::default(),
        }
    }

    /// A path in the folder of the run.
    fn at(&self, name: &str) -> PathBuf {
        self.own.join(name)
    }
}

impl Sources {
    /// A case in `own`, a folder of the run's own.
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
            Kind::Scales => quantised::with_damaged_scales(&place, rng),
            Kind::Single => single::any(&place, rng),
            Kind::Misplaced => misplaced::any(&place, rng),
            Kind::List => lists::any(&place, rng),
            Kind::Sound => {
                let mut case = if rng.one_of(2) { models::sound(&place, rng) } else { quantised::sound(&place, rng) };
                case.expected.end = End::Success;
                case
            }
        }
    }
}

/// A link `name` to a file.
fn link(file: &Path, name: &Path) {
    std::os::unix::fs::symlink(file, name).expect("a temporary folder takes links");
}
