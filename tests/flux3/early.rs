//! The early blocks of text and references run once, as long as the text and the references are cached.

use std::sync::Arc;

use flux::backend::cpu::Cpu;
use flux::files::ModelFiles;
use flux::files::adapter::AdapterUse;
use flux::pipeline::{Model, Request};

use super::adapters::write_one;
use super::{distilled, load, reference, small};
use crate::flux3_base::write_base;

/// Returns an image, and how often early blocks of text or references ran for it.
fn made(model: &Arc<Model<Cpu>>, request: &Request) -> (Vec<u8>, usize) {
    let image = model.generate(request).unwrap();
    (image.rgb, image.timings.early_passes)
}

/// Checks an image against that of a model without caches.
#[track_caller]
fn assert_fresh(image: &[u8], request: &Request) {
    assert!(image == made(&distilled(), request).0, "an image of early results that were known is another one");
}

#[test]
fn early_results_are_made_once_for_a_prompt_and_the_times_that_steps_lead_to() {
    let model = distilled();
    let request = small("a cat", 1);
    let (first, passes) = made(&model, &request);
    assert!(passes > 0);
    assert_eq!(made(&model, &request), (first.clone(), 0));
    let other_seed = small("a cat", 2);
    let (image, passes) = made(&model, &other_seed);
    assert_eq!(passes, 0, "the seed has nothing to do with it");
    assert_fresh(&image, &other_seed);
    for other in [
        small("a dog", 1),
        Request { steps: Some(3), ..request.clone() },
        Request { schedule: "sigmas:1,0.4".parse().unwrap(), ..request.clone() },
    ] {
        let (image, passes) = made(&model, &other);
        assert!(passes > 0);
        assert_fresh(&image, &other);
    }
    // Two steps of a larger image compute their text at once.
    let large = Request { width: Some(320), height: Some(320), ..request.clone() };
    let (image, _) = made(&model, &large);
    assert_fresh(&image, &large);
    assert_eq!(made(&model, &request), (first, 0), "as many are kept as there is memory for");
}

#[test]
fn references_that_are_known_are_not_made_again_for_another_prompt() {
    let model = distilled();
    let references = |sizes: &[[usize; 2]]| sizes.iter().map(|[width, height]| reference(*width, *height)).collect();
    let edit = |prompt: &str, sizes: &[[usize; 2]]| Request { references: references(sizes), ..small(prompt, 1) };
    let both = [[100, 70], [64, 96]];
    let (_, passes) = made(&model, &edit("a cat", &both));
    let (image, again) = made(&model, &edit("a dog", &both));
    assert_eq!(passes, again + 2, "each of two steps finds the references");
    assert_fresh(&image, &edit("a dog", &both));
    assert_eq!(made(&model, &edit("a dog", &both)), (image, 0));
    let swapped = edit("a dog", &[both[1], both[0]]);
    let (image, passes) = made(&model, &swapped);
    assert_eq!(passes, 2, "they have other positions");
    assert_fresh(&image, &swapped);
}

#[test]
fn the_base_model_makes_a_text_once_for_all_steps_and_schedules() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    let model = load(&ModelFiles::open(folder.path()).unwrap());
    assert_eq!(made(&model, &small("a cat", 1)).1, 2, "the prompt's and that of guidance");
    assert_eq!(made(&model, &small("a dog", 1)).1, 1);
    assert_eq!(made(&model, &Request { steps: Some(5), ..small("a cat", 1) }).1, 0);
}

#[test]
fn early_results_are_those_of_their_adapters() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.safetensors");
    write_one(&path, "txt_mode_blocks.0.attn.to_out.0");
    let model = distilled();
    let plain = made(&model, &small("a cat", 1)).0;
    let adapters = |strength| vec![AdapterUse::new(model.adapter(&path).unwrap(), strength)];
    let mut images = vec![plain];
    for strength in [1.0, 2.0] {
        let request = Request { adapters: adapters(strength), ..small("a cat", 1) };
        let (image, passes) = made(&model, &request);
        assert!(passes > 0 && !images.contains(&image));
        images.push(image);
    }
    assert!(made(&model, &small("a cat", 1)).0 == images[0]);
}
