//! The Model Context Protocol: agents draw by the tools `generate_image` and `edit_image`, and ask `list_models`.
//!
//! Answers hold each image as a JPEG that is small enough for the clients, which refuse long answers. The whole image
//! is a file: below `/v1/files/` over HTTP, and on the disk where the agent's program started this one.

use std::fs;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flux::input;
use flux::metadata::Metadata;
use flux::output::encode_jpeg;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, JsonObject, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, Resource, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};

use super::error::{ApiError, Result};
use super::fields::{Fields, shown};
use super::guard::Client;
use super::record::{JobEvent, JobRecord, Made};
use super::request::{Route, Upload};
use super::{App, EndsWithClient, body, intake};

/// The longest text in base64 that an image of an answer has: clients refuse answers of a mebibyte.
const MOST_BASE64: usize = 900_000;
/// The longest side of an image in an answer, in pixels, and the quality of its JPEG.
const ANSWER_SIDE: usize = 1024;
const ANSWER_QUALITY: u8 = 90;
/// Clients that hear nothing for a minute give up.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// What agents are told of the tools.
const INSTRUCTIONS: &str = "Draws and changes images with FLUX.2-klein. Describe the whole scene in one sentence. The \
                            answer shows a small copy; the whole image is the linked file.";

/// The tools.
#[derive(Clone)]
pub struct Tools {
    app: Arc<App>,
    /// Where images are written, and whether the agent may name files of this machine; none over HTTP.
    folder: Option<PathBuf>,
}

/// `/mcp`. Bodies are read as those of other routes: within limits, and from clients that do not fall silent.
pub fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let bounded = middleware::from_fn_with_state(Arc::clone(app), with_body);
    Router::new().nest_service("/mcp", service(app)).layer(bounded)
}

async fn with_body(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let held = app.bodies.hold();
    let limits = &app.config.limits;
    let bytes = body::read_json(body, limits.form_bytes, limits, &held, Ok).await?;
    let is_small = bytes.len() <= body::SMALL;
    let mut request = Request::from_parts(parts, Body::from(bytes));
    // The call carries its head, so that its images count until it is over.
    request.extensions_mut().insert(Arc::new(held));
    let mut answer = pin!(next.run(request));
    if is_small {
        return Ok(answer.await);
    }
    // The library parses the body in here; other threads serve other clients meanwhile.
    Ok(poll_fn(|context| tokio::task::block_in_place(|| answer.as_mut().poll(context))).await)
}

/// The tools over HTTP.
fn service(app: &Arc<App>) -> StreamableHttpService<Tools, NeverSessionManager> {
    let tools = Tools { app: Arc::clone(app), folder: None };
    // Hosts and origins were checked before. Without sessions, a client that goes ends its work.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_legacy_session_mode(false)
        .with_max_request_body_bytes(app.config.limits.form_bytes);
    StreamableHttpService::new(move || Ok(tools.clone()), Arc::default(), config)
}

impl Tools {
    /// The tools for the program that started this one.
    pub fn local(app: Arc<App>, folder: PathBuf) -> Self {
        Self { app, folder: Some(folder) }
    }

    /// Who asks, over HTTP.
    fn client(context: &RequestContext<RoleServer>) -> Client {
        let parts = context.extensions.get::<Parts>();
        parts.and_then(|parts| parts.extensions.get::<Client>()).cloned().unwrap_or_else(|| Client::named("local"))
    }

    async fn draw(
        &self,
        route: Route,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<Vec<ContentBlock>> {
        let client = Self::client(context);
        let (tools, mut arguments) = (self.clone(), arguments);
        let read = move || Ok((tools.uploads(&mut arguments)?, arguments));
        let (uploads, arguments) = intake::blocking(&self.app, read).await?;
        self.wait_until_ready().await?;
        let asked = intake::read(&self.app, &client, Fields::from_object(arguments), uploads, route).await?;
        if asked.answer.stream || asked.answer.as_url {
            return Err(ApiError::bad("unsupported_value", "`stream` and `response_format` have no meaning here"));
        }
        let job = intake::submit(&self.app, &client, asked).await?;
        let job = EndsWithClient::new(&self.app, job);
        tokio::select! {
            () = tell_progress(&job, context) => {}
            () = context.ct.cancelled() => return Err(super::error::cancelled()),
        }
        let snapshot = job.snapshot();
        if let Some(error) = snapshot.error {
            return Err(error);
        }
        let mut content = Vec::new();
        for made in snapshot.images.into_iter().flatten() {
            let link = self.keep(&job, &made, context)?;
            let file = made.file.clone();
            let small = intake::blocking(&self.app, move || small_copy(&file)).await?;
            content.push(ContentBlock::image(STANDARD.encode(small), "image/jpeg"));
            let notes: String = snapshot.notes.iter().map(|note| format!("\nnote: {note}")).collect();
            content.push(ContentBlock::text(format!(
                "seed {}, {}x{}, model {}, {}{notes}",
                made.seed, made.width, made.height, job.model, link.uri
            )));
            content.push(ContentBlock::resource_link(link));
        }
        Ok(content)
    }

    /// The images of a call: each is base64, or the name of an earlier one, or a file of this machine where that is
    /// allowed.
    fn uploads(&self, arguments: &mut JsonObject) -> Result<Vec<Upload>> {
        let mut uploads = Vec::new();
        let images = match arguments.remove("images") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(images)) => images,
            Some(other) => vec![other],
        };
        let mask = arguments.remove("mask").filter(|mask| !mask.is_null());
        let named = images.into_iter().map(|image| ("image", image)).chain(mask.map(|mask| ("mask", mask)));
        for (part, image) in named {
            let text = image.as_str().ok_or_else(|| ApiError::value(part, format!("`{part}` is no text")))?;
            let bytes = self.file(part, text)?;
            uploads.push(Upload { part: part.to_string(), file_name: None, bytes });
        }
        Ok(uploads)
    }

    fn file(&self, part: &'static str, text: &str) -> Result<Bytes> {
        if let Some((_, name)) = text.rsplit_once("/v1/files/") {
            let file = self.app.store.file(name).map(|(bytes, _)| bytes);
            return file.ok_or_else(|| ApiError::value(part, format!("there is no image `{}`", shown(text))));
        }
        let data = if text.starts_with("data:") { text.split_once(',').map_or("", |(_, data)| data) } else { text };
        if let Ok(bytes) = STANDARD.decode(data.trim()) {
            return Ok(bytes.into());
        }
        match &self.folder {
            Some(_) => {
                let path = text.strip_prefix("file://").unwrap_or(text);
                let read = input::read_file(Path::new(path));
                read.map(Bytes::from).map_err(|e| ApiError::value(part, format!("{}: {}", shown(path), e.what())))
            }
            None => Err(ApiError::value(part, format!("`{part}` is neither base64 nor an image of an earlier answer"))),
        }
    }

    /// Waits until the model is open, which takes a while where the program was started for this call.
    async fn wait_until_ready(&self) -> Result<()> {
        loop {
            let stats = self.app.queue.stats();
            if stats.is_ready || stats.is_closed {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Keeps the whole image, and tells where.
    fn keep(&self, job: &JobRecord, made: &Made, context: &RequestContext<RoleServer>) -> Result<Resource> {
        let (name, uri) = match &self.folder {
            Some(folder) => {
                let name = format!("flux-{}-{}.{}", made.seed, &job.id[..8], job.encoding.name());
                let path = folder.join(&name);
                flux::files::atomic::write(&path, &made.file)
                    .map_err(|e| ApiError::internal(format!("cannot write the image: {e}")))?;
                let path = fs::canonicalize(&path).unwrap_or(path);
                (name, format!("file://{}", path.display()))
            }
            None => {
                let name = self.app.store.add_file(made.file.clone(), job.encoding.name(), job.encoding.media_type());
                let host =
                    context.extensions.get::<Parts>().and_then(|parts| parts.headers.get(header::HOST)?.to_str().ok());
                let scheme = if self.app.config.tls.is_some() { "https" } else { "http" };
                (name.clone(), format!("{scheme}://{}/v1/files/{name}", host.unwrap_or("localhost")))
            }
        };
        Ok(Resource::new(uri, name).with_mime_type(job.encoding.media_type()).with_size(made.file.len() as u64))
    }

    fn models(&self) -> Value {
        let models: Vec<_> =
            self.app.queue.models().names().map(|name| super::openai::model_json(&self.app, name)).collect();
        let loras: Vec<_> = self.app.queue.models().adapters().collect();
        json!({"models": models, "loras": loras})
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("flux", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools(self.folder.is_some())))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let content = match &*request.name {
            "generate_image" => self.draw(Route::Generations, arguments, &context).await,
            "edit_image" => self.draw(Route::Edits, arguments, &context).await,
            "list_models" => Ok(vec![ContentBlock::text(self.models().to_string())]),
            other => return Err(ErrorData::invalid_params(format!("there is no tool `{}`", shown(other)), None)),
        };
        // What is wrong with a call is told to the model, which may call again.
        Ok(match content {
            Ok(content) => CallToolResult::success(content).into(),
            Err(error) => {
                CallToolResult::error(vec![ContentBlock::text(format!("{}: {}", error.code, error.message))]).into()
            }
        })
    }
}

/// Tells a client that asked for it how far a job is, until it is over. What is told only rises.
async fn tell_progress(job: &JobRecord, context: &RequestContext<RoleServer>) {
    let Some(token) = context.meta.get_progress_token() else { return job.end().await };
    let mut changes = job.watch();
    let (mut told, mut heard, mut steps) = (0.0, 0, vec![[0, 1]; job.count]);
    while !job.status().is_over() {
        let mut message = "waiting".to_string();
        for event in job.events_from(heard) {
            heard += 1;
            if let JobEvent::Step { image, step, steps: of } = event {
                steps[image] = [step, of.max(1)];
                message = format!("step {step} of {of}");
            }
        }
        let done: f64 = steps.iter().map(|[step, of]| *step as f64 / *of as f64).sum::<f64>() / job.count as f64;
        told = f64::max(told + 1e-4, done);
        let progress = ProgressNotificationParam::new(token.clone(), told).with_total(1.0).with_message(message);
        // A client that hears nothing more is gone, which the token of the call tells.
        let _ = context.peer.notify_progress(progress).await;
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(TELL_EVERY) => {}
        }
    }
}

/// A JPEG of an image that clients take.
fn small_copy(file: &[u8]) -> Result<Vec<u8>> {
    let image = input::read_bytes(file)?;
    let mut side = image.width.max(image.height).min(ANSWER_SIDE);
    loop {
        let longest = image.width.max(image.height);
        let scaled = |pixels: usize| (pixels * side / longest).max(1);
        let copy = if side == longest {
            image.clone()
        } else {
            input::resized(&image, [scaled(image.width), scaled(image.height)])
        };
        let jpeg = encode_jpeg(&copy, ANSWER_QUALITY, &Metadata::default())?;
        if jpeg.len() * 4 / 3 <= MOST_BASE64 || side <= 64 {
            return Ok(jpeg);
        }
        side /= 2;
    }
}

/// What the tools are called with.
fn tools(takes_paths: bool) -> Vec<Tool> {
    let common = json!({
        "prompt": {"type": "string", "description": "What to draw, in words"},
        "size": {"type": "string", "description": "WIDTHxHEIGHT, or auto", "examples": ["1024x768"]},
        "n": {"type": "integer", "minimum": 1, "maximum": 10, "description": "Images, with the seed and those that follow it"},
        "seed": {"type": "integer", "minimum": 0, "description": "The same seed draws the same image; at random if left out"},
        "steps": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "Leave out for the model's own number"},
        "guidance": {"type": "number", "minimum": 0}, "negative_prompt": {"type": "string"},
        "model": {"type": "string", "description": "One of list_models"},
        "loras": {"type": "array", "items": {"type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}, "weight": {"type": "number"}}}},
        "output_format": {"type": "string", "enum": ["png", "jpeg", "webp"]},
    });
    let paths = if takes_paths { ", a path" } else { "" };
    let image = format!("An image: base64{paths}, or the link of an earlier answer");
    let edits = json!({
        "images": {"type": "array", "minItems": 1, "maxItems": 16, "items": {"type": "string", "description": image}},
        "mask": {"type": "string", "description": "Of the size of the first image: what is transparent, or else white, is drawn anew"},
        "strength": {"type": "number", "minimum": 0, "maximum": 1, "description": "How far from the first image to go"},
    });
    let schema = |more: &Value, required: &[&str]| {
        let mut properties = common.as_object().cloned().unwrap_or_default();
        properties.extend(more.as_object().cloned().unwrap_or_default());
        let schema =
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        schema.as_object().cloned().unwrap_or_default()
    };
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    vec![
        Tool::new("generate_image", "Draws an image of words", schema(&json!({}), &["prompt"])),
        Tool::new("edit_image", "Changes images by words, or draws from them", schema(&edits, &["prompt", "images"])),
        Tool::new(
            "list_models",
            "The models and LoRAs that may be asked for",
            nothing.as_object().cloned().unwrap_or_default(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use flux::output::{ImageFormat, encode};
    use flux::rgb::Rgb;

    use super::*;

    #[test]
    fn copies_are_small_enough_for_clients() {
        let noise: Vec<u8> = (0..3_u32 * 1600 * 1200).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let file =
            encode(&Rgb { width: 1600, height: 1200, bytes: noise }, ImageFormat::Png, &Metadata::default()).unwrap();
        let copy = small_copy(&file).unwrap();
        assert!(copy.len() * 4 / 3 <= MOST_BASE64);
        let read = input::read_bytes(&copy).unwrap();
        assert!(read.width.max(read.height) <= ANSWER_SIDE && read.width * 3 == read.height * 4);
    }

    #[test]
    fn every_argument_of_a_tool_is_a_field_that_is_read() {
        for tool in tools(true).iter().filter(|tool| tool.name != "list_models") {
            for name in tool.input_schema["properties"].as_object().unwrap().keys() {
                if !matches!(&**name, "images" | "mask" | "strength") {
                    let value = json!({"prompt": "x", name: null});
                    let mut arguments = value.as_object().cloned().unwrap();
                    arguments.insert("prompt".to_string(), "x".into());
                    let read = super::super::request::Asked::read(
                        Fields::from_object(arguments),
                        Vec::new(),
                        Route::Generations,
                        1,
                    );
                    assert!(read.is_ok(), "{name}");
                }
            }
        }
    }
}
