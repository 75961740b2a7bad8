//! Images of several devices together, against those of one device, and failures of one of the devices.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use flux::Error;
use flux::backend::cpu::{Cpu, Precision};
use flux::error::{ErrorKind, Field};
use flux::files::ModelFiles;
use flux::pipeline::{Area, Change, Image, Model, Parallel, RegionPrompt, Request};
use flux::rgb::Rgb;
use flux::stage::{CancelFlag, Stage};

use crate::support::random_model::{self, RandomModel};
use crate::support::{built_in, load, preset};

const WORLDS: [usize; 2] = [2, 4];

fn parallel(files: &ModelFiles, world: usize) -> Parallel<Cpu> {
    parallel_within(files, world, Cpu::GROUP_LIMIT)
}

fn parallel_within(files: &ModelFiles, world: usize, limit: Duration) -> Parallel<Cpu> {
    let ranks = Cpu::group(Precision::F32, world, limit).expect("a group");
    Parallel::load(ranks, files).expect("a model of the tests").with_grace(limit)
}

fn sized(prompt: &str, seed: u64, [width, height]: [usize; 2]) -> Request {
    Request { width: Some(width), height: Some(height), steps: Some(2), ..Request::new(prompt, seed) }
}

fn picture(width: usize, height: usize, seed: usize) -> Arc<Rgb> {
    let byte = |i: usize| (128.0 + 100.0 * ((i + seed) as f32 / 97.0).sin()) as u8;
    Arc::new(Rgb { width, height, bytes: (0..3 * width * height).map(byte).collect() })
}

/// Returns an edit of some cells in the lower half.
fn changed(image: Arc<Rgb>, is_reference: bool, strength: f64) -> Option<Change> {
    let (columns, rows) = (image.width / 16, image.height / 16);
    let cells = (0..columns * rows).map(|i| if i / columns < rows / 2 { 0.0 } else { 0.75 }).collect();
    Some(Change { image, cells: Some(cells), strength, is_reference })
}

fn generate(parallel: &Parallel<Cpu>, request: &Request, count: usize) -> flux::Result<Vec<Image>> {
    parallel.generate_batch(request, count, &CancelFlag::default(), &mut |_| {})
}

/// Observed: one level in few bytes, by rounding.
#[track_caller]
fn assert_same(files: &ModelFiles, worlds: &[usize], request: &Request, count: usize, what: &str) {
    let expected = load(files).generate_batch(request, count).unwrap();
    for &world in worlds {
        let parallel = parallel(files, world);
        let made = generate(&parallel, request, count).unwrap();
        assert_eq!(made.len(), expected.len(), "{what}, {world}");
        for (image, expected) in made.iter().zip(&expected) {
            assert_eq!((image.plan.seed, image.rgb.len()), (expected.plan.seed, expected.rgb.len()));
            let pairs = || image.rgb.iter().zip(&expected.rgb);
            let worst = pairs().map(|(a, b)| a.abs_diff(*b)).max();
            println!("{what}, {world} devices: {worst:?}, {} bytes", pairs().filter(|(a, b)| a != b).count());
            assert!(worst <= Some(1), "{what}, {world} devices: {worst:?} levels");
        }
        if world == worlds[0] {
            let again = generate(&parallel, request, count).unwrap();
            let same = made.iter().zip(&again).all(|(made, again)| made.rgb == again.rgb);
            assert!(same, "{what}, {world} devices: not the same twice");
        }
    }
}

#[test]
fn devices_that_share_an_image_take_no_regions() {
    let regions = vec![RegionPrompt { prompt: "a cat".to_string(), area: Area::Box([0, 0, 1000, 500]) }];
    let request = Request { regions, ..sized("a meadow", 1, [64, 64]) };
    let error = generate(&parallel(&built_in(), 2), &request, 1).unwrap_err();
    assert!(error.field() == Some(Field::Regions) && error.to_string().contains("hint"), "{error}");
}

#[test]
fn several_devices_make_the_image_of_one() {
    let files = built_in();
    assert_same(&files, &WORLDS, &sized("a red heart", 1, [208, 176]), 1, "208 x 176");
    assert_same(&files, &[8], &sized("a red heart", 1, [48, 144]), 1, "48 x 144");
    // Fewer rows of packed latents than devices, and even fewer tokens.
    assert_same(&files, &[4], &sized("a boat", 2, [112, 48]), 1, "112 x 48");
    assert_same(&files, &[4], &sized("a boat", 2, [32, 16]), 1, "32 x 16");
}

#[test]
fn a_batch_is_shared_sample_by_sample() {
    assert_same(&built_in(), &WORLDS, &sized("a blue star", 5, [48, 80]), 2, "two images");
    assert_same(&preset("tiny"), &WORLDS, &sized("a cat", 5, [48, 80]), 3, "three images of a random model");
}

#[test]
fn guidance_is_shared_with_prompts_of_one_length_and_of_two() {
    let files = preset("base");
    let guided = Request { guidance: Some(3.0), negative: Some("rain".to_string()), ..sized("a cat", 3, [80, 48]) };
    assert_same(&files, &[2], &guided, 1, "guidance");
    assert_same(&files, &[2], &guided, 2, "guidance of a batch");
    let same_length = Request { negative: None, ..guided.clone() };
    assert_same(&files, &[2], &same_length, 1, "guidance with the empty prompt");
    let references = vec![picture(48, 80, 0)];
    assert_same(&files, &[2], &Request { references: references.clone(), ..guided.clone() }, 1, "with a reference");
    // Four heads: each half of four devices has all of them.
    let folder = tempfile::tempdir().unwrap();
    let model = RandomModel { kind: random_model::Kind::Base, ..RandomModel::preset("tiny").unwrap() };
    model.write(folder.path()).unwrap();
    let files = ModelFiles::open(folder.path()).unwrap();
    assert_same(&files, &WORLDS, &guided, 1, "guidance of halves");
    assert_same(&files, &[4], &guided, 2, "guidance of halves and a batch");
    assert_same(&files, &[4], &Request { references, ..guided }, 1, "guidance of halves with a reference");
}

#[test]
fn references_are_shared_in_the_sequence_and_as_cached_keys() {
    let references = vec![picture(48, 80, 0), picture(32, 16, 9)];
    let request = Request { references, ..sized("a cat", 4, [80, 48]) };
    assert_same(&built_in(), &WORLDS, &request, 1, "references");
    assert_same(&preset("kv"), &[3], &request, 1, "cached references");
    let small = Request { references: vec![picture(16, 16, 3)], ..request };
    assert_same(&preset("kv"), &[3], &small, 1, "one token of references, which one of three devices has");
}

#[test]
fn inpainting_is_shared() {
    let changed = |is_reference, strength| Request {
        width: None,
        height: None,
        change: changed(picture(80, 112, 5), is_reference, strength),
        ..sized("a red star", 6, [80, 112])
    };
    assert_same(&built_in(), &WORLDS, &changed(false, 1.0), 1, "inpainting");
    assert_same(&built_in(), &[2], &changed(true, 0.5), 1, "inpainting from a reference");
}

#[test]
fn latents_and_features_are_those_of_one_device_and_progress_comes_from_the_first() {
    let (files, request) = (built_in(), sized("a red heart", 1, [48, 80]));
    let expected = load(&files).latents(&request).unwrap();
    let parallel = parallel(&files, 2);
    let (mut steps, cancel) = (Vec::new(), CancelFlag::default());
    let mut report = |progress: flux::stage::Progress| {
        if progress.stage == Stage::Denoise {
            steps.push(progress.done);
        }
    };
    let latents = parallel.run(&request, 1, &cancel, &mut report, |_, mut session, report| {
        while session.step(report)? {}
        session.latents()
    });
    let worst = latents.unwrap().iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}"); // Observed: 4e-6
    assert_eq!(steps, [0, 1, 2]);
}

#[test]
fn the_first_cause_on_any_device_ends_the_image_and_the_next_image_is_made() {
    let (parallel, request) = (parallel(&built_in(), 2), sized("a cat", 1, [32, 48]));
    let never = CancelFlag::default();
    for bad in 0..2 {
        for steps in 0..=2 {
            let start = Instant::now();
            let failed = parallel.run(&request, 1, &never, &mut |_| {}, move |rank, mut session, report| {
                for _ in 0..steps {
                    session.step(report)?;
                }
                if rank == bad { Err(Error::new("out of memory")) } else { session.run(report) }
            });
            assert!(start.elapsed() < Cpu::GROUP_LIMIT);
            assert_eq!(failed.unwrap_err().to_string(), format!("device {bad}: out of memory"), "after {steps} steps");
        }
    }
    let panicking = || {
        parallel.run(&request, 1, &never, &mut |_| {}, |rank, mut session, report| {
            session.step(report)?;
            assert!(rank != 1, "a defect");
            session.run(report)
        })
    };
    let payload = catch_unwind(AssertUnwindSafe(panicking)).expect_err("a panic");
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"a defect"));
    assert_eq!(generate(&parallel, &request, 1).unwrap().len(), 1);
}

#[test]
fn a_device_that_hangs_is_named_and_left_behind() {
    let limit = Duration::from_millis(1500);
    let (parallel, request) = (parallel_within(&built_in(), 2, limit), sized("a cat", 1, [32, 48]));
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let hung = parallel.run(&request, 1, &CancelFlag::default(), &mut |_| {}, move |rank, mut session, report| {
        session.step(report)?;
        if rank == 1 {
            released.lock().unwrap().recv().unwrap_err();
        }
        session.run(report)
    });
    let text = hung.unwrap_err().to_string();
    assert!(text.contains("rank 0 ") && text.contains("of rank 1: rank 1 ") && text.contains("1.5s"), "{text}");
    let busy = generate(&parallel, &request, 1).unwrap_err().to_string();
    assert!(busy.contains("device 1 "), "{busy}");
    drop(release);
    let start = Instant::now();
    while generate(&parallel, &request, 1).is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "it comes back");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_flag_that_is_set_within_a_step_ends_all_devices() {
    let (parallel, cancel) = (parallel(&built_in(), 2), CancelFlag::default());
    let request = Request { steps: Some(50), ..sized("a cat", 1, [64, 64]) };
    let mut reports = 0;
    let mut report = |progress: flux::stage::Progress| {
        if progress.stage == Stage::Denoise {
            reports += 1;
            cancel.cancel();
        }
    };
    let error = parallel.generate_batch(&request, 1, &cancel, &mut report).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(reports < 20, "{reports}");
    assert_eq!(generate(&parallel, &Request { steps: Some(1), ..request }, 1).unwrap().len(), 1);
}

#[test]
fn a_panic_of_the_caller_ends_all_devices() {
    let (parallel, start) = (parallel(&built_in(), 2), Instant::now());
    let request = Request { steps: Some(50), ..sized("a cat", 1, [256, 256]) };
    let run = || parallel.generate_batch(&request, 1, &CancelFlag::default(), &mut |_| panic!("a defect of a caller"));
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    let small = Request { steps: Some(1), ..sized("a cat", 1, [32, 48]) };
    // Devices end after their current step.
    while let Err(error) = generate(&parallel, &small, 1) {
        assert!(error.to_string().contains("is still busy") && start.elapsed() < Duration::from_secs(60), "{error}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn devices_that_are_no_group_are_refused() {
    let files = built_in();
    let load = |backends| Parallel::load(backends, &files).err().expect("no group").to_string();
    let mut ranks = Cpu::group(Precision::F32, 2, Cpu::GROUP_LIMIT).unwrap();
    assert!(load(Vec::new()).contains("at least 1 device"));
    assert!(load(vec![ranks[0].clone()]).contains("device 0 of 1 is rank 0 of 2"));
    ranks.reverse();
    assert!(load(ranks).contains("rank 1 of 2"));
    let ranks = Cpu::group(Precision::F32, 2, Cpu::GROUP_LIMIT).unwrap();
    let of = |(rank, cpu): (usize, Cpu)| Model::load(cpu, &if rank == 0 { built_in() } else { preset("tiny") });
    let models = ranks.into_iter().enumerate().map(|rank| of(rank).unwrap()).collect();
    assert!(Parallel::new(models).err().expect("two models").to_string().contains("a different model"));
    let three = Cpu::group(Precision::F32, 3, Cpu::GROUP_LIMIT).unwrap();
    let text = load(three);
    assert!(text.contains("3 devices") && text.contains("8 heads") && text.contains("1, 2, 4, 8"), "{text}");
}
