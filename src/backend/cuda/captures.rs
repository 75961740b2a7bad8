//! Captures that are under way in this process, and calls that none of them would survive.
//!
//! Calls that wait for all work of the context, or give memory back to the system, break the captures of other threads on
//! other streams too, and all devices of one GPU share the context.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static CAPTURES: RwLock<()> = RwLock::new(());

/// Held while work is captured. Waits while a call is under way that would break it, but not for one that waits itself:
/// ranks of a group wait for each other while they capture.
pub fn while_capturing() -> RwLockReadGuard<'static, ()> {
    CAPTURES.read_recursive()
}

/// [`outside_captures`], if nothing is captured now.
pub fn unless_capturing() -> Option<RwLockWriteGuard<'static, ()>> {
    CAPTURES.try_write()
}

/// While the result lives, nothing is captured in this process. Waits for captures that are under way.
pub fn outside_captures() -> RwLockWriteGuard<'static, ()> {
    CAPTURES.write()
}
