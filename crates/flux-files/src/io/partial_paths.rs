//! The paths of files that are being written, readable by a signal handler: without a lock, and without memory that may
//! be freed meanwhile.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// The max number of files in the list; further ones are left out.
const MAX: usize = 8;
/// The max bytes of a path, including the zero that ends it.
const LONGEST: usize = 4096;

struct Slot {
    is_used: AtomicBool,
    /// Changes whenever the path changes.
    version: AtomicU32,
    /// The length without the zero; 0 if there is no path.
    len: AtomicUsize,
    path: [AtomicU8; LONGEST],
}

static SLOTS: [Slot; MAX] = [const {
    Slot {
        is_used: AtomicBool::new(false),
        version: AtomicU32::new(0),
        len: AtomicUsize::new(0),
        path: [const { AtomicU8::new(0) }; LONGEST],
    }
}; MAX];

/// A path that is in the list until the entry is dropped.
pub struct Entry(Option<&'static Slot>);

/// Adds a path to the list, unless the path is too long or the list is full.
pub fn insert(path: &Path) -> Entry {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= LONGEST || bytes.contains(&0) {
        return Entry(None);
    }
    let free = SLOTS.iter().find(|slot| !slot.is_used.swap(true, Ordering::SeqCst));
    if let Some(slot) = free {
        slot.version.fetch_add(1, Ordering::SeqCst);
        slot.path.iter().zip(bytes).for_each(|(to, byte)| to.store(*byte, Ordering::SeqCst));
        slot.len.store(bytes.len(), Ordering::SeqCst);
    }
    Entry(free)
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.len.store(0, Ordering::SeqCst);
            slot.version.fetch_add(1, Ordering::SeqCst);
            slot.is_used.store(false, Ordering::SeqCst);
        }
    }
}

/// Calls `each` with the bytes of every path in the list, which end with a zero. A signal handler may call it, one at a
/// time: it takes no lock, allocates no memory and uses little of the stack.
pub fn for_each(mut each: impl FnMut(&[AtomicU8])) {
    static COPY: [AtomicU8; LONGEST] = [const { AtomicU8::new(0) }; LONGEST];
    for slot in &SLOTS {
        let version = slot.version.load(Ordering::SeqCst);
        let len = slot.len.load(Ordering::SeqCst);
        COPY.iter()
            .zip(&slot.path)
            .take(len)
            .for_each(|(to, byte)| to.store(byte.load(Ordering::SeqCst), Ordering::SeqCst));
        COPY[len].store(0, Ordering::SeqCst);
        let is_whole = slot.version.load(Ordering::SeqCst) == version && slot.len.load(Ordering::SeqCst) == len;
        if len > 0 && is_whole {
            each(&COPY[..=len]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_listed_until_they_are_dropped_and_no_more_than_there_is_room_for() {
        let listed = |name: &str| {
            let mut found = 0;
            for_each(|path| {
                let path: Vec<u8> = path.iter().map(|byte| byte.load(Ordering::SeqCst)).collect();
                found += usize::from(path.ends_with(format!("{name}\0").as_bytes()));
            });
            found
        };
        let long = format!("/{}", "a".repeat(LONGEST));
        let entries: Vec<Entry> =
            ["/tmp/first-of-test", long.as_str()].iter().map(|path| insert(Path::new(path))).collect();
        assert_eq!((listed("first-of-test"), listed("aaaa")), (1, 0));
        drop(entries);
        assert_eq!(listed("first-of-test"), 0);
        let many: Vec<Entry> = (0..2 * MAX).map(|_| insert(Path::new("/tmp/many-of-test"))).collect();
        assert!((1..=MAX).contains(&listed("many-of-test")));
        drop(many);
        let _one = insert(Path::new("short-of-test"));
        assert_eq!(listed("short-of-test"), 1);
    }
}
