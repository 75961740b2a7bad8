//! A zip archive as `torch.save` writes it: no record is compressed.
//!
//! Source: PKWARE APPNOTE 6.3.10, sections 4.3.7, 4.3.12 to 4.3.16 and 4.5.3.

use std::ops::Range;

use super::cursor_at;
use crate::containers::cursor::Cursor;

/// The first bytes of an archive.
pub(super) const MAGIC: &[u8] = b"PK\x03\x04";
const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR_64: u32 = 0x0706_4b50;
/// Bytes of the end without its comment, and of the locator before it.
const END_BYTES: usize = 22;
const LOCATOR_BYTES: usize = 20;
/// The type of the extra field with sizes of 64 bits.
const EXTRA_64: u16 = 1;
const MAX_RECORDS: u64 = 100_000;

/// The records of an archive.
pub(super) struct Archive<'a> {
    records: Vec<(&'a [u8], Range<usize>)>,
}

impl<'a> Archive<'a> {
    /// Reads the directory.
    ///
    /// Errors if it is damaged, or a record is compressed or encrypted.
    pub(super) fn read(all: &'a [u8]) -> Result<Self, String> {
        let (count, start) = directory(all)?;
        if count > MAX_RECORDS {
            return Err(format!("the archive has {count} records"));
        }
        let mut cursor = cursor_at(all, start);
        let records = (0..count).map(|_| record(all, &mut cursor)).collect::<Result<_, _>>()?;
        Ok(Self { records })
    }

    /// Returns the place of the record whose name is `name` in the archive's folder.
    pub(super) fn find(&self, name: &str) -> Option<Range<usize>> {
        let is_named = |path: &[u8]| {
            let folder = path.strip_suffix(name.as_bytes());
            folder.is_some_and(|folder| {
                folder.is_empty() || folder.iter().position(|byte| *byte == b'/') == Some(folder.len() - 1)
            })
        };
        self.records.iter().find(|(path, _)| is_named(path)).map(|(_, range)| range.clone())
    }
}

/// Returns the number of records, and the place of the directory.
fn directory(all: &[u8]) -> Result<(u64, usize), String> {
    const MAX_COMMENT: usize = 1 << 16;
    let last = all.len().checked_sub(END_BYTES).ok_or("it is cut off")?;
    let is_end = |at: &usize| all[*at..].starts_with(&END.to_le_bytes());
    let end =
        (last.saturating_sub(MAX_COMMENT)..=last).rev().find(is_end).ok_or("the end of the archive is missing")?;
    let mut cursor = cursor_at(all, end + 10);
    let (count, _, start) = (u64::from(cursor.u16()?), cursor.u32()?, u64::from(cursor.u32()?));
    let locator = end.checked_sub(LOCATOR_BYTES).filter(|at| all[*at..].starts_with(&LOCATOR_64.to_le_bytes()));
    let (count, start) = match locator {
        None => (count, start),
        Some(at) => {
            let mut cursor = cursor_at(all, place(cursor_at(all, at + 8).u64()?)?);
            if cursor.u32()? != END_64 {
                return Err("the end of the archive is damaged".to_string());
            }
            cursor.skip(28)?;
            let (count, _, start) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
            (count, start)
        }
    };
    Ok((count, place(start)?))
}

/// Reads a record of the directory, and finds its bytes.
fn record<'a>(all: &'a [u8], cursor: &mut Cursor<'a>) -> Result<(&'a [u8], Range<usize>), String> {
    if cursor.u32()? != CENTRAL {
        return Err("the directory of the archive is damaged".to_string());
    }
    cursor.skip(4)?;
    let (flags, method) = (cursor.u16()?, cursor.u16()?);
    cursor.skip(8)?;
    let (packed, size) = (u64::from(cursor.u32()?), u64::from(cursor.u32()?));
    let [name, extra, comment] = [cursor.u16()?, cursor.u16()?, cursor.u16()?].map(usize::from);
    cursor.skip(8)?;
    let start = u64::from(cursor.u32()?);
    let name = cursor.take(name)?;
    let [size, packed, start] = sizes(cursor.take(extra)?, [size, packed, start])?;
    cursor.skip(comment)?;
    if method != 0 || flags & 1 != 0 || size != packed {
        return Err(format!("record `{}` of the archive is compressed", String::from_utf8_lossy(name)));
    }
    let mut local = cursor_at(all, place(start)?);
    if local.u32()? != LOCAL {
        return Err("a record of the archive is damaged".to_string());
    }
    local.skip(22)?;
    let [name_bytes, extra_bytes] = [local.u16()?, local.u16()?].map(usize::from);
    local.skip(name_bytes + extra_bytes)?;
    Ok((name, local.skip(place(size)?)?))
}

/// Replaces sizes that do not fit in 32 bits by those of the extra field.
fn sizes(extra: &[u8], mut sizes: [u64; 3]) -> Result<[u64; 3], String> {
    let mut cursor = cursor_at(extra, 0);
    while let Ok(kind) = cursor.u16() {
        let length = usize::from(cursor.u16()?);
        let field = cursor.take(length)?;
        if kind == EXTRA_64 {
            let mut field = cursor_at(field, 0);
            for size in sizes.iter_mut().filter(|size| **size == u64::from(u32::MAX)) {
                *size = field.u64()?;
            }
        }
    }
    Ok(sizes)
}

fn place(at: u64) -> Result<usize, String> {
    usize::try_from(at).map_err(|_| "a place in the archive is too large".to_string())
}
