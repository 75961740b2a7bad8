//! Inputs from a seed, and comparisons of the results of two backends.

use std::process::Command;
use std::sync::LazyLock;

use flux::backend::cpu::{Cpu, Precision};
use flux::backend::cuda::Cuda;
use flux::backend::{Backend, Memory, Storage};
use flux::files::{Folder, TensorView};
use flux::nn::{ConvKernel, Linear};
use flux::tensor::Tensor;
use flux_bench::selftest::{self, Bound};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView as FileTensor;

/// Returns `true` if the GPU computes in fp16, by itself or by `FLUX_COMPUTE`.
pub fn half() -> bool {
    static HALF: LazyLock<bool> =
        LazyLock::new(|| crate::cuda().is_some_and(|cuda| cuda.activation_dtype() == flux::tensor::Dtype::F16));
    *HALF
}

/// The largest relative error of one rounding, see [`selftest::rounding`].
pub fn rounding() -> f32 {
    selftest::rounding(if half() { flux::tensor::Dtype::F16 } else { flux::tensor::Dtype::Bf16 })
}

/// Rounds a weight as the GPU does.
pub fn rounded_weight(value: f32) -> f32 {
    if half() { f16::from_f32(value).to_f32() } else { bf16::from_f32(value).to_f32() }
}

/// Rounds an activation as the GPU does, in fp16 in units of 32.
pub fn rounded(value: f32) -> f32 {
    if half() { f16::from_f32(value / 32.0).to_f32() * 32.0 } else { bf16::from_f32(value).to_f32() }
}

/// Roundings of a multiplication by cuBLASLt with bias or residual. One is not enough for some shapes (-144 came out
/// where -144.88 was exact, and bf16 is 1 apart there), as if the result were rounded before the epilogue adds to it.
/// The cause is not known.
pub const WITH_EPILOGUE: f32 = 2.0;

/// Returns `n` values of variance 1 between -1.73 and 1.73, all on the grid of bf16, and of fp16 if the GPU computes
/// in it, so that every backend starts from the same numbers.
pub fn values(seed: u64, n: usize) -> Vec<f32> {
    let value = |i: usize| {
        // splitmix64 computes any index at once.
        let mut z =
            seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32;
        rounded(bf16::from_f32((unit - 0.5) * 3.464).to_f32())
    };
    (0..n).map(value).collect()
}

/// A matrix that is a view, between `before` and `after` columns of other values.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub rows: usize,
    pub cols: usize,
    pub before: usize,
    pub after: usize,
}

impl Shape {
    pub fn dense(rows: usize, cols: usize) -> Self {
        Self { rows, cols, before: 0, after: 0 }
    }

    pub fn view(rows: usize, cols: usize, before: usize, after: usize) -> Self {
        Self { rows, cols, before, after }
    }

    /// Returns seeded values in this shape.
    pub fn tensor<B: Backend>(&self, b: &B, seed: u64) -> Tensor<B> {
        let stride = self.before + self.cols + self.after;
        let whole = b.upload(&values(seed, self.rows * stride), self.rows, stride).unwrap();
        let [_, x, _] = whole.split_cols([self.before, self.cols, self.after]);
        x
    }
}

/// Returns sizes of weights to quantize: for both kernels, for each group of columns, with the last threads of a block
/// idle or with fewer values than the others, for rows of less than a warp; and the `own` ones.
pub fn weight_sizes(own: [(usize, usize); 2]) -> Vec<(usize, usize)> {
    let shared = [
        (16, 64),
        (5, 64),
        (16, 27),
        (1, 1),
        (7, 8),
        (6, 264),
        (9, 1032),
        (9, 1031),
        (40, 3072),
        (21, 9216),
        (20, 12288),
        (3, 16384),
    ];
    shared.into_iter().chain(own).collect()
}

/// Returns a real size, one row, sizes that no tile divides, and views: aligned to 16 bytes, and at any position.
pub fn shapes(real: Shape) -> Vec<Shape> {
    let cols = real.cols.min(3072);
    let mut shapes = vec![
        Shape::dense(1, cols),
        Shape::dense(37, 136),
        Shape::dense(5, 77),
        Shape::dense(3, 1),
        Shape::view(19, 128, 64, 192),
        Shape::view(19, 128, 3, 5),
        Shape::view(7, 50, 8, 0),
    ];
    if !crate::small() {
        shapes.push(real);
    }
    shapes
}

/// Returns a vector [1, cols].
pub fn vector<B: Backend>(b: &B, seed: u64, cols: usize) -> Tensor<B> {
    b.upload(&values(seed, cols), 1, cols).unwrap()
}

/// One op with its inputs, for any backend.
pub trait Case {
    /// Runs `Tensor`'s method: a kernel if there is one.
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>>;
    /// Runs the definition in primitives, if the op has one.
    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.run(b)
    }
}

/// Checks the distance of two results: a value may differ by `roundings` roundings of its own magnitude plus the
/// typical magnitude, and the mean difference is at most half of that, because rounding errors are spread evenly.
pub fn compare(what: &str, got: &[f32], expected: &[f32], roundings: f32) {
    assert_eq!(got.len(), expected.len(), "{what}: number of values");
    let found = selftest::compare(got, expected, Bound { rounding: rounding(), roundings, spread: 1.0 });
    println!("{what}: {found}");
    if let Some(wrong) = found.complaint() {
        panic!("{what}: {wrong}");
    }
}

/// Checks the kernel against the definition on the CPU in float32, and against the definition on the GPU, which has
/// `composed` more roundings.
pub fn check(cuda: &Cuda, what: &str, case: &impl Case, composed: f32) {
    check_against(cuda, what, case, 1.0, composed);
}

/// As [`check`], for a kernel that rounds more than once, by `fused` roundings.
pub fn check_against(cuda: &Cuda, what: &str, case: &impl Case, fused: f32, composed: f32) {
    let download =
        |tensors: Vec<Tensor<Cuda>>| -> Vec<Vec<f32>> { tensors.iter().map(|x| cuda.download(x).unwrap()).collect() };
    let cpu = Cpu::new(Precision::F32);
    let expected: Vec<Vec<f32>> = case.compose(&cpu).iter().map(|x| cpu.download(x).unwrap()).collect();
    let got = download(case.run(cuda));
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        compare(&format!("{what} [{i}] against the CPU"), got, expected, fused);
    }
    if composed > 0.0 {
        for (i, (got, composition)) in got.iter().zip(download(case.compose(cuda))).enumerate() {
            compare(&format!("{what} [{i}] against the composition"), got, &composition, fused + composed);
        }
    }
}

/// Returns a hash of the bits of values, which a test may print for another process to compare.
pub fn hash_of_bits(values: &[f32]) -> u64 {
    let add =
        |hash: u64, value: &f32| (hash.rotate_left(5) ^ u64::from(value.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    values.iter().fold(0, add)
}

/// Runs another test of this program, `test` by its path in the crate, with an environment variable, which is read
/// once by a process. Returns `true` if it passed, and its output.
pub fn with_variable(test: &str, variable: &str, value: &str) -> (bool, String) {
    with_variables(test, &[(variable, value)])
}

/// As [`with_variable`], with several variables.
pub fn with_variables(test: &str, set: &[(&str, &str)]) -> (bool, String) {
    let mut program = Command::new(std::env::current_exe().unwrap());
    let output = program.args([test, "--exact", "--nocapture"]).envs(set.iter().copied()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("running 1 test"), "no test is named {test}: {text}");
    (output.status.success(), text)
}

/// Checks that `test` passes with `base` and with `sm90` as the value of `variable`, if the GPU has both kernels.
pub fn check_choices(cuda: &Cuda, test: &str, variable: &str) {
    let (passed, text) = with_variable(test, variable, "base");
    assert!(passed, "{variable}=base: {text}");
    let (passed, text) = with_variable(test, variable, "sm90");
    if crate::is_hopper(cuda) {
        assert!(passed, "{variable}=sm90: {text}");
    } else {
        assert!(!passed && text.contains("`sm90`") && text.contains("9.0"), "{text}");
    }
}

/// The dtype of files that the GPU multiplies directly.
pub fn plain() -> Dtype {
    if half() { Dtype::F16 } else { Dtype::BF16 }
}

/// Encodes values as a file has them.
pub fn encoded(values: &[f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        other => panic!("no weights in {other:?}"),
    }
}

/// A tensor in a safetensors file, as weights are stored.
pub struct Weight {
    _folder: tempfile::TempDir,
    view: TensorView,
}

impl Weight {
    pub fn new(values: &[f32], shape: &[usize], dtype: Dtype) -> Self {
        let bytes = encoded(values, dtype);
        let folder = tempfile::tempdir().unwrap();
        let tensor = FileTensor::new(dtype, shape.to_vec(), &bytes).unwrap();
        safetensors::serialize_to_file([("weight", tensor)], None, &folder.path().join("w.safetensors")).unwrap();
        let files = Folder::Disk(folder.path().to_path_buf()).tensors("w").unwrap();
        let view = files.get("weight", shape).unwrap();
        Self { _folder: folder, view }
    }

    pub fn seeded(seed: u64, rows: usize, cols: usize) -> Self {
        Self::new(&values(seed, rows * cols), &[rows, cols], Dtype::BF16)
    }

    /// A weight in the dtype in which the GPU multiplies it.
    pub fn plain(seed: u64, rows: usize, cols: usize) -> Self {
        Self::new(&values(seed, rows * cols), &[rows, cols], plain())
    }

    pub fn view(&self) -> TensorView {
        self.view.clone()
    }

    pub fn linear<B: Backend>(&self, b: &B) -> Linear<B> {
        self.linear_with(b, None)
    }

    /// As `linear`, with other uploads.
    pub fn linear_with<B: Backend>(&self, b: &B, uploads: Option<&B::Uploads>) -> Linear<B> {
        Linear::load_with((b, uploads), "weight", &[self.view()], Storage::Native).unwrap()
    }

    /// Loads the weight in e4m3.
    pub fn fp8(&self, cuda: &Cuda) -> Linear<Cuda> {
        Linear::load(cuda, "weight", &[self.view()], Storage::Fp8).unwrap()
    }

    pub fn conv<B: Backend>(&self, b: &B) -> ConvKernel<B> {
        ConvKernel::load(b, &self.view).unwrap()
    }
}
