//! The VAE encoder of each random model, stage by stage. The input of each stage is the reference's output of the
//! previous one.

use flux::backend::Memory;
use flux::backend::cpu::{Cpu, Precision};
use flux::files::TensorFiles;
use flux::model::ModelInfo;
use flux::nn::Weights;
use flux::ops::Conv;
use flux::vae::{self, DownBlock, Encoder, Grid, MidBlock, VaeConfig};
use flux::{Result, Tensor};

use crate::support::random_model::PRESETS;
use crate::support::{Golden, assert_close, preset};

/// Both sides compute in float32, so only the order of sums differs.
const BOUND: f32 = 2e-5;

struct Case {
    name: &'static str,
    backend: Cpu,
    files: TensorFiles,
    config: VaeConfig,
    golden: Golden,
}

fn cases() -> impl Iterator<Item = Case> {
    PRESETS.iter().map(|&name| {
        let dir = preset(name);
        let (files, config) = (vae::open(&dir).unwrap(), ModelInfo::read(&dir).unwrap().vae);
        Case { name, backend: Cpu::new(Precision::F32), files, config, golden: Golden::open("encoder.safetensors") }
    })
}

impl Case {
    fn weights(&self) -> Weights<'_, Cpu> {
        Weights::new(&self.backend, &self.files)
    }

    /// Returns the image in the form of the encoder's input.
    fn image(&self) -> Grid<Cpu> {
        let (shape, values) = self.golden.get_ints("rgb");
        let bytes: Vec<u8> = values.iter().map(|&v| u8::try_from(v).unwrap()).collect();
        let &[height, width, 3] = shape.as_slice() else { panic!("rgb is {shape:?}") };
        Grid::new(self.backend.upload_rgb8(&bytes, height, width).unwrap(), height, width)
    }

    /// A golden image [1, channels, height, width], as rows of pixels.
    fn pixels(&self, stage: &str) -> Grid<Cpu> {
        let (shape, values) = self.golden.get(&format!("{}.{stage}", self.name));
        let &[1, channels, height, width] = shape.as_slice() else { panic!("{stage} is {shape:?}") };
        let area = height * width;
        let rows: Vec<f32> = (0..area * channels).map(|i| values[i % channels * area + i / channels]).collect();
        Grid::new(self.backend.upload(&rows, area, channels).unwrap(), height, width)
    }

    #[track_caller]
    fn expect_pixels(&self, stage: &str, got: &Grid<Cpu>) {
        let expected = self.pixels(stage);
        assert_eq!((got.height, got.width), (expected.height, expected.width));
        let values = |grid: &Grid<Cpu>| self.backend.download(&grid.pixels).unwrap();
        assert_close(&format!("{} {stage}", self.name), &values(got), &values(&expected), BOUND);
    }

    #[track_caller]
    fn expect(&self, stage: &str, got: &Tensor<Cpu>) {
        let (shape, expected) = self.golden.get(&format!("{}.{stage}", self.name));
        assert_eq!([got.rows(), got.cols()], *shape);
        assert_close(&format!("{} {stage}", self.name), &self.backend.download(got).unwrap(), &expected, BOUND);
    }
}

#[test]
fn down_blocks_and_the_middle_block() -> Result<()> {
    for case in cases() {
        let (encoder, channels) = (case.weights().at("encoder"), &case.config.block_out_channels);
        let (image, first) = (case.image(), channels[0]);
        let (weight, bias) = (encoder.conv("conv_in", 3, first, 3)?, encoder.vector("conv_in.bias", first)?);
        let made = image.pixels.conv2d(&weight, &bias, Conv::same(image.height, image.width, 3))?;
        let mut x = Grid::new(made, image.height, image.width);
        for (i, &cout) in channels.iter().enumerate() {
            let (sizes, groups) = ([channels[i.saturating_sub(1)], cout], case.config.norm_num_groups);
            let weights = encoder.at("down_blocks").at(i);
            let block = DownBlock::load(&weights, sizes, case.config.layers_per_block, groups, i + 1 < channels.len())?;
            let stage = format!("down_blocks.{i}.output");
            case.expect_pixels(&stage, &block.forward(x)?);
            x = case.pixels(&stage);
        }
        let mid = MidBlock::load(&encoder.at("mid_block"), channels[3], case.config.norm_num_groups, true)?;
        case.expect_pixels("mid_block.output", &mid.forward(x)?);
    }
    Ok(())
}

#[test]
fn an_image_becomes_packed_latents() -> Result<()> {
    for case in cases() {
        let encoder = Encoder::load(&case.weights(), &case.config)?;
        let mut reported = Vec::new();
        let latents = encoder.forward(case.image(), None, |stages| {
            reported.push(stages);
            Ok(())
        })?;
        case.expect("latents", &latents);
        assert_eq!(reported, (1..=encoder.stages()).collect::<Vec<_>>());

        let config = VaeConfig { use_quant_conv: false, ..case.config.clone() };
        let without = Encoder::load(&case.weights(), &config)?.forward(case.image(), None, |_| Ok(()))?;
        case.expect("latents_without_quant_conv", &without);
    }
    Ok(())
}

#[test]
fn an_image_that_is_not_made_of_patches_is_refused() -> Result<()> {
    let case = cases().next().unwrap();
    let encoder = Encoder::load(&case.weights(), &case.config)?;
    for (height, width) in [(16, 24), (8, 16), (0, 0)] {
        let image = Grid::new(case.backend.upload(&vec![0.0; height * width * 3], height * width, 3)?, height, width);
        let error = encoder.forward(image, None, |_| Ok(())).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("{width} x {height}")) && error.contains("multiples of 16"), "{error}");
    }
    let cancelled = encoder.forward(case.image(), None, |_| Err(flux::Error::new("enough"))).map(drop).unwrap_err();
    assert_eq!(cancelled.what(), "enough");
    Ok(())
}
