//! Images by models with streamed parts, or parts that share memory: the same bytes as with resident parts, and no
//! more memory than allowed.

use std::sync::Arc;
use std::thread;

use flux::backend::cuda::{Cuda, GemmCache, Precision};
use flux::backend::{AccessFrequency, Device, Memory, SLABS};
use flux::files::{Folder, ModelFiles};
use flux::model::ModelInfo;
use flux::nn::{Blocks, Weights};
use flux::pipeline::{MemoryPlan, Model, Request};
use flux::stage::{CancelFlag, Stage};
use flux::tensor::Tensor;
use safetensors::tensor::{Dtype, TensorView as FileTensor};

use crate::compare::{Shape, encoded, plain, values};
use crate::pipeline::default_model;
use crate::support::preset;
use crate::{cuda, cuda_fp8};

/// A handle that may use `bytes`, and computes as in other tests.
fn capped(bytes: u64, precision: Precision) -> Cuda {
    Cuda::with(0, Some(bytes), precision, &GemmCache::Off).unwrap()
}

/// The memory limits at which the model's parts are resident, streamed, and share memory, for images like `request`.
fn levels(cuda: &Cuda, dir: &ModelFiles, request: &Request) -> [(&'static str, u64); 4] {
    let size = request.height.zip(request.width).map(|(height, width)| [height, width]);
    ModelInfo::read(dir).unwrap().memory_sizes(&cuda.costs(), size).unwrap().levels()
}

/// Makes images at each level, and compares them with images of a model that has all memory.
fn check(cuda: &Cuda, precision: Precision, dir: &ModelFiles, request: &Request) {
    let other = Request { prompt: "a robot on a lavender background".to_string(), ..request.clone() };
    let resident = Model::load(cuda.clone(), dir).unwrap();
    // With as many blocks as slabs, no blocks take turns.
    let info = resident.info();
    let layers = info.out_layers.iter().max().copied().unwrap_or(0);
    let takes_turns = [layers > SLABS, info.transformer.elements_of_blocks().len() > SLABS];
    let expected = [request, &other].map(|request| resident.generate(request).unwrap().rgb);
    for (index, (level, bytes)) in levels(cuda, dir, request).into_iter().enumerate() {
        let capped = capped(bytes, precision);
        let model = Model::load(capped.clone(), dir).unwrap();
        let MemoryPlan { text_encoder, transformer, together, .. } =
            model.memory_plan(&model.plan(request).unwrap()).unwrap();
        let streamed = [text_encoder.streamed(), transformer.streamed()];
        println!("{level}: {bytes} bytes, {streamed:?} blocks streamed");
        let given_up = [streamed[0] > 0, index == 3 || streamed[1] > 0, !together];
        let expected_of = [index > 0 && takes_turns[0], index == 3 || index == 2 && takes_turns[1], index > 2];
        assert_eq!(given_up, expected_of, "{level}");
        model.prefetch(request).unwrap();
        for round in 0..3 {
            for (request, expected) in [request, &other].into_iter().zip(&expected) {
                let got = model.generate(request).unwrap().rgb;
                assert!(got == *expected, "{level}, round {round}: {request:?}");
                let reserved = capped.reserved_bytes().unwrap();
                assert!(reserved <= bytes, "{level}, round {round}: the driver holds {reserved} bytes of {bytes}");
            }
        }
        assert_eq!(capped.stats().uncaptured, 0, "{level}: {:?}", capped.remarks());
    }
}

#[test]
fn images_of_streamed_blocks_are_those_of_resident_ones() {
    let Some(cuda) = cuda() else { return };
    check(&cuda, Precision::Bf16, &default_model(), &Request::new("a black cat on an orange background", 5));
}

#[test]
fn images_of_streamed_blocks_in_fp8_are_those_of_resident_ones() {
    let Some(cuda) = cuda_fp8() else { return };
    check(&cuda, Precision::Fp8, &default_model(), &Request::new("a black cat on an orange background", 5));
}

/// Padded weights, files in several parts, and weights in float32.
#[test]
fn blocks_of_any_size_and_format_are_streamed() {
    let Some(cuda) = cuda() else { return };
    for name in ["tiny", "uneven", "sharded"] {
        let request = Request { width: Some(64), height: Some(96), ..Request::new("a cat", 1) };
        check(&cuda, Precision::Bf16, &preset(name), &request);
    }
}

#[test]
fn sessions_that_have_no_room_beside_each_other_wait() {
    let Some(cuda) = cuda() else { return };
    let dir = default_model();
    let request = |seed| Request {
        width: Some(256),
        height: Some(256),
        steps: Some(2),
        ..Request::new(format!("a cat number {seed}"), seed)
    };
    let requests = [1, 2, 3].map(request);
    let resident = Model::load(cuda.clone(), &dir).unwrap();
    let expected = requests.each_ref().map(|request| resident.generate(request).unwrap().rgb);
    // There is room for one of them.
    for (level, bytes) in levels(&cuda, &dir, &requests[0]) {
        let capped = capped(bytes, Precision::Bf16);
        let model = Model::load(capped.clone(), &dir).unwrap();
        thread::scope(|scope| {
            for (request, expected) in requests.iter().zip(&expected) {
                let model = &model;
                scope.spawn(move || {
                    for round in 0..3 {
                        assert!(model.generate(request).unwrap().rgb == *expected, "{level}, round {round}");
                    }
                });
            }
        });
        assert!(capped.stats().peak_memory_bytes <= bytes, "{level}");
    }
}

#[test]
fn sessions_that_stream_at_the_same_time_do_not_disturb_each_other() {
    let Some(cuda) = cuda() else { return };
    let dir = default_model();
    let request = |side: usize, seed| Request {
        width: Some(side),
        height: Some(side),
        steps: Some(3),
        ..Request::new(format!("a cat number {seed}"), seed)
    };
    let requests = [request(128, 1), request(64, 2), request(96, 3)];
    let resident = Model::load(cuda.clone(), &dir).unwrap();
    let expected: Vec<_> = requests.iter().map(|request| resident.generate(request).unwrap().rgb).collect();
    // Planned for a large image, the same memory has room for the activations of several small ones.
    let large = request(512, 4);
    let (_, bytes) = levels(&cuda, &dir, &large)[2];
    let model = Model::load(capped(bytes, Precision::Bf16), &dir).unwrap();
    assert!(model.memory_plan(&model.plan(&large).unwrap()).unwrap().transformer.streamed() > 0);
    model.generate(&large).unwrap();
    thread::scope(|scope| {
        for (request, expected) in requests.iter().zip(&expected) {
            let model = &model;
            scope.spawn(move || {
                for round in 0..4 {
                    assert!(model.generate(request).unwrap().rgb == *expected, "round {round}: {request:?}");
                }
            });
        }
    });
}

#[test]
fn a_larger_image_streams_more_and_a_cancelled_one_leaves_the_model_usable() {
    let Some(cuda) = cuda() else { return };
    let dir = default_model();
    let request = |side| Request { width: Some(side), height: Some(side), ..Request::new("a cat", 7) };
    let resident = Model::load(cuda.clone(), &dir).unwrap();
    let sides = [64, 384, 64];
    let expected = sides.map(|side| resident.generate(&request(side)).unwrap().rgb);
    // Just enough for the larger image with streamed blocks, and for all blocks with the smaller image.
    let (_, bytes) = levels(&cuda, &dir, &request(384))[2];
    let model = Model::load(capped(bytes, Precision::Bf16), &dir).unwrap();
    for (side, expected) in sides.into_iter().zip(&expected) {
        assert!(model.generate(&request(side)).unwrap().rgb == *expected, "{side}");
    }
    for stage in [Stage::Text, Stage::Denoise] {
        let cancel = CancelFlag::default();
        let request = Request { prompt: format!("a dog, {stage:?}"), ..request(384) };
        let ended = model.session(&request, 1, &cancel).unwrap().run(&mut |progress| {
            if progress.stage == stage && progress.done > 0 {
                cancel.cancel();
            }
        });
        assert!(ended.is_err(), "{stage:?}");
        assert!(model.generate(&Request { prompt: "a cat".to_string(), ..request }).unwrap().rgb == expected[1]);
    }
}

/// Weights whose products are summed, adjacent in memory: in streamed blocks and in resident blocks.
#[test]
fn sums_of_streamed_weights_are_those_of_resident_ones() {
    let Some(cuda) = cuda() else { return };
    const BLOCKS: usize = 5;
    // Weights of the second kind are not adjacent, and those of the third have padding.
    for (rows, cols, dtype) in [
        (64, [256, 128], plain()),
        (64, [256, 128], Dtype::F32),
        (21, [40, 13], plain()),
        (3000, [1024, 3072], plain()),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<_> = (0..2 * BLOCKS).map(|i| encoded(&values(i as u64, rows * cols[i % 2]), dtype)).collect();
        let tensor = |i: usize| FileTensor::new(dtype, vec![rows, cols[i % 2]], &bytes[i]).unwrap();
        let tensors = (0..2 * BLOCKS).map(|i| (format!("{}.{}.weight", i / 2, ["a", "b"][i % 2]), tensor(i)));
        safetensors::serialize_to_file(tensors, None, &folder.path().join("w.safetensors")).unwrap();
        let files = Folder::Disk(folder.path().to_path_buf()).tensors("w").unwrap();
        let [x, y] = Shape::dense(40, cols[0] + cols[1]).tensor(&cuda, 1).split_cols(cols);
        let sums = |blocks: Blocks<Cuda>| {
            let blocks = Arc::new(blocks);
            let weights = Weights::new(&cuda, &files).with_blocks(Arc::clone(&blocks));
            let layers = |block: usize| {
                weights.at(block).for_block(block).summed_linears(&[("a", cols[0]), ("b", cols[1])], rows).unwrap()
            };
            let layers: Vec<_> = (0..BLOCKS).map(layers).collect();
            blocks.allocate(&cuda).unwrap();
            let mut sums = Vec::new();
            for _ in 0..2 {
                let mut pass = blocks.begin(&cuda);
                for (block, layers) in layers.iter().enumerate() {
                    pass.enter(block).unwrap();
                    let sum = Tensor::linear_sum(&[(&x, &layers[0]), (&y, &layers[1])]).unwrap();
                    sums.push(cuda.download(&sum).unwrap());
                }
            }
            sums
        };
        let resident = sums(Blocks::default());
        let streamed = sums(Blocks::new(&[true; BLOCKS], AccessFrequency::Often));
        assert!(resident == streamed, "{rows} x {cols:?} in {dtype:?}");
        assert!(resident[0] != resident[1] && resident[0] == resident[BLOCKS], "each block has weights of its own");
    }
}
