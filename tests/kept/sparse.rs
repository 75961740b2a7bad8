//! `sparse`: edits whose steps after the first compute only the masked area.

use std::sync::Arc;

use flux::error::ErrorKind;
use flux::files::ModelFiles;
use flux::pipeline::{Change, Request};
use flux::rgb::Rgb;

use super::{apart, drawn, model};
use crate::support::{load, preset, root};

const SIDE: usize = 256;
const CELLS: usize = SIDE / 16;

/// Returns an edit of the cells for which `is_anew` returns `true`, with the image as a reference.
fn edit(prompt: &str, image: &Arc<Rgb>, is_anew: impl Fn(usize) -> bool) -> Request {
    let cells = (0..image.width * image.height / 256).map(|cell| f32::from(u8::from(is_anew(cell)))).collect();
    let change = Change { image: Arc::clone(image), cells: Some(cells), strength: 1.0, is_reference: true };
    Request { change: Some(change), steps: Some(4), ..Request::new(prompt, 1) }
}

/// Returns `true` in a quarter of all cells, `left` and `top` cells from the corner.
fn quarter(cell: usize, left: usize, top: usize) -> bool {
    let inside = |at: usize, start: usize| (start..start + CELLS / 2).contains(&at);
    inside(cell % CELLS, left) && inside(cell / CELLS, top)
}

#[test]
fn a_sparse_edit_is_near_the_full_one_and_computes_half_the_tokens() {
    let model = model();
    // The error is in levels, over the masked area; another seed changes the full edit by 0.4 to 8 levels.
    for (before, prompt, [left, top], most) in [
        (
            "a blue square in the bottom left corner, yellow background",
            "add a red star in the top right corner",
            [8, 0],
            2.5,
        ),
        ("a red circle on a blue background", "a green star", [4, 4], 6.0),
        ("a red heart on a green background", "make the heart blue", [4, 4], 2.0),
    ] {
        let sized = Request { width: Some(SIDE), height: Some(SIDE), steps: Some(4), ..Request::new(before, 1) };
        let start = Arc::new(drawn(&model, &sized).0);
        let full = edit(prompt, &start, |cell| quarter(cell, left, top));
        let (expected, none) = drawn(&model, &full);
        let (sparse, tokens) = drawn(&model, &Request { sparse: true, ..full });
        let [error, change] = [&expected, &start].map(|other| apart(&sparse, other, |cell| quarter(cell, left, top)));
        println!("{prompt}: {error:.2} levels from the full edit, {change:.1} from the image; {tokens:?}");
        assert!(error < most && change > 1.5 * error, "{prompt}: {error} {change}");
        let [computed, all] = tokens.expect("some are kept");
        // 512 text tokens, a third and more of all tokens in such a small image.
        assert!(none.is_none() && all == 4 * 1024 && 10 * computed < 7 * all + all / 10, "{computed} of {all}");
    }
}

/// In a megapixel, text is a small part of the tokens, and a mask of a quarter leaves less than half of the work.
#[test]
fn with_a_quarter_of_a_large_image_less_than_half_of_all_tokens_are_computed() {
    let model = model();
    let side = 512;
    let image = Rgb { width: side, height: side, bytes: vec![120; 3 * side * side] };
    let full = edit("a red star", &Arc::new(image), |cell| cell % 32 >= 16 && cell / 32 < 16);
    let step = |request: &Request| {
        let timings = model.generate(request).expect("an image").timings;
        (timings.steps_s.iter().sum::<f64>(), timings.tokens)
    };
    let (full_s, _) = step(&full);
    let (sparse_s, tokens) = step(&Request { sparse: true, ..full });
    let tokens = tokens.expect("some are kept");
    let times = tokens.all as f64 / tokens.computed as f64;
    println!("{times:.2} times fewer tokens, {:.2} times faster", full_s / sparse_s);
    assert!(times >= 2.0, "{tokens:?}");
}

#[test]
fn latents_that_are_not_drawn_anew_are_those_of_the_full_edit_to_the_last_bit() {
    let model = model();
    let bytes = (0..3 * 96 * 64).map(|i| (i * 7 % 251) as u8).collect();
    let image = Arc::new(Rgb { width: 96, height: 64, bytes });
    let full = edit("a red star", &image, |cell| cell == 8 || cell == 9);
    let sparse = Request { sparse: true, ..full.clone() };
    let [full, sparse] = [full, sparse].map(|request| model.latents(&request).expect("latents"));
    let cells = full.chunks(full.len() / 24).zip(sparse.chunks(full.len() / 24)).enumerate();
    let differ: Vec<usize> = cells.filter(|(_, (full, sparse))| full != sparse).map(|(cell, _)| cell).collect();
    assert_eq!(differ, [8, 9]);
}

#[test]
fn a_single_step_or_a_black_mask_makes_the_full_edit() {
    let model = model();
    let bytes = (0..3 * 64 * 64).map(|i| (i % 251) as u8).collect();
    let image = Arc::new(Rgb { width: 64, height: 64, bytes });
    let one_step = Request { steps: Some(1), ..edit("a red star", &image, |cell| cell == 5) };
    // The first of four steps computes all tokens, and records the keys and values for the others.
    for (request, steps) in [(one_step, 1), (edit("a red star", &image, |_| false), 4)] {
        let (full, _) = drawn(&model, &request);
        let (sparse, tokens) = drawn(&model, &Request { sparse: true, ..request });
        assert!(sparse == full && tokens.is_some_and(|[computed, all]| steps * computed == all), "{tokens:?}");
    }
}

#[test]
fn images_of_a_job_are_made_one_by_one_and_each_is_the_one_of_its_seed() {
    let model = model();
    let image = Arc::new(Rgb { width: 64, height: 64, bytes: vec![90; 3 * 64 * 64] });
    let request = Request { sparse: true, ..edit("a red star", &image, |cell| cell == 5) };
    let together = model.generate_batch(&request, 2).expect("images");
    assert_eq!(together.len(), 1, "a batch has one");
    assert_eq!(together[0].rgb, drawn(&model, &request).0.bytes);
}

#[test]
fn what_cannot_be_sparse_is_refused_and_says_why() {
    let model = model();
    let image = Arc::new(Rgb { width: 64, height: 64, bytes: vec![90; 3 * 64 * 64] });
    let masked = edit("a red star", &image, |cell| cell == 5);
    let whole = Change { cells: None, ..masked.change.clone().unwrap() };
    let hidden = Change { is_reference: false, ..masked.change.clone().unwrap() };
    for (request, why) in [
        (Request::new("a red star", 1), "requires `mask`"),
        (Request { change: Some(whole), ..masked.clone() }, "requires `mask`"),
        (Request { change: Some(hidden), ..masked.clone() }, "cannot be used with `no_self_reference`"),
    ] {
        let error = model.plan(&Request { sparse: true, ..request }).unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(why), "{error}");
        assert!(error.to_string().contains("hint: "), "{error}");
    }
    let flux3 = ModelFiles::open(&root().join("tests/golden/flux3/model")).expect("the golden model");
    for (files, why) in [(preset("kv"), "cached keys"), (preset("base"), "with guidance"), (flux3, "early blocks")] {
        let other = load(&files);
        let error = other.plan(&Request { sparse: true, ..masked.clone() }).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
