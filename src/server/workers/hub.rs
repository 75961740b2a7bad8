//! Hands what is heard of jobs to those who follow them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::locked;
use crate::queue::message::{EventMessage, Happened, PlanSaid};
use crate::queue::online::Heard;

/// What is heard of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Started(PlanSaid),
    Step([u64; 2]),
    /// The store has the result.
    Done,
    Failed(String),
    /// No worker could do it.
    Dead(String),
    /// Something may have been missed.
    Missed,
}

/// See the module.
#[derive(Default)]
pub struct Hub {
    followed: Mutex<HashMap<String, UnboundedSender<Told>>>,
}

/// What is heard of one job, as long as this is there.
pub struct Follows {
    hub: Arc<Hub>,
    pub job: String,
    heard: UnboundedReceiver<Told>,
}

impl Follows {
    pub async fn next(&mut self) -> Told {
        // The sender is there as long as this is.
        self.heard.recv().await.unwrap_or(Told::Missed)
    }
}

impl Drop for Follows {
    fn drop(&mut self) {
        locked(&self.hub.followed).remove(&self.job);
    }
}

impl Hub {
    /// Hears of a job from now on.
    pub fn follow(self: &Arc<Self>, job: String) -> Follows {
        let (tells, heard) = unbounded_channel();
        locked(&self.followed).insert(job.clone(), tells);
        Follows { hub: Arc::clone(self), job, heard }
    }

    pub fn hear(&self, heard: Heard) {
        let followed = locked(&self.followed);
        let tell = |job: &str, told: Told| {
            if let Some(tells) = followed.get(job) {
                let _ = tells.send(told);
            }
        };
        match heard {
            Heard::Event(event) => tell(&event.job.clone(), told(event)),
            Heard::Dead { job, reason } => tell(&job, Told::Dead(reason)),
            Heard::Listening => followed.values().for_each(|tells| drop(tells.send(Told::Missed))),
        }
    }
}

fn told(event: EventMessage) -> Told {
    match event.event {
        Happened::Started => Told::Started(event.plan.unwrap_or_default()),
        Happened::Step => Told::Step(event.step.unwrap_or_default()),
        Happened::Done => Told::Done,
        Happened::Failed => Told::Failed(event.error.unwrap_or_else(|| "not told".to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_hears_of_its_own_job_and_all_of_what_was_missed() {
        let hub = Arc::new(Hub::default());
        let (mut one, mut other) = (hub.follow("1".to_string()), hub.follow("2".to_string()));
        let dead = |job: &str| Heard::Dead { job: job.to_string(), reason: job.to_string() };
        hub.hear(dead("2"));
        hub.hear(dead("3"));
        hub.hear(Heard::Listening);
        assert_eq!(one.next().await, Told::Missed);
        assert_eq!([other.next().await, other.next().await], [Told::Dead("2".to_string()), Told::Missed]);
        drop(one);
        assert_eq!(locked(&hub.followed).len(), 1);
    }
}
