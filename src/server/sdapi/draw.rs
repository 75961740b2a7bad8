//! `txt2img` and `img2img`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use flux::engine::{EmbeddedFiles, Recipe};
use flux::output::ImageFormat;
use serde_json::{Map, Value, json};

use super::super::error::{ApiError, Result};
use super::super::fields::shown;
use super::super::guard::Client;
use super::super::pieces::{Files, Pieces};
use super::super::record::{JobRecord, Snapshot};
use super::super::request::{Answer, Asked, Encoding, Previews, Priority};
use super::super::{App, EndsWithClient, answer, intake, masks};
use super::lists::chosen;
use super::prompt::without_loras;
use super::{SdResult, file_of, read_fields};

/// The most images of a request.
const MOST_IMAGES: u64 = 64;
/// Steps beyond which a distilled model gains nothing: clients send 20 where nobody chose.
const MOST_DISTILLED_STEPS: u64 = 8;
/// Fields that change nothing, and that clients always send.
const USUAL: [&str; 8] = [
    "send_images",
    "save_images",
    "do_not_save_samples",
    "do_not_save_grid",
    "override_settings_restore_afterwards",
    "script_name",
    "script_args",
    "alwayson_scripts",
];

pub async fn txt2img(state: State<Arc<App>>, client: Extension<Client>, request: Request) -> SdResult {
    draw(state.0, client.0, request, false).await
}

pub async fn img2img(state: State<Arc<App>>, client: Extension<Client>, request: Request) -> SdResult {
    draw(state.0, client.0, request, true).await
}

async fn draw(app: Arc<App>, client: Client, request: Request, from_image: bool) -> SdResult {
    let held = app.bodies.hold();
    let fields = read_fields(&app, request.into_body(), &held).await?;
    let parameters: Map<String, Value> = fields
        .iter()
        .filter(|(name, _)| !matches!(&***name, "init_images" | "mask"))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let sends_images = fields.get("send_images").is_none_or(|send| *send != Value::Bool(false));
    let default = chosen(&app, &client);
    let read = {
        let app = Arc::clone(&app);
        move || Reading { app: &app, fields, notes: Vec::new() }.read(default, from_image)
    };
    let asked = intake::blocking(&app, read).await?;
    let job = intake::submit(&app, &client, asked).await?;
    drop(held);
    app.sdapi.add(&client.name, Arc::clone(&job));
    let job = EndsWithClient::new(&app, job);
    job.end().await;
    let snapshot = job.snapshot();
    match snapshot.error {
        // What was interrupted is an answer without images, as there.
        Some(error) if error.code != "cancelled" || error.status != StatusCode::CONFLICT => Err(error.into()),
        _ => Ok(answer::pieces(told(&job, &snapshot, parameters, sends_images))),
    }
}

/// The answer. `info` is a text of JSON.
fn told(job: &JobRecord, snapshot: &Snapshot, parameters: Map<String, Value>, sends_images: bool) -> Pieces {
    let mut files = Files::new();
    let made: Vec<_> = snapshot.images.iter().flatten().collect();
    let images: Vec<_> = made.iter().filter(|_| sends_images).map(|made| files.base64(&made.file)).collect();
    let seeds: Vec<_> = made.iter().map(|made| made.seed).collect();
    let infotexts: Vec<_> = made.iter().map(|made| made.parameters.clone()).collect();
    let info = json!({
        "prompt": job.prompt, "all_prompts": vec![&job.prompt; made.len()],
        "negative_prompt": parameters.get("negative_prompt"),
        "seed": seeds.first(), "all_seeds": seeds, "subseed": 0, "all_subseeds": vec![0; made.len()],
        "width": snapshot.plan.width, "height": snapshot.plan.height, "steps": snapshot.plan.steps,
        "batch_size": made.len(), "sampler_name": "Euler", "sd_model_name": job.model, "sd_model_hash": null,
        "job_timestamp": "0", "index_of_first_image": 0, "infotexts": infotexts, "notes": snapshot.notes,
        "is_using_inpainting_conditioning": false, "styles": [], "extra_generation_params": {},
    });
    files.json(&json!({"images": images, "parameters": parameters, "info": info.to_string()}))
}

/// Fields that are read one after the other; what is left over is named.
struct Reading<'a> {
    app: &'a App,
    fields: Map<String, Value>,
    notes: Vec<String>,
}

impl Reading<'_> {
    fn read(mut self, default: String, from_image: bool) -> Result<Asked> {
        let mut settings = match self.fields.remove("override_settings") {
            Some(Value::Object(settings)) => settings,
            _ => Map::new(),
        };
        let model = settings.remove("sd_model_checkpoint").and_then(|model| model.as_str().map(str::to_string));
        let model = model.map_or(default, |title| title.split(" [").next().unwrap_or_default().to_string());
        let prompt = self.text("prompt")?.unwrap_or_default();
        let (prompt, adapters) =
            without_loras(&prompt, |name| self.app.queue.models().adapters().any(|known| known == name));
        let count = self.whole("batch_size", 1..=MOST_IMAGES)?.unwrap_or(1)
            * self.whole("n_iter", 1..=MOST_IMAGES)?.unwrap_or(1);
        if count > MOST_IMAGES {
            return Err(ApiError::value(
                "n_iter",
                format!("{count} images are asked for, expected at most {MOST_IMAGES}"),
            ));
        }
        let models = &self.app.queue.models();
        let is_distilled = models.is_distilled(models.find(Some(&model)).map_or(0, |(place, _)| place));
        let recipe = Recipe {
            prompt,
            negative: self.text("negative_prompt")?.filter(|text| !text.is_empty() && !is_distilled),
            width: self.side("width")?,
            height: self.side("height")?,
            steps: self.steps(is_distilled)?,
            seed: self.seed()?,
            guidance: self.guidance(is_distilled)?,
            ..Recipe::default()
        };
        let (recipe, files) = if from_image { self.with_images(recipe)? } else { (recipe, EmbeddedFiles::new()) };
        self.sampler();
        for name in USUAL {
            self.fields.remove(name);
        }
        self.name_the_rest(settings);
        Ok(Asked {
            model: Some(model),
            recipe,
            files,
            adapters,
            count: count as usize,
            encoding: Encoding { format: ImageFormat::Png, quality: None },
            previews: Previews::All,
            priority: Priority::Normal,
            deadline: None,
            user: None,
            feedback: None,
            notes: self.notes,
            answer: Answer::default(),
        })
    }

    fn text(&mut self, name: &'static str) -> Result<Option<String>> {
        match self.fields.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => {
                Err(ApiError::value(name, format!("`{name}` is {}, expected a text", shown(&other.to_string()))))
            }
        }
    }

    fn number(&mut self, name: &'static str, range: std::ops::RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.fields.remove(name) else { return Ok(None) };
        let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
        number.filter(|number| range.contains(number)).map(Some).ok_or_else(|| {
            let expected = format!("a number from {} to {}", range.start(), range.end());
            ApiError::value(name, format!("`{name}` is {}, expected {expected}", shown(&value.to_string())))
        })
    }

    fn whole(&mut self, name: &'static str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
        let number = self.number(name, *range.start() as f64..=*range.end() as f64)?;
        Ok(number.map(|number| number as u64))
    }

    fn side(&mut self, name: &'static str) -> Result<Option<usize>> {
        Ok(self.whole(name, 64..=16384)?.map(|side| side as usize))
    }

    fn seed(&mut self) -> Result<u64> {
        let seed = self.number("seed", -1.0..=9e15)?.unwrap_or(-1.0);
        Ok(if seed < 0.0 { u64::from(rand::random::<u32>()) } else { seed as u64 })
    }

    /// The steps. Those of a distilled model are its own where more are asked for than it gains from.
    fn steps(&mut self, is_distilled: bool) -> Result<Option<usize>> {
        let steps = self.whole("steps", 1..=1000)?;
        let is_too_many = steps.is_some_and(|steps| steps > MOST_DISTILLED_STEPS);
        if is_distilled && is_too_many && !self.app.config.honours_sdapi_steps {
            let steps = steps.unwrap_or_default();
            self.notes.push(format!("steps {steps}: the model is distilled, and takes its own number of steps"));
            return Ok(None);
        }
        Ok(steps.map(|steps| steps as usize))
    }

    fn guidance(&mut self, is_distilled: bool) -> Result<Option<f32>> {
        let scale = self.number("cfg_scale", 0.0..=1e4)?;
        self.fields.remove("distilled_cfg_scale");
        Ok(scale.filter(|_| !is_distilled).map(|scale| scale as f32))
    }

    fn sampler(&mut self) {
        for name in ["sampler_name", "sampler_index", "scheduler"] {
            let sampler =
                self.fields.remove(name).and_then(|name| name.as_str().map(str::to_lowercase)).unwrap_or_default();
            let is_own = matches!(&*sampler, "" | "euler" | "euler a" | "k_euler" | "automatic" | "simple" | "normal");
            if !is_own {
                self.notes.push(format!("{name} `{}` is not here: it is Euler", shown(&sampler)));
            }
        }
    }

    /// Gives a recipe the image to change, and its mask.
    fn with_images(&mut self, recipe: Recipe) -> Result<(Recipe, EmbeddedFiles)> {
        let missing =
            || ApiError::bad("missing_required_parameter", "the field `init_images` is missing").of("init_images");
        let images = match self.fields.remove("init_images") {
            Some(Value::Array(images)) if !images.is_empty() => images,
            _ => return Err(missing()),
        };
        let mut files = BTreeMap::new();
        let mut inputs = Vec::new();
        for (number, image) in images.iter().enumerate() {
            let bytes = file_of(image.as_str().ok_or_else(missing)?, "init_images")?;
            masks::check(&bytes, "init_images")?;
            let name = PathBuf::from(format!("{}.png", number + 1));
            files.insert(name.clone(), bytes);
            inputs.push(name);
        }
        let size = flux::input::file_size(&files[&inputs[0]]).ok();
        let differs = |asked: Option<usize>, side: usize| asked.is_some_and(|asked| asked != side);
        if size.is_some_and(|[width, height]| differs(recipe.width, width) || differs(recipe.height, height)) {
            self.notes.push("width and height have no effect: the image keeps its size".to_string());
        }
        let strength = self.number("denoising_strength", 0.0..=1.0)?.unwrap_or(0.75);
        let mut recipe = Recipe { strength: Some(strength), width: None, height: None, ..recipe };
        if let Some(text) = self.text("mask")? {
            let inverts = self.number("inpainting_mask_invert", 0.0..=1.0)? == Some(1.0);
            let name = PathBuf::from("mask.png");
            files.insert(name.clone(), masks::read_white(&file_of(&text, "mask")?, &files[&inputs[0]], inverts)?);
            recipe.mask = Some(name);
            recipe.feather = self.number("mask_blur", 0.0..=64.0)?.unwrap_or(0.0) as usize;
        }
        recipe.inputs = inputs;
        Ok((recipe, files))
    }

    /// Names the fields that are left, and the settings, unless they say what holds anyway.
    fn name_the_rest(&mut self, settings: Map<String, Value>) {
        let is_nothing = |value: &Value| match value {
            Value::Bool(on) => !on,
            Value::Number(number) => number.as_f64() == Some(0.0) || number.as_f64() == Some(-1.0),
            Value::String(text) => text.is_empty(),
            Value::Array(values) => values.is_empty(),
            Value::Object(values) => values.is_empty(),
            Value::Null => true,
        };
        let is_usual = |name: &str, value: &Value| match name {
            "CLIP_stop_at_last_layers" => *value == 1,
            "sd_vae" => *value == "Automatic" || *value == "None",
            "samples_format" => *value == "png",
            _ => false,
        };
        let fields = self.fields.iter().map(|(name, value)| (shown(name), value));
        let settings = settings.iter().filter(|(name, value)| !is_usual(name, value));
        let settings = settings.map(|(name, value)| (format!("override_settings.{}", shown(name)), value));
        let left: Vec<_> =
            fields.chain(settings).filter(|(_, value)| !is_nothing(value)).map(|(name, _)| name).collect();
        if !left.is_empty() {
            self.notes.push(format!("without effect: {}", left.join(", ")));
        }
    }
}
