//! A read position in the bytes of a GGUF file.

/// A reader of consecutive little-endian values.
pub struct Cursor<'a> {
    bytes: &'a [u8],
    place: usize,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, place: 0 }
    }

    /// Returns the number of bytes read so far.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Reads the next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let bytes = self.bytes[self.place..].get(..len).ok_or("it ends before its tensors do")?;
        self.place += len;
        Ok(bytes)
    }

    /// Skips `count` values of `size` bytes.
    pub fn skip(&mut self, count: u64, size: usize) -> Result<(), String> {
        let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(size));
        self.take(len.ok_or("it ends before its tensors do")?).map(drop)
    }

    pub fn u32(&mut self) -> Result<u32, String> {
        let (bytes, _) = self.take(4)?.as_chunks();
        Ok(u32::from_le_bytes(bytes[0]))
    }

    pub fn u64(&mut self) -> Result<u64, String> {
        let (bytes, _) = self.take(8)?.as_chunks();
        Ok(u64::from_le_bytes(bytes[0]))
    }

    /// Reads a length-prefixed UTF-8 string.
    pub fn string(&mut self) -> Result<&'a str, String> {
        let len = usize::try_from(self.u64()?).map_err(|_| "it ends before its tensors do")?;
        std::str::from_utf8(self.take(len)?).map_err(|_| "it has a string that is not UTF-8".to_string())
    }
}
