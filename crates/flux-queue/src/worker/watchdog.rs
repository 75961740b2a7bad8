//! A watchdog that exits the process if an image takes too long. A hanging device would hold its jobs forever, since
//! the connection stays alive. After the exit, the broker redelivers them to another worker.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flux::{Error, Result};
use parking_lot::Mutex;
use signal_hook::low_level;

use flux_runtime::progress::say;

/// The exit code of a worker that stops itself and should be restarted.
const EXIT_CODE: i32 = 75;
/// Exits the process after an error that this worker cannot recover from.
pub fn end(why: &str) -> ! {
    say(&format!("error: {why}; the worker exits"));
    // A regular exit would run handlers that wait for the hanging device.
    low_level::exit(EXIT_CODE)
}

/// The interval between checks.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The max silence of the engine before it starts an image. It may be loading weights.
const SILENCE: Duration = Duration::from_secs(600);

pub struct Watchdog {
    state: Mutex<State>,
}

struct State {
    /// The start times of running images by delivery, with the IDs of their jobs.
    begun: HashMap<u64, (Instant, String)>,
    /// Deliveries submitted to the engine, and the time of the engine's last event.
    given: usize,
    moved: Instant,
}

impl Watchdog {
    /// Starts the watchdog thread.
    ///
    /// Errors if the system cannot start a thread.
    pub fn start(limit: Duration) -> Result<Arc<Self>> {
        let state = State { begun: HashMap::new(), given: 0, moved: Instant::now() };
        let dog = Arc::new(Self { state: Mutex::new(state) });
        let looking = Arc::downgrade(&dog);
        let look = move || {
            while let Some(dog) = looking.upgrade() {
                if let Some(job) = dog.hangs(limit, Instant::now()) {
                    end(&format!("{job} took longer than {} s", limit.as_secs()));
                }
                drop(dog);
                thread::sleep(LOOK_EVERY);
            }
        };
        thread::Builder::new().name("watchdog".to_string()).spawn(look).map_err(|e| Error::no_thread(&e))?;
        Ok(dog)
    }

    /// Returns a description of the work that exceeds its limit, if any.
    fn hangs(&self, limit: Duration, now: Instant) -> Option<String> {
        let state = self.state.lock();
        let too_long = state.begun.values().find(|(since, _)| now.duration_since(*since) > limit);
        let is_silent = state.given > 0 && now.duration_since(state.moved) > limit.max(SILENCE);
        too_long.map(|(_, job)| format!("job {job}")).or(is_silent.then(|| "the engine".to_string()))
    }

    /// Records that the engine received a job.
    pub fn given(&self) {
        let mut state = self.state.lock();
        state.given += 1;
        state.moved = Instant::now();
    }

    /// Records that the engine started a job.
    pub fn begun(&self, delivery: u64, job: &str) {
        self.state.lock().begun.entry(delivery).or_insert_with(|| (Instant::now(), job.to_string()));
        self.moved();
    }

    /// Records an event of the engine.
    pub fn moved(&self) {
        self.state.lock().moved = Instant::now();
    }

    /// Records that the engine is done with a job.
    pub fn over(&self, delivery: u64) {
        let mut state = self.state.lock();
        state.given -= 1;
        state.begun.remove(&delivery);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_found() {
        let dog = Watchdog::start(Duration::MAX).unwrap();
        let (limit, soon) = (Duration::from_secs(5), Instant::now() + Duration::from_secs(6));
        dog.given();
        assert_eq!(dog.hangs(limit, soon), None, "no job has begun");
        assert!(dog.hangs(limit, soon + SILENCE).is_some_and(|what| what == "the engine"));
        dog.begun(1, "a");
        assert_eq!(dog.hangs(limit, Instant::now()), None);
        assert!(dog.hangs(limit, soon).is_some_and(|what| what == "job a"));
        dog.over(1);
        assert_eq!(dog.hangs(limit, soon + SILENCE), None);
    }
}
