//! What waits and what is being made: whether there is room for more, what is in front of each job, and how long all of
//! it takes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::Limits;
use super::error::{ApiError, Result};
use super::fair::FairQueue;
use super::follow::Item;
use super::lanes::Lanes;
use super::rates::Rates;
use super::record::JobRecord;
use super::running::{Move, Pace, Running};
use super::work::Work;

/// What a client is asked to wait where nothing is known.
pub const SOON: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Default)]
pub struct Backlog {
    pub waiting: FairQueue<Item>,
    pub rates: Rates,
    /// A group that waits no more, and that no engine has yet: its model may be being opened.
    pub taken: Vec<Arc<JobRecord>>,
    /// Groups that engines have.
    pub running: Vec<Running>,
    pub groups: u64,
    /// Devices that make groups beside one another.
    pub devices: usize,
    pub pace: Pace,
    /// Since when a model is being opened.
    pub opening: Option<Instant>,
    /// Whether the default model was opened.
    pub is_ready: bool,
    /// Whether nothing more is taken.
    pub is_closed: bool,
    /// What is in front of each job, by its identity, since the last change.
    pub ahead: Option<(Instant, HashMap<String, Ahead>)>,
}

/// What is in front of a job that is not over.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ahead {
    /// Images that are made before its first one; none where that is begun.
    pub images: Option<usize>,
    /// Seconds until it is done, where they are known.
    pub eta_s: Option<f64>,
}

impl Backlog {
    pub fn check_open(&self) -> Result<()> {
        match (self.is_closed, self.is_ready) {
            (true, _) => Err(ApiError::unavailable("draining", "the server is going down", SOON)),
            (_, false) => Err(ApiError::unavailable("loading", "the model is being opened", SOON)),
            _ => Ok(()),
        }
    }

    /// Whether nothing is there to be made.
    pub fn is_empty(&self) -> bool {
        self.waiting.len() == 0 && self.taken.is_empty() && self.running.is_empty()
    }

    /// Requests that wait, and the bytes that they keep.
    pub fn held(&self) -> (usize, usize) {
        let first = self.waiting.iter().filter(|waiting| waiting.item.image == 0);
        first.fold((0, 0), |(requests, bytes), waiting| (requests + 1, bytes + waiting.item.record.input_bytes))
    }

    pub fn check_room(&self, limits: &Limits, bytes: usize) -> Result<()> {
        let (requests, held) = self.held();
        if requests >= limits.queue_max || (requests > 0 && held + bytes > limits.queue_bytes) {
            let wait = self.seconds_left().map_or(SOON, |seconds| Duration::from_secs_f64((seconds / 2.0).min(1e6)));
            return Err(ApiError::too_many("queue_full", "too many requests wait already", wait));
        }
        Ok(())
    }

    /// Errors when too many images of a client would wait.
    pub fn check_share(&self, client: &str, images: usize, most: usize) -> Result<()> {
        let waiting = self.waiting.iter().filter(|waiting| waiting.key == client).count();
        if waiting + images <= most {
            return Ok(());
        }
        if waiting == 0 {
            return Err(ApiError::value("n", format!("{images} images are asked for, and {most} may wait")));
        }
        let message = format!("{waiting} images of this client wait already, and {most} may");
        let wait = self.seconds_left().map_or(SOON, |seconds| Duration::from_secs_f64(seconds.min(1e6)));
        Err(ApiError::too_many("too_many_waiting", message, wait))
    }

    /// Seconds until all is made which is there, where they are known.
    fn seconds_left(&self) -> Option<f64> {
        self.all_given().end()
    }

    /// The devices, with all that is there.
    fn all_given(&self) -> Lanes {
        let mut lanes = self.begun(Instant::now());
        for waiting in self.waiting.iter() {
            lanes.give(self.seconds_of(&waiting.item.work));
        }
        lanes
    }

    /// The devices, with the groups that they have.
    fn begun(&self, now: Instant) -> Lanes {
        let mut lanes = Lanes::new(self.devices);
        for group in &self.running {
            lanes.give(group.seconds_left(now));
        }
        lanes
    }

    fn seconds_of(&self, work: &Work) -> Option<f64> {
        work.ready().and_then(|ready| self.rates.estimate(ready.kind))
    }

    /// Something happens to an image of a group.
    pub fn moves(&mut self, number: u64, to: Move) {
        if let Some(group) = self.running.iter_mut().find(|group| group.number == number) {
            group.moves(to, &mut self.pace, Instant::now());
            self.ahead = None;
        }
    }

    pub fn check_deadline(&self, work: &Work, count: usize) -> Result<()> {
        let Some(left) = work.time_left() else { return Ok(()) };
        let (mut lanes, own) = (self.all_given(), self.seconds_of(work));
        for _ in 0..count {
            lanes.give(own);
        }
        let Some(takes) = lanes.end() else { return Ok(()) };
        if takes <= left.as_secs_f64() { Ok(()) } else { Err(too_late_by(takes)) }
    }

    pub fn look_ahead(&self, now: Instant) -> HashMap<String, Ahead> {
        let all: Vec<_> = self.waiting.iter().collect();
        let mut ahead: HashMap<String, Ahead> = HashMap::new();
        let mut lanes = Lanes::new(self.devices);
        for group in &self.running {
            let eta_s = lanes.give(group.seconds_left(now));
            for record in &group.records {
                ahead.insert(record.id.clone(), Ahead { images: None, eta_s });
            }
        }
        for record in &self.taken {
            ahead.entry(record.id.clone()).or_insert(Ahead { images: Some(0), eta_s: None });
        }
        for (images, place) in self.waiting.order().into_iter().enumerate() {
            let Item { record, work, .. } = &all[place].item;
            let seconds = lanes.give(self.seconds_of(work));
            let known = ahead.entry(record.id.clone()).or_insert(Ahead { images: Some(images), eta_s: seconds });
            // Until its last image.
            known.eta_s = known.eta_s.zip(seconds).map(|(a, b)| a.max(b));
        }
        ahead
    }
}

pub fn too_late() -> ApiError {
    ApiError::too_many("would_miss_deadline", "the job could not be made before its deadline", SOON)
}

fn too_late_by(takes: f64) -> ApiError {
    let message = format!("the job would be done in {takes:.1} s, after its deadline");
    ApiError::too_many("would_miss_deadline", message, Duration::from_secs_f64(takes.min(1e6)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_on_its_way_to_an_engine_is_there_and_a_closed_queue_takes_nothing() {
        let mut state = Backlog { is_ready: true, ..Backlog::default() };
        assert!(state.check_open().is_ok() && state.is_empty());
        state.taken.push(JobRecord::sample(1));
        assert!(!state.is_empty());
        assert_eq!(state.look_ahead(Instant::now())["id"].images, Some(0));
        state.is_closed = true;
        assert_eq!(state.check_open().unwrap_err().code, "draining");
    }
}
