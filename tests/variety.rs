//! Noise on the text features of the first steps, on all kinds of models.

use std::sync::Arc;
use std::time::Duration;

use flux::backend::cpu::{Cpu, Precision};
use flux::error::Field;
use flux::files::ModelFiles;
use flux::pipeline::{Change, Parallel, Request};
use flux::rgb::Rgb;
use flux::stage::CancelFlag;

use crate::flux3_base::write_base;
use crate::golden::flux3::model_folder;
use crate::support::{assert_near, built_in, load, preset};
use crate::tiles;

/// Returns a request with four steps. With a short prompt, most of its tokens are padding.
fn small(prompt: &str, seed: u64, variety: Option<&str>) -> Request {
    let variety = variety.map(|variety| variety.parse().unwrap());
    Request { width: Some(64), height: Some(48), steps: Some(4), variety, ..Request::new(prompt, seed) }
}

fn difference(a: &[u8], b: &[u8]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / a.len() as f64
}

/// Calls `check` with a model of each kind.
fn for_each_model(check: impl Fn(&str, &ModelFiles)) {
    tiles::for_each_model(&["tiny", "base", "kv"], check);
}

#[test]
fn noise_changes_the_image_of_each_seed_and_no_other_image() {
    for_each_model(|what, files| {
        let model = load(files);
        let made = |variety: Option<&str>| model.generate(&small("a cat", 7, variety)).unwrap();
        let plain = made(None).rgb;
        for nothing in ["0", "0:100:1", "2:0:1"] {
            assert!(made(Some(nothing)).rgb == plain, "{what}, {nothing}");
        }
        let varied = made(Some("1:100:1"));
        assert_eq!(varied.timings.prompts_encoded, 0, "{what}: the noise is added to features that are known");
        assert!(varied.rgb != plain && made(Some("1:100:1")).rgb == varied.rgb, "{what}");
        // More steps read the noise.
        let [one, two] = ["1:100:0", "1:100:0.5"].map(|variety| made(Some(variety)).rgb);
        assert!(one != plain && two != one && varied.rgb != two, "{what}");
        assert!(made(Some("1:100:0.25")).rgb == one, "{what}: one of four steps");
        assert!(made(None).rgb == plain, "{what}: features and results that are cached have no noise");
        let fresh = load(files).generate(&small("a cat", 7, Some("1:100:0.5"))).unwrap().rgb;
        assert!(fresh == two, "{what}: the caches change no image");
    });
}

#[test]
fn a_little_noise_changes_an_image_less() {
    let model = load(&built_in());
    let made = |variety: Option<&str>| model.generate(&small("a red heart", 7, variety)).unwrap().rgb;
    let plain = made(None);
    let distances = ["0.05:50:1", "0.2:50:1", "0.6:50:1"].map(|variety| difference(&made(Some(variety)), &plain));
    println!("{distances:?}");
    assert!(distances.is_sorted() && distances[0] > 0.0, "{distances:?}");
}

#[test]
fn images_of_a_batch_have_noise_of_their_own() {
    for_each_model(|what, files| {
        let model = load(files);
        let request = small("a cat", 5, Some("0.8:100:0.5"));
        let batch = model.generate_batch(&request, 3).unwrap();
        assert_eq!((batch.len(), batch[0].timings.images), (3, 3), "{what}: one batch");
        for (seed, image) in (5..).zip(&batch) {
            let alone = model.generate(&Request { seed, ..request.clone() }).unwrap();
            assert_near(what, &image.rgb, &alone.rgb);
        }
    });
}

#[test]
fn several_devices_add_the_noise_of_one() {
    let base = tempfile::tempdir().unwrap();
    write_base(base.path());
    for folder in [crate::support::root().join("models/tiny"), model_folder(), base.path().to_path_buf()] {
        let (limit, files) = (Duration::from_secs(60), ModelFiles::open(&folder).unwrap());
        let ranks = Cpu::group(Precision::F32, 2, limit).unwrap();
        let parallel = Parallel::load(ranks, &files).unwrap().with_grace(limit);
        let request = small("a cat", 5, Some("0.8:100:0.5"));
        let made = parallel.generate_batch(&request, 1, &CancelFlag::default(), &mut |_| {}).unwrap();
        assert_near(&folder.display().to_string(), &made[0].rgb, &load(&files).generate(&request).unwrap().rgb);
    }
}

#[test]
fn noise_is_refused_if_later_steps_would_read_it_too() {
    let model = load(&preset("tiny"));
    let embeddings = {
        let mut session = model.session(&small("a cat", 1, None), 1, &CancelFlag::default()).unwrap();
        Some(session.embeddings().unwrap())
    };
    let given = Request { embeddings, prompt: String::new(), ..small("", 1, Some("0.5")) };
    let image = Arc::new(Rgb { width: 64, height: 48, bytes: vec![90; 3 * 64 * 48] });
    let cells = Some((0..12).map(|i| if i < 6 { 0.0 } else { 1.0 }).collect());
    let change = Some(Change { image, cells, strength: 1.0, is_reference: true });
    let sized = Request { width: None, height: None, ..small("a cat", 1, Some("0.5")) };
    let sparse = Request { sparse: true, change, ..sized };
    for request in [given, sparse] {
        assert_eq!(model.generate(&request).unwrap_err().field(), Some(Field::Variety));
    }
}
