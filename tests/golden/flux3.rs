//! FLUX.3 against the reference, stage by stage: a random model, distilled and undistilled.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use flux::backend::Memory;
use flux::backend::cpu::{Cpu, Precision};
use flux::files::adapter::AdapterUse;
use flux::files::{ModelFiles, TokenizerFile};
use flux::input;
use flux::model::ModelInfo;
use flux::nn::Weights;
use flux::ops::{TokenLayout, TokenSplit};
use flux::pipeline::{GivenReference, Model, Request};
use flux::rgb::Rgb;
use flux::sampler::{self, Conditioning, Evaluations, Schedule};
use flux::stage::CancelFlag;
use flux::text_encoder::{self, TextEncoder, Tokenizer};
use flux::transformer::{self, Sequence, Transformer, position_ids, time_in_bf16};
use flux::vae::{self, Encoder, Grid};
use flux::{Result, Tensor};

use crate::flux3_base::write_base;
use crate::support::{Golden, assert_close, assert_near, golden, load, root};

/// One image of golden/flux3/index.json.
#[derive(serde::Deserialize)]
struct Case {
    name: String,
    prompt: String,
    negative: Option<String>,
    guidance: Option<f32>,
    width: Option<usize>,
    height: Option<usize>,
    steps: usize,
    seed: u64,
    /// [width, height].
    references: Vec<[usize; 2]>,
    adapter: Option<String>,
    /// `true` if it has more tensors than the schedule and the last latents.
    keeps_stages: bool,
    text_rows: usize,
    negative_rows: Option<usize>,
}

fn cases() -> Vec<Case> {
    serde_json::from_slice(&fs::read(golden("flux3/index.json")).unwrap()).unwrap()
}

fn with_stages() -> impl Iterator<Item = Case> {
    cases().into_iter().filter(|case| case.keeps_stages)
}

/// The models of the cases: a distilled one, and an undistilled one in a folder of its own.
struct Models {
    distilled: ModelFiles,
    base: ModelFiles,
    _folder: tempfile::TempDir,
}

impl Models {
    fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_base(folder.path());
        let distilled = ModelFiles::open(&model_folder()).unwrap();
        Self { distilled, base: ModelFiles::open(folder.path()).unwrap(), _folder: folder }
    }

    fn for_case(&self, case: &Case) -> &ModelFiles {
        if case.guidance.is_none() { &self.distilled } else { &self.base }
    }
}

impl Case {
    fn golden(&self) -> Golden {
        Golden::open_path(&golden(&format!("flux3/{}.safetensors", self.name)))
    }

    /// Returns the texts that the model reads, by the names of their features, with the tokens of their windows.
    fn texts(&self) -> Vec<(&'static str, &str, usize)> {
        let negative = self.negative.as_deref().zip(self.negative_rows);
        let negative = negative.map(|(text, rows)| ("negative_prompt_embeds", text, rows));
        [("prompt_embeds", self.prompt.as_str(), self.text_rows)].into_iter().chain(negative).collect()
    }

    /// Returns the references as the model reads them.
    fn references(&self) -> Result<Vec<Rgb>> {
        let images: Vec<Rgb> = self.references.iter().map(|&[width, height]| picture(width, height)).collect();
        match &images[..] {
            [only] => Ok(vec![input::reference_alone(only)?.0]),
            several => several.iter().map(input::reference_of_any_size).collect(),
        }
    }

    /// Returns [height, width] in tokens of the image, and of the references.
    fn latent_sizes(&self) -> Result<([usize; 2], Vec<[usize; 2]>)> {
        let references: Vec<[usize; 2]> =
            self.references()?.iter().map(|image| [image.height / 16, image.width / 16]).collect();
        let asked = self.height.zip(self.width).map(|(height, width)| [height / 16, width / 16]);
        Ok((asked.or(references.first().copied()).expect("a size or a reference"), references))
    }

    fn request(&self, model: &Arc<Model<Cpu>>) -> Result<Request> {
        let mut request = Request {
            width: self.width,
            height: self.height,
            steps: Some(self.steps),
            guidance: self.guidance,
            negative: self.negative.clone(),
            ..Request::new(&self.prompt, self.seed)
        };
        let given = if self.references.len() == 1 { GivenReference::alone } else { GivenReference::among_several };
        let references =
            self.references.iter().map(|&[width, height]| given(picture(width, height), self.name.clone()));
        request.given_references = references.map(Arc::new).collect();
        if let Some(adapter) = &self.adapter {
            let adapter = model.adapter(&golden(&format!("flux3/adapters/{adapter}")))?;
            request.adapters = vec![AdapterUse::new(adapter, 1.0)];
        }
        Ok(request)
    }
}

/// Smooth colours and hard edges that any program can make.
pub fn picture(width: usize, height: usize) -> Rgb {
    let pixel =
        |x: usize, y: usize| [((x * 5 + y * 3) % 256) as u8, ((x * y) % 256) as u8, 255 * ((x / 8 + y / 8) % 2) as u8];
    let bytes = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
    Rgb { width, height, bytes }
}

/// Compares features. In the golden data a prompt has one row for all padding.
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
    let (cpu, models) = (Cpu::new(Precision::F32), Models::open());
    for case in with_stages() {
        let dir = models.for_case(&case);
        let info = ModelInfo::read(dir)?;
        let files = text_encoder::open(dir)?;
        let encoder = TextEncoder::load(&Weights::new(&cpu, &files), info.text_encoder, &info.out_layers)?;
        assert_eq!(info.out_layers, [1, 2, 3, 4, 5, 6, 7, 8]);
        let tokenizer = Tokenizer::load(dir.tokenizer(), info.kind.template, info.max_sequence_length)?;
        for (name, text, rows) in case.texts() {
            let window = info.kind.window.length(tokenizer.count(text)?, info.max_sequence_length);
            assert_eq!(window, rows);
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
fn schedules_are_those_of_the_reference() -> Result<()> {
    let models = Models::open();
    for case in cases() {
        let (info, golden) = (ModelInfo::read(models.for_case(&case))?, case.golden());
        let schedule = Schedule::new(info.schedule_shift(1, case.steps), case.steps);
        assert_eq!(schedule.sigmas, golden.get("sigmas").1, "{}", case.name);
        // The reference passes sigmas to the model, which multiplies them by 1000.
        let expected = |name: &str| golden.get(name).1.iter().map(|sigma| sigma * 1000.0).collect::<Vec<_>>();
        let times = schedule.times();
        let now: Vec<f32> = times.iter().map(|times| times.now).collect();
        assert_eq!(now, expected("timesteps"), "{}", case.name);
        if case.guidance.is_none() {
            let next: Vec<f32> = times.iter().map(|times| times.next).collect();
            assert_eq!(next, expected("target_timesteps"), "{}", case.name);
        }
    }
    Ok(())
}

/// The reference's rounding of the times of 16 steps in bf16.
#[test]
fn times_in_bf16_are_those_of_the_reference() -> Result<()> {
    let info = ModelInfo::read(&Models::open().distilled)?;
    let schedule =
        Schedule::new(info.schedule_shift(1, 16), 16).with_times(|sigma| time_in_bf16(&info.transformer, sigma));
    let times = [
        1000.0, 992.0, 980.0, 968.0, 952.0, 936.0, 920.0, 900.0, 876.0, 844.0, 804.0, 756.0, 700.0, 616.0, 498.0, 316.0,
    ];
    assert_eq!(schedule.timesteps, times);
    let next: Vec<f32> = schedule.times().iter().map(|times| times.next).collect();
    assert_eq!((&next[..15], next[15]), (&times[1..], 0.0));
    Ok(())
}

#[test]
fn positions_are_those_of_the_reference() -> Result<()> {
    let models = Models::open();
    for case in with_stages() {
        let (info, golden) = (ModelInfo::read(models.for_case(&case))?, case.golden());
        let (size, references) = case.latent_sizes()?;
        let ids =
            |txt, references: &[[usize; 2]], image| position_ids(&info.transformer, txt, references, image).concat();
        assert_eq!(ids(0, &[], size), golden.get("img_ids").1, "{}", case.name);
        assert_eq!(ids(case.text_rows, &[], [0, 0]), golden.get("txt_ids").1, "{}", case.name);
        if !references.is_empty() {
            assert_eq!(ids(0, &references, [0, 0]), golden.get("reference_ids").1, "{}", case.name);
        }
    }
    Ok(())
}

#[test]
fn references_are_prepared_and_encoded_as_by_the_reference() -> Result<()> {
    let (cpu, models) = (Cpu::new(Precision::F32), Models::open());
    for case in with_stages().filter(|case| !case.references.is_empty()) {
        let dir = models.for_case(&case);
        let info = ModelInfo::read(dir)?;
        let encoder = Encoder::load(&Weights::new(&cpu, &vae::open(dir)?), &info.vae)?;
        let mut tokens = Vec::new();
        for image in case.references()? {
            let pixels = cpu.upload_rgb8(&image.bytes, image.height, image.width)?;
            let encoded = encoder.forward(Grid::new(pixels, image.height, image.width), None, |_| Ok(()))?;
            tokens.extend(cpu.download(&encoded)?);
        }
        let what = format!("references of {}", case.name);
        assert_close(&what, &tokens, &case.golden().get("reference_tokens").1, 1e-5);
    }
    Ok(())
}

/// All steps, starting from the features of the reference.
#[test]
fn velocities_and_latents_are_those_of_the_reference() -> Result<()> {
    let (cpu, models) = (Cpu::new(Precision::F32), Models::open());
    for case in with_stages() {
        let (dir, golden) = (models.for_case(&case), case.golden());
        let info = ModelInfo::read(dir)?;
        let model = Transformer::load(&Weights::new(&cpu, &transformer::open(dir)?), &info.transformer)?;
        let channels = info.transformer.in_channels;
        let features = |name: &str, rows: usize| {
            let (shape, mut values) = golden.get(name);
            let (read, cols) = (shape[1], shape[2]);
            let pad = values[(read - 1) * cols..].to_vec();
            (read..rows).for_each(|_| values.extend(&pad));
            model.context(&cpu.upload(&values, rows, cols)?)
        };
        let texts = case.texts().into_iter().map(|(name, _, rows)| Ok((features(name, rows)?, rows)));
        let texts = texts.collect::<Result<Vec<_>>>()?;
        let (size, sizes) = case.latent_sizes()?;
        let tokens = size[0] * size[1];
        let references: usize = sizes.iter().map(|[height, width]| height * width).sum();
        // The tokens of an evaluation with `txt` text tokens, and their positions.
        let sequence = |txt: usize| {
            let split = TokenSplit::alone(TokenLayout { references, ..TokenLayout::new(1, txt, tokens) });
            Ok::<_, flux::Error>((split, model.rope(&split, &sizes, size)?))
        };
        let sequences = texts.iter().map(|(_, rows)| sequence(*rows)).collect::<Result<Vec<_>>>()?;
        let sequences: Vec<_> = sequences.iter().map(|(split, rope)| Sequence::new(*split, rope)).collect();
        let schedule = Schedule::new(info.schedule_shift(tokens, case.steps), case.steps);
        let modulations = model.modulations(&schedule.times())?;
        let mut latents = cpu.upload(&golden.get("noise").1, tokens, channels)?;
        for step in 0..case.steps {
            let modulation = model.modulation(&modulations.row(step))?;
            let mut context = Vec::new();
            for (text, rows) in &texts {
                let split = TokenSplit::alone(TokenLayout::new(1, *rows, 0));
                let sequence =
                    Sequence { split, rope: &model.rope(&split, &[], [0, 0])?, weights: None, regions: None };
                context.extend(model.early_texts(
                    &text.row_view(0..*rows),
                    &sequence,
                    std::slice::from_ref(&modulation),
                )?);
                if references > 0 {
                    let own = cpu.upload(&golden.get("reference_tokens").1, references, channels)?;
                    let split = TokenSplit::alone(TokenLayout { references, ..TokenLayout::new(1, 0, 0) });
                    let sequence =
                        Sequence { split, rope: &model.rope(&split, &sizes, [0, 0])?, weights: None, regions: None };
                    context.push(model.early_references(model.references(&own)?, &sequence, &modulation)?);
                }
            }
            let context = Tensor::concat_rows(&context.iter().collect::<Vec<_>>())?;
            let conditioning = Conditioning {
                context: &context,
                sequence: sequences[0],
                negative: sequences.get(1).filter(|negative| negative.split != sequences[0].split).copied(),
                cached: None,
                guidance: case.guidance,
                evaluations: Evaluations::InTurn,
                tiles: None,
            };
            if step == 0 {
                let own = context.row_view(0..case.text_rows + references);
                let velocity = model.forward(&latents, &own, &modulation, &sequences[0], None)?;
                let what = format!("{} velocity", case.name);
                assert_close(&what, &cpu.download(&velocity)?, &golden.get("velocity_0").1, 1e-5);
            }
            if step == 0 && case.guidance.is_some() {
                let moved = latents.row_view(0..tokens);
                let one = cpu.upload(&[1.0], 1, 1)?;
                let sum = cpu.download(&sampler::step(&model, moved, &conditioning, &modulation, &one)?)?;
                let velocity: Vec<f32> =
                    sum.iter().zip(cpu.download(&latents)?).map(|(sum, from)| sum - from).collect();
                let what = format!("{} guided velocity", case.name);
                assert_close(&what, &velocity, &golden.get("guided_velocity_0").1, 2e-5);
            }
            let dt = cpu.upload(&schedule.dts()[step..step + 1], 1, 1)?;
            latents = sampler::step(&model, latents, &conditioning, &modulation, &dt)?;
            let name = format!("latents_{}", step + 1);
            assert_close(&format!("{} {name}", case.name), &cpu.download(&latents)?, &golden.get(&name).1, 2e-5);
        }
    }
    Ok(())
}

/// From the prompt to pixels.
#[test]
fn last_latents_and_images_are_those_of_the_reference() -> Result<()> {
    let models = Models::open();
    let [distilled, base] = [&models.distilled, &models.base].map(load);
    for case in cases() {
        let model = if case.guidance.is_none() { &distilled } else { &base };
        let request = case.request(model)?;
        let mut session = model.session(&request, 1, &CancelFlag::default())?;
        let latents = session.final_latents(&mut |_| {})?.remove(0).to_array();
        let (shape, expected) = case.golden().get(&format!("latents_{}", case.steps));
        let [tokens, channels] = [shape[1], shape[2]];
        // Latents of the pipeline are [channels, height, width].
        let packed: Vec<f32> =
            (0..tokens * channels).map(|i| latents.values[i % channels * tokens + i / channels]).collect();
        assert_close(&format!("last latents of {}", case.name), &packed, &expected, 1e-4);

        let image = session.decode(&mut |_| {})?.expect("one image");
        let size = [image.plan.width, image.plan.height];
        let whole = Rgb { width: size[0], height: size[1], bytes: image.rgb };
        let place = request.given_references.first().and_then(|given| given.place_in(size));
        let image = place.filter(|_| case.width.is_none()).map_or(whole.clone(), |place| input::cropped(&whole, place));
        let expected = input::read(&golden(&format!("flux3/{}.png", case.name))).unwrap();
        assert_eq!((image.width, image.height), (expected.width, expected.height), "{}", case.name);
        assert_near(&case.name, &image.bytes, &expected.bytes);
    }
    Ok(())
}

/// The files of the golden model.
pub fn model_folder() -> PathBuf {
    root().join("tests/golden/flux3/model")
}
