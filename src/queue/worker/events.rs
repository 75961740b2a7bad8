//! What a worker tells of its jobs.

use lapin::BasicProperties;

use super::Worker;
use super::draw::Heard;
use crate::queue::broker::{Link, Outgoing};
use crate::queue::message::{EventMessage, Happened, JobMessage, PlanSaid, VERSION};
use crate::queue::names::{EVENTS, Lane};

impl Worker {
    /// Tells what happened to a job.
    pub(super) async fn tell(&self, link: &Link, job: &JobMessage, happened: Happened) {
        self.tell_all(link, event(job, happened)).await;
    }

    /// Tells how far a job is. Of a batch nobody hears each step.
    pub(super) async fn tell_heard(&self, link: &Link, job: &JobMessage, heard: Heard, plan: PlanSaid) {
        let is_online = job.priority == Lane::Online;
        match heard {
            Heard::Started => {
                let plan = is_online.then_some(plan);
                self.tell_all(link, EventMessage { plan, ..event(job, Happened::Started) }).await;
            }
            Heard::Step(step) if is_online => {
                self.tell_all(link, EventMessage { step: Some(step), ..event(job, Happened::Step) }).await;
            }
            Heard::Step(_) => {}
        }
    }

    /// Tells an event, where somebody may hear it.
    pub(super) async fn tell_all(&self, link: &Link, told: EventMessage) {
        let Ok(bytes) = serde_json::to_vec(&told) else { return };
        let key = format!("{}.{}", told.job, told.event.name());
        link.tell(Outgoing { exchange: EVENTS, key, bytes, properties: BasicProperties::default() }).await;
    }
}

/// An event of a job, without an error, a plan or a step.
pub fn event(job: &JobMessage, event: Happened) -> EventMessage {
    let JobMessage { job: name, batch, key, .. } = job;
    let (error, plan, step) = (None, None, None);
    EventMessage { v: VERSION, job: name.clone(), batch: batch.clone(), event, key: *key, error, plan, step }
}
