//! Encodes the pixels of a PNG on several threads.
//!
//! A PNG contains one zlib stream. [`Compression::Fast`] codes each row by one fixed table, independent of the
//! previous rows, so the codes of an image are the concatenated codes of its stripes, bit by bit. They equal the codes
//! from one thread, for any number of threads.
//!
//! The filter of a row needs the row above it. A stripe is encoded with that row, whose codes, as those of an image of
//! one row, are then left out.
//!
//! Measured on two cores of a Zen 5, 1024x1024, the fastest of 50, by `cargo test --profile quick --lib -- --ignored
//! png_stripes --nocapture`: noise, 3147 kB, takes `write_image_data` 2.7 ms, this on one thread 4.7 ms and on two 2.6
//! ms; soft colours with grain, 1788 kB, 2.7, 4.1 and 2.2 ms. The serial part is 0.3 ms. Tried: the coder of the
//! library (fdeflate) by itself with a filter of our own, which is as fast; Sub for the first row of each stripe
//! instead of the row above it, up to 0.5% more bytes for a photograph.

use std::io::Write;
use std::mem;
use std::ops::Range;

use png::{BitDepth, ColorType, Compression, Encoder, EncodingError, Filter, Writer, chunk};
use rayon::prelude::*;

/// Rows of a stripe. One more row is encoded with each.
const ROWS: usize = 64;
/// Bytes of a PNG with only pixels before its zlib stream (signature, header, head of the data) and after it (checksum
/// of the data, end).
const BEFORE: usize = 8 + 25 + 8;
const BEHIND: usize = 4 + 12;
/// Bytes of a zlib stream's header.
const ZLIB_HEAD: usize = 2;
/// Bits of the code that ends a block. Its last bit is set, so the zeros that fill the last byte begin after it.
const END_OF_BLOCK: usize = 12;
/// Maximum bytes of an uncompressed block, and bytes of its header.
const STORED: usize = u16::MAX as usize;
const STORED_HEAD: usize = 5;
/// The modulus of Adler-32.
const ADLER: i64 = 65521;
/// Bytes after which a chunk is written, while they are still in the processor's cache.
const CHUNK: usize = 64 << 10;

type Result<T> = std::result::Result<T, EncodingError>;

/// Writes the pixels of rows of `row` bytes, RGB8, if compression makes them smaller. Returns `true` if it wrote them.
///
/// Errors if the pixels are no rows of an image.
pub fn write<W: Write>(writer: &mut Writer<W>, rgb: &[u8], row: usize) -> Result<bool> {
    let height = rgb.len() / row;
    let rows = |stripe: usize| stripe * ROWS..height.min((stripe + 1) * ROWS);
    let stripes: Vec<Stripe> = (0..height.div_ceil(ROWS))
        .into_par_iter()
        .map(|stripe| Stripe::encode(rgb, row, rows(stripe)))
        .collect::<Result<_>>()?;
    let bits = stripes.iter().map(|stripe| stripe.codes.len()).sum::<usize>() + END_OF_BLOCK;
    let filtered = rgb.len() + height;
    if bits.div_ceil(8) > ZLIB_HEAD + filtered + STORED_HEAD * filtered.div_ceil(STORED) {
        return Ok(false);
    }
    let (mut joined, mut sum) = (Bits::default(), Sum::default());
    for stripe in &stripes {
        joined.append(&stripe.zlib.bytes, stripe.codes.clone());
        sum.append(stripe.zlib.sum, stripe.above, stripe.filtered);
        if joined.bytes.len() >= CHUNK {
            writer.write_chunk(chunk::IDAT, &joined.take())?;
        }
    }
    if let Some(Stripe { zlib, codes, .. }) = stripes.last() {
        joined.append(&zlib.bytes, codes.end..codes.end + END_OF_BLOCK);
    }
    joined.bytes.extend(sum.bytes());
    writer.write_chunk(chunk::IDAT, &joined.bytes)?;
    Ok(true)
}

/// Creates an encoder of RGB8 with fast compression and the same filter for each row.
pub fn encoder<W: Write>(file: W, width: u32, height: u32) -> Encoder<'static, W> {
    let mut encoder = Encoder::new(file, width, height);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    // Measured on one core of a Zen 3, a 720x477 photograph: Fast 2.5 ms and 683 kB, Balanced 71 ms and 669 kB, High 96
    // ms and 668 kB.
    encoder.set_compression(Compression::Fast);
    // `Fast` would choose a filter for each row (adaptive). It nearly always chooses Paeth, and trying all filters
    // costs time. Measured on one core of an EPYC, 1024x1024, adaptive and Paeth: a photograph 6.2 ms and 1654 kB, 5.5
    // ms and 1654 kB; soft colours 3.1 ms and 279 kB, 2.6 ms and 281 kB; the same with grain 5.0 ms and 1471 kB, 4.1
    // ms and 1552 kB; noise 4.5 and 3.8 ms, both 3147 kB. Tried: Up, 0.5 ms less and up to a fifth more bytes.
    encoder.set_filter(Filter::Paeth);
    encoder
}

/// Rows that one thread encodes.
struct Stripe {
    /// The stream of its rows and of the row above them.
    zlib: Zlib,
    /// The bits of its rows; those of the first stripe begin with the stream.
    codes: Range<usize>,
    /// The checksum of the row above.
    above: Sum,
    /// Number of bytes, including the filter bytes of rows.
    filtered: usize,
}

impl Stripe {
    fn encode(rgb: &[u8], row: usize, rows: Range<usize>) -> Result<Self> {
        let of = |rows: Range<usize>| Zlib::encode(&rgb[rows.start * row..rows.end * row], row);
        let first = rows.start.saturating_sub(1);
        let (begin, above) = if rows.start == 0 {
            (0, Sum::default())
        } else {
            let above = of(first..rows.start)?;
            (above.end_of_codes(), above.sum)
        };
        let zlib = of(first..rows.end)?;
        Ok(Self { codes: begin..zlib.end_of_codes(), zlib, above, filtered: rows.len() * (row + 1) })
    }
}

/// The zlib stream of an image.
struct Zlib {
    /// Ends with one zero byte instead of the checksum.
    bytes: Vec<u8>,
    sum: Sum,
}

impl Zlib {
    /// Encodes rows, even if this makes them longer, in contrast to `write_image_data`.
    fn encode(rgb: &[u8], row: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        let mut writer = encoder(&mut bytes, (row / 3) as u32, (rgb.len() / row) as u32).write_header()?;
        // One chunk: codes have at most 12 bits.
        let mut stream = writer.stream_writer_with_size(2 * (rgb.len() + rgb.len() / row) + 128)?;
        stream.write_all(rgb)?;
        stream.finish()?;
        writer.finish()?;
        bytes.truncate(bytes.len() - BEHIND);
        bytes.drain(..BEFORE);
        let sum = Sum::from_trailer(&bytes.split_off(bytes.len() - 4));
        bytes.push(0);
        Ok(Self { bytes, sum })
    }

    /// Returns the number of bits before the code that ends the block.
    fn end_of_codes(&self) -> usize {
        let filled = self.bytes.iter().rev().nth(1).map_or(0, |last| last.leading_zeros() as usize);
        8 * (self.bytes.len() - 1) - filled - END_OF_BLOCK
    }
}

/// Adler-32: the sum of the bytes, and the sum of these sums after each byte.
#[derive(Clone, Copy)]
struct Sum {
    low: i64,
    high: i64,
}

impl Default for Sum {
    /// The checksum of no bytes.
    fn default() -> Self {
        Self { low: 1, high: 0 }
    }
}

impl Sum {
    /// Reads the checksum at the end of a stream.
    fn from_trailer(bytes: &[u8]) -> Self {
        let half = |at: usize| i64::from(bytes[at]) << 8 | i64::from(bytes[at + 1]);
        Self { low: half(2), high: half(0) }
    }

    fn bytes(self) -> [u8; 4] {
        ((self.high << 16 | self.low) as u32).to_be_bytes()
    }

    /// Appends `bytes` bytes: those of `all` after those of `first`.
    fn append(&mut self, all: Self, first: Self, bytes: usize) {
        self.high = (self.high + bytes as i64 * (self.low - first.low) + all.high - first.high).rem_euclid(ADLER);
        self.low = (self.low + all.low - first.low).rem_euclid(ADLER);
    }
}

/// A bit string, the lowest bit of a byte first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    count: usize,
}

impl Bits {
    /// Appends a range of bits, which another byte must follow. Later calls overwrite the rest of the last byte.
    fn append(&mut self, from: &[u8], bits: Range<usize>) {
        let begun = self.count % 8;
        let (first, shift) = ((bits.start - begun) / 8, (bits.start - begun) % 8);
        let count = (begun + bits.len()).div_ceil(8);
        let kept = if begun > 0 { self.bytes.pop() } else { None };
        let place = self.bytes.len();
        let pairs = from[first..=first + count].windows(2);
        self.bytes.extend(pairs.map(|pair| (u16::from_le_bytes([pair[0], pair[1]]) >> shift) as u8));
        if let Some(kept) = kept {
            let mask = (1 << begun) - 1;
            self.bytes[place] = self.bytes[place] & !mask | kept & mask;
        }
        self.count += bits.len();
    }

    /// Takes the complete bytes, and leaves an incomplete one.
    fn take(&mut self) -> Vec<u8> {
        let begun = self.bytes.split_off(self.count / 8);
        self.count %= 8;
        mem::replace(&mut self.bytes, begun)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::time::Instant;

    use rayon::ThreadPoolBuilder;

    use super::*;

    /// Bytes without any order, the same each time.
    fn noise(count: usize) -> Vec<u8> {
        (0..count as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
    }

    /// Soft colours with grain, which compress about as a photograph does.
    fn photo_like(width: usize, height: usize) -> Vec<u8> {
        let wave = |place: usize, period: f32| 100.0 + 100.0 * (place as f32 / period).sin();
        let colours = (0..height).flat_map(|y| {
            (0..width).flat_map(move |x| [wave(x + y, 211.0), wave(x, 307.0), wave(y + 400, 523.0)].map(|v| v as u8))
        });
        colours.zip(noise(3 * width * height)).map(|(colour, grain)| colour + grain % 9).collect()
    }

    /// Returns `None` if the pixels are not written.
    fn encode(rgb: &[u8], width: usize) -> Option<Vec<u8>> {
        let mut file = Vec::new();
        let mut writer = encoder(&mut file, width as u32, (rgb.len() / width / 3) as u32).write_header().unwrap();
        let is_written = write(&mut writer, rgb, 3 * width).unwrap();
        writer.finish().unwrap();
        is_written.then_some(file)
    }

    /// Returns the zlib stream of a file.
    fn stream(file: &[u8]) -> Vec<u8> {
        let (mut rest, mut stream) = (&file[8..], Vec::new());
        while let Some((len, chunk)) = rest.split_first_chunk::<4>() {
            let (data, behind) = chunk[4..].split_at(u32::from_be_bytes(*len) as usize);
            if chunk.starts_with(b"IDAT") {
                stream.extend_from_slice(data);
            }
            rest = &behind[4..];
        }
        stream
    }

    fn decode(file: &[u8]) -> Vec<u8> {
        let mut reader = png::Decoder::new(Cursor::new(file)).read_info().unwrap();
        let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut rgb).unwrap();
        reader.finish().unwrap();
        rgb
    }

    #[test]
    fn the_stream_is_that_which_one_thread_would_write() {
        let sizes =
            [(1, 1), (1, 300), (333, 1), (7, 63), (5, 64), (64, 65), (85, 128), (31, 129), (48, 500), (400, 300)];
        let mut coded = 0;
        for (width, height) in sizes {
            let mut half = vec![9; 3 * width * height];
            half[3 * width * height / 2..].fill(200);
            for rgb in [photo_like(width, height), half] {
                let Some(file) = encode(&rgb, width) else { continue };
                coded += 1;
                assert!(decode(&file) == rgb, "{width}x{height}");
                let mut whole = Zlib::encode(&rgb, 3 * width).unwrap();
                whole.bytes.pop();
                whole.bytes.extend(whole.sum.bytes());
                assert!(stream(&file) == whole.bytes, "{width}x{height}");
            }
        }
        assert!(coded > 12, "{coded}");
    }

    #[test]
    fn what_compression_makes_longer_is_not_written() {
        assert!(encode(&noise(3 * 100 * 200), 100).is_none());
    }

    #[test]
    #[ignore = "measures"]
    fn measured() {
        let [one, all] = [1, 0].map(|threads| ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
        for (name, rgb) in [("noise", noise(3 << 20)), ("photo-like", photo_like(1024, 1024))] {
            let file = |encode: &(dyn Fn() -> Vec<u8> + Sync)| {
                let mut times: Vec<_> = (0..50)
                    .map(|_| {
                        let start = Instant::now();
                        assert!(encode().len() > 1 << 20);
                        start.elapsed().as_secs_f64() * 1e3
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                format!("{:.1} ms ({:.1})", times[25], times[0])
            };
            let image = crate::rgb::Rgb { width: 1024, height: 1024, bytes: rgb };
            let own = || crate::output::encode(&image, crate::output::ImageFormat::Png, &Default::default()).unwrap();
            let plain = || {
                let mut file = Vec::new();
                let mut writer = encoder(&mut file, 1024, 1024).write_header().unwrap();
                writer.write_image_data(&image.bytes).unwrap();
                writer.finish().unwrap();
                file
            };
            let threads = all.current_num_threads();
            println!("{name}: plain {}, {} bytes", file(&plain), plain().len());
            println!("{name}: 1 thread {}, {} bytes", one.install(|| file(&own)), own().len());
            println!("{name}: {threads} threads {}", all.install(|| file(&own)));
        }
    }
}
