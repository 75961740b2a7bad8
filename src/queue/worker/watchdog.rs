//! Ends the process when an image takes too long: a device that hangs would keep its jobs for ever, since the
//! connection lives on. The broker hands them to another worker then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flux::{Error, Result};
use signal_hook::low_level;

use super::locked;
use crate::progress::say;

/// The exit code of a worker that ended itself: what started it should do so again.
const EXIT_CODE: i32 = 75;
/// Ends the process, since this worker is of no more use.
pub fn end(why: &str) -> ! {
    say(&format!("error: {why}; the worker ends itself"));
    // Whatever runs at a usual end would wait for what hangs.
    low_level::exit(EXIT_CODE)
}

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long the engine may say nothing before it has begun an image: weights are being loaded.
const SILENCE: Duration = Duration::from_secs(600);

pub struct Watchdog {
    state: Mutex<State>,
}

struct State {
    /// Since when images are being made, by their deliveries, and which jobs they are of.
    begun: HashMap<u64, (Instant, String)>,
    /// Deliveries that the engine has, and when it last said something of one.
    given: usize,
    moved: Instant,
}

impl Watchdog {
    /// Begins to look.
    ///
    /// Errors when the system starts no thread.
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

    /// What takes too long, if anything does.
    fn hangs(&self, limit: Duration, now: Instant) -> Option<String> {
        let state = locked(&self.state);
        let too_long = state.begun.values().find(|(since, _)| now.duration_since(*since) > limit);
        let is_silent = state.given > 0 && now.duration_since(state.moved) > limit.max(SILENCE);
        too_long.map(|(_, job)| format!("job {job}")).or(is_silent.then(|| "the engine".to_string()))
    }

    /// The engine has a job.
    pub fn given(&self) {
        let mut state = locked(&self.state);
        state.given += 1;
        state.moved = Instant::now();
    }

    /// The engine has begun it.
    pub fn begun(&self, delivery: u64, job: &str) {
        locked(&self.state).begun.entry(delivery).or_insert_with(|| (Instant::now(), job.to_string()));
        self.moved();
    }

    /// The engine said something.
    pub fn moved(&self) {
        locked(&self.state).moved = Instant::now();
    }

    /// The engine is done with it.
    pub fn over(&self, delivery: u64) {
        let mut state = locked(&self.state);
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
        assert_eq!(dog.hangs(limit, soon), None, "it was not begun");
        assert!(dog.hangs(limit, soon + SILENCE).is_some_and(|what| what == "the engine"));
        dog.begun(1, "a");
        assert_eq!(dog.hangs(limit, Instant::now()), None);
        assert!(dog.hangs(limit, soon).is_some_and(|what| what == "job a"));
        dog.over(1);
        assert_eq!(dog.hangs(limit, soon + SILENCE), None);
    }
}
