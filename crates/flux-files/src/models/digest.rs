//! Digests that identify files.
//!
//! The digest of a file of up to [`WHOLE`] bytes is its SHA-256. A larger file takes seconds to read, so its digest is
//! the SHA-256 of its length, its beginning, and pages at even distances. Every large tensor has some of these pages.
//! Such a digest tells models apart, but not single values.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::catalog::role::Role;
use crate::io::bytes::Bytes;
use crate::models::component::{CONFIG, Component, ComponentSource};
use crate::models::model_files::{ModelFiles, TokenizerFile};
use flux_base::error::Result;

/// The max size of a file that is read as a whole, in bytes: a sixth of a second at 1.5 GB/s.
const WHOLE: usize = 256 << 20;
/// The bytes that are read from the beginning of a larger file: its header.
const HEAD: usize = 1 << 20;
/// The size of a page, and the number of pages that are read.
const PAGE: usize = 4096;
const PAGES: usize = 4096;

/// Returns the digest of a file.
///
/// Errors if it cannot be read.
pub fn hash_file(path: &Path) -> Result<String> {
    hash_paths(&[path])
}

/// Returns one digest of files that belong together.
///
/// Errors if a file cannot be read.
pub fn hash_paths<P: AsRef<Path>>(paths: &[P]) -> Result<String> {
    let files = paths.iter().map(|path| Bytes::map(path.as_ref())).collect::<Result<Vec<_>>>()?;
    Ok(hash_files(&files.iter().map(Bytes::as_slice).collect::<Vec<_>>()))
}

/// Returns the digest of a file's bytes.
pub fn hash_bytes(bytes: &[u8]) -> String {
    hash_files(&[bytes])
}

/// Returns the SHA-256 of all of these bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    sha256_of([bytes])
}

/// Returns the SHA-256 of these bytes one after the other, in hexadecimal.
pub fn sha256_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let hash = parts.into_iter().fold(Sha256::new(), |hash, part| hash.chain_update(part));
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns one digest of files that belong together, which for a single file is its own.
pub(crate) fn hash_files(files: &[&[u8]]) -> String {
    let is_whole = files.iter().map(|file| file.len()).sum::<usize>() <= WHOLE;
    let mut hash = Sha256::new();
    for file in files {
        if files.len() > 1 || !is_whole {
            hash.update((file.len() as u64).to_le_bytes());
        }
        if is_whole { hash.update(file) } else { sample(file).for_each(|part| hash.update(part)) }
    }
    let hex = hex(&hash.finalize());
    if is_whole { format!("sha256:{hex}") } else { format!("sampled-sha256:{hex}") }
}

/// Returns the beginning of a file, and pages at even distances.
fn sample(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    let distance = (file.len() / PAGES).max(HEAD);
    let pages = (1..).map(move |page| page * distance).take_while(|start| *start < file.len());
    let page = |start: usize| &file[start..file.len().min(start + PAGE)];
    std::iter::once(&file[..file.len().min(HEAD)]).chain(pages.map(page))
}

impl Component {
    /// Returns the digest of the component's config and weights.
    ///
    /// Errors if a file cannot be read.
    pub fn digest(&self) -> Result<String> {
        let containers = self.containers()?;
        let config = match &self.source {
            ComponentSource::Folder(folder) => Some(folder.bytes(CONFIG)?),
            ComponentSource::File(_) | ComponentSource::Missing(_) => None,
        };
        let weights = containers.iter().map(|container| container.bytes().as_slice());
        Ok(hash_files(&config.iter().map(Bytes::as_slice).chain(weights).collect::<Vec<_>>()))
    }
}

impl ModelFiles {
    /// Returns the digests of the model's parts, each with its name.
    ///
    /// Errors if a file cannot be read.
    pub fn digests(&self) -> Result<Vec<(&'static str, String)>> {
        let mut digests = Vec::new();
        for role in Role::ALL {
            digests.push((role.folder(), self.component(role).digest()?));
        }
        let tokenizer = match self.tokenizer() {
            TokenizerFile::Json(folder, name) => Some(hash_bytes(folder.bytes(name)?.as_slice())),
            // The tokenizer is in the file of the text encoder, or in the program.
            TokenizerFile::Gguf(_) | TokenizerFile::Carried => None,
        };
        digests.extend(tokenizer.map(|digest| ("tokenizer", digest)));
        Ok(digests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_sha_256_of_a_file() {
        // Source: FIPS 180-4, the example of one block.
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash_bytes(b"abc"), abc);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "abc").unwrap();
        assert_eq!(hash_file(&folder.path().join("a")).unwrap(), abc);
        assert!(hash_file(&folder.path().join("b")).is_err());
    }

    #[test]
    fn files_that_belong_together_have_one_digest_which_their_borders_change() {
        assert_ne!(hash_files(&[b"ab", b"c"]), hash_files(&[b"a", b"bc"]));
        assert_ne!(hash_files(&[b"abc", b""]), hash_bytes(b"abc"));
    }

    #[test]
    fn the_sample_of_a_long_file_has_its_ends_and_pages_between() {
        let file = vec![0; 10 * HEAD + 7];
        let parts: Vec<_> =
            sample(&file).map(|part| (part.as_ptr().addr() - file.as_ptr().addr(), part.len())).collect();
        assert_eq!(parts[..3], [(0, HEAD), (HEAD, PAGE), (2 * HEAD, PAGE)]);
        assert_eq!(parts.last(), Some(&(10 * HEAD, 7)));
        assert_eq!(sample(b"abc").collect::<Vec<_>>(), [b"abc"]);
    }

    #[test]
    fn every_part_of_a_model_has_a_digest() {
        let model = ModelFiles::open("../../models/tiny".as_ref()).unwrap();
        let digests = model.digests().unwrap();
        let names: Vec<_> = digests.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["text_encoder", "transformer", "vae", "tokenizer"]);
        assert!(digests.iter().all(|(_, digest)| digest.len() == "sha256:".len() + 64));
    }
}
