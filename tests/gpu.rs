//! Tests of the GPU, against the CPU and against itself.
//!
//! Every test skips with a message if there is no GPU; `FLUX_REQUIRE_GPU=1` makes that a failure.
//! `FLUX_PARITY_SIZES=small` leaves out the real sizes, and `few` also most of many cases, for compute-sanitizer.
//! `FLUX_TEST_ROOT` is the project's folder, if it differs from the folder of the build.

#[path = "support/bands.rs"]
mod bands;
#[path = "support/flux3_base.rs"]
mod flux3_base;
#[path = "support/ranks.rs"]
mod ranks;
mod support;
#[path = "support/tiny_decoder.rs"]
mod tiny_decoder;

#[path = "parity/adaln.rs"]
mod adaln;
#[path = "parity/adapters.rs"]
mod adapters;
#[path = "parity/add.rs"]
mod add;
#[path = "parity/attention.rs"]
mod attention;
#[path = "parity/attention_e4m3.rs"]
mod attention_e4m3;
#[path = "parity/attention_int8.rs"]
mod attention_int8;
#[path = "parity/capability.rs"]
mod capability;
#[path = "parity/compare.rs"]
mod compare;
#[path = "parity/concat.rs"]
mod concat;
#[path = "parity/conv2d.rs"]
mod conv2d;
#[path = "parity/copies.rs"]
mod copies;
#[path = "parity/dense_block.rs"]
mod dense_block;
#[path = "parity/dequantize.rs"]
mod dequantize;
#[path = "parity/doors.rs"]
mod doors;
#[path = "parity/editing.rs"]
mod editing;
#[path = "parity/euler_step.rs"]
mod euler_step;
#[path = "parity/flux3.rs"]
mod flux3;
#[path = "parity/fp8.rs"]
mod fp8;
#[path = "parity/fp8_weights.rs"]
mod fp8_weights;
#[path = "parity/full_size.rs"]
mod full_size;
#[path = "parity/gated_add.rs"]
mod gated_add;
#[path = "parity/gated_add_adaln.rs"]
mod gated_add_adaln;
#[path = "parity/graph.rs"]
mod graph;
#[path = "parity/group_norm.rs"]
mod group_norm;
#[path = "parity/guide.rs"]
mod guide;
#[path = "parity/half.rs"]
mod half;
#[path = "parity/host_memory.rs"]
mod host_memory;
#[path = "parity/inpaint_blend.rs"]
mod inpaint_blend;
#[path = "parity/int8.rs"]
mod int8;
#[path = "parity/layer_norm.rs"]
mod layer_norm;
#[path = "parity/leaky_relu.rs"]
mod leaky_relu;
#[path = "parity/linear.rs"]
mod linear;
#[path = "parity/low_rank.rs"]
mod low_rank;
#[path = "parity/meaning.rs"]
mod meaning;
#[path = "parity/memory.rs"]
mod memory;
#[path = "parity/mul.rs"]
mod mul;
#[path = "parity/norm_conv2d.rs"]
mod norm_conv2d;
#[path = "parity/parallel.rs"]
mod parallel;
#[path = "parity/patchify.rs"]
mod patchify;
#[path = "parity/pipeline.rs"]
mod pipeline;
#[path = "parity/pixel_shuffle.rs"]
mod pixel_shuffle;
#[path = "parity/project.rs"]
mod project;
#[path = "parity/project_attention.rs"]
mod project_attention;
#[path = "parity/qk_norm_rope.rs"]
mod qk_norm_rope;
#[path = "parity/relu.rs"]
mod relu;
#[path = "parity/rms_norm.rs"]
mod rms_norm;
#[path = "parity/rope.rs"]
mod rope;
#[path = "parity/scale_shift.rs"]
mod scale_shift;
#[path = "meaning/score.rs"]
mod score;
#[path = "parity/selftest.rs"]
mod selftest;
#[path = "parity/silu.rs"]
mod silu;
#[path = "parity/softcap.rs"]
mod softcap;
#[path = "parity/streaming.rs"]
mod streaming;
#[path = "parity/swiglu.rs"]
mod swiglu;
#[path = "parity/tiny_decoder.rs"]
mod tiny_decoder_parity;
#[path = "parity/transfer.rs"]
mod transfer;
#[path = "parity/unpatchify.rs"]
mod unpatchify;
#[path = "parity/upsample.rs"]
mod upsample;
#[path = "parity/upsample_conv2d.rs"]
mod upsample_conv2d;
#[path = "parity/vae_encoder.rs"]
mod vae_encoder;

use std::path::PathBuf;
use std::sync::OnceLock;

use flux::backend::Memory;
use flux::backend::cuda::{Cuda, GemmCache, Precision};

/// Returns GPU 0 with counters of its own, or `None` if there is no GPU.
fn cuda() -> Option<Cuda> {
    // Tests run in parallel, so their timings are useless, and two of them could choose different algorithms. Without
    // choices, every multiplication of one shape is the same to the bit.
    let open = || Cuda::with(0, None, Precision::Bf16, &GemmCache::Off);
    // One handle lives throughout, so that the context is created once.
    static FIRST: OnceLock<Result<Cuda, String>> = OnceLock::new();
    match FIRST.get_or_init(|| open().map_err(|e| e.to_string())) {
        Ok(_) => Some(open().expect("the GPU opened a moment ago")),
        Err(error) if std::env::var_os("FLUX_REQUIRE_GPU").is_some() => panic!("{error}"),
        Err(_) => {
            println!("skipped: no CUDA device");
            None
        }
    }
}

/// `cuda` in fp8; `None` without a GPU, or on a GPU without fp8 support. A Hopper GPU must support it.
fn cuda_fp8() -> Option<Cuda> {
    let device = cuda()?;
    match Cuda::with(0, None, Precision::Fp8, &GemmCache::Off) {
        Ok(cuda) => Some(cuda),
        Err(error) if is_hopper(&device) => panic!("{} has no fp8: {error}", device.describe()),
        Err(error) => {
            println!("skipped: {}", error.what());
            None
        }
    }
}

/// `cuda_fp8`, if attention is in fp8, too.
fn cuda_fp8_attention() -> Option<Cuda> {
    cuda_fp8().filter(is_hopper)
}

/// `cuda` with multiplications of 8-bit integers; `None` without a GPU.
fn cuda_int8() -> Option<Cuda> {
    cuda()?;
    Some(Cuda::with(0, None, Precision::Int8, &GemmCache::Off).expect("every GPU multiplies integers"))
}

/// `cuda` with weights in 4 bits.
fn cuda_w4a8() -> Option<Cuda> {
    cuda()?;
    Some(Cuda::with(0, None, Precision::W4a8, &GemmCache::Off).expect("every GPU multiplies integers"))
}

/// `cuda`, if that GPU has the kernels for Hopper.
fn cuda_hopper() -> Option<Cuda> {
    let cuda = cuda()?;
    if !is_hopper(&cuda) {
        println!("skipped: not a Hopper GPU");
        return None;
    }
    Some(cuda)
}

/// Returns `true` if the kernels for Hopper are the default: they compute in bf16.
fn is_hopper(cuda: &Cuda) -> bool {
    cuda.describe().contains("compute capability 9.0") && !compare::half()
}

/// The project's folder.
fn root() -> PathBuf {
    support::root()
}

/// Returns `true` if real sizes are left out.
fn small() -> bool {
    few() || std::env::var("FLUX_PARITY_SIZES").is_ok_and(|sizes| sizes == "small")
}

/// Returns `true` if most of many cases are left out, too.
fn few() -> bool {
    std::env::var("FLUX_PARITY_SIZES").is_ok_and(|sizes| sizes == "few")
}

/// Returns a function that selects test cases: each one, or with few cases the first of each `every`. A number that
/// does not divide the lengths of nested lists covers each value of the lists.
fn sampled(every: usize) -> impl FnMut() -> bool {
    let (mut case, every) = (0, if few() { every } else { 1 });
    move || {
        case += 1;
        (case - 1) % every == 0
    }
}
