//! Scheduling of jobs: new ones run together, and those that may have killed a worker run alone.
//!
//! If a worker dies, the broker redelivers all messages that it held, innocent ones as well as the one that killed it.
//! So a redelivered job runs alone. Meanwhile an object in the store counts its attempts. If that object exists before
//! a job starts, the job has killed a worker while it ran alone. It then waits until no innocent job is left, and is
//! dead-lettered after a few attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// The time within which the other messages of a dead worker arrive after the first.
const ARRIVE_WITHIN: Duration = Duration::from_millis(300);

#[derive(Default)]
pub struct Turns {
    lock: Arc<RwLock<()>>,
    innocent: Arc<Innocent>,
}

/// Redelivered jobs that are not known to have killed a worker alone.
#[derive(Default)]
struct Innocent {
    count: AtomicUsize,
    fewer: Notify,
}

/// A guard that counts a redelivered job as innocent until it is dropped. Jobs that killed a worker wait for it.
pub struct Redelivered(Arc<Innocent>);

impl Drop for Redelivered {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.fewer.notify_waiters();
    }
}

/// Permission to run, released on drop.
pub enum Turn {
    Together { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

impl Turns {
    /// Counts a redelivered job as innocent.
    pub fn redelivered(&self) -> Redelivered {
        self.innocent.count.fetch_add(1, Ordering::AcqRel);
        Redelivered(Arc::clone(&self.innocent))
    }

    /// Waits for permission to run together with other jobs.
    pub async fn together(&self) -> Turn {
        Turn::Together { _guard: Arc::clone(&self.lock).read_owned().await }
    }

    /// Waits until all running jobs have ended. New jobs wait for this one.
    pub async fn alone(&self) -> Turn {
        Turn::Alone { _guard: Arc::clone(&self.lock).write_owned().await }
    }

    /// As [`Turns::alone`], but waits until no innocent job is left. Drops the job's `own` guard.
    pub async fn last(&self, own: Option<Redelivered>) -> Turn {
        drop(own);
        tokio::time::sleep(ARRIVE_WITHIN).await;
        loop {
            let fewer = self.innocent.fewer.notified();
            if self.innocent.count.load(Ordering::Acquire) == 0 {
                return self.alone().await;
            }
            fewer.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_ended_a_worker_goes_last_and_alone() {
        let turns = Arc::new(Turns::default());
        let (guilty, innocent) = (turns.redelivered(), turns.redelivered());
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let (of, told) = (Arc::clone(&turns), Arc::clone(&order));
        let last = tokio::spawn(async move {
            let _turn = of.last(Some(guilty)).await;
            told.lock().push("guilty");
        });
        let turn = turns.alone().await;
        tokio::time::sleep(ARRIVE_WITHIN * 2).await;
        order.lock().push("innocent");
        drop(innocent);
        drop(turn);
        last.await.unwrap();
        assert_eq!(*order.lock(), ["innocent", "guilty"]);
        let _together = (turns.together().await, turns.together().await);
        assert!(tokio::time::timeout(Duration::from_millis(20), turns.alone()).await.is_err());
    }
}
