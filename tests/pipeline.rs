//! One model and many images, one after the other and at the same time: cached parts, which change no image, and
//! cancellation of sessions.

use std::sync::{Arc, Barrier};
use std::thread;

use flux::backend::cpu::{Cpu, Precision};
use flux::error::{ErrorKind, Field};
use flux::files::ModelFiles;
use flux::files::quantized_cache::QuantizedCache;
use flux::model::OpenModel;
use flux::pipeline::{Area, Image, MAX_PROMPT_BYTES, Model, RegionPrompt, Request, Session};
use flux::stage::{CancelFlag, Progress, Stage};
use safetensors::{Dtype, SafeTensors};

use crate::support::{assert_near, built_in, load, preset};

fn model(name: &str) -> Arc<Model<Cpu>> {
    load(&preset(name))
}

fn small(prompt: &str, seed: u64) -> Request {
    Request { width: Some(64), height: Some(48), steps: Some(2), ..Request::new(prompt, seed) }
}

/// Makes an image, and returns its progress reports.
fn reports(model: &Arc<Model<Cpu>>, request: &Request) -> (Image, Vec<Progress>) {
    let mut reports = Vec::new();
    let session = model.session(request, 1, &CancelFlag::default()).unwrap();
    let mut images = session.run(&mut |progress| reports.push(progress)).unwrap();
    (images.pop().unwrap(), reports)
}

/// Two regions that overlap, in two sets of tokens besides those of the prompt alone.
fn with_regions(request: Request) -> Request {
    let region = |prompt: &str, sides| RegionPrompt { prompt: prompt.to_string(), area: Area::Box(sides) };
    let regions = vec![region("a cat", [0, 0, 1000, 500]), region("a dog", [0, 250, 700, 750])];
    Request { regions, ..request }
}

#[test]
fn regions_are_prompts_like_others_and_images_with_them_are_alone() {
    let model = model("tiny");
    let request = with_regions(small("a meadow", 1));
    let first = model.generate_batch(&request, 3).unwrap();
    assert_eq!((first.len(), first[0].timings.prompts_encoded), (1, 3));
    let Image { plan, .. } = &first[0];
    assert!(plan.text_tokens > plan.negative_tokens, "{plan:?}");
    // Nothing of an image without regions, or with others, is mixed in.
    let plain = model.generate(&small("a meadow", 1)).unwrap();
    let swapped = Request { regions: request.regions.iter().rev().cloned().collect(), ..request.clone() };
    let swapped = model.generate(&swapped).unwrap();
    let again = model.generate(&request).unwrap();
    assert_eq!([plain.timings.prompts_encoded, again.timings.prompts_encoded], [0, 0]);
    assert!(plain.rgb != first[0].rgb && swapped.rgb != first[0].rgb && again.rgb == first[0].rgb);
}

#[test]
fn guidance_compares_regions_with_the_negative_prompt_of_the_whole_image() {
    let model = model("base");
    let image = |guidance, negative: &str| {
        let guided = Request { guidance: Some(guidance), negative: Some(negative.to_string()), ..small("a meadow", 1) };
        model.generate(&with_regions(guided)).unwrap().rgb
    };
    let [one, fog, night] = [image(1.0, "fog"), image(4.0, "fog"), image(4.0, "night")];
    assert!(one != fog && fog != night && fog == image(4.0, "fog"));
}

#[test]
fn a_prompt_that_was_seen_before_is_not_encoded_again() {
    let model = model("tiny");
    let run = |prompt: &str, seed| {
        let (image, reports) = reports(&model, &small(prompt, seed));
        let layers = reports.iter().filter(|report| report.stage == Stage::Text).count();
        (image.timings.prompts_encoded, layers, image.rgb)
    };
    let (encoded, layers, first) = run("a cat", 1);
    assert!(encoded == 1 && layers > 0);
    assert_eq!(run("a dog", 1).0, 1);
    let again = run("a cat", 1);
    assert_eq!((again.0, again.1), (0, 0));
    assert!(again.2 == first, "cached features give the same image");
    assert_eq!(run("a cat", 2).0, 0, "the seed has nothing to do with it");
    for other in 0..7 {
        assert_eq!(run(&other.to_string(), 1).0, 1);
    }
    assert_eq!(run("a dog", 1).0, 0, "as many are kept as there is memory for");
}

#[test]
fn the_empty_prompt_of_guidance_is_encoded_once() {
    let model = model("base");
    let run = |prompt: &str| model.generate(&small(prompt, 1)).unwrap();
    let first = run("a cat");
    assert_eq!(first.timings.prompts_encoded, 2);
    assert_eq!(run("a dog").timings.prompts_encoded, 1);
    let again = run("a cat");
    assert_eq!(again.timings.prompts_encoded, 0);
    assert!(again.rgb == first.rgb);
    assert_eq!(run("").timings.prompts_encoded, 0);

    let fresh = self::model("base");
    assert_eq!(fresh.generate(&small("", 1)).unwrap().timings.prompts_encoded, 1, "both prompts are the same");
}

#[test]
fn images_of_a_batch_are_those_of_their_seeds_alone() {
    // With guidance the prompts of all samples come before the empty ones.
    for name in ["tiny", "base", "uneven"] {
        let model = model(name);
        let batch = model.generate_batch(&small("a cat", 7), 3).unwrap();
        assert_eq!(batch.iter().map(|image| image.plan.seed).collect::<Vec<_>>(), [7, 8, 9], "{name}");
        for image in &batch {
            assert_eq!((image.timings.images, image.timings.steps_s.len()), (3, 2), "{name}: one batch");
            let alone = model.generate(&small("a cat", image.plan.seed)).unwrap();
            assert_eq!(alone.timings.images, 1);
            // Observed: equal, but for one level in one model.
            assert_near(&format!("{name}, seed {}", image.plan.seed), &image.rgb, &alone.rgb);
        }
        assert!(batch[0].rgb != batch[1].rgb && batch[1].rgb != batch[2].rgb, "{name}");
    }
}

#[test]
fn many_images_come_in_several_batches_and_none_is_refused() {
    let model = model("tiny");
    assert_eq!(model.generate_batch(&small("a cat", 1), 100).unwrap().len(), 8);
    assert_eq!(model.generate_batch(&small("a cat", u64::MAX), 1).unwrap()[0].plan.seed, u64::MAX);
    let refused = |seed, count| model.generate_batch(&small("a cat", seed), count).unwrap_err().field();
    assert_eq!([refused(1, 0), refused(u64::MAX, 2)], [Some(Field::Count), Some(Field::Seed)]);
}

/// Returns the images of `requests` from a model one after the other, and from another at the same time.
fn alone_and_together(load: impl Fn() -> Arc<Model<Cpu>>, requests: &[Request]) -> [Vec<Vec<u8>>; 2] {
    let model = load();
    let alone = requests.iter().map(|request| model.generate(request).unwrap().rgb).collect();
    let (model, start) = (load(), Barrier::new(requests.len()));
    let together = thread::scope(|scope| {
        let generate = |request| {
            start.wait();
            model.generate(request).unwrap().rgb
        };
        let threads: Vec<_> = requests.iter().map(|request| scope.spawn(move || generate(request))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    [alone, together]
}

#[test]
fn sessions_at_the_same_time_make_the_images_that_they_make_one_after_the_other() {
    let sized = |prompt: &str, seed, [width, height]: [usize; 2], steps| Request {
        width: Some(width),
        height: Some(height),
        steps: Some(steps),
        ..Request::new(prompt, seed)
    };
    // The last one has the shape of the first.
    let requests = [
        sized("a cat", 1, [64, 48], 3),
        sized("a dog", 2, [96, 64], 2),
        sized("", 3, [32, 32], 4),
        sized("a dog", 4, [64, 48], 2),
    ];
    for name in ["tiny", "base"] {
        let [alone, together] = alone_and_together(|| model(name), &requests);
        assert!(alone == together, "{name}");
    }
    let [alone, together] = alone_and_together(
        || load(&built_in()),
        &[sized("a red heart", 1, [64, 64], 2), sized("a robot on a lavender background", 2, [64, 96], 2)],
    );
    assert!(alone == together, "the default model");
}

#[test]
fn a_session_reports_each_layer_step_and_stage() {
    let model = model("tiny");
    let (_, reports) = reports(&model, &small("a cat", 1));
    for stage in [Stage::Text, Stage::Denoise, Stage::Decode] {
        let of: Vec<_> = reports.iter().filter(|report| report.stage == stage).collect();
        let total = of[0].total;
        assert!(of.iter().all(|report| report.total == total), "{of:?}");
        assert!(of.windows(2).all(|pair| pair[0].done <= pair[1].done), "{of:?}");
        assert!((1..=total).all(|part| of.iter().any(|report| report.done == part)), "each part is told: {of:?}");
    }
    assert!(reports.contains(&Progress { stage: Stage::Denoise, done: 2, total: 2 }));
}

#[test]
fn a_cancelled_session_ends_at_once_and_the_model_goes_on() {
    let model = model("tiny");
    let request = Request { steps: Some(5), ..small("a cat", 1) };
    let expected = self::model("tiny").generate(&request).unwrap().rgb;
    // From the second time on the shape is known, and a GPU would launch captured work.
    for (round, stage) in [Stage::Text, Stage::Denoise, Stage::Decode, Stage::Denoise, Stage::Decode].iter().enumerate()
    {
        let cancel = CancelFlag::default();
        let mut session = model.session(&request, 1, &cancel).unwrap();
        let mut later = Vec::new();
        let mut run = |session: &mut Session<Cpu>| {
            session.decode(&mut |progress| {
                if progress.stage == *stage && progress.done == 1 {
                    cancel.cancel();
                } else if cancel.check().is_err() {
                    later.push(progress);
                }
            })
        };
        let error = run(&mut session).map(drop).unwrap_err();
        assert_eq!((error.kind(), error.what()), (ErrorKind::Cancelled, "cancelled"), "round {round}");
        assert_eq!(later, [], "nothing runs any more in round {round}");
        assert!(session.decode(&mut |_| {}).is_err(), "and it does not begin again");
        if round == 2 {
            assert!(model.generate(&request).unwrap().rgb == expected);
        }
    }
    assert!(model.generate(&request).unwrap().rgb == expected);
    let cancelled = CancelFlag::default();
    cancelled.cancel();
    assert_eq!(model.session(&request, 1, &cancelled).map(drop).unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn images_of_a_session_come_one_by_one() {
    let model = model("tiny");
    let cancel = CancelFlag::default();
    let mut session = model.session(&small("a cat", 7), 3, &cancel).unwrap();
    assert_eq!(session.prepare(&mut |_| {}).unwrap(), 3);
    assert_eq!([(); 3].map(|()| session.step(&mut |_| {}).unwrap()), [true, true, false]);
    let first = session.decode(&mut |_| {}).unwrap().unwrap();
    assert_eq!(first.plan.seed, 7);
    assert_near("the first of three", &first.rgb, &model.generate(&small("a cat", 7)).unwrap().rgb);
    cancel.cancel();
    assert_eq!(session.decode(&mut |_| {}).map(drop).unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn a_prompt_that_is_too_long_is_refused_by_its_size() {
    let model = model("tiny");
    let plan = |bytes: usize| model.plan(&small(&"x".repeat(bytes), 1));
    assert!(plan(MAX_PROMPT_BYTES).unwrap().notes[0].contains("cut off"));
    let error = plan(MAX_PROMPT_BYTES + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("65537") && error.to_string().contains("65536"), "{error}");
}

#[test]
fn a_size_far_from_the_models_has_a_note() {
    let noted = |dir: &ModelFiles, width, height| {
        let model = load(dir);
        let request = Request { width: Some(width), height: Some(height), ..Request::new("a cat", 1) };
        let notes = model.plan(&request).unwrap().notes;
        let note = notes.iter().find(|note| note.contains("trained for")).cloned();
        note.inspect(|note| assert!(note.contains(&format!("{width}x{height}")), "{note}")).is_some()
    };
    // The built-in model's metadata has its range of sizes.
    let tiny = &built_in();
    for (width, height, expected) in [
        (256, 256, false),
        (512, 512, false),
        (128, 128, false),
        (128, 256, false),
        (512, 256, false),
        (128, 512, true), // sides of those lengths, but not in that ratio
        (112, 128, true),
        (528, 512, true),
    ] {
        assert_eq!(noted(tiny, width, height), expected, "{width}x{height}");
    }
    // A model without trained sizes was made for 64x64, and supports half to twice the side.
    let silent = &preset("tiny");
    for (side, expected) in [(16, true), (32, false), (64, false), (128, false), (144, true)] {
        assert_eq!(noted(silent, side, side), expected, "{side}");
    }
}

#[test]
fn the_quantized_cache_lies_beside_the_model_and_changes_nothing_on_the_cpu() {
    let dir = preset("sharded");
    let folder = dir.folder().unwrap();
    let image = |expected: Option<QuantizedCache>| {
        let mut model = OpenModel::open(&dir).unwrap();
        if let Some(expected) = expected {
            let attached = model.attach_quantized_cache(folder, &CancelFlag::default(), &mut |_| {});
            assert_eq!(attached.unwrap(), expected);
        }
        Model::new(Cpu::new(Precision::F32), model).generate(&small("a cat", 1)).unwrap().rgb
    };
    let path = folder.join("flux-fp8.safetensors");
    let [without, made, found] =
        [None, Some(QuantizedCache::Made(path.clone(), None)), Some(QuantizedCache::Found)].map(image);
    assert!(without == made && made == found, "the CPU computes with the weights themselves");

    // Each stream of a double block has q, k, v, out and two of the MLP; a single block has two.
    let transformer = model("sharded").info().transformer.clone();
    let bytes = std::fs::read(path).unwrap();
    let cache = SafeTensors::deserialize(&bytes).unwrap();
    let of = |dtype| cache.tensors().iter().filter(|(_, tensor)| tensor.dtype() == dtype).count();
    let matrices = 12 * transformer.num_layers + 2 * transformer.num_single_layers;
    assert_eq!([of(Dtype::F8_E4M3), of(Dtype::F32), cache.len()], [matrices, matrices, 2 * matrices]);
}

#[test]
fn a_quantized_cache_that_is_cancelled_while_it_is_written_leaves_no_file() {
    let dir = preset("tiny");
    let folder = dir.folder().unwrap();
    let entries = || std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    let before = entries();
    let (cancel, mut later) = (CancelFlag::default(), 0);
    let attached = OpenModel::open(&dir).unwrap().attach_quantized_cache(folder, &cancel, &mut |progress| {
        later += usize::from(cancel.check().is_err());
        if progress.stage == Stage::Quantize && progress.done > 0 {
            cancel.cancel();
        }
    });
    assert_eq!(attached.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!((later, entries()), (0, before), "nothing more is written, and nothing is left");
}
