//! Convolutions of an image by several devices, each with a band of its rows, and by a single device.

use flux::backend::Backend;
use flux::files::{Folder, TensorView};
use flux::nn::ConvKernel;
use flux::ops::{Conv, GroupNorm, RowSplit};
use flux::{Result, Tensor};
use safetensors::Dtype;
use safetensors::tensor::TensorView as FileTensor;

/// Height, width, channels in and out.
pub const CASES: [([usize; 2], [usize; 2]); 4] =
    [([18, 7], [8, 16]), ([10, 5], [3, 4]), ([40, 33], [16, 136]), ([130, 70], [64, 128])];

/// The input of the convolutions.
pub struct BandCase {
    height: usize,
    width: usize,
    channels: usize,
    outs: usize,
    weight: TensorView,
    _folder: tempfile::TempDir,
}

fn values(seed: usize, count: usize) -> impl Iterator<Item = f32> {
    (0..count).map(move |i| ((i * 7919 + seed * 104_729) % 1013) as f32 / 506.0 - 1.0)
}

impl BandCase {
    pub fn new([height, width]: [usize; 2], [channels, outs]: [usize; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (shape, scale) = ([outs, channels, 3, 3], (9.0 * channels as f32).sqrt().recip());
        let bytes: Vec<u8> = values(1, outs * channels * 9).flat_map(|value| (value * scale).to_le_bytes()).collect();
        let tensor = FileTensor::new(Dtype::F32, shape.to_vec(), &bytes).unwrap();
        safetensors::serialize_to_file([("weight", tensor)], None, &folder.path().join("w.safetensors")).unwrap();
        let weight = Folder::Disk(folder.path().to_path_buf()).tensors("w").unwrap().get("weight", &shape).unwrap();
        Self { height, width, channels, outs, weight, _folder: folder }
    }

    pub fn kernel<B: Backend>(&self, b: &B) -> ConvKernel<B> {
        ConvKernel::load(b, &self.weight).unwrap()
    }

    /// Returns this device's results of each convolution, and of a norm by the statistics of one.
    pub fn convolve<B: Backend>(&self, b: &B) -> Result<Vec<Vec<f32>>> {
        let split = RowSplit::bands(self.height / 2, 2 * self.width, b.world());
        let own: Vec<usize> = split.runs_of(b.rank()).flat_map(|run| run.whole).collect();
        let upload = |seed: usize, channels: usize| {
            let all: Vec<f32> = values(seed, self.height * self.width * channels).collect();
            let own: Vec<f32> = own.iter().flat_map(|row| &all[row * channels..][..channels]).copied().collect();
            b.upload(&own, own.len() / channels, channels)
        };
        let vector = |seed, length| b.upload(&values(seed, length).collect::<Vec<_>>(), 1, length);
        let (x, residual) = (upload(2, self.channels)?, upload(3, self.outs)?);
        let (weight, bias) = (self.kernel(b), vector(4, self.outs)?);
        let height = own.len() / self.width;
        let (conv, half) = (Conv::same(height, self.width, 3), Conv::halve(height, self.width));
        let (halo, below) = (x.halo_rows([self.width; 2])?, x.halo_rows([0, self.width])?);
        let of_all = x.all_reduce_statistics(None)?;
        let learned = [vector(5, self.channels)?, vector(6, self.channels)?];
        let norm = GroupNorm {
            weight: &learned[0],
            bias: &learned[1],
            groups: if self.channels == 3 { 3 } else { 4 },
            eps: 1e-6,
            statistics: of_all.as_ref(),
        };
        let plain = x.conv2d_band(&weight, &bias, conv, &halo)?.pixels;
        let normed = x.norm_conv2d_band(&norm, &weight, &bias, conv, &halo)?.pixels;
        let halved = x.conv2d_band(&weight, &bias, half, &below)?.pixels;
        let copy = |x: &Tensor<B>| Tensor::concat_rows(&[x]);
        let added = copy(&x)?.norm_conv2d_add_band(&norm, &weight, &bias, (conv, &halo), residual)?;
        let upsampled = x.upsample_conv2d_band(&weight, &bias, [height, self.width], &halo)?.pixels;
        let of_all = added.pixels.all_reduce_statistics(added.statistics.as_ref())?;
        let learned = [vector(7, self.outs)?, vector(8, self.outs)?];
        let statistics = of_all.as_ref().or(added.statistics.as_ref());
        let norm = GroupNorm { weight: &learned[0], bias: &learned[1], groups: 4, eps: 1e-6, statistics };
        let after = added.pixels.group_norm(&norm)?;
        [plain, normed, halved, added.pixels, upsampled, after].iter().map(|made| b.download(made)).collect()
    }

    /// Checks the combined bands of all devices against `whole`, up to `tolerance` of each value and of 1.
    pub fn assert_same(&self, bands: &[Vec<Vec<f32>>], whole: &[Vec<f32>], tolerance: f32, what: &str) {
        for (i, expected) in whole.iter().enumerate() {
            let got: Vec<f32> = bands.iter().flat_map(|of_rank| of_rank[i].clone()).collect();
            assert_eq!(got.len(), expected.len(), "{what}: result {i}");
            let apart = |(got, expected): (&f32, &f32)| (got - expected).abs() / (1.0 + expected.abs());
            let most = got.iter().zip(expected).map(apart).fold(0.0, f32::max);
            assert!(
                most <= tolerance,
                "{what}, {} x {}, {} -> {}: result {i} is {most} off",
                self.height,
                self.width,
                self.channels,
                self.outs
            );
        }
    }
}
