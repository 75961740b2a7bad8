//! SIGBUS: a mapped file was cut off, or its disk failed, while the program was reading the file.

use std::sync::atomic::{AtomicBool, Ordering};

use flux_files::partial;

/// Makes the program end with a message and exit code 1 on SIGBUS, in place of a bare "Bus error", and leave no partial
/// file. The program does this, not the library, because a process has one handler.
///
/// This replaces the handler of Rust's runtime, which detects stack overflows. On Linux they raise SIGSEGV. So this
/// handler needs no stack of its own. The runtime's would be too small: with AMX, the system saves 12 KB of registers.
#[allow(unsafe_code)]
pub fn explain() {
    // SAFETY: `sigaction` is plain data, for which zeros are valid. The handler has the signature that SA_SIGINFO
    // requires, and only calls functions that are safe in a handler. A failure leaves the old handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

const MESSAGE: &[u8] = b"error: a model file was truncated, or could not be read, while it was in use\n  \
hint: do not change model files while images are generated; if they were not changed, check their disk\n";
static TOLD: AtomicBool = AtomicBool::new(false);

/// Handles the signal. Allocates nothing and takes no lock, because the thread may hold any.
#[allow(unsafe_code)]
extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the system passes a valid `info`; all functions are async-signal-safe; MESSAGE is
    // static; a path ends with a zero.
    unsafe {
        if (*info).si_code != libc::BUS_ADRERR {
            // Another process sent the signal, or it has another cause: it ends the program as if there were no
            // handler.
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::raise(libc::SIGBUS);
            return;
        }
        // Many threads read at once, and one message is enough.
        while TOLD.swap(true, Ordering::Relaxed) {
            libc::pause();
        }
        partial::for_each_path(|path| {
            libc::unlink(path.as_ptr().cast());
        });
        libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
        libc::_exit(1);
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::{self, File};
    use std::io::Write;
    use std::path::Path;
    use std::process::Command;

    use flux_files::Bytes;
    use flux_files::atomic::AtomicFile;

    /// Set for the program that [`a_map_that_is_cut_off_leaves_no_partial_file`] starts, which runs the same test.
    const FOLDER: &str = "BUS_ERROR_TEST_FOLDER";

    fn read_what_was_cut_off(folder: &Path) {
        super::explain();
        let source = folder.join("source");
        fs::write(&source, vec![1; 1 << 16]).unwrap();
        let bytes = Bytes::map(&source).unwrap();
        let mut file = AtomicFile::create(&folder.join("out")).unwrap();
        file.write_all(b"half").unwrap();
        File::options().write(true).open(&source).unwrap().set_len(0).unwrap();
        println!("sum {}", bytes.as_slice().iter().map(|byte| u64::from(*byte)).sum::<u64>());
    }

    #[test]
    fn a_map_that_is_cut_off_leaves_no_partial_file() {
        if let Some(folder) = env::var_os(FOLDER) {
            return read_what_was_cut_off(Path::new(&folder));
        }
        let folder = env::temp_dir().join(format!("flux-bus-error-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let ran = Command::new(env::current_exe().unwrap())
            .args(["--nocapture", "a_map_that_is_cut_off_leaves_no_partial_file"])
            .env(FOLDER, &folder)
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(1), "{message}");
        assert!(message.contains("was truncated") && message.contains("hint: "), "{message}");
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["source"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
