//! What there is: models, samplers, adapters, options.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use flux::metadata::said_by;
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::guard::Client;
use super::super::{App, answer, intake};
use super::{SdResult, file_of, read_fields};

/// A list by its path.
type List = fn(&App) -> Value;

pub const ROUTES: &[(&str, List)] = &[
    ("/sdapi/v1/sd-models", models),
    ("/sdapi/v1/samplers", |_| json!([{"name": "Euler", "aliases": ["euler", "k_euler"], "options": {}}])),
    ("/sdapi/v1/schedulers", |_| json!([{"name": "automatic", "label": "Automatic", "aliases": null}])),
    ("/sdapi/v1/loras", loras),
    ("/sdapi/v1/scripts", |_| json!({"txt2img": [], "img2img": []})),
    ("/sdapi/v1/upscalers", |_| json!([{"name": "None", "model_name": null, "model_path": null, "scale": 1}])),
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

/// The model that the client chose, else the default one.
pub fn chosen(app: &App, client: &Client) -> String {
    app.sdapi.model(&client.name).unwrap_or_else(|| app.queue.models().name(0).to_string())
}

pub async fn options(State(app): State<Arc<App>>, Extension(client): Extension<Client>) -> Response {
    answer::json(&json!({
        "sd_model_checkpoint": chosen(&app, &client), "sd_checkpoint_hash": null, "sd_vae": "Automatic",
        "samples_format": "png", "CLIP_stop_at_last_layers": 1, "eta_noise_seed_delta": 0,
    }))
}

/// Chooses the model of the client. Other options have no effect.
pub async fn set_options(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> SdResult {
    let held = app.bodies.hold();
    let fields = read_fields(&app, request.into_body(), &held).await?;
    if let Some(model) = fields.get("sd_model_checkpoint") {
        let name = model.as_str().ok_or_else(|| ApiError::value("sd_model_checkpoint", "the model is no text"))?;
        // Some clients send the title, with a hash behind it.
        let name = name.split(" [").next().unwrap_or_default();
        if !app.queue.models().names().any(|known| known == name) {
            return Err(app.queue.models().unknown(name).into());
        }
        app.sdapi.choose(&client.name, name.to_string());
    }
    Ok(answer::json(&json!({})))
}

/// What the file of an image says of it.
pub async fn png_info(State(app): State<Arc<App>>, request: Request) -> SdResult {
    let held = app.bodies.hold();
    let mut fields = read_fields(&app, request.into_body(), &held).await?;
    let Some(Value::String(text)) = fields.remove("image") else {
        return Err(ApiError::bad("missing_required_parameter", "the field `image` is missing").into());
    };
    let read = move || said_by(&file_of(&text, "image")?).map_err(|e| ApiError::bad("invalid_image", e.what()));
    let said = intake::blocking(&app, read).await?;
    let info = said.parameters.clone().unwrap_or_default();
    let items = json!({"parameters": said.parameters, "flux": said.recipe});
    Ok(answer::json(&json!({"info": info, "items": items, "parameters": {}})))
}
