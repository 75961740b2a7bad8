//! Forwards events of jobs to the tasks that follow them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use flux_queue::message::{EventMessage, Happened, PlanSaid};
use flux_queue::online::QueueEvent;

/// An event of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    Started(PlanSaid),
    Step([u64; 2]),
    /// The result is in the store.
    Done,
    Failed(String),
    /// The job was dead-lettered.
    Dead(String),
    /// Events may have been missed.
    Missed,
}

/// The followed jobs. See the [module](self).
#[derive(Default)]
pub struct Hub {
    followed: Mutex<HashMap<String, UnboundedSender<WorkerEvent>>>,
}

/// A subscription to a job's events, which ends on drop.
pub struct Follows {
    hub: Arc<Hub>,
    pub job: String,
    events: UnboundedReceiver<WorkerEvent>,
}

impl Follows {
    pub async fn next(&mut self) -> WorkerEvent {
        // The sender lives as long as this subscription.
        self.events.recv().await.unwrap_or(WorkerEvent::Missed)
    }
}

impl Drop for Follows {
    fn drop(&mut self) {
        self.hub.followed.lock().remove(&self.job);
    }
}

impl Hub {
    /// Subscribes to the events of a job.
    pub fn follow(self: &Arc<Self>, job: String) -> Follows {
        let (sender, events) = unbounded_channel();
        self.followed.lock().insert(job.clone(), sender);
        Follows { hub: Arc::clone(self), job, events }
    }

    pub fn receive(&self, event: QueueEvent) {
        let followed = self.followed.lock();
        let send = |job: &str, event: WorkerEvent| {
            if let Some(sender) = followed.get(job) {
                let _ = sender.send(event);
            }
        };
        match event {
            QueueEvent::Event(event) => send(&event.job.clone(), worker_event(event)),
            QueueEvent::Dead { job, reason } => send(&job, WorkerEvent::Dead(reason)),
            QueueEvent::Listening => followed.values().for_each(|sender| drop(sender.send(WorkerEvent::Missed))),
        }
    }
}

fn worker_event(event: EventMessage) -> WorkerEvent {
    match event.event {
        Happened::Started => WorkerEvent::Started(event.plan.unwrap_or_default()),
        Happened::Step => WorkerEvent::Step(event.step.unwrap_or_default()),
        Happened::Done => WorkerEvent::Done,
        Happened::Failed => WorkerEvent::Failed(event.error.unwrap_or_else(|| "unknown error".to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_hears_of_its_own_job_and_all_of_what_was_missed() {
        let hub = Arc::new(Hub::default());
        let (mut one, mut other) = (hub.follow("1".to_string()), hub.follow("2".to_string()));
        let dead = |job: &str| QueueEvent::Dead { job: job.to_string(), reason: job.to_string() };
        hub.receive(dead("2"));
        hub.receive(dead("3"));
        hub.receive(QueueEvent::Listening);
        assert_eq!(one.next().await, WorkerEvent::Missed);
        assert_eq!([other.next().await, other.next().await], [WorkerEvent::Dead("2".to_string()), WorkerEvent::Missed]);
        drop(one);
        assert_eq!(hub.followed.lock().len(), 1);
    }
}
