//! The default model generates images that match the prompt, and edits that match the instruction, in bf16 and in fp8.

use std::sync::Arc;

use flux::backend::cuda::Cuda;
use flux::files::ModelFiles;
use flux::model::OpenModel;
use flux::pipeline::Model;
use flux::stage::CancelFlag;

use crate::score::edits::{Edits, expect_edits, expect_nothing};
use crate::score::{Meaning, SIZES, expect_meaning, expect_meaning_at_sizes};
use crate::{cuda, cuda_fp8, root, small};

/// The default model on a device, if there is one and time for it.
fn default_model(device: Option<Cuda>) -> Option<Arc<Model<Cuda>>> {
    if small() {
        println!("skipped: one image says nothing about shares, and small sizes leave no time for more");
        return None;
    }
    Some(Model::load(device?, &ModelFiles::open(&root().join("models/tiny")).unwrap()).unwrap())
}

#[test]
fn images_show_what_was_asked_for() {
    let Some(model) = default_model(cuda()) else { return };
    let meaning = Meaning::load();
    expect_meaning(&meaning, &meaning.generate(&model));
}

#[test]
fn images_of_other_sizes_show_it_too() {
    for device in [cuda(), cuda_fp8()] {
        let Some(model) = default_model(device) else { continue };
        expect_meaning_at_sizes(&model, &SIZES);
    }
}

#[test]
fn edits_with_weights_in_few_bits_change_it_too() {
    for format in ["q8_0", "q4_k"] {
        let Some(device) = cuda().filter(|_| !small()) else { return };
        let mut model = OpenModel::open(&ModelFiles::open(&root().join("models/tiny")).unwrap()).unwrap();
        model.quantize(&format.parse().unwrap(), &CancelFlag::default(), &mut |_| {}).unwrap();
        let edits = Edits::load();
        expect_edits(&edits, &edits.generate(&Model::new(device, model), false));
    }
}

#[test]
fn edits_change_what_was_named_and_nothing_else() {
    for device in [cuda(), cuda_fp8()] {
        let Some(model) = default_model(device) else { continue };
        let edits = Edits::load();
        expect_edits(&edits, &edits.generate(&model, false));
        let shuffled = Edits::load().shuffled();
        expect_nothing(&shuffled, &shuffled.generate(&model, false));
    }
}
