//! Tests of the GPU, against the CPU and against itself.
//!
//! Every test skips with a message if there is no GPU; `FLUX_REQUIRE_GPU=1` makes that a failure.
//! `FLUX_PARITY_SIZES=small` leaves out the real sizes, and `few` also most of many cases, for compute-sanitizer.
//! `FLUX_TEST_ROOT` is the project's folder, if it differs from the folder of the build.

#[path = "../support/bands.rs"]
mod bands;
#[path = "../support/flux3_base.rs"]
mod flux3_base;
#[path = "../support/ranks.rs"]
mod ranks;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/tiny_decoder.rs"]
mod tiny_decoder;

mod adaln;
mod adapters;
mod add;
mod attention;
mod attention_e4m3;
mod attention_int8;
mod capability;
mod compare;
mod concat;
mod conv2d;
mod copies;
mod dense_block;
mod dequantize;
mod doors;
mod editing;
mod euler_step;
mod flux3;
mod fp8;
mod fp8_weights;
mod full_size;
mod gated_add;
mod gated_add_adaln;
mod graph;
mod group_norm;
mod guide;
mod half;
mod host_memory;
mod inpaint_blend;
mod int8;
mod layer_norm;
mod leaky_relu;
mod linear;
mod low_rank;
mod meaning;
mod memory;
mod mul;
mod norm_conv2d;
mod parallel;
mod patchify;
mod pipeline;
mod pixel_shuffle;
mod project;
mod project_attention;
mod qk_norm_rope;
mod relu;
mod rms_norm;
mod rope;
mod scale_shift;
#[path = "../meaning/score.rs"]
mod score;
mod selftest;
mod silu;
mod softcap;
mod streaming;
mod swiglu;
#[path = "tiny_decoder.rs"]
mod tiny_decoder_parity;
mod transfer;
mod unpatchify;
mod upsample;
mod upsample_conv2d;
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
