//! `reuse`: frames that reuse tokens of an earlier frame.

use std::sync::Arc;

use flux::backend::cpu::Cpu;
use flux::pipeline::{Change, Latents, Model, Request, Reuse};
use flux::rgb::Rgb;

use super::{apart, drawn, model};

const SIDE: usize = 192;

/// Returns a disc on a slope of colours, moved by a pan, with the noise of a camera.
fn scene(disc: [i64; 2], pan: i64, noise: i64, time: u64) -> Arc<Rgb> {
    let value = |i: usize| {
        let (x, y, color) = ((i / 3 % SIDE) as i64, (i / 3 / SIDE) as i64, i % 3);
        let is_inside = (x - disc[0]).pow(2) + (y - disc[1]).pow(2) < 26 * 26;
        let plain = match (is_inside, color) {
            (true, 0) => 210,
            (true, _) => 40,
            (false, 0) => 90 + (x + pan) % 128,
            (false, _) => 150 + y / 3,
        };
        let mixed = (time << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        (plain + mixed as i64 % (2 * noise + 1) - noise) as u8
    };
    Arc::new(Rgb { width: SIDE, height: SIDE, bytes: (0..3 * SIDE * SIDE).map(value).collect() })
}

/// Returns a request for the image of a frame, alone.
fn alone(frame: &Arc<Rgb>) -> Request {
    Request { references: vec![Arc::clone(frame)], steps: Some(2), ..Request::new("make the disc green", 42) }
}

/// As `alone`, with reused tokens.
fn reused(frame: &Arc<Rgb>) -> Request {
    Request { reuse: Some(Reuse { threshold: 0.02, refresh: 100 }), ..alone(frame) }
}

/// Makes the image of `frame` after that of `first`. Returns the share of computed tokens, the distance in levels from
/// the image of `frame` alone, and the image.
fn behind(model: &Arc<Model<Cpu>>, first: &Arc<Rgb>, frame: &Arc<Rgb>) -> (f64, f64, Rgb) {
    let (_, tokens) = drawn(model, &reused(first));
    let [computed, all] = tokens.expect("frames count them");
    assert!(computed == 0 || computed == all, "the first one, or one that is known");
    let (image, tokens) = drawn(model, &reused(frame));
    let [computed, all] = tokens.expect("frames count them");
    (computed as f64 / all as f64, apart(&image, &drawn(model, &alone(frame)).0, |_| true), image)
}

#[test]
fn a_frame_that_is_equal_has_the_image_of_the_one_before_to_the_byte_without_work() {
    let model = model();
    let frame = scene([60, 90], 0, 3, 1);
    let (expected, none) = drawn(&model, &alone(&frame));
    let (first, tokens) = drawn(&model, &reused(&frame));
    assert!(first == expected && none.is_none(), "recording changes nothing");
    assert!(tokens.is_some_and(|[computed, all]| computed == all));
    let again = Arc::new(frame.as_ref().clone());
    let (second, tokens) = drawn(&model, &reused(&again));
    assert!(second == expected && tokens.is_some_and(|[computed, all]| computed == 0 && all > 0), "{tokens:?}");
}

/// The errors in docs/live.md, in levels of 8 bits, against the full computation.
#[test]
fn the_error_of_three_scenes_is_what_is_stated() {
    let model = model();
    let moving = behind(&model, &scene([60, 90], 0, 0, 1), &scene([76, 90], 0, 0, 1));
    println!("a disc moves: {:.3} computed, {:.3} levels", moving.0, moving.1);
    let noise = behind(&model, &scene([60, 90], 0, 3, 1), &scene([60, 90], 0, 3, 2));
    println!("a camera's noise: {:.3} computed, {:.3} levels", noise.0, noise.1);
    let pan = behind(&model, &scene([60, 90], 0, 0, 1), &scene([60, 90], 24, 0, 1));
    println!("a pan: {:.3} computed, {:.3} levels", pan.0, pan.1);
    assert!((0.1..0.2).contains(&moving.0) && moving.1 < 2.0, "{} {}", moving.0, moving.1);
    assert!(noise.0 == 0.0 && noise.1 < 6.0, "{} {}", noise.0, noise.1);
    assert!(pan.0 == 1.0 && pan.1 == 0.0, "{} {}", pan.0, pan.1);
}

#[test]
fn what_is_kept_is_of_the_last_frame_that_was_computed_as_a_whole() {
    let model = model();
    let frames = [[60, 90], [76, 90], [92, 90]].map(|disc| scene(disc, 0, 0, 1));
    let direct = behind(&model, &frames[0], &frames[2]).2;
    drawn(&model, &reused(&frames[1]));
    assert_eq!(drawn(&model, &reused(&frames[2])).0, direct, "errors do not grow from frame to frame");
    let (first, tokens) = drawn(&model, &reused(&frames[0]));
    assert!(first == drawn(&model, &alone(&frames[0])).0 && tokens.is_some_and(|[computed, _]| computed == 0));
}

#[test]
fn all_is_computed_where_something_else_is_asked_and_after_some_frames() {
    let model = model();
    let frame = scene([60, 90], 0, 0, 1);
    let all = |request: &Request| drawn(&model, request).1.is_some_and(|[computed, all]| computed == all);
    assert!(all(&reused(&frame)) && !all(&reused(&frame)));
    for other in [
        Request { prompt: "make the disc blue".to_string(), ..reused(&frame) },
        Request { seed: 7, ..reused(&frame) },
        Request { steps: Some(1), ..reused(&frame) },
        Request { references: vec![Arc::clone(&frame), scene([9, 9], 0, 0, 2)], ..reused(&frame) },
    ] {
        assert!(all(&other) && !all(&other));
    }
    let refreshed = Request { reuse: Some(Reuse { threshold: 0.02, refresh: 3 }), ..reused(&frame) };
    assert_eq!([0; 7].map(|_| all(&refreshed)), [true, false, false, true, false, false, true]);
}

#[test]
fn a_frame_that_is_changed_by_a_strength_reuses_too() {
    let model = model();
    let change = |frame: &Arc<Rgb>, reuse: bool| {
        let change = Change { image: Arc::clone(frame), cells: None, strength: 0.5, is_reference: false };
        let reuse = Some(Reuse { threshold: 0.02, refresh: 100 }).filter(|_| reuse);
        Request { change: Some(change), references: Vec::new(), reuse, ..alone(frame) }
    };
    let [first, second] = [[60, 90], [76, 90]].map(|disc| scene(disc, 0, 0, 1));
    drawn(&model, &change(&first, true));
    let (image, tokens) = drawn(&model, &change(&second, true));
    let [computed, all] = tokens.expect("frames count them");
    let error = apart(&image, &drawn(&model, &change(&second, false)).0, |_| true);
    println!("{computed} of {all}, {error:.3} levels");
    assert!(0 < computed && computed < all && error < 2.0, "{computed} of {all}: {error}");
}

#[test]
fn what_cannot_be_reused_is_refused_and_says_why() {
    let model = model();
    let frame = scene([60, 90], 0, 0, 1);
    let cells = Some(Arc::from(vec![1.0; 144]));
    let masked = Change { image: Arc::clone(&frame), cells, strength: 1.0, is_reference: true };
    let values = vec![0.0; 32 * 144];
    let latents = Latents::new(flux::files::Array { shape: vec![32, 12, 12], values }).unwrap();
    for (request, why) in [
        (Request { references: Vec::new(), ..reused(&frame) }, "requires a frame"),
        (Request { width: Some(64), ..reused(&frame) }, "of the same size"),
        (Request { change: Some(masked), references: Vec::new(), ..reused(&frame) }, "with a mask"),
        (Request { latents: Some(latents), ..reused(&frame) }, "noise of one seed"),
        (Request { reuse: Some(Reuse { threshold: 2.0, refresh: 1 }), ..reused(&frame) }, "expected 0 to 1"),
    ] {
        let error = model.plan(&request).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("hint: "), "{error}");
    }
}
