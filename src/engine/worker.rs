//! The thread of a device, which takes batches and generates their images as long as the engine lives.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::executor::Executor;
use super::running::RunningBatch;
use super::schedule::Scheduler;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;

/// Polling interval of a device that does not respond.
const POLL: Duration = Duration::from_millis(50);

/// The scheduler that a device takes batches from, and the number of the device there.
pub(super) struct Seat(Mutex<(Arc<Scheduler>, usize)>);

impl Seat {
    pub(super) fn new(scheduler: &Arc<Scheduler>, number: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new((Arc::clone(scheduler), number))))
    }

    pub(super) fn get(&self) -> (Arc<Scheduler>, usize) {
        self.0.lock().clone()
    }

    /// Lets the device take batches from another scheduler, once the previous one has none left.
    pub(super) fn change(&self, scheduler: &Arc<Scheduler>, number: usize) {
        *self.0.lock() = (Arc::clone(scheduler), number);
    }
}

/// Starts the thread of a device. Errors include its name if there are several devices.
///
/// Errors if the system starts no thread.
pub(super) fn start(seat: Arc<Seat>, device: Arc<dyn Executor>) -> Result<JoinHandle<()>> {
    let name = device.name().to_string();
    let serve = move || {
        loop {
            let (scheduler, number) = seat.get();
            while wait_for(number, &*device, &scheduler)
                && let Some(batch) = scheduler.take(number)
            {
                run(&*device, number, &scheduler, RunningBatch::new(Arc::clone(&scheduler), batch));
            }
            if Arc::ptr_eq(&scheduler, &seat.get().0) {
                return;
            }
        }
    };
    thread::Builder::new().name(name).spawn(serve).map_err(|e| Error::no_thread(&e))
}

/// Generates a batch.
fn run(device: &dyn Executor, number: usize, scheduler: &Scheduler, batch: RunningBatch) {
    let making = Arc::new(batch);
    // A session that panicked is not used again, and a model guards the state that its sessions share.
    let made = panic::catch_unwind(AssertUnwindSafe(|| device.make(&making)));
    let made = made.unwrap_or_else(|panic| {
        Err(memory::failure(&*panic).unwrap_or_else(|| Error::new("a device panicked, which is a bug in flux")))
    });
    // The errors of a group already include the name of a device.
    let named = scheduler.has_several(number) && !device.is_group();
    let made = made.map_err(|e| if named && e.kind() != ErrorKind::Cancelled { e.on(device.name()) } else { e });
    scheduler.end(&making.batch.lock(), making.made(), made);
}

/// Waits while the device is busy with a batch that has ended with an error. If no device responds, it does not wait:
/// the next batch reports this. Returns `false` if the device starts nothing more.
fn wait_for(number: usize, device: &dyn Executor, scheduler: &Scheduler) -> bool {
    while device.is_late() {
        scheduler.set_late(number, true);
        if scheduler.is_closed(number) {
            return false;
        }
        if scheduler.all_are_late(number) {
            return true;
        }
        thread::sleep(POLL);
    }
    scheduler.set_late(number, false);
    true
}
