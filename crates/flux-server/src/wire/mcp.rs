//! The MCP server: the tools `generate_image`, `edit_image`, `upscale_image` and `list_models`, and their images as
//! resources.
//!
//! Results contain each image as a small JPEG, since clients refuse long messages. The full image is a file: below
//! `/v1/files/` over HTTP, and on disk over stdio.

mod calls;
mod describe;
mod made;
#[cfg(test)]
mod tests;

use std::fs;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::{Extension, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flux::input;
use flux::metadata::Metadata;
use flux::output::encode_jpeg;
use flux::stage::CancelFlag;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, JsonObject,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};

use self::calls::{Call, Caller, Calls, Head};
use self::describe::{About, tools};
use self::made::{MadeImage, MadeImages, templates};
use crate::http::address::Address;
use crate::http::client::Client;
use crate::http::error::{ApiError, Result, shown};
use crate::jobs::admission::{Estimate, Permit};
use crate::jobs::fields::{Fields, text_bytes};
use crate::jobs::record::{JobEvent, JobRecord, Made};
use crate::jobs::request::{Route, Upload};
use crate::{App, EndsWithClient, jobs::body, jobs::intake};

/// Max length of an image in base64. Clients refuse messages of 1 MiB.
const MAX_BASE64: usize = 900_000;
/// The max side of an image in a result, in pixels, and its JPEG quality.
const ANSWER_SIDE: usize = 1024;
const ANSWER_QUALITY: u8 = 90;
/// The interval between progress notifications. Clients give up after a minute without one.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// The header with the session ID.
const SESSION: &str = "mcp-session-id";
/// The max length of a session ID.
const MAX_SESSION: usize = 128;
/// Characters of a prompt in the description of its image.
const MAX_DESCRIPTION: usize = 80;

/// The MCP tools.
#[derive(Clone)]
pub struct Tools {
    app: Arc<App>,
    /// The folder for images. Also allows the client to name files of this machine. `None` over HTTP.
    folder: Option<PathBuf>,
    made: Arc<MadeImages>,
}

/// Returns the route `/mcp`. Bodies are read with the same limits and timeouts as on other routes.
pub fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let state = (Arc::clone(app), Arc::new(Calls::default()));
    let bounded = middleware::from_fn_with_state(state, with_body);
    Router::new().nest_service("/mcp", service(app)).layer(bounded)
}

async fn with_body(
    State((app, calls)): State<(Arc<App>, Arc<Calls>)>,
    Extension(client): Extension<Client>,
    request: Request,
    next: Next,
) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let caller = caller(&parts);
    if calls.is_ended(&caller) {
        return Err(ApiError::not_found("the session has ended: start a new one with `initialize`"));
    }
    if parts.method == Method::DELETE {
        if caller.session.is_none() {
            return Err(ApiError::bad("missing_required_parameter", "the header `Mcp-Session-Id` is missing"));
        }
        calls.end(&caller);
        return Ok(Response::default());
    }
    let permit = app.permit(&client);
    let limits = &app.config.limits;
    let bytes = body::read_json(body, limits.form_bytes, limits, &permit, Ok).await?;
    let is_small = bytes.len() <= body::SMALL;
    let head = if is_small { Head::read(&bytes) } else { tokio::task::block_in_place(|| Head::read(&bytes)) };
    if let Some(id) = head.cancelled() {
        calls.cancel(&caller, id);
    }
    let begins = head.method == "initialize";
    let mut request = Request::from_parts(parts, Body::from(bytes));
    // Attached to the call, so that its images count until it is over.
    request.extensions_mut().insert(permit);
    if head.method == "tools/call" {
        request.extensions_mut().insert(Arc::new(calls.start(caller, head.id)));
    }
    let mut answer = pin!(next.run(request));
    let mut answer = if is_small {
        answer.await
    } else {
        // The library parses the body here, which must not block other clients.
        poll_fn(|context| tokio::task::block_in_place(|| answer.as_mut().poll(context))).await
    };
    if begins && answer.status().is_success() {
        let id = HeaderValue::from_str(&crate::http::ids::new_id());
        id.into_iter().for_each(|id| drop(answer.headers_mut().insert(SESSION, id)));
    }
    Ok(answer)
}

/// Returns the client and the session of an HTTP request.
fn caller(parts: &Parts) -> Caller {
    let owner = parts.extensions.get::<Client>().map_or_else(String::new, |client| client.name.clone());
    let session = parts.headers.get(SESSION).and_then(|id| id.to_str().ok()).filter(|id| id.len() <= MAX_SESSION);
    Caller { owner, session: session.map(str::to_string) }
}

/// Returns the service for HTTP.
fn service(app: &Arc<App>) -> StreamableHttpService<Tools, NeverSessionManager> {
    let tools = Tools { app: Arc::clone(app), folder: None, made: Arc::default() };
    // Hosts and origins were checked before. Without the library's sessions, a disconnecting client cancels its call.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_legacy_session_mode(false)
        .with_max_request_body_bytes(app.config.limits.form_bytes);
    StreamableHttpService::new(move || Ok(tools.clone()), Arc::default(), config)
}

impl Tools {
    /// Returns the tools for stdio.
    pub fn local(app: Arc<App>, folder: PathBuf) -> Self {
        Self { app, folder: Some(folder), made: Arc::default() }
    }

    /// Returns the client of an HTTP request, or `local`.
    fn client(context: &RequestContext<RoleServer>) -> Client {
        let parts = context.extensions.get::<Parts>();
        parts.and_then(|parts| parts.extensions.get::<Client>()).cloned().unwrap_or_else(|| Client::named("local"))
    }

    /// Returns the client and the session of a call.
    fn caller(context: &RequestContext<RoleServer>) -> Caller {
        let local = || Caller { owner: "local".to_string(), session: None };
        context.extensions.get::<Parts>().map_or_else(local, caller)
    }

    async fn draw(
        &self,
        route: Route,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult> {
        let client = Self::client(context);
        let parts = context.extensions.get::<Parts>();
        let permit = parts.and_then(|parts| parts.extensions.get::<Arc<Permit>>()).cloned();
        let permit = permit.unwrap_or_else(|| self.app.permit(&client));
        let (tools, mut arguments) = (self.clone(), arguments);
        let bytes = arguments.values().map(text_bytes).sum();
        let read = async {
            let read = move |_: &CancelFlag| Ok((tools.uploads(&mut arguments, route)?, arguments));
            let (uploads, arguments) = permit.answer(Estimate::bytes(bytes), read).await?;
            self.wait_until_ready().await?;
            intake::read(&self.app, &client, &permit, Fields::from_object(arguments), uploads, route).await
        };
        let asked = tokio::select! {
            asked = read => asked?,
            () = cancelled(context) => return Err(crate::http::error::cancelled()),
        };
        if asked.answer.stream || asked.answer.as_url {
            return Err(ApiError::bad("unsupported_value", "`stream` and `response_format` are not supported here"));
        }
        let job = EndsWithClient::new(&self.app, intake::begin(&self.app, &client, &permit, asked)?);
        tokio::select! {
            taken = async {
                job.taken().await?;
                send_progress(&job, context).await;
                Ok::<(), ApiError>(())
            } => taken?,
            () = cancelled(context) => return Err(crate::http::error::cancelled()),
        }
        let snapshot = job.snapshot();
        if let Some(error) = snapshot.error {
            return Err(error);
        }
        let (mut content, mut images) = (Vec::new(), Vec::new());
        for made in snapshot.images.into_iter().flatten() {
            let link = self.keep(&job, &made, context)?;
            let file = made.file.clone();
            // Scaled and encoded until it is small enough.
            let estimate = Estimate::decode([made.width, made.height]);
            let estimate = estimate + Estimate::scale(2 * estimate.decoded);
            let small = permit.answer(estimate, move |cancel| small_copy(&file, cancel)).await?;
            content.push(ContentBlock::image(STANDARD.encode(small), "image/jpeg"));
            let notes: String = snapshot.notes.iter().map(|note| format!("\nnote: {note}")).collect();
            let prompt = made.revised_prompt().map_or(String::new(), |prompt| format!("\nprompt: {prompt}"));
            let size = format!("{}x{}", made.width, made.height);
            let origin = match job.is_enlarging {
                true => format!("{size}, upscaler {}", job.model),
                false => format!("seed {}, {size}, model {}", made.seed, job.model),
            };
            content.push(ContentBlock::text(format!("{origin}, {}{prompt}{notes}", link.uri)));
            images.push(made.add_revised_prompt(json!({
                "uri": link.uri, "name": link.name, "mime_type": job.encoding.format.media_type(), "bytes": made.file.len(),
                "width": made.width, "height": made.height, "seed": made.seed, "model": job.model,
            })));
            content.push(ContentBlock::resource_link(link));
        }
        let mut result = CallToolResult::success(content);
        result.structured_content = Some(json!({"images": images, "notes": snapshot.notes}));
        Ok(result)
    }

    /// Reads the images of a call. Each is base64, the name of an earlier image, or a file of this machine, if allowed.
    fn uploads(&self, arguments: &mut JsonObject, route: Route) -> Result<Vec<Upload>> {
        let mut uploads = Vec::new();
        let name = if route == Route::Upscale { "image" } else { "images" };
        let images = match arguments.remove(name) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(images)) => images,
            Some(other) => vec![other],
        };
        let mask = arguments.remove("mask").filter(|mask| !mask.is_null());
        let named = images.into_iter().map(|image| ("image", image)).chain(mask.map(|mask| ("mask", mask)));
        for (part, image) in named {
            let text = image.as_str().ok_or_else(|| ApiError::value(part, format!("`{part}` is not a string")))?;
            let bytes = self.file(part, text)?;
            uploads.push(Upload { part: part.to_string(), file_name: None, bytes });
        }
        Ok(uploads)
    }

    fn file(&self, part: &'static str, text: &str) -> Result<Bytes> {
        let named = text.strip_prefix(made::IMAGES).filter(|name| !name.contains(['/', '\\']));
        if let (Some(folder), Some(name)) = (&self.folder, named) {
            let read = input::read_file(&folder.join(name));
            return read.map(Bytes::from).map_err(|e| ApiError::value(part, format!("{}: {}", shown(text), e.what())));
        }
        if let Some(name) = named.or_else(|| text.rsplit_once("/v1/files/").map(|(_, name)| name)) {
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

    /// Waits until the model is loaded. Over stdio, the program may have just started.
    async fn wait_until_ready(&self) -> Result<()> {
        loop {
            let stats = self.app.queue.stats();
            if stats.is_ready || stats.is_closed {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Stores the full image. Returns a link to it.
    fn keep(&self, job: &JobRecord, made: &Made, context: &RequestContext<RoleServer>) -> Result<Resource> {
        let (name, uri, path) = match &self.folder {
            Some(folder) => {
                let name = format!("flux-{}-{}.{}", made.seed, &job.id[..8], job.encoding.format.name());
                let path = folder.join(&name);
                flux::files::atomic::write(&path, &made.file)
                    .map_err(|e| ApiError::internal(format!("cannot write the image: {e}")))?;
                let path = fs::canonicalize(&path).unwrap_or(path);
                (name, format!("file://{}", path.display()), Some(path))
            }
            None => {
                let name = self.app.store.add_file(
                    made.file.clone(),
                    job.encoding.format.name(),
                    job.encoding.format.media_type(),
                );
                let address = context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Address>());
                (name.clone(), address.cloned().unwrap_or_default().url(&format!("/v1/files/{name}")), None)
            }
        };
        let prompt: String = job.prompt.chars().take(MAX_DESCRIPTION).collect();
        self.made.add(MadeImage {
            caller: Self::caller(context),
            name: name.clone(),
            uri: uri.clone(),
            media_type: job.encoding.format.media_type(),
            size: made.file.len(),
            description: format!("{}x{}, seed {}: {prompt}", made.width, made.height, made.seed),
            recipe: made.recipe.to_string(),
            path,
        });
        Ok(Resource::new(uri, name).with_mime_type(job.encoding.format.media_type()).with_size(made.file.len() as u64))
    }

    fn about(&self) -> About {
        About::new(&self.app, self.folder.is_some())
    }

    fn models(&self) -> Value {
        let models: Vec<_> =
            self.app.queue.models().names().map(|name| crate::wire::openai::model_json(&self.app, name)).collect();
        let loras: Vec<_> = self.app.queue.models().adapters().collect();
        json!({"models": models, "loras": loras})
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_resources().build())
            .with_server_info(Implementation::new("flux", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.about().instructions())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools(&self.about())))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(self.made.list(&Self::caller(&context), &self.app.store)))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ReadResourceResponse, ErrorData> {
        let (tools, owner, uri) = (self.clone(), Self::caller(&context).owner, request.uri);
        let missing = format!("the resource `{}` does not exist or is no longer kept", shown(&uri));
        let permit = self.app.permit(&Self::client(&context));
        let read = move |_: &CancelFlag| Ok(tools.made.read(&owner, &uri, &tools.app.store));
        let read = permit.answer(Estimate::default(), read).await;
        let read = read.map_err(|error| ErrorData::internal_error(error.message, None))?;
        let contents = read.ok_or_else(|| ErrorData::resource_not_found(missing, None))?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let result = match &*request.name {
            "generate_image" => self.draw(Route::Generations, arguments, &context).await,
            "edit_image" => self.draw(Route::Edits, arguments, &context).await,
            "upscale_image" => self.draw(Route::Upscale, arguments, &context).await,
            "list_models" => {
                let models = self.models();
                let mut result = CallToolResult::success(vec![ContentBlock::text(models.to_string())]);
                result.structured_content = Some(models);
                Ok(result)
            }
            other => return Err(ErrorData::invalid_params(format!("there is no tool `{}`", shown(other)), None)),
        };
        // An invalid call is a tool result, so that the model can correct it.
        let wrong = |ApiError { code, message, param, .. }: ApiError| {
            let field = param.filter(|param| !message.contains(&**param));
            let field = field.map_or(String::new(), |param| format!(" (argument `{param}`)"));
            // The shared code names the field as in forms.
            let own = if request.name == "upscale_image" { "`image`" } else { "`images`" };
            let [message, field] = [message, field].map(|text| text.replace("`image`", own));
            CallToolResult::error(vec![ContentBlock::text(format!("{code}: {message}{field}"))])
        };
        Ok(result.unwrap_or_else(wrong).into())
    }
}

/// Waits until the client cancels a call or disconnects.
async fn cancelled(context: &RequestContext<RoleServer>) {
    let call = context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Arc<Call>>());
    match call {
        Some(call) => tokio::select! {
            () = context.ct.cancelled() => {}
            () = call.cancelled() => {}
        },
        None => context.ct.cancelled().await,
    }
}

/// Sends progress notifications until a job ends, if the client asked for them. The progress always increases.
async fn send_progress(job: &JobRecord, context: &RequestContext<RoleServer>) {
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
        // Fails if the client is gone, which cancels the call anyway.
        let _ = context.peer.notify_progress(progress).await;
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(TELL_EVERY) => {}
        }
    }
}

/// Encodes a JPEG that is small enough for clients.
fn small_copy(file: &[u8], cancel: &CancelFlag) -> Result<Vec<u8>> {
    let image = input::read_bytes(file)?;
    let mut side = image.width.max(image.height).min(ANSWER_SIDE);
    loop {
        let longest = image.width.max(image.height);
        let scaled = |pixels: usize| (pixels * side / longest).max(1);
        let copy = if side == longest {
            image.clone()
        } else {
            input::resized_unless(&image, [scaled(image.width), scaled(image.height)], cancel)?
        };
        let jpeg = encode_jpeg(&copy, ANSWER_QUALITY, &Metadata::default())?;
        if jpeg.len() * 4 / 3 <= MAX_BASE64 || side <= 64 {
            return Ok(jpeg);
        }
        side /= 2;
    }
}
