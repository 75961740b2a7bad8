//! Frames on standard input and output.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use flux::rgb::Rgb;
use flux::{Error, Result};

use crate::cli;
use flux_live::{Sink, Source};
use flux_media::video::{Next, VideoFormat, VideoReader, VideoWriter};

/// The default frame rate of Y4M, if the input has none.
const USUAL_RATE: [usize; 2] = [25, 1];

/// The input's format and frame rate, available once its first bytes are read.
type Said = Arc<OnceLock<(VideoFormat, Option<[usize; 2]>)>>;

/// Standard input. The first read opens the reader, because detecting the format can block indefinitely.
struct Input {
    format: Option<VideoFormat>,
    size: Option<[usize; 2]>,
    said: Said,
    from: Option<File>,
    reader: Option<VideoReader>,
}

/// Standard output, in the input's format by default.
struct Output {
    format: Option<VideoFormat>,
    rate: Option<[usize; 2]>,
    every: usize,
    quality: u8,
    said: Said,
    to: Option<File>,
    writer: Option<VideoWriter<File>>,
}

/// The input stream, if any, and the output stream.
type Streams = (Option<Box<dyn Source>>, Box<dyn Sink>);

/// Opens the input stream, if frames are read, and the output stream.
///
/// Errors when a stream is closed.
pub fn streams(args: &cli::Live) -> Result<Streams> {
    let said = Said::default();
    let opened = |file: io::Result<std::os::fd::OwnedFd>, place: &str| {
        let closed = |e| Error::new(format!("cannot open it: {e}")).at(place).hint("leave it open: frames use it");
        file.map(File::from).map_err(closed)
    };
    let input = |from: File| Input {
        format: args.from(),
        size: args.frame_size(),
        said: Arc::clone(&said),
        from: Some(from),
        reader: None,
    };
    let from =
        (!args.no_input).then(|| opened(io::stdin().as_fd().try_clone_to_owned(), "standard input")).transpose()?;
    let to = opened(io::stdout().as_fd().try_clone_to_owned(), "standard output")?;
    let output = Output {
        format: args.to(),
        rate: args.fps.map(|rate| [(rate * 1000.0).round().max(1.0) as usize, 1000]),
        every: args.every as usize,
        quality: args.quality,
        said: Arc::clone(&said),
        to: Some(to),
        writer: None,
    };
    Ok((from.map(|from| Box::new(input(from)) as Box<dyn Source>), Box::new(output)))
}

impl Source for Input {
    fn next(&mut self, wanted: bool) -> Result<Next> {
        if let Some(from) = self.from.take() {
            let reader = VideoReader::open(self.format, self.size, Box::new(from))?.ok_or_else(|| {
                Error::new("standard input ended before the first frame")
                    .hint("check the output of the program that sends the frames")
            })?;
            self.said.get_or_init(|| (reader.format(), reader.rate()));
            self.reader = Some(reader);
        }
        self.reader.as_mut().map_or(Ok(Next::End), |reader| reader.next(wanted))
    }
}

impl Sink for Output {
    fn write(&mut self, image: &Rgb) -> Result<()> {
        if let Some(to) = self.to.take() {
            let said = self.said.get();
            let format = self.format.or(said.map(|(format, _)| *format));
            let format = format.ok_or_else(|| Error::usage("the output format is not known").at("--to"))?;
            let of_input = said.and_then(|(_, rate)| *rate).unwrap_or(USUAL_RATE);
            let of_images = [of_input[0], of_input[1].saturating_mul(self.every)];
            self.writer = Some(VideoWriter::new(format, self.rate.unwrap_or(of_images), self.quality, to));
        }
        self.writer.as_mut().map_or(Ok(()), |writer| writer.write(image))
    }
}
