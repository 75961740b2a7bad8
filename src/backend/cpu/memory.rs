//! How much memory of the host is available.

use std::fs;

/// Bytes that can be allocated without swapping: what Linux counts as available, or less where a control group says so.
/// `u64::MAX` where the system does not say.
pub(super) fn available_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").unwrap_or_default();
    let used = fs::read_to_string("/sys/fs/cgroup/memory.current").unwrap_or_default();
    let of_group =
        limit.trim().parse::<u64>().ok().zip(used.trim().parse().ok()).map(|(limit, used)| limit.saturating_sub(used));
    of_meminfo(&meminfo).unwrap_or(u64::MAX).min(of_group.unwrap_or(u64::MAX))
}

fn of_meminfo(text: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        assert_eq!(of_meminfo("MemTotal: 10 kB\nMemAvailable:    3072 kB\n"), Some(3 << 20));
        assert_eq!(of_meminfo("MemTotal: 10 kB\n"), None);
    }
}
