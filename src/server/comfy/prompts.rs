//! Prompts: graphs that were taken, how far they are, and what came of them. Their images are those of the jobs that
//! the store keeps; when it forgets them, the prompt is forgotten too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::server::record::JobRecord;
use crate::server::uploads::Place;

/// The most prompts that are remembered, of a client and of all.
const MOST_OF_CLIENT: usize = 500;
const MOST: usize = 2000;
/// A graph that is longer is not told again.
const MOST_GRAPH: usize = 64 << 10;

/// A node, for whoever hears of it.
#[derive(Debug, Clone)]
pub struct NodeName {
    pub id: String,
    pub class: &'static str,
}

/// A graph that was taken.
pub struct Prompt {
    pub id: String,
    pub number: i64,
    /// The name of the client.
    pub owner: String,
    /// Who hears of it.
    pub client_id: Option<String>,
    /// As text, which takes a fraction of the memory of values.
    graph: String,
    outputs: Vec<String>,
    pub parts: Vec<Part>,
    pub notes: Vec<String>,
    state: Mutex<State>,
}

/// What one sampler draws.
pub struct Part {
    job: Weak<JobRecord>,
    pub sampler: NodeName,
    pub saves: Vec<Save>,
}

/// An output node.
pub struct Save {
    pub node: NodeName,
    /// Where each of its images is, for whoever asks for it.
    pub places: Vec<Place>,
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
    /// What was told of it: names and data.
    messages: Vec<Value>,
    is_forgotten: bool,
}

impl Part {
    pub fn new(job: &Arc<JobRecord>, sampler: NodeName, saves: Vec<Save>) -> Self {
        Self { job: Arc::downgrade(job), sampler, saves }
    }

    /// Its job, while that is kept.
    pub fn job(&self) -> Option<Arc<JobRecord>> {
        self.job.upgrade()
    }
}

/// What is known of a prompt when it is taken.
pub struct NewPrompt {
    pub id: String,
    pub number: i64,
    pub owner: String,
    pub client_id: Option<String>,
    pub graph: Map<String, Value>,
    pub outputs: Vec<String>,
    pub parts: Vec<Part>,
    pub notes: Vec<String>,
}

impl Prompt {
    pub fn new(new: NewPrompt) -> Arc<Self> {
        let NewPrompt { id, number, owner, client_id, graph, outputs, parts, notes } = new;
        let mut graph = Value::Object(graph).to_string();
        if graph.len() > MOST_GRAPH {
            graph = "{}".to_string();
        }
        let state = Mutex::new(State { phase: Phase::Waiting, messages: Vec::new(), is_forgotten: false });
        Arc::new(Self { id, number, owner, client_id, graph, outputs, parts, notes, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn phase(&self) -> Phase {
        self.state().phase
    }

    pub fn enter(&self, phase: Phase) {
        self.state().phase = phase;
    }

    /// Remembers what was told.
    pub fn told(&self, name: &str, data: &Value) {
        self.state().messages.push(json!([name, data]));
    }

    /// As queues and histories list it.
    pub fn entry(&self) -> Value {
        let graph: Value = serde_json::from_str(&self.graph).unwrap_or_default();
        json!([self.number, self.id, graph, {"client_id": self.client_id}, self.outputs])
    }

    /// What the output nodes made, as far as that is kept.
    pub fn outputs(&self) -> Value {
        let made = |part: &Part| part.job().is_some_and(|job| job.snapshot().error.is_none() && job.status().is_over());
        let saves = self.parts.iter().filter(|part| made(part)).flat_map(|part| &part.saves);
        saves.map(|save| (save.node.id.clone(), save.output())).collect::<Map<_, _>>().into()
    }

    /// As histories tell of it.
    fn history(&self) -> Value {
        let state = self.state();
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
            "flux": {"notes": self.notes},
        })
    }
}

impl Save {
    /// What clients are told of its images.
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

    /// Whether its images are sent to whoever hears of the prompt.
    pub fn is_sent(&self) -> bool {
        matches!(self.node.class, "SaveImageWebsocket" | "ETN_SendImageWebSocket")
    }
}

/// All of them.
#[derive(Default)]
pub struct Prompts {
    /// The oldest first.
    all: Mutex<Vec<Arc<Prompt>>>,
    numbers: AtomicU64,
}

impl Prompts {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Prompt>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next number, for prompts and for files.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub fn add(&self, prompt: Arc<Prompt>) {
        let mut all = self.all();
        // What nothing is left of is forgotten.
        all.retain(|known| !known.phase().is_over() || known.parts.iter().any(|part| part.job().is_some()));
        let own = all.iter().filter(|known| known.owner == prompt.owner).count();
        let oldest = all
            .iter()
            .position(|known| known.phase().is_over() && (known.owner == prompt.owner || own < MOST_OF_CLIENT));
        if (own >= MOST_OF_CLIENT || all.len() >= MOST)
            && let Some(oldest) = oldest
        {
            all.remove(oldest);
        }
        all.push(prompt);
    }

    /// Those of a client, the oldest first.
    pub fn of(&self, owner: &str) -> Vec<Arc<Prompt>> {
        self.all().iter().filter(|prompt| prompt.owner == owner).cloned().collect()
    }

    /// Whether any is not over.
    pub fn are_open(&self) -> bool {
        self.all().iter().any(|prompt| !prompt.phase().is_over())
    }

    /// Those of a client that are not over.
    pub fn open(&self, owner: &str) -> Vec<Arc<Prompt>> {
        self.of(owner).into_iter().filter(|prompt| !prompt.phase().is_over()).collect()
    }

    /// The file of an image of a client.
    pub fn file(&self, owner: &str, place: &Place) -> Option<Bytes> {
        self.of(owner).iter().flat_map(|prompt| &prompt.parts).find_map(|part| {
            let image = part.saves.iter().find_map(|save| save.places.iter().position(|known| known == place))?;
            let images = part.job()?.snapshot().images;
            images.into_iter().nth(image)?.map(|made| made.file)
        })
    }

    /// What came of the prompts of a client that are over, by their ids: all, or one, or the newest.
    pub fn history(&self, owner: &str, id: Option<&str>, most: usize) -> Value {
        let is_told = |prompt: &Arc<Prompt>| {
            let state = prompt.state();
            state.phase.is_over() && !state.is_forgotten && id.is_none_or(|id| prompt.id == id)
        };
        let told: Vec<_> = self.of(owner).into_iter().filter(is_told).collect();
        let newest = &told[told.len().saturating_sub(most)..];
        newest.iter().map(|prompt| (prompt.id.clone(), prompt.history())).collect::<Map<_, _>>().into()
    }

    /// Tells no more of prompts of a client that are over: one, or all. Their files stay as long as others.
    pub fn forget(&self, owner: &str, id: Option<&str>) {
        for prompt in self.of(owner).iter().filter(|prompt| id.is_none_or(|id| prompt.id == id)) {
            let mut state = prompt.state();
            state.is_forgotten |= state.phase.is_over();
        }
    }
}
