//! One pipeline and many pictures: what is computed once, and that it changes nothing.

mod support;

use flux::backend::cpu::{Cpu, Precision};
use flux::pipeline::{Observer, Pipeline, Request, Stage};

use support::preset;

fn pipeline(name: &str) -> Pipeline<Cpu> {
    Pipeline::load(Cpu::new(Precision::F32), &preset(name)).expect("a model of the tests")
}

fn small(prompt: &str, seed: u64) -> Request {
    Request { width: Some(64), height: Some(48), steps: Some(2), ..Request::new(prompt, seed) }
}

/// Counts the layers of the text encoder that ran.
#[derive(Default)]
struct Layers(usize);

impl Observer for Layers {
    fn progress(&mut self, stage: Stage, done: u64, _total: u64) {
        self.0 += usize::from(stage == Stage::Text && done > 0);
    }
}

#[test]
fn a_prompt_that_was_seen_before_is_not_encoded_again() {
    let mut pipeline = pipeline("tiny");
    let mut run = |prompt: &str, seed| {
        let mut layers = Layers::default();
        let picture = pipeline.generate(&small(prompt, seed), &mut layers).unwrap();
        (picture.timings.prompts_encoded, layers.0, picture.rgb)
    };
    let (encoded, layers, first) = run("a cat", 1);
    assert!(encoded == 1 && layers > 0);
    assert_eq!(run("a dog", 1).0, 1);
    let again = run("a cat", 1);
    assert_eq!((again.0, again.1), (0, 0));
    assert!(again.2 == first, "kept features give the same picture");
    assert_eq!(run("a cat", 2).0, 0, "the seed has nothing to do with it");
    for other in 0..7 {
        assert_eq!(run(&other.to_string(), 1).0, 1);
    }
    assert_eq!(run("a dog", 1).0, 1, "only the last prompts are kept");
}

#[test]
fn the_empty_prompt_of_guidance_is_encoded_once() {
    let mut pipeline = pipeline("base");
    let mut run = |prompt: &str| pipeline.generate(&small(prompt, 1), &mut ()).unwrap();
    let first = run("a cat");
    assert_eq!(first.timings.prompts_encoded, 2);
    assert_eq!(run("a dog").timings.prompts_encoded, 1);
    let again = run("a cat");
    assert_eq!(again.timings.prompts_encoded, 0);
    assert!(again.rgb == first.rgb);
    assert_eq!(run("").timings.prompts_encoded, 0);

    let mut fresh = self::pipeline("base");
    assert_eq!(fresh.generate(&small("", 1), &mut ()).unwrap().timings.prompts_encoded, 1, "both prompts are the same");
}
