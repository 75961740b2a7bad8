//! The default model draws what the prompt says in bf16, too.

use flux::files::ModelFiles;
use flux::pipeline::Model;

use crate::score::{Meaning, expect_meaning};
use crate::{cuda, root, small};

#[test]
fn images_show_what_was_asked_for() {
    let Some(cuda) = cuda() else { return };
    if small() {
        println!("skipped: one image says nothing about shares, and small sizes leave no time for more");
        return;
    }
    let model = Model::load(cuda, &ModelFiles::open(&root().join("models/tiny")).unwrap()).unwrap();
    let meaning = Meaning::load();
    expect_meaning(&meaning, &meaning.generate(&model));
}
