//! The threads that compute on the CPU: their number, and fewer if the system has no room for them.

use std::env;
use std::io;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use flux_base::memory;
use flux_base::{Error, Result};
use rayon::{ThreadBuilder, ThreadPoolBuilder};

/// The max number of threads: more than the cores of any host, few enough to start at once.
pub const MAX: usize = 1024;
/// The variable for the number of threads, as in rayon.
const VARIABLE: &str = "RAYON_NUM_THREADS";
/// Further threads of the program, which open the model, load weights and generate noise.
const OTHERS: usize = 8;
/// The size below which the first thread's stack is too small for the program, and the stack that is used instead.
const SMALL_STACK: u64 = 1 << 20;
const STACK: usize = 8 << 20;
/// The address space of a thread: its stack, and the arena of the C library's allocator.
const ADDRESS_SPACE: u64 = (2 + 64) << 20;

/// Starts `wanted` threads, or as many as the environment names, or one per core. Returns a note if fewer threads
/// start, or there are more threads than cores.
///
/// Errors if the environment names an invalid number of threads, or no thread can start.
pub fn start(wanted: Option<u64>) -> Result<Option<String>> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let wanted = match wanted {
        Some(wanted) => (wanted as usize).clamp(1, MAX),
        None => from_environment(env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned()).as_deref())?
            .unwrap_or(cores.min(MAX)),
    };
    let mut workers = waiting(wanted.min(fitting(memory::free_address_space())), spawn);
    let count = workers.len();
    if count == 0 {
        return Err(Error::no_thread(&io::Error::other("the system refused")));
    }
    let gone = || io::Error::other("a thread has ended");
    ThreadPoolBuilder::new()
        .num_threads(count)
        .spawn_handler(|worker| workers.pop().ok_or_else(gone)?.send(worker).map_err(|_| gone()))
        .build_global()
        .map_err(|e| Error::no_thread(&io::Error::other(e)))?;
    Ok(note(count, wanted, cores))
}

/// Returns the note about `count` started threads out of `wanted`, on a machine of `cores` cores.
fn note(count: usize, wanted: usize, cores: usize) -> Option<String> {
    match count {
        _ if count < wanted => Some(format!(
            "computing on {count} of {wanted} threads: the limits on processes or memory do not allow more"
        )),
        _ if count > cores => {
            let cores = if cores == 1 { "1 core".to_string() } else { format!("{cores} cores") };
            Some(format!("{count} threads share {cores}: using more threads than cores is not faster"))
        }
        _ => None,
    }
}

/// Runs the work of the program on a stack that is large enough, whatever `ulimit -s` says: on a new thread if the
/// stack of the calling thread is small.
///
/// Errors if the system starts no thread.
pub fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    if stack_limit().is_none_or(|bytes| bytes >= SMALL_STACK) {
        return Ok(work());
    }
    thread::scope(|scope| {
        let started = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let thread = started.map_err(|e| Error::no_thread(&e))?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Returns the limit on the stack of the first thread, in bytes; `None` without a limit.
fn stack_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Stack).current
}

/// Returns the number of threads, at most `wanted`, that the system can start besides the running ones.
pub fn startable(wanted: usize) -> usize {
    thread::scope(|scope| {
        let start = || {
            let (end, ended) = channel::<()>();
            // The thread ends when the sender is dropped.
            thread::Builder::new().spawn_scoped(scope, move || ended.recv().is_err()).map(|_| end)
        };
        (0..wanted).map_while(|_| start().ok()).collect::<Vec<_>>().len()
    })
}

/// Returns the number of threads that the variable names; `None` if it is empty or 0.
fn from_environment(value: Option<&str>) -> Result<Option<usize>> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    match value.parse() {
        Ok(0) => Ok(None),
        Ok(threads) if threads <= MAX => Ok(Some(threads)),
        _ => Err(Error::usage(format!("`{value}` is not a valid number of threads, expected 1 to {MAX}"))
            .at(VARIABLE)
            .hint(format!("unset {VARIABLE}, or use `--threads`"))),
    }
}

/// Returns the number of threads that take at most half of the address space that a limit leaves; at least one.
fn fitting(free: Option<u64>) -> usize {
    free.map_or(MAX, |free| (free / 2 / ADDRESS_SPACE).clamp(1, MAX as u64) as usize)
}

/// Starts a thread that waits for its worker, and ends if there is none.
fn spawn() -> io::Result<Sender<ThreadBuilder>> {
    let (give, take) = channel::<ThreadBuilder>();
    let run = move || {
        if let Ok(worker) = take.recv() {
            worker.run();
        }
    };
    thread::Builder::new().spawn(run).map(|_| give)
}

/// Starts up to `wanted` threads. A rayon pool cannot shrink after one of its threads has failed to start, so the
/// threads come first. If some fail to start, a few are released for the other work of the program.
fn waiting<T>(wanted: usize, spawn: impl Fn() -> io::Result<T>) -> Vec<T> {
    let mut threads: Vec<T> = (0..wanted).map_while(|_| spawn().ok()).collect();
    if threads.len() < wanted {
        threads.truncate(threads.len().saturating_sub(OTHERS).max(1));
    }
    threads
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn threads_that_cannot_be_made_are_left_out() {
        let of = |wanted, possible| {
            let made = Cell::new(0);
            let spawn = || {
                made.set(made.get() + 1);
                if made.get() > possible { Err(io::Error::other("no more")) } else { Ok(()) }
            };
            waiting(wanted, spawn).len()
        };
        assert_eq!([of(4, 4), of(40, 39), of(40, 5), of(40, 0)], [4, 39 - OTHERS, 1, 0]);
    }

    #[test]
    fn the_variable_is_a_number_of_threads() {
        for (value, threads) in [(None, None), (Some(""), None), (Some("0"), None), (Some("7"), Some(7))] {
            assert_eq!(from_environment(value).unwrap(), threads);
        }
        for bad in ["abc", "-1", "1.5", "1025", "100000", "99999999999999999999999"] {
            let error = from_environment(Some(bad)).unwrap_err();
            assert!(error.to_string().contains(VARIABLE) && error.what().contains(bad), "{error}");
        }
    }

    #[test]
    fn fewer_threads_than_wanted_and_more_than_cores_are_noted() {
        assert_eq!([note(4, 4, 4), note(2, 2, 4)], [None, None]);
        assert!(note(3, 4, 4).is_some_and(|note| note.contains("3 of 4 threads")));
        assert!(note(8, 8, 4).is_some_and(|note| note.contains("8 threads") && note.contains("4 cores")));
        assert!(note(2, 2, 1).is_some_and(|note| note.contains("1 core:")));
    }

    #[test]
    fn threads_leave_address_space_for_the_image() {
        assert_eq!(
            [fitting(Some(0)), fitting(Some(600 << 20)), fitting(Some(u64::MAX)), fitting(None)],
            [1, 4, MAX, MAX]
        );
    }
}
