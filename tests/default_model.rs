//! The default model's pictures against those of the reference.

use std::path::Path;

use flux::backend::cpu::{Cpu, Precision};
use flux::model_dir::ModelDir;
use flux::pipeline::{Pipeline, Request};

#[derive(serde::Deserialize)]
struct Index {
    pictures: Vec<Golden>,
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
fn eight_pictures_are_within_one_level_of_the_reference() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = root.join("tests/golden/default-model");
    let index: Index = serde_json::from_slice(&std::fs::read(golden.join("index.json")).unwrap()).unwrap();
    assert_eq!(index.pictures.len(), 8);
    let dir = ModelDir::open(&root.join("models/tiny")).unwrap();
    let mut pipeline = Pipeline::load(Cpu::new(Precision::F32), &dir).unwrap();
    for picture in index.pictures {
        let request = Request {
            width: Some(picture.width),
            height: Some(picture.height),
            steps: Some(picture.steps),
            ..Request::new(&picture.prompt, picture.seed)
        };
        let made = pipeline.generate(&request, &mut ()).unwrap();
        let expected = image::open(golden.join(&picture.file)).unwrap().to_rgb8();
        let differences = made.rgb.iter().zip(expected.as_raw()).map(|(a, b)| a.abs_diff(*b));
        let (worst, differing) = differences.fold((0, 0), |(worst, count), d| (worst.max(d), count + usize::from(d > 0)));
        println!("{}: worst {worst}, {differing} of {} bytes differ; {:?}", picture.file, made.rgb.len(), made.timings);
        assert!(worst <= 1, "`{}` differs by {worst} levels", picture.prompt);
    }
}
