//! Batches and several devices make the same images as one device one by one.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flux::backend::cpu::{Cpu, Precision};
use flux::files::ModelFiles;
use flux::pipeline::{Parallel, Request};
use flux::stage::CancelFlag;

use super::{TRANSFORMER, assert_near, distilled, load, long, pixels, reference, small};
use crate::flux3_base::write_base;
use crate::golden::flux3::model_folder;
use crate::opening::renamed::{read, write_with};

#[test]
fn images_of_a_batch_are_those_that_are_made_alone() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    let base = load(&ModelFiles::open(folder.path()).unwrap());
    let guided = Request { negative: Some(long()), ..small("a cat", 5) };
    let references = vec![reference(100, 70), reference(64, 96)];
    for (what, model, request) in [
        ("distilled", distilled(), small("a cat", 5)),
        ("distilled with references", distilled(), Request { references: references.clone(), ..small("a cat", 5) }),
        ("base", Arc::clone(&base), small("a cat", 5)),
        ("base with windows that differ", Arc::clone(&base), guided.clone()),
        ("base with references", Arc::clone(&base), Request { references, ..guided }),
    ] {
        let batch = model.generate_batch(&request, 3).unwrap();
        assert_eq!(batch.len(), 3, "{what}");
        for (seed, image) in (5..).zip(&batch) {
            assert_near(what, &image.rgb, &pixels(&model, &Request { seed, ..request.clone() }));
        }
    }
}

/// Gives the transformer in a folder four heads of 16 features instead of two of 32.
fn divide_heads(folder: &Path) {
    let path = folder.join(TRANSFORMER);
    let mut tensors = read(&path);
    for (name, (_, shape, bytes)) in &mut tensors {
        if name.contains(".norm_q.") || name.contains(".norm_k.") {
            (*shape, *bytes) = (vec![16], bytes[..32].to_vec());
        }
    }
    write_with(&path, &tensors, &[]);
    let path = folder.join("transformer/config.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json["num_attention_heads"] = 4.into();
    json["attention_head_dim"] = 16.into();
    json["axes_dims_rope"] = vec![4; 4].into();
    fs::write(&path, json.to_string()).unwrap();
}

#[test]
fn several_devices_make_the_image_of_one() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    divide_heads(folder.path());
    let (distilled, base) = (ModelFiles::open(&model_folder()).unwrap(), ModelFiles::open(folder.path()).unwrap());
    let references = vec![reference(100, 70), reference(64, 96)];
    let guided = Request { negative: Some(long()), ..small("a cat", 1) };
    for (what, files, world, request, count) in [
        ("distilled", &distilled, 2, small("a cat", 1), 2),
        ("references", &distilled, 2, Request { references: references.clone(), ..small("a cat", 1) }, 1),
        ("guidance in halves", &base, 2, guided.clone(), 1),
        ("guidance, two devices each", &base, 4, guided.clone(), 1),
        ("guidance of a batch", &base, 4, Request { negative: None, ..guided.clone() }, 2),
        ("guidance with references", &base, 4, Request { references, ..guided }, 1),
    ] {
        let limit = Duration::from_secs(60);
        let ranks = Cpu::group(Precision::F32, world, limit).unwrap();
        let parallel = Parallel::load(ranks, files).unwrap().with_grace(limit);
        let made = parallel.generate_batch(&request, count, &CancelFlag::default(), &mut |_| {}).unwrap();
        let expected = load(files).generate_batch(&request, count).unwrap();
        assert_eq!(made.len(), expected.len(), "{what}");
        for (made, expected) in made.iter().zip(&expected) {
            assert_near(what, &made.rgb, &expected.rgb);
        }
    }
}
