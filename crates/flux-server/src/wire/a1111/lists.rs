//! Lists: models, samplers, adapters, options.

use axum::extract::Request;
use axum::response::Response;
use flux::metadata::{Infotext, MAX_TEXT, said_by};
use flux::stage::CancelFlag;
use serde_json::{Map, Value, json};

use super::reading::model_name;
use super::{SdResult, extras, file_of, read_fields};
use crate::http::client::Client;
use crate::http::error::ApiError;
use crate::jobs::admission::Estimate;
use crate::jobs::fields::missing;
use crate::wire::FromClient;
use crate::{App, http::answer};

/// A function that returns a list.
type List = fn(&App) -> Value;

pub const ROUTES: &[(&str, List)] = &[
    ("/sdapi/v1/sd-models", models),
    ("/sdapi/v1/samplers", |_| json!([{"name": "Euler", "aliases": ["euler", "k_euler"], "options": {}}])),
    ("/sdapi/v1/schedulers", |_| json!([{"name": "automatic", "label": "Automatic", "aliases": null}])),
    ("/sdapi/v1/loras", loras),
    ("/sdapi/v1/scripts", |_| json!({"txt2img": [], "img2img": []})),
    ("/sdapi/v1/upscalers", extras::upscalers),
    ("/sdapi/v1/memory", |_| json!({"ram": {}, "cuda": {}})),
    ("/sdapi/v1/cmd-flags", |_| json!({})),
    ("/sdapi/v1/embeddings", |_| json!({"loaded": {}, "skipped": {}})),
    ("/sdapi/v1/latent-upscale-modes", none),
    ("/sdapi/v1/sd-vae", none),
    ("/sdapi/v1/sd-modules", none),
    ("/sdapi/v1/hypernetworks", none),
    ("/sdapi/v1/face-restorers", none),
    ("/sdapi/v1/prompt-styles", none),
    ("/sdapi/v1/extensions", none),
    ("/sdapi/v1/script-info", none),
];

fn none(_: &App) -> Value {
    json!([])
}

fn models(app: &App) -> Value {
    let model = |name: &str| json!({"title": name, "model_name": name, "filename": name, "hash": null, "sha256": null, "config": null});
    app.queue.models().names().map(model).collect()
}

fn loras(app: &App) -> Value {
    app.queue
        .models()
        .adapters()
        .map(|name| json!({"name": name, "alias": name, "path": name, "metadata": {}}))
        .collect()
}

/// Returns the model that the client chose, or the default one.
pub fn chosen(app: &App, client: &Client) -> String {
    app.sdapi.model(&client.name).unwrap_or_else(|| app.queue.models().name(0).to_string())
}

pub async fn options(FromClient(app, client): FromClient) -> Response {
    answer::json(&json!({
        "sd_model_checkpoint": chosen(&app, &client), "sd_checkpoint_hash": null, "sd_vae": "Automatic",
        "samples_format": "png", "CLIP_stop_at_last_layers": 1, "eta_noise_seed_delta": 0,
    }))
}

/// Sets the model of the client. Other options have no effect.
pub async fn set_options(FromClient(app, client): FromClient, request: Request) -> SdResult {
    let fields = read_fields(&app, request.into_body(), &app.permit(&client)).await?;
    if let Some(model) = fields.get("sd_model_checkpoint") {
        let name = model.as_str().ok_or_else(|| ApiError::value("sd_model_checkpoint", "the model is not a string"))?;
        let name = model_name(&app, name);
        if !app.queue.models().names().any(|known| known == name) {
            return Err(app.queue.models().unknown(&name).into());
        }
        app.sdapi.choose(&client.name, name);
    }
    Ok(answer::json(&json!({})))
}

/// Returns the metadata in an image file.
pub async fn png_info(FromClient(app, client): FromClient, request: Request) -> SdResult {
    let permit = app.permit(&client);
    let mut fields = read_fields(&app, request.into_body(), &permit).await?;
    let Some(Value::String(text)) = fields.remove("image") else {
        return Err(missing("image").into());
    };
    let estimate = Estimate::bytes(text.len() + MAX_TEXT as usize);
    let read = move |_: &CancelFlag| {
        said_by(&file_of(&text, "image")?).map_err(|e| ApiError::bad("invalid_image", e.what()).with_param("image"))
    };
    let said = permit.answer(estimate, read).await?;
    let texts = said.texts.into_iter();
    let own = [("parameters", said.parameters.clone()), ("flux", said.recipe)];
    let own = own.into_iter().filter_map(|(keyword, text)| Some((keyword.to_string(), text?)));
    let items: Map<String, Value> = texts.chain(own).map(|(keyword, text)| (keyword, text.into())).collect();
    let info = said.parameters.unwrap_or_default();
    let parameters = pairs(&info);
    Ok(answer::json(&json!({"info": info, "items": items, "parameters": parameters})))
}

/// Splits generation parameters into A1111's fields. A size becomes two fields.
fn pairs(info: &str) -> Map<String, Value> {
    if info.trim().is_empty() {
        return Map::new();
    }
    let Infotext { prompt, negative, pairs } = Infotext::parse(info);
    let mut fields =
        Map::from_iter([("Prompt".to_string(), prompt.into()), ("Negative prompt".to_string(), Value::from(negative))]);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    for (key, value) in pairs {
        match value.split_once('x').filter(|(width, height)| is_number(width) && is_number(height)) {
            Some((width, height)) => {
                fields.insert(format!("{key}-1"), width.into());
                fields.insert(format!("{key}-2"), height.into());
            }
            None => drop(fields.insert(key, value.into())),
        }
    }
    fields
}
