//! Live video: frame rate, latency and unwanted flicker, for each kind of start.
//!
//! Frames are generated beforehand and look like a camera's, with noise: a still scene, a scene with a moving object,
//! and a scene with one half recomputed. A new frame arrives when the previous one is taken, and images are encoded as
//! JPEG.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use flux::engine::{Engine, Event, Recipe};
use flux::pipeline::Reuse;
use flux::rgb::Rgb;
use flux::stage::CancelFlag;
use flux::{Error, Result};
use serde::Serialize;

use flux_live::{Change, Live, Setting, Settings, Sink, Source, Stats, StatsReport};
use flux_media::video::{Next, VideoFormat, VideoWriter};

/// Warm-up frames, during which weights are loaded and CUDA graphs captured.
const WARM_UP: usize = 4;
/// Frames of a scene before it repeats.
const AROUND: usize = 50;
/// Pixels around a change that are recomputed with it.
const RING: i64 = 16;
/// Maximum noise of the camera, in levels.
const NOISE: i32 = 3;

/// The selection and settings of measurements.
pub struct Settled {
    /// Parts of names: a measurement runs if its name contains one of them, or if there are none.
    pub names: Vec<String>,
    pub sizes: Vec<usize>,
    pub prompt: String,
    pub steps: Option<usize>,
    /// The number of measured frames.
    pub frames: usize,
    pub json: bool,
}

/// The start of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Noise, with the frame as a reference.
    Reference,
    /// [`Start::Reference`], with a part of the noise replaced by the previous image.
    Feedback,
    /// The noisy frame, without it as a reference.
    Strength,
    /// [`Start::Reference`], with unchanged parts reused from an earlier frame.
    Reuse,
    /// Noise, and a new prompt each time.
    Text,
}

/// The content of the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    Still,
    Moving,
    /// The left half of each frame differs from the first frame, so that this half is recomputed with a margin.
    Half,
}

/// A row, for `--json`.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    frames: u64,
    frames_per_s: f64,
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    /// The difference of images between equal frames, in 8-bit levels.
    #[serde(skip_serializing_if = "Option::is_none")]
    flicker: Option<f64>,
    /// The share of computed tokens, if others are reused from an earlier frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    computed: Option<f64>,
}

impl Start {
    const ALL: [Self; 5] = [Self::Reference, Self::Feedback, Self::Strength, Self::Reuse, Self::Text];

    fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Feedback => "feedback-0.3",
            Self::Strength => "strength-0.5",
            Self::Reuse => "reuse-0.02",
            Self::Text => "text",
        }
    }

    fn scenes(self) -> &'static [Scene] {
        match self {
            Self::Text => &[Scene::Still],
            Self::Reuse => &[Scene::Still, Scene::Moving, Scene::Half],
            Self::Reference | Self::Feedback | Self::Strength => &[Scene::Still, Scene::Moving],
        }
    }

    fn setting(self, prompt: &str, steps: Option<usize>, size: usize) -> Result<Setting> {
        let strength = (self == Self::Strength).then_some(0.5);
        let side = (self == Self::Text).then_some(size);
        let recipe = Recipe {
            steps,
            strength,
            no_self_reference: strength.is_some(),
            width: side,
            height: side,
            ..Recipe::new(prompt, 42)
        };
        let feedback = if self == Self::Feedback { 0.3 } else { 0.0 };
        let reuse = (self == Self::Reuse).then_some(Reuse { threshold: 0.02, refresh: 100 });
        Setting::new(recipe, feedback, self != Self::Text)?.with_reuse(reuse)
    }
}

impl Scene {
    fn name(self) -> &'static str {
        match self {
            Self::Still => "still",
            Self::Moving => "moving",
            Self::Half => "half",
        }
    }

    /// Returns the frame at a time: a disc on a colour gradient, with noise.
    fn frame(self, size: usize, time: usize) -> Rgb {
        let (side, radius) = (size as i64, size as i64 / 5);
        // The disc moves by a hundredth of the side per frame.
        let way = match self {
            Self::Still | Self::Half => 0,
            Self::Moving => (time as i64 * side / 100) % (side / 2),
        };
        let middle = [side / 4 + way, side / 2];
        let value = |i: usize| {
            let (x, y, color) = ((i / 3 % size) as i64, (i / 3 / size) as i64, i % 3);
            let is_inside = (x - middle[0]).pow(2) + (y - middle[1]).pow(2) < radius.pow(2);
            let plain = match (is_inside, color) {
                (true, 0) => 210,
                (true, _) => 40,
                (false, 0) => 90 + 60 * x / side,
                (false, _) => 150 + 60 * y / side,
            };
            let is_changed = self == Self::Half && 2 * (x + RING) < side && time > 1;
            let plain = if is_changed { (plain + 60 * (1 + time as i64 % 2)) % 240 } else { plain };
            let mixed = ((time << 32) as u64 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let noise = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
            (plain as i32 + noise as i32 % (2 * NOISE + 1) - NOISE) as u8
        };
        Rgb { width: size, height: size, bytes: (0..3 * size * size).map(value).collect() }
    }
}

/// Frames of a scene.
struct Scenes {
    frames: Vec<Rgb>,
    /// The number of frames to send; `time` counts frames sent.
    count: usize,
    time: usize,
}

impl Scenes {
    fn new(scene: Scene, size: usize, count: usize) -> Self {
        let frames = (1..=(AROUND + 1).min(count)).map(|time| scene.frame(size, time)).collect();
        Self { frames, count, time: 0 }
    }
}

impl Source for Scenes {
    fn next(&mut self, _wanted: bool) -> Result<Next> {
        if self.time == self.count {
            return Ok(Next::End);
        }
        // The first frame is sent only once, because nothing would be computed for a known image.
        let place = match self.time {
            0 => 0,
            time => 1 + (time - 1) % (self.frames.len() - 1),
        };
        self.time += 1;
        Ok(Next::Frame(self.frames[place].clone()))
    }
}

/// Encodes images and discards the result.
struct Encoder(VideoWriter<io::Sink>);

impl Sink for Encoder {
    fn write(&mut self, image: &Rgb) -> Result<()> {
        self.0.write(image)
    }
}

/// Runs the measurements and prints each row as soon as it is measured.
///
/// Errors when no measurement matches the names, or the model cannot generate the images.
pub fn run(engine: &Arc<Engine>, what: &Settled, print: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let mut is_measured = false;
    for (&size, start) in what.sizes.iter().flat_map(|size| Start::ALL.map(|start| (size, start))) {
        for &scene in start.scenes() {
            let of_scene = if start == Start::Text { String::new() } else { format!("-{}", scene.name()) };
            let name = format!("live/{}{of_scene}/{size}x{size}", start.name());
            if !what.names.is_empty() && !what.names.iter().any(|part| name.contains(&**part)) {
                continue;
            }
            is_measured = true;
            let setting = start.setting(&what.prompt, what.steps, size)?;
            let row = measure(engine, setting, (name, scene, size), what.frames)?;
            let line = if what.json {
                serde_json::to_string(&row).map_err(|e| Error::new(format!("cannot write the results as JSON: {e}")))?
            } else {
                row.text()
            };
            print(&line)?;
        }
    }
    if is_measured {
        return Ok(());
    }
    Err(Error::usage(format!("no measurement has `{}` in its name", what.names.join("` or `"))).hint(
        "use names such as `live/reference-still/128x128`, `live/feedback-0.3-moving/128x128` and `live/text/128x128`",
    ))
}

fn measure(
    engine: &Arc<Engine>,
    setting: Setting,
    (name, scene, size): (String, Scene, usize),
    frames: usize,
) -> Result<Row> {
    let told = if setting.has_frames {
        measure_scene(engine, setting, Scenes::new(scene, size, WARM_UP + frames))?
    } else {
        measure_prompts(engine, &setting, WARM_UP + frames)?
    };
    let StatsReport { counts, frames_per_s, p50_ms, p95_ms, flicker, reused, .. } = told;
    Ok(Row {
        name,
        frames: counts.made - WARM_UP as u64,
        frames_per_s,
        p50_ms,
        p95_ms,
        flicker,
        computed: reused.map(|reused| reused.computed),
    })
}

fn encoder() -> Box<dyn Sink> {
    Box::new(Encoder(VideoWriter::new(VideoFormat::Mjpeg, [25, 1], 85, io::sink())))
}

/// Measures images from the frames of a scene.
fn measure_scene(engine: &Arc<Engine>, setting: Setting, scenes: Scenes) -> Result<StatsReport> {
    let stats = Arc::new(Stats::new(WARM_UP as u64));
    let live = Live {
        engine: Arc::clone(engine),
        settings: Settings::new(setting),
        stats: Arc::clone(&stats),
        every: 1,
        keeps_all: true,
        rate: None,
        cancel: CancelFlag::default(),
    };
    live.run(Some(Box::new(scenes)), encoder(), &mut || Ok(()))?;
    Ok(stats.whole())
}

/// Measures images from prompts alone, each with a different prompt.
fn measure_prompts(engine: &Arc<Engine>, setting: &Setting, count: usize) -> Result<StatsReport> {
    let (stats, mut sink) = (Stats::new(WARM_UP as u64), encoder());
    for number in 0..count {
        let prompt = format!("{} {number}", setting.recipe.prompt);
        let began = Instant::now();
        let job = setting.changed(Change { prompt: Some(prompt), ..Change::default() })?.job(engine, None, None)?;
        for event in engine.submit(job)? {
            if let Event::Image { image, .. } = event? {
                let image = image.pixels()?;
                sink.write(&image)?;
                stats.made(None, &image, began.elapsed());
            }
        }
    }
    Ok(stats.whole())
}

impl Row {
    fn text(&self) -> String {
        let Self { name, frames, frames_per_s, .. } = self;
        let mut line = format!("{name:<40} {frames_per_s:8.2} frames/s of {frames}");
        if let Some((half, most)) = self.p50_ms.zip(self.p95_ms) {
            line += &format!("  {half:8.1} ms [95%: {most:.1}]");
        }
        line += &self.flicker.map_or_else(String::new, |flicker| format!("  flicker {flicker:.2}"));
        line += &self.computed.map_or_else(String::new, |share| format!("  {:.0} % computed", 100.0 * share));
        line
    }
}

#[cfg(test)]
mod tests {
    use flux::compare::{Framed, flicker};

    use super::*;

    #[test]
    fn frames_come_around_but_for_the_first() {
        for count in [0, 1, 2, 50, 51, 130] {
            let mut scenes = Scenes::new(Scene::Moving, 16, count);
            let mut frames = Vec::new();
            while let Next::Frame(frame) = scenes.next(true).unwrap() {
                frames.push(frame);
            }
            let expected = (0..count).map(|time| if time == 0 { 1 } else { 2 + (time - 1) % AROUND });
            assert!(frames.into_iter().eq(expected.map(|time| Scene::Moving.frame(16, time))), "{count}");
        }
    }

    #[test]
    fn the_noise_of_a_still_scene_is_no_change_and_what_moves_is_one() {
        let frames = |scene: Scene| [1, 9].map(|time| scene.frame(128, time));
        let [a, b] = frames(Scene::Still);
        assert_ne!(a, b);
        let of = |a: &Rgb, b: &Rgb| flicker(Framed { frame: a, image: a }, Framed { frame: b, image: b });
        let still = of(&a, &b).unwrap();
        assert!((1.0..3.0).contains(&still), "{still}");
        let [a, b] = frames(Scene::Moving);
        let moving = of(&a, &b).unwrap();
        assert!((1.0..4.0).contains(&moving) && a.bytes.iter().zip(&b.bytes).any(|(a, b)| a.abs_diff(*b) > 100));
        let [a, b] = frames(Scene::Half);
        let apart = |column: usize| a.bytes[3 * column].abs_diff(b.bytes[3 * column]);
        assert!((0..48).all(|column| apart(column) > 50) && (48..128).all(|column| apart(column) <= 2 * NOISE as u8));
    }
}
