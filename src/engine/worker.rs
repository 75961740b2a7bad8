//! The thread of a device: it takes batches and makes them, as long as the engine lives.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::executor::{Executor, Making};
use super::schedule::Schedule;
use crate::error::{Error, ErrorKind, Result};

/// How often a device that does not answer is looked at.
const POLL: Duration = Duration::from_millis(50);

/// Starts the thread of device `number`, whose errors have its name where there are several devices.
///
/// Errors when the system starts no thread.
pub(super) fn start(number: usize, device: Arc<dyn Executor>, schedule: Arc<Schedule>) -> Result<JoinHandle<()>> {
    let name = device.name().to_string();
    let serve = move || {
        while wait_for(number, &*device, &schedule)
            && let Some(batch) = schedule.take(number)
        {
            let making = Arc::new(Making::new(Arc::clone(&schedule), batch));
            // A session that panicked is not used again, and a model guards what its sessions share.
            let made = panic::catch_unwind(AssertUnwindSafe(|| device.make(&making)));
            let made = made.unwrap_or_else(|_| Err(Error::new("a device panicked, which is a defect of flux")));
            // A group names its devices itself.
            let named = schedule.has_several() && !device.is_group();
            let made =
                made.map_err(|e| if named && e.kind() != ErrorKind::Cancelled { e.on(device.name()) } else { e });
            schedule.end(&making.batch(), making.made(), made);
        }
    };
    thread::Builder::new().name(name).spawn(serve).map_err(|e| Error::no_thread(&e))
}

/// Waits while the device is busy with a batch that has ended with an error, unless no device answers: then what it
/// makes next says so. Returns false once the schedule is closed meanwhile.
fn wait_for(number: usize, device: &dyn Executor, schedule: &Schedule) -> bool {
    while device.is_late() {
        schedule.set_late(number, true);
        if schedule.is_closed() {
            return false;
        }
        if schedule.all_are_late() {
            return true;
        }
        thread::sleep(POLL);
    }
    schedule.set_late(number, false);
    true
}
