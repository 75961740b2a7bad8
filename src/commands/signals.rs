//! Ctrl-C and SIGTERM: the first signal cancels the work, a second one ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use flux::pipeline::CancelFlag;
use flux::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether a signal was received, and which.
#[derive(Default)]
pub struct Signals {
    received: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    /// Installs the handlers: from here on a first signal sets the flag of [`Signals::cancel_flag`].
    ///
    /// Errors when the system refuses a handler.
    pub fn listen(&self) -> Result<()> {
        for signal in [SIGINT, SIGTERM] {
            // The order matters: at the first signal the handler that ends the program finds the flag unset.
            flag::register_conditional_shutdown(signal, exit_code(signal), Arc::clone(&self.received))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&self.which), signal as usize))
                .and_then(|_| flag::register(signal, Arc::clone(&self.received)))
                .map_err(|e| Error::new(format!("cannot listen to signal {signal}: {e}")))?;
        }
        Ok(())
    }

    /// A flag that a signal sets.
    pub fn cancel_flag(&self) -> CancelFlag {
        CancelFlag::from(Arc::clone(&self.received))
    }

    /// The exit code of a program that a signal cancelled: 130 for Ctrl-C, 143 for SIGTERM.
    pub fn exit_code(&self) -> u8 {
        exit_code(self.which.load(Ordering::Relaxed) as i32) as u8
    }
}

/// The exit code that shells give to a program that a signal ended.
fn exit_code(signal: i32) -> i32 {
    128 + signal
}
