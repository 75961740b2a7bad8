//! `POST /prompt`: from a graph to jobs.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::drawings::{Wanted, wanted};
use super::error::{ComfyError, ComfyResult, GraphError};
use super::graph::Graph;
use super::prompts::{NewPrompt, NodeName, Part, Prompt, Save};
use super::run::Course;
use super::socket::MOST_NAME;
use super::surroundings::OfServer;
use super::{nodes, read_object, run};
use crate::server::error::ApiError;
use crate::server::fields::{Fields, shown};
use crate::server::guard::Client;
use crate::server::request::{Previews, Priority};
use crate::server::uploads::{Folder, Place};
use crate::server::{App, answer, ids, intake};

/// Names in a note.
const MOST_NAMED: usize = 8;

/// A prompt as it is asked for.
struct Taken {
    graph: Map<String, Value>,
    targets: Option<Vec<String>>,
    id: Option<String>,
    client_id: Option<String>,
    is_first: bool,
    shows_previews: bool,
    notes: Vec<String>,
}

pub async fn submit(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> ComfyResult {
    let held = app.bodies.hold();
    let limits = &app.config.limits;
    // Images may be in it, in base64.
    let most = limits.file_bytes / 3 * 4 + limits.json_bytes;
    let asked = read(read_object(&app, request.into_body(), most, &held).await?)?;
    if let Some(id) = &asked.id
        && app.comfy.prompts.of(&client.name).iter().any(|prompt| prompt.id == *id)
    {
        return Err(ApiError::value("prompt_id", "there is a prompt of this id").into());
    }
    let around = OfServer { app: Arc::clone(&app), owner: client.name.clone() };
    let (graph, targets) = (asked.graph.clone(), asked.targets.clone());
    let work = move || {
        Ok(Graph::read(&graph, targets.as_deref()).and_then(|graph| {
            let wanted = wanted(nodes::run(&graph, &around)?)?;
            Ok((graph, wanted))
        }))
    };
    let (graph, wanted) = intake::blocking(&app, work).await??;
    let prompt = start(&app, &client, asked, (&graph, wanted)).await?;
    drop(held);
    let told = json!({"prompt_id": prompt.id, "number": prompt.number, "node_errors": {},
        "flux": {"notes": prompt.notes}});
    Ok(answer::json(&told))
}

fn read(body: Map<String, Value>) -> Result<Taken, ComfyError> {
    let mut body = body;
    let graph = match body.remove("prompt") {
        Some(Value::Object(graph)) => graph,
        None => return Err(GraphError::new("no_prompt", "No prompt provided", "").into()),
        Some(_) => return Err(GraphError::new("invalid_prompt", "The prompt is no object of nodes", "").into()),
    };
    let mut fields = Fields::from_object(body);
    let short = |name: &'static str, text: Option<String>| match text {
        Some(text) if text.is_empty() || text.len() > MOST_NAME || text.contains(char::is_control) => {
            Err(ApiError::value(name, format!("`{name}` has not 1 to {MOST_NAME} characters")))
        }
        text => Ok(text),
    };
    let extra: Map<String, Value> = fields.value("extra_data")?.unwrap_or_default();
    let client_id = fields.text("client_id")?.or_else(|| extra.get("client_id")?.as_str().map(str::to_string));
    let mut notes = Vec::new();
    let unused = extra.keys().filter(|name| !matches!(&***name, "client_id" | "preview_method"));
    let unused: Vec<_> = unused.take(MOST_NAMED).map(|name| shown(name)).collect();
    if !unused.is_empty() {
        notes.push(format!("`extra_data` is not kept, since files hold recipes: {}", unused.join(", ")));
    }
    let read = Taken {
        graph,
        targets: fields.value("partial_execution_targets")?,
        id: short("prompt_id", fields.text("prompt_id")?)?,
        client_id: short("client_id", client_id.filter(|id| !id.is_empty()))?,
        is_first: fields.flag("front")?.unwrap_or(false),
        shows_previews: extra.get("preview_method").and_then(Value::as_str) != Some("none"),
        notes: Vec::new(),
    };
    if fields.value::<Value>("number")?.is_some() {
        notes.push("`number` has no effect: clients take turns".to_string());
    }
    fields.finish()?;
    Ok(Taken { notes, ..read })
}

/// Puts all that a graph wants into the queue, and follows it.
async fn start(
    app: &Arc<App>,
    client: &Client,
    request: Taken,
    (graph, wanted): (&Graph, Vec<Wanted>),
) -> Result<Arc<Prompt>, ComfyError> {
    let number = app.comfy.prompts.number();
    let hears = |id: &String| app.comfy.hub.hears(&client.name, id);
    let previews = request.shows_previews && request.client_id.as_ref().is_some_and(hears);
    let priority = if request.is_first { Priority::High } else { Priority::Normal };
    let (mut jobs, mut courses, mut parts, mut notes) = (Vec::new(), Vec::new(), Vec::new(), request.notes);
    for Wanted { sampler, outputs, mut asked } in wanted {
        asked.previews = if previews { Previews::All } else { Previews::AtMost(0) };
        asked.priority = priority.min(client.most_priority());
        notes.append(&mut asked.notes);
        let saves = outputs.iter().map(|output| save(app, graph, *output, asked.count)).collect();
        let job = intake::submit(app, client, asked).await;
        let job = job.map_err(|error| {
            jobs.iter().for_each(|job| {
                app.queue.cancel(job);
            });
            of_sampler(graph, sampler, error)
        })?;
        app.store.add(Arc::clone(&job));
        notes.extend(job.snapshot().notes);
        parts.push(Part::new(&job, name(graph, sampler), saves));
        courses.push(course(graph, sampler, &outputs));
        jobs.push(job);
    }
    notes.sort_unstable();
    notes.dedup();
    let prompt = Prompt::new(NewPrompt {
        id: request.id.unwrap_or_else(new_id),
        number: if request.is_first { -(number as i64) } else { number as i64 },
        owner: client.name.clone(),
        client_id: request.client_id,
        graph: request.graph,
        outputs: graph.outputs.iter().map(|output| graph.nodes[*output].id.clone()).collect(),
        parts,
        notes,
    });
    app.comfy.prompts.add(Arc::clone(&prompt));
    run::tell_status(app, &client.name);
    tokio::spawn(run::follow(Arc::clone(app), Arc::clone(&prompt), jobs.into_iter().zip(courses).collect()));
    Ok(prompt)
}

/// What the engine says of a request, as an error of the sampler that it is of.
fn of_sampler(graph: &Graph, sampler: usize, error: ApiError) -> ComfyError {
    if error.status != StatusCode::BAD_REQUEST {
        return error.into();
    }
    let node = &graph.nodes[sampler];
    let wrong = node.wrong("custom_validation_failed", "Custom validation failed for node", error.message);
    let wrong = match error.param {
        Some(param) => wrong.at(&param),
        None => wrong,
    };
    wrong.needed_for(graph.outputs_of(&node.id)).into()
}

fn name(graph: &Graph, node: usize) -> NodeName {
    NodeName { id: graph.nodes[node].id.clone(), class: graph.nodes[node].class.name }
}

/// The nodes that come before a sampler, and those behind it that are no outputs, for whoever hears of them.
fn course(graph: &Graph, sampler: usize, outputs: &[usize]) -> Course {
    let before: Vec<_> = graph.needed_by(&[sampler]).into_iter().filter(|node| *node != sampler).collect();
    let mut is_told = vec![false; graph.nodes.len()];
    before.iter().chain(outputs).chain([&sampler]).for_each(|node| is_told[*node] = true);
    let behind: Vec<_> = graph.needed_by(outputs).into_iter().filter(|node| !is_told[*node]).collect();
    let names = |nodes: Vec<usize>| nodes.into_iter().map(|node| name(graph, node)).collect();
    Course { before: names(before), behind: names(behind) }
}

/// An output node, and where its images will be.
fn save(app: &App, graph: &Graph, output: usize, count: usize) -> Save {
    let node = &graph.nodes[output];
    let place = |_| match node.class.name {
        "ETN_SaveImageCache" => Place { folder: Folder::Krita, subfolder: String::new(), name: ids::new_id() },
        "PreviewImage" => numbered(app, Folder::Temp, "ComfyUI_temp"),
        _ => numbered(app, Folder::Output, &prefix(graph, output)),
    };
    Save { node: name(graph, output), places: (0..count).map(place).collect() }
}

/// A name that no other file has.
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
        Some((_, super::graph::Given::Text(prefix))) => prefix.chars().take(100).collect(),
        _ => "ComfyUI".to_string(),
    }
}

/// In the form of a UUID, as some clients check.
fn new_id() -> String {
    let id = ids::new_id();
    let parts: Option<Vec<&str>> = [0..8, 8..12, 12..16, 16..20, 20..32].into_iter().map(|part| id.get(part)).collect();
    parts.map_or(id.clone(), |parts| parts.join("-"))
}
