//! The allocator of the program: a failed allocation ends the program with an error and exit code 1, unless the
//! allocating code reports the failure itself ([`flux_base::memory::fallibly`]).
//!
//! Rust's own handler prints a backtrace and aborts, which looks like a crash and leaves a core file. A custom handler
//! is unstable (`set_alloc_error_hook`), and an allocator must not unwind. Large allocations are reserved first
//! ([`flux_base::memory::reserve`]), so this is for allocations that no reservation covers.
//!
//! The memory that glibc keeps depends on the kind of program. For images from the command line, it keeps the memory of
//! a tensor for the next one. In a service that opens one model after another, it keeps little, because each of many
//! threads has its own arena, which keeps freed memory.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use flux_base::memory::is_fallible;

/// The system's allocator, which ends the program if it fails.
pub struct OrExit;

// SAFETY: every call goes to `System` unchanged. A null result is returned only to code that expects null.
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

/// Makes glibc keep the memory of a freed tensor for the next one. Otherwise the system clears new pages for each
/// operation on the CPU: a fifth of the time of a small image.
pub fn keep_tensors() {
    #[cfg(target_env = "gnu")]
    set(&[(libc::M_MMAP_THRESHOLD, 32 << 20), (libc::M_TRIM_THRESHOLD, 128 << 20)]);
}

/// Makes glibc use few arenas, and return large allocations to the system when they are freed.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    set(&[(libc::M_ARENA_MAX, 2), (libc::M_MMAP_THRESHOLD, 1 << 20), (libc::M_TRIM_THRESHOLD, 1 << 20)]);
}

#[cfg(target_env = "gnu")]
fn set(parameters: &[(libc::c_int, libc::c_int)]) {
    for &(parameter, value) in parameters {
        // SAFETY: sets a number of the allocator, under its own lock. If it refuses a value, the old one stays.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Returns free memory to the system.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: only frees unused pages.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn or_exit(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() && !is_fallible() {
        exit(bytes);
    }
    memory
}

/// True once a thread reports why the program ends.
static EXITING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// True if this is that thread.
    static EXITS: Cell<bool> = const { Cell::new(false) };
}

/// Returns only in the first thread that calls it, which may report why the program ends, each time that it calls. All
/// other threads sleep until the program has ended. When memory runs out, several threads find out at the same time,
/// each in its own way.
pub fn claim_exit() {
    if !EXITS.get() {
        while EXITING.swap(true, Ordering::Relaxed) {
            thread::sleep(Duration::MAX);
        }
        EXITS.set(true);
    }
}

/// Bytes that the system always has for a program that is not out of memory: the amount that malloc requests at once.
const LEAST: usize = 1 << 20;

/// Makes an abort for lack of memory end the program like a failed allocation. The standard library allocates thread
/// handles without this allocator, the C library its list of thread destructors, and both abort.
pub fn explain_aborts() {
    // SAFETY: the handler has the right signature, and calls nothing that allocates or takes a lock.
    unsafe {
        libc::signal(libc::SIGABRT, aborted as *const () as libc::sighandler_t);
    }
}

/// Returns if the abort has another cause; the system then ends the program as if there were no handler.
extern "C" fn aborted(_signal: libc::c_int) {
    if EXITING.load(Ordering::Relaxed) {
        claim_exit();
    }
    exit_if_out_of_memory();
}

/// Ends the program if the system has no memory for it: the failure of the caller then has this cause.
pub fn exit_if_out_of_memory() {
    // SAFETY: an anonymous map, which nothing uses.
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
        "error: out of memory: {} MiB more are needed\n  hint: use a smaller image with `-W` and `-H`, or raise the \
         memory limit (`ulimit -v`, or the limit of the container)\n",
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

#[cfg(test)]
mod tests {
    #[global_allocator]
    static ALLOCATOR: super::OrExit = super::OrExit;

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::env;
    use std::hint::black_box;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{self, Command, Output};

    /// Set for the program that a test starts, which runs the same test.
    const AGAIN: &str = "ALLOCATOR_TEST_AGAIN";

    fn again(test: &str) -> Output {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--nocapture", test]).env(AGAIN, "1").env_remove("RUST_BACKTRACE").output().unwrap()
    }

    /// Takes all memory, and makes the system grant no more.
    fn take_all() {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit of this process, which ends soon; the allocations are not used.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &none), 0);
            for bits in (4..=20).rev() {
                let layout = Layout::from_size_align(1 << bits, 8).unwrap();
                // The compiler would remove unused allocations.
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
    fn an_allocation_that_cannot_fail_ends_the_program_and_one_that_can_is_reported() {
        if env::var_os(AGAIN).is_some() {
            super::explain_aborts();
            assert!(flux_base::memory::expect(1 << 50).is_err());
            drop(black_box(Vec::<u8>::with_capacity(1 << 50)));
        }
        let ran = again("an_allocation_that_cannot_fail_ends_the_program_and_one_that_can_is_reported");
        let message = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(1), "{message}");
        assert!(message.contains("error: out of memory: 1073741824 MiB"), "{message}");
    }

    #[test]
    fn an_abort_with_memory_left_is_one() {
        if env::var_os(AGAIN).is_some() {
            super::explain_aborts();
            assert!(flux_base::memory::expect(1 << 50).is_err());
            process::abort();
        }
        let ran = again("an_abort_with_memory_left_is_one");
        assert_eq!(ran.status.signal(), Some(libc::SIGABRT));
    }
}
