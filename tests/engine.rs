//! Engines on several devices: the images of several callers' jobs, and the sharing of devices. All devices are this
//! machine's CPU.

mod hires;
mod preview_decoder;
mod previews;
mod saved;
mod signed;
mod transparent;

use std::fs::OpenOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flux::backend::cpu::{Cpu, Precision};
use flux::engine::{Engine, Event, Job, Priority, Ticket};
use flux::error::{ErrorKind, Field};
use flux::files::{Array, ModelFiles};
use flux::model::OpenModel;
use flux::pipeline::{Change, Image, Latents, Model, Replicas, Request};
use flux::rgb::Rgb;
use flux::stage::CancelFlag;

use crate::support::{assert_near, built_in, load, preset};

fn cpus(names: &[&str]) -> Vec<(String, Cpu)> {
    names.iter().map(|name| (name.to_string(), Cpu::new(Precision::F32))).collect()
}

fn replicas(names: &[&str]) -> Replicas<Cpu> {
    Replicas::new(cpus(names), OpenModel::open(&preset("tiny")).unwrap()).unwrap()
}

fn engine(names: &[&str]) -> Engine {
    Engine::from_replicas(&replicas(names)).unwrap()
}

fn alone(name: &str) -> Arc<Model<Cpu>> {
    load(&preset(name))
}

fn tiny(prompt: &str, seed: u64) -> Request {
    Request { width: Some(32), height: Some(32), steps: Some(1), ..Request::new(prompt, seed) }
}

fn make(engine: &Engine, request: &Request, count: usize) -> Vec<Image> {
    engine.generate_images(request, count, &CancelFlag::default(), &mut |_| {}).unwrap()
}

#[test]
fn several_devices_give_the_bytes_of_one_that_makes_the_same_batches() {
    let (engine, one) = (engine(&["a", "b"]), alone("tiny"));
    let noise = Array { shape: vec![5, 128, 2, 2], values: (0..2560).map(|i| (i as f32 * 0.7).sin()).collect() };
    let reference = Arc::new(Rgb { width: 32, height: 32, bytes: (0..3072).map(|i| (i * 7) as u8).collect() });
    let requests = [
        (tiny("a cat", 7), 1, &[1][..]),
        (tiny("a cat", 7), 2, &[1, 1]),
        (tiny("a cat", 7), 5, &[3, 2]),
        (tiny("a dog", 7), 18, &[5, 5, 4, 4]),
        (Request { noise: Some(Latents::new(noise).unwrap()), ..tiny("a cat", 7) }, 5, &[3, 2]),
        (Request { references: vec![reference], ..tiny("a cat", 7) }, 3, &[1, 1, 1]),
    ];
    for (request, count, batches) in requests {
        let images = make(&engine, &request, count);
        let seeds: Vec<u64> = images.iter().map(|image| image.plan.seed).collect();
        assert_eq!(seeds, Vec::from_iter(7..7 + count as u64), "in the order of the seeds");
        let mut rest = images.as_slice();
        for &size in batches {
            let (batch, others) = rest.split_at(size);
            let first = (batch[0].plan.seed - 7) as usize;
            for (image, same) in batch.iter().zip(one.generate_batch(&request.part(first..first + size), size).unwrap())
            {
                assert_eq!(image.timings.images, size);
                assert!(image.rgb == same.rgb, "seed {} of {count}", image.plan.seed);
            }
            rest = others;
        }
        assert!(rest.is_empty());
    }
}

/// Returns the number of prompts that each device has encoded for a batch, in the order of batches.
fn prompts_read(images: &[Image]) -> Vec<usize> {
    images.iter().map(|image| image.timings.prompts_encoded).collect()
}

#[test]
fn the_first_device_reads_the_prompt_for_all() {
    for (preset, prompts) in [("tiny", 1), ("base", 2)] {
        let model = || OpenModel::open(&self::preset(preset)).unwrap();
        let engine = Engine::from_replicas(&Replicas::new(cpus(&["a", "b", "c"]), model()).unwrap()).unwrap();
        let request = |prompt: &str| Request { negative: Some("a dog".to_string()), ..tiny(prompt, 7) };
        let one = Model::new(Cpu::new(Precision::F32), model());
        let same = |images: &[Image], prompt: &str| {
            for image in images {
                let alone = one.generate(&Request { seed: image.plan.seed, ..request(prompt) }).unwrap();
                assert!(image.rgb == alone.rgb && image.plan == alone.plan, "{preset}: {}", image.plan.seed);
            }
        };
        let images = make(&engine, &request("a cat"), 3);
        assert_eq!(prompts_read(&images), [prompts, 0, 0], "{preset}");
        same(&images, "a cat");
        assert_eq!(prompts_read(&make(&engine, &request("a cat"), 3)), [0; 3], "{preset}: they are cached");
        // A device has encoded it for itself: most often the first, unless that is still busy. Then the first encodes
        // it again, with the negative prompt cached.
        make(&engine, &request("a bird"), 1);
        let images = make(&engine, &request("a bird"), 2);
        let read = prompts_read(&images);
        assert!([[0, 0], [1, 0]].map(Vec::from).contains(&read), "{preset}: {read:?}");
        same(&images, "a bird");
        assert_eq!(prompts_read(&make(&engine, &request("a bird"), 2)), [0; 2], "{preset}: they are cached");
        // The same words in another number of tokens have other features.
        let short = Request { max_sequence_length: Some(16), ..request("a cat") };
        assert_eq!(prompts_read(&make(&engine, &short, 2)), [prompts, 0], "{preset}");
    }
}

#[test]
fn images_that_were_encoded_ahead_are_not_encoded_again() {
    let (engine, several) = (engine(&["a"]), engine(&["a", "b"]));
    let request = |shade: u8| {
        let image = Rgb { width: 64, height: 64, bytes: (0..3 * 64 * 64).map(|i| (i % 200) as u8 ^ shade).collect() };
        Request { references: vec![Arc::new(image)], ..tiny("a cat", 1) }
    };
    let encodes = |engine: &Engine, shade: u8| {
        let mut encoded = false;
        let report = &mut |progress: flux::stage::Progress| encoded |= progress.stage == flux::stage::Stage::Encode;
        let images = engine.generate_images(&request(shade), 1, &CancelFlag::default(), report).unwrap();
        (encoded, images[0].rgb.clone())
    };
    let ahead = |engine: &Engine, shade: u8| engine.encode_images_ahead(&Job::new(request(shade), 1)).unwrap();
    ahead(&engine, 1);
    assert!(encodes(&engine, 1).0, "nothing was loaded");
    ahead(&engine, 2);
    let (encoded, image) = encodes(&engine, 2);
    assert!(!encoded && image == encodes(&self::engine(&["a"]), 2).1);
    assert!(encodes(&several, 3).0);
    ahead(&several, 4);
    assert!(encodes(&several, 4).0, "either may make it");
    let cancelled = Job::new(request(5), 1);
    cancelled.cancel.cancel();
    assert_eq!(engine.encode_images_ahead(&cancelled).unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn a_prompt_that_was_encoded_ahead_is_not_encoded_again() {
    let engine = engine(&["a"]);
    let encodes = |prompt: &str| {
        let mut encoded = false;
        let report = &mut |progress: flux::stage::Progress| encoded |= progress.stage == flux::stage::Stage::Text;
        let images = engine.generate_images(&tiny(prompt, 1), 1, &CancelFlag::default(), report).unwrap();
        (encoded, images[0].rgb.clone())
    };
    let (encoded, image) = encodes("a cat");
    assert!(encoded && !encodes("a cat").0, "it is kept");
    engine.encode_ahead(&tiny("a dog", 1), &CancelFlag::default()).unwrap();
    let stats = || engine.stats();
    while stats().running + stats().waiting > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    let (encoded, dog) = encodes("a dog");
    assert!(!encoded && dog != image, "it was encoded before");
    assert_eq!(dog, make(&self::engine(&["a"]), &tiny("a dog", 1), 1)[0].rgb, "and is the same");
    let cancelled = CancelFlag::default();
    cancelled.cancel();
    let error = engine.encode_ahead(&tiny("a bird", 1), &cancelled).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

#[test]
fn groups_share_images_and_each_makes_its_own_together() {
    let group = |name: &str| {
        let ranks = Cpu::group(Precision::F32, 2, Cpu::GROUP_LIMIT).unwrap().into_iter().enumerate();
        ranks.map(|(rank, cpu)| (format!("{name}{rank}"), cpu)).collect::<Vec<_>>()
    };
    let model = || OpenModel::open(&preset("tiny")).unwrap();
    let replicas = Replicas::from_groups(vec![group("a"), group("b"), cpus(&["c"])], model()).unwrap();
    let names: Vec<_> = replicas.used(3).iter().map(|replica| replica.name().to_string()).collect();
    assert_eq!(names, ["a0+a1", "b0+b1", "c"]);
    let engine = Engine::from_replicas(&replicas).unwrap();
    let images = make(&engine, &tiny("a cat", 7), 7);
    let one = make(&self::engine(&["a", "b", "c"]), &tiny("a cat", 7), 7);
    for (image, same) in images.iter().zip(&one) {
        assert_eq!(image.plan.seed, same.plan.seed);
        assert_near("a group", &image.rgb, &same.rgb); // Observed: equal, in most runs
        let others = image.timings.other_devices.iter().map(|timings| timings.steps_s.len());
        assert!([[1].as_slice(), &[]].contains(&others.collect::<Vec<_>>().as_slice()), "of ranks, or none");
    }
    assert!(images.iter().any(|image| image.timings.other_devices.len() == 1));
}

#[test]
fn weights_in_fewer_bits_are_on_every_device() {
    let open = |format: Option<&str>| {
        let mut model = OpenModel::open(&built_in()).unwrap();
        let wanted = format.map(|format| format.parse().unwrap()).unwrap_or_default();
        model.quantize(&wanted, &CancelFlag::default(), &mut |_| {}).unwrap();
        model
    };
    let request = tiny("a cat", 1);
    let images = make(
        &Engine::from_replicas(&Replicas::new(cpus(&["a", "b"]), open(Some("fp8"))).unwrap()).unwrap(),
        &request,
        2,
    );
    let one = Model::new(Cpu::new(Precision::F32), open(Some("fp8")));
    for (image, seed) in images.iter().zip(1..) {
        assert!(image.rgb == one.generate(&Request { seed, ..request.clone() }).unwrap().rgb, "seed {seed}");
    }
    let whole = Model::new(Cpu::new(Precision::F32), open(None)).generate(&request).unwrap();
    assert!(images[0].rgb != whole.rgb, "the weights are other ones");
}

#[test]
fn one_device_makes_as_many_as_it_can_each_time() {
    let images = make(&engine(&["a"]), &tiny("a cat", 1), 20);
    let batches: Vec<usize> = images.iter().map(|image| image.timings.images).collect();
    assert_eq!(batches, [[8; 16].as_slice(), &[4; 4]].concat());
    assert_eq!(images[19].plan.seed, 20);
}

#[test]
fn a_panic_of_the_caller_ends_the_devices() {
    for names in [&["a"][..], &["a", "b"]] {
        let (engine, mut heard) = (engine(names), 0);
        let mut report = |_| {
            heard += 1;
            panic!("a defect of a caller");
        };
        let run = || engine.generate_images(&tiny("a cat", 1), 1000, &CancelFlag::default(), &mut report);
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(heard, 1);
        assert_eq!(make(&engine, &tiny("a cat", 1), 3).len(), 3, "it can be used afterwards");
        assert!(engine.stats().made < 100, "{:?}", engine.stats());
    }
}

#[test]
fn devices_and_counts_that_cannot_be_are_refused() {
    let refused = |names: &[&str]| {
        let refused = Replicas::new(cpus(names), OpenModel::open(&preset("tiny")).unwrap()).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Usage);
        refused.to_string()
    };
    assert!(refused(&[]).contains("at least 1 device"));
    assert!(refused(&["a", "b", "a"]).contains("a is listed twice"));
    let twice = || cpus(&["a"]).into_iter().chain(cpus(&["a"])).collect();
    let group = Replicas::from_groups(vec![twice()], OpenModel::open(&preset("tiny")).unwrap());
    assert!(group.err().unwrap().to_string().contains("a is listed twice"));
    let more = replicas(&["b"]);
    more.add(cpus(&["a"])).unwrap();
    assert!(more.add(cpus(&["b"])).err().unwrap().to_string().contains("b is listed twice"));
    assert_eq!(more.used(5).len(), 2);
    let none = engine(&["a", "b"]).generate_images(&tiny("a cat", 1), 0, &CancelFlag::default(), &mut |_| {});
    assert!(none.unwrap_err().field() == Some(Field::Count));
}

#[test]
fn a_file_that_was_cut_off_since_it_was_opened_is_an_error_of_several_devices_too() {
    let folder = tempfile::tempdir().unwrap();
    crate::support::random_model::RandomModel::preset("tiny").unwrap().write(folder.path()).unwrap();
    let model = OpenModel::open(&ModelFiles::open(folder.path()).unwrap()).unwrap();
    let file = folder.path().join("vae/diffusion_pytorch_model.safetensors");
    OpenOptions::new().write(true).open(file).unwrap().set_len(100).unwrap();
    let engine = Engine::from_replicas(&Replicas::new(cpus(&["a", "b"]), model).unwrap()).unwrap();
    let request = Request { width: Some(32), height: Some(32), steps: Some(1), ..Request::new("a cat", 1) };
    let error = engine.generate_images(&request, 2, &CancelFlag::default(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("100 now") && error.contains("diffusion_pytorch_model.safetensors"), "{error}");
}

#[test]
fn a_caller_cancels_all_devices_by_its_flag() {
    let (engine, cancel) = (engine(&["a", "b"]), CancelFlag::default());
    let flag = cancel.clone();
    let error = engine.generate_images(&tiny("a cat", 1), 1000, &cancel, &mut |_| flag.cancel()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let error = engine.generate_images(&tiny("a cat", 1), 1000, &cancel, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "it is set before");
    assert_eq!(make(&engine, &tiny("a cat", 1), 3).len(), 3, "the devices are of use afterwards");
}

/// Returns the images of a job, and the sizes of their batches.
fn images_of(ticket: Ticket) -> flux::Result<(Vec<Vec<u8>>, Vec<usize>)> {
    let (mut images, mut batches) = (Vec::new(), Vec::new());
    for event in ticket.in_order() {
        match event? {
            Event::Image { image, .. } => images.push(image.rgb.bytes),
            Event::Started { batch, .. } => batches.push(batch),
            _ => {}
        }
    }
    Ok((images, batches))
}

/// Submits jobs that all wait before the first is begun: the device is busy with another one.
fn together(engine: &Engine, jobs: Vec<Job>) -> Vec<Ticket> {
    let busy = engine.submit(Job::new(Request { steps: Some(1000), ..tiny("busy", 0) }, 1)).unwrap();
    while engine.stats().running == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    let tickets = jobs.into_iter().map(|job| engine.submit(job).unwrap()).collect();
    drop(busy);
    tickets
}

#[test]
fn jobs_with_prompts_of_their_own_are_one_batch_of_the_bytes_of_that_prompt_alone() {
    for name in ["tiny", "base", "uneven"] {
        let model = || OpenModel::open(&preset(name)).unwrap();
        let engine = Engine::on(vec![cpus(&["a"])], model()).unwrap();
        let prompts = ["a cat", "a dog on a bicycle", "", "a cat"];
        let request = |place: usize| Request {
            negative: (place == 1).then(|| "a bird".to_string()),
            ..tiny(prompts[place], 7 + place as u64)
        };
        let tickets = together(&engine, (0..4).map(|place| Job::new(request(place), 1)).collect());
        let one = Model::new(Cpu::new(Precision::F32), model());
        for (place, ticket) in tickets.into_iter().enumerate() {
            let (images, batches) = images_of(ticket).unwrap();
            assert_eq!((images.len(), batches), (1, vec![4]), "{name}");
            // A batch of four like that of `--count`; this image is the one in the same place.
            let first = Request { seed: 7, ..request(place) };
            let same = &one.generate_batch(&first, 4).unwrap()[place];
            assert_eq!(same.plan.seed, 7 + place as u64);
            assert!(images[0] == same.rgb, "{name}: item {place}");
            let by_itself = one.generate(&request(place)).unwrap().rgb;
            assert_near(&format!("{name}: item {place} and the image alone"), &images[0], &by_itself);
        }
    }
}

#[test]
fn devices_that_make_an_image_together_have_a_prompt_for_each_item() {
    for name in ["tiny", "base"] {
        let ranks = Cpu::group(Precision::F32, 2, Cpu::GROUP_LIMIT).unwrap().into_iter().enumerate();
        let group = ranks.map(|(rank, cpu)| (rank.to_string(), cpu)).collect();
        let engine = Engine::on(vec![group], OpenModel::open(&preset(name)).unwrap()).unwrap();
        let requests = [tiny("a cat", 1), tiny("a dog on a bicycle", 2), tiny("a cat", 3)];
        let tickets = together(&engine, requests.iter().map(|request| Job::new(request.clone(), 1)).collect());
        let one = alone(name);
        for (request, ticket) in requests.iter().zip(tickets) {
            let (images, batches) = images_of(ticket).unwrap();
            assert_eq!(batches, [3], "{name}");
            assert_near(name, &images[0], &one.generate(request).unwrap().rgb);
        }
    }
}

fn picture(width: usize, height: usize, seed: usize) -> Arc<Rgb> {
    Arc::new(Rgb { width, height, bytes: (0..3 * width * height).map(|i| (i * (7 + seed) + seed) as u8).collect() })
}

#[test]
fn items_with_images_of_their_own_are_one_batch_of_the_bytes_of_each_alone() {
    let cells = |item: usize| Some(Arc::from((0..4).map(|cell| ((cell + item) % 2) as f32).collect::<Vec<_>>()));
    let change = |item: usize, cells, is_reference| {
        Some(Change { image: picture(32, 32, item), cells, strength: 0.5, is_reference })
    };
    for (name, kinds) in [("tiny", 4), ("base", 4), ("kv", 1)] {
        let model = alone(name);
        for kind in 0..kinds {
            let request = |item: usize| {
                let of =
                    Request { steps: Some(2), ..tiny(["a cat", "a dog on a bicycle", "a cat"][item], 5 + item as u64) };
                match kind {
                    // If keys and values are cached, all items share the references.
                    0 if name == "kv" => Request { references: vec![picture(48, 32, 0)], ..of },
                    0 => Request { references: vec![picture(48, 32, item), picture(16, 16, 0)], ..of },
                    1 => Request { change: change(item, None, false), width: None, height: None, ..of },
                    2 => Request { change: change(item, cells(item), false), ..of },
                    _ => Request {
                        change: change(item, cells(item), true),
                        references: vec![picture(16, 32, item)],
                        ..of
                    },
                }
            };
            let requests: Vec<_> = (0..3).map(request).collect();
            let images = model.session_of(&requests, &CancelFlag::default()).unwrap().run(&mut |_| {}).unwrap();
            assert_eq!(images.len(), 3, "{name}, {kind}");
            for (image, request) in images.iter().zip(&requests) {
                let by_itself = alone(name).generate(request).unwrap();
                assert_eq!(image.plan, by_itself.plan);
                assert!(image.rgb == by_itself.rgb, "{name}, {kind}: seed {}", request.seed);
            }
        }
    }
}

#[test]
fn what_items_of_a_batch_do_not_share_is_told() {
    let model = alone("tiny");
    let refused = |second: Request| {
        let session = model.session_of(&[tiny("a cat", 1), second], &CancelFlag::default());
        session.err().map(|error| error.to_string())
    };
    assert_eq!(refused(Request { negative: Some("a dog".to_string()), ..tiny("a bird", 9) }), None);
    for second in [
        Request { height: Some(48), ..tiny("a cat", 2) },
        Request { steps: Some(2), ..tiny("a cat", 2) },
        Request { max_sequence_length: Some(16), ..tiny("a cat", 2) },
        Request { references: vec![picture(32, 32, 0)], ..tiny("a cat", 2) },
    ] {
        assert!(refused(second).is_some_and(|error| error.contains("own batch")));
    }
    let with = |seed: usize| Request { references: vec![picture(32, 32, seed)], ..tiny("a cat", 2) };
    let refused = alone("kv").session_of(&[with(0), with(1)], &CancelFlag::default()).err().unwrap().to_string();
    assert!(refused.contains("own batch"), "keys and values are computed once, for one set of references: {refused}");
    let none = model.session_of(&[], &CancelFlag::default()).err().unwrap();
    assert_eq!(none.kind(), ErrorKind::Usage);
}

#[test]
fn a_job_that_the_model_cannot_make_is_refused_and_one_whose_values_are_damaged_ends_alone() {
    let engine = engine(&["a"]);
    let refused = engine.submit(Job::new(Request { steps: Some(0), ..tiny("a cat", 1) }, 1)).err().unwrap();
    assert_eq!(refused.field(), Some(Field::Steps), "{refused}");
    let huge = Array { shape: vec![1, 128, 2, 2], values: vec![3e38; 512] };
    let damaged = Request { noise: Some(Latents::new(huge).unwrap()), ..tiny("a cat", 2) };
    let jobs = vec![Job::new(tiny("a cat", 1), 1), Job::new(damaged, 1), Job::new(tiny("a dog", 3), 1)];
    let mut ends: Vec<_> = together(&engine, jobs).into_iter().map(images_of).collect();
    let error = ends.remove(1).unwrap_err();
    assert!(error.what().contains("not numbers") && error.field() == Some(Field::Noise), "{error}");
    for (end, request) in ends.into_iter().zip([tiny("a cat", 1), tiny("a dog", 3)]) {
        let (images, _) = end.unwrap();
        assert!(images == [alone("tiny").generate(&request).unwrap().rgb]);
    }
}

#[test]
fn two_engines_in_one_process_make_the_images_of_one() {
    let request = |seed| tiny("a cat", seed);
    let expected: Vec<_> = make(&engine(&["a"]), &request(1), 4).into_iter().map(|image| image.rgb).collect();
    let engines = [engine(&["a"]), engine(&["b"])];
    thread::scope(|scope| {
        for engine in &engines {
            scope.spawn(|| {
                for _ in 0..3 {
                    let images = make(engine, &request(1), 4).into_iter().map(|image| image.rgb).collect::<Vec<_>>();
                    assert!(images == expected);
                }
            });
        }
    });
}

/// Runs a test of this program by itself in another process, because tests in parallel change what a process holds.
/// Returns `true` in that process, and `false` here after it has passed.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// Returns the threads and resident memory of this process.
fn held() -> (usize, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    (field("Threads:").unwrap_or(0) as usize, field("VmRSS:").unwrap_or(0))
}

#[test]
fn a_thousand_jobs_with_random_cancels_leave_nothing_and_change_no_image() {
    if !is_alone("engine::a_thousand_jobs_with_random_cancels_leave_nothing_and_change_no_image") {
        return;
    }
    let engine = engine(&["a", "b"]);
    let expected: Vec<Vec<u8>> = (0..8).map(|seed| make(&engine, &tiny("a cat", seed), 1).remove(0).rgb).collect();
    let before = held();
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let (mut waiting, mut cancelled, mut made) = (Vec::new(), 0, 0);
    let mut take = |(seed, count, ticket): (u64, usize, Ticket)| match images_of(ticket) {
        Ok((images, _)) => {
            assert_eq!(images.len(), count);
            for (image, expected) in images.iter().zip(&expected[seed as usize..]) {
                assert_near("a job", image, expected);
            }
            made += count;
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
            cancelled += 1;
        }
    };
    for _ in 0..1000 {
        let (seed, count) = (random(6), 1 + random(2) as usize);
        let priority = [Priority::Low, Priority::Normal, Priority::High][random(3) as usize];
        let ticket = engine.submit(Job { priority, ..Job::new(tiny("a cat", seed), count) }).unwrap();
        match random(4) {
            0 => ticket.cancel(),
            1 if random(2) == 0 => continue, // it is dropped
            _ => {}
        }
        waiting.push((seed, count, ticket));
        if waiting.len() > 20 {
            take(waiting.swap_remove(random(20) as usize));
        }
    }
    waiting.into_iter().for_each(&mut take);
    assert!(cancelled > 100 && made > 500, "{cancelled} {made}");
    let start = Instant::now();
    while engine.stats().running > 0 && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(1));
    }
    let stats = engine.stats();
    assert_eq!((stats.waiting, stats.running), (0, 0));
    let after = held();
    println!("threads and KiB before {before:?}, after {after:?}");
    assert!(after.0 <= before.0 && after.1 < before.1 + (100 << 10), "before {before:?}, after {after:?}");
}
