//! `txt2img` and `img2img`.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use flux::engine::ImageRecipe;
use flux::sampler::Variation;
use flux::stage::CancelFlag;
use serde_json::{Map, Value, json};

use super::lists::chosen;
use super::reading::Reading;
use super::{SdResult, read_fields};
use crate::http::error::shown;
use crate::http::pieces::{Files, Pieces};
use crate::jobs::admission::Estimate;
use crate::jobs::fields::{brief, text_bytes};
use crate::jobs::record::{JobRecord, Made, Snapshot};
use crate::wire::FromClient;
use crate::{EndsWithClient, http::answer, jobs::intake};

/// Max fields that a response repeats, and max bytes of each value except prompts.
const MAX_REPEATED: usize = 128;
const MAX_REPEATED_BYTES: usize = 4096;

/// Answers `txt2img`, or `img2img` if it is `from_image`.
pub async fn draw(FromClient(app, client): FromClient, request: Request, from_image: bool) -> SdResult {
    let permit = app.permit(&client);
    let fields = read_fields(&app, request.into_body(), &permit).await?;
    let parameters = repeated(&fields);
    let texts = Estimate::bytes(fields.values().map(text_bytes).sum());
    let sends_images = fields.get("send_images").is_none_or(|send| *send != Value::Bool(false));
    let default = chosen(&app, &client);
    let read = {
        let app = Arc::clone(&app);
        move |_: &CancelFlag| Reading::new(&app, fields).read(default, from_image)
    };
    let asked = permit.answer(texts, read).await?;
    let job = EndsWithClient::new(&app, intake::begin(&app, &client, &permit, asked)?);
    drop(permit);
    // Registered early, so that it can be interrupted while its images are read.
    app.sdapi.add(&client.name, Arc::clone(&job.job));
    job.taken().await?;
    job.end().await;
    let snapshot = job.snapshot();
    match snapshot.error {
        // As in A1111, an interrupted job gives a response without images.
        Some(error) if error.code != "cancelled" || error.status != StatusCode::CONFLICT => Err(error.into()),
        _ => Ok(answer::pieces(response(&job, &snapshot, parameters, sends_images))),
    }
}

/// Returns the fields that the response repeats: all that known clients send, but with limits.
fn repeated(fields: &Map<String, Value>) -> Map<String, Value> {
    let is_prompt = |name: &str| matches!(name, "prompt" | "negative_prompt");
    let kept = fields.iter().filter(|(name, _)| !matches!(&***name, "init_images" | "mask")).take(MAX_REPEATED);
    let short = |(name, value): (&String, &Value)| {
        let is_long = !is_prompt(name) && value.to_string().len() > MAX_REPEATED_BYTES;
        (shown(name), if is_long { brief(value) } else { value.clone() })
    };
    kept.map(short).collect()
}

/// Returns the response. Its `info` is JSON as text.
fn response(job: &JobRecord, snapshot: &Snapshot, parameters: Map<String, Value>, sends_images: bool) -> Pieces {
    let mut files = Files::new();
    let made: Vec<_> = snapshot.images.iter().flatten().collect();
    let images: Vec<_> = made.iter().filter(|_| sends_images).map(|made| files.base64(&made.file)).collect();
    let base = |made: &Made| made.recipe["recipe"]["variation"].as_str()?.parse::<Variation>().ok();
    let seeds: Vec<_> = made.iter().map(|made| base(made).map_or(made.seed, |base| base.seed)).collect();
    let subseeds: Vec<_> = made.iter().map(|made| base(made).map_or(0, |_| made.seed)).collect();
    let strength = made.first().and_then(|made| base(made)).map_or(0.0, |base| base.strength);
    let prompts: Vec<_> = made.iter().map(|made| made.revised_prompt().unwrap_or(&job.prompt)).collect();
    let infotexts: Vec<_> = made.iter().map(|made| made.parameters.clone()).collect();
    let request = made.first().and_then(|made| made.upsampled_from());
    let extra = request.map_or(json!({}), |request| json!({(ImageRecipe::UPSAMPLED_FROM): request}));
    let info = json!({
        "prompt": prompts.first().unwrap_or(&&*job.prompt), "all_prompts": prompts,
        "negative_prompt": parameters.get("negative_prompt"),
        "seed": seeds.first(), "all_seeds": seeds, "subseed": subseeds.first(), "all_subseeds": subseeds,
        "subseed_strength": strength,
        "width": snapshot.plan.width, "height": snapshot.plan.height, "steps": snapshot.plan.steps,
        "batch_size": made.len(), "sampler_name": "Euler", "sd_model_name": job.model, "sd_model_hash": null,
        "job_timestamp": "0", "index_of_first_image": 0, "infotexts": infotexts, "notes": snapshot.notes,
        "is_using_inpainting_conditioning": false, "styles": [], "extra_generation_params": extra,
    });
    files.json(&json!({"images": images, "parameters": parameters, "info": info.to_string()}))
}
