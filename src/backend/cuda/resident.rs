//! The limit of outputs in device memory, which work of a thread sets; see
//! [`Device::with_max_resident`](crate::backend::Device::with_max_resident).

use std::cell::Cell;

use scopeguard::defer;

thread_local! {
    static MAX_BYTES: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Runs `work`, in which outputs of convolutions of more than `bytes` bytes are in host memory.
pub fn with_max<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
    let outer = MAX_BYTES.replace(bytes);
    defer!(MAX_BYTES.set(outer));
    work()
}

/// Returns `true` if an output of `bytes` bytes is in host memory.
pub fn is_exceeded(bytes: usize) -> bool {
    bytes as u64 > MAX_BYTES.get()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::thread;

    use super::*;

    #[test]
    fn the_limit_holds_within_the_work_of_a_thread() {
        let are_large = || [10, 11].map(is_exceeded);
        assert_eq!(are_large(), [false; 2]);
        let inside = with_max(10, || {
            let other = thread::spawn(are_large).join().unwrap();
            (are_large(), other, with_max(u64::MAX, are_large), are_large())
        });
        assert_eq!(inside, ([false, true], [false; 2], [false; 2], [false, true]));
        assert!(catch_unwind(|| with_max(0, || panic!("in the work"))).is_err());
        assert_eq!(are_large(), [false; 2], "also after a panic");
    }
}
