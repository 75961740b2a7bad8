//! SIGBUS: a mapped file was cut off, or its disk failed, while the program read it.

/// Makes the program end with a message and exit code 1 in that case, in place of a bare "Bus error". The program does
/// this, not the library, because a process has one handler.
///
/// The handler of Rust's runtime, which this replaces, finds overflows of the stack. On Linux those raise SIGSEGV.
#[allow(unsafe_code)]
pub fn explain() {
    #[cfg(target_os = "linux")]
    // SAFETY: `sigaction` is plain data, for which zeros are valid. The handler has the signature that SA_SIGINFO asks
    // for, and only calls functions that are safe in one. A failure leaves the handler that was there.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = linux::handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::atomic::{AtomicBool, Ordering};

    const MESSAGE: &[u8] = b"error: a file of the model was cut off, or could not be read, while it was in use\n  \
hint: leave a model's files as they are while images are made; if nobody changed them, is their disk in order?\n";
    static TOLD: AtomicBool = AtomicBool::new(false);

    /// Allocates nothing and takes no lock, because the thread may hold any.
    #[allow(unsafe_code)]
    pub extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: the system passes a valid `info`; all functions are async-signal-safe; MESSAGE is static.
        unsafe {
            if (*info).si_code != libc::BUS_ADRERR {
                // Somebody sent the signal, or it has another cause: it ends the program as if there were no handler.
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                libc::raise(libc::SIGBUS);
                return;
            }
            // Many threads read at once, and one message is enough.
            while TOLD.swap(true, Ordering::Relaxed) {
                libc::pause();
            }
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
            libc::_exit(1);
        }
    }
}
