//! Noise and the first step of the images of random models. They locate an error in the final latents.

use flux::backend::Memory;
use flux::backend::cpu::{Cpu, Precision};
use flux::model::ModelInfo;
use flux::model::registry::FLUX2_KLEIN;
use flux::nn::Weights;
use flux::ops::{TokenLayout, TokenSplit};
use flux::sampler::{self, Conditioning, Evaluations, Schedule, empirical_shift};
use flux::text_encoder::{self, TextEncoder, Tokenizer};
use flux::transformer::{self, Sequence, Transformer};
use flux::{Result, Tensor};

use crate::support::{Golden, assert_close, images, preset};

#[test]
fn noise_and_the_first_step_are_those_of_the_reference() -> Result<()> {
    let cpu = Cpu::new(Precision::F32);
    for row in images() {
        let dir = preset(&row.preset);
        let info = ModelInfo::read(&dir)?;
        let golden = Golden::open(&format!("{}.safetensors", row.preset));
        let (what, case) = (format!("{} {}", row.preset, row.case), format!("pipeline.{}", row.case));
        let (height, width, channels) = (row.height / 16, row.width / 16, info.transformer.in_channels);
        let (tokens, txt) = (height * width, info.max_sequence_length);

        let noise = sampler::noise(row.seed, channels, height, width);
        assert_close(&format!("{what} noise"), &noise, &golden.get(&format!("{case}.noise")).1, 1e-6);

        let files = text_encoder::open(&dir)?;
        let encoder = TextEncoder::load(&Weights::new(&cpu, &files), info.text_encoder, &info.out_layers)?;
        let tokenizer = Tokenizer::load(dir.tokenizer(), FLUX2_KLEIN.template, txt)?;
        let guidance = row.guidance.filter(|scale| *scale > 1.0);
        let prompts: &[&str] = if guidance.is_some() { &[&row.prompt, ""] } else { &[&row.prompt] };
        let features = |prompt: &&str| encoder.forward(&tokenizer.encode(prompt)?, |_| Ok(()));
        let features = prompts.iter().map(features).collect::<Result<Vec<_>>>()?;

        let files = transformer::open(&dir)?;
        let model = Transformer::load(&Weights::new(&cpu, &files), &info.transformer)?;
        let schedule = Schedule::new(empirical_shift(tokens, row.steps), row.steps);
        let split = TokenSplit::alone(TokenLayout::new(1, txt, tokens));
        let conditioning = Conditioning {
            context: &model.context(&Tensor::concat_rows(&features.iter().collect::<Vec<_>>())?)?,
            sequence: Sequence {
                split,
                rope: &model.rope(&split, &[], [height, width])?,
                weights: None,
                regions: None,
            },
            negative: None,
            cached: None,
            guidance,
            evaluations: Evaluations::InTurn,
            tiles: None,
        };
        let latents = cpu.upload(&noise, tokens, channels)?;
        let modulations = model.modulations(&schedule.times())?;
        let modulation = model.modulation(&modulations.row(0))?;
        let dt = cpu.upload(&schedule.dts()[..1], 1, 1)?;
        let latents = sampler::step(&model, latents, &conditioning, &modulation, &dt)?;
        // The bound of the final latents.
        let expected = golden.get(&format!("{case}.latents_step_1")).1;
        assert_close(&format!("{what} step 1"), &cpu.download(&latents)?, &expected, 1e-4);
    }
    Ok(())
}
