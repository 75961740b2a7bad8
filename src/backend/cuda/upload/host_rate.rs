//! The transfer rate of streamed blocks that go through the host.

use std::time::Duration;

/// Fewer bytes are no sound measurement: a file that is read for the first time may come from a disk.
const MIN_BYTES: u64 = 1 << 30;
/// A host with the pages in memory is faster.
const SLOW_GB_S: f64 = 8.0;

/// Bytes that went through staging buffers, or with pages that were registered, and the time that took.
#[derive(Debug, Default, Clone, Copy)]
pub struct HostRate {
    pub bytes: u64,
    pub time: Duration,
}

impl HostRate {
    /// Returns a remark for the user if the rate is low.
    pub fn remark(self) -> Option<String> {
        let rate = self.bytes as f64 / 1e9 / self.time.as_secs_f64();
        (self.bytes >= MIN_BYTES && rate < SLOW_GB_S).then(|| {
            format!(
                "streamed blocks were read at {rate:.1} GB/s, which limits the speed: the disk is slow, or the machine \
                 has too little memory to cache the file"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slow_host_is_worth_a_remark() {
        let remark = |bytes, seconds| HostRate { bytes, time: Duration::from_secs(seconds) }.remark();
        assert!(remark(7_000_000_000, 2).unwrap().contains("3.5 GB/s"));
        assert_eq!(remark(32_000_000_000, 1), None);
        assert_eq!((remark(1_000_000, 1), remark(0, 0)), (None, None));
    }
}
