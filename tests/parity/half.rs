//! Special cases of fp16, whose largest value is 65504: residual streams may exceed it. A GPU with bf16 runs these
//! tests in processes of their own, with `FLUX_COMPUTE=fp16`.

use flux::backend::cuda::Cuda;
use flux::backend::{Backend, Device, Memory, Remark};
use flux::ops;
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{Case, Shape, Weight, check_against, half, values, vector, with_variable};

/// The unit of activations, and the largest activation.
const UNIT: f32 = 32.0;
const LARGEST: f32 = 65504.0 * UNIT;

/// Returns GPU 0 if it computes in fp16.
fn fp16() -> Option<Cuda> {
    if !half() {
        println!("skipped: no GPU that computes in fp16");
        return None;
    }
    crate::cuda()
}

#[test]
fn fp16_works_on_gpus_that_have_bf16() {
    let Some(cuda) = crate::cuda() else { return };
    if half() {
        return;
    }
    assert!(cuda.describe().ends_with(", bf16)"), "{}", cuda.describe());
    for test in ["large_activations_stay_what_they_are", "what_is_too_large_is_cut_off_and_noticed"] {
        let (passed, text) = with_variable(&format!("half::{test}"), "FLUX_COMPUTE", "fp16");
        if text.contains("without kernels for fp16") {
            println!("skipped: this program was built without kernels for fp16");
            return;
        }
        assert!(passed && !text.contains("skipped"), "{test}: {text}");
    }
    let (passed, text) = with_variable("half::large_activations_stay_what_they_are", "FLUX_COMPUTE", "fp32");
    assert!(!passed && text.contains("`fp32`"), "{text}");
}

/// Values of magnitude 2^18, as in a residual stream with massive activations, through all ops that read or add to a
/// stream.
struct Large;

impl Large {
    fn x<B: Backend>(b: &B, seed: u64, [rows, cols]: [usize; 2]) -> Tensor<B> {
        let large: Vec<f32> = values(seed, rows * cols).iter().map(|v| v * 262_144.0).collect();
        b.upload(&large, rows, cols).unwrap()
    }
}

impl Case for Large {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let size @ [rows, cols] = [37, 136];
        let x = |seed| Self::x(b, seed, size);
        let [shift, scale, gate, weight] = [2, 3, 4, 5].map(|seed| vector(b, seed, cols));
        let small: Vec<f32> = values(6, 64 * cols).iter().map(|v| v / 64.0).collect();
        let linear = Weight::new(&small, &[64, cols], Dtype::F32).linear(b);
        let norm = ops::GroupNorm { weight: &weight, bias: &shift, groups: 8, eps: 1e-6, statistics: None };
        vec![
            x(1).adaln(&shift, &scale, 1e-6).unwrap(),
            x(1).layer_norm(1e-6).unwrap(),
            x(1).rms_norm(&weight, 1e-6).unwrap(),
            x(1).group_norm_silu(&norm).unwrap(),
            x(1).gated_add(&gate, &x(7)).unwrap(),
            x(1).add(&x(7)).unwrap(),
            x(1).swiglu(&Shape::dense(rows, cols).tensor(b, 8)).unwrap(),
            x(1).linear(&linear, None).unwrap(),
            Shape::dense(rows, cols).tensor(b, 8).linear_add(&linear, Self::x(b, 9, [rows, 64])).unwrap(),
        ]
    }
}

#[test]
fn large_activations_stay_what_they_are() {
    let Some(cuda) = fp16() else { return };
    // cuBLASLt rounds a residual once more.
    check_against(&cuda, "activations of 2^18", &Large, 2.0, 0.0);
    assert!(cuda.remarks().iter().all(|remark| !matches!(remark, Remark::Warning(_))), "{:?}", cuda.remarks());
}

#[test]
fn what_is_too_large_is_cut_off_and_noticed() {
    let Some(cuda) = fp16() else { return };
    let (rows, cols) = (3, 64);
    let filled = |value: f32| cuda.upload(&vec![value; rows * cols], rows, cols).unwrap();
    let download = |x: &Tensor<Cuda>| cuda.download(x).unwrap();
    let warnings = || {
        let remarks = cuda.remarks().into_iter();
        let warnings = remarks.filter_map(|remark| match remark {
            Remark::Warning(text) => Some(text),
            Remark::Detail(_) => None,
        });
        warnings.collect::<Vec<_>>().join("; ")
    };
    assert_eq!(download(&filled(1e6).add(&filled(0.5e6)).unwrap()), [1_500_160.0; 192], "that is the next");
    assert_eq!(warnings(), "");
    assert_eq!(download(&filled(-1.5e6).add(&filled(-1.5e6)).unwrap()), [-LARGEST; 192]);
    assert!(warnings().contains("too large for fp16") && warnings().contains("`add`"), "{}", warnings());

    // The multiplication gives infinity, which the next op reads as the largest value.
    let weight = Weight::new(&vec![1.0; 64 * cols], &[64, cols], Dtype::BF16).linear(&cuda);
    let infinite = filled(1e6).linear(&weight, None).unwrap();
    assert_eq!(download(&infinite.silu().unwrap()), [LARGEST; 192]);
    assert!(warnings().contains("`add`, `silu`"), "{}", warnings());
    assert!(download(&filled(f32::NAN).silu().unwrap()).iter().all(|value| value.is_nan()), "a NaN stays one");
}
