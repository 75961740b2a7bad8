//! Whole images on the GPU: against the reference, against themselves, and the costs of a step.

use std::thread;

use flux::backend::cuda::Cuda;
use flux::backend::{Device, Memory};
use flux::compare::difference;
use flux::error::ErrorKind;
use flux::files::ModelFiles;
use flux::model::ModelInfo;
use flux::nn::Weights;
use flux::ops::{TokenLayout, TokenSplit};
use flux::output::Rgb;
use flux::pipeline::{Model, Request};
use flux::sampler::{self, Conditioning, Evaluations, Schedule, empirical_shift};
use flux::stage::{CancelFlag, Stage};
use flux::transformer::{self, Sequence, Transformer, TransformerConfig};

use crate::support::random_model::PRESETS;
use crate::support::{Golden, golden, images, preset};
use crate::{cuda, cuda_fp8_attention, is_hopper, root, small};

/// Peak signal-to-noise ratio of two images, in dB.
pub fn psnr(a: &[u8], b: &[u8]) -> f64 {
    let row = |bytes: &[u8]| Rgb { width: bytes.len() / 3, height: 1, bytes: bytes.to_vec() };
    difference(&row(a), &row(b)).unwrap().psnr_db
}

/// Checks that the built-in model makes the same image on both backends, to `least` dB, and twice the same.
pub fn draws_alike(backends: [Cuda; 2], what: &str, least: f64) {
    let models = backends.map(|cuda| Model::load(cuda, &default_model()).unwrap());
    for (prompt, seed) in
        [("a red heart inside a yellow star on a teal background", 45), ("a robot on a lavender background", 7)]
    {
        let drawn = || models.each_ref().map(|model| model.generate(&Request::new(prompt, seed)).unwrap().rgb);
        let [expected, got] = drawn();
        let psnr = psnr(&got, &expected);
        println!("{prompt}: {what}: {psnr:.1} dB");
        assert!(psnr >= least, "{prompt}: {psnr:.1} dB");
        assert!(drawn()[1] == got, "one seed, one image");
    }
}

/// `||got - expected|| / ||expected||`
pub fn relative_error(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let difference: f64 = got.iter().zip(expected).map(|(g, e)| f64::from(g - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| f64::from(*e).powi(2)).sum();
    (difference / norm).sqrt()
}

pub fn default_model() -> ModelFiles {
    ModelFiles::open(&root().join("models/tiny")).unwrap()
}

#[derive(serde::Deserialize)]
struct Index {
    images: Vec<DefaultImage>,
}

#[derive(serde::Deserialize)]
struct DefaultImage {
    file: String,
    prompt: String,
    seed: u64,
}

/// The reference in bf16 is 49 to 56 dB from itself in float32.
#[test]
fn default_model_images_are_45_db_from_the_reference() {
    let Some(cuda) = cuda() else { return };
    let index: Index = serde_json::from_slice(&std::fs::read(golden("default-model/index.json")).unwrap()).unwrap();
    let model = Model::load(cuda, &default_model()).unwrap();
    for image in index.images.iter().take(if small() { 1 } else { 8 }) {
        let made = model.generate(&Request::new(&image.prompt, image.seed)).unwrap();
        let expected = image::open(golden("default-model").join(&image.file)).unwrap().to_rgb8();
        let psnr = psnr(&made.rgb, expected.as_raw());
        println!("{} {}: {psnr:.1} dB", image.file, image.prompt);
        assert!(psnr >= 45.0, "`{}` is {psnr:.1} dB from the reference", image.prompt);
    }
}

#[test]
fn random_models_stand_no_further_from_float32_than_the_reference_in_bf16() {
    let Some(cuda) = cuda() else { return };
    let images = images();
    for name in PRESETS {
        let model = Model::load(cuda.clone(), &preset(name)).unwrap();
        let latents = Golden::open(&format!("{name}.safetensors"));
        for row in images.iter().filter(|row| row.preset == name).take(if small() { 1 } else { usize::MAX }) {
            let got = model.latents(&row.request()).unwrap();
            let (_, expected) = latents.get(&format!("pipeline.{}.latents", row.case));
            let squares: f64 = got.iter().zip(&expected).map(|(g, e)| f64::from(g - e).powi(2)).sum();
            let rms = (squares / got.len() as f64).sqrt();
            println!("{name} {}: rms {rms:.4}, the reference in bf16 {:.4}", row.case, row.bf16.latents_rms);
            assert!(rms <= row.bf16.latents_rms, "{name} {}", row.case);
        }
    }
}

#[test]
fn same_seed_gives_the_same_bytes_and_another_seed_does_not() {
    let Some(cuda) = cuda() else { return };
    let model = Model::load(cuda, &default_model()).unwrap();
    let image = |seed| model.generate(&Request::new("a black cat on an orange background", seed)).unwrap().rgb;
    let first = image(5);
    assert_eq!(first, image(5));
    assert_ne!(first, image(6));
}

/// Multiplications of another size sum in another order, so both are as far from each other as from the reference.
#[test]
fn images_of_a_batch_are_those_of_their_seeds_alone() {
    let Some(cuda) = cuda() else { return };
    let model = Model::load(cuda, &default_model()).unwrap();
    let request = |seed| Request::new("a black cat on an orange background", seed);
    let batch = model.generate_batch(&request(5), 3).unwrap();
    assert_eq!((batch.len(), batch[0].timings.images), (3, 3), "they fit the memory");
    for image in batch {
        let alone = model.generate(&request(image.plan.seed)).unwrap();
        assert_eq!(alone.timings.prompts_encoded, 0, "the prompt is known");
        let psnr = psnr(&image.rgb, &alone.rgb);
        println!("seed {}: {psnr:.1} dB", image.plan.seed);
        assert!(psnr >= 45.0, "seed {}: {psnr:.1} dB", image.plan.seed);
    }
}

#[test]
fn a_warm_image_costs_exactly_this() {
    let Some(cuda) = cuda() else { return };
    let model = Model::load(cuda.clone(), &default_model()).unwrap();
    let request = Request::new("a black cat on an orange background", 5);
    let first = model.generate(&request).unwrap();
    let steps = first.plan.steps as u64;
    for round in 2..6 {
        let before = cuda.stats();
        let image = model.generate(&request).unwrap();
        let after = cuda.stats();
        assert!(image.rgb == first.rgb, "image {round}");
        assert_eq!(image.timings.steps_s.len() as u64, steps);
        assert_eq!(after.uncaptured, 0, "{:?}", cuda.remarks());
        // One for each step, the first of them so that no more than two are in flight; one for the pixels, and one for
        // the last event.
        assert_eq!(after.waits - before.waits, steps + 2, "image {round}");
        // Noise, and pixels back; the prompt is cached.
        assert_eq!(after.copies - before.copies, 2, "image {round}");
        // The first image runs without graphs. For the second, the first step and the decoder run and are then
        // captured, and the other steps are launches of that graph; later, all are.
        let graphs = if round == 2 { steps - 1 } else { steps + 1 };
        assert_eq!(after.graph_launches - before.graph_launches, graphs, "image {round}");
        if round == 2 {
            continue;
        }
        // The features are stacked and the context is projected. Around each graph its inputs (four for a step:
        // latents, context, modulations and dt) and its output are copied, and at the end pixels become bytes.
        assert_eq!(after.launches - before.launches, 2 + (4 + 1) * steps + (1 + 1) + 1, "image {round}");
        // Features, context, noise, outputs of graphs, bytes.
        assert_eq!(after.allocations - before.allocations, 3 + (steps + 1) + 1, "image {round}");
    }
}

#[test]
fn later_batches_of_many_images_are_graphed_whatever_is_left() {
    let Some(cuda) = cuda() else { return };
    let model = Model::load(cuda.clone(), &default_model()).unwrap();
    let mut request = Request::new("a black cat on an orange background", 5);
    let mut left = 26;
    let mut batches = Vec::new();
    while left > 0 {
        let before = cuda.stats();
        let images = model.generate_batch(&request, left).unwrap();
        let after = cuda.stats();
        let steps = images[0].plan.steps as u64;
        // One for each step, for the pixels of each image, and for the last event.
        assert_eq!(after.waits - before.waits, steps + images.len() as u64 + 1, "{left} images left");
        batches.push((images.len(), after.graph_launches - before.graph_launches));
        if batches.len() == 3 {
            assert_eq!(
                after.graph_launches - before.graph_launches,
                steps + 8,
                "the steps of a batch, and the decoder for each image"
            );
            // The features are stacked, and the context is projected and stacked eight times at once. Around each
            // graph its inputs and its output are copied, and at the end pixels become bytes.
            assert_eq!(after.launches - before.launches, 2 + 1 + (4 + 1) * steps + (2 + 1) * 8);
        }
        (left, request.seed) = (left - images.len(), request.seed + images.len() as u64);
    }
    // The decoder is captured at the second image, and a step at the first one of the second batch, whose three others
    // are launches of that graph. The last batch has another size, and its steps run without a graph.
    assert_eq!(batches, [(8, 6), (8, 3 + 8), (8, 4 + 8), (2, 2)]);
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
}

#[test]
fn captured_images_are_those_of_a_fresh_model() {
    let Some(cuda) = cuda() else { return };
    let model = Model::load(cuda, &default_model()).unwrap();
    // Sizes alternate, so that graphs of several sizes share their memory.
    for round in 0..4 {
        for (width, height, steps, prompt) in
            [(256, 256, 4, "a red heart"), (128, 192, 4, "a robot on a lavender background"), (256, 256, 2, "a cat")]
        {
            let request = Request {
                width: Some(width),
                height: Some(height),
                steps: Some(steps),
                ..Request::new(format!("{prompt} {round}"), 100 + round)
            };
            let got = model.generate(&request).unwrap().rgb;
            let expected =
                Model::load(crate::cuda().unwrap(), &default_model()).unwrap().generate(&request).unwrap().rgb;
            assert!(got == expected, "round {round}: {request:?}");
        }
    }
    assert_eq!(model.backend().stats().uncaptured, 0, "{:?}", model.backend().remarks());
    // From the third round on, steps and decoder; before that the steps of 256 x 256, which are one graph for any
    // number of steps, and the text encoder, as often as an earlier prompt had the same length.
    assert!(model.backend().stats().graph_launches >= 2 * (5 + 5 + 3));
}

#[test]
fn guidance_is_captured_too() {
    let Some(cuda) = cuda() else { return };
    let images = images();
    let row = images.iter().find(|row| row.preset == "base").unwrap();
    let model = Model::load(cuda.clone(), &preset("base")).unwrap();
    let all: Vec<_> = (0..4).map(|_| model.latents(&row.request()).unwrap()).collect();
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    assert!(cuda.stats().graph_launches > 0 && cuda.stats().uncaptured == 0, "{:?}", cuda.remarks());
}

#[test]
fn sessions_at_the_same_time_make_the_images_that_they_make_one_after_the_other() {
    let Some(cuda) = cuda() else { return };
    let request = |prompt: &str, seed, width, height, steps| Request {
        width: Some(width),
        height: Some(height),
        steps: Some(steps),
        ..Request::new(prompt, seed)
    };
    // The last one has the shape of the first.
    let requests = [
        request("a red heart", 1, 256, 256, 4),
        request("a robot on a lavender background", 2, 128, 192, 6),
        request("a cat", 3, 64, 64, 3),
        request("a black cat on an orange background", 4, 256, 256, 2),
    ];
    let model = Model::load(cuda.clone(), &default_model()).unwrap();
    let alone: Vec<_> = requests.iter().map(|request| model.generate(request).unwrap().rgb).collect();
    drop(model);
    // At first weights are loaded, then graphs are captured, and later launched, while other sessions enqueue.
    let model = Model::load(cuda.clone(), &default_model()).unwrap();
    let together: Vec<Vec<_>> = thread::scope(|scope| {
        let (model, requests) = (&model, &requests);
        let images = move |request: &Request| (0..6).map(|_| model.generate(request).unwrap().rgb).collect();
        let threads: Vec<_> = requests.iter().map(|request| scope.spawn(move || images(request))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for ((request, expected), images) in requests.iter().zip(&alone).zip(&together) {
        for (round, got) in images.iter().enumerate() {
            assert!(got == expected, "round {round}: {request:?}");
        }
    }
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
    assert!(cuda.stats().graph_launches > 0);
}

#[test]
fn a_cancelled_session_leaves_the_model_usable() {
    let Some(cuda) = cuda() else { return };
    let model = Model::load(cuda.clone(), &default_model()).unwrap();
    let request = Request { steps: Some(8), ..Request::new("a black cat on an orange background", 5) };
    let expected = model.generate(&request).unwrap().rgb;
    // While work runs without a graph, while it is captured, and while it is launched as a graph.
    for _ in 0..3 {
        for stage in [Stage::Text, Stage::Denoise, Stage::Decode] {
            let cancel = CancelFlag::default();
            // A cached prompt is not encoded. The second of two images is not decoded.
            let prompt = if stage == Stage::Text { "a black dog on an orange background" } else { &request.prompt };
            let request = Request { prompt: prompt.to_string(), ..request.clone() };
            let ended = model.session(&request, 2, &cancel).unwrap().run(&mut |progress| {
                if progress.stage == stage && progress.done > 0 {
                    cancel.cancel();
                }
            });
            assert_eq!(ended.map(drop).unwrap_err().kind(), ErrorKind::Cancelled, "{stage:?}");
        }
        assert!(model.generate(&request).unwrap().rgb == expected);
    }
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
}

#[test]
fn a_model_that_is_dropped_leaves_nothing_behind() {
    let Some(cuda) = cuda() else { return };
    // cuBLASLt's workspace stays.
    cuda.warm_up().unwrap();
    let before = cuda.stats().memory_bytes;
    let model = Model::load(cuda.clone(), &default_model()).unwrap();
    for seed in 0..3 {
        model.generate(&Request::new("a cat", seed)).unwrap();
    }
    assert!(cuda.stats().graph_launches > 0);
    drop(model);
    assert_eq!(cuda.stats().memory_bytes, before);
}

#[test]
fn weights_that_are_prefetched_are_those_that_are_needed() {
    let Some(cuda) = cuda() else { return };
    cuda.warm_up().unwrap();
    let before = cuda.stats().memory_bytes;
    let request = Request::new("a black cat on an orange background", 5);
    let expected = Model::load(cuda.clone(), &default_model()).unwrap().generate(&request).unwrap().rgb;
    let model = Model::load(cuda.clone(), &default_model()).unwrap();
    for _ in 0..2 {
        model.prefetch(&request).unwrap();
    }
    assert!(model.generate(&request).unwrap().rgb == expected);
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
    // Loaded weights are not loaded again.
    let copies = cuda.stats().copies;
    model.prefetch(&request).unwrap();
    model.generate(&request).unwrap();
    assert_eq!(cuda.stats().copies - copies, 2, "noise and pixels");
    drop(model);
    assert_eq!(cuda.stats().memory_bytes, before);
    // Weights whose loading ends after they are no longer needed do not stay either.
    let model = Model::load(cuda.clone(), &default_model()).unwrap();
    model.prefetch(&request).unwrap();
    drop(model);
    assert_eq!(cuda.stats().memory_bytes, before);
}

#[test]
fn a_step_waits_for_nothing_and_copies_nothing() {
    let Some(cuda) = cuda() else { return };
    // For each double block 4 GEMM for each stream, qk_norm_rope, attention, swiglu and 2 gated_add_adaln for both;
    // for each single block GEMM, qk_norm_rope, attention, swiglu, GEMM, gated_add_adaln; around them x_embedder,
    // copies of two parts for x, adaln, proj_out, euler_step. On Hopper the inside of a double block's MLP is one
    // kernel instead of two GEMM and a swiglu; heads of 32 do not use it before attention.
    let (config, launches) = step_launches(&cuda);
    assert_eq!(
        launches,
        (config.num_layers * (2 * 4 + 5 - fused_mlp(&cuda)) + config.num_single_layers * 6 + 6) as u64
    );
}

#[test]
fn a_step_in_fp8_quantizes_what_no_kernel_quantized_on_the_way() {
    let Some(cuda) = cuda_fp8_attention() else { return };
    // In a double block the output of attention, for text and image at once; and the input of the first block.
    let (config, launches) = step_launches(&cuda);
    // The output of SwiGLU is bf16, in double blocks for both streams at once.
    let (double, single) = (2 * 4 + 5 - fused_mlp(&cuda) + 1 + 1, 6 + 1);
    assert_eq!(launches, (config.num_layers * double + config.num_single_layers * single + 6 + 1) as u64);
}

/// Returns the launches that the kernel of cuda/project_sm90a.cu saves inside an MLP.
fn fused_mlp(cuda: &Cuda) -> usize {
    if is_hopper(cuda) { 2 } else { 0 }
}

/// Counts the launches of a step of the default model, and checks that all steps launch the same, wait for nothing and
/// copy nothing.
fn step_launches(cuda: &Cuda) -> (TransformerConfig, u64) {
    let dir = default_model();
    let info = ModelInfo::read(&dir).unwrap();
    let model = Transformer::load(&Weights::new(cuda, &transformer::open(&dir).unwrap()), &info.transformer).unwrap();
    let (txt, height, width) = (64, 16, 16);
    let (img, config) = (height * width, model.config().clone());
    let schedule = Schedule::new(empirical_shift(img, 4), 4);
    let modulations = model.modulations(&schedule.times()).unwrap();
    let split = TokenSplit::alone(TokenLayout::new(1, txt, height * width));
    let rope = model.rope(&split, &[], [height, width]).unwrap();
    let features = vec![0.1; txt * config.joint_attention_dim];
    let context = model.context(&cuda.upload(&features, txt, config.joint_attention_dim).unwrap()).unwrap();
    let conditioning = Conditioning {
        context: &context,
        sequence: Sequence::new(split, &rope),
        negative: None,
        cached: None,
        guidance: None,
        evaluations: Evaluations::InTurn,
        tiles: None,
    };
    let dts = cuda.upload(&schedule.dts(), 4, 1).unwrap();
    let noise = sampler::noise(1, config.in_channels, height, width);
    let mut latents = cuda.upload(&noise, img, config.in_channels).unwrap();

    let mut launches = Vec::new();
    for step in 0..4 {
        let before = cuda.stats();
        let modulation = model.modulation(&modulations.row(step)).unwrap();
        let dt = dts.row_view(step..step + 1);
        latents = sampler::step(&model, latents, &conditioning, &modulation, &dt).unwrap();
        let after = cuda.stats();
        assert_eq!((after.waits - before.waits, after.copies - before.copies), (0, 0), "step {step}");
        assert_eq!(
            after.composed - before.composed,
            0,
            "step {step}: every fused op has its kernel at the default model's sizes"
        );
        launches.push(after.launches - before.launches);
    }
    println!("launches of a step: {launches:?}");
    assert!(launches.windows(2).all(|pair| pair[0] == pair[1]), "every step launches the same: {launches:?}");
    (config, launches[0])
}

#[test]
fn too_little_memory_is_an_error_that_names_the_sizes() {
    if cuda().is_none() {
        return;
    }
    // The ops' own memory exceeds the first cap, and with the activations the second. Both are errors before anything
    // is loaded.
    let caps = [8 << 20, 170 << 20];
    for (prefetch, cap) in [false, true].into_iter().flat_map(|prefetch| caps.map(|cap| (prefetch, cap))) {
        let capped = Cuda::new(0, Some(cap)).unwrap();
        let model = Model::load(capped, &default_model()).unwrap();
        let request = Request::new("a cat", 1);
        if prefetch {
            model.prefetch(&request).unwrap();
        }
        let error = model.generate(&request).unwrap_err().to_string();
        println!("{error}");
        assert!(error.contains("256 x 256 image needs") && error.contains("MiB") && error.contains("hint"), "{error}");
    }
}
