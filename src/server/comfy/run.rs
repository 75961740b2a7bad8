//! Follows a prompt from its jobs to whoever hears of it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flux::input;
use flux::metadata::Metadata;
use flux::output;
use serde_json::{Value, json};

use super::hub::{Frame, message};
use super::prompts::{NodeName, Part, Phase, Prompt};
use crate::server::App;
use crate::server::error::ApiError;
use crate::server::intake;
use crate::server::record::{JobEvent, JobRecord, Status};

/// The quality of previews.
const PREVIEW_QUALITY: u8 = 85;
/// What an image is, for these clients.
const JPEG: u32 = 1;
const PNG: u32 = 2;

/// What a client has left to wait for.
pub fn status(app: &App, owner: &str) -> Value {
    json!({"status": exec_info(app, owner)})
}

pub fn exec_info(app: &App, owner: &str) -> Value {
    json!({"exec_info": {"queue_remaining": app.comfy.prompts.open(owner).len()}})
}

/// Tells all sockets of a client what it has left to wait for.
pub fn tell_status(app: &App, owner: &str) {
    app.comfy.hub.tell(owner, None, &message("status", &status(app, owner)));
}

/// How a prompt ended.
enum End {
    Failed(Box<ApiError>, NodeName),
    Cancelled(NodeName),
}

/// The nodes that come before a sampler, and those behind it that are no outputs.
pub struct Course {
    pub before: Vec<NodeName>,
    pub behind: Vec<NodeName>,
}

/// Follows a prompt to its end: the job of each of its parts.
pub async fn follow(app: Arc<App>, prompt: Arc<Prompt>, jobs: Vec<(Arc<JobRecord>, Course)>) {
    let run = Run { app: &app, prompt: &prompt };
    let mut done = Ok(());
    let mut executed = Vec::new();
    for (part, job) in prompt.parts.iter().zip(&jobs) {
        done = run.part(part, job, &mut executed).await;
        if done.is_err() {
            break;
        }
    }
    let success = run.stamped(json!({}));
    let phase = match done {
        Ok(()) => {
            prompt.told("execution_success", &success);
            Phase::Done
        }
        Err(end) => {
            jobs.iter().for_each(|(job, _)| {
                app.queue.cancel(job);
            });
            run.ended(end, &executed)
        }
    };
    // What came of it can be asked for before anybody hears that it is over.
    prompt.enter(phase);
    if phase == Phase::Done {
        run.tell("execution_success", &success);
    }
    run.tell("executing", &json!({"node": null, "prompt_id": prompt.id}));
    tell_status(&app, &prompt.owner);
}

struct Run<'a> {
    app: &'a Arc<App>,
    prompt: &'a Prompt,
}

impl Run<'_> {
    fn tell(&self, kind: &str, data: &Value) {
        if let Some(client_id) = &self.prompt.client_id {
            self.app.comfy.hub.tell(&self.prompt.owner, Some(client_id), &message(kind, data));
        }
    }

    /// Tells what histories tell, too.
    fn tell_and_keep(&self, kind: &str, data: &Value) {
        self.prompt.told(kind, data);
        self.tell(kind, data);
    }

    fn stamped(&self, data: Value) -> Value {
        let mut data = data;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        data["prompt_id"] = self.prompt.id.clone().into();
        data["timestamp"] = now.into();
        data
    }

    fn executing(&self, node: &NodeName, executed: &mut Vec<String>) {
        let NodeName { id, .. } = node;
        self.tell("executing", &json!({"node": id, "display_node": id, "prompt_id": self.prompt.id}));
        executed.push(id.clone());
    }

    /// Begins the prompt when its first job does.
    fn start(&self) {
        if self.prompt.phase() == Phase::Waiting {
            self.prompt.enter(Phase::Running);
            self.tell_and_keep("execution_start", &self.stamped(json!({})));
            self.tell_and_keep("execution_cached", &self.stamped(json!({"nodes": []})));
        }
    }

    /// Follows a job.
    async fn part(
        &self,
        part: &Part,
        (job, course): &(Arc<JobRecord>, Course),
        executed: &mut Vec<String>,
    ) -> Result<(), End> {
        let mut changes = job.watch();
        let (mut heard, mut is_started, mut steps_done) = (0, false, 0);
        loop {
            for event in job.events_from(heard) {
                heard += 1;
                match event {
                    JobEvent::Started { .. } if !is_started => {
                        is_started = true;
                        self.start();
                        course.before.iter().chain([&part.sampler]).for_each(|node| self.executing(node, executed));
                    }
                    JobEvent::Step { step, steps, .. } if step > 0 => {
                        let all = steps * job.count as u64;
                        steps_done = all.min(steps_done + 1);
                        let of = &part.sampler.id;
                        let data = json!({"value": steps_done, "max": all, "prompt_id": self.prompt.id, "node": of});
                        self.tell("progress", &data);
                    }
                    JobEvent::Preview { file, .. } => self.show(file).await,
                    _ => {}
                }
            }
            if job.status().is_over() && job.events_from(heard).is_empty() {
                break;
            }
            // The record lives as long as this does.
            let _ = changes.changed().await;
        }
        let snapshot = job.snapshot();
        match (snapshot.status, snapshot.error) {
            (Status::Done, _) => {}
            (Status::Failed, Some(error)) => return Err(End::Failed(Box::new(error), part.sampler.clone())),
            _ => return Err(End::Cancelled(part.sampler.clone())),
        }
        self.start();
        course.behind.iter().for_each(|node| self.executing(node, executed));
        for save in &part.saves {
            self.executing(&save.node, executed);
            if let (true, Some(client_id)) = (save.is_sent(), &self.prompt.client_id) {
                for made in snapshot.images.iter().flatten() {
                    let frame = Frame::Image(PNG, made.file.clone());
                    self.app.comfy.hub.tell(&self.prompt.owner, Some(client_id), &frame);
                }
            }
            let id = &save.node.id;
            let output = save.output();
            let data = json!({"node": id, "display_node": id, "output": output, "prompt_id": self.prompt.id});
            self.tell("executed", &data);
        }
        Ok(())
    }

    /// Shows a preview to whoever hears: as a JPEG, since clients take a PNG for a result.
    async fn show(&self, file: Bytes) {
        let Some(client_id) = &self.prompt.client_id else { return };
        if !self.app.comfy.hub.hears(&self.prompt.owner, client_id) {
            return;
        }
        let encode = move || {
            let image = input::read_bytes(&file).map_err(ApiError::from)?;
            output::encode_jpeg(&image, PREVIEW_QUALITY, &Metadata::default()).map_err(ApiError::from)
        };
        // A preview that cannot be had is none.
        if let Ok(file) = intake::blocking(self.app, encode).await {
            self.app.comfy.hub.show(&self.prompt.owner, client_id, &Frame::Image(JPEG, file.into()));
        }
    }

    /// Tells how it ended.
    fn ended(&self, end: End, executed: &[String]) -> Phase {
        self.start();
        match end {
            End::Cancelled(NodeName { id, class }) => {
                let data = json!({"node_id": id, "node_type": class, "executed": executed});
                self.tell_and_keep("execution_interrupted", &self.stamped(data));
                Phase::Interrupted
            }
            End::Failed(error, NodeName { id, class }) => {
                let data = json!({"node_id": id, "node_type": class, "executed": executed,
                    "exception_message": error.message, "exception_type": error.code, "traceback": [],
                    "current_inputs": {}, "current_outputs": []});
                self.tell_and_keep("execution_error", &self.stamped(data));
                Phase::Failed
            }
        }
    }
}
