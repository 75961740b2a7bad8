//! Events of jobs, sent by a worker.

use lapin::BasicProperties;

use super::Worker;
use super::draw::JobProgress;
use crate::broker::{Link, Outgoing};
use crate::message::{EventMessage, Happened, JobMessage, PlanSaid, VERSION};
use crate::names::{EVENTS, Lane};

impl Worker {
    /// Sends an event of a job.
    pub(super) async fn send_event(&self, link: &Link, job: &JobMessage, happened: Happened) {
        self.publish_event(link, event(job, happened)).await;
    }

    /// Sends the progress of a job. Steps are sent for online jobs only.
    pub(super) async fn send_progress(&self, link: &Link, job: &JobMessage, progress: JobProgress, plan: PlanSaid) {
        let is_online = job.priority == Lane::Online;
        match progress {
            JobProgress::Started => {
                let plan = is_online.then_some(plan);
                self.publish_event(link, EventMessage { plan, ..event(job, Happened::Started) }).await;
            }
            JobProgress::Step(step) if is_online => {
                self.publish_event(link, EventMessage { step: Some(step), ..event(job, Happened::Step) }).await;
            }
            JobProgress::Step(_) => {}
        }
    }

    /// Publishes an event, which may be lost.
    pub(super) async fn publish_event(&self, link: &Link, told: EventMessage) {
        let Ok(bytes) = serde_json::to_vec(&told) else { return };
        let key = format!("{}.{}", told.job, told.event.name());
        link.publish_unconfirmed(Outgoing { exchange: EVENTS, key, bytes, properties: BasicProperties::default() })
            .await;
    }
}

/// Returns an event without an error, a plan or a step.
pub fn event(job: &JobMessage, event: Happened) -> EventMessage {
    let JobMessage { job: name, batch, key, .. } = job;
    let (error, plan, step) = (None, None, None);
    EventMessage { v: VERSION, job: name.clone(), batch: batch.clone(), event, key: *key, error, plan, step }
}
