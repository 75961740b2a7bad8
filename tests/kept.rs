//! Tokens that keep what another pass made of them: evaluations of some tokens.

mod evaluation;

use flux::files::ModelFiles;

use crate::support::root;

fn files() -> ModelFiles {
    ModelFiles::open(&root().join("models/tiny")).expect("the built-in model")
}
