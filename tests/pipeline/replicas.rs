//! Several devices that share the images of a request: two CPUs, which are this one.

use std::fs::OpenOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use flux::Error;
use flux::files::Array;
use flux::pipeline::{Latents, Made, Replicas, Share, Sink};
use flux::rgb::Rgb;

use super::*;

fn cpus(names: &[&str]) -> Vec<(String, Cpu)> {
    names.iter().map(|name| (name.to_string(), Cpu::new(Precision::F32))).collect()
}

fn replicas(names: &[&str]) -> Replicas<Cpu> {
    Replicas::new(cpus(names), OpenModel::open(&preset("tiny")).unwrap()).unwrap()
}

fn tiny(prompt: &str, seed: u64) -> Request {
    Request { width: Some(32), height: Some(32), steps: Some(1), ..Request::new(prompt, seed) }
}

fn make(replicas: &Replicas<Cpu>, request: &Request, count: usize) -> Vec<Image> {
    replicas.generate(request, count, &CancelFlag::default(), &mut |_| {}).unwrap()
}

#[test]
fn several_devices_give_the_bytes_of_one_that_makes_the_same_batches() {
    let (replicas, one) = (replicas(&["a", "b"]), model("tiny"));
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
        let images = make(&replicas, &request, count);
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

/// The prompts that each device has read for a batch, in the order of batches.
fn prompts_read(images: &[Image]) -> Vec<usize> {
    images.iter().map(|image| image.timings.prompts_encoded).collect()
}

#[test]
fn the_first_device_reads_the_prompt_for_all() {
    for (preset, prompts) in [("tiny", 1), ("base", 2)] {
        let model = || OpenModel::open(&self::preset(preset)).unwrap();
        let replicas = Replicas::new(cpus(&["a", "b", "c"]), model()).unwrap();
        let request = |prompt: &str| Request { negative: Some("a dog".to_string()), ..tiny(prompt, 7) };
        let one = Model::new(Cpu::new(Precision::F32), model());
        let same = |images: &[Image], prompt: &str| {
            for image in images {
                let alone = one.generate(&Request { seed: image.plan.seed, ..request(prompt) }).unwrap();
                assert!(image.rgb == alone.rgb && image.plan == alone.plan, "{preset}: {}", image.plan.seed);
            }
        };
        let images = make(&replicas, &request("a cat"), 3);
        assert_eq!(prompts_read(&images), [prompts, 0, 0], "{preset}");
        same(&images, "a cat");
        assert_eq!(prompts_read(&make(&replicas, &request("a cat"), 3)), [0; 3], "{preset}: they are cached");
        // One that the first device has read for itself.
        make(&replicas, &request("a bird"), 1);
        let images = make(&replicas, &request("a bird"), 2);
        assert_eq!(prompts_read(&images), [0; 2], "{preset}");
        same(&images, "a bird");
        // The same words in another number of tokens are other features.
        let short = Request { max_sequence_length: Some(16), ..request("a cat") };
        assert_eq!(prompts_read(&make(&replicas, &short, 2)), [prompts, 0], "{preset}");
    }
}

#[test]
fn devices_read_the_prompt_themselves_where_the_first_one_does_not() {
    let replicas = replicas(&["a", "b"]);
    let (other, begins) = mpsc::channel();
    let begins = Mutex::new(begins);
    let work = move |share: Share<Cpu>, sink: &Sink<u64>| {
        if share.device() == "a" {
            // So that this device does not make the other's image too.
            begins.lock().unwrap().recv().unwrap();
            return Ok(());
        }
        other.send(()).unwrap();
        seeds(share, sink)
    };
    let mut taken = Vec::new();
    let take = &mut |made| {
        if let Made::Item(seed) = made {
            taken.push(seed);
        }
        Ok(())
    };
    replicas.run(&tiny("a cat", 1), 2, &CancelFlag::default(), work, take).unwrap();
    assert_eq!(taken, [2]);
}

#[test]
fn groups_share_images_and_each_makes_its_own_together() {
    let group = |name: &str| {
        let ranks = Cpu::group(Precision::F32, 2, Cpu::GROUP_LIMIT).unwrap().into_iter().enumerate();
        ranks.map(|(rank, cpu)| (format!("{name}{rank}"), cpu)).collect::<Vec<_>>()
    };
    let model = || OpenModel::open(&preset("tiny")).unwrap();
    let replicas = Replicas::of_groups(vec![group("a"), group("b"), cpus(&["c"])], model()).unwrap();
    let names: Vec<&str> = replicas.used(3).iter().map(|replica| replica.name()).collect();
    assert_eq!(names, ["a0+a1", "b0+b1", "c"]);
    let images = make(&replicas, &tiny("a cat", 7), 7);
    let one = make(&self::replicas(&["a", "b", "c"]), &tiny("a cat", 7), 7);
    for (image, same) in images.iter().zip(&one) {
        assert_eq!(image.plan.seed, same.plan.seed);
        let worst = image.rgb.iter().zip(&same.rgb).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(worst <= Some(1), "{worst:?} levels"); // Observed: none, in most runs
        let others = image.timings.other_devices.iter().map(|timings| timings.steps_s.len());
        assert!([[1].as_slice(), &[]].contains(&others.collect::<Vec<_>>().as_slice()), "of ranks, or none");
    }
    assert!(images.iter().any(|image| image.timings.other_devices.len() == 1));

    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let work = move |share: Share<Cpu>, sink: &Sink<u64>| {
        counted.fetch_add(usize::from(share.is_taken()), Ordering::Relaxed);
        if share.device() == "b0+b1" && !share.is_taken() {
            return Err(Error::new("out of memory"));
        }
        seeds(share, sink)
    };
    let failed = replicas.run(&tiny("a cat", 1), 9, &CancelFlag::default(), work, &mut |_| Ok(()));
    assert_eq!(failed.unwrap_err().what(), "b1: out of memory", "the device of the group is named");
    assert!(taken.load(Ordering::Relaxed) <= 3);
}

#[test]
fn weights_in_fewer_bits_are_on_every_device() {
    let open = |format: Option<&str>| {
        let mut model = OpenModel::open(&ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap();
        let wanted = format.map(|format| format.parse().unwrap()).unwrap_or_default();
        model.quantise(&wanted, &CancelFlag::default(), &mut |_| {}).unwrap();
        model
    };
    let request = tiny("a cat", 1);
    let images = make(&Replicas::new(cpus(&["a", "b"]), open(Some("fp8"))).unwrap(), &request, 2);
    let one = Model::new(Cpu::new(Precision::F32), open(Some("fp8")));
    for (image, seed) in images.iter().zip(1..) {
        assert!(image.rgb == one.generate(&Request { seed, ..request.clone() }).unwrap().rgb, "seed {seed}");
    }
    let whole = Model::new(Cpu::new(Precision::F32), open(None)).generate(&request).unwrap();
    assert!(images[0].rgb != whole.rgb, "the weights are other ones");
}

#[test]
fn one_device_makes_as_many_as_it_can_each_time() {
    let images = make(&replicas(&["a"]), &tiny("a cat", 1), 20);
    let batches: Vec<usize> = images.iter().map(|image| image.timings.images).collect();
    assert_eq!(batches, [[8; 16].as_slice(), &[4; 4]].concat());
    assert_eq!(images[19].plan.seed, 20);
}

/// Makes images one at a time, and gives their seeds.
fn seeds(share: Share<Cpu>, sink: &Sink<u64>) -> flux::Result<()> {
    let (mut session, _) = share.prepare(&mut |progress| sink.progress(progress))?;
    while let Some(image) = session.decode(&mut |progress| sink.progress(progress))? {
        sink.give(image.plan.seed);
    }
    Ok(())
}

#[test]
fn results_come_in_the_order_of_seeds_and_progress_of_what_is_next() {
    let replicas = replicas(&["slow", "fast"]);
    let (mut taken, mut denoised) = (Vec::new(), 0);
    let work = |share: Share<Cpu>, sink: &Sink<u64>| {
        thread::sleep(Duration::from_millis(if share.device() == "slow" { 30 } else { 0 }));
        seeds(share, sink)
    };
    let take = &mut |made| {
        match made {
            Made::Progress(Progress { stage: Stage::Denoise, done: 0, .. }) => denoised += 1,
            Made::Progress(_) => {}
            Made::Item(seed) => taken.push(seed),
        }
        Ok(())
    };
    replicas.run(&tiny("a cat", 1), 24, &CancelFlag::default(), work, take).unwrap();
    assert_eq!(taken, Vec::from_iter(1..25));
    assert!((1..=4).contains(&denoised), "{denoised} of the 4 batches");
}

#[test]
fn a_device_that_fails_ends_the_others_and_is_named() {
    let (replicas, cancel) = (replicas(&["a", "b"]), CancelFlag::default());
    let mut taken = Vec::new();
    let work = |share: Share<Cpu>, sink: &Sink<u64>| {
        if share.device() == "b" {
            return Err(Error::new("out of memory").hint("use less"));
        }
        seeds(share, sink)
    };
    let take = &mut |made| {
        if let Made::Item(seed) = made {
            taken.push(seed);
        }
        Ok(())
    };
    let error = replicas.run(&tiny("a cat", 1), 1000, &cancel, work, take).unwrap_err();
    assert_eq!((error.what(), error.kind()), ("b: out of memory", Kind::Failure));
    assert!(error.to_string().contains("use less"));
    assert!(taken.len() < 100 && taken.iter().zip(1..).all(|(seed, expected)| *seed == expected), "{taken:?}");
    cancel.check().expect("the caller's flag is as it was");
    assert_eq!(make(&replicas, &tiny("a cat", 1), 3).len(), 3, "the devices are of use afterwards");
}

#[test]
fn a_caller_cancels_all_devices_by_its_flag_or_an_error() {
    let (replicas, cancel) = (replicas(&["a", "b"]), CancelFlag::default());
    let flag = cancel.clone();
    let error = replicas.generate(&tiny("a cat", 1), 1000, &cancel, &mut |_| flag.cancel()).unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);

    let begun = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&begun);
    let work = move |share: Share<Cpu>, sink: &Sink<u64>| {
        counted.fetch_add(1, Ordering::Relaxed);
        seeds(share, sink)
    };
    let take = &mut |made| match made {
        Made::Item(_) => Err(Error::new("cannot write")),
        Made::Progress(_) => Ok(()),
    };
    let error = replicas.run(&tiny("a cat", 1), 1000, &CancelFlag::default(), work, take).unwrap_err();
    assert_eq!(error.what(), "cannot write", "an error of the caller's own");
    assert!(begun.load(Ordering::Relaxed) <= 5, "no more batches than may wait for their turn, and one");
}

#[test]
fn a_panic_of_a_device_ends_the_others() {
    let replicas = replicas(&["a", "b"]);
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&begun);
    let work = move |share: Share<Cpu>, sink: &Sink<u64>| {
        assert!(share.device() == "a", "a defect of a test");
        counted.fetch_add(1, Ordering::Relaxed);
        seeds(share, sink)
    };
    let run = || replicas.run(&tiny("a cat", 1), 1000, &CancelFlag::default(), work, &mut |_| Ok(()));
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    assert!(begun.load(Ordering::Relaxed) < 20);
}

#[test]
fn a_panic_of_the_caller_ends_the_devices() {
    for names in [&["a"][..], &["a", "b"]] {
        let (replicas, mut heard) = (replicas(names), 0);
        let mut report = |_| {
            heard += 1;
            panic!("a defect of a caller");
        };
        let run = || replicas.generate(&tiny("a cat", 1), 1000, &CancelFlag::default(), &mut report);
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(heard, 1);
    }
}

#[test]
fn what_was_made_before_a_device_failed_is_handed_on() {
    let replicas = replicas(&["slow", "fast"]);
    let (begun, made) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, all) = (Arc::clone(&begun), Arc::clone(&made));
    // The first batch fails when the second one is made.
    let work = move |share: Share<Cpu>, sink: &Sink<u64>| {
        counted.fetch_add(1, Ordering::Relaxed);
        if share.first() == 0 {
            // The others wait for the prompt, which it reads for them.
            share.prepare(&mut |_| {})?;
            while all.load(Ordering::Relaxed) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            return Err(Error::new("out of memory"));
        }
        seeds(share, sink)?;
        all.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let mut taken = Vec::new();
    let take = &mut |made| {
        if let Made::Item(seed) = made {
            taken.push(seed);
        }
        Ok(())
    };
    let failed = replicas.run(&tiny("a cat", 1), 4, &CancelFlag::default(), work, take);
    assert!(failed.unwrap_err().what().ends_with(": out of memory"));
    assert_eq!(taken, [3, 4], "images that are written are told");
}

#[test]
fn devices_and_counts_that_cannot_be_are_refused() {
    let refused = |names: &[&str]| {
        let refused = Replicas::new(cpus(names), OpenModel::open(&preset("tiny")).unwrap()).err().unwrap();
        assert_eq!(refused.kind(), Kind::Usage);
        refused.to_string()
    };
    assert!(refused(&[]).contains("no device"));
    assert!(refused(&["a", "b", "a"]).contains("a is there twice"));
    let twice = || cpus(&["a"]).into_iter().chain(cpus(&["a"])).collect();
    let group = Replicas::of_groups(vec![twice()], OpenModel::open(&preset("tiny")).unwrap());
    assert!(group.err().unwrap().to_string().contains("a is there twice"));
    let mut more = replicas(&["b"]);
    more.add(cpus(&["a"])).unwrap();
    assert!(more.add(cpus(&["b"])).unwrap_err().to_string().contains("b is there twice"));
    assert_eq!(more.used(5).len(), 2);
    let none = replicas(&["a", "b"]).generate(&tiny("a cat", 1), 0, &CancelFlag::default(), &mut |_| {});
    assert!(none.unwrap_err().to_string().contains("--count"));
}

#[test]
fn a_file_that_was_cut_off_since_it_was_opened_is_an_error_of_several_devices_too() {
    let folder = tempfile::tempdir().unwrap();
    crate::support::random_model::RandomModel::preset("tiny").unwrap().write(folder.path()).unwrap();
    let model = OpenModel::open(&ModelFiles::open(folder.path()).unwrap()).unwrap();
    let file = folder.path().join("vae/diffusion_pytorch_model.safetensors");
    OpenOptions::new().write(true).open(file).unwrap().set_len(100).unwrap();
    let replicas = Replicas::new(cpus(&["a", "b"]), model).unwrap();
    let request = Request { width: Some(32), height: Some(32), steps: Some(1), ..Request::new("a cat", 1) };
    let error = replicas.generate(&request, 2, &CancelFlag::default(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("and has 100 now") && error.contains("diffusion_pytorch_model.safetensors"), "{error}");
}
