//! The queues between the program and a GPU, which the driver makes when it opens the GPU.

use std::env;
use std::fs;

const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Has the driver make one queue for kernels in place of 8, and as many for copies, unless the environment says how many.
/// It opens a GPU and gives it back in some 0.07 s less then. Streams share the queue, in the order in which their work is
/// enqueued: there nothing waits for what comes behind it, as long as no kernel waits for another GPU.
///
/// To be called before there are other threads, which might read the environment meanwhile: it does nothing where there
/// are any, or the system does not tell.
#[allow(unsafe_code)]
pub fn make_one() {
    if env::var_os(VARIABLE).is_none() && is_only_thread() {
        // SAFETY: no other thread is there that reads or writes the environment.
        unsafe { env::set_var(VARIABLE, "1") };
    }
}

fn is_only_thread() -> bool {
    fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_stays_as_it_is_where_other_threads_may_read_it() {
        let before = env::var_os(VARIABLE);
        std::thread::spawn(make_one).join().unwrap();
        assert_eq!(env::var_os(VARIABLE), before);
    }
}
