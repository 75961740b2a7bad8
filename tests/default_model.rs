//! The default model's images against those of the reference.

use std::path::Path;

use flux::backend::cpu::{Cpu, Precision};
use flux::files::ModelFiles;
use flux::pipeline::{Model, Request};

#[derive(serde::Deserialize)]
struct Index {
    images: Vec<Golden>,
}

#[derive(serde::Deserialize)]
struct Golden {
    file: String,
    prompt: String,
    seed: u64,
    width: usize,
    height: usize,
    steps: usize,
}

/// Observed: identical, or one level apart in a few pixels.
#[test]
fn eight_images_are_within_one_level_of_the_reference() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = root.join("tests/golden/default-model");
    let index: Index = serde_json::from_slice(&std::fs::read(golden.join("index.json")).unwrap()).unwrap();
    assert_eq!(index.images.len(), 8);
    let dir = ModelFiles::open(&root.join("models/tiny")).unwrap();
    let model = Model::load(Cpu::new(Precision::F32), &dir).unwrap();
    for image in index.images {
        let request = Request {
            width: Some(image.width),
            height: Some(image.height),
            steps: Some(image.steps),
            ..Request::new(&image.prompt, image.seed)
        };
        let made = model.generate(&request).unwrap();
        let expected = image::open(golden.join(&image.file)).unwrap().to_rgb8();
        let differences = made.rgb.iter().zip(expected.as_raw()).map(|(a, b)| a.abs_diff(*b));
        let (worst, differing) =
            differences.fold((0, 0), |(worst, count), d| (worst.max(d), count + usize::from(d > 0)));
        println!("{}: worst {worst}, {differing} of {} bytes differ; {:?}", image.file, made.rgb.len(), made.timings);
        assert!(worst <= 1, "`{}` differs by {worst} levels", image.prompt);
    }
}
