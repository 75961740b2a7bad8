//! Who draws when: new jobs together, those that may have ended a worker alone.
//!
//! A worker that dies has all messages that it held delivered once more, the innocent with the one that ended it. So a
//! redelivered job is drawn alone. While it is, an object in the store says so, and how often it was begun: where that
//! is still there, the job ended workers all by itself, lets the innocent go first, and is dead after a few.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// How long the other messages of a dead worker may take to arrive behind the first.
const ARRIVE_WITHIN: Duration = Duration::from_millis(300);

#[derive(Default)]
pub struct Turns {
    lock: Arc<RwLock<()>>,
    innocent: Arc<Innocent>,
}

/// Redelivered jobs that are not known to have ended a worker by themselves.
#[derive(Default)]
struct Innocent {
    count: AtomicUsize,
    fewer: Notify,
}

/// A redelivered job is here, and those that ended a worker let it go first.
pub struct Redelivered(Arc<Innocent>);

impl Drop for Redelivered {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.fewer.notify_waiters();
    }
}

/// A turn, which ends when this is dropped.
pub enum Turn {
    Together { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

impl Turns {
    /// Counts a redelivered job.
    pub fn redelivered(&self) -> Redelivered {
        self.innocent.count.fetch_add(1, Ordering::AcqRel);
        Redelivered(Arc::clone(&self.innocent))
    }

    /// With others.
    pub async fn together(&self) -> Turn {
        Turn::Together { _guard: Arc::clone(&self.lock).read_owned().await }
    }

    /// Once all others have ended, and before new ones begin.
    pub async fn alone(&self) -> Turn {
        Turn::Alone { _guard: Arc::clone(&self.lock).write_owned().await }
    }

    /// [`Turns::alone`], after all innocent ones. Such a job is not innocent itself.
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
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (of, told) = (Arc::clone(&turns), Arc::clone(&order));
        let last = tokio::spawn(async move {
            let _turn = of.last(Some(guilty)).await;
            told.lock().unwrap().push("guilty");
        });
        let turn = turns.alone().await;
        tokio::time::sleep(ARRIVE_WITHIN * 2).await;
        order.lock().unwrap().push("innocent");
        drop(innocent);
        drop(turn);
        last.await.unwrap();
        assert_eq!(*order.lock().unwrap(), ["innocent", "guilty"]);
        let _together = (turns.together().await, turns.together().await);
        assert!(tokio::time::timeout(Duration::from_millis(20), turns.alone()).await.is_err());
    }
}
