//! The memory of the host: the available bytes, and reservations of large allocations.
//!
//! A vector whose size comes from a file or a request is created by [`vector`] or after a [`reserve`], so that a size
//! that does not fit is an error of that file or request and ends nothing else. Crates that decode or encode allocate
//! on their own, and a failed allocation in them would end the program.

use std::cell::Cell;
use std::fs;
use std::panic::resume_unwind;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use scopeguard::defer;

use crate::error::{Error, Result};

/// Smaller allocations are not compared with the available memory.
const SMALL: u64 = 4 << 20;
/// The memory that stays free for other work.
const MARGIN: u64 = 48 << 20;

/// Smaller tensors are not checked: the rest of the margin is enough for them.
const SMALL_TENSOR: usize = 64 << 10;

thread_local! {
    /// True while this thread runs work that reports a failed allocation.
    static FALLIBLE: Cell<bool> = const { Cell::new(false) };
}

/// Bytes that are reserved and not released yet.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// Memory that is reserved for work, until the reservation is dropped.
#[must_use = "the memory is reserved only until this value is dropped"]
pub struct Reservation(u64);

impl Drop for Reservation {
    fn drop(&mut self) {
        RESERVED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Reserves bytes for work that is about to allocate them.
///
/// Errors if they are not available besides the bytes that other work has reserved.
pub fn reserve(bytes: usize) -> Result<Reservation> {
    reserve_of(bytes as u64, available_bytes)
}

fn reserve_of(bytes: u64, available: impl Fn() -> u64) -> Result<Reservation> {
    if bytes < SMALL {
        return Ok(Reservation(0));
    }
    let reservation = Reservation(bytes);
    let reserved = RESERVED.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
    if reserved.saturating_add(MARGIN) > available() { Err(Error::no_memory(bytes)) } else { Ok(reservation) }
}

/// Creates a vector of `count` values.
///
/// Errors if there is not enough memory.
pub fn vector<T: Clone>(value: T, count: usize) -> Result<Vec<T>> {
    expect(count.saturating_mul(size_of::<T>()))?;
    // Zeros are pages that the system clears on first use.
    Ok(vec![value; count])
}

/// Errors if an allocation of `bytes` bytes fails.
pub fn expect(bytes: usize) -> Result<()> {
    fallibly(|| Vec::<u8>::new().try_reserve_exact(bytes)).map_err(|_| Error::no_memory(bytes as u64))
}

/// Runs work whose allocations may fail, such as `try_reserve` and readers that use it. In such work the program's
/// allocator returns null; elsewhere it ends the program, with an error in place of the standard library's abort.
pub fn fallibly<T>(work: impl FnOnce() -> T) -> T {
    let outer = FALLIBLE.replace(true);
    defer!(FALLIBLE.set(outer));
    work()
}

/// Returns `true` inside of [`fallibly`].
pub fn is_fallible() -> bool {
    FALLIBLE.get()
}

/// The payload of a panic for lack of memory. It is not printed: [`failure`] turns it into the error of the failed
/// work.
struct OutOfMemory(u64);

/// Panics if an allocation of `bytes` bytes fails, in code that returns no errors. The caller of the whole work turns
/// the panic into an error.
pub fn expect_or_unwind(bytes: usize) {
    if bytes >= SMALL_TENSOR && expect(bytes).is_err() {
        resume_unwind(Box::new(OutOfMemory(bytes as u64)));
    }
}

/// Returns the error of a panic for lack of memory; `None` for other panics.
pub fn failure(payload: &(dyn std::any::Any + Send)) -> Option<Error> {
    payload.downcast_ref::<OutOfMemory>().map(|OutOfMemory(bytes)| Error::no_memory(*bytes))
}

/// Returns the bytes that can be allocated without swapping: the memory that Linux reports as available, or less if a
/// control group or a process limit is tighter. Returns `u64::MAX` if the system reports nothing.
pub fn available_bytes() -> u64 {
    available_below(Path::new("/"))
}

/// Returns the bytes of address space that the process limit (`ulimit -v`) leaves; `None` without a limit. Mapped files
/// and thread stacks count.
pub fn free_address_space() -> Option<u64> {
    process_headroom(Path::new("/"), "Max address space", "VmSize:")
}

/// Returns the total memory of the host; `None` if the system does not report it.
pub fn total_bytes() -> Option<u64> {
    kib(&read(PathBuf::from("/proc/meminfo")), "MemTotal:")
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn available_below(root: &Path) -> u64 {
    let parts = [
        kib(&read(root.join("proc/meminfo")), "MemAvailable:"),
        cgroups_headroom(root, &read(root.join("proc/self/cgroup"))),
        process_headroom(root, "Max address space", "VmSize:"),
        process_headroom(root, "Max data size", "VmData:"),
    ];
    parts.into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// Returns the number of kB after `name`, in bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Returns the bytes that the soft limit `limit` leaves after `used`; `None` if it is `unlimited`.
fn process_headroom(root: &Path, limit: &str, used: &str) -> Option<u64> {
    let limits = read(root.join("proc/self/limits"));
    let limit =
        limits.lines().find_map(|line| line.strip_prefix(limit))?.split_whitespace().next()?.parse::<u64>().ok()?;
    Some(limit.saturating_sub(kib(&read(root.join("proc/self/status")), used).unwrap_or(0)))
}

/// Returns the bytes that the control groups of the process leave. Groups may be nested, and the tightest one counts.
/// In a container a group may have another path than the process sees, but the outermost visible group is at the root.
fn cgroups_headroom(root: &Path, groups: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (mount, [limit, used, reclaimable]) = if controllers.is_empty() {
            ("sys/fs/cgroup", ["memory.max", "memory.current", "inactive_file "])
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("sys/fs/cgroup/memory", ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "])
        } else {
            return None;
        };
        let mount = root.join(mount);
        let path: PathBuf = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect();
        path.ancestors().filter_map(|group| cgroup_headroom(&mount.join(group), limit, used, reclaimable)).min()
    };
    groups.lines().filter_map(of_line).min()
}

/// Returns the bytes that one group leaves. Inactive cached files of the group are dropped for new memory.
fn cgroup_headroom(group: &Path, limit: &str, used: &str, reclaimable: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let limit = number(&read(group.join(limit)))?;
    let used = number(&read(group.join(used)))?;
    let stat = read(group.join("memory.stat"));
    let reclaimable = stat.lines().find_map(|line| number(line.strip_prefix(reclaimable)?)).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_not_available_to_others() {
        let available = || 200 << 20;
        let first = reserve_of(100 << 20, available).unwrap();
        assert!(reserve_of(60 << 20, available).is_err_and(|e| e.is_out_of_memory()));
        assert!(reserve_of(1 << 20, || 0).is_ok(), "small reservations are not counted");
        drop(first);
        assert!(reserve_of(60 << 20, available).is_ok());
    }

    #[test]
    fn what_cannot_be_allocated_is_an_error() {
        assert!(vector(0_u64, 1 << 45).is_err_and(|e| e.is_out_of_memory()));
        assert_eq!(vector(7, 3).unwrap(), [7; 3]);
        let panic = std::panic::catch_unwind(|| expect_or_unwind(1 << 50)).unwrap_err();
        assert!(failure(&*panic).is_some_and(|e| e.is_out_of_memory()));
        assert!(failure(&"another panic").is_none());
    }

    /// Returns the available bytes on a host with these files.
    fn available(files: &[(&str, &str)]) -> u64 {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        available_below(root.path())
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 9999 kB\nMemAvailable:    3072 kB\n");

    #[test]
    fn what_the_system_counts_as_available_is_read_in_bytes() {
        assert_eq!(available(&[MEMINFO]), 3 << 20);
        assert_eq!(available(&[("proc/meminfo", "MemTotal: 10 kB\n")]), u64::MAX);
    }

    #[test]
    fn the_tightest_of_nested_control_groups_counts() {
        let group = ("proc/self/cgroup", "0::/user/job\n");
        let of = |max: &'static str, current: &'static str| {
            available(&[
                MEMINFO,
                group,
                ("sys/fs/cgroup/user/job/memory.max", max),
                ("sys/fs/cgroup/user/job/memory.current", current),
                ("sys/fs/cgroup/user/memory.max", "2000000\n"),
                ("sys/fs/cgroup/user/memory.current", "900000\n"),
                ("sys/fs/cgroup/user/memory.stat", "anon 5\ninactive_file 100000\nfile 7\n"),
            ])
        };
        assert_eq!(of("max\n", "1\n"), 1_200_000, "the limit of the outer group, plus its reclaimable memory");
        assert_eq!(of("1000000\n", "400000\n"), 600_000);
        assert_eq!(of("1000\n", "400000\n"), 0);
    }

    #[test]
    fn groups_of_the_first_version_are_read_also_at_the_root_of_a_container() {
        let files = |folder: &str| {
            let of = |name: &str| format!("sys/fs/cgroup/memory/{folder}{name}");
            let (limit, used) = (of("memory.limit_in_bytes"), of("memory.usage_in_bytes"));
            available(&[
                MEMINFO,
                ("proc/self/cgroup", "3:cpu,cpuacct:/docker/1\n2:memory:/docker/1\n"),
                (&limit, "5000\n"),
                (&used, "2000\n"),
            ])
        };
        assert_eq!([files(""), files("docker/1/"), files("docker/2/")], [3000, 3000, 3 << 20]);
    }

    #[test]
    fn limits_of_the_process_count_less_what_it_uses() {
        let of = |space: &str, data: &str| {
            let line = |name: &str, soft: &str| format!("{name:25} {soft:20} unlimited            bytes\n");
            let limits = line("Max data size", data) + &line("Max address space", space);
            let status = "Name:\tflux\nVmSize:\t    1024 kB\nVmData:\t     512 kB\n";
            available(&[MEMINFO, ("proc/self/limits", &limits), ("proc/self/status", status)])
        };
        assert_eq!(of("unlimited", "unlimited"), 3 << 20);
        assert_eq!(of("2097152", "unlimited"), 1 << 20);
        assert_eq!(of("unlimited", "2097152"), 3 << 19);
        assert_eq!(of("1000", "unlimited"), 0);
    }
}
