//! Files that are being written under a temporary name, so that none of them outlives the program.
//!
//! A signal that ends the program first removes the files that the program is writing. A kill leaves them behind, and
//! the next program that writes in the same folder removes old ones.

use std::collections::BTreeSet;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::NamedTempFile;

use crate::io::partial_paths;

const PREFIX: &str = ".flux-";
const SUFFIX: &str = ".part";
/// The min time since the last write after which a file belongs to no running program.
const OLD: Duration = Duration::from_secs(3600);

struct State {
    /// The files that are being written.
    partial: BTreeSet<PathBuf>,
    /// Folders from which old files have been removed.
    tidied: BTreeSet<PathBuf>,
}

static STATE: Mutex<State> = Mutex::new(State { partial: BTreeSet::new(), tidied: BTreeSet::new() });

/// An entry of the list, until the file has its final name or is removed.
pub(crate) struct Listed {
    path: PathBuf,
    _entry: partial_paths::Entry,
}

impl Drop for Listed {
    fn drop(&mut self) {
        STATE.lock().partial.remove(&self.path);
    }
}

/// Creates an empty file with the permissions of any new file.
pub(crate) fn create(folder: &Path) -> io::Result<(NamedTempFile, Listed)> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    builder.permissions(Permissions::from_mode(0o666)); // the umask applies
    let mut state = STATE.lock();
    let file = builder.tempfile_in(folder)?;
    let path = file.path().to_path_buf();
    state.partial.insert(path.clone());
    if state.tidied.insert(folder.to_path_buf()) {
        remove_old(folder, &file.as_file().metadata()?);
    }
    Ok((file, Listed { _entry: partial_paths::insert(&path), path }))
}

/// Calls `each` with the path of every file that is being written, or of the first few: its bytes, which end with a
/// zero. A signal handler may call it, one at a time: it takes no lock and allocates no memory.
pub fn for_each_path(each: impl FnMut(&[AtomicU8])) {
    partial_paths::for_each(each);
}

/// Runs `work` to its end even if a signal ends the program meanwhile.
pub(crate) fn whole<T>(work: impl FnOnce() -> T) -> T {
    let _state = STATE.lock();
    work()
}

/// Removes the files that are being written, and blocks every thread that starts another one. For the end of the
/// program.
pub fn remove_all() {
    let state = STATE.lock();
    for path in &state.partial {
        let _ = fs::remove_file(path); // it already has its final name, or cannot be removed
    }
    std::mem::forget(state);
}

/// Removes files that killed programs left in `folder`: old regular files with this program's naming and the owner of
/// `new`. A file that cannot be removed stays, without an error.
fn remove_old(folder: &Path, new: &Metadata) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        // The metadata of an entry does not follow links.
        if is_ours && entry.metadata().is_ok_and(|found| found.is_file() && found.uid() == new.uid() && is_old(&found))
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_old(file: &Metadata) -> bool {
    file.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > OLD))
}

#[cfg(test)]
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
