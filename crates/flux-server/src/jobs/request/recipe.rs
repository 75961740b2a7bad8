//! Parsing of the fields of a recipe, and of adapters.

use flux::engine::regions::TextRegion;
use flux::engine::{AdapterFile, Recipe};
use flux::input::Sides;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::size::read_size;
use super::{Defaults, Lora};
use crate::http::error::{ApiError, Result, shown};
use crate::jobs::fields::{Faults, Fields};

/// Max characters of a prompt, as in OpenAI's API.
pub const MAX_PROMPT: usize = 32_000;
/// Max steps.
const MAX_STEPS: u64 = 1000;
/// Max pixels of a transition.
const MAX_FEATHER: u64 = 4096;
/// Max pixels around a mask.
const MAX_PADDING: u64 = 16384;
/// Max side of a tile in pixels.
const MAX_TILE: u64 = 8192;
/// The fields of a recipe that other APIs do not have, each with the function that reads it.
const OWN: [(&str, ReadOwn); 17] = [
    ("full_size", |recipe, field| recipe.full_size = field.flag()),
    ("no_composite", |recipe, field| recipe.no_composite = field.flag()),
    ("no_self_reference", |recipe, field| recipe.no_self_reference = field.flag()),
    ("sparse", |recipe, field| recipe.sparse = field.flag()),
    ("boxes", |recipe, field| recipe.boxes = field.value().unwrap_or_default()),
    ("regions", |recipe, field| recipe.regions = field.regions()),
    ("controls", |recipe, field| recipe.controls = field.value().unwrap_or_default()),
    ("input_weights", |recipe, field| recipe.input_weights = field.value().unwrap_or_default()),
    ("variety", |recipe, field| recipe.variety = field.value()),
    ("schedule", |recipe, field| recipe.schedule = field.value().unwrap_or_default()),
    ("rng", |recipe, field| recipe.rng = field.value().unwrap_or_default()),
    ("max_sequence_length", |recipe, field| recipe.max_sequence_length = field.whole(u64::MAX)),
    ("transparent", |recipe, field| recipe.transparent = field.value().unwrap_or_default()),
    ("resize", |recipe, field| recipe.resize = field.value()),
    ("extend", |recipe, field| recipe.extend = field.sides()),
    ("tile", |recipe, field| recipe.tile = field.whole(MAX_TILE)),
    ("tile_overlap", |recipe, field| recipe.tile_overlap = field.whole(MAX_TILE)),
];

/// Reads a field into a recipe.
type ReadOwn = fn(&mut Recipe, OwnField<'_>);

/// A field of [`OWN`] in a request.
struct OwnField<'a> {
    name: &'static str,
    fields: &'a mut Fields,
    faults: &'a mut Faults,
}

/// Errors if a prompt is too long.
pub(super) fn check_length(field: &'static str, text: &str) -> Result<()> {
    let length = text.chars().count();
    if length <= MAX_PROMPT {
        return Ok(());
    }
    let message = format!("the prompt has {length} characters, expected at most {MAX_PROMPT}");
    Err(ApiError::value(field, message))
}

pub(super) fn read_recipe(fields: &mut Fields, faults: &mut Faults, defaults: Defaults) -> Recipe {
    let prompt = faults.ok(fields.needed_text("prompt").map(Some)).unwrap_or_default();
    faults.extend(check_length("prompt", &prompt));
    let size = read_size(fields, faults, defaults.pixels);
    let [width, height] = faults.ok(size).map_or([None, None], |size| size.map(Some));
    Recipe {
        prompt,
        negative: faults.ok(fields.text("negative_prompt")),
        width,
        height,
        steps: faults.ok(fields.whole("steps", 1..=MAX_STEPS)).map(|steps| steps as usize),
        seed: faults.ok(fields.seed("seed")).unwrap_or(defaults.seed),
        variation: faults.ok(fields.value("variation")),
        guidance: faults.ok(fields.number("guidance", 0.0..=1e4)).map(|guidance| guidance as f32),
        strength: faults.ok(fields.number("strength", 0.0..=1.0)),
        feather: faults.ok(fields.whole("feather", 0..=MAX_FEATHER)).unwrap_or(0) as usize,
        mask_padding: faults.ok(fields.whole("mask_padding", 0..=MAX_PADDING)).map(|padding| padding as usize),
        hires: faults.ok(fields.value("hires")),
        ..read_own(fields, faults)
    }
}

/// Returns the names of the fields of a recipe that other APIs do not have. So requests of each API can have them under
/// these names.
pub fn own_names() -> impl Iterator<Item = &'static str> {
    OWN.iter().map(|(name, _)| *name)
}

/// Reads the fields of [`own_names`] into a recipe.
pub fn read_own(fields: &mut Fields, faults: &mut Faults) -> Recipe {
    let mut recipe = Recipe::default();
    for (name, read) in OWN {
        read(&mut recipe, OwnField { name, fields, faults });
    }
    recipe
}

impl OwnField<'_> {
    fn value<T: DeserializeOwned>(self) -> Option<T> {
        self.faults.ok(self.fields.value(self.name))
    }

    fn flag(self) -> bool {
        self.faults.ok(self.fields.flag(self.name)).unwrap_or(false)
    }

    fn whole(self, most: u64) -> Option<usize> {
        self.faults.ok(self.fields.whole(self.name, 0..=most)).map(|number| number as usize)
    }

    /// Sides of the canvas. Each is bounded here, because the work of a larger canvas counts as that of the image.
    fn sides(self) -> Option<Sides> {
        let sides: Sides = self.faults.ok(self.fields.value(self.name))?;
        let Sides { left, top, right, bottom } = sides;
        if [left, top, right, bottom].into_iter().max() > Some(MAX_PADDING as usize) {
            let message = format!("the sides of `{}` are at most {MAX_PADDING} pixels", self.name);
            self.faults.add(ApiError::value(self.name, message));
        }
        Some(sides)
    }

    fn regions(self) -> Vec<TextRegion> {
        self.faults.ok(read_regions(self.fields)).unwrap_or_default()
    }
}

/// Parses regions. Their places are boxes: a mask would name a file of the server.
fn read_regions(fields: &mut Fields) -> Result<Option<Vec<TextRegion>>> {
    let regions: Option<Vec<TextRegion>> = fields.value("regions")?;
    for TextRegion { mask, prompt, .. } in regions.iter().flatten() {
        check_length("regions", prompt)?;
        if mask.is_some() {
            let message = "regions are boxes here: send masks as the files of a `recipe`, to /v1/jobs";
            return Err(ApiError::bad("unsupported_value", message).with_param("regions"));
        }
    }
    Ok(regions)
}

/// Parses adapters: a list, or a single one. Each is an object, or a text `NAME`, `NAME:WEIGHT` or
/// `NAME:WEIGHT:BLOCKS`. An object may also map names to weights.
pub(super) fn read_loras(fields: &mut Fields) -> Result<Option<Vec<Lora>>> {
    let Some((name, value)) = fields.given("loras") else { return Ok(None) };
    let wrong = || {
        let message = format!("`{}` is not a list of objects with a `name` and a `weight`", shown(&name));
        ApiError::value(name.clone(), message)
    };
    let value = match value {
        Value::String(text) if text.trim_start().starts_with(['[', '{']) => {
            serde_json::from_str(&text).map_err(|_| wrong())?
        }
        value => value,
    };
    let items = match value {
        Value::Array(items) => items,
        Value::Object(weights) if !weights.is_empty() && weights.values().all(Value::is_number) => {
            weights.into_iter().map(|(name, weight)| json!({"name": name, "weight": weight})).collect()
        }
        one => vec![one],
    };
    let read = |item: Value| match item {
        Value::String(text) => {
            AdapterFile::parse(&text).map(|used| Lora::from(&used)).map_err(|why| ApiError::value(name.clone(), why))
        }
        item => serde_json::from_value(item).map_err(|_| wrong()),
    };
    items.into_iter().map(read).collect::<Result<_>>().map(Some)
}
