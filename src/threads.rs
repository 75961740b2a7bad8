//! The threads that compute on the CPU: how many, and fewer where the system has no room for them.

use std::env;
use std::io;
use std::num::NonZero;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use flux::backend::cpu::memory;
use flux::{Error, Result};
use rayon::{ThreadBuilder, ThreadPoolBuilder};

/// The most threads: more than any host has cores for, few enough to start at once.
pub const MAX: usize = 1024;
/// The variable that libraries of this kind read.
const VARIABLE: &str = "RAYON_NUM_THREADS";
/// Threads that the program starts besides: those that open the model, load weights and draw noise.
const OTHERS: usize = 8;
/// Address space of a thread: its stack, and what the C library's allocator sets aside for it.
const ADDRESS_SPACE: u64 = (2 + 64) << 20;

/// Starts `wanted` threads, or as many as the environment says, or one for each core. A note where they are fewer.
///
/// Errors when the environment asks for what is no number of threads, or not one thread can be made.
pub fn start(wanted: Option<u64>) -> Result<Option<String>> {
    let wanted = match wanted {
        Some(wanted) => (wanted as usize).clamp(1, MAX),
        None => from_environment(env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned()).as_deref())?
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get).min(MAX)),
    };
    let mut workers = waiting(wanted.min(fitting(memory::free_address_space())), spawn);
    let count = workers.len();
    if count == 0 {
        return Err(Error::no_thread(&io::Error::other("the system allows none")));
    }
    let gone = || io::Error::other("a thread has ended");
    ThreadPoolBuilder::new()
        .num_threads(count)
        .spawn_handler(|worker| workers.pop().ok_or_else(gone)?.send(worker).map_err(|_| gone()))
        .build_global()
        .map_err(|e| Error::no_thread(&io::Error::other(e)))?;
    Ok((count < wanted).then(|| {
        format!("computing on {count} of {wanted} threads: the limits on processes or on memory allow no more")
    }))
}

/// The number of threads that the variable names; none where it is empty or 0.
fn from_environment(value: Option<&str>) -> Result<Option<usize>> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    match value.parse() {
        Ok(0) => Ok(None),
        Ok(threads) if threads <= MAX => Ok(Some(threads)),
        _ => Err(Error::usage(format!("`{value}` is no number of threads, expected 1 to {MAX}"))
            .at(VARIABLE)
            .hint(format!("unset {VARIABLE}, or use `--threads`"))),
    }
}

/// How many threads take no more than half of the address space that a limit leaves; at least one.
fn fitting(free: Option<u64>) -> usize {
    free.map_or(MAX, |free| (free / 2 / ADDRESS_SPACE).clamp(1, MAX as u64) as usize)
}

/// A thread that waits for the worker that it is to run, and ends where there is none.
fn spawn() -> io::Result<Sender<ThreadBuilder>> {
    let (give, take) = channel::<ThreadBuilder>();
    let run = move || {
        if let Ok(worker) = take.recv() {
            worker.run();
        }
    };
    thread::Builder::new().spawn(run).map(|_| give)
}

/// `wanted` threads. A pool of rayon's cannot be made smaller once a thread of it failed to start, so threads come
/// first. Where there are fewer, some are given back for the other work of the program.
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
    fn threads_leave_address_space_for_the_image() {
        assert_eq!(
            [fitting(Some(0)), fitting(Some(600 << 20)), fitting(Some(u64::MAX)), fitting(None)],
            [1, 4, MAX, MAX]
        );
    }
}
