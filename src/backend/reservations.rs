//! Reservations of device memory for running work, so that no two pieces of work count the same bytes as free.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::Result;

/// Polling interval for cancellation of work that waits for memory.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// A device of this process: its kind, and its number within the kind.
pub type DeviceKey = (&'static str, usize);

/// The reservations on one device, of all backends that use it.
#[derive(Default)]
pub struct Reservations {
    claims: Mutex<Vec<Entry>>,
    ended: Condvar,
}

/// The owner of a claim.
#[derive(Clone)]
pub struct Claimant {
    /// Identifies the memory pool from which backends allocate.
    pub pool: usize,
    /// Identifies the model; work of one model shares weights.
    pub model: usize,
    /// Returns the bytes that are allocated from the pool.
    pub used: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// Bytes that work may have allocated at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Claim {
    /// Weights and other memory that all work of a model shares.
    pub shared: u64,
    /// Memory of this work alone.
    pub own: u64,
}

/// Bytes that other claims reserve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promised {
    /// In the same pool, allocated or not.
    pub in_pool: u64,
    /// In other pools, beyond their allocated bytes.
    pub in_others: u64,
    /// Memory shared by work of the same model; it doesn't change while that work runs.
    pub shared: u64,
}

struct Entry {
    id: u64,
    by: Claimant,
    claim: Claim,
    thread: ThreadId,
}

/// A claim that is released on drop.
pub struct Reservation {
    device: Arc<Reservations>,
    by: Claimant,
    id: u64,
}

impl Reservations {
    /// Returns the reservations of a device.
    pub fn for_device(device: DeviceKey) -> Arc<Self> {
        static DEVICES: LazyLock<Mutex<HashMap<DeviceKey, Arc<Reservations>>>> = LazyLock::new(Mutex::default);
        Arc::clone(DEVICES.lock().entry(device).or_default())
    }

    /// Returns the bytes that claimants other than `by` reserve.
    pub fn promised(&self, by: &Claimant) -> Promised {
        promised(&self.claims.lock(), by, None)
    }

    /// Makes a claim. `decide` gets the bytes reserved by others, and returns the claim, or that too little memory is
    /// left. Then it is called again after other work has ended, as long as work of another thread runs and `wait`
    /// returns no error. Returns `None` if there is nothing to wait for, or no `wait`.
    ///
    /// Errors as `wait`.
    pub fn reserve<T>(
        self: &Arc<Self>,
        by: &Claimant,
        mut decide: impl FnMut(Promised) -> Option<(T, Claim)>,
        wait: Option<&dyn Fn() -> Result<()>>,
    ) -> Result<Option<(T, Reservation)>> {
        let thread = thread::current().id();
        let mut claims = self.claims.lock();
        loop {
            if let Some((decided, claim)) = decide(promised(&claims, by, None)) {
                let id = claims.last().map_or(0, |last| last.id + 1);
                claims.push(Entry { id, by: by.clone(), claim, thread });
                return Ok(Some((decided, Reservation { device: Arc::clone(self), by: by.clone(), id })));
            }
            let Some(wait) = wait.filter(|_| claims.iter().any(|entry| entry.thread != thread)) else {
                return Ok(None);
            };
            wait()?;
            self.ended.wait_for(&mut claims, CHECK_EVERY);
        }
    }
}

impl Reservation {
    /// Returns the bytes that other claims reserve.
    pub fn promised(&self) -> Promised {
        promised(&self.device.claims.lock(), &self.by, Some(self.id))
    }

    /// Changes the bytes of this work alone to `own`.
    pub fn resize(&self, own: u64) {
        let mut claims = self.device.claims.lock();
        if let Some(entry) = claims.iter_mut().find(|entry| entry.id == self.id) {
            entry.claim.own = own;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.device.claims.lock().retain(|entry| entry.id != self.id);
        self.device.ended.notify_all();
    }
}

fn promised(claims: &[Entry], by: &Claimant, except: Option<u64>) -> Promised {
    let mut found = Promised::default();
    // Shared bytes by pool and model; bytes beyond these by pool.
    let (mut shared, mut pools) = (HashMap::new(), HashMap::new());
    for Entry { by: other, claim, .. } in claims.iter().filter(|entry| Some(entry.id) != except) {
        let most: &mut u64 = shared.entry((other.pool, other.model)).or_default();
        *most = claim.shared.max(*most);
        pools.entry(other.pool).or_insert((0, other)).0 += claim.own;
    }
    found.shared = shared.remove(&(by.pool, by.model)).unwrap_or_default();
    for ((pool, _), bytes) in shared {
        pools.entry(pool).and_modify(|(promised, _)| *promised += bytes);
    }
    for (pool, (bytes, other)) in pools {
        if pool == by.pool {
            found.in_pool = bytes;
        } else {
            found.in_others += bytes.saturating_sub((other.used)());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn by(pool: usize, model: usize) -> Claimant {
        Claimant { pool, model, used: Arc::new(|| 10) }
    }

    fn claim(device: &Arc<Reservations>, by: &Claimant, shared: u64, own: u64) -> Reservation {
        device.reserve(by, |_| Some(((), Claim { shared, own })), None).unwrap().unwrap().1
    }

    #[test]
    fn what_a_model_shares_counts_once_and_what_is_allocated_elsewhere_is_not_promised() {
        let device = Arc::<Reservations>::default();
        let (first, second) = (claim(&device, &by(0, 0), 100, 7), claim(&device, &by(0, 0), 100, 8));
        let promised = |pool, model| device.promised(&by(pool, model));
        assert_eq!(promised(0, 0), Promised { in_pool: 15, in_others: 0, shared: 100 });
        assert_eq!(promised(0, 1), Promised { in_pool: 115, in_others: 0, shared: 0 });
        assert_eq!(promised(1, 0), Promised { in_pool: 0, in_others: 105, shared: 0 });
        assert_eq!(first.promised(), Promised { in_pool: 8, in_others: 0, shared: 100 });
        first.resize(20);
        assert_eq!(second.promised().in_pool, 20);
        drop(first);
        assert_eq!(promised(0, 0).in_pool, 8);
        drop(second);
        assert_eq!(promised(0, 0), Promised::default());
    }

    #[test]
    fn work_waits_for_that_of_other_threads_and_not_for_its_own() {
        let device = Arc::<Reservations>::default();
        let fits = |promised: Promised| (promised.in_pool == 0).then_some(((), Claim { shared: 0, own: 1 }));
        let held = claim(&device, &by(0, 0), 0, 1);
        assert!(device.reserve(&by(0, 0), fits, Some(&|| Ok(()))).unwrap().is_none(), "it would wait for itself");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| device.reserve(&by(0, 0), fits, Some(&|| Ok(()))).unwrap().is_some());
            let cancelled = scope.spawn(|| device.reserve(&by(0, 0), fits, Some(&|| Err(Error::cancelled()))).is_err());
            assert!(cancelled.join().unwrap());
            assert!(!waiting.is_finished());
            drop(held);
            assert!(waiting.join().unwrap());
        });
    }
}
