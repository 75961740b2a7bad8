//! Decoding of video streams.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::input;
use crate::rgb::Rgb;
use flux_base::error::{Error, Field, Result};

use super::VideoFormat;
use super::colors::{self, Range, Shared};
use super::header::{MAX_LINE, Y4M_BEGINS, damaged, shared_colors};
use super::mjpeg::Mjpeg;

/// Size of the read buffer, in bytes.
const AT_ONCE: usize = 256 << 10;
/// Maximum size of a frame, in bytes.
const MAX_BYTES: usize = 512 << 20;

/// The next item of a stream.
#[derive(Debug)]
pub enum Next {
    /// A frame.
    Frame(Rgb),
    /// A frame that was not wanted.
    Passed,
    /// A frame that cannot be decoded; more frames may follow.
    Broken(Error),
    /// The end of the stream.
    End,
}

/// A stream of frames.
pub struct VideoReader(Kind);

type Bytes = BufReader<Box<dyn Read + Send>>;

enum Kind {
    Rgb24 { from: Bytes, size: [usize; 2] },
    Y4m(Y4m),
    Mjpeg(Mjpeg<Bytes>),
}

struct Y4m {
    decoder: Box<y4m::Decoder<Counted>>,
    colors: Shared,
    /// The number of bytes read.
    read: Arc<AtomicU64>,
}

/// Counts bytes, to detect an end of file inside a frame.
struct Counted {
    /// The first line, then the rest.
    from: Chain<Cursor<Vec<u8>>, Bytes>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl VideoReader {
    /// Opens a stream. Without a given format, it is detected from the first bytes. [`VideoFormat::Rgb24`] has frames
    /// of `size`. Returns `None` if the stream is empty.
    ///
    /// Errors when it cannot be read, or has an unknown format.
    pub fn open(
        format: Option<VideoFormat>,
        size: Option<[usize; 2]>,
        mut from: Box<dyn Read + Send>,
    ) -> Result<Option<Self>> {
        let mut first = Vec::new();
        (&mut from).take(Y4M_BEGINS.len() as u64).read_to_end(&mut first).map_err(|e| unreadable(&e))?;
        if first.is_empty() {
            return Ok(None);
        }
        let format = match (format, &first[..]) {
            (Some(format), _) => format,
            (None, first) if first == Y4M_BEGINS => VideoFormat::Y4m,
            (None, [0xff, 0xd8, ..]) => VideoFormat::Mjpeg,
            (None, _) => {
                return Err(Error::usage("the frames are neither Y4M nor MJPEG").at("standard input").hint(format!(
                    "set the format rgb24 and `{:#}` for raw frames; `ffmpeg ... -f yuv4mpegpipe -` writes Y4M",
                    Field::Size
                )));
            }
        };
        let from = BufReader::with_capacity(AT_ONCE, Box::new(Cursor::new(first).chain(from)) as Box<dyn Read + Send>);
        Ok(Some(Self(match format {
            VideoFormat::Rgb24 => {
                let size = size.ok_or_else(|| {
                    Error::usage("raw frames have no header with their size")
                        .for_field(Field::Size)
                        .hint("set the size, as in 512x512")
                })?;
                Kind::Rgb24 { from, size }
            }
            VideoFormat::Y4m => Kind::Y4m(Y4m::open(from)?),
            VideoFormat::Mjpeg => Kind::Mjpeg(Mjpeg::new(from)),
        })))
    }

    /// Returns the format of the stream.
    pub fn format(&self) -> VideoFormat {
        match self.0 {
            Kind::Rgb24 { .. } => VideoFormat::Rgb24,
            Kind::Y4m(_) => VideoFormat::Y4m,
            Kind::Mjpeg(_) => VideoFormat::Mjpeg,
        }
    }

    /// Returns the frame rate in the stream, as a fraction.
    pub fn rate(&self) -> Option<[usize; 2]> {
        let Kind::Y4m(Y4m { decoder, .. }) = &self.0 else { return None };
        let rate = decoder.get_framerate();
        (rate.num > 0 && rate.den > 0).then_some([rate.num, rate.den])
    }

    /// Returns the next frame. Its pixels are decoded only if it is `wanted`.
    ///
    /// Errors when nothing more can be read.
    pub fn next(&mut self, wanted: bool) -> Result<Next> {
        match &mut self.0 {
            Kind::Rgb24 { from, size } => next_raw(from, *size, wanted),
            Kind::Y4m(stream) => stream.next(wanted),
            Kind::Mjpeg(stream) => Ok(match stream.next().map_err(|e| unreadable(&e))? {
                None => Next::End,
                Some(_) if !wanted => Next::Passed,
                Some(image) => input::read_bytes(&image).map_or_else(Next::Broken, Next::Frame),
            }),
        }
    }
}

fn next_raw(from: &mut Bytes, [width, height]: [usize; 2], wanted: bool) -> Result<Next> {
    let length = 3 * width * height;
    let mut bytes = Vec::with_capacity(length);
    from.take(length as u64).read_to_end(&mut bytes).map_err(|e| unreadable(&e))?;
    Ok(match bytes.len() {
        0 => Next::End,
        read if read < length => Next::Broken(ends_inside()),
        _ if !wanted => Next::Passed,
        _ => Next::Frame(Rgb { width, height, bytes }),
    })
}

impl Y4m {
    /// Reads the header. Errors when it is invalid.
    fn open(mut from: Bytes) -> Result<Self> {
        let mut line = Vec::new();
        (&mut from).take(MAX_LINE as u64).read_until(b'\n', &mut line).map_err(|e| unreadable(&e))?;
        let colors = shared_colors(&line)?;
        let (limits, read) = (y4m::Limits { bytes: MAX_BYTES }, Arc::new(AtomicU64::new(0)));
        let from = Counted { from: Cursor::new(line).chain(from), read: Arc::clone(&read) };
        let decoder = y4m::Decoder::new_with_limits(from, limits).map_err(|e| match e {
            y4m::Error::OutOfMemory => Error::usage(format!("each frame has more than {} MiB", MAX_BYTES >> 20))
                .at("standard input")
                .hint("scale them with ffmpeg: `-vf scale=512:512`"),
            e => damaged(&format!("its first line is damaged: {e}")),
        })?;
        Ok(Self { decoder: Box::new(decoder), colors, read })
    }

    fn next(&mut self, wanted: bool) -> Result<Next> {
        let Self { decoder, colors, read } = self;
        let (width, height) = (decoder.get_width(), decoder.get_height());
        let full = decoder.get_raw_params().split(|byte| *byte == b' ').any(|word| word == b"XCOLORRANGE=FULL");
        let range = if full { Range::Full } else { Range::Limited };
        let before = read.load(Ordering::Relaxed);
        match decoder.read_frame() {
            Ok(_) if !wanted => Ok(Next::Passed),
            Ok(frame) => {
                let planes = [frame.get_y_plane(), frame.get_u_plane(), frame.get_v_plane()];
                Ok(Next::Frame(Rgb { width, height, bytes: colors::to_rgb(planes, width, *colors, range) }))
            }
            Err(y4m::Error::EOF) if read.load(Ordering::Relaxed) > before => Ok(Next::Broken(ends_inside())),
            Err(y4m::Error::EOF) => Ok(Next::End),
            Err(y4m::Error::IoError(e)) => Err(unreadable(&e)),
            Err(_) => Err(damaged("a frame has no valid header: bytes are missing, or the frame size changed")),
        }
    }
}

fn unreadable(e: &io::Error) -> Error {
    Error::new(format!("cannot read the frames: {e}")).at("standard input").hint("check the program that sends them")
}

fn ends_inside() -> Error {
    Error::new("the stream ends inside a frame")
        .hint(format!("check that all frames have the size of `{:#}`", Field::Size))
}
