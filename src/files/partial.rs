//! Files that are being written under a temporary name, so that none of them outlives the program.
//!
//! A signal that ends the program at once removes those that it is writing. A kill leaves them behind, and the next
//! program that writes in the same folder removes what is old.

use std::collections::BTreeSet;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::sync::atomic::AtomicU8;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::NamedTempFile;

#[cfg(unix)]
use super::partial_paths;

const PREFIX: &str = ".flux-";
const SUFFIX: &str = ".part";
/// A file that nobody has written to for so long belongs to no program that runs.
const OLD: Duration = Duration::from_secs(3600);

struct State {
    /// What is being written.
    partial: BTreeSet<PathBuf>,
    /// Folders from which old files were removed.
    tidied: BTreeSet<PathBuf>,
}

static STATE: Mutex<State> = Mutex::new(State { partial: BTreeSet::new(), tidied: BTreeSet::new() });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a file in the list until it has its name or is gone.
pub(super) struct Listed {
    path: PathBuf,
    #[cfg(unix)]
    _entry: partial_paths::Entry,
}

impl Drop for Listed {
    fn drop(&mut self) {
        state().partial.remove(&self.path);
    }
}

/// Makes an empty file with the permissions of any new file.
pub(super) fn create(folder: &Path) -> io::Result<(NamedTempFile, Listed)> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    #[cfg(unix)]
    builder.permissions(<Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666)); // less the umask
    let mut state = state();
    let file = builder.tempfile_in(folder)?;
    let path = file.path().to_path_buf();
    state.partial.insert(path.clone());
    if state.tidied.insert(folder.to_path_buf()) {
        remove_old(folder, &file.as_file().metadata()?);
    }
    let listed = Listed {
        #[cfg(unix)]
        _entry: partial_paths::insert(&path),
        path,
    };
    Ok((file, listed))
}

/// Calls `each` for the path of every file that is being written, of a few at least: its bytes, which end with a zero.
/// A signal handler may do this, one at a time: it takes no lock and no memory.
#[cfg(unix)]
pub fn for_each_path(each: impl FnMut(&[AtomicU8])) {
    partial_paths::for_each(each);
}

/// Does what must be done to its end even where a signal ends the program.
pub(super) fn whole<T>(work: impl FnOnce() -> T) -> T {
    let _state = state();
    work()
}

/// Removes the files that are being written, and makes all who begin another one wait. For the end of the program.
pub fn remove_all() {
    let state = state();
    for path in &state.partial {
        let _ = fs::remove_file(path); // it has its name already, or nothing can be done
    }
    std::mem::forget(state);
}

/// Removes what programs that were killed have left in `folder`: regular files of our naming and of the owner of `new`
/// that are old. It is no part of the work, so what cannot be removed stays without a word.
fn remove_old(folder: &Path, new: &Metadata) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        // The metadata of an entry is that of a link itself.
        if is_ours && entry.metadata().is_ok_and(|found| found.is_file() && same_owner(&found, new) && is_old(&found)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_old(file: &Metadata) -> bool {
    file.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > OLD))
}

#[cfg(unix)]
fn same_owner(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    a.uid() == b.uid()
}

#[cfg(not(unix))]
fn same_owner(_a: &Metadata, _b: &Metadata) -> bool {
    true
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn old_partial_files_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let aged = |name: &str, seconds: u64| {
            let time = SystemTime::now() - Duration::from_secs(seconds);
            File::create(at(name)).unwrap().set_modified(time).unwrap();
        };
        aged(".flux-old.part", 3700);
        aged(".flux-young.part", 3500);
        aged(".flux-old.png", 3700);
        aged("flux-old.part", 3700);
        fs::create_dir(at(".flux-folder.part")).unwrap();
        aged("target", 3700);
        symlink("target", at(".flux-link.part")).unwrap();
        aged(".flux-foreign.part", 3700);
        let foreign = std::os::unix::fs::chown(at(".flux-foreign.part"), Some(12345), None).is_ok();
        drop(create(folder.path()).unwrap());
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        let mut expected = vec![".flux-folder.part"];
        expected.extend(foreign.then_some(".flux-foreign.part"));
        expected.extend([".flux-link.part", ".flux-old.png", ".flux-young.part", "flux-old.part", "target"]);
        expected.sort_unstable();
        assert_eq!(left, expected);
    }
}
