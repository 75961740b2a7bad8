//! Each module of each random model, fed with the reference's inputs.

use flux::backend::Memory;
use flux::backend::cpu::{Cpu, Precision};
use flux::model::ModelInfo;
use flux::nn::{Linear, Operand, Weights};
use flux::ops::{Conv, Mask, Norm, Rope, TokenLayout, TokenSplit};
use flux::text_encoder::{self, Layer, Padding, PromptTokens, TextEncoder};
use flux::transformer::{
    self, DoubleBlock, Keys, Modulated, Modulation, Sequence, SingleBlock, SingleModulation, StepModulation, StepTimes,
    Stream, Transformer, TransformerConfig,
};
use flux::vae::{self, Decoder, Grid, MidBlock, ResnetBlock};
use flux::{Result, Tensor};

use crate::support::random_model::PRESETS;
use crate::support::{Golden, assert_close, preset};

/// Both sides compute in float32, so only the order of sums differs.
const BOUND: f32 = 2e-5;

fn cpu() -> Cpu {
    Cpu::new(Precision::F32)
}

struct Case {
    name: &'static str,
    dir: flux::files::ModelFiles,
    info: ModelInfo,
    golden: Golden,
}

/// The presets, which differ in every size.
fn cases() -> impl Iterator<Item = Case> {
    PRESETS.iter().map(|&name| {
        let dir = preset(name);
        Case { name, info: ModelInfo::read(&dir).unwrap(), dir, golden: Golden::open(&format!("{name}.safetensors")) }
    })
}

impl Case {
    /// A golden matrix.
    fn input(&self, name: &str) -> Tensor<Cpu> {
        let (shape, values) = self.golden.get(name);
        let cols = shape[shape.len() - 1];
        cpu().upload(&values, values.len() / cols, cols).unwrap()
    }

    /// A golden image [1, channels, height, width], as rows of pixels.
    fn pixels(&self, name: &str) -> Grid<Cpu> {
        let (shape, values) = self.golden.get(name);
        let &[1, channels, height, width] = shape.as_slice() else { panic!("{name} is {shape:?}") };
        let area = height * width;
        let rows: Vec<f32> = (0..area * channels).map(|i| values[i % channels * area + i / channels]).collect();
        Grid::new(cpu().upload(&rows, area, channels).unwrap(), height, width)
    }

    #[track_caller]
    fn expect(&self, name: &str, got: &Tensor<Cpu>) {
        assert_close(&format!("{} {name}", self.name), &cpu().download(got).unwrap(), &self.golden.get(name).1, BOUND);
    }

    #[track_caller]
    fn expect_pixels(&self, name: &str, got: &Grid<Cpu>) {
        let expected = self.pixels(name);
        assert_eq!((got.height, got.width), (expected.height, expected.width));
        let values = |grid: &Grid<Cpu>| cpu().download(&grid.pixels).unwrap();
        assert_close(&format!("{} {name}", self.name), &values(got), &values(&expected), BOUND);
    }

    fn tokens(&self) -> PromptTokens {
        let ids = self.golden.get_ints("text.ids").1.iter().map(|&id| id as u32).collect();
        let real = self.golden.get_ints("text.mask").1.iter().filter(|&&m| m == 1).count();
        PromptTokens { ids, real, padding: Padding::Counted, truncated: 0, cut_at: 0 }
    }
}

#[test]
fn text_encoder_layer_and_stacked_states() -> Result<()> {
    for case in cases() {
        let files = text_encoder::open(&case.dir)?;
        let encoder = TextEncoder::load(&Weights::new(&cpu(), &files), case.info.text_encoder, &case.info.out_layers)?;
        let tokens = case.tokens();
        let n = tokens.ids.len();
        let (backend, rope) = (cpu(), encoder.rope(&(0..n).collect::<Vec<_>>())?);
        let layer = Layer::load(&Weights::new(&backend, &files).at("model.layers.0"), &case.info.text_encoder)?;
        let out = layer.forward(
            case.input("text.layer_0.input"),
            &rope,
            TokenLayout::single(n),
            Mask::Causal { keys: tokens.real },
        )?;
        case.expect("text.layer_0.output", &out);
        case.expect("text.prompt_embeds", &encoder.forward(&tokens, |_| Ok(()))?);
        // The empty prompt, if guidance needs it.
        if !case.info.is_distilled {
            let empty = text_encoder::Tokenizer::load(
                case.dir.tokenizer(),
                case.info.kind.template,
                case.info.max_sequence_length,
            )?
            .encode("")?;
            case.expect("text.negative_prompt_embeds", &encoder.forward(&empty, |_| Ok(()))?);
        }
    }
    Ok(())
}

#[test]
fn modulations_of_a_timestep() -> Result<()> {
    for case in cases() {
        let model = Transformer::load(&Weights::new(&cpu(), &transformer::open(&case.dir)?), &case.info.transformer)?;
        let modulations = model.modulations(
            &case.golden.get("transformer.timestep").1.into_iter().map(StepTimes::at).collect::<Vec<_>>(),
        )?;
        let StepModulation { double, single, .. } = model.modulation(&modulations.row(0))?;
        let (Some(double), SingleModulation::Joined(single)) = (double, single) else {
            panic!("{} has modulations of FLUX.3", case.name);
        };
        let ([txt_attn, img_attn], [txt_mlp, img_mlp]) = (double.attn, double.mlp);
        for (name, modulations) in [
            ("double_stream_modulation_img", &[img_attn, img_mlp][..]),
            ("double_stream_modulation_txt", &[txt_attn, txt_mlp]),
            ("single_stream_modulation", &[single]),
        ] {
            let name = format!("transformer.{name}");
            let mut got = Vec::new();
            for part in modulations.iter().flat_map(|m| [&m.shift, &m.scale, &m.gate]) {
                got.extend(cpu().download(part)?);
            }
            assert_close(&format!("{} {name}", case.name), &got, &case.golden.get(&name).1, BOUND);
        }
    }
    Ok(())
}

/// The inputs of a transformer's blocks in addition to the stream.
struct Step<'a> {
    config: &'a TransformerConfig,
    modulation: StepModulation<Cpu>,
    rope: Rope<Cpu>,
    layout: TokenLayout,
}

impl Step<'_> {
    fn normed(&self, x: &Tensor<Cpu>, norm: Norm<'_, Cpu>) -> Result<Tensor<Cpu>> {
        x.adaln(norm.shift, norm.scale, self.config.eps)
    }

    fn single(&self) -> &Modulation<Cpu> {
        let SingleModulation::Joined(single) = &self.modulation.single else { panic!("FLUX.2 has one for all") };
        single
    }

    /// Returns a stream of one part, and the norm of it that the next single block reads.
    fn next_norm(&self, stream: Stream<'_, Cpu>, reader: &Linear<Cpu>) -> Result<(Tensor<Cpu>, Operand<Cpu>)> {
        let (out, mut h) = stream.norm(&[Modulated::Joined(self.single())], reader)?;
        let x = out.x().next().expect("a part");
        Ok((x.row_view(0..x.rows()), h.remove(0).0))
    }

    fn sequence(&self) -> Sequence<'_, Cpu> {
        Sequence::new(TokenSplit::alone(self.layout), &self.rope)
    }
}

fn expect_double_block(case: &Case, weights: &Weights<'_, Cpu>, step: &Step<'_>) -> Result<()> {
    let Step { config, modulation, layout, .. } = step;
    let [txt_in, img_in] =
        ["txt_input", "img_input"].map(|name| case.input(&format!("transformer.double_block_0.{name}")));
    let double = DoubleBlock::load(&weights.at("transformer_blocks.0"), config)?;
    let stream = Stream::new(Tensor::concat_rows(&[&txt_in, &img_in])?, layout.txt, config.eps);
    let of_double = modulation.double.as_ref().expect("FLUX.2 has double blocks");
    let stream = double.forward(stream, of_double, &step.sequence(), Keys::Rows)?;
    let reader = weights.linear("proj_out", config.out_channels(), config.dim())?;
    let (out, next_h) = step.next_norm(stream, &reader)?;
    let backend = weights.backend();
    let expected = backend.download(&step.normed(&out, step.single().norm(&reader))?)?;
    assert_eq!(backend.download(next_h.tensor())?, expected, "the norm that the next block reads");
    let (txt_out, img_out) = out.split_rows(layout.txt);
    case.expect("transformer.double_block_0.txt_output", &txt_out);
    case.expect("transformer.double_block_0.img_output", &img_out);
    Ok(())
}

fn expect_single_block(case: &Case, weights: &Weights<'_, Cpu>, step: &Step<'_>) -> Result<()> {
    let Step { config, layout, .. } = step;
    let reader = weights.linear("proj_out", config.out_channels(), config.dim())?;
    let run = |last| {
        let single = SingleBlock::load(&weights.at("single_transformer_blocks.0"), config, last)?;
        let x = case.input("transformer.single_block_0.input");
        let stream = Stream::new(x, 0, config.eps);
        let stream = single.forward(stream, &[Modulated::Joined(step.single())], &step.sequence(), Keys::Rows)?;
        step.next_norm(stream, &reader)
    };
    let (out, next_h) = run(false)?;
    case.expect("transformer.single_block_0.output", &out);
    let (img_out, img_next_h) = run(true)?;
    for (img, whole) in [(Operand::from(img_out), Operand::from(out)), (img_next_h, next_h)] {
        let [img, whole] = [img, whole.split_rows(layout.txt).1].map(|x| weights.backend().download(x.tensor()));
        let [img, whole] = [img?, whole?];
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
        assert!(img.len() == whole.len() && img.iter().zip(&whole).all(is_near), "without text");
    }
    Ok(())
}

#[test]
fn transformer_blocks_and_velocity() -> Result<()> {
    for case in cases() {
        let files = transformer::open(&case.dir)?;
        let (backend, config) = (cpu(), &case.info.transformer);
        let weights = Weights::new(&backend, &files);
        let model = Transformer::load(&weights, config)?;
        let (_, timestep) = case.golden.get("transformer.timestep");
        let modulation = model.modulation(&model.modulations(&[StepTimes::at(timestep[0])])?.row(0))?;
        let (txt, height, width) = (case.info.max_sequence_length, 4, 6);
        let layout = TokenLayout::new(1, txt, height * width);
        let rope = model.rope(&TokenSplit::alone(layout), &[], [height, width])?;
        let step = Step { config, modulation, rope, layout };
        expect_double_block(&case, &weights, &step)?;
        expect_single_block(&case, &weights, &step)?;

        let (shift, scale) = &step.modulation.norm_out;
        let normed = case.input("transformer.final_layer.input").adaln(shift, scale, config.eps)?;
        case.expect("transformer.final_layer.normed", &normed);

        let context = model.context(&case.input("text.prompt_embeds"))?;
        let img = case.input("transformer.img");
        let velocity = model.forward(&img, &context, &step.modulation, &step.sequence(), None)?;
        case.expect("transformer.velocity", &velocity);
    }
    Ok(())
}

#[test]
fn vae_blocks_and_decoder() -> Result<()> {
    for case in cases() {
        let files = vae::open(&case.dir)?;
        let config = &case.info.vae;
        let (backend, channels) = (cpu(), config.decoder_channels());
        let decoder = Weights::new(&backend, &files).at("decoder");

        let resnet =
            ResnetBlock::load(&decoder.at("up_blocks.3.resnets.0"), channels[1], channels[0], config.norm_num_groups)?;
        case.expect_pixels("vae.resnet.output", &resnet.forward(case.pixels("vae.resnet.input"))?);
        let mid = MidBlock::load(&decoder.at("mid_block"), channels[3], config.norm_num_groups, true)?;
        case.expect_pixels("vae.mid_block.output", &mid.forward(case.pixels("vae.mid_block.input"))?);

        let decoder = Decoder::load(&Weights::new(&backend, &files), config)?;
        case.expect_pixels("vae.decoder.input", &decoder.unpack(&case.input("vae.latents"), 2, 3, None)?);
        case.expect_pixels("vae.decoder.output", &decoder.forward(case.pixels("vae.decoder.input"), |_| Ok(()))?);
    }
    Ok(())
}

#[test]
fn convolutions_up_and_down() -> Result<()> {
    for case in cases() {
        let files = vae::open(&case.dir)?;
        let backend = cpu();
        let weights = Weights::new(&backend, &files);
        let x = case.pixels("vae.upsample.input");
        let (upsampler, channels) = (weights.at("decoder.up_blocks.0.upsamplers.0"), x.pixels.cols());
        let (weight, bias) = (upsampler.conv("conv", channels, channels, 3)?, upsampler.vector("conv.bias", channels)?);
        let (height, width) = (2 * x.height, 2 * x.width);
        let up = Grid::new(x.pixels.upsample_conv2d(&weight, &bias, x.height, x.width)?, height, width);
        case.expect_pixels("vae.upsample.output", &up);

        let x = case.pixels("vae.downsample.input");
        let (downsampler, channels) = (weights.at("encoder.down_blocks.0.downsamplers.0"), x.pixels.cols());
        let (weight, bias) =
            (downsampler.conv("conv", channels, channels, 3)?, downsampler.vector("conv.bias", channels)?);
        let conv = Conv::halve(x.height, x.width);
        let down = Grid::new(x.pixels.conv2d(&weight, &bias, conv)?, conv.out_height(), conv.out_width());
        case.expect_pixels("vae.downsample.output", &down);
    }
    Ok(())
}
