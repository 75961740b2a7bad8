//! Splitting of a JPEG stream into images by their markers. Segments are skipped by length, because a thumbnail may be
//! a whole JPEG itself.
//!
//! Within scan data, bytes are only searched for the next marker. Entropy-coded data is decoded only when the image is,
//! so dropped frames cost little.

use std::io::{self, BufRead, Read};

/// Maximum size of an image, in bytes.
const MAX_BYTES: usize = 64 << 20;

const START: u8 = 0xd8;
const END: u8 = 0xd9;
const SCAN: u8 = 0xda;

/// A stream of JPEGs.
pub struct Mjpeg<R> {
    from: R,
    /// True if the next image's start marker was already read.
    has_start: bool,
}

impl<R: BufRead> Mjpeg<R> {
    pub fn new(from: R) -> Self {
        Self { from, has_start: false }
    }

    /// Returns the bytes of the next image, or `None` at the end. Bytes between images are skipped. For a damaged or
    /// truncated image, the bytes before the damage are returned.
    ///
    /// Errors when the stream cannot be read.
    pub fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if !std::mem::take(&mut self.has_start) && !self.find_start()? {
            return Ok(None);
        }
        let mut image = vec![0xff, START];
        match self.rest_of(&mut image) {
            Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => Err(e),
            _ => Ok(Some(image)),
        }
    }

    /// Reads past the next start marker. Returns `false` at the end.
    fn find_start(&mut self) -> io::Result<bool> {
        let mut is_marker = false;
        loop {
            let Some(&byte) = self.from.fill_buf()?.first() else { return Ok(false) };
            self.from.consume(1);
            if is_marker && byte == START {
                return Ok(true);
            }
            is_marker = byte == 0xff;
        }
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.from.read_exact(&mut byte).map(|()| byte[0])
    }

    /// Reads an image up to its end, the start of the next one, or damage.
    fn rest_of(&mut self, image: &mut Vec<u8>) -> io::Result<()> {
        let mut marker = self.marker()?;
        while image.len() <= MAX_BYTES {
            match marker {
                None => return Ok(()),
                Some(START) => {
                    self.has_start = true;
                    return Ok(());
                }
                Some(marker) => image.extend([0xff, marker]),
            }
            marker = match marker {
                Some(END) => return Ok(()),
                Some(0x01 | 0xd0..=0xd7) => self.marker()?,
                Some(SCAN) => {
                    self.segment(image)?;
                    Some(self.scan(image)?)
                }
                _ => {
                    self.segment(image)?;
                    self.marker()?
                }
            };
        }
        Ok(())
    }

    /// Reads a segment with a length.
    fn segment(&mut self, image: &mut Vec<u8>) -> io::Result<()> {
        let length = [self.byte()?, self.byte()?];
        image.extend(length);
        let rest = u64::from(u16::from_be_bytes(length)).saturating_sub(2);
        match self.from.by_ref().take(rest).read_to_end(image)? as u64 == rest {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Returns the next marker, or `None` if other bytes follow.
    fn marker(&mut self) -> io::Result<Option<u8>> {
        if self.byte()? != 0xff {
            return Ok(None);
        }
        self.filled_marker().map(|marker| Some(marker).filter(|marker| *marker != 0))
    }

    /// Returns the second byte of a marker, skipping fill bytes.
    fn filled_marker(&mut self) -> io::Result<u8> {
        loop {
            match self.byte()? {
                0xff => {}
                marker => return Ok(marker),
            }
        }
    }

    /// Reads the data of a scan. Returns the marker after it.
    fn scan(&mut self, image: &mut Vec<u8>) -> io::Result<u8> {
        loop {
            let room = (MAX_BYTES + 2).saturating_sub(image.len());
            self.from.by_ref().take(room as u64).read_until(0xff, image)?;
            if image.last() != Some(&0xff) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match self.filled_marker()? {
                data @ (0 | 0xd0..=0xd7) => image.push(data),
                marker => {
                    image.pop();
                    return Ok(marker);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::input;
    use crate::metadata::Metadata;
    use crate::output::encode_jpeg;
    use crate::rgb::Rgb;

    use super::*;

    fn jpeg(level: u8) -> Vec<u8> {
        let bytes = (0..3 * 40 * 24).map(|i| (i as u8).wrapping_mul(level)).collect();
        encode_jpeg(&Rgb { width: 40, height: 24, bytes }, 90, &Metadata::default()).unwrap()
    }

    fn images(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut stream = Mjpeg::new(bytes);
        std::iter::from_fn(|| stream.next().unwrap()).collect()
    }

    /// Adds a segment that contains another image, as a thumbnail does.
    fn with_thumbnail(image: &[u8], thumbnail: &[u8]) -> Vec<u8> {
        let length = (thumbnail.len() as u16 + 2).to_be_bytes();
        [&image[..2], &[0xff, 0xe1], &length, thumbnail, &image[2..]].concat()
    }

    #[test]
    fn images_are_cut_at_their_ends_whatever_is_between_and_inside() {
        let (a, b) = (jpeg(3), jpeg(7));
        let with = with_thumbnail(&a, &b);
        let stream = [&a[..], b"\r\n--boundary\r\nContent-Type: image/jpeg\r\n\r\n", &with, &b].concat();
        assert_eq!(images(&stream), [&a[..], &with, &b]);
        assert_eq!(input::read_bytes(&with).unwrap(), input::read_bytes(&a).unwrap());
        assert!(images(b"").is_empty() && images(b"no image at all").is_empty());
    }

    #[test]
    fn an_image_that_breaks_off_is_damaged_and_those_behind_it_are_not() {
        let (a, b) = (jpeg(3), jpeg(7));
        for cut in [2, 3, 30, a.len() / 2, a.len() - 3] {
            let found = images(&[&a[..cut], &b, &b].concat());
            assert!(input::read_bytes(&found[0]).is_err(), "{cut}");
            // An image truncated inside a segment takes a part of the next one with it.
            assert_eq!(found.last(), Some(&b), "{cut}");
        }
        assert_eq!(images(&[&a[..a.len() - 2], &b].concat())[1..], [b], "the start of the next image ends an image");
    }

    #[test]
    fn an_image_without_an_end_keeps_no_more_than_it_may() {
        let scan = jpeg(3).windows(2).position(|marker| marker == [0xff, SCAN]).unwrap();
        let endless = io::repeat(7);
        let head = jpeg(3)[..scan + 20].to_vec();
        let mut stream = Mjpeg::new(io::BufReader::new(head.chain(endless)));
        assert!(stream.next().unwrap().unwrap().len() <= MAX_BYTES + 2);
    }
}
