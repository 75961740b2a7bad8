//! One pipeline and many images: what is computed once, and that it changes nothing.

mod support;

use flux::backend::cpu::{Cpu, Precision};
use flux::files::quantised_cache::QuantisedCache;
use flux::pipeline::{Observer, OpenModel, Pipeline, Request, Stage};
use safetensors::{Dtype, SafeTensors};

use support::preset;

fn pipeline(name: &str) -> Pipeline<Cpu> {
    Pipeline::load(Cpu::new(Precision::F32), &preset(name)).expect("a model of the tests")
}

fn small(prompt: &str, seed: u64) -> Request {
    Request { width: Some(64), height: Some(48), steps: Some(2), ..Request::new(prompt, seed) }
}

/// Observed: equal, but for one level in one model.
fn assert_same_image(a: &[u8], b: &[u8], what: &str) {
    assert_eq!(a.len(), b.len());
    let worst = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max();
    println!("{what}: {worst:?}");
    assert!(worst <= Some(1), "{what} differs by {worst:?} levels");
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
        let image = pipeline.generate(&small(prompt, seed), &mut layers).unwrap();
        (image.timings.prompts_encoded, layers.0, image.rgb)
    };
    let (encoded, layers, first) = run("a cat", 1);
    assert!(encoded == 1 && layers > 0);
    assert_eq!(run("a dog", 1).0, 1);
    let again = run("a cat", 1);
    assert_eq!((again.0, again.1), (0, 0));
    assert!(again.2 == first, "kept features give the same image");
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

#[test]
fn images_of_a_batch_are_those_of_their_seeds_alone() {
    // With guidance the prompts of all samples come before the empty ones.
    for name in ["tiny", "base", "uneven"] {
        let mut pipeline = pipeline(name);
        let batch = pipeline.generate_batch(&small("a cat", 7), 3, &mut ()).unwrap();
        assert_eq!(batch.iter().map(|image| image.plan.seed).collect::<Vec<_>>(), [7, 8, 9], "{name}");
        for image in &batch {
            assert_eq!((image.timings.images, image.timings.steps_s.len()), (3, 2), "{name}: one batch");
            let alone = pipeline.generate(&small("a cat", image.plan.seed), &mut ()).unwrap();
            assert_eq!(alone.timings.images, 1);
            assert_same_image(&alone.rgb, &image.rgb, &format!("{name}, seed {}", image.plan.seed));
        }
        assert!(batch[0].rgb != batch[1].rgb && batch[1].rgb != batch[2].rgb, "{name}");
    }
}

#[test]
fn many_images_come_in_several_batches_and_none_is_refused() {
    let mut pipeline = pipeline("tiny");
    assert_eq!(pipeline.generate_batch(&small("a cat", 1), 100, &mut ()).unwrap().len(), 8);
    assert_eq!(pipeline.generate_batch(&small("a cat", u64::MAX), 1, &mut ()).unwrap()[0].plan.seed, u64::MAX);
    let refused = |pipeline: &mut Pipeline<Cpu>, seed, count| {
        pipeline.generate_batch(&small("a cat", seed), count, &mut ()).unwrap_err().to_string()
    };
    assert!(refused(&mut pipeline, 1, 0).contains("--count"));
    assert!(refused(&mut pipeline, u64::MAX, 2).contains("--seed"));
}

#[test]
fn weights_in_fp8_are_kept_beside_the_model_and_change_nothing_elsewhere() {
    let dir = preset("sharded");
    let folder = dir.folder().unwrap();
    let image = |kept: Option<QuantisedCache>| {
        let mut model = OpenModel::open(&dir).unwrap();
        if let Some(kept) = kept {
            assert_eq!(model.keep_fp8(folder, &mut ()).unwrap(), kept);
        }
        Pipeline::new(Cpu::new(Precision::F32), model).generate(&small("a cat", 1), &mut ()).unwrap().rgb
    };
    let path = folder.join("flux-fp8.safetensors");
    let [without, made, found] =
        [None, Some(QuantisedCache::Made(path.clone(), None)), Some(QuantisedCache::Found)].map(image);
    assert!(without == made && made == found, "the CPU computes with the weights themselves");

    // Of each stream of a double block q, k, v, out and two of the MLP; of a single block two.
    let transformer = pipeline("sharded").info().transformer.clone();
    let bytes = std::fs::read(path).unwrap();
    let kept = SafeTensors::deserialize(&bytes).unwrap();
    let of = |dtype| kept.tensors().iter().filter(|(_, tensor)| tensor.dtype() == dtype).count();
    let matrices = 12 * transformer.num_layers + 2 * transformer.num_single_layers;
    assert_eq!([of(Dtype::F8_E4M3), of(Dtype::F32), kept.len()], [matrices, matrices, 2 * matrices]);
}
