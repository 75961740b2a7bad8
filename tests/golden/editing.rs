//! Edits and references, stage by stage: references as tokens, masks, one evaluation, cached keys and values, and the
//! latents after each step.

use std::path::PathBuf;

use flux::backend::Memory;
use flux::backend::cpu::{Cpu, Precision};
use flux::input::{self, Edit, Mask};
use flux::model::ModelInfo;
use flux::nn::Weights;
use flux::ops::{TokenLayout, TokenSplit};
use flux::rgb::Rgb;
use flux::sampler::{self, Conditioning, Evaluations, Schedule, empirical_shift};
use flux::text_encoder::{self, TextEncoder, Tokenizer};
use flux::transformer::{self, Sequence, StepTimes, Transformer, position_ids};
use flux::vae::{self, Encoder, Grid};
use flux::{Result, Tensor};

use crate::reference_mask;
use crate::support::random_model::{ALL_PRESETS, PRESETS};
use crate::support::{Golden, assert_close, golden, preset};

/// Both sides compute in float32, so only the order of sums differs.
const BOUND: f32 = 2e-5;
/// The bound of latents after some steps.
const LATENTS_BOUND: f32 = 1e-4;

/// The sizes of `references.tokens`, in tokens.
const REFERENCES: [[usize; 2]; 2] = [[4, 5], [5, 4]];

fn times(preset: &str) -> Vec<StepTimes> {
    tensors(preset).get("transformer.timestep").1.into_iter().map(StepTimes::at).collect()
}

fn tensors(preset: &str) -> Golden {
    Golden::open(&format!("editing/{preset}.safetensors"))
}

fn file(name: &str) -> PathBuf {
    golden("editing/inputs").join(name)
}

struct Model {
    cpu: Cpu,
    info: ModelInfo,
    transformer: Transformer<Cpu>,
    encoder: Encoder<Cpu>,
    preset: &'static str,
}

impl Model {
    fn load(name: &'static str) -> Result<Self> {
        let (cpu, dir) = (Cpu::new(Precision::F32), preset(name));
        let info = ModelInfo::read(&dir)?;
        let transformer = Transformer::load(&Weights::new(&cpu, &transformer::open(&dir)?), &info.transformer)?;
        let encoder = Encoder::load(&Weights::new(&cpu, &vae::open(&dir)?), &info.vae)?;
        Ok(Self { cpu, info, transformer, encoder, preset: name })
    }

    fn upload(&self, name: &str) -> Result<Tensor<Cpu>> {
        let (shape, values) = tensors(self.preset).get(name);
        self.cpu.upload(&values, shape[0], shape[1])
    }

    fn expect(&self, name: &str, got: &Tensor<Cpu>, bound: f32) -> Result<()> {
        assert_close(
            &format!("{} {name}", self.preset),
            &self.cpu.download(got)?,
            &tensors(self.preset).get(name).1,
            bound,
        );
        Ok(())
    }

    /// Returns the packed latents of a prepared image.
    fn encode(&self, image: &Rgb) -> Result<Tensor<Cpu>> {
        let pixels = self.cpu.upload_rgb8(&image.bytes, image.height, image.width)?;
        self.encoder.forward(Grid::new(pixels, image.height, image.width), None, |_| Ok(()))
    }

    fn text(&self, prompt: &str) -> Result<Tensor<Cpu>> {
        let dir = preset(self.preset);
        let weights = text_encoder::open(&dir)?;
        let encoder =
            TextEncoder::load(&Weights::new(&self.cpu, &weights), self.info.text_encoder, &self.info.out_layers)?;
        encoder.forward(
            &Tokenizer::load(dir.tokenizer(), self.info.kind.template, self.info.max_sequence_length)?
                .encode(prompt)?,
            |_| Ok(()),
        )
    }

    /// Returns the sequence of one sample at `image` tokens, with `references` in it.
    fn layout(&self, txt: usize, references: &[[usize; 2]], [height, width]: [usize; 2]) -> TokenLayout {
        let references = references.iter().map(|[height, width]| height * width).sum();
        TokenLayout { references, ..TokenLayout::new(1, txt, height * width) }
    }
}

#[test]
fn references_are_prepared_encoded_and_placed() -> Result<()> {
    for name in ALL_PRESETS {
        let model = Model::load(name)?;
        let ids = position_ids(&model.info.transformer, 0, &REFERENCES, [0, 0]).concat();
        let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let latents =
            ["even.png", "rotated.jpg"].map(|name| model.encode(&input::reference(&input::read(&file(name))?)?));
        let [even, rotated] = latents;
        model.expect("references.tokens", &Tensor::concat_rows(&[&even?, &rotated?])?, BOUND)?;
        assert_eq!(tensors(name).get_ints("references.ids").1, ids, "{name}");
    }
    Ok(())
}

#[test]
fn one_evaluation_with_references() -> Result<()> {
    for name in PRESETS {
        let model = Model::load(name)?;
        let (transformer, txt) = (&model.transformer, model.upload("transformer.txt")?);
        let references = transformer.references(&model.upload("references.tokens")?)?;
        let context = Tensor::concat_rows(&[&transformer.context(&txt)?, &references])?;
        let modulations = transformer.modulations(&times(name))?;
        let modulation = transformer.modulation(&modulations.row(0))?;
        let split = TokenSplit::alone(model.layout(txt.rows(), &REFERENCES, [4, 6]));
        let rope = transformer.rope(&split, &REFERENCES, [4, 6])?;
        let sequence = Sequence::new(split, &rope);
        let img = model.upload("transformer.img")?;
        let velocity = transformer.forward(&img, &context, &modulation, &sequence, None)?;
        model.expect("transformer.velocity", &velocity, BOUND)?;
    }
    Ok(())
}

#[test]
fn keys_and_values_of_references_and_a_step_that_reads_them() -> Result<()> {
    let model = Model::load("kv")?;
    let (transformer, config) = (&model.transformer, model.transformer.config());
    let references = transformer.references(&model.upload("references.tokens")?)?;
    let cache =
        transformer.reference_cache(&references, &REFERENCES, TokenSplit::alone(TokenLayout::single(40)), None)?;
    assert_eq!(cache.tokens(), 40);
    for (name, block) in [("double_block_1", 1), ("single_block_1", config.num_layers + 1)] {
        let block = cache.block(block).expect("the model has it");
        model.expect(&format!("kv.{name}.k"), &block.k, BOUND)?;
        model.expect(&format!("kv.{name}.v"), &block.v, BOUND)?;
    }
    let txt = model.upload("transformer.txt")?;
    let modulations = transformer.modulations(&times("kv"))?;
    let split = TokenSplit::alone(model.layout(txt.rows(), &[], [4, 6]));
    let sequence = Sequence { split, rope: &transformer.rope(&split, &[], [4, 6])?, weights: None, regions: None };
    let velocity = transformer.forward(
        &model.upload("transformer.img")?,
        &transformer.context(&txt)?,
        &transformer.modulation(&modulations.row(0))?,
        &sequence,
        Some(&cache),
    )?;
    model.expect("kv.velocity_cached", &velocity, BOUND)?;
    // The reference's first step, which makes the cache, gives the same result.
    model.expect("kv.velocity_extracting", &velocity, BOUND)
}

/// Returns the cells that the reference regenerates in an image of 96 x 80 pixels.
fn cells(mask: &str) -> Vec<f32> {
    reference_mask::cells(&reference_mask::grey(&std::fs::read(file(mask)).expect("a mask"), [96, 80]), 96)
}

/// By the reference's rule; the program's own regenerates more of them.
#[test]
fn masks_become_cells() -> Result<()> {
    for name in ["mask-1-bit", "mask-rgb", "mask-small", "mask-soft"] {
        let png = format!("{name}.png");
        let theirs = tensors("tiny").get(&format!("{name}.cells")).1;
        assert_eq!(cells(&png), theirs, "{name}");
        let ours = Mask::read(&file(&png))?.grey([96, 80]).cells();
        assert!(theirs.iter().zip(ours).all(|(theirs, ours)| *theirs == 0.0 || ours == 1.0), "{name}");
    }
    Ok(())
}

/// Runs a schedule from `first_step` on, and compares the latents after each step.
fn expect_steps(model: &Model, case: &str, seed: u64, edit: Option<(&Edit, &[f32])>, first_step: usize) -> Result<()> {
    let (transformer, channels) = (&model.transformer, model.info.transformer.in_channels);
    let image = match edit {
        Some((edit, _)) => edit.image().clone(),
        None => input::reference(&input::read(&file("scene.png"))?)?,
    };
    let size = [image.height, image.width].map(|side| side / 16);
    let (tokens, latents) = (size[0] * size[1], model.encode(&image)?);
    let txt = transformer.context(&model.text("a cat on the moon")?)?;
    let references = transformer.references(&latents)?;
    let cache = {
        let cache =
            || transformer.reference_cache(&references, &[size], TokenSplit::alone(TokenLayout::single(tokens)), None);
        model.info.caches_references.then(cache).transpose()?
    };
    let in_sequence: &[[usize; 2]] = if cache.is_some() { &[] } else { &[size] };
    let context =
        if cache.is_some() { txt.row_view(0..txt.rows()) } else { Tensor::concat_rows(&[&txt, &references])? };
    let split = TokenSplit::alone(model.layout(txt.rows(), in_sequence, size));
    let conditioning = Conditioning {
        context: &context,
        sequence: Sequence { split, rope: &transformer.rope(&split, in_sequence, size)?, weights: None, regions: None },
        negative: None,
        cached: cache.as_ref(),
        guidance: None,
        evaluations: Evaluations::InTurn,
        tiles: None,
    };
    let schedule = Schedule::new(empirical_shift(tokens, 4), 4);
    let modulations = transformer.modulations(&schedule.times())?;
    let value = |value: f32| model.cpu.upload(&[value], 1, 1);
    let sigma = |step: usize| model.cpu.upload_f32(&[schedule.sigmas[step]], 1, 1);
    let noise = model.cpu.upload(&sampler::noise(seed, channels, size[0], size[1]), tokens, channels)?;
    let mask = |cells: &[f32]| model.cpu.upload(cells, tokens, 1);
    let start = noise.row_view(0..tokens);
    let mut x = start.inpaint_blend(&noise, &latents, &mask(&vec![0.0; tokens])?, &sigma(first_step)?)?;
    for step in first_step..4 {
        let modulation = transformer.modulation(&modulations.row(step))?;
        x = sampler::step(transformer, x, &conditioning, &modulation, &value(schedule.dts()[step])?)?;
        if let Some((_, cells)) = edit {
            x = x.inpaint_blend(&noise, &latents, &mask(cells)?, &sigma(step + 1)?)?;
        }
        model.expect(&format!("{case}.latents_step_{}", step + 1 - first_step), &x, LATENTS_BOUND)?;
    }
    Ok(())
}

#[test]
fn latents_after_each_step() -> Result<()> {
    expect_steps(&Model::load("tiny")?, "edit", 1, None, 0)?;
    expect_steps(&Model::load("kv")?, "kv-one", 2, None, 0)?;
    let edit = Edit::masked(input::read(&file("scene.png"))?, &Mask::read(&file("mask-soft.png"))?)?;
    expect_steps(&Model::load("tiny")?, "inpaint-0.75", 1, Some((&edit, &cells("mask-soft.png"))), 1)
}
