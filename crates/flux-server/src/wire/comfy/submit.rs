//! `POST /prompt`: from a graph to jobs.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use axum::extract::Request;
use axum::http::StatusCode;
use flux::engine::{EmbeddedFiles, Priority};
use flux::stage::CancelFlag;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::drawings::{Output, Wanted, wanted};
use super::error::{ComfyError, ComfyResult, GraphError};
use super::graph::Graph;
use super::images::{Broken, Maker, Picture};
use super::prompts::{MAX_WORKFLOW, NewPrompt, NodeName, Part, Prompt, Save, ascii, kept_text};
use super::run::Course;
use super::socket::MAX_NAME;
use super::surroundings::OfServer;
use super::{nodes, read_object, run};
use crate::http::client::Client;
use crate::http::error::{ApiError, shown};
use crate::jobs::admission::{Estimate, Permit};
use crate::jobs::fields::Fields;
use crate::jobs::record::{JobRecord, Owner};
use crate::jobs::request::Previews;
use crate::jobs::uploads::{Folder, Place};
use crate::wire::FromClient;
use crate::{App, http::answer, http::ids, jobs::intake, jobs::intake::LaterFiles};

/// Max names in a note.
const MAX_NAMED: usize = 8;

/// A parsed request.
struct Taken {
    graph: Map<String, Value>,
    targets: Option<Vec<String>>,
    id: Option<String>,
    client_id: Option<String>,
    is_first: bool,
    shows_previews: bool,
    workflow: Option<Box<str>>,
    notes: Vec<String>,
}

pub async fn submit(FromClient(app, client): FromClient, request: Request) -> ComfyResult {
    let permit = app.permit(&client);
    let limits = &app.config.limits;
    // The body may contain images in base64.
    let most = limits.file_bytes / 3 * 4 + limits.json_bytes;
    let mut asked = read(read_object(&app, request.into_body(), most, &permit).await?)?;
    let id = asked.id.take().unwrap_or_else(new_id);
    let around = OfServer { app: Arc::clone(&app), owner: client.name.clone(), permit: Arc::clone(&permit) };
    let (graph, targets) = (std::mem::take(&mut asked.graph), asked.targets.take());
    let estimate = Estimate { nodes: graph.len() as u64, ..Estimate::bytes(permit.kept()) };
    let work = move |_: &CancelFlag| {
        let wanted = Graph::read(&graph, targets.as_deref()).and_then(|graph| {
            let wanted = wanted(nodes::run(&graph, &around)?)?;
            Ok((graph, wanted))
        });
        Ok(wanted.map(|wanted| (wanted, kept_text(&graph))))
    };
    let ((graph, wanted), text) = permit.run(estimate, &CancelFlag::default(), work).await??;
    let graph = Arc::new(graph);
    let begun = |prompt: &Prompt| {
        json!({"prompt_id": prompt.id, "number": prompt.number, "node_errors": {},
        "flux": {"notes": prompt.notes()}})
    };
    let (refused, is_refused) = oneshot::channel();
    let prompt = app
        .comfy
        .prompts
        .add(&client.name, &id, || start(&app, (&client, &permit), asked, (&id, &graph, text), wanted, refused))?;
    drop(permit);
    run::send_status(&app, &client.name);
    // The prompt continues if its client disconnects.
    if let Ok((sampler, error, broken)) = is_refused.await {
        return Err(sampler_error(&graph, sampler, error, broken.get()));
    }
    Ok(answer::json(&begun(&prompt)))
}

/// Parses the fields of a request. Unknown fields are ignored, as in ComfyUI, with a note.
///
/// Errors if there is no graph, or a field with an effect is invalid.
fn read(body: Map<String, Value>) -> Result<Taken, ComfyError> {
    let mut body = body;
    let graph = match body.remove("prompt") {
        Some(Value::Object(graph)) if !is_saved_format(&graph) => graph,
        Some(Value::Object(_)) => return Err(saved_format().into()),
        None if is_saved_format(&body) => return Err(saved_format().into()),
        None if body.values().any(|node| node["class_type"].is_string()) => {
            let details = "the nodes are expected in the field `prompt`: {\"prompt\": {..}}";
            return Err(GraphError::new("no_prompt", "No prompt provided", details).into());
        }
        None => return Err(GraphError::new("no_prompt", "No prompt provided", "").into()),
        Some(_) => return Err(GraphError::new("invalid_prompt", "The prompt is not an object of nodes", "").into()),
    };
    let short = |name: &'static str, text: Option<String>| match text {
        Some(text) if text.is_empty() || text.len() > MAX_NAME || text.contains(char::is_control) => {
            Err(ApiError::value(name, format!("`{name}` must have 1 to {MAX_NAME} characters")))
        }
        text => Ok(text),
    };
    let extra = match body.remove("extra_data") {
        Some(Value::Object(extra)) => extra,
        _ => Map::new(),
    };
    let client_id = body.remove("client_id").or_else(|| extra.get("client_id").cloned()).and_then(text_of);
    let is_first = body.remove("front").is_some_and(|front| front == true);
    let id = body.remove("prompt_id").and_then(text_of);
    let mut notes = Vec::new();
    if body.remove("number").is_some_and(|number| !number.is_null()) {
        notes.push("`number` has no effect: clients take turns".to_string());
    }
    let workflow = extra.get("extra_pnginfo").and_then(|info| info.get("workflow"));
    let workflow = workflow.map(|workflow| ascii(&workflow.to_string()).into_boxed_str());
    let is_kept = workflow.as_ref().is_none_or(|workflow| workflow.len() <= MAX_WORKFLOW);
    if !is_kept {
        notes.push(format!("`workflow` is not written to files: it has more than {} KiB", MAX_WORKFLOW >> 10));
    }
    if kept_text(&graph).is_none() {
        notes.push("the graph is too long to be written to files".to_string());
    }
    let info = extra.get("extra_pnginfo").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let unused = extra.keys().filter(|name| !matches!(&***name, "client_id" | "preview_method" | "extra_pnginfo"));
    let unused = info.filter(|name| *name != "workflow").chain(unused);
    let unused: Vec<_> = unused.take(MAX_NAMED).map(|name| format!("`{}`", shown(name))).collect();
    if !unused.is_empty() {
        notes.push(format!("ignored in `extra_data`: {}", unused.join(", ")));
    }
    let mut fields = Fields::from_object(body);
    let targets = fields.value("partial_execution_targets")?;
    let ignored: Vec<_> = fields.names().take(MAX_NAMED).map(|name| format!("`{}`", shown(name))).collect();
    if !ignored.is_empty() {
        notes.push(format!("ignored, since prompts have no such field: {}", ignored.join(", ")));
    }
    Ok(Taken {
        graph,
        targets,
        id: short("prompt_id", id)?,
        client_id: short("client_id", client_id.filter(|id| !id.is_empty()))?,
        is_first,
        workflow: workflow.filter(|_| is_kept),
        shows_previews: extra.get("preview_method").and_then(Value::as_str) != Some("none"),
        notes,
    })
}

/// Returns an ID as text. Some clients send a number.
fn text_of(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

/// Returns `true` for a graph in the format of ComfyUI's "Save", with positions and links.
fn is_saved_format(object: &Map<String, Value>) -> bool {
    let is_graph = |object: &Map<String, Value>| {
        object.get("nodes").is_some_and(|nodes| nodes.is_array() || nodes.is_object())
            && object.get("class_type").is_none()
            && ["links", "last_node_id", "last_link_id", "version", "state", "definitions", "groups"]
                .iter()
                .any(|key| object.contains_key(*key))
            || object
                .get("nodes")
                .and_then(Value::as_array)
                .is_some_and(|nodes| nodes.iter().any(|n| n["type"].is_string()))
    };
    is_graph(object)
        || ["workflow", "graph", "prompt", "output"]
            .iter()
            .filter_map(|key| object.get(*key)?.as_object())
            .any(|inner| is_graph(inner) && inner.get("class_type").is_none())
}

fn saved_format() -> GraphError {
    let details = "this is the format of \"Save\": in ComfyUI, export the graph with \"Workflow > Export (API)\" \
                   (\"Save (API Format)\" in older versions), and send that file's content as `prompt`";
    GraphError::new("invalid_prompt", "The graph is saved, not exported for the API", details)
}

/// The reason why a job was refused: the sampler's index, the error, and the broken image if there is one.
type Refused = (usize, ApiError, Arc<OnceLock<Broken>>);

/// Starts the jobs of all samplers, and follows them. `refused` is dropped once their images are read.
fn start(
    app: &Arc<App>,
    (client, permit): (&Client, &Arc<Permit>),
    request: Taken,
    (id, graph, text): (&str, &Arc<Graph>, Option<String>),
    wanted: Vec<Wanted>,
    refused: oneshot::Sender<Refused>,
) -> Result<Arc<Prompt>, ComfyError> {
    let number = app.comfy.prompts.number();
    let hears = |id: &String| app.comfy.hub.has_socket(&client.name, id);
    let previews = request.shows_previews && request.client_id.as_ref().is_some_and(hears);
    let priority = if request.is_first { Priority::High } else { Priority::Normal };
    let mut jobs: Vec<Job> = Vec::new();
    let (mut parts, mut notes) = (Vec::new(), request.notes);
    for Wanted { maker, outputs, mut asked, awaited, broken } in wanted {
        let (sampler, is_later) = (maker.0, !awaited.is_empty());
        asked.previews = if previews { Previews::All } else { Previews::AtMost(0) };
        asked.priority = priority.min(client.max_priority());
        notes.append(&mut asked.notes);
        let saves = outputs.iter().map(|output| save(app, graph, output, asked.count)).collect();
        let later = is_later.then(|| later_files(app, client, awaited, &jobs));
        let begin = || intake::begin_after(app, client, permit, asked, later);
        let begun = app.store.begin_once(&client.name, None, begin);
        let record = begun.map_err(|error| {
            give_up(app, &jobs);
            sampler_error(graph, sampler, error, None)
        })?;
        parts.push(Part::new(&record, is_later, name(graph, sampler), saves));
        let outputs: Vec<_> = outputs.iter().map(|output| output.node).collect();
        jobs.push(Job { maker, is_later, record, course: course(graph, sampler, &outputs), broken });
    }
    let prompt = Prompt::new(NewPrompt {
        id: id.to_string(),
        number: if request.is_first { -(number as i64) } else { number as i64 },
        owner: client.name.clone(),
        client_id: request.client_id,
        graph: text,
        workflow: request.workflow,
        outputs: graph.outputs.iter().map(|output| graph.nodes[*output].id.clone()).collect(),
        parts,
        notes,
    });
    tokio::spawn(follow(Arc::clone(app), Arc::clone(&prompt), jobs, refused));
    Ok(prompt)
}

/// The job of a sampler.
struct Job {
    maker: Maker,
    /// `true` if other jobs make some of its input images first.
    is_later: bool,
    record: Arc<JobRecord>,
    course: Course,
    broken: Arc<OnceLock<Broken>>,
}

/// Returns the images that a sampler reads from the graph, once the jobs before it have made them.
fn later_files(app: &Arc<App>, client: &Client, awaited: Vec<(PathBuf, Arc<Picture>)>, jobs: &[Job]) -> LaterFiles {
    let record = |maker: Maker| jobs.iter().find(|job| job.maker == maker).map(|job| Arc::clone(&job.record));
    let awaited: Vec<_> =
        awaited.into_iter().map(|(name, picture)| (name, picture.maker().and_then(record), picture)).collect();
    let owner = Owner { key: client.name.clone(), share: client.share.clone(), user: String::new() };
    let app = Arc::clone(app);
    Box::pin(async move {
        let mut files = EmbeddedFiles::new();
        for (name, job, picture) in awaited {
            let original = match (&job, picture.sent_file()) {
                (Some(job), _) => run::file_of(job).await?,
                (None, file) => file.cloned().unwrap_or_default(),
            };
            let picture = picture.with_file(original.clone());
            files.insert(name, run::make(&app, &owner, picture, &original, |_| {}).await?.to_vec());
        }
        Ok(files)
    })
}

/// Follows a prompt once the images of its jobs are read, except those that other jobs make first. If a job is refused,
/// the prompt is removed.
async fn follow(app: Arc<App>, prompt: Arc<Prompt>, jobs: Vec<Job>, refused: oneshot::Sender<Refused>) {
    for job in jobs.iter().filter(|job| !job.is_later) {
        if let Err(error) = job.record.taken().await {
            give_up(&app, &jobs);
            app.comfy.prompts.remove(&prompt);
            run::send_status(&app, &prompt.owner);
            let _ = refused.send((job.maker.0, error, Arc::clone(&job.broken)));
            return;
        }
    }
    drop(refused);
    run::follow(app, prompt, jobs.into_iter().map(|job| (job.record, job.course)).collect()).await;
}

/// Cancels and removes the jobs of a refused prompt.
fn give_up(app: &App, jobs: &[Job]) {
    for Job { record, .. } in jobs {
        app.queue.cancel(record);
        app.store.forget(record);
    }
}

/// Converts an error of a request to an error of its sampler, or of the node with the broken image.
fn sampler_error(graph: &Graph, sampler: usize, error: ApiError, broken: Option<&Broken>) -> ComfyError {
    if error.status != StatusCode::BAD_REQUEST {
        return error.into();
    }
    let node = &graph.nodes[sampler];
    let wrong = match broken {
        Some(Broken { origin: Some((place, input)), details, .. }) => {
            let node = &graph.nodes[*place];
            let wrong = node.wrong("invalid_image", "Invalid image file", details.as_str()).at(input);
            return wrong.needed_for(graph.outputs_of(&node.id)).into();
        }
        Some(Broken { details, .. }) => node.wrong("invalid_image", "Invalid image file", details.as_str()),
        None => node.wrong("custom_validation_failed", "Custom validation failed for node", error.message),
    };
    let wrong = match error.param.filter(|_| broken.is_none()) {
        Some(param) => wrong.at(&param),
        None => wrong,
    };
    wrong.needed_for(graph.outputs_of(&node.id)).into()
}

fn name(graph: &Graph, node: usize) -> NodeName {
    NodeName { id: graph.nodes[node].id.clone(), class: graph.nodes[node].class.name }
}

/// Returns the nodes before a sampler, and the nodes after it that are no outputs, for events.
fn course(graph: &Graph, sampler: usize, outputs: &[usize]) -> Course {
    let before: Vec<_> = graph.needed_by(&[sampler]).into_iter().filter(|node| *node != sampler).collect();
    let mut is_told = vec![false; graph.nodes.len()];
    before.iter().chain(outputs).chain([&sampler]).for_each(|node| is_told[*node] = true);
    let behind: Vec<_> = graph.needed_by(outputs).into_iter().filter(|node| !is_told[*node]).collect();
    let names = |nodes: Vec<usize>| nodes.into_iter().map(|node| name(graph, node)).collect();
    Course { before: names(before), behind: names(behind) }
}

/// Returns an output node with the places of its images.
fn save(app: &App, graph: &Graph, output: &Output, count: usize) -> Save {
    let Output { node: output, shape } = output;
    let node = &graph.nodes[*output];
    let place = |_| match node.class.name {
        "ETN_SaveImageCache" => Place { folder: Folder::Krita, subfolder: String::new(), name: ids::new_id() },
        "PreviewImage" => numbered(app, Folder::Temp, "ComfyUI_temp"),
        _ => numbered(app, Folder::Output, &prefix(graph, *output)),
    };
    Save { node: name(graph, *output), places: (0..count).map(place).collect(), shape: shape.clone() }
}

/// Returns a unique file name.
fn numbered(app: &App, folder: Folder, prefix: &str) -> Place {
    let (subfolder, prefix) = prefix.rsplit_once('/').unwrap_or(("", prefix));
    let number = app.comfy.prompts.number() + 1;
    let name = format!("{prefix}_{number:05}_.png");
    Place::new(folder, subfolder, &name).unwrap_or_else(|| {
        let (subfolder, name) = (String::new(), format!("ComfyUI_{number:05}_.png"));
        Place { folder, subfolder, name }
    })
}

fn prefix(graph: &Graph, output: usize) -> String {
    match graph.nodes[output].given("filename_prefix") {
        Some((_, super::classes::Given::Text(prefix))) => prefix.chars().take(100).collect(),
        _ => "ComfyUI".to_string(),
    }
}

/// Returns an ID in the form of a UUID, which some clients check.
fn new_id() -> String {
    let id = ids::new_id();
    let parts: Option<Vec<&str>> = [0..8, 8..12, 12..16, 16..20, 20..32].into_iter().map(|part| id.get(part)).collect();
    parts.map_or(id.clone(), |parts| parts.join("-"))
}
