//! Scores: the share of the prompts' content that is in their images, for prompts.json.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

pub mod edits;
mod reader;

use std::collections::{BTreeMap, HashMap};

use std::sync::Arc;

use flux::backend::Backend;
use flux::output::Rgb;
use flux::pipeline::{Model, Request};
use reader::{Object, Reader, averaged};

/// Maximum distance of an object from its place, relative to the image.
const PLACE_TOLERANCE: f64 = 0.15;
/// Sides of the tiles of drawn.png and of emoji.png.
const TILE: usize = 64;
const THUMBNAIL: usize = 16;
/// The margin around an emoji at its normal size, relative to the image.
const EMOJI_MARGIN: f64 = 0.14;

/// Number of text tokens for prompts in tests that have no time for 512.
const SHORT: usize = 64;

/// Minimum share of right answers, for each property that prompts request.
pub const BOUNDS: [(&str, f64); 10] = [
    ("background", 0.95),
    ("clean", 1.0),
    ("color", 0.92),
    ("count", 0.9),
    ("count_color", 0.9),
    ("emoji", 0.85),
    ("position", 0.6),
    ("relation", 0.85),
    ("relation_shapes", 0.85),
    ("shape", 0.92),
];
/// The bound with few prompts, for each property.
const BOUND_OF_FEW: f64 = 0.8;
/// Image sizes of [`expect_meaning_at_sizes`], and the number of prompts with one shape.
pub const SIZES: [([usize; 2], usize); 5] =
    [([128, 128], 6), ([192, 192], 6), ([320, 320], 3), ([384, 256], 3), ([512, 512], 3)];
/// The bound for images of other prompts: their share over all properties that depend on the prompt stays below it.
const MAX_BY_CHANCE: f64 = 0.2;

/// prompts.json from scripts/train_tiny/prompts.py.
#[derive(serde::Deserialize)]
pub struct Meaning {
    #[serde(flatten)]
    reader: Reader,
    /// Names of the thumbnails in emoji.png.
    emoji: Vec<String>,
    pub prompts: Vec<Prompt>,
}

/// A prompt and the required content of its image.
#[derive(serde::Deserialize)]
pub struct Prompt {
    pub prompt: String,
    pub seed: u64,
    kind: Kind,
    pub background: String,
    /// The objects in `prompt`, in its order.
    #[serde(default)]
    objects: Vec<Thing>,
    /// Center of the object, relative to the image.
    place: Option<[f64; 2]>,
    /// The position of the first object relative to the second.
    relation: Option<Relation>,
    /// For meaningless words, the question mark.
    emoji: Option<String>,
}

#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Shape,
    Shapes,
    TwoShapes,
    Emoji,
    Unknown,
}

#[derive(serde::Deserialize)]
struct Thing {
    color: String,
    shape: String,
}

#[derive(serde::Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Relation {
    Left,
    Right,
    Above,
    Below,
}

impl Meaning {
    pub fn load() -> Self {
        serde_json::from_str(include_str!("prompts.json")).expect("the exporter writes what is read here")
    }

    /// Returns the image of every prompt by the training's renderer.
    pub fn drawn(&self) -> Vec<Rgb> {
        tiles(include_bytes!("drawn.png"), TILE, self.prompts.len())
    }

    /// Generates one image for each prompt.
    pub fn generate<B: Backend>(&self, model: &Arc<Model<B>>) -> Vec<Rgb> {
        self.prompts.iter().map(|prompt| draw(model, Request::new(&prompt.prompt, prompt.seed))).collect()
    }

    /// Keeps the first prompts of each kind with shapes: `of_one` with one shape, a third as many with several and
    /// with two.
    pub fn few(mut self, of_one: usize) -> Self {
        let mut left =
            HashMap::from([(Kind::Shape, of_one), (Kind::Shapes, of_one / 3), (Kind::TwoShapes, of_one / 3)]);
        self.prompts.retain(|prompt| match left.get_mut(&prompt.kind) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        });
        self
    }

    /// Keeps every n-th prompt.
    pub fn every(mut self, n: usize) -> Self {
        let mut place = 0..;
        self.prompts.retain(|_| place.next().is_some_and(|place| place % n == 0));
        self
    }

    /// Generates one image of this size for each prompt, with text of the minimum length.
    pub fn generate_at<B: Backend>(&self, model: &Arc<Model<B>>, [width, height]: [usize; 2]) -> Vec<Rgb> {
        let request = |prompt: &Prompt| Request {
            width: Some(width),
            height: Some(height),
            max_sequence_length: Some(SHORT),
            ..Request::new(&prompt.prompt, prompt.seed)
        };
        self.prompts.iter().map(|prompt| draw(model, request(prompt))).collect()
    }

    /// Returns `true` if an image is clean, whatever it shows.
    pub fn is_clean(&self, image: &Rgb) -> bool {
        self.reader.read(image).is_clean()
    }

    /// Returns the background, and color, shape and side of each object from left to right: `true` in the left half.
    pub fn seen(&self, image: &Rgb) -> (String, Vec<(String, String, bool)>) {
        let mut seen = self.reader.read(image);
        seen.objects.sort_by(|a, b| a.x.total_cmp(&b.x));
        let objects = seen.objects.into_iter().map(|object| (object.color, object.shape, object.x < 0.5));
        (seen.background, objects.collect())
    }

    /// Scores one image for each prompt; errors are printed.
    pub fn scores(&self, images: &[Rgb]) -> Scores {
        assert_eq!(images.len(), self.prompts.len());
        let mut scores = Scores::default();
        for (prompt, image) in self.prompts.iter().zip(images) {
            let grades = self.grades(prompt, image);
            let wrong: Vec<_> = grades.iter().filter(|(_, right)| !right).map(|(name, _)| *name).collect();
            if !wrong.is_empty() {
                println!("{}: {wrong:?}", prompt.prompt);
            }
            scores.add(&grades);
        }
        scores
    }

    /// Scores every image against the next prompt of its kind.
    pub fn scores_by_chance(&self, images: &[Rgb]) -> Scores {
        let mut of_kind: HashMap<Kind, Vec<usize>> = HashMap::new();
        for (i, prompt) in self.prompts.iter().enumerate() {
            of_kind.entry(prompt.kind).or_default().push(i);
        }
        let mut scores = Scores::default();
        for places in of_kind.values() {
            for (i, &place) in places.iter().enumerate() {
                scores.add(&self.grades(&self.prompts[places[(i + 1) % places.len()]], &images[place]));
            }
        }
        scores
    }

    /// Grades each requested property, by name.
    fn grades(&self, asked: &Prompt, image: &Rgb) -> Vec<(&'static str, bool)> {
        let seen = self.reader.read(image);
        let mut grades = vec![("background", seen.background == asked.background)];
        let first = seen.objects.first();
        match asked.kind {
            Kind::Shape => {
                let thing = &asked.objects[0];
                grades.push(("color", first.is_some_and(|object| object.color == thing.color)));
                grades.push((
                    "shape",
                    first.is_some_and(|object| object.shape == thing.shape) && seen.objects.len() <= 2,
                ));
                if let Some([x, y]) = asked.place {
                    let near = |object: &Object| {
                        (object.x - x).abs() < PLACE_TOLERANCE && (object.y - y).abs() < PLACE_TOLERANCE
                    };
                    grades.push(("position", first.is_some_and(near)));
                }
            }
            Kind::Shapes => {
                grades.push(("count", seen.objects.len() == asked.objects.len()));
                grades.push((
                    "count_color",
                    first.is_some() && seen.objects.iter().all(|object| object.color == asked.objects[0].color),
                ));
            }
            Kind::TwoShapes => {
                let relation = asked.relation.expect("the exporter writes one for two shapes");
                let mut objects: Vec<&Object> = seen.objects.iter().collect();
                let upright = matches!(relation, Relation::Above | Relation::Below);
                objects.sort_by(|a, b| if upright { a.y.total_cmp(&b.y) } else { a.x.total_cmp(&b.x) });
                if matches!(relation, Relation::Right | Relation::Below) {
                    objects.reverse();
                }
                let are = |same: fn(&Object, &Thing) -> bool| {
                    objects.len() == asked.objects.len()
                        && objects.iter().zip(&asked.objects).all(|(object, thing)| same(object, thing))
                };
                grades.push(("relation", are(|object, thing| object.color == thing.color)));
                grades.push(("relation_shapes", are(|object, thing| object.shape == thing.shape)));
            }
            Kind::Emoji => {}
            Kind::Unknown => grades.push(("clean", seen.is_clean())),
        }
        if let Some(emoji) = &asked.emoji {
            grades.push(("emoji", emoji == self.nearest_emoji(asked, image)));
        }
        grades
    }

    /// Returns the emoji whose thumbnail, on the requested background, is nearest to the middle of an image.
    fn nearest_emoji(&self, asked: &Prompt, image: &Rgb) -> &str {
        let sheet = image::load_from_memory(include_bytes!("emoji.png")).expect("a PNG").to_rgba8();
        let across = sheet.width() as usize / THUMBNAIL;
        let margin = |length: usize| (EMOJI_MARGIN * length as f64).round() as usize;
        let (left, top) = (margin(image.width), margin(image.height));
        let middle = averaged(image, [left, top, image.width - 2 * left, image.height - 2 * top], THUMBNAIL);
        let background = self.reader.colors[&asked.background];
        let distance = |candidate: usize| -> f64 {
            let (left, top) = (candidate % across * THUMBNAIL, candidate / across * THUMBNAIL);
            let cells = middle.iter().enumerate().map(|(i, seen)| {
                // Premultiplied.
                let [r, g, b, alpha] =
                    sheet.get_pixel((left + i % THUMBNAIL) as u32, (top + i / THUMBNAIL) as u32).0.map(f64::from);
                let behind = background.map(|value| (1.0 - alpha / 255.0) * value);
                [r, g, b]
                    .iter()
                    .zip(behind)
                    .zip(seen)
                    .map(|((own, behind), seen)| (own + behind - seen).powi(2))
                    .sum::<f64>()
            });
            cells.sum()
        };
        let nearest = (0..self.emoji.len()).min_by(|a, b| distance(*a).total_cmp(&distance(*b)));
        &self.emoji[nearest.expect("there are thumbnails")]
    }
}

/// Generates the image of a request in the default model's four steps.
fn draw<B: Backend>(model: &Arc<Model<B>>, request: Request) -> Rgb {
    let image = model.generate(&Request { steps: Some(4), ..request }).unwrap();
    Rgb { width: image.plan.width, height: image.plan.height, bytes: image.rgb }
}

/// Returns the first tiles of a PNG with rows of tiles.
fn tiles(png: &[u8], side: usize, count: usize) -> Vec<Rgb> {
    let sheet = image::load_from_memory(png).expect("a PNG").to_rgb8();
    let (pixels, across) = (side as u32, sheet.width() / side as u32);
    let tile = |i: u32| {
        image::imageops::crop_imm(&sheet, i % across * pixels, i / across * pixels, pixels, pixels)
            .to_image()
            .into_raw()
    };
    (0..count as u32).map(|i| Rgb { width: side, height: side, bytes: tile(i) }).collect()
}

/// Right answers and all answers, by property.
#[derive(Default)]
pub struct Scores(BTreeMap<&'static str, (usize, usize)>);

impl Scores {
    fn add(&mut self, grades: &[(&'static str, bool)]) {
        for (name, right) in grades {
            let score = self.0.entry(name).or_default();
            *score = (score.0 + usize::from(*right), score.1 + 1);
        }
    }

    /// Returns the share of right answers for `name`.
    pub fn share(&self, name: &str) -> f64 {
        let (right, all) = self.0.get(name).unwrap_or_else(|| panic!("no prompt asks for `{name}`"));
        *right as f64 / *all as f64
    }

    /// Returns the properties, and the number of answers.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.0.iter().map(|(name, (_, all))| (*name, *all))
    }

    /// Returns the share over all properties that depend on the prompt.
    pub fn total(&self) -> f64 {
        let (right, all) = self
            .0
            .iter()
            .filter(|(name, _)| **name != "clean")
            .fold((0, 0), |sum, (_, score)| (sum.0 + score.0, sum.1 + score.1));
        f64::from(right as u32) / f64::from(all as u32)
    }
}

impl std::fmt::Display for Scores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(name, (right, all))| format!("{name} {right}/{all}")).collect();
        write!(f, "{}", parts.join(", "))
    }
}

/// Fails if the images of a model show too little of their prompts, or if images of other prompts would pass too.
pub fn expect_meaning(meaning: &Meaning, images: &[Rgb]) {
    let (scores, by_chance) = (meaning.scores(images), meaning.scores_by_chance(images));
    println!("right:     {scores}\nby chance: {by_chance}");
    for (name, bound) in BOUNDS {
        assert!(scores.share(name) >= bound, "{name}: {:.2} right, the bound is {bound}", scores.share(name));
        assert!(
            name == "clean" || by_chance.share(name) < bound,
            "{name}: {:.2} right by chance",
            by_chance.share(name)
        );
    }
    assert!(by_chance.total() < MAX_BY_CHANCE, "{:.2} right by chance", by_chance.total());
}

/// Fails if images of few prompts show too little of them.
pub fn expect_most(meaning: &Meaning, images: &[Rgb]) {
    let scores = meaning.scores(images);
    println!("right: {scores}");
    for (name, _) in scores.names() {
        assert!(scores.share(name) >= BOUND_OF_FEW, "{name}: {:.2} right", scores.share(name));
    }
}

/// Fails if images at one of `sizes`, each with its number of prompts of one shape, show too little of their prompts.
pub fn expect_meaning_at_sizes<B: Backend>(model: &Arc<Model<B>>, sizes: &[([usize; 2], usize)]) {
    for (size, of_one) in sizes {
        println!("{size:?}");
        let meaning = Meaning::load().few(*of_one);
        expect_most(&meaning, &meaning.generate_at(model, *size));
    }
}
