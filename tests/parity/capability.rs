//! Variants of kernels for GPUs with other sizes of shared memory. A newer GPU launches them when `FLUX_CAPABILITY`
//! makes it pass for such a GPU.

use flux::backend::Memory;

use crate::compare::with_variable;

const VARIABLE: &str = "FLUX_CAPABILITY";

/// Tests of ops with such variants; none requires a kernel of the GPU's own.
const TESTS: [&str; 7] = [
    "attention::every_head_size_matches_the_cpu",
    "conv2d::ragged_3x3_convolutions_match_the_cpu",
    "upsample_conv2d::upsample_conv2d_matches_the_cpu",
    "int8::linear_in_int8_equals_the_cpu",
    "int8::linear_in_int8_equals_the_cpu_at_real_sizes",
    "int8::project_in_int8_matches_its_composition",
    "int8::the_default_model_draws_in_int8_what_it_draws_in_16_bits",
];

#[test]
fn kernels_of_older_gpus_can_be_asked_for() {
    let Some(cuda) = crate::cuda_hopper() else { return };
    for capability in ["8.0", "8.6"] {
        for test in TESTS {
            let (passed, text) = with_variable(test, VARIABLE, capability);
            assert!(passed, "{test} as {capability}: {text}");
        }
    }
    let (passed, text) = with_variable("fp8::linear_in_fp8_matches_the_cpu", VARIABLE, "8.9");
    assert!(passed, "as 8.9: {text}");
    assert!(!cuda.describe().contains("overridden"), "{}", cuda.describe());
}
