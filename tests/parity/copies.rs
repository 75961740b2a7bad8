//! Weights that a GPU copies from another handle: to the same GPU, and to a second one if there is one.

use flux::backend::cuda::{Cuda, GemmCache, Precision};
use flux::backend::{Device, Remark, Storage, WeightStore};
use flux::engine::Engine;
use flux::files::TensorView;
use flux::model::OpenModel;
use flux::nn::Linear;
use flux::pipeline::{Model, Replicas, Request};
use flux::stage::CancelFlag;
use safetensors::Dtype;

use crate::compare::{Weight, values};
use crate::pipeline::default_model;
use crate::support::preset;
use crate::{cuda, cuda_fp8};

/// Other handles with the precision of `cuda`, to the same GPU and to the second one if there is one.
fn others(precision: Precision) -> Vec<Cuda> {
    let open = |gpu| Cuda::with(gpu, None, precision, &GemmCache::Off);
    let mut others = vec![open(0).unwrap()];
    match open(1) {
        Ok(second) => others.push(second),
        Err(error) if error.to_string().contains("no GPU 1") => println!("skipped: there is one GPU"),
        Err(error) => panic!("{error}"),
    }
    others
}

fn load(cuda: &Cuda, parts: &[TensorView], storage: Storage) -> Linear<Cuda> {
    cuda.load(|uploads| Linear::load_with((cuda, Some(uploads)), "weight", parts, storage), &mut |_| {}).unwrap()
}

/// The gigabytes that were copied from another GPU, as reported by the program.
fn copied(cuda: &Cuda) -> Option<f64> {
    cuda.remarks().iter().find_map(|remark| match remark {
        Remark::Detail(text) => text.split_once(" GB of weights were copied from GPU 0")?.0.parse().ok(),
        Remark::Warning(_) => None,
    })
}

#[test]
fn a_copy_of_a_weight_is_the_weight() {
    let Some(cuda) = cuda() else { return };
    for other in others(Precision::Bf16) {
        assert!(other.copy_weights_from(&cuda).unwrap());
        for (rows, cols) in [(1, 8), (40, 3072), (37, 1031), (3000, 3072)] {
            for dtype in [Dtype::BF16, Dtype::F32] {
                let file = Weight::new(&values(rows as u64, rows * cols), &[rows, cols], dtype);
                let parts = [file.view().row_range(rows / 2..rows), file.view().row_range(0..rows / 2)];
                let (weight, before) = (load(&cuda, &parts, Storage::Native), other.stats().copies);
                let copy = load(&other, &parts, Storage::Native);
                assert_eq!(other.stats().copies, before, "nothing comes from the host");
                assert!(cuda.weight_values(&weight).unwrap() == other.weight_values(&copy).unwrap(), "{rows} x {cols}");
                // The copy has the original values, so the first weight may be freed.
                drop(weight);
                let expected: Vec<f32> = parts.iter().flat_map(TensorView::to_f32).collect();
                assert!(other.weight_values(&copy).unwrap() == expected, "{rows} x {cols}");
                // Freed weights come from the file.
                assert!(other.weight_values(&load(&other, &parts, Storage::Native)).unwrap() == expected);
                assert!(other.stats().copies > before);
            }
        }
    }
}

#[test]
fn weights_side_by_side_are_copied_together() {
    let Some(cuda) = cuda() else { return };
    for other in others(Precision::Bf16) {
        assert!(other.copy_weights_from(&cuda).unwrap());
        let files = [256, 1024].map(|cols| Weight::plain(cols as u64, 3000, cols));
        let views: Vec<_> = files.iter().map(|file| vec![file.view()]).collect();
        let summed = |cuda: &Cuda| {
            let names = || files.iter().map(|_| "weight".to_string()).collect();
            let load = |uploads: &_| Linear::load_summed((cuda, Some(uploads)), names(), &views, Storage::Native);
            cuda.load(load, &mut |_| {}).unwrap()
        };
        let (weights, before) = (summed(&cuda), other.stats().copies);
        let copies = summed(&other);
        assert_eq!(other.stats().copies, before, "nothing comes from the host");
        drop(weights);
        assert!(copies[1].weight().address() - copies[0].weight().address() == 512, "they lie side by side");
        for (copy, file) in copies.iter().zip(&files) {
            assert!(other.weight_values(copy).unwrap() == file.view().to_f32());
        }
    }
}

#[test]
fn what_is_loaded_at_the_same_time_is_copied_or_read() {
    let Some(cuda) = cuda() else { return };
    let file = Weight::seeded(3, 3000, 1024);
    let parts: Vec<_> = (0..30).map(|part| file.view().row_range(part * 100..(part + 1) * 100)).collect();
    for other in others(Precision::Bf16) {
        assert!(other.copy_weights_from(&cuda).unwrap());
        for _ in 0..20 {
            std::thread::scope(|scope| {
                let whole = scope.spawn(|| {
                    parts.iter().map(|part| load(&cuda, std::slice::from_ref(part), Storage::Native)).collect()
                });
                let copies: Vec<_> =
                    parts.iter().map(|part| load(&other, std::slice::from_ref(part), Storage::Native)).collect();
                // They are freed while the others are copied.
                let whole: Vec<Linear<Cuda>> = whole.join().unwrap();
                drop(whole);
                for (copy, part) in copies.iter().zip(&parts) {
                    assert!(other.weight_values(copy).unwrap() == part.to_f32());
                }
            });
        }
    }
}

#[test]
fn quantized_weights_are_copied_with_their_scales() {
    let Some(cuda) = cuda_fp8() else { return };
    for other in others(Precision::Fp8) {
        assert!(other.copy_weights_from(&cuda).unwrap());
        for (rows, cols) in [(9, 1031), (3000, 3072)] {
            let file = Weight::seeded(5, rows, cols);
            let (weight, before) = (load(&cuda, &[file.view()], Storage::Fp8), other.stats());
            let copy = load(&other, &[file.view()], Storage::Fp8);
            let after = other.stats();
            assert_eq!((after.copies, after.launches), (before.copies, before.launches), "it is quantized once");
            assert!(cuda.weight_values(&weight).unwrap() == other.weight_values(&copy).unwrap());
        }
    }
    let plain = Cuda::with(0, None, Precision::Bf16, &GemmCache::Off).unwrap();
    assert!(!plain.copy_weights_from(&cuda).unwrap(), "they do not compute alike");
    assert!(!cuda.copy_weights_from(&cuda.clone()).unwrap(), "they are one");
}

/// Compares images of a model with copied weights, and checks that all weights but the text encoder's were copied.
#[test]
fn images_of_copied_weights_are_those_of_the_files() {
    let Some(cuda) = cuda() else { return };
    let request = Request { steps: Some(2), ..Request::new("a black cat on an orange background", 5) };
    let small = Request { width: Some(64), height: Some(96), ..request.clone() };
    for (dir, request) in [(default_model(), request), (preset("uneven"), small)] {
        let alone = Model::load(cuda.clone(), &dir).unwrap();
        let expected: Vec<_> =
            (5..8).map(|seed| alone.generate(&Request { seed, ..request.clone() }).unwrap().rgb).collect();
        for other in others(Precision::Bf16) {
            let first = Cuda::with(0, None, Precision::Bf16, &GemmCache::Off).unwrap();
            let devices = vec![("a".to_string(), first), ("b".to_string(), other.clone())];
            let engine =
                Engine::from_replicas(&Replicas::new(devices, OpenModel::open(&dir).unwrap()).unwrap()).unwrap();
            for count in [2, 3] {
                let images = engine.generate_images(&request, count, &CancelFlag::default(), &mut |_| {}).unwrap();
                let read: Vec<_> = images.iter().map(|image| image.timings.prompts_encoded).collect();
                assert_eq!(
                    read.iter().sum::<usize>(),
                    usize::from(count == 2),
                    "one device reads the prompt: {read:?}"
                );
                for (image, expected) in images.iter().zip(&expected).take(2) {
                    assert!(count > 2 || image.rgb == *expected, "seed {}", image.plan.seed);
                }
            }
            let info = alone.info();
            let elements = info.transformer.elements() + info.vae.decoder_elements();
            let copied = copied(&other).expect("weights are copied");
            // Vectors are not copied, and rows are padded.
            let of_files = elements as f64 * 2.0 / 1e9;
            assert!((0.9..1.3).contains(&(copied / of_files)) || of_files < 0.01, "{copied} GB of {of_files}");
        }
    }
}
