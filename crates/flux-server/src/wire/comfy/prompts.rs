//! Prompts: accepted graphs, with their progress and results. Their images belong to jobs in the store. When the store
//! drops the jobs, the prompt is dropped, too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use flux::output::with_png_texts;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::images::Picture;
use crate::http::error::ApiError;
use crate::jobs::record::JobRecord;
use crate::jobs::uploads::{Folder, Place};

/// Max remembered prompts of a client, and in total.
const MAX_PER_CLIENT: usize = 500;
const MAX: usize = 2000;
/// Max bytes of a stored graph.
const MAX_GRAPH: usize = 64 << 10;
/// Max bytes of a stored workflow, and of all of them.
pub const MAX_WORKFLOW: usize = 512 << 10;
const MAX_WORKFLOWS: usize = 32 << 20;

/// A node, as named in events.
#[derive(Debug, Clone)]
pub struct NodeName {
    pub id: String,
    pub class: &'static str,
}

/// An accepted graph.
pub struct Prompt {
    pub id: String,
    pub number: i64,
    /// The name of the client.
    pub owner: String,
    /// The client ID that receives events.
    pub client_id: Option<String>,
    /// As text, which takes a fraction of the memory of parsed JSON.
    graph: String,
    outputs: Vec<String>,
    pub parts: Vec<Part>,
    notes: Vec<String>,
    state: Mutex<State>,
    /// A job that enlarges an image of a sampler.
    enlarging: Mutex<Weak<JobRecord>>,
}

/// The images of one sampler.
pub struct Part {
    job: Weak<JobRecord>,
    /// `true` if other jobs make some of its input images first.
    is_later: bool,
    pub sampler: NodeName,
    pub saves: Vec<Save>,
}

/// An output node.
pub struct Save {
    pub node: NodeName,
    /// The place of each image, for clients.
    pub places: Vec<Place>,
    /// Changes to the images. Changed images are stored among the uploads.
    pub shape: Option<Arc<Picture>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Waiting,
    Running,
    Done,
    Failed,
    Interrupted,
}

impl Phase {
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }
}

struct State {
    phase: Phase,
    /// The events sent so far, with names and data.
    messages: Vec<Value>,
    is_forgotten: bool,
    /// The workflow of ComfyUI's web page, for metadata of files.
    workflow: Option<Box<str>>,
}

impl Part {
    pub fn new(job: &Arc<JobRecord>, is_later: bool, sampler: NodeName, saves: Vec<Save>) -> Self {
        Self { job: Arc::downgrade(job), is_later, sampler, saves }
    }

    /// Returns the job, while it is retained.
    pub fn job(&self) -> Option<Arc<JobRecord>> {
        self.job.upgrade()
    }
}

/// The part of a prompt that is known when it is accepted.
pub struct NewPrompt {
    pub id: String,
    pub number: i64,
    pub owner: String,
    pub client_id: Option<String>,
    /// The graph as text. `None` if it is too long to store.
    pub graph: Option<String>,
    pub workflow: Option<Box<str>>,
    pub outputs: Vec<String>,
    pub parts: Vec<Part>,
    pub notes: Vec<String>,
}

/// Returns the text of a graph, unless it is too long to store.
pub fn kept_text(graph: &Map<String, Value>) -> Option<String> {
    Some(ascii(&serde_json::to_string(graph).unwrap_or_default())).filter(|text| text.len() <= MAX_GRAPH)
}

/// Escapes JSON to ASCII, as Python does, for PNG text chunks.
pub fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            ' '..='~' => text.push(c),
            _ => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    text
}

impl Prompt {
    pub fn new(new: NewPrompt) -> Arc<Self> {
        let NewPrompt { id, number, owner, client_id, graph, workflow, outputs, parts, notes } = new;
        let graph = graph.unwrap_or_else(|| "{}".to_string());
        let (phase, messages) = (Phase::Waiting, Vec::new());
        let state = Mutex::new(State { phase, messages, is_forgotten: false, workflow });
        let enlarging = Mutex::default();
        Arc::new(Self { id, number, owner, client_id, graph, outputs, parts, notes, state, enlarging })
    }

    /// Sets the job that enlarges an image of a sampler.
    pub fn set_enlarging(&self, job: &Arc<JobRecord>) {
        *self.enlarging.lock() = Arc::downgrade(job);
    }

    /// Returns its jobs, while they are retained.
    pub fn jobs(&self) -> Vec<Arc<JobRecord>> {
        let enlarging = self.enlarging.lock().upgrade();
        self.parts.iter().filter_map(Part::job).chain(enlarging).collect()
    }

    pub fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    /// Returns `true` while its images are being read, as far as no job makes them first.
    pub fn is_reading(&self) -> bool {
        self.parts.iter().filter(|part| !part.is_later).any(|part| part.job().is_some_and(|job| job.is_reading()))
    }

    pub fn enter(&self, phase: Phase) {
        self.state.lock().phase = phase;
    }

    /// Returns the notes on the graph and on its retained jobs.
    pub fn notes(&self) -> Vec<String> {
        let of_jobs = self.parts.iter().filter_map(Part::job).flat_map(|job| job.snapshot().notes);
        let mut notes: Vec<_> = self.notes.iter().cloned().chain(of_jobs).collect();
        notes.sort_unstable();
        notes.dedup();
        notes
    }

    /// Records an event that was sent.
    pub fn record_event(&self, name: &str, data: &Value) {
        self.state.lock().messages.push(json!([name, data]));
    }

    /// Returns the entry for queues and histories.
    pub fn entry(&self) -> Value {
        let graph: Value = serde_json::from_str(&self.graph).unwrap_or_default();
        json!([self.number, self.id, graph, {"client_id": self.client_id}, self.outputs])
    }

    /// Returns the results of the output nodes, as far as they are retained.
    pub fn outputs(&self) -> Value {
        let made = |part: &Part| part.job().is_some_and(|job| job.snapshot().error.is_none() && job.status().is_over());
        let saves = self.parts.iter().filter(|part| made(part)).flat_map(|part| &part.saves);
        saves.map(|save| (save.node.id.clone(), save.output())).collect::<Map<_, _>>().into()
    }

    /// Returns a file with the graph in its metadata, as ComfyUI writes files.
    pub fn file_of(&self, file: &[u8]) -> Bytes {
        let state = self.state.lock();
        let prompt = (self.graph != "{}").then_some(("prompt", &*self.graph));
        let workflow = state.workflow.as_deref().map(|workflow| ("workflow", workflow));
        let texts: Vec<_> = prompt.into_iter().chain(workflow).collect();
        // Cannot fail because of the texts, which are ASCII.
        with_png_texts(file, &texts).map_or_else(|_| Bytes::copy_from_slice(file), Bytes::from)
    }

    fn workflow_bytes(&self) -> usize {
        self.state.lock().workflow.as_ref().map_or(0, |workflow| workflow.len())
    }

    /// Returns the entry of a history.
    fn history(&self) -> Value {
        let state = self.state.lock();
        let (phase, messages) = (state.phase, state.messages.clone());
        drop(state);
        let meta = self.parts.iter().flat_map(|part| &part.saves).map(|Save { node: NodeName { id, .. }, .. }| {
            (id.clone(), json!({"node_id": id, "display_node": id, "parent_node": null, "real_node_id": id}))
        });
        json!({
            "prompt": self.entry(),
            "outputs": self.outputs(),
            "status": {"status_str": if phase == Phase::Done { "success" } else { "error" },
                "completed": phase == Phase::Done, "messages": messages},
            "meta": meta.collect::<Map<_, _>>(),
            "flux": {"notes": self.notes()},
        })
    }
}

impl Save {
    /// Returns the description of its images for clients.
    pub fn output(&self) -> Value {
        let image = |place: &Place| match self.node.class {
            "ETN_SaveImageCache" => {
                json!({"source": "http", "id": place.name, "content-type": "image/png", "type": "output"})
            }
            "ETN_SendImageWebSocket" => json!({"source": "websocket", "content-type": "image/png", "type": "output"}),
            _ => json!({"filename": place.name, "subfolder": place.subfolder, "type": place.folder.name()}),
        };
        match self.node.class {
            "SaveImageWebsocket" => json!({}),
            _ => json!({"images": self.places.iter().map(image).collect::<Vec<_>>()}),
        }
    }

    /// Returns `true` if its images are sent over the WebSocket.
    pub fn is_sent(&self) -> bool {
        matches!(self.node.class, "SaveImageWebsocket" | "ETN_SendImageWebSocket")
    }
}

/// All prompts.
#[derive(Default)]
pub struct Prompts {
    /// Oldest first.
    all: Mutex<Vec<Arc<Prompt>>>,
    numbers: AtomicU64,
}

impl Prompts {
    /// Returns the next number, for prompts and files.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds the prompt that `begin` returns.
    ///
    /// Errors if the client has a prompt with this ID, or `begin` errors.
    pub fn add<E: From<ApiError>>(
        &self,
        owner: &str,
        id: &str,
        begin: impl FnOnce() -> Result<Arc<Prompt>, E>,
    ) -> Result<Arc<Prompt>, E> {
        let mut all = self.all.lock();
        if all.iter().any(|known| known.owner == owner && known.id == id) {
            return Err(ApiError::value("prompt_id", "a prompt with this id already exists").into());
        }
        let prompt = begin()?;
        // Drops finished prompts without retained jobs.
        all.retain(|known| !known.phase().is_over() || known.parts.iter().any(|part| part.job().is_some()));
        let own = all.iter().filter(|known| known.owner == prompt.owner).count();
        let oldest = all
            .iter()
            .position(|known| known.phase().is_over() && (known.owner == prompt.owner || own < MAX_PER_CLIENT));
        if (own >= MAX_PER_CLIENT || all.len() >= MAX)
            && let Some(oldest) = oldest
        {
            all.remove(oldest);
        }
        all.push(Arc::clone(&prompt));
        let mut bytes: usize = all.iter().map(|prompt| prompt.workflow_bytes()).sum();
        for oldest in all.iter() {
            if bytes <= MAX_WORKFLOWS {
                break;
            }
            bytes -= oldest.state.lock().workflow.take().map_or(0, |workflow| workflow.len());
        }
        Ok(prompt)
    }

    /// Removes a refused prompt.
    pub fn remove(&self, prompt: &Arc<Prompt>) {
        self.all.lock().retain(|known| !Arc::ptr_eq(known, prompt));
    }

    /// Returns the prompts of a client, oldest first.
    pub fn owned_by(&self, owner: &str) -> Vec<Arc<Prompt>> {
        self.all.lock().iter().filter(|prompt| prompt.owner == owner).cloned().collect()
    }

    /// Returns `true` if any prompt is unfinished.
    pub fn are_open(&self) -> bool {
        self.all.lock().iter().any(|prompt| !prompt.phase().is_over())
    }

    /// Returns the unfinished prompts of a client.
    pub fn open(&self, owner: &str) -> Vec<Arc<Prompt>> {
        self.owned_by(owner).into_iter().filter(|prompt| !prompt.phase().is_over()).collect()
    }

    /// Returns the file of a client's image.
    pub fn file(&self, owner: &str, place: &Place) -> Option<Bytes> {
        self.owned_by(owner).iter().find_map(|prompt| {
            prompt.parts.iter().find_map(|part| {
                let mut saves = part.saves.iter().filter(|save| save.shape.is_none());
                let image = saves.find_map(|save| save.places.iter().position(|known| known == place))?;
                let made = part.job()?.snapshot().images.into_iter().nth(image)??;
                Some(if place.folder == Folder::Krita { made.file } else { prompt.file_of(&made.file) })
            })
        })
    }

    /// Returns finished prompts of a client by ID: all, one, or the newest `most`.
    pub fn history(&self, owner: &str, id: Option<&str>, most: usize) -> Value {
        let is_told = |prompt: &Arc<Prompt>| {
            let state = prompt.state.lock();
            state.phase.is_over() && !state.is_forgotten && id.is_none_or(|id| prompt.id == id)
        };
        let told: Vec<_> = self.owned_by(owner).into_iter().filter(is_told).collect();
        let newest = &told[told.len().saturating_sub(most)..];
        newest.iter().map(|prompt| (prompt.id.clone(), prompt.history())).collect::<Map<_, _>>().into()
    }

    /// Hides finished prompts of a client: one, or all. Their files are retained as usual.
    pub fn forget(&self, owner: &str, id: Option<&str>) {
        for prompt in self.owned_by(owner).iter().filter(|prompt| id.is_none_or(|id| prompt.id == id)) {
            let mut state = prompt.state.lock();
            state.is_forgotten |= state.phase.is_over();
        }
    }
}
