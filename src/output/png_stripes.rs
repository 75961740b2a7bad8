//! Pixels of a PNG, encoded on several threads.
//!
//! A PNG holds one zlib stream. [`Compression::Fast`] codes each row by one fixed table, whatever came before it, so
//! the codes of an image are those of its stripes, one behind the other, bit by bit: the bytes are those that one
//! thread would have written, for any number of threads.
//!
//! The filter of a row needs the row above it. A stripe is encoded with that row, whose codes, as those of an image of
//! one row, are then left out.

use std::io::Write;
use std::ops::Range;

use png::{BitDepth, ColorType, Compression, Encoder, EncodingError, Filter, Writer, chunk};
use rayon::prelude::*;

/// Rows of a stripe. One row more is encoded for each.
const ROWS: usize = 64;
/// What a PNG of pixels alone has before its zlib stream (signature, header, head of the data) and behind it (the sum
/// of the data, the end).
const BEFORE: usize = 8 + 25 + 8;
const BEHIND: usize = 4 + 12;
/// Bits of the code that ends a block. The last of them is set, so it is where zeros begin that fill the last byte.
const END_OF_BLOCK: usize = 12;
/// What a zlib stream has beside its blocks, and a block that is not compressed beside its bytes.
const ZLIB: usize = 2 + 4;
const STORED: usize = 5;
/// The most bytes of a block that is not compressed.
const STORED_AT_MOST: usize = u16::MAX as usize;
/// Sums of Adler-32 are modulo this.
const ADLER: i64 = 65521;

/// Writes the pixels of rows of so many bytes, RGB8, where compression makes them fewer bytes. Returns whether it did.
///
/// Errors when they are no rows of an image.
pub fn write<W: Write>(writer: &mut Writer<W>, rgb: &[u8], row: usize) -> Result<bool, EncodingError> {
    let stripes: Vec<Stripe> = (0..(rgb.len() / row).div_ceil(ROWS))
        .into_par_iter()
        .map(|index| Stripe::encode(rgb, row, index * ROWS))
        .collect::<Result<_, _>>()?;
    let filtered = rgb.len() + rgb.len() / row;
    let bits = stripes.iter().map(|stripe| stripe.rows.end - stripe.above.end).sum::<usize>() + END_OF_BLOCK;
    if bits.div_ceil(8) + 4 > ZLIB + filtered + STORED * filtered.div_ceil(STORED_AT_MOST) {
        return Ok(false);
    }
    let mut joined = Bits { bytes: Vec::with_capacity(bits / 8 + ZLIB), count: 0 };
    let [mut low, mut high] = Rows::default().adler;
    for (index, Stripe { rows, above, filtered }) in stripes.iter().enumerate() {
        let is_last = index + 1 == stripes.len();
        joined.append(&rows.zlib, above.end..rows.end + if is_last { END_OF_BLOCK } else { 0 });
        // Each byte counts as often as there are bytes from it on.
        high = (high + *filtered as i64 * (low - above.adler[0]) + rows.adler[1] - above.adler[1]).rem_euclid(ADLER);
        low = (low + rows.adler[0] - above.adler[0]).rem_euclid(ADLER);
    }
    joined.bytes.extend(((high << 16 | low) as u32).to_be_bytes());
    writer.write_chunk(chunk::IDAT, &joined.bytes)?;
    Ok(true)
}

/// An encoder of RGB8 that compresses fast, and filters each row in one way.
pub fn encoder<W: Write>(file: W, width: u32, height: u32) -> Encoder<'static, W> {
    let mut encoder = Encoder::new(file, width, height);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    // Measured on one core of a Zen 3, a 720x477 photograph: Fast 2.5 ms and 683 kB, Balanced 71 ms and 669 kB, High 96
    // ms and 668 kB.
    encoder.set_compression(Compression::Fast);
    // `Fast` would choose a filter for each row (adaptive). That is nearly always Paeth, and trying all filters costs
    // time. Measured on one core of an EPYC, 1024x1024, adaptive and Paeth: a photograph 6.2 ms and 1654 kB, 5.5 ms and
    // 1654 kB; soft colours 3.1 ms and 279 kB, 2.6 ms and 281 kB; the same with grain 5.0 ms and 1471 kB, 4.1 ms and
    // 1552 kB; noise 4.5 and 3.8 ms, both 3147 kB. Tried: Up, 0.5 ms less and up to a fifth more bytes.
    encoder.set_filter(Filter::Paeth);
    encoder
}

/// Rows that one thread encodes.
struct Stripe {
    /// With the one above them.
    rows: Rows,
    /// The one above them.
    above: Rows,
    /// Their bytes, with those that name their filters.
    filtered: usize,
}

impl Stripe {
    fn encode(rgb: &[u8], row: usize, first: usize) -> Result<Self, EncodingError> {
        let own = &rgb[first * row..rgb.len().min((first + ROWS) * row)];
        let filtered = own.len() + own.len() / row;
        let Some(start) = first.checked_sub(1).map(|above| above * row) else {
            return Ok(Self { rows: Rows::encode(own, row)?, above: Rows::default(), filtered });
        };
        let with_above = &rgb[start..start + row + own.len()];
        Ok(Self { rows: Rows::encode(with_above, row)?, above: Rows::encode(&with_above[..row], row)?, filtered })
    }
}

/// Rows, as an image of their own.
struct Rows {
    /// Their zlib stream, with a zero in place of its sum.
    zlib: Vec<u8>,
    /// Bits of the stream before the code that ends its block.
    end: usize,
    adler: [i64; 2],
}

impl Default for Rows {
    /// None, before which a stream begins.
    fn default() -> Self {
        Self { zlib: Vec::new(), end: 0, adler: [1, 0] }
    }
}

impl Rows {
    fn encode(rgb: &[u8], row: usize) -> Result<Self, EncodingError> {
        let mut file = Vec::new();
        let mut writer = encoder(&mut file, (row / 3) as u32, (rgb.len() / row) as u32).write_header()?;
        // One chunk: no code has more bits than two bytes.
        let mut stream = writer.stream_writer_with_size(2 * (rgb.len() + rgb.len() / row) + 128)?;
        stream.write_all(rgb)?;
        stream.finish()?;
        writer.finish()?;
        let mut zlib = file;
        zlib.truncate(zlib.len() - BEHIND);
        zlib.drain(..BEFORE);
        let adler = zlib.split_off(zlib.len() - 4);
        let adler = [&adler[2..], &adler[..2]].map(|half| i64::from(half[0]) << 8 | i64::from(half[1]));
        let filled = zlib.last().map_or(0, |last| last.leading_zeros() as usize);
        let end = 8 * zlib.len() - filled - END_OF_BLOCK;
        zlib.push(0);
        Ok(Self { zlib, end, adler })
    }
}

/// Bits, the lowest of a byte first.
struct Bits {
    bytes: Vec<u8>,
    count: usize,
}

impl Bits {
    /// Appends bits of bytes, behind which one more must be. What the last byte has beyond them is overwritten by the
    /// next ones.
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

    fn encode(rgb: &[u8], width: usize) -> (Vec<u8>, bool) {
        let mut file = Vec::new();
        let mut writer = encoder(&mut file, width as u32, (rgb.len() / width / 3) as u32).write_header().unwrap();
        let is_written = write(&mut writer, rgb, 3 * width).unwrap();
        writer.finish().unwrap();
        (file, is_written)
    }

    fn decode(file: &[u8]) -> Vec<u8> {
        let mut reader = png::Decoder::new(Cursor::new(file)).read_info().unwrap();
        let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut rgb).unwrap();
        reader.finish().unwrap();
        rgb
    }

    #[test]
    fn the_bytes_are_those_that_one_thread_would_write() {
        for (width, height) in [(1, 1), (1, 300), (333, 1), (7, 63), (5, 64), (64, 65), (85, 128), (31, 129), (48, 500)]
        {
            let mut half = vec![9; 3 * width * height];
            half[3 * width * height / 2..].fill(200);
            for rgb in [photo_like(width, height), half] {
                let (file, is_written) = encode(&rgb, width);
                assert!(is_written || height * width < 400, "{width}x{height}");
                if is_written {
                    let mut whole = Rows::encode(&rgb, 3 * width).unwrap();
                    let [low, high] = whole.adler;
                    whole.zlib.pop();
                    whole.zlib.extend(((high << 16 | low) as u32).to_be_bytes());
                    assert!(file[BEFORE..file.len() - BEHIND] == whole.zlib, "{width}x{height}");
                    assert!(decode(&file) == rgb, "{width}x{height}");
                }
            }
        }
    }

    #[test]
    fn what_compression_makes_longer_is_not_written() {
        assert!(!encode(&noise(3 * 100 * 200), 100).1);
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
