//! Lists: nodes, models, devices.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::classes::{Choice, Class, Input, Takes};
use super::error::{ComfyError, ComfyResult};
use super::graph::type_name;
use super::surroundings::klein;
use crate::http::client::Client;
use crate::http::error::ApiError;
use crate::jobs::uploads::Folder;
use crate::wire::FromClient;
use crate::{App, http::answer};

/// The version of ComfyUI's API that this server implements. Clients check it.
const API_VERSION: &str = "0.3.60";

/// The query of a URL.
pub struct Asked(HashMap<String, String>);

impl Asked {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = ComfyError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ComfyError> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(asked)| Self(asked)).map_err(|e| ApiError::bad("invalid_value", e.body_text()).into())
    }
}

/// Returns the optional features of this server.
pub fn features(app: &App) -> Value {
    json!({"supports_preview_metadata": false, "max_upload_size": app.config.limits.file_bytes})
}

pub async fn get_features(State(app): State<Arc<App>>) -> Response {
    answer::json(&features(&app))
}

pub async fn system_stats(State(app): State<Arc<App>>) -> Response {
    let engine = app.queue.models().resident(0);
    let devices = engine.map(|engine| engine.devices(1)).unwrap_or_default();
    let device = |(number, (name, _)): (usize, &(String, String))| {
        let kind = if name.to_lowercase().contains("cpu") { "cpu" } else { "cuda" };
        json!({"name": name, "type": kind, "index": number, "vram_total": 0, "vram_free": 0,
            "torch_vram_total": 0, "torch_vram_free": 0})
    };
    let devices: Vec<_> = devices.iter().enumerate().map(device).collect();
    answer::json(&json!({
        "system": {"os": std::env::consts::OS, "ram_total": 0, "ram_free": 0, "comfyui_version": API_VERSION,
            "python_version": "", "pytorch_version": "", "embedded_python": false, "argv": []},
        "devices": devices,
    }))
}

/// Returns the values that an input accepts.
fn names(app: &App, client: &Client, choice: Choice) -> Vec<String> {
    let models = &app.queue.models();
    match choice {
        Choice::Words(words) | Choice::Hint(words) => words.iter().map(|word| word.to_string()).collect(),
        Choice::Models | Choice::PartsOfModels => models.names().map(str::to_string).collect(),
        Choice::Adapters => models.adapters().map(str::to_string).collect(),
        Choice::Upscalers => models.upscalers().file_names(),
        Choice::Uploads => app.store.uploads(&client.name, Folder::Input),
    }
}

fn input_json(app: &App, client: &Client, input: &Input) -> Value {
    let range = |default: Value, least: Value, most: Value| json!({"default": default, "min": least, "max": most});
    let kind = type_name(input.takes);
    match input.takes {
        Takes::Link(_) | Takes::Adapter | Takes::Boxes => json!([kind, {}]),
        Takes::Whole(default, least, most) => json!([kind, range(default.into(), least.into(), most.into())]),
        Takes::Number(default, least, most) => json!([kind, range(default.into(), least.into(), most.into())]),
        Takes::Flag(default) => json!([kind, {"default": default}]),
        Takes::Text(default) => json!([kind, {"default": default, "multiline": input.name == "text"}]),
        Takes::Choice(Choice::Uploads) => json!([names(app, client, Choice::Uploads), {"image_upload": true}]),
        Takes::Choice(choice) => json!([names(app, client, choice), {}]),
    }
}

fn class_json(app: &App, client: &Client, class: &Class) -> Value {
    let listed = |is_needed: bool| class.inputs.iter().filter(move |input| input.is_needed == is_needed);
    let inputs = |is_needed| {
        listed(is_needed).map(|input| (input.name.to_string(), input_json(app, client, input))).collect::<Map<_, _>>()
    };
    let order = |is_needed| listed(is_needed).map(|input| input.name).collect::<Vec<_>>();
    let kinds: Vec<_> = class.outputs.iter().map(|(kind, _)| kind.name()).collect();
    let names: Vec<_> = class.outputs.iter().map(|(_, name)| *name).collect();
    json!({
        "input": {"required": inputs(true), "optional": inputs(false)},
        "input_order": {"required": order(true), "optional": order(false)},
        "output": kinds, "output_is_list": vec![false; kinds.len()], "output_name": names,
        "name": class.name, "display_name": class.name, "description": "", "python_module": "nodes",
        "category": class.category, "output_node": class.is_output,
    })
}

pub async fn object_info(FromClient(app, client): FromClient) -> Response {
    let classes = Class::all().map(|class| (class.name.to_string(), class_json(&app, &client, class)));
    answer::json(&Value::from(classes.collect::<Map<_, _>>()))
}

pub async fn class_info(FromClient(app, client): FromClient, Path(name): Path<String>) -> Response {
    let class = Class::find(&name).map(|class| (name, class_json(&app, &client, class)));
    answer::json(&Value::from(class.into_iter().collect::<Map<_, _>>()))
}

/// Model folders, with the values listed for each.
const FOLDERS: [(&str, Choice); 7] = [
    ("checkpoints", Choice::Models),
    ("diffusion_models", Choice::Models),
    ("unet", Choice::Models),
    ("text_encoders", Choice::PartsOfModels),
    ("vae", Choice::PartsOfModels),
    ("loras", Choice::Adapters),
    ("upscale_models", Choice::Upscalers),
];

pub async fn folders() -> Response {
    answer::json(&FOLDERS.map(|(name, _)| name))
}

pub async fn models(FromClient(app, client): FromClient, Path(folder): Path<String>) -> ComfyResult {
    let choice = FOLDERS.iter().find(|(name, _)| *name == folder).map(|(_, choice)| *choice);
    let choice = choice.ok_or_else(|| ApiError::not_found("there is no such model folder"))?;
    Ok(answer::json(&names(&app, &client, choice)))
}

/// Returns the models in the format that Krita uses to recognize them.
pub async fn krita_models(State(app): State<Arc<App>>, Path(folder): Path<String>, asked: Asked) -> Response {
    let names: Vec<&str> = match &*folder {
        "diffusion_models" => app.queue.models().names().collect(),
        _ => Vec::new(),
    };
    let number = |name: &str, default: usize| asked.get(name).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (offset, limit) = (number("offset", 0), number("limit", 1000));
    let shown = names.iter().skip(offset).take(limit);
    let mut told: Map<String, Value> = shown
        .map(|name| {
            let size = klein(&name.to_lowercase()).map_or("klein".to_string(), |(size, ..)| format!("klein-{size}"));
            (name.to_string(), json!({"base_model": "flux2", "type": size, "is_inpaint": false, "is_refiner": false}))
        })
        .collect();
    if asked.get("limit").is_some() {
        told.insert("_meta".to_string(), json!({"offset": offset, "count": told.len(), "total": names.len()}));
    }
    answer::json(&Value::from(told))
}
