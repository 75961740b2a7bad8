//! Video streams in raw RGB, Y4M or MJPEG. This module knows nothing of models: it converts between bytes and frames.
//! Start reading at [`VideoReader`] and [`VideoWriter`].

mod colors;
mod header;
mod mjpeg;
mod reader;
mod writer;

pub use reader::{Next, VideoReader};
pub use writer::VideoWriter;

/// The format of a video stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VideoFormat {
    /// Three bytes per pixel, without headers.
    Rgb24,
    /// YUV4MPEG2: a header with size and frame rate, then planar YCbCr frames.
    Y4m,
    /// Concatenated JPEGs.
    Mjpeg,
}
