//! The page cache of the system: tells cold files, which come from a disk, from warm ones.

/// The pages of a range that are looked up.
const SAMPLES: usize = 8;

/// Returns `true` if one of a few pages of the mapped `bytes` is not in memory. Returns `false` if the system does not
/// tell.
#[allow(unsafe_code)]
pub(super) fn is_cold(bytes: &[u8]) -> bool {
    // SAFETY: a query without precondition; -1 means unknown.
    let Ok(page @ 1..) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return false };
    let range = bytes.as_ptr_range();
    let (first, end) = (range.start.addr() / page * page, range.end.addr());
    let step = (end - first).div_ceil(SAMPLES).next_multiple_of(page).max(page);
    (first..end).step_by(step).any(|address| {
        let mut residency = [1];
        let address = range.start.with_addr(address).cast_mut().cast();
        // SAFETY: the address is a multiple of the page size, and the result for one page has one byte. The system
        // only looks the page up, and returns an error for memory that is not mapped.
        let done = unsafe { libc::mincore(address, page, residency.as_mut_ptr()) };
        done == 0 && residency[0] & 1 == 0
    })
}
