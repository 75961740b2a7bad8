//! Coordination of captures in this process with calls that would break them.
//!
//! Calls that wait for all work of the context, or return memory to the system, break captures of other threads, also
//! on other streams, and all devices of one GPU share the context. Several such calls may run at once, and so may
//! several captures: when two GPUs generate an image together, each may have to wait for work that the other one is
//! about to enqueue.

use parking_lot::{Condvar, Mutex};

static UNDER_WAY: UnderWay = UnderWay::new();

/// The numbers of running captures and calls. One of the two is 0.
struct UnderWay {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counts {
    captures: usize,
    calls: usize,
}

/// A running capture.
#[must_use]
pub struct Capturing<'a>(&'a UnderWay);

/// A running call that would break any capture.
#[must_use]
pub struct Outside<'a>(&'a UnderWay);

impl UnderWay {
    const fn new() -> Self {
        Self { counts: Mutex::new(Counts { captures: 0, calls: 0 }), changed: Condvar::new() }
    }

    fn capture(&self) -> Capturing<'_> {
        let mut counts = self.counts.lock();
        self.changed.wait_while(&mut counts, |counts| counts.calls > 0);
        counts.captures += 1;
        Capturing(self)
    }

    fn call(&self) -> Outside<'_> {
        let mut counts = self.counts.lock();
        self.changed.wait_while(&mut counts, |counts| counts.captures > 0);
        counts.calls += 1;
        Outside(self)
    }

    fn try_call(&self) -> Option<Outside<'_>> {
        let mut counts = self.counts.lock();
        (counts.captures == 0).then(|| {
            counts.calls += 1;
            Outside(self)
        })
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        self.0.counts.lock().captures -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        self.0.counts.lock().calls -= 1;
        self.0.changed.notify_all();
    }
}

/// Registers a capture. Waits while calls run that would break it, but not for calls that are still waiting: ranks of a
/// group wait for each other while they capture.
pub fn while_capturing() -> Capturing<'static> {
    UNDER_WAY.capture()
}

/// Returns [`outside_captures`] if there is no capture now.
pub fn unless_capturing() -> Option<Outside<'static>> {
    UNDER_WAY.try_call()
}

/// Prevents captures in this process while the result lives. Waits for running captures.
pub fn outside_captures() -> Outside<'static> {
    UNDER_WAY.call()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn there_are_several_of_one_kind_at_a_time() {
        let under_way = UnderWay::new();
        let both = Barrier::new(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        {
                            let _call = under_way.call();
                            both.wait(); // both threads are here
                        }
                        both.wait();
                        {
                            let _capture = under_way.capture();
                            both.wait();
                            assert!(under_way.try_call().is_none());
                            both.wait();
                        }
                        both.wait();
                    }
                });
            }
        });
        assert_eq!(*under_way.counts.lock(), Counts { captures: 0, calls: 0 });
        assert!(under_way.try_call().is_some());
    }

    #[test]
    fn captures_and_calls_wait_for_each_other() {
        let under_way = UnderWay::new();
        let of_both = |counts: Counts| assert!(counts.captures == 0 || counts.calls == 0, "{counts:?}");
        thread::scope(|scope| {
            for i in 0..4 {
                let under_way = &under_way;
                scope.spawn(move || {
                    for _ in 0..500 {
                        if i % 2 == 0 {
                            let _capture = under_way.capture();
                            of_both(*under_way.counts.lock());
                        } else {
                            let _call = under_way.call();
                            of_both(*under_way.counts.lock());
                        }
                    }
                });
            }
        });
        assert_eq!(*under_way.counts.lock(), Counts { captures: 0, calls: 0 });
    }
}
