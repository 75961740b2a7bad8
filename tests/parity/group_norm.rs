//! cuda/group_norm.cu against the CPU and its composition.

use std::sync::Arc;

use flux::backend::cpu::{Cpu, Precision};
use flux::backend::cuda::{Cuda, Graph};
use flux::backend::{Backend, Device, Memory, Participants};
use flux::nn::ConvKernel;
use flux::ops::{self, Conv, Convolved};
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{Case, Shape, Weight, check, check_choices, compare, values, vector};

struct GroupNorm {
    shape: Shape,
    groups: usize,
    silu: bool,
}

impl GroupNorm {
    fn with<B: Backend>(
        &self,
        b: &B,
        op: impl Fn(&Tensor<B>, &ops::GroupNorm<'_, B>) -> flux::Result<Tensor<B>>,
    ) -> Vec<Tensor<B>> {
        let (x, weight, bias) = (self.shape.tensor(b, 1), vector(b, 2, self.shape.cols), vector(b, 3, self.shape.cols));
        let norm = ops::GroupNorm { weight: &weight, bias: &bias, groups: self.groups, eps: 1e-6, statistics: None };
        vec![op(&x, &norm).unwrap()]
    }
}

impl Case for GroupNorm {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        self.with(b, |x, norm| if self.silu { x.group_norm_silu(norm) } else { x.group_norm(norm) })
    }

    fn compose<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        if !self.silu {
            return self.run(b);
        }
        self.with(b, |x, norm| ops::group_norm::compose_silu(b, x, norm))
    }
}

/// The composition rounds the input of silu; silu's slope is at most 1.1, its value typically half of its input.
#[test]
fn group_norm_and_group_norm_silu_match() {
    let Some(cuda) = crate::cuda() else { return };
    let mut shapes = vec![
        (Shape::dense(1, 32), 32),
        (Shape::dense(1, 128), 32),
        (Shape::dense(63, 128), 32),
        (Shape::dense(1000, 16), 8),
        (Shape::dense(300, 96), 32),
        (Shape::dense(257, 21), 7),
        (Shape::view(100, 64, 8, 8), 1),
        (Shape::view(100, 64, 1, 2), 64),
        (Shape::dense(40, 2304), 3),
    ];
    if !crate::small() {
        shapes.extend([
            (Shape::dense(1024 * 1024, 128), 32),
            (Shape::dense(512 * 512, 256), 32),
            (Shape::dense(128 * 128, 512), 32),
        ]);
    }
    for (shape, groups) in shapes {
        for silu in [false, true] {
            let case = GroupNorm { shape, groups, silu };
            check(
                &cuda,
                &format!("group_norm {shape:?} {groups} groups, silu {silu}"),
                &case,
                if silu { 3.0 } else { 0.0 },
            );
        }
    }
}

/// Whole numbers around 192, exact in bf16: a mean of fifty deviations must not swallow the variance.
#[test]
fn group_norm_far_from_zero_keeps_its_digits() {
    struct Far(usize);
    impl Case for Far {
        fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
            let far: Vec<f32> = values(5, self.0 * 64).iter().map(|v| 192.0 + (v * 4.0).round()).collect();
            let (weight, bias) = (vector(b, 2, 64), vector(b, 3, 64));
            let norm = ops::GroupNorm { weight: &weight, bias: &bias, groups: 8, eps: 1e-6, statistics: None };
            vec![b.upload(&far, self.0, 64).unwrap().group_norm(&norm).unwrap()]
        }
    }
    let Some(cuda) = crate::cuda() else { return };
    check(&cuda, "group_norm far from zero", &Far(if crate::small() { 2000 } else { 300_000 }), 0.0);
}

#[test]
fn group_norm_gives_the_same_bytes_every_time() {
    let Some(cuda) = crate::cuda() else { return };
    let case = GroupNorm { shape: Shape::dense(5000, 128), groups: 32, silu: true };
    let run = || cuda.download(&case.run(&cuda)[0]).unwrap();
    let first = run();
    assert!((0..5).all(|_| run() == first));
}

/// A convolution whose outputs are around `mean`, with a deviation of about 2.
struct Maker {
    height: usize,
    width: usize,
    weight: ConvKernel<Cuda>,
    bias: Tensor<Cuda>,
    x: Tensor<Cuda>,
}

impl Maker {
    fn new(cuda: &Cuda, [height, width]: [usize; 2], cin: usize, out: usize, mean: f32) -> Self {
        let scale = 2.0 / (9.0 * cin as f32).sqrt();
        let weight: Vec<f32> = values(2, out * 9 * cin).iter().map(|v| v * scale).collect();
        let bias: Vec<f32> = values(3, out).iter().map(|v| mean + v).collect();
        Self {
            height,
            width,
            weight: Weight::new(&weight, &[out, cin, 3, 3], Dtype::F32).conv(cuda),
            bias: cuda.upload(&bias, 1, out).unwrap(),
            x: Shape::dense(height * width, cin).tensor(cuda, 1),
        }
    }

    fn conv(&self) -> Conv {
        Conv::same(self.height, self.width, 3)
    }

    fn conv2d(&self) -> Convolved<Cuda> {
        self.x.conv2d(&self.weight, &self.bias, self.conv()).unwrap()
    }

    fn conv2d_add(&self, residual: Tensor<Cuda>) -> Convolved<Cuda> {
        self.x.conv2d_add(&self.weight, &self.bias, self.conv(), residual).unwrap()
    }

    fn upsample_conv2d(&self, cuda: &Cuda) -> Convolved<Cuda> {
        let x = Shape::dense(self.x.rows(), self.x.cols()).tensor(cuda, 1);
        x.upsample_conv2d(&self.weight, &self.bias, self.height, self.width).unwrap()
    }
}

/// Compares the group norm of a convolution's result with that of the same values on the CPU. Returns `true` if it had
/// to read the values for their statistics.
fn check_norm_of(cuda: &Cuda, what: &str, convolved: &Convolved<Cuda>, groups: usize) -> bool {
    let (cpu, x) = (Cpu::new(Precision::F32), &convolved.pixels);
    let plain = cpu.upload(&cuda.download(x).unwrap(), x.rows(), x.cols()).unwrap();
    let (weight, bias) = (vector(&cpu, 5, x.cols()), vector(&cpu, 6, x.cols()));
    let norm = ops::GroupNorm { weight: &weight, bias: &bias, groups, eps: 1e-6, statistics: None };
    let expected = plain.group_norm(&norm).unwrap();
    let (weight, bias) = (vector(cuda, 5, x.cols()), vector(cuda, 6, x.cols()));
    let statistics = convolved.statistics.as_ref();
    let norm = ops::GroupNorm { weight: &weight, bias: &bias, groups, eps: 1e-6, statistics };
    let before = cuda.stats().launches;
    let got = x.group_norm(&norm).unwrap();
    let launches = cuda.stats().launches - before;
    assert!(launches == 2 || launches == 3, "{what}: {launches} launches");
    compare(what, &cuda.download(&got).unwrap(), &cpu.download(&expected).unwrap(), 1.0);
    launches == 3
}

/// Returns `true` if convolutions compute statistics on this GPU.
fn gives_statistics(cuda: &Cuda) -> bool {
    crate::is_hopper(cuda) && std::env::var_os("FLUX_CONV2D").is_none_or(|kernel| kernel != "base")
}

#[test]
fn a_norm_of_a_convolution_is_that_of_its_values() {
    let Some(cuda) = crate::cuda() else { return };
    let gives = gives_statistics(&cuda);
    // The last ones have more tiles than multiprocessors, and for their shapes more than one round of them.
    let mut cases = vec![
        ([1usize, 1usize], 8, 64, 8),
        ([1, 1], 64, 512, 32),
        ([17, 33], 64, 128, 32),
        ([5, 130], 24, 96, 32),
        ([33, 50], 64, 136, 17),
        ([7, 65], 8, 16, 2),
        ([3, 9], 64, 40, 1),
        ([16, 8], 16, 640, 32),
        ([250, 253], 8, 128, 32),
        ([241, 121], 16, 256, 32),
        ([190, 187], 8, 320, 32),
        ([81, 100], 16, 512, 32),
        ([512, 509], 64, 128, 32),
    ];
    if crate::small() {
        cases.retain(|([height, width], _, out, _)| height * width * out < 1 << 22);
    }
    for (size, cin, out, groups) in cases {
        for mean in [0.0, 100.0] {
            let maker = Maker::new(&cuda, size, cin, out, mean);
            // The kernel for at most 64 outputs computes no statistics.
            let check = |what: &str, x: &Convolved<Cuda>| {
                let what = format!("group_norm of {what} {size:?} {cin} -> {out} around {mean}");
                assert_eq!(check_norm_of(&cuda, &what, x, groups), !(gives && out > 64), "{what}");
            };
            check("conv2d", &maker.conv2d());
            let pixels = size[0] * size[1];
            // Over the residual, over the columns of a longer residual, and over the result of a convolution.
            check("conv2d_add", &maker.conv2d_add(Shape::dense(pixels, out).tensor(&cuda, 4)));
            check("conv2d_add in place", &maker.conv2d_add(Shape::view(pixels, out, 16, 8).tensor(&cuda, 4)));
            check("conv2d_add to conv2d", &maker.conv2d_add(maker.conv2d().pixels));
            if pixels < 10_000 {
                check("upsample_conv2d", &maker.upsample_conv2d(&cuda));
            }
        }
    }
}

#[test]
fn each_convolution_serves_a_norm() {
    let Some(cuda) = crate::cuda() else { return };
    check_choices(&cuda, "group_norm::a_norm_of_a_convolution_is_that_of_its_values", "FLUX_CONV2D");
}

#[test]
fn statistics_of_other_channels_are_an_error() {
    let Some(cuda) = crate::cuda() else { return };
    let maker = Maker::new(&cuda, [33, 50], 64, 128, 30.0);
    let Some(statistics) = maker.conv2d().statistics else { return assert!(!gives_statistics(&cuda)) };
    let (x, row) = (Shape::dense(33 * 50, 64).tensor(&cuda, 1), vector(&cuda, 5, 64));
    let norm = ops::GroupNorm { weight: &row, bias: &row, groups: 32, eps: 1e-6, statistics: Some(&statistics) };
    let error = x.group_norm(&norm).map(drop).unwrap_err().to_string();
    assert!(error.contains("its statistics have 128"), "{error}");
}

fn norm_of<'a>(x: &'a Convolved<Cuda>, weight: &'a Tensor<Cuda>, bias: &'a Tensor<Cuda>) -> ops::GroupNorm<'a, Cuda> {
    ops::GroupNorm { weight, bias, groups: 32, eps: 1e-6, statistics: x.statistics.as_ref() }
}

#[test]
fn a_norm_of_a_convolution_gives_the_same_bytes_every_time_also_captured() {
    let Some(cuda) = crate::cuda() else { return };
    let maker = Maker::new(&cuda, [65, 70], 128, 128, 1.0);
    let (weight, bias) = (vector(&cuda, 5, 128), vector(&cuda, 6, 128));
    let work = |x: &Tensor<Cuda>| {
        let x = x.conv2d(&maker.weight, &maker.bias, maker.conv())?;
        let normed = x.pixels.group_norm_silu(&norm_of(&x, &weight, &bias))?;
        let h = normed.conv2d(&maker.weight, &maker.bias, maker.conv())?;
        let normed = h.pixels.group_norm_silu(&norm_of(&h, &weight, &bias))?;
        let y = normed.conv2d_add(&maker.weight, &maker.bias, maker.conv(), x.pixels)?;
        y.pixels.group_norm(&norm_of(&y, &weight, &bias))
    };
    let reads = Arc::new(());
    let mut graph = Graph::default();
    for seed in [1, 1, 2, 3, 1] {
        let x = Shape::dense(65 * 70, 128).tensor(&cuda, seed);
        let expected = cuda.download(&work(&x).unwrap()).unwrap();
        assert!(cuda.download(&work(&x).unwrap()).unwrap() == expected);
        let got = cuda.run_graph(&mut graph, Participants::One, &reads, [&x], |_, [x]| work(x)).unwrap();
        assert!(cuda.download(&got).unwrap() == expected, "captured, seed {seed}");
    }
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
    assert!(matches!(graph, Graph::Captured(_)));
}
