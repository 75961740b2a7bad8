//! Encoding of video streams.

use std::io::{self, Write};

use crate::metadata::Metadata;
use crate::output::encode_jpeg;
use crate::rgb::Rgb;
use flux_base::error::{Error, Field, Result};

use super::VideoFormat;
use super::colors;

/// A stream of frames of equal size.
pub struct VideoWriter<W: Write> {
    to: To<W>,
    size: Option<[usize; 2]>,
}

enum To<W: Write> {
    Rgb24(W),
    /// The frame rate, until the first frame gives the size for the header.
    Y4m(Option<W>, [usize; 2]),
    BegunY4m(y4m::Encoder<W>),
    Mjpeg(W, u8),
}

impl<W: Write> VideoWriter<W> {
    /// Creates a writer. `rate` is the frame rate in the Y4M header, as a fraction; `quality` is for JPEG, from 1 to
    /// 100.
    pub fn new(format: VideoFormat, rate: [usize; 2], quality: u8, to: W) -> Self {
        let to = match format {
            VideoFormat::Rgb24 => To::Rgb24(to),
            VideoFormat::Y4m => To::Y4m(Some(to), rate),
            VideoFormat::Mjpeg => To::Mjpeg(to, quality),
        };
        Self { to, size: None }
    }

    /// Writes a frame.
    ///
    /// Errors when its size differs from earlier frames, or the output is closed.
    pub fn write(&mut self, frame: &Rgb) -> Result<()> {
        let size = [frame.width, frame.height];
        let known = *self.size.get_or_insert(size);
        if known != size {
            let [told, got] = [known, size].map(|[width, height]| format!("{width}x{height}"));
            return Err(Error::new(format!("a frame is {got}, but earlier frames are {told}"))
                .hint(format!("resize all frames with `{:#}`", Field::Size)));
        }
        if let To::Y4m(to, [num, den]) = &mut self.to
            && let Some(to) = to.take()
        {
            let builder = y4m::EncoderBuilder::new(frame.width, frame.height, y4m::Ratio::new(*num, *den));
            let builder = builder.with_colorspace(y4m::Colorspace::C444);
            self.to = To::BegunY4m(builder.write_header(to).map_err(y4m_error)?);
        }
        match &mut self.to {
            To::Rgb24(to) => to.write_all(&frame.bytes).and_then(|()| to.flush()).map_err(|e| unwritable(&e)),
            To::Mjpeg(to, quality) => {
                let file = encode_jpeg(frame, *quality, &Metadata::default())?;
                to.write_all(&file).and_then(|()| to.flush()).map_err(|e| unwritable(&e))
            }
            To::BegunY4m(encoder) => {
                let [y, u, v] = colors::from_rgb(&frame.bytes);
                encoder.write_frame(&y4m::Frame::new([&y, &u, &v], None)).map_err(y4m_error)
            }
            To::Y4m(..) => Err(unwritable(&io::ErrorKind::BrokenPipe.into())),
        }
    }
}

fn y4m_error(e: y4m::Error) -> Error {
    match e {
        y4m::Error::IoError(e) => unwritable(&e),
        e => Error::new(format!("cannot write the frames as Y4M: {e}")),
    }
}

fn unwritable(e: &io::Error) -> Error {
    Error::new(format!("cannot write the frames: {e}"))
        .at("standard output")
        .hint("check that the reading program still runs, and that its disk is not full")
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::video::{Next, VideoReader};

    fn frame(level: u8) -> Rgb {
        let bytes = (0..48 * 32).flat_map(|i| [level, (i % 48 * 5) as u8, (i / 48 * 7) as u8]).collect();
        Rgb { width: 48, height: 32, bytes }
    }

    fn written(format: VideoFormat) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = VideoWriter::new(format, [30, 1], 95, &mut bytes);
        [10, 200].into_iter().for_each(|level| writer.write(&frame(level)).unwrap());
        assert!(writer.write(&Rgb { width: 32, height: 48, ..frame(0) }).is_err(), "a different size");
        bytes
    }

    fn reader(format: Option<VideoFormat>, bytes: Vec<u8>) -> VideoReader {
        VideoReader::open(format, Some([48, 32]), Box::new(Cursor::new(bytes))).unwrap().unwrap()
    }

    fn apart(a: &Rgb, b: &Rgb) -> u8 {
        assert_eq!((a.width, a.height), (b.width, b.height));
        a.bytes.iter().zip(&b.bytes).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0)
    }

    #[test]
    fn what_is_written_is_read_in_every_format() {
        for (format, named, most) in [
            (VideoFormat::Rgb24, Some(VideoFormat::Rgb24), 0),
            (VideoFormat::Y4m, None, 2),
            (VideoFormat::Mjpeg, None, 24),
        ] {
            let mut reader = reader(named, written(format));
            assert_eq!((reader.format(), reader.rate()), (format, (format == VideoFormat::Y4m).then_some([30, 1])));
            let Ok(Next::Frame(first)) = reader.next(true) else { panic!("{format:?}") };
            assert!(apart(&first, &frame(10)) <= most, "{format:?}: {}", apart(&first, &frame(10)));
            assert!(matches!(reader.next(false), Ok(Next::Passed)) && matches!(reader.next(true), Ok(Next::End)));
        }
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_says_so() {
        for (format, end) in [(VideoFormat::Rgb24, 7), (VideoFormat::Y4m, 7), (VideoFormat::Mjpeg, 40)] {
            let mut bytes = written(format);
            bytes.truncate(bytes.len() - end);
            let mut reader = reader(Some(format), bytes);
            assert!(matches!(reader.next(true), Ok(Next::Frame(_))), "{format:?}");
            assert!(matches!(reader.next(true), Ok(Next::Broken(_))), "{format:?}");
            assert!(matches!(reader.next(true), Ok(Next::End)), "{format:?}");
        }
    }

    #[test]
    fn what_has_no_format_or_another_one_is_refused() {
        let open = |format, size, bytes: &'static [u8]| {
            VideoReader::open(format, size, Box::new(bytes)).err().map_or(String::new(), |e| e.to_string())
        };
        assert!(open(None, None, b"P6 12 12 255 ").contains("neither Y4M nor MJPEG"));
        assert!(open(Some(VideoFormat::Rgb24), None, b"abc").contains("raw frames have no header with their size"));
        assert!(open(None, None, b"YUV4MPEG2 W16 H16 C420p10\n").contains("more than 8 bits"));
        assert!(open(None, None, b"YUV4MPEG2 W0 H16\n").contains("width of 0 pixels"));
        assert!(open(None, None, b"YUV4MPEG2 W16384 H16384 C444\n").contains("512 MiB"));
        assert!(VideoReader::open(None, None, Box::new(io::empty())).unwrap().is_none());
        let mut bytes = written(VideoFormat::Y4m);
        bytes.extend(b"YUV4MPEG2 W16 H16 F30:1\n");
        let mut reader = reader(None, bytes);
        assert!((0..2).all(|_| matches!(reader.next(true), Ok(Next::Frame(_)))));
        assert!(reader.next(true).unwrap_err().to_string().contains("size changed"));
    }
}
