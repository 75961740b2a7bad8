//! Bytes of a file, read from front to back.

use std::ops::Range;

/// A position in bytes.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The error for bytes that end too early.
const CUT_OFF: &str = "it is cut off";

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Creates a cursor that begins at a position.
    pub(super) fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Skips bytes, and returns their place.
    pub(super) fn skip(&mut self, count: usize) -> Result<Range<usize>, String> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len()).ok_or(CUT_OFF)?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        self.skip(count).map(|range| &self.bytes[range])
    }

    /// Returns the bytes before the next line feed, and skips both.
    pub(super) fn line(&mut self) -> Result<&'a [u8], String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or(CUT_OFF)?;
        let line = self.take(length)?;
        self.skip(1)?;
        Ok(line)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N)?.try_into().map_err(|_| CUT_OFF.to_string())
    }

    pub(super) fn u8(&mut self) -> Result<u8, String> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, String> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, String> {
        self.array().map(i32::from_le_bytes)
    }

    /// Reads a length of four bytes.
    pub(super) fn length(&mut self) -> Result<usize, String> {
        self.u32().map(|length| length as usize)
    }
}
