//! The parts of image files, without decoding them: chunks of PNG and WebP, segments of JPEG.

use std::iter;

/// The marker of a JPEG's scan header. Compressed pixels follow it.
pub(crate) const SCAN: u8 = 0xda;

/// A chunk of a PNG or a WebP.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk<'a> {
    pub(crate) kind: &'a [u8; 4],
    pub(crate) data: &'a [u8],
    /// All bytes of the chunk.
    pub(crate) whole: &'a [u8],
}

/// A segment of a JPEG.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub(crate) marker: u8,
    pub(crate) data: &'a [u8],
    /// All bytes of the segment.
    pub(crate) whole: &'a [u8],
    /// The position in the file.
    pub(crate) at: usize,
}

impl Segment<'_> {
    /// Returns the position after the segment.
    pub(crate) fn end(&self) -> usize {
        self.at + self.whole.len()
    }
}

/// Returns the chunks of a PNG up to the first one that is cut off.
pub(crate) fn png_chunks(file: &[u8]) -> impl Iterator<Item = Chunk<'_>> {
    chunks(file, 8, |header| {
        let &[a, b, c, d, _, _, _, _] = header;
        (12 + u32::from_be_bytes([a, b, c, d]) as usize, 4, 4)
    })
}

/// Returns the chunks of a WebP up to the first one that is cut off.
pub(crate) fn webp_chunks(file: &[u8]) -> impl Iterator<Item = Chunk<'_>> {
    chunks(file, 12, |header| {
        let &[_, _, _, _, a, b, c, d] = header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        (8 + length + length % 2, 0, length % 2)
    })
}

/// Returns the chunks from `at` on. `layout` returns the length of a chunk, the position of its kind, and the number of
/// bytes after its data, by its first 8 bytes.
fn chunks(
    file: &[u8],
    mut at: usize,
    layout: impl Fn(&[u8; 8]) -> (usize, usize, usize),
) -> impl Iterator<Item = Chunk<'_>> {
    iter::from_fn(move || {
        let (length, kind, behind) = layout(file.get(at..)?.first_chunk()?);
        let whole = file.get(at..at.checked_add(length)?)?;
        at += length;
        Some(Chunk { kind: whole[kind..].first_chunk()?, data: &whole[8..length - behind], whole })
    })
}

/// Returns the segments of a JPEG up to its first scan header, which is the last one, or up to damage.
pub(crate) fn jpeg_segments(file: &[u8]) -> impl Iterator<Item = Segment<'_>> {
    let mut next = Some(2);
    iter::from_fn(move || {
        let mut at = next.take()?;
        // Markers may be padded.
        while file.get(at..at + 2)? == [0xff, 0xff] {
            at += 1;
        }
        let &[0xff, marker, high, low] = file.get(at..)?.first_chunk()? else { return None };
        let whole = file.get(at..at + 2 + usize::from(u16::from_be_bytes([high, low])))?;
        next = Some(at + whole.len()).filter(|_| marker != SCAN);
        Some(Segment { marker, data: whole.get(4..)?, whole, at })
    })
}
