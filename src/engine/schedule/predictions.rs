//! Predictions of a scheduler: positions, remaining times, and batches that hang.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::estimate::{Ahead, Cost, Lanes, is_any_late};
use super::super::job::JobId;
use super::{Scheduler, State};

/// A prediction is reused for this multiple of the time that it took, regardless of changes. So predictions never take
/// more than a small part of a core.
const REUSE: u32 = 20;

/// The positions of jobs.
pub(super) struct Predicted {
    version: u64,
    at: Instant,
    took: Duration,
    ahead: HashMap<JobId, Ahead>,
}

impl Scheduler {
    /// Returns the position of the first of these jobs, and the time at which all of them are done. `None` if none is
    /// left.
    pub fn ahead(&self, ids: &[JobId]) -> Option<Ahead> {
        let mut newest = self.predicted.lock();
        let now = Instant::now();
        let is_young = |known: &Predicted| {
            ids.iter().any(|id| known.ahead.contains_key(id))
                && now.saturating_duration_since(known.at) < known.took * REUSE
        };
        if !newest.as_ref().is_some_and(is_young) {
            let state = self.state.lock();
            if newest.as_ref().is_none_or(|known| known.version != state.version) {
                let (version, ahead) = (state.version, state.predict(now));
                *newest = Some(Predicted { version, at: now, took: now.elapsed(), ahead });
            }
        }
        let Predicted { at, ahead, .. } = newest.as_ref()?;
        let passed = now.saturating_duration_since(*at).as_secs_f64();
        let both = |a: Ahead, b: Ahead| Ahead {
            images: a.images.zip(b.images).map(|(a, b)| a.min(b)),
            eta_s: a.eta_s.zip(b.eta_s).map(|(a, b)| a.max(b)),
        };
        let known = ids.iter().filter_map(|id| ahead.get(id)).copied().reduce(both)?;
        Some(Ahead { eta_s: known.eta_s.map(|seconds| (seconds - passed).max(0.0)), ..known })
    }

    /// Returns the estimated seconds until all jobs are done, if known.
    pub fn seconds_left(&self) -> Option<f64> {
        self.seconds_with(None)
    }

    /// Returns the estimated seconds until all jobs and more images of one cost are done, if known.
    pub(in crate::engine) fn seconds_with(&self, more: Option<(Cost, usize)>) -> Option<f64> {
        let state = self.state.lock();
        let mut lanes = state.lanes(Instant::now()).0;
        for job in state.queue.iter() {
            lanes.give(state.seconds(job.id).map(|seconds| seconds * job.images as f64));
        }
        if let Some((cost, images)) = more {
            (0..images).for_each(|_| {
                lanes.give(state.rates.estimate(cost));
            });
        }
        lanes.end()
    }

    /// Returns `true` if a batch has made no progress for too long. If no image was timed, `start` is the time that a
    /// small image may take. Does not wait for the lock.
    pub fn is_stuck(&self, start: Duration) -> bool {
        self.state.try_lock().is_some_and(|state| {
            is_any_late(state.running.iter().map(|running| &running.pace), &state.rates, start, Instant::now())
        })
    }
}

impl State {
    /// Returns the devices with all batches in progress assigned, and the time at which each of these batches is done.
    fn lanes(&self, now: Instant) -> (Lanes, Vec<Option<f64>>) {
        let mut devices: HashMap<usize, usize> = HashMap::new();
        for device in self.devices.iter().filter(|device| !device.is_gone) {
            *devices.entry(device.model).or_default() += 1;
        }
        let mut lanes = Lanes::new(devices.into_values().max().unwrap_or(1));
        let ends = self.running.iter().map(|running| lanes.give(running.pace.seconds_left(now))).collect();
        (lanes, ends)
    }

    /// Returns the position of each job.
    fn predict(&self, now: Instant) -> HashMap<JobId, Ahead> {
        let (mut lanes, ends) = self.lanes(now);
        let mut ahead: HashMap<JobId, Ahead> = HashMap::new();
        for (running, eta_s) in self.running.iter().zip(ends) {
            ahead.extend(running.jobs.iter().map(|id| (*id, Ahead { images: None, eta_s })));
        }
        let mut images = 0;
        for job in self.queue.order() {
            let eta_s = lanes.give(self.seconds(job.id).map(|seconds| seconds * job.images as f64));
            // A job is done with its last image.
            ahead
                .entry(job.id)
                .and_modify(|known| known.eta_s = eta_s)
                .or_insert(Ahead { images: Some(images), eta_s });
            images += job.images;
        }
        ahead
    }
}
