//! Checksums of files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flux_base::Result;
use flux_base::error::Error;
use flux_base::stage::CancelFlag;
use sha2::{Digest, Sha256};

use super::remote::Sum;
use flux_runtime::progress::Transfers;

/// Bytes per read.
const PIECE: usize = 1 << 20;

/// A checksum that is being computed.
pub enum Running {
    Sha256(Box<Sha256>),
    Git(Box<sha1::Sha1>),
    None,
}

impl Running {
    /// Begins the checksum of a file of `size` bytes.
    pub fn new(sum: &Sum, size: u64) -> Self {
        match sum {
            Sum::Sha256(_) => Self::Sha256(Box::default()),
            Sum::Git(_) => {
                let mut git = Box::<sha1::Sha1>::default();
                git.update(format!("blob {size}\0"));
                Self::Git(git)
            }
            Sum::None => Self::None,
        }
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(sum) => sum.update(bytes),
            Self::Git(sum) => sum.update(bytes),
            Self::None => {}
        }
    }

    /// Returns `true` if the checksum is as expected. Without a checksum there is nothing to compare.
    pub fn is(self, expected: &Sum) -> bool {
        match (self, expected) {
            (Self::Sha256(sum), Sum::Sha256(expected)) => hex(&sum.finalize()) == *expected,
            (Self::Git(sum), Sum::Git(expected)) => hex(&sum.finalize()) == *expected,
            (Self::None, Sum::None) => true,
            _ => false,
        }
    }

    /// Adds the rest of a file, and returns its number of bytes.
    ///
    /// Errors if the file cannot be read, or the user cancels.
    pub fn update_from(&mut self, file: &mut File, path: &Path, cancel: &CancelFlag) -> Result<u64> {
        let mut piece = vec![0; PIECE];
        let mut total = 0;
        loop {
            cancel.check()?;
            match file.read(&mut piece) {
                Ok(0) => return Ok(total),
                Ok(count) => {
                    self.update(&piece[..count]);
                    total += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::new(format!("cannot read it: {error}")).at_path(path)),
            }
        }
    }
}

/// Returns `true` if a file has this checksum.
///
/// Errors if the file cannot be read, or the user cancels.
pub fn is_right(path: &Path, sum: &Sum, shown: &mut Transfers, cancel: &CancelFlag) -> Result<bool> {
    shown.checking(path);
    let cannot = |error: io::Error| Error::new(format!("cannot read it: {error}")).at_path(path);
    let mut file = File::open(path).map_err(cannot)?;
    let size = file.metadata().map_err(cannot)?.len();
    let mut running = Running::new(sum, size);
    running.update_from(&mut file, path, cancel)?;
    Ok(running.is(sum))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_sha256sum_and_git() {
        for (sum, text) in [
            (Sum::Sha256("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824".to_string()), "hello"),
            (Sum::Git("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0".to_string()), "hello"),
            (Sum::None, "hello"),
        ] {
            let mut running = Running::new(&sum, text.len() as u64);
            running.update(&text.as_bytes()[..2]);
            running.update(&text.as_bytes()[2..]);
            assert!(running.is(&sum), "{sum:?}");
            let mut other = Running::new(&sum, text.len() as u64);
            other.update(b"hallo");
            assert_eq!(other.is(&sum), sum == Sum::None);
        }
    }
}
