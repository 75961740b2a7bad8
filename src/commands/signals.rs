//! Ctrl-C and SIGTERM: the first ends the work in order, the second the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use flux::pipeline::CancelFlag;
use flux::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether a signal came, and which.
#[derive(Default)]
pub struct Signals {
    came: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    /// From here on a first signal sets the flag.
    ///
    /// Errors when the system refuses a handler.
    pub fn listen(&self) -> Result<()> {
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag unset.
            flag::register_conditional_shutdown(signal, exit_code(signal), Arc::clone(&self.came))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&self.which), signal as usize))
                .and_then(|_| flag::register(signal, Arc::clone(&self.came)))
                .map_err(|e| Error::new(format!("cannot listen to signal {signal}: {e}")))?;
        }
        Ok(())
    }

    /// Cancels sessions when a signal comes.
    pub fn cancel_flag(&self) -> CancelFlag {
        CancelFlag::from(Arc::clone(&self.came))
    }

    /// What a program ends with that a signal ended: 130 for Ctrl-C, 143 for SIGTERM.
    pub fn exit_code(&self) -> u8 {
        exit_code(self.which.load(Ordering::Relaxed) as i32) as u8
    }
}

/// As shells tell of a signal.
fn exit_code(signal: i32) -> i32 {
    128 + signal
}
