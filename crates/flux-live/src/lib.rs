//! Live generation: frames in, images out, as fast as the devices allow.
//!
//! ```text
//! Source -> (thread) -> Flow: the newest frame -> a lane for each device -> Flow: the next image -> (thread) -> Sink
//! ```
//!
//! Nothing queues. A new frame replaces one that no lane has taken. A lane whose image waits to be written takes no
//! more frames, except for one taken while that image was decoded. A slow output therefore slows everything without
//! using more memory. Threads of their own read and decode frames, and encode and write images. A thread may block
//! indefinitely in a system call, so none is joined.
//!
//! Formats of frames are the business of `crate::video`, and flags of `crate::commands::live`. Start reading at
//! [`Live::run`].

mod flow;
mod settings;
mod stats;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flux::engine::{Engine, Event, Ticket};
use flux::error::ErrorKind;
use flux::input;
use flux::pipeline::Latents;
use flux::rgb::Rgb;
use flux::stage::{CancelFlag, Progress, Stage};
use flux::{Error, Result};

use self::flow::{Arrived, Flow, Handed, Made};
use self::settings::Stream;
pub use self::settings::{Change, Setting, Settings};
pub use self::stats::{Stats, StatsReport};
use flux_media::video::Next;

/// The poll interval for signals.
const LOOK: Duration = Duration::from_millis(20);

/// A source of frames.
pub trait Source: Send {
    /// Returns the next frame. Its pixels are decoded only if it is `wanted`.
    ///
    /// Errors when nothing more can be read.
    fn next(&mut self, wanted: bool) -> Result<Next>;
}

/// A destination of images.
pub trait Sink: Send {
    /// Writes an image.
    ///
    /// Errors when it cannot be written.
    fn write(&mut self, image: &Rgb) -> Result<()>;
}

/// An image that was submitted to the engine.
struct Begun {
    turn: u64,
    of: Arrived,
    ticket: Ticket,
    /// True if the next image starts from this image's latents.
    is_read_by_next: bool,
}

/// A live stream and its settings.
pub struct Live {
    pub engine: Arc<Engine>,
    pub settings: Arc<Settings>,
    pub stats: Arc<Stats>,
    /// Take one of this many frames.
    pub every: u64,
    /// True if every taken frame becomes an image, so that the source waits. Otherwise stale frames are dropped.
    pub keeps_all: bool,
    /// Images written per second, if the rate is fixed.
    pub rate: Option<f64>,
    pub cancel: CancelFlag,
}

impl Live {
    /// Generates images from frames until the source ends or the sink stops. Without a source, generates one image for
    /// each change of the settings. `tick` is called at intervals; its error ends the stream.
    ///
    /// Errors when reading, generating or writing fails, and as cancelled.
    pub fn run(
        self,
        source: Option<Box<dyn Source>>,
        sink: Box<dyn Sink>,
        tick: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.engine.wait_for_devices()?;
        let mut lanes = self.engine.stats().devices.max(1);
        self.settings.know(|setting| {
            // With feedback, each image needs the previous one.
            if setting.feedback > 0.0 {
                lanes = 1;
            }
            Stream { lanes: Some(lanes), ..setting.stream }
        });
        let flow = Flow::new(lanes);
        let cancel = self.cancel.child();
        let live = Arc::new(Self { cancel: cancel.clone(), ..self });
        for _ in 0..lanes {
            start("lane", &live, &flow, Self::make, Flow::end_lane)?;
        }
        start("frames out", &live, &flow, move |live, flow| live.write(flow, sink), Flow::end_writing)?;
        let read = move |live: &Self, flow: &Flow| match source {
            Some(source) => {
                live.read(flow, source).unwrap_or_else(|error| flow.break_reading(error));
                Ok(())
            }
            None => live.follow_settings(flow),
        };
        start("frames in", &live, &flow, read, Flow::end_reading)?;
        let ended = loop {
            if let Some(ended) = flow.ended(LOOK) {
                break ended;
            }
            if let Err(error) = cancel.check() {
                break Err(error);
            }
            // The first error is returned.
            if let Err(error) = tick() {
                flow.close(Some(error));
            }
        };
        flow.close(None);
        cancel.cancel();
        ended
    }

    /// Reads frames.
    fn read(&self, flow: &Flow, mut source: Box<dyn Source>) -> Result<()> {
        // The error of the first broken frame, used if no frame can be decoded.
        let (mut wanted, mut wrong) = (None, None);
        for number in 0.. {
            let next = source.next(number % self.every == 0)?;
            self.stats.count(|counts| counts.read += u64::from(!matches!(next, Next::End)));
            let frame = match next {
                // A stream without any readable frame probably has another format.
                Next::End => return wrong.filter(|_| wanted.is_none()).map_or(Ok(()), Err),
                Next::Passed => {
                    self.stats.count(|counts| counts.left_out += 1);
                    continue;
                }
                Next::Broken(error) => {
                    self.stats.count(|counts| counts.broken += 1);
                    wrong.get_or_insert(error.at("standard input"));
                    continue;
                }
                Next::Frame(frame) => frame,
            };
            let size = [frame.width, frame.height];
            let wanted = *wanted.get_or_insert_with(|| self.known_size(size));
            let is_other = wanted != size;
            let frame = if is_other { input::resized(&frame, wanted) } else { frame };
            let arrived = Arrived { frame: Some(frame), at: Instant::now() };
            if self.keeps_all {
                if flow.submit(arrived).is_none() {
                    return Ok(());
                }
                continue;
            }
            match flow.offer(arrived) {
                None => return Ok(()),
                Some(replaced) => self.stats.count(|counts| counts.replaced += u64::from(replaced)),
            }
        }
        Ok(())
    }

    /// Returns the size to scale frames to. Without a given size, this is the size of the first frame.
    fn known_size(&self, first: [usize; 2]) -> [usize; 2] {
        if let Some(size) = self.settings.now().stream.frames {
            return size;
        }
        self.settings.know(|setting| Stream { frames: Some(first), ..setting.stream });
        first
    }

    /// Requests an image at the start and after each change of the settings.
    fn follow_settings(&self, flow: &Flow) -> Result<()> {
        let mut known = 0;
        while flow.offer(Arrived { frame: None, at: Instant::now() }).is_some() {
            self.stats.count(|counts| counts.read += 1);
            let before = known;
            while known == before {
                known = self.settings.changes(before, Duration::from_secs(1));
                self.cancel.check()?;
            }
        }
        Ok(())
    }

    /// Generates images. While a GPU decodes an image, the next frame is taken and prepared. Taken any earlier, the
    /// frame could be stale.
    fn make(&self, flow: &Flow) -> Result<()> {
        let (mut before, mut begun): (Option<Latents>, Option<Begun>) = (None, None);
        loop {
            let Begun { turn, of, ticket, is_read_by_next } = match begun.take() {
                Some(begun) => begun,
                None => match flow.take() {
                    Some(taken) => self.begin(taken, before.take(), false)?,
                    None => return Ok(()),
                },
            };
            let mut next = Ok(None);
            let (image, latents) = self.image(ticket, is_read_by_next, || {
                next = flow.take_if_there().map(|taken| self.begin(taken, None, true)).transpose();
            })?;
            before = latents;
            if flow.hand_over(turn, Made { image, of }).is_none() {
                return Ok(());
            }
            begun = next?;
        }
    }

    /// Submits the image of a frame to the engine; `before` are the previous image's latents. If the device `is_busy`,
    /// the frame is encoded after its current work.
    fn begin(&self, (turn, arrived): (u64, Arrived), before: Option<Latents>, is_busy: bool) -> Result<Begun> {
        // If the source waits, latency is measured from when the frame is taken.
        let at = if self.keeps_all { Instant::now() } else { arrived.at };
        let setting = self.settings.sized(|setting| setting.image_size(&self.engine, arrived.frame.clone()))?;
        let job = setting.job(&self.engine, arrived.frame.clone(), before.as_ref())?;
        let job = flux::engine::Job { cancel: self.cancel.child(), ..job };
        if is_busy {
            // Errors are reported by the job.
            let _ = self.engine.encode_images_ahead(&job);
        }
        let ticket = self.engine.submit(job)?;
        Ok(Begun { turn, of: Arrived { at, ..arrived }, ticket, is_read_by_next: setting.feedback > 0.0 })
    }

    /// Returns the image, and its latents if the next image reads them. `decodes` is called when the steps are done,
    /// unless the next image depends on this one, or decoding uses the CPU that `decodes` would need.
    fn image(
        &self,
        ticket: Ticket,
        is_read_by_next: bool,
        mut decodes: impl FnMut(),
    ) -> Result<(Rgb, Option<Latents>)> {
        let (mut made, mut waits) = (None, is_read_by_next || !self.engine.computes_asynchronously());
        for event in ticket {
            match event? {
                Event::Image { image, latents, .. } => made = Some((image.pixels()?.into_owned(), latents)),
                Event::Finished { timings, .. } => {
                    timings.tokens.into_iter().for_each(|tokens| self.stats.computed(tokens));
                }
                Event::Progress(Progress { stage: Stage::Denoise, done, total }) if done == total && !waits => {
                    waits = true;
                    decodes();
                }
                _ => {}
            }
        }
        made.ok_or_else(|| Error::new("the engine generated no image for the frame"))
    }

    /// Writes images.
    fn write(&self, flow: &Flow, mut sink: Box<dyn Sink>) -> Result<()> {
        let period = self.rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
        // With a fixed rate: the newest image and the time of the next write.
        let (mut newest, mut due) = (None, None);
        loop {
            match flow.next(due) {
                Handed::End => {
                    // The last image is written even if it is not due.
                    return newest
                        .filter(|(_, is_new)| *is_new)
                        .map_or(Ok(()), |(image, _)| self.put(&mut *sink, &image));
                }
                Handed::Image(made) => {
                    let Made { image, of } = *made;
                    if period.is_none() {
                        self.put(&mut *sink, &image)?;
                        self.stats.made(of.frame.as_ref(), &image, of.at.elapsed());
                        continue;
                    }
                    self.stats.made(of.frame.as_ref(), &image, of.at.elapsed());
                    newest = Some((image, true));
                    due.get_or_insert_with(Instant::now);
                }
                Handed::Nothing => {
                    let (Some((image, is_new)), Some(time), Some(period)) = (&mut newest, due, period) else {
                        continue;
                    };
                    self.put(&mut *sink, image)?;
                    *is_new = false;
                    // Writes missed while the output stalled are not made up for.
                    due = Some((time + period).max(Instant::now()));
                }
            }
        }
    }

    fn put(&self, sink: &mut dyn Sink, image: &Rgb) -> Result<()> {
        sink.write(image)?;
        self.stats.count(|counts| counts.written += 1);
        Ok(())
    }
}

/// Starts a thread, which calls `end` only after it succeeded. An error closes the flow instead: with `end` too, the
/// other threads could finish before they see the error.
fn start(
    name: &str,
    live: &Arc<Live>,
    flow: &Arc<Flow>,
    work: impl FnOnce(&Live, &Flow) -> Result<()> + Send + 'static,
    end: fn(&Flow),
) -> Result<()> {
    let (live, flow) = (Arc::clone(live), Arc::clone(flow));
    let run = move || {
        let _closes = flow.close_on_panic();
        match work(&live, &flow) {
            Ok(()) => end(&flow),
            // The caller that cancels knows the reason.
            Err(error) if error.kind() == ErrorKind::Cancelled => {}
            Err(error) => flow.close(Some(error)),
        }
    };
    thread::Builder::new().name(name.to_string()).spawn(run).map(drop).map_err(|e| Error::no_thread(&e))
}
