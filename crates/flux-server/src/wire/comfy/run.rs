//! Follows a prompt's jobs, and sends events to clients.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flux::engine::EmbeddedFiles;
use flux::input;
use flux::metadata::Metadata;
use flux::output;
use flux::stage::CancelFlag;
use serde_json::{Value, json};

use super::drawings::own_size;
use super::hub::{Frame, message};
use super::images::Picture;
use super::prompts::{NodeName, Part, Phase, Prompt, Save};
use crate::App;
use crate::http::error::{ApiError, cancelled};
use crate::jobs::admission::Estimate;
use crate::jobs::intake;
use crate::jobs::record::{JobEvent, JobRecord, Owner, Status};
use crate::jobs::request::{Asked, ENLARGED};
use crate::jobs::uploads::Folder;

/// The JPEG quality of previews.
const PREVIEW_QUALITY: u8 = 85;
/// Image formats of binary messages.
const JPEG: u32 = 1;
const PNG: u32 = 2;

/// Returns the number of the client's unfinished prompts.
pub fn status(app: &App, owner: &str) -> Value {
    json!({"status": exec_info(app, owner)})
}

pub fn exec_info(app: &App, owner: &str) -> Value {
    json!({"exec_info": {"queue_remaining": app.comfy.prompts.open(owner).len()}})
}

/// Sends the number of unfinished prompts to all sockets of a client.
pub fn send_status(app: &App, owner: &str) {
    app.comfy.hub.send(owner, None, &message("status", &status(app, owner)));
}

/// The end of an unsuccessful prompt.
enum End {
    Failed(Box<ApiError>, NodeName),
    Cancelled(NodeName),
}

/// The changes of an output node, and its files.
type Changed = (Arc<Picture>, Vec<Bytes>);

/// The nodes before a sampler, and the nodes after it that are no outputs.
pub struct Course {
    pub before: Vec<NodeName>,
    pub behind: Vec<NodeName>,
}

/// Follows the jobs of a prompt to their end.
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
            prompt.record_event("execution_success", &success);
            Phase::Done
        }
        Err(end) => {
            jobs.iter().for_each(|(job, _)| {
                app.queue.cancel(job);
            });
            run.ended(end, &executed)
        }
    };
    // The results must be available before clients learn that the prompt has ended.
    prompt.enter(phase);
    if phase == Phase::Done {
        run.send("execution_success", &success);
    }
    run.send("executing", &json!({"node": null, "prompt_id": prompt.id}));
    send_status(&app, &prompt.owner);
}

struct Run<'a> {
    app: &'a Arc<App>,
    prompt: &'a Prompt,
}

impl Run<'_> {
    fn send(&self, kind: &str, data: &Value) {
        if let Some(client_id) = &self.prompt.client_id {
            self.app.comfy.hub.send(&self.prompt.owner, Some(client_id), &message(kind, data));
        }
    }

    /// Sends an event that histories contain, too.
    fn send_and_record(&self, kind: &str, data: &Value) {
        self.prompt.record_event(kind, data);
        self.send(kind, data);
    }

    fn stamped(&self, data: Value) -> Value {
        let mut data = data;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        data["prompt_id"] = self.prompt.id.clone().into();
        data["timestamp"] = now.into();
        data
    }

    /// Sends the event of a node, once.
    fn executing(&self, node: &NodeName, executed: &mut Vec<String>) {
        let NodeName { id, .. } = node;
        if executed.contains(id) {
            return;
        }
        self.send("executing", &json!({"node": id, "display_node": id, "prompt_id": self.prompt.id}));
        executed.push(id.clone());
    }

    /// Starts the prompt when its first job starts.
    fn start(&self) {
        if self.prompt.phase() == Phase::Waiting {
            self.prompt.enter(Phase::Running);
            self.send_and_record("execution_start", &self.stamped(json!({})));
            self.send_and_record("execution_cached", &self.stamped(json!({"nodes": []})));
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
                        self.send("progress", &data);
                    }
                    JobEvent::Preview { file, .. } => self.show(file).await,
                    _ => {}
                }
            }
            if job.status().is_over() && job.events_from(heard).is_empty() {
                break;
            }
            // Cannot fail, since the record lives as long as this task.
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
        let files: Vec<Bytes> = snapshot.images.into_iter().flatten().map(|made| made.file).collect();
        let mut known = Vec::new();
        for save in &part.saves {
            self.executing(&save.node, executed);
            let changed = self.changed(save, &files, (&job.owner, &mut known)).await.map_err(|error| match error {
                error if error.is_cancelled() => End::Cancelled(save.node.clone()),
                error => End::Failed(Box::new(error), save.node.clone()),
            })?;
            if let (true, Some(client_id)) = (save.is_sent(), &self.prompt.client_id) {
                for file in changed.as_ref().unwrap_or(&files) {
                    let frame = Frame::Image(PNG, file.clone());
                    self.app.comfy.hub.send(&self.prompt.owner, Some(client_id), &frame);
                }
            }
            let id = &save.node.id;
            let output = save.output();
            let data = json!({"node": id, "display_node": id, "output": output, "prompt_id": self.prompt.id});
            self.send("executed", &data);
        }
        Ok(())
    }

    /// Returns the images of an output node with changes, and stores them among the uploads.
    ///
    /// Errors if a change fails, or there is no room.
    async fn changed(
        &self,
        save: &Save,
        files: &[Bytes],
        (owner, known): (&Owner, &mut Vec<Changed>),
    ) -> Result<Option<Vec<Bytes>>, ApiError> {
        let Some(shape) = &save.shape else { return Ok(None) };
        // Outputs often share their changes, such as a preview and a file.
        let made = known.iter().find(|(known, _)| **known == **shape).map(|(_, made)| made.clone());
        let is_new = made.is_none();
        let mut changed = Vec::new();
        for (index, (file, place)) in files.iter().zip(&save.places).enumerate() {
            let file = match &made {
                Some(made) => made[index].clone(),
                None => {
                    let told = |job: &Arc<JobRecord>| self.prompt.set_enlarging(job);
                    make(self.app, owner, shape.with_file(file.clone()), file, told).await?
                }
            };
            let (prompt, kept_bytes) = (self.prompt, self.app.config.limits.kept_bytes);
            let kept = if place.folder == Folder::Krita { file.clone() } else { prompt.file_of(&file) };
            self.app.store.add_upload(&prompt.owner, place.clone(), kept, kept_bytes)?;
            changed.push(file);
        }
        if is_new {
            known.push((Arc::clone(shape), changed.clone()));
        }
        Ok(Some(changed))
    }

    /// Sends a preview as JPEG, since clients take a PNG for a result.
    async fn show(&self, file: Bytes) {
        let Some(client_id) = &self.prompt.client_id else { return };
        if !self.app.comfy.hub.has_socket(&self.prompt.owner, client_id) {
            return;
        }
        let size = input::file_size(&file).unwrap_or_default();
        let estimate = Estimate::decode(size) + Estimate::scale(Estimate::decode(size).decoded);
        let encode = move |_: &CancelFlag| {
            let image = input::read_bytes(&file).map_err(ApiError::from)?;
            output::encode_jpeg(&image, PREVIEW_QUALITY, &Metadata::default()).map_err(ApiError::from)
        };
        // A failed preview is dropped.
        if let Ok(file) = self.app.admission.permit(&self.prompt.owner).answer(estimate, encode).await {
            self.app.comfy.hub.show(&self.prompt.owner, client_id, &Frame::Image(JPEG, file.into()));
        }
    }

    /// Sends the event for an unsuccessful end.
    fn ended(&self, end: End, executed: &[String]) -> Phase {
        self.start();
        match end {
            End::Cancelled(NodeName { id, class }) => {
                let data = json!({"node_id": id, "node_type": class, "executed": executed});
                self.send_and_record("execution_interrupted", &self.stamped(data));
                Phase::Interrupted
            }
            End::Failed(error, NodeName { id, class }) => {
                let data = json!({"node_id": id, "node_type": class, "executed": executed,
                    "exception_message": error.message, "exception_type": error.code, "traceback": [],
                    "current_inputs": {}, "current_outputs": []});
                self.send_and_record("execution_error", &self.stamped(data));
                Phase::Failed
            }
        }
    }
}

/// Returns the file of the first image of a job, at its end.
///
/// Errors if the job fails or is cancelled.
pub async fn file_of(job: &JobRecord) -> Result<Bytes, ApiError> {
    job.end().await;
    let snapshot = job.snapshot();
    let made = snapshot.images.into_iter().next().flatten();
    Ok(made.ok_or_else(|| snapshot.error.unwrap_or_else(cancelled))?.file)
}

/// Returns the file of a changed image, with the texts of the file `recipe`. `told` receives the jobs that enlarge it.
///
/// Errors if a change fails.
pub async fn make(
    app: &Arc<App>,
    owner: &Owner,
    mut picture: Arc<Picture>,
    recipe: &Bytes,
    told: impl Fn(&Arc<JobRecord>),
) -> Result<Bytes, ApiError> {
    let mut recipe = recipe.clone();
    while let Some((from, upscaler, _)) = picture.first_enlargement() {
        let file = encoded(app, owner, Arc::clone(from), recipe).await?;
        let files = EmbeddedFiles::from([(PathBuf::from(ENLARGED), file.to_vec())]);
        let job = intake::continued(app, owner, Asked::enlarging(own_size(upscaler), files))?;
        told(&job.job);
        job.taken().await?;
        recipe = file_of(&job).await?;
        picture = picture.with_first_enlarged(Some(&recipe));
    }
    encoded(app, owner, picture, recipe).await
}

async fn encoded(app: &App, owner: &Owner, picture: Arc<Picture>, recipe: Bytes) -> Result<Bytes, ApiError> {
    if picture.is_whole() {
        return Ok(recipe);
    }
    // Decoded, changed and encoded.
    let decode = Estimate::decode(input::file_size(&recipe).unwrap_or_default());
    let estimate = decode + Estimate::scale(picture.changed_pixels().saturating_mul(4));
    let make = move |cancel: &CancelFlag| {
        let file = picture.to_file(cancel).map_err(|broken| ApiError::internal(broken.details))?;
        Ok(Bytes::from(output::with_png_texts_of(&file, &recipe)))
    };
    app.admission.permit(&owner.key).answer(estimate, make).await
}
