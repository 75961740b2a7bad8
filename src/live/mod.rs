//! Frames in, images out, as fast as the devices make them.
//!
//! ```text
//! Source -> (thread) -> Flow: the newest frame -> a lane for each device -> Flow: the next image -> (thread) -> Sink
//! ```
//!
//! Nothing queues: a frame that nobody took is replaced by the next one, a lane whose image waits to be written takes
//! no frame but the one that it took while that was decoded, and so an output that stalls stalls all of it without
//! taking memory. Frames are read and decoded, and images encoded and written, beside the devices. A thread may wait
//! for ever in a system call, so nobody waits for it.

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

use self::flow::{Arrived, ClosesAtPanic, Flow, Handed, Made};
use self::settings::Stream;
pub use self::settings::{Change, Setting, Settings};
pub use self::stats::{Stats, Told};
use crate::video::Next;

/// How often a signal is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Where frames come from.
pub trait Source: Send {
    /// The next frame, whose pixels are made only where it is `wanted`.
    ///
    /// Errors when nothing more can be read.
    fn next(&mut self, wanted: bool) -> Result<Next>;
}

/// Where images go.
pub trait Sink: Send {
    /// Writes an image.
    ///
    /// Errors when it cannot be written.
    fn write(&mut self, image: &Rgb) -> Result<()>;
}

/// An image that the engine was asked for.
struct Begun {
    turn: u64,
    of: Arrived,
    ticket: Ticket,
    /// Whether the next image begins with a part of it.
    is_read_by_next: bool,
}

/// What becomes of frames, and which of them are taken.
pub struct Live {
    pub engine: Arc<Engine>,
    pub settings: Arc<Settings>,
    pub stats: Arc<Stats>,
    /// Every so many frames one is taken.
    pub every: u64,
    /// Whether all of these become images: then the source waits, and otherwise the newest frame wins.
    pub keeps_all: bool,
    /// Images that are written a second, where that is always so many.
    pub rate: Option<f64>,
    pub cancel: CancelFlag,
}

impl Live {
    /// Makes images of frames until there are no more, or until nobody takes them. `source` is none where images are
    /// made of words alone: one for each change of the settings. `tick` is called all the while; its error ends all.
    ///
    /// Errors when something cannot be read, made or written, and as cancelled.
    pub fn run(
        self,
        source: Option<Box<dyn Source>>,
        sink: Box<dyn Sink>,
        tick: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.engine.wait_for_devices()?;
        let mut lanes = self.engine.stats().devices.max(1);
        self.settings.know(|setting| {
            // What begins with the image before waits for it.
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
            None => live.hear(flow),
        };
        start("frames in", &live, &flow, read, Flow::end_reading)?;
        let ended = loop {
            if let Some(ended) = flow.ended(LOOK) {
                break ended;
            }
            if let Err(error) = cancel.check() {
                break Err(error);
            }
            // The first error is told.
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
        // What is wrong with the first frame, while none could be read.
        let (mut wanted, mut wrong) = (None, None);
        for number in 0.. {
            let next = source.next(number % self.every == 0)?;
            self.stats.count(|counts| counts.read += u64::from(!matches!(next, Next::End)));
            let frame = match next {
                // A stream of which nothing can be read is not what it was taken for.
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
                if flow.hand_in(arrived).is_none() {
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

    /// The size that all frames are brought to, which is that of the first one where none is given.
    fn known_size(&self, first: [usize; 2]) -> [usize; 2] {
        if let Some(size) = self.settings.now().stream.frames {
            return size;
        }
        self.settings.know(|setting| Stream { frames: Some(first), ..setting.stream });
        first
    }

    /// Asks for an image at first, and at each change of the settings.
    fn hear(&self, flow: &Flow) -> Result<()> {
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

    /// Makes images. While a GPU decodes one, the next frame is taken and its work is prepared: before that, a newer
    /// one may come.
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

    /// Has the engine make the image of a frame; `before` are the latents of the one before. Where the device
    /// `is_busy`, the frame is encoded behind what it does.
    fn begin(&self, (turn, arrived): (u64, Arrived), before: Option<Latents>, is_busy: bool) -> Result<Begun> {
        // One that had to wait for its turn came when that was there.
        let at = if self.keeps_all { Instant::now() } else { arrived.at };
        let setting = self.settings.sized(|setting| setting.image_size(&self.engine, arrived.frame.clone()))?;
        let job = setting.job(&self.engine, arrived.frame.clone(), before.as_ref())?;
        let job = flux::engine::Job { cancel: self.cancel.child(), ..job };
        if is_busy {
            // What is wrong, the job says.
            let _ = self.engine.encode_images_ahead(&job);
        }
        let ticket = self.engine.submit(job)?;
        Ok(Begun { turn, of: Arrived { at, ..arrived }, ticket, is_read_by_next: setting.feedback > 0.0 })
    }

    /// The image, and its latents where the next one reads them. `decodes` is called once the steps are done, unless
    /// the next image waits for this one, or what would be done meanwhile needs the processor that decodes.
    fn image(
        &self,
        ticket: Ticket,
        is_read_by_next: bool,
        mut decodes: impl FnMut(),
    ) -> Result<(Rgb, Option<Latents>)> {
        let (mut made, mut waits) = (None, is_read_by_next || !self.engine.computes_beside_host());
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
        made.ok_or_else(|| Error::new("the engine made no image of the frame"))
    }

    /// Writes images.
    fn write(&self, flow: &Flow, mut sink: Box<dyn Sink>) -> Result<()> {
        let period = self.rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
        // Of paced images, the newest; and when the next one is written.
        let (mut newest, mut due) = (None, None);
        loop {
            match flow.next(due) {
                Handed::End => {
                    // The last one is written, however soon it came.
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
                    // Where the output stalled, what was missed is not made up for.
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

/// Starts a thread, which says its end where it did all of its work. Its error ends all of it: were its end said too,
/// the others could be done before they hear of the error.
fn start(
    name: &str,
    live: &Arc<Live>,
    flow: &Arc<Flow>,
    work: impl FnOnce(&Live, &Flow) -> Result<()> + Send + 'static,
    end: fn(&Flow),
) -> Result<()> {
    let (live, flow) = (Arc::clone(live), Arc::clone(flow));
    let run = move || {
        let _closes = ClosesAtPanic(Arc::clone(&flow));
        match work(&live, &flow) {
            Ok(()) => end(&flow),
            // Why it was cancelled, whoever cancels knows.
            Err(error) if error.kind() == ErrorKind::Cancelled => {}
            Err(error) => flow.close(Some(error)),
        }
    };
    thread::Builder::new().name(name.to_string()).spawn(run).map(drop).map_err(|e| Error::no_thread(&e))
}
