//! The allocator of the program: an allocation that fails ends it with an error and exit code 1.
//!
//! Rust's own handler aborts, which looks like a crash and leaves a core file; one of our own is unstable
//! (`set_alloc_error_hook`), and an allocator must not unwind. Large tensors are checked against the memory that is
//! free before an image is begun, so this is for what that check cannot foresee.
//!
//! glibc keeps what is right for the program: for images from the command line what a tensor was made in, for the next
//! one; in a service that opens one model after another little, for each of many threads has an arena of its own, which
//! keeps what once lay there.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The system's allocator.
pub struct OrExit;

// SAFETY: every call goes to `System` as it is; a result that is no memory is not returned.
unsafe impl GlobalAlloc for OrExit {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        or_exit(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        or_exit(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        or_exit(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// From here on the memory of a tensor that is freed is kept for the next one. Otherwise each operation on the CPU has
/// the system clear new pages: a fifth of the time of a small image.
pub fn keep_tensors() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    set(&[(libc::M_MMAP_THRESHOLD, 32 << 20), (libc::M_TRIM_THRESHOLD, 128 << 20)]);
}

/// From here on few threads have arenas of their own, and large pieces go back to the system when they are freed.
#[cfg(feature = "server")]
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    set(&[(libc::M_ARENA_MAX, 2), (libc::M_MMAP_THRESHOLD, 1 << 20), (libc::M_TRIM_THRESHOLD, 1 << 20)]);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn set(parameters: &[(libc::c_int, libc::c_int)]) {
    for &(parameter, value) in parameters {
        // SAFETY: sets a number of the allocator, under its own lock. A value that it refuses leaves the one that was.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives back what is free now.
#[cfg(feature = "server")]
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: only frees pages in which nothing lies.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn or_exit(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        exit(bytes);
    }
    memory
}

/// Whether a thread tells why the program ends.
static EXITING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread does.
    static EXITS: Cell<bool> = const { Cell::new(false) };
}

/// Returns to the first thread that asks, which may tell why the program ends, each time that it asks; all others sleep
/// until it has ended. Where memory runs out, several threads find it out at the same time, each in its own way.
pub fn claim_exit() {
    if !EXITS.get() {
        while EXITING.swap(true, Ordering::Relaxed) {
            thread::sleep(Duration::MAX);
        }
        EXITS.set(true);
    }
}

/// Bytes that the system always has for a program that is not out of memory: what malloc asks it for at once.
const LEAST: usize = 1 << 20;

/// Makes an abort for want of memory end the program like an allocation that fails. The standard library makes the
/// handles of threads past this allocator, the C library the list of what a thread destroys, and both abort.
pub fn explain_aborts() {
    #[cfg(unix)]
    // SAFETY: the handler has the signature of one, and calls nothing that allocates or takes a lock.
    unsafe {
        libc::signal(libc::SIGABRT, aborted as *const () as libc::sighandler_t);
    }
}

/// Returns where the abort has another cause; the system then ends the program as if there were no handler.
#[cfg(unix)]
extern "C" fn aborted(_signal: libc::c_int) {
    if EXITING.load(Ordering::Relaxed) {
        claim_exit();
    }
    exit_if_out_of_memory();
}

/// Ends the program where the system has no memory for it: what just failed in another way failed for that.
pub fn exit_if_out_of_memory() {
    #[cfg(unix)]
    // SAFETY: a map of no file, which nothing uses.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(std::ptr::null_mut(), LEAST, access, kind, -1, 0);
        if memory == libc::MAP_FAILED {
            exit(LEAST);
        }
        libc::munmap(memory, LEAST);
    }
}

/// Ends the program without allocating, and without waiting for a lock that this thread may hold.
#[cold]
fn exit(bytes: usize) -> ! {
    claim_exit();
    let mut text = [0; 256];
    let mut rest = text.as_mut_slice();
    let _ = write!(
        rest,
        "error: out of memory: {} MiB more are needed\n  hint: ask for a smaller image with `-W` and `-H`, or allow the \
         program more memory (`ulimit -v`, the limit of a container)\n",
        bytes.div_ceil(1 << 20)
    );
    let left = rest.len();
    let length = text.len() - left;
    // SAFETY: the first `length` bytes of `text` were written; `_exit` runs no code of this program.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), length);
        libc::_exit(1)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::env;
    use std::hint::black_box;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{self, Command, Output};

    /// Set for the program that a test starts, which is the same test again.
    const AGAIN: &str = "ALLOCATOR_TEST_AGAIN";

    fn again(test: &str) -> Output {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--nocapture", test]).env(AGAIN, "1").env_remove("RUST_BACKTRACE").output().unwrap()
    }

    /// Takes all memory that there is, and lets the system give none.
    fn take_all() {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit of this process, which ends soon; what is allocated is left as it is.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &none), 0);
            for bits in (4..=20).rev() {
                let layout = Layout::from_size_align(1 << bits, 8).unwrap();
                // The compiler would leave out what nobody uses.
                while !black_box(System.alloc(layout)).is_null() {}
            }
        }
    }

    #[test]
    fn an_abort_for_want_of_memory_is_an_error() {
        if env::var_os(AGAIN).is_some() {
            super::explain_aborts();
            take_all();
            process::abort();
        }
        let ran = again("an_abort_for_want_of_memory_is_an_error");
        let message = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(1), "{message}");
        assert!(message.contains("error: out of memory: 1 MiB") && message.contains("hint: "), "{message}");
    }

    #[test]
    fn an_abort_with_memory_left_is_one() {
        if env::var_os(AGAIN).is_some() {
            super::explain_aborts();
            process::abort();
        }
        let ran = again("an_abort_with_memory_left_is_one");
        assert_eq!(ran.status.signal(), Some(libc::SIGABRT));
    }
}
