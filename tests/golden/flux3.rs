//! FLUX.3 against the reference, stage by stage: a random model, distilled and not.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flux::backend::Memory;
use flux::backend::cpu::{Cpu, Precision};
use flux::files::{ModelFiles, TokenizerFile};
use flux::input;
use flux::model::ModelInfo;
use flux::nn::Weights;
use flux::ops::{TokenLayout, TokenSplit};
use flux::pipeline::{Model, Request};
use flux::rgb::Rgb;
use flux::sampler::{self, Conditioning, Evaluations, Schedule};
use flux::text_encoder::{self, TextEncoder, Tokenizer};
use flux::transformer::{self, Sequence, Transformer, position_ids};
use flux::vae::{self, Encoder, Grid};
use flux::{Result, Tensor};

use crate::flux3_base::write_base;
use crate::support::{Golden, assert_close, golden, root};

const CASES: [&str; 3] = ["distilled-64x64", "distilled-ref", "base-96x64"];

#[derive(serde::Deserialize)]
struct Case {
    #[serde(skip)]
    name: String,
    prompt: String,
    negative: Option<String>,
    steps: usize,
    noise_seed: u64,
    guidance: Option<f32>,
    height: usize,
    width: usize,
    text_rows: usize,
    references: Vec<[usize; 2]>,
}

impl Case {
    fn open(name: &str) -> Self {
        let text = fs::read(root().join(format!("tests/golden/flux3/{name}.json"))).unwrap();
        Self { name: name.to_string(), ..serde_json::from_slice(&text).unwrap() }
    }

    fn golden(&self) -> Golden {
        Golden::open_path(&golden(&format!("flux3/{}.safetensors", self.name)))
    }

    /// The model, which is written to `folder` where it is not the distilled one.
    fn model(&self, folder: &Path) -> ModelFiles {
        let dir = root().join("tests/golden/flux3/model");
        if self.guidance.is_none() {
            return ModelFiles::open(&dir).unwrap();
        }
        write_base(folder);
        ModelFiles::open(folder).unwrap()
    }

    fn images(&self) -> Vec<Rgb> {
        self.references.iter().map(|&[width, height]| picture(width, height)).collect()
    }
}

/// Smooth colours and hard edges that any program can make.
pub fn picture(width: usize, height: usize) -> Rgb {
    let pixel =
        |x: usize, y: usize| [((x * 5 + y * 3) % 256) as u8, ((x * y) % 256) as u8, 255 * ((x / 8 + y / 8) % 2) as u8];
    let bytes = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
    Rgb { width, height, bytes }
}

/// The features of a prompt in the golden data have one row for all padding.
fn expect_features(case: &Case, name: &str, got: &[f32], features: usize) {
    let expected = case.golden().get(name).1;
    let (head, pad) = expected.split_at(expected.len() - features);
    assert_close(&format!("{} {name}", case.name), &got[..head.len()], head, 1e-5);
    for row in got[head.len()..].chunks_exact(features) {
        assert_close(&format!("{} padding of {name}", case.name), row, pad, 1e-5);
    }
}

#[test]
fn text_features_are_those_of_the_reference() -> Result<()> {
    let (cpu, folder) = (Cpu::new(Precision::F32), tempfile::tempdir().unwrap());
    for case in CASES.map(Case::open) {
        let dir = case.model(folder.path());
        let info = ModelInfo::read(&dir)?;
        let files = text_encoder::open(&dir)?;
        let encoder = TextEncoder::load(&Weights::new(&cpu, &files), info.text_encoder, &info.out_layers)?;
        assert_eq!(info.out_layers, [1, 2, 3, 4, 5, 6, 7, 8]);
        let tokenizer = Tokenizer::load(dir.tokenizer(), info.kind.template, info.max_sequence_length)?;
        let texts = [("prompt_embeds", Some(&case.prompt)), ("negative_prompt_embeds", case.negative.as_ref())];
        for (name, text) in texts.into_iter().filter_map(|(name, text)| Some((name, text?))) {
            let window = info.kind.window.length(tokenizer.count(text)?, info.max_sequence_length);
            assert_eq!(window, case.text_rows);
            let tokens = tokenizer.encode_to(text, window)?;
            if name == "prompt_embeds" {
                let ids: Vec<u32> = case.golden().get_ints("token_ids").1.iter().map(|&id| id as u32).collect();
                assert_eq!(tokens.ids[..tokens.real], ids);
            }
            let features = cpu.download(&encoder.forward(&tokens, |_| Ok(()))?)?;
            assert_eq!(features.len(), window * info.transformer.joint_attention_dim);
            expect_features(&case, name, &features, info.transformer.joint_attention_dim);
        }
    }
    Ok(())
}

#[test]
fn prompts_are_tokenized_as_by_the_reference() {
    let template = flux::model::registry::FLUX3_KLEIN.template;
    let tokenizer = Tokenizer::load(&TokenizerFile::Carried, template, 80).unwrap();
    let ids = |prompt: &str| {
        let tokens = tokenizer.encode(prompt).unwrap();
        tokens.ids[..tokens.real].to_vec()
    };
    assert_eq!(ids(""), [151644, 872, 198, 151645, 198, 151644, 77091, 198]);
    assert_eq!(ids("\nfoo"), [151644, 872, 271, 7975, 151645, 198, 151644, 77091, 198]);
    assert_eq!(
        ids("A cat holding a sign that says hello world"),
        [151644, 872, 198, 32, 8251, 9963, 264, 1841, 429, 2727, 23811, 1879, 151645, 198, 151644, 77091, 198]
    );
}

#[test]
fn schedules_and_positions_are_those_of_the_reference() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    for case in CASES.map(Case::open) {
        let (info, golden) = (ModelInfo::read(&case.model(folder.path()))?, case.golden());
        let schedule = Schedule::new(info.schedule_shift(1, case.steps), case.steps);
        assert_eq!(schedule.sigmas, golden.get("sigmas").1);
        let times = schedule.times();
        let evaluations = if case.guidance.is_some() { 2 } else { 1 };
        // The reference gives the model sigmas, which it multiplies by 1000.
        let (_, now) = golden.get("timesteps");
        let now: Vec<f32> =
            now.iter().step_by(evaluations).map(|time| if now[0] <= 1.0 { time * 1000.0 } else { *time }).collect();
        assert_close("times", &times.iter().map(|times| times.now).collect::<Vec<_>>(), &now, 1e-6);
        if case.guidance.is_none() {
            let (_, next) = golden.get("target_timesteps");
            let next: Vec<f32> = next.iter().map(|time| if next[0] <= 1.0 { time * 1000.0 } else { *time }).collect();
            assert_close("next times", &times.iter().map(|times| times.next).collect::<Vec<_>>(), &next, 1e-6);
        }
        let size = latent_size(&case);
        let ids =
            |txt, references: &[[usize; 2]], image| position_ids(&info.transformer, txt, references, image).concat();
        assert_eq!(ids(0, &[], size), golden.get("img_ids").1, "{}", case.name);
        assert_eq!(ids(case.text_rows, &[], [0, 0]), golden.get("txt_ids").1, "{}", case.name);
        if !case.references.is_empty() {
            assert_eq!(ids(0, &[size], [0, 0]), golden.get("reference_ids").1, "{}", case.name);
        }
    }
    Ok(())
}

/// [height, width] in tokens.
fn latent_size(case: &Case) -> [usize; 2] {
    [case.height.div_ceil(16), case.width.div_ceil(16)]
}

#[test]
fn a_reference_alone_is_filled_up_and_encoded() -> Result<()> {
    let (cpu, case) = (Cpu::new(Precision::F32), Case::open("distilled-ref"));
    let dir = case.model(Path::new(""));
    let info = ModelInfo::read(&dir)?;
    let encoder = Encoder::load(&Weights::new(&cpu, &vae::open(&dir)?), &info.vae)?;
    let (image, _) = input::reference_alone(&case.images()[0])?;
    let pixels = cpu.upload_rgb8(&image.bytes, image.height, image.width)?;
    let tokens = encoder.forward(Grid::new(pixels, image.height, image.width), None, |_| Ok(()))?;
    assert_close("references", &cpu.download(&tokens)?, &case.golden().get("reference_tokens").1, 1e-5);
    Ok(())
}

/// All steps from the features of the reference on.
#[test]
fn velocities_and_latents_are_those_of_the_reference() -> Result<()> {
    let (cpu, folder) = (Cpu::new(Precision::F32), tempfile::tempdir().unwrap());
    for case in CASES.map(Case::open) {
        let (dir, golden) = (case.model(folder.path()), case.golden());
        let info = ModelInfo::read(&dir)?;
        let model = Transformer::load(&Weights::new(&cpu, &transformer::open(&dir)?), &info.transformer)?;
        let (txt, channels, size) = (case.text_rows, info.transformer.in_channels, latent_size(&case));
        let features = |name: &str| {
            let (shape, mut values) = golden.get(name);
            let (rows, cols) = (shape[1], shape[2]);
            let pad = values[(rows - 1) * cols..].to_vec();
            (rows..txt).for_each(|_| values.extend(&pad));
            model.context(&cpu.upload(&values, txt, cols)?)
        };
        let names: &[&str] =
            if case.guidance.is_some() { &["prompt_embeds", "negative_prompt_embeds"] } else { &["prompt_embeds"] };
        let texts = names.iter().map(|name| features(name)).collect::<Result<Vec<_>>>()?;
        let sizes = if case.references.is_empty() { Vec::new() } else { vec![size] };
        let tokens = size[0] * size[1];
        let references: usize = sizes.iter().map(|[height, width]| height * width).sum();
        let split = TokenSplit::alone(TokenLayout { references, ..TokenLayout::new(1, txt, tokens) });
        let rope = model.rope(&split, &sizes, size)?;
        let schedule = Schedule::new(info.schedule_shift(tokens, case.steps), case.steps);
        let modulations = model.modulations(&schedule.times())?;
        let mut latents = cpu.upload(&golden.get("noise").1, tokens, channels)?;
        for step in 0..case.steps {
            let modulation = model.modulation(&modulations.row(step))?;
            let mut context = Vec::new();
            for text in &texts {
                let split = TokenSplit::alone(TokenLayout::new(1, txt, 0));
                let sequence = Sequence { split, rope: &model.rope(&split, &[], [0, 0])? };
                context.extend(model.early_texts(
                    &text.row_view(0..txt),
                    &sequence,
                    std::slice::from_ref(&modulation),
                )?);
                if references > 0 {
                    let own = cpu.upload(&golden.get("reference_tokens").1, references, channels)?;
                    let split = TokenSplit::alone(TokenLayout { references, ..TokenLayout::new(1, 0, 0) });
                    let sequence = Sequence { split, rope: &model.rope(&split, &sizes, [0, 0])? };
                    context.push(model.early_references(model.references(&own)?, &sequence, &modulation)?);
                }
            }
            let context = Tensor::concat_rows(&context.iter().collect::<Vec<_>>())?;
            let sequence = Sequence { split, rope: &rope };
            if step == 0 {
                let own = context.row_view(0..txt + references);
                let velocity = model.forward(&latents, &own, &modulation, &sequence, None)?;
                let what = format!("{} velocity", case.name);
                assert_close(&what, &cpu.download(&velocity)?, &golden.get("velocity_0").1, 1e-5);
            }
            let (guidance, evaluations) = (case.guidance, Evaluations::InTurn);
            let conditioning =
                Conditioning { context: &context, sequence, negative: None, cached: None, guidance, evaluations };
            let dt = cpu.upload(&schedule.dts()[step..step + 1], 1, 1)?;
            if step == 0 && guidance.is_some() {
                let moved = latents.row_view(0..tokens);
                let one = cpu.upload(&[1.0], 1, 1)?;
                let sum = cpu.download(&sampler::step(&model, moved, &conditioning, &modulation, &one)?)?;
                let velocity: Vec<f32> =
                    sum.iter().zip(cpu.download(&latents)?).map(|(sum, from)| sum - from).collect();
                assert_close("guided velocity", &velocity, &golden.get("guided_velocity_0").1, 2e-5);
            }
            latents = sampler::step(&model, latents, &conditioning, &modulation, &dt)?;
            let name = format!("latents_{}", step + 1);
            assert_close(&format!("{} {name}", case.name), &cpu.download(&latents)?, &golden.get(&name).1, 2e-5);
        }
    }
    Ok(())
}

fn png(case: &Case) -> Rgb {
    input::read(&golden(&format!("flux3/{}.png", case.name))).unwrap()
}

/// The image that the model makes of a case.
pub fn drawn(model: &Arc<Model<Cpu>>, request: &Request) -> Result<Rgb> {
    let image = model.generate(request)?;
    Ok(Rgb { width: image.plan.width, height: image.plan.height, bytes: image.rgb })
}

#[test]
fn images_are_those_of_the_reference() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    for case in CASES.map(Case::open) {
        let model = Model::load(Cpu::new(Precision::F32), &case.model(folder.path()))?;
        let mut request = Request {
            steps: Some(case.steps),
            guidance: case.guidance,
            negative: case.negative.clone(),
            ..Request::new(&case.prompt, case.noise_seed)
        };
        let mut kept = None;
        match &case.images()[..] {
            [] => (request.width, request.height) = (Some(case.width), Some(case.height)),
            [only] => {
                let (image, region) = input::reference_alone(only)?;
                request.references = vec![Arc::new(image)];
                kept = Some(region);
            }
            _ => unreachable!("no case has several"),
        }
        let image = drawn(&model, &request)?;
        let image = kept.map_or(image.clone(), |region| input::cropped(&image, region));
        let expected = png(&case);
        assert_eq!((image.width, image.height), (expected.width, expected.height), "{}", case.name);
        let most = image.bytes.iter().zip(&expected.bytes).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(most <= Some(1), "{}: {most:?} of 255", case.name);
    }
    Ok(())
}

/// The files of the golden model.
pub fn model_folder() -> PathBuf {
    root().join("tests/golden/flux3/model")
}
