//! Ranks of a group: collectives at sizes that do not divide, images against those of one GPU, and failures of a rank.
//! Ranks share the first GPU; if there are more GPUs, they also have one each.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flux::backend::cuda::{Cuda, GemmCache, GroupOptions, Link, Precision};
use flux::backend::{Device, Group, Memory, Remark};
use flux::error::ErrorKind;
use flux::files::ModelFiles;
use flux::ops::{RowSplit, Sharing, TokenLayout};
use flux::pipeline::{Image, Model, Parallel, Request};
use flux::stage::CancelFlag;
use flux::{Error, Result, Tensor};

use crate::bands::{BandCase, CASES};
use crate::compare::{check_choices, values};
use crate::pipeline::{default_model, psnr};
use crate::ranks::{
    assert_normed, check_broadcast, check_gathered, check_halo, check_heads, layouts, normed_band, row_splits,
};
use crate::support::preset;
use crate::{cuda, few, small};

/// Memory of each rank on a shared GPU.
const MEMORY_BYTES: u64 = 4 << 30;

/// The GPUs of a group's ranks, and the link between them.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Ranks that share the first GPU.
    OneGpu(usize, Link),
    /// Ranks with one GPU each, from the first on.
    OneEach(usize, Link),
}

impl Place {
    fn group_within(self, limit: Duration) -> Result<Vec<Cuda>> {
        // Tools run the tests at small sizes.
        let options = |link| GroupOptions { limit, link: Some(link), meet_behind: small() };
        let ranks = match self {
            Self::OneGpu(world, link) => Cuda::group_on_one(0, world, MEMORY_BYTES, Precision::Bf16, options(link)),
            Self::OneEach(world, link) => {
                let gpus: Vec<_> = (0..world).collect();
                Cuda::group(&gpus, None, Precision::Bf16, &GemmCache::Off, options(link))
            }
        }?;
        // If ranks share a GPU, the driver must not wait for it to load a kernel while a rank waits for another.
        ranks.iter().try_for_each(Cuda::warm_up)?;
        Ok(ranks)
    }

    fn group(self) -> Vec<Cuda> {
        self.group_within(limit()).unwrap()
    }
}

/// The time limit of ranks that wait for each other.
fn limit() -> Duration {
    GroupOptions::default().limit
}

/// Returns the places that exist; none without a GPU.
fn places() -> Vec<Place> {
    if cuda().is_none() {
        return Vec::new();
    }
    let mut places = vec![Place::OneGpu(2, Link::Peers), Place::OneGpu(2, Link::Host)];
    if !few() {
        places.extend([Place::OneGpu(4, Link::Peers), Place::OneGpu(4, Link::Host)]);
    }
    for world in [2, 4] {
        match Place::OneEach(world, Link::Peers).group_within(limit()) {
            Ok(ranks) => {
                let apart = ranks[0].remarks().iter().any(|remark| matches!(remark, Remark::Warning(_)));
                if apart {
                    let remarks = ranks[0].remarks();
                    println!("skipped: {world} GPUs that write to each other's memory, these do not: {remarks:?}");
                } else {
                    places.push(Place::OneEach(world, Link::Peers));
                }
                places.push(Place::OneEach(world, Link::Host));
            }
            Err(error) if error.to_string().contains("no GPU ") => {
                println!("skipped: there are fewer than {world} GPUs");
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    places
}

/// Runs `work` on each rank. A rank that fails ends the others, as when an image is made.
fn on_each<T: Send>(ranks: &[Cuda], work: impl Fn(&Cuda) -> Result<T> + Sync) -> Vec<Result<T>> {
    let (work, one) = (&work, |cuda: &Cuda, result: Result<T>| result.inspect_err(|e| cuda.abort_collectives(e)));
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|cuda| scope.spawn(move || one(cuda, work(cuda)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn all<T: Send>(ranks: &[Cuda], work: impl Fn(&Cuda) -> Result<T> + Sync) -> Vec<T> {
    on_each(ranks, work).into_iter().map(|result| result.unwrap()).collect()
}

/// Layouts, including more copies than one launch has, and tokens of a large image.
fn more_layouts() -> Vec<TokenLayout> {
    layouts(&[TokenLayout::new(40, 3, 7), TokenLayout { references: 700, ..TokenLayout::new(1, 512, 1201) }])
}

#[test]
fn heads_cross_to_all_tokens_and_back() {
    for place in places() {
        let ranks = place.group();
        // Rows that are a multiple of 16 bytes, and rows that are not.
        let cases = more_layouts().into_iter().flat_map(|layout| [(layout, 32), (layout, 3)]);
        for ((layout, head_dim), sharing) in cases.flat_map(|case| [(case, Sharing::Group), (case, Sharing::Half)]) {
            all(&ranks, |cuda| check_heads(cuda, layout, sharing, head_dim));
        }
    }
}

#[test]
fn gathered_rows_halos_and_what_rank_0_has_are_what_they_mean() {
    for place in places() {
        let ranks = place.group();
        let splits = row_splits(&more_layouts(), &[[5, 3], [1, 4], [130, 1040]], ranks.len());
        for (split, cols) in splits.into_iter().flat_map(|split| [(split, 3), (split, 24)]) {
            for beside in [0, 5] {
                all(&ranks, |cuda| check_gathered(cuda, split, cols, beside));
            }
        }
        for (halo, cols) in [([2, 2], 3), ([0, 2], 8), ([1, 0], 128), ([0, 0], 1), ([2, 1], 40)] {
            all(&ranks, |cuda| check_halo(cuda, halo, cols, 0));
        }
        all(&ranks, check_broadcast);
    }
}

#[test]
fn convolutions_of_bands_are_those_of_the_whole() {
    let Some(alone) = cuda() else { return };
    for (size, channels) in CASES {
        let image = BandCase::new(size, channels);
        let whole = image.convolve(&alone).unwrap();
        for place in places() {
            let ranks = place.group();
            for limit in [usize::MAX, 0] {
                ranks.iter().for_each(|cuda| cuda.limit_bands(limit));
                let bands = all(&ranks, |cuda| image.convolve(cuda));
                // The statistics round differently, and so do the values normed by them.
                image.assert_same(&bands, &whole, 1.0 / 64.0, &format!("{place:?}, bands of {limit} bytes"));
            }
        }
    }
}

#[test]
fn each_convolution_takes_a_halo() {
    let Some(cuda) = cuda() else { return };
    check_choices(&cuda, "parallel::convolutions_of_bands_are_those_of_the_whole", "FLUX_CONV2D");
}

#[test]
fn a_norm_with_reduced_statistics_is_that_of_the_whole_and_the_same_on_all_ranks() {
    let Some(alone) = cuda() else { return };
    for (rows, channels) in [(23, 8), (5000, 64), (40_000, 128)] {
        let values: Vec<f32> = values(5, rows * channels).into_iter().map(|value| 2.0 + value).collect();
        for place in places() {
            let bands = all(&place.group(), |cuda| normed_band(cuda, &values, channels));
            assert_normed(&alone, &values, channels, &bands, |value| value.abs() / 128.0 + 1e-4);
        }
    }
}

fn parallel(place: Place, files: &ModelFiles) -> Parallel<Cuda> {
    Parallel::load(place.group(), files).unwrap()
}

fn generate(parallel: &Parallel<Cuda>, request: &Request, count: usize) -> Result<Vec<Image>> {
    parallel.generate_batch(request, count, &CancelFlag::default(), &mut |_| {})
}

fn sized(prompt: &str, [width, height]: [usize; 2]) -> Request {
    Request { width: Some(width), height: Some(height), steps: Some(3), ..Request::new(prompt, 5) }
}

fn picture(width: usize, height: usize) -> Arc<flux::rgb::Rgb> {
    let byte = |i: usize| (128.0 + 100.0 * (i as f32 / 97.0).sin()) as u8;
    Arc::new(flux::rgb::Rgb { width, height, bytes: (0..3 * width * height).map(byte).collect() })
}

/// The first image runs op by op, the second is captured, and the third is the first that only launches graphs.
fn assert_near(place: Place, files: &ModelFiles, request: &Request, count: usize, what: &str) {
    let alone = Model::load(cuda().unwrap(), files).unwrap();
    let expected = alone.generate_batch(request, count).unwrap();
    let parallel = parallel(place, files);
    let mut first = Vec::new();
    for run in 0..3 {
        let images =
            generate(&parallel, request, count).unwrap_or_else(|e| panic!("{what}, {place:?}, run {run}: {e}"));
        let bytes: Vec<Vec<u8>> = images.into_iter().map(|image| image.rgb).collect();
        if run == 0 {
            for (image, expected) in bytes.iter().zip(&expected) {
                let psnr = psnr(image, &expected.rgb);
                println!("{what}, {place:?}: {psnr:.1} dB");
                assert!(psnr >= 45.0, "{what}, {place:?}: {psnr:.1} dB");
            }
            assert_eq!(bytes.len(), expected.len());
            first = bytes;
        } else {
            assert!(bytes == first, "{what}, {place:?}: run {run} gave other bytes");
        }
    }
    for model in parallel.models() {
        let stats = model.backend().stats();
        assert!(stats.graph_launches > 0 && stats.uncaptured == 0, "{what}, {place:?}: {stats:?}");
    }
}

#[test]
fn ranks_make_the_image_of_one_gpu() {
    for place in places() {
        assert_near(place, &default_model(), &sized("a black cat on an orange background", [256, 256]), 1, "256 x 256");
        assert_near(place, &default_model(), &sized("a boat", [208, 176]), 1, "208 x 176");
        if few() {
            continue;
        }
        assert_near(place, &default_model(), &sized("a blue star", [112, 80]), 3, "a batch");
        assert_near(place, &preset("tiny"), &sized("a cat", [112, 80]), 1, "a random model");
    }
}

#[test]
fn ranks_share_references_and_guidance() {
    for place in places().into_iter().filter(|_| !few()) {
        let references = vec![picture(96, 80), picture(32, 16)];
        let request = Request { references, ..sized("a cat", [96, 80]) };
        assert_near(place, &default_model(), &request, 1, "references");
        if !matches!(place, Place::OneGpu(2, _) | Place::OneEach(2, _)) {
            continue;
        }
        let guided = Request { guidance: Some(3.0), negative: Some("rain".to_string()), ..sized("a cat", [80, 48]) };
        assert_near(place, &preset("base"), &guided, 1, "guidance");
        // This model has three heads.
        let request = Request { references: vec![picture(96, 80)], ..sized("a cat", [96, 80]) };
        assert_near(Place::OneGpu(3, Link::Peers), &preset("kv"), &request, 1, "cached references");
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_and_the_next_image_is_made() {
    for place in places() {
        let (parallel, request) = (parallel(place, &default_model()), sized("a cat", [96, 80]));
        let (never, start) = (CancelFlag::default(), Instant::now());
        for steps in 0..=2 {
            let failed = parallel.run(&request, 1, &never, &mut |_| {}, move |rank, mut session, report| {
                for _ in 0..steps {
                    session.step(report)?;
                }
                if rank == 1 { Err(Error::new("out of memory")) } else { session.run(report) }
            });
            assert_eq!(failed.unwrap_err().to_string(), "device 1: out of memory", "{place:?} after {steps} steps");
        }
        assert!(start.elapsed() < limit(), "{:?}", start.elapsed());
        let cancel = CancelFlag::default();
        let long = Request { steps: Some(50), ..request.clone() };
        let cancelled = parallel.generate_batch(&long, 1, &cancel, &mut |_| cancel.cancel());
        assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled);
        let alone = Model::load(cuda().unwrap(), &default_model()).unwrap().generate(&request).unwrap();
        for _ in 0..3 {
            let image = &generate(&parallel, &request, 1).unwrap()[0];
            assert!(psnr(&image.rgb, &alone.rgb) >= 45.0, "{place:?}");
        }
    }
}

#[test]
fn a_rank_whose_memory_is_full_is_named_by_all() {
    for place in places() {
        let ranks = place.group();
        let start = Instant::now();
        let results = on_each(&ranks, |cuda| {
            if cuda.rank() == 1 {
                let part = gibibyte(cuda)?;
                return Tensor::concat_rows(&[&part; 256]).map(|_| ());
            }
            let x = cuda.upload(&[1.0; 8], 1, 8)?;
            x.all_gather_rows(&RowSplit::bands(cuda.world(), 1, cuda.world())).map(|_| ())
        });
        assert!(start.elapsed() < limit());
        for (rank, result) in results.into_iter().enumerate() {
            let text = result.unwrap_err().to_string();
            let named = rank == 1 || text.contains("because of rank 1");
            assert!(text.contains("out of GPU memory") && named, "{place:?} rank {rank}: {text}");
        }
    }
}

/// Returns [rows, 1024] with this many bytes in total.
fn gibibyte(cuda: &Cuda) -> Result<Tensor<Cuda>> {
    let part = cuda.upload(&vec![0.5; 1 << 20], 1 << 10, 1 << 10)?;
    Tensor::concat_rows(&[&part; 512])
}

#[test]
fn a_rank_that_does_not_come_is_named_and_what_waits_for_it_ends() {
    // Under a tool, even ranks in time exceed the shorter limit.
    let limit = if small() { Duration::from_secs(10) } else { Duration::from_millis(300) };
    for place in places() {
        let ranks = place.group_within(limit).unwrap();
        let rows = RowSplit::bands(ranks.len(), 1, ranks.len());
        let gathered = |cuda: &Cuda| cuda.upload(&[1.0; 8], 1, 8)?.all_gather_rows(&rows);
        all(&ranks, |cuda| gathered(cuda).and_then(|x| cuda.download(&x)).map(|_| ()));

        let start = Instant::now();
        let late = on_each(&ranks, |cuda| if cuda.rank() == 1 { Ok(vec![]) } else { cuda.download(&gathered(cuda)?) });
        let text = late[0].as_ref().unwrap_err().to_string();
        assert!(text.contains(&format!("rank 1 timed out after {limit:?}")), "{place:?}: {text}");
        assert!(start.elapsed() < limit + Duration::from_millis(2700), "{:?}", start.elapsed());
        restore(&ranks);
        if small() {
            println!("a GPU with more to do than there is time: skipped, a tool makes all of them late");
            continue;
        }

        // The host of rank 1 joins, but its GPU has too much other work to be in time.
        let mut busy: Vec<_> = ranks.iter().map(|cuda| (cuda.rank() == 1).then(|| gibibyte(cuda).unwrap())).collect();
        busy[1] = busy[1].take().map(|x| Tensor::concat_rows(&[&x, &x]).unwrap());
        let busy = std::sync::Mutex::new(busy);
        let hung = on_each(&ranks, |cuda| {
            let mut x = busy.lock().unwrap()[cuda.rank()].take();
            for _ in 0..900 {
                x = x.map(Tensor::silu).transpose()?;
            }
            cuda.download(&gathered(cuda)?)
        });
        let text = hung[0].as_ref().unwrap_err().to_string();
        assert!(
            text.contains(&format!("the GPU of rank 1 did not reach exchange 1 within {limit:?}")),
            "{place:?}: {text}"
        );
        restore(&ranks);
        for got in all(&ranks, |cuda| gathered(cuda).and_then(|x| cuda.download(&x))) {
            assert_eq!(got, vec![1.0; 8 * ranks.len()], "{place:?}");
        }
    }
}

fn restore(ranks: &[Cuda]) {
    let start = Instant::now();
    for cuda in ranks {
        while let Err(error) = cuda.restore_collectives() {
            assert!(start.elapsed() < Duration::from_secs(20), "{error}");
        }
    }
}

#[test]
fn groups_that_cannot_be_are_refused() {
    let group = |ordinals: &[usize]| {
        let made = Cuda::group(ordinals, None, Precision::Bf16, &GemmCache::Off, GroupOptions::default());
        made.err().expect("no such group").to_string()
    };
    assert!(group(&[]).contains("a group of 0 GPUs"));
    assert!(group(&[0, 1, 0]).contains("GPU 0 is listed twice"));
    if cuda().is_some() {
        assert!(group(&[0, 99]).contains("no GPU 99"));
    }
}
