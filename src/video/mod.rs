//! Frames of a video as a stream of bytes: raw RGB, Y4M or MJPEG, as other programs send and take them.

mod colors;
mod header;
mod mjpeg;
mod reader;
mod writer;

pub use reader::{Next, VideoReader};
pub use writer::VideoWriter;

/// How frames follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VideoFormat {
    /// Three bytes a pixel and nothing else.
    Rgb24,
    /// YUV4MPEG2: a line that tells size and rate, then planes of brightness and colour.
    Y4m,
    /// One JPEG behind the other.
    Mjpeg,
}
