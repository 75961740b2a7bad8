//! A read position in the bytes of a file.

use std::ops::Range;

/// A reader of consecutive little-endian values.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The error for bytes that end too early.
    cut_off: &'static str,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at a position; `cut_off` is the error for bytes that end too early.
    pub(super) fn new(bytes: &'a [u8], at: usize, cut_off: &'static str) -> Self {
        Self { bytes, at, cut_off }
    }

    /// Returns the position.
    pub(super) fn place(&self) -> usize {
        self.at
    }

    /// Skips bytes, and returns their place.
    pub(super) fn skip(&mut self, count: usize) -> Result<Range<usize>, String> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len()).ok_or(self.cut_off)?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    /// Skips `count` values of `size` bytes.
    pub(super) fn skip_values(&mut self, count: u64, size: usize) -> Result<Range<usize>, String> {
        let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(size));
        self.skip(len.ok_or(self.cut_off)?)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        self.skip(count).map(|range| &self.bytes[range])
    }

    /// Returns the bytes before the next line feed, and skips both.
    pub(super) fn line(&mut self) -> Result<&'a [u8], String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or(self.cut_off)?;
        let line = self.take(length)?;
        self.skip(1)?;
        Ok(line)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N)?.try_into().map_err(|_| self.cut_off.to_string())
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
}
