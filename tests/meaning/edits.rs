//! Scores of edits: the image follows the instruction, and everything else is as in the reference.

use std::sync::Arc;

use flux::backend::Backend;
use flux::output::Rgb;
use flux::pipeline::{Model, Request};

use super::reader::{Object, Reader};
use super::{Meaning, SHORT, Scores, draw, tiles};

/// Side of the tiles of references.png and expected.png.
const SIDE: usize = 256;
/// Number of consecutive edits of each operation in edits.json, and number of operations.
const EACH: usize = 4;
const OPERATIONS: usize = 12;
/// Maximum distance of an object from its place, relative to the image, and maximum factor of its side.
const PLACE_TOLERANCE: f64 = 0.08;
const SIDE_TOLERANCE: f64 = 1.25;

/// Minimum share of right answers: over all edits, and for each group of operations with several.
const MIN_RIGHT: f64 = 0.85;
const MIN_OF_A_GROUP: f64 = 0.5;
/// Minimum median of the PSNR outside the edited area, dB.
const MIN_KEPT_DB: f64 = 30.0;
/// The bound for images of other instructions.
const MAX_BY_CHANCE: f64 = 0.2;

/// edits.json from scripts/train_tiny/edit_prompts.py, with its images.
pub struct Edits {
    reader: Reader,
    edits: Vec<Edit>,
}

#[derive(serde::Deserialize)]
struct File {
    edits: Vec<Asked>,
}

/// An instruction, and the required content of the edited image.
#[derive(serde::Deserialize)]
struct Asked {
    prompt: String,
    seed: u64,
    kind: Operation,
    references: usize,
    background: String,
    objects: Vec<Thing>,
    /// Boxes [left, top, right, bottom] relative to the image; outside of them it stays unchanged. `None` if the
    /// background changes, or there are two references.
    touched: Option<Vec<[f64; 4]>>,
}

struct Edit {
    asked: Asked,
    references: Vec<Arc<Rgb>>,
    expected: Rgb,
}

#[derive(serde::Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Operation {
    Color,
    Background,
    Replace,
    Add,
    Remove,
    Move,
    Larger,
    Smaller,
    Arrange,
    Swap,
    Transfer,
    Both,
}

impl Operation {
    /// The name under which it is scored.
    fn group(self) -> &'static str {
        match self {
            Self::Color => "color",
            Self::Background => "background",
            Self::Replace => "replace",
            Self::Add => "add",
            Self::Remove => "remove",
            Self::Move => "move",
            Self::Larger | Self::Smaller => "resize",
            Self::Arrange | Self::Swap => "arrange",
            Self::Transfer | Self::Both => "two references",
        }
    }
}

#[derive(serde::Deserialize)]
struct Thing {
    color: String,
    shape: String,
    x: f64,
    y: f64,
    side: f64,
}

impl Edits {
    pub fn load() -> Self {
        let file: File =
            serde_json::from_str(include_str!("edits.json")).expect("the exporter writes what is read here");
        let references = file.edits.iter().map(|asked| asked.references).sum();
        let mut references = tiles(include_bytes!("references.png"), SIDE, references).into_iter().map(Arc::new);
        let expected = tiles(include_bytes!("expected.png"), SIDE, file.edits.len());
        let edits = file.edits.into_iter().zip(expected).map(|(asked, expected)| {
            let references = references.by_ref().take(asked.references).collect();
            Edit { asked, references, expected }
        });
        let edits: Vec<Edit> = edits.collect();
        assert_eq!(edits.len(), EACH * OPERATIONS);
        Self { edits, reader: Meaning::load().reader }
    }

    /// Keeps `each` edits of each operation.
    pub fn few(mut self, each: usize) -> Self {
        let mut i = 0;
        self.edits.retain(|_| {
            i += 1;
            (i - 1) % EACH < each
        });
        self
    }

    /// Gives each reference the instruction of another operation.
    pub fn shuffled(mut self) -> Self {
        let mut prompts: Vec<String> = self.edits.iter().map(|edit| edit.asked.prompt.clone()).collect();
        prompts.rotate_left(self.edits.len() / OPERATIONS);
        self.edits.iter_mut().zip(prompts).for_each(|(edit, prompt)| edit.asked.prompt = prompt);
        self
    }

    /// Returns the expected images by the training's renderer.
    pub fn drawn(&self) -> Vec<Rgb> {
        let copy = |image: &Rgb| Rgb { width: image.width, height: image.height, bytes: image.bytes.clone() };
        self.edits.iter().map(|edit| copy(&edit.expected)).collect()
    }

    /// Generates an image for each edit. With `short`, the text has the minimum length.
    pub fn generate<B: Backend>(&self, model: &Arc<Model<B>>, short: bool) -> Vec<Rgb> {
        let request = |edit: &Edit| Request {
            references: edit.references.clone(),
            max_sequence_length: short.then_some(SHORT),
            ..Request::new(&edit.asked.prompt, edit.asked.seed)
        };
        self.edits.iter().map(|edit| draw(model, request(edit))).collect()
    }

    /// Returns the number of right images, by group of operations; wrong ones are printed.
    pub fn scores(&self, images: &[Rgb]) -> Scores {
        assert_eq!(images.len(), self.edits.len());
        let mut scores = Scores::default();
        for (Edit { asked, .. }, image) in self.edits.iter().zip(images) {
            let right = self.is_right(asked, image);
            if !right {
                println!("{}: wrong", asked.prompt);
            }
            scores.add(&[(asked.kind.group(), right)]);
        }
        scores
    }

    fn is_right(&self, asked: &Asked, image: &Rgb) -> bool {
        let seen = self.reader.read(image);
        seen.background == asked.background
            && seen.objects.len() == asked.objects.len()
            && asked.objects.iter().all(|thing| thing.is_among(&seen.objects))
    }

    /// Returns the PSNR of each image and its reference outside the edited area, ascending, dB.
    pub fn kept_db(&self, images: &[Rgb]) -> Vec<f64> {
        let kept = |(edit, image): (&Edit, &Rgb)| {
            let boxes = edit.asked.touched.as_ref()?;
            let inside = |at: f64, [from, to]: [f64; 2]| (from..to).contains(&at);
            let (mut squares, mut values) = (0.0, 0);
            for (i, (a, b)) in image.bytes.chunks(3).zip(edit.references[0].bytes.chunks(3)).enumerate() {
                let x = (i % image.width) as f64 / image.width as f64;
                let y = (i / image.width) as f64 / image.height as f64;
                if !boxes.iter().any(|&[left, top, right, bottom]| inside(x, [left, right]) && inside(y, [top, bottom]))
                {
                    squares += a.iter().zip(b).map(|(a, b)| f64::from(a.abs_diff(*b)).powi(2)).sum::<f64>();
                    values += 3;
                }
            }
            Some(10.0 * (255f64.powi(2) * f64::from(values) / f64::max(squares, 1.0)).log10())
        };
        let mut kept: Vec<f64> = self.edits.iter().zip(images).filter_map(kept).collect();
        kept.sort_by(f64::total_cmp);
        kept
    }
}

impl Thing {
    fn is_among(&self, objects: &[Object]) -> bool {
        objects.iter().any(|seen| {
            (seen.x - self.x).abs().max((seen.y - self.y).abs()) < PLACE_TOLERANCE
                && (SIDE_TOLERANCE.recip()..SIDE_TOLERANCE).contains(&(seen.side / self.side))
                && (&seen.shape, &seen.color) == (&self.shape, &self.color)
        })
    }
}

/// Fails if images of a model follow too few instructions, or change other things.
pub fn expect_edits(edits: &Edits, images: &[Rgb]) {
    let (scores, kept) = (edits.scores(images), edits.kept_db(images));
    let median = kept[kept.len() / 2];
    println!("{:.3} right: {scores}; kept at {median:.1} dB in median", scores.total());
    assert!(scores.total() >= MIN_RIGHT, "{:.3} right, the bound is {MIN_RIGHT}", scores.total());
    for (group, _) in scores.names().filter(|(_, count)| *count > 1) {
        assert!(scores.share(group) >= MIN_OF_A_GROUP, "{group}: {:.2} right", scores.share(group));
    }
    assert!(median >= MIN_KEPT_DB, "kept at {median:.1} dB, the bound is {MIN_KEPT_DB}");
}

/// Fails if images of other instructions pass, too.
pub fn expect_nothing(edits: &Edits, images: &[Rgb]) {
    let scores = edits.scores(images);
    println!("of other instructions: {:.3} right: {scores}", scores.total());
    assert!(scores.total() < MAX_BY_CHANCE, "{:.3} right of other instructions", scores.total());
}
