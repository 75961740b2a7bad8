//! Images with other conditioning and schedules, of random models; see scripts/dump_reference_sampling.py.

use std::sync::Arc;

use flux::backend::cpu::Cpu;
use flux::files::Array;
use flux::pipeline::{Embeddings, Latents, Model, Request};
use flux::sampler::{ScheduleKind, noise};
use flux::stage::CancelFlag;

use crate::support::{assert_near, golden, load, preset};

fn model(name: &str) -> Arc<Model<Cpu>> {
    load(&preset(name))
}

fn request(prompt: &str) -> Request {
    Request { width: Some(96), height: Some(64), steps: Some(2), ..Request::new(prompt, 3) }
}

#[track_caller]
fn assert_drawn(model: &Arc<Model<Cpu>>, request: &Request, name: &str) {
    let image = model.generate(request).unwrap();
    let expected = image::open(golden(&format!("sampling-{name}.png"))).unwrap().to_rgb8();
    assert_eq!((image.plan.width as u32, image.plan.height as u32), expected.dimensions());
    assert_near(name, &image.rgb, expected.as_raw());
}

#[test]
fn another_number_of_text_tokens_is_that_of_the_reference() {
    let request = Request { max_sequence_length: Some(21), ..request("a cat on the moon") };
    assert_drawn(&model("tiny"), &request, "max-sequence-length");
}

#[test]
fn latents_are_taken_as_the_reference_takes_them() {
    let model = model("tiny");
    let channels = model.info().transformer.in_channels;
    // Packed by token; the file and the reference have [channels, height, width].
    let tokens = noise(9, channels, 4, 6);
    let values = (0..channels).flat_map(|c| tokens.iter().skip(c).step_by(channels).map(|value| 0.7 * value)).collect();
    let latents = Latents::new(Array::new(vec![1, channels, 4, 6], values).unwrap()).unwrap();
    assert_drawn(&model, &Request { latents: Some(latents), ..request("a cat on the moon") }, "latents");
}

#[test]
fn noise_levels_are_those_that_the_reference_shifts_its_sigmas_to() {
    let schedule = ScheduleKind::Sigmas(vec![0.9, 0.6, 0.2]);
    assert_drawn(&model("tiny"), &Request { schedule, steps: None, ..request("a cat on the moon") }, "sigmas");
}

#[test]
fn a_negative_prompt_is_that_of_the_reference() {
    let negative = Some("the sea in the sun".to_string());
    let request = Request { negative, guidance: Some(2.5), ..request("an old map") };
    assert_drawn(&model("base"), &request, "negative");
}

#[test]
fn text_features_of_two_lengths_are_read_as_by_the_reference() {
    let model = model("base");
    let features = |prompt: &str, length| {
        let request = Request { max_sequence_length: Some(length), guidance: Some(1.0), ..request(prompt) };
        let embeddings = model.session(&request, 1, &CancelFlag::default()).unwrap().embeddings().unwrap();
        embeddings.prompt().clone()
    };
    let embeddings = Embeddings::new(features("an old map", 20), Some(features("the sea", 7))).unwrap();
    let request = Request { embeddings: Some(embeddings), guidance: Some(2.5), ..request("an old map") };
    assert_drawn(&model, &request, "embeddings");
}
