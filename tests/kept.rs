//! Tokens that are cached from an earlier pass: evaluations of some tokens, edits under a mask, frames of a video.

mod evaluation;
mod reuse;
mod sparse;

use std::sync::Arc;

use flux::backend::cpu::Cpu;
use flux::pipeline::{Model, Request};
use flux::rgb::Rgb;

use crate::support::{built_in, load};

fn model() -> Arc<Model<Cpu>> {
    load(&built_in())
}

/// Returns the model's image, and the numbers of computed tokens and of all tokens, if some were cached.
fn drawn(model: &Arc<Model<Cpu>>, request: &Request) -> (Rgb, Option<[u64; 2]>) {
    let image = model.generate(request).expect("an image");
    let tokens = image.timings.tokens.map(|tokens| [tokens.computed, tokens.all]);
    (Rgb { width: image.plan.width, height: image.plan.height, bytes: image.rgb }, tokens)
}

/// Returns the mean absolute difference in levels, over the cells of 16 x 16 pixels for which `counts` returns `true`.
fn apart(a: &Rgb, b: &Rgb, counts: impl Fn(usize) -> bool) -> f64 {
    assert_eq!((a.width, a.height), (b.width, b.height));
    let cell = |i: usize| (i / 3 / a.width / 16) * (a.width / 16) + i / 3 % a.width / 16;
    let pairs = a.bytes.iter().zip(&b.bytes).enumerate().filter(|(i, _)| counts(cell(*i)));
    let (sum, count) = pairs.fold((0, 0), |(sum, count), (_, (a, b))| (sum + u64::from(a.abs_diff(*b)), count + 1));
    sum as f64 / f64::from(count.max(1))
}
