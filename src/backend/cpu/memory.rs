//! How much memory of the host is available.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Bytes that can be allocated without swapping: what Linux counts as available, or less where a control group or a
/// limit of the process says so. `u64::MAX` where the system does not say.
pub(super) fn available_bytes() -> u64 {
    available_below(Path::new("/"))
}

/// Bytes of address space that the limit of the process (`ulimit -v`) leaves; none without a limit. Mapped files and
/// the stacks of threads count.
pub fn free_address_space() -> Option<u64> {
    of_process(Path::new("/"), "Max address space", "VmSize:")
}

/// All memory of the host; none where the system does not say.
pub(super) fn total_bytes() -> Option<u64> {
    kib(&read(PathBuf::from("/proc/meminfo")), "MemTotal:")
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn available_below(root: &Path) -> u64 {
    let parts = [
        kib(&read(root.join("proc/meminfo")), "MemAvailable:"),
        of_groups(root, &read(root.join("proc/self/cgroup"))),
        of_process(root, "Max address space", "VmSize:"),
        of_process(root, "Max data size", "VmData:"),
    ];
    parts.into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// The number of kB behind `name`, in bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// What the soft limit `limit` leaves beside what is `used`; none where it is `unlimited`.
fn of_process(root: &Path, limit: &str, used: &str) -> Option<u64> {
    let limits = read(root.join("proc/self/limits"));
    let limit =
        limits.lines().find_map(|line| line.strip_prefix(limit))?.split_whitespace().next()?.parse::<u64>().ok()?;
    Some(limit.saturating_sub(kib(&read(root.join("proc/self/status")), used).unwrap_or(0)))
}

/// What the control groups of the process leave, of which each may lie in others: the tightest counts. In a container
/// a group may have another path than the process is told, but the outermost one that it sees is at the root.
fn of_groups(root: &Path, groups: &str) -> Option<u64> {
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
        path.ancestors().filter_map(|group| of_group(&mount.join(group), limit, used, reclaimable)).min()
    };
    groups.lines().filter_map(of_line).min()
}

/// What one group leaves. Files that are cached for it and were not used of late are given up for new memory.
fn of_group(group: &Path, limit: &str, used: &str, reclaimable: &str) -> Option<u64> {
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

    /// What is available where these files say so.
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
        assert_eq!(of("max\n", "1\n"), 1_200_000, "the one around it, without what it can give up");
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
