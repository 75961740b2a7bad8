//! Labels of a sheet's images, from the recipes in their files.

use std::path::{Path, PathBuf};

use flux::Result;
use flux::engine::ImageRecipe;
use flux::input::{is_image, said_by};

use crate::cli::{Label, LabelField, LabelPart};

/// Maximum number of lines under an image.
const MAX_LINES: usize = 8;
/// The fields that `auto` compares, in display order.
const COMPARED: [LabelField; 7] = [
    LabelField::Prompt,
    LabelField::Seed,
    LabelField::Steps,
    LabelField::Guidance,
    LabelField::Strength,
    LabelField::Size,
    LabelField::Model,
];

/// The labels of a sheet before they are formatted.
pub struct Labels {
    label: Label,
    images: Vec<Image>,
}

/// The name and recipe of an image.
struct Image {
    name: String,
    recipe: Option<ImageRecipe>,
}

impl Labels {
    /// Reads the recipes that the label needs. Also returns notes about the files.
    ///
    /// Errors when a file cannot be read or is not an image.
    pub fn read(label: &Label, files: &[PathBuf]) -> Result<(Self, Vec<String>)> {
        let needs_recipe = match label {
            Label::None => false,
            Label::Auto => true,
            Label::Parts(parts) => fields(parts).any(|field| field != LabelField::Name),
        };
        let (mut images, mut notes) = (Vec::with_capacity(files.len()), Vec::new());
        for file in files {
            let recipe = if needs_recipe { recipe_of(file, &mut notes)? } else { None };
            let name = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
            images.push(Image { name, recipe });
        }
        Ok((Self { label: label.clone(), images }, notes))
    }

    /// Returns the lines under each image.
    pub fn lines(&self) -> Vec<Vec<String>> {
        match &self.label {
            Label::None => vec![Vec::new(); self.images.len()],
            Label::Auto => self.differing(),
            Label::Parts(parts) => self.images.iter().map(|image| image.filled(parts)).collect(),
        }
    }

    /// Returns a line for each field that differs between the images, or the name if no field differs.
    fn differing(&self) -> Vec<Vec<String>> {
        let values = |field: LabelField| self.images.iter().map(|image| image.recipe_value(field)).collect::<Vec<_>>();
        let differs = |field: &LabelField| {
            let known: Vec<_> = values(*field).into_iter().flatten().collect();
            known.iter().any(|value| *value != known[0])
        };
        let shown: Vec<_> = COMPARED.into_iter().filter(differs).collect();
        let lines = |image: &Image| {
            let line = |field: &LabelField| {
                let value = image.recipe_value(*field)?;
                Some(match field {
                    LabelField::Steps => format!("{value} steps"),
                    LabelField::Guidance => format!("guidance {value}"),
                    LabelField::Strength => format!("strength {value}"),
                    _ => value,
                })
            };
            let lines: Vec<_> = shown.iter().filter_map(line).collect();
            if lines.is_empty() { vec![image.name.clone()] } else { lines }
        };
        self.images.iter().map(lines).collect()
    }
}

impl Image {
    /// Returns the lines of a template. An image without a recipe is labelled with its name if all fields are missing.
    fn filled(&self, parts: &[LabelPart]) -> Vec<String> {
        if self.recipe.is_none() && fields(parts).all(|field| self.value(field).is_none()) {
            return vec![self.name.clone()];
        }
        let text = |part: &LabelPart| match part {
            LabelPart::Text(text) => text.clone(),
            // Prompts may contain line breaks.
            LabelPart::Field(field) => self.value(*field).map_or("-".to_string(), |value| value.replace('\n', " ")),
        };
        let text: String = parts.iter().map(text).collect();
        text.lines().take(MAX_LINES).map(String::from).collect()
    }

    fn value(&self, field: LabelField) -> Option<String> {
        if field == LabelField::Name { Some(self.name.clone()) } else { self.recipe_value(field) }
    }

    /// Returns the recipe's value of a field, if the recipe has one.
    fn recipe_value(&self, field: LabelField) -> Option<String> {
        let ImageRecipe { recipe, model, .. } = self.recipe.as_ref()?;
        match field {
            LabelField::Name => None,
            LabelField::Prompt => Some(recipe.prompt.clone()).filter(|prompt| !prompt.is_empty()),
            LabelField::Seed => Some(recipe.seed.to_string()),
            LabelField::Steps => recipe.steps.map(|steps| steps.to_string()),
            LabelField::Guidance => recipe.guidance.map(|guidance| guidance.to_string()),
            LabelField::Strength => recipe.strength.map(|strength| strength.to_string()),
            LabelField::Size => recipe.width.zip(recipe.height).map(|(width, height)| format!("{width}x{height}")),
            LabelField::Model => Some(model.name.clone()).filter(|name| !name.is_empty()),
        }
    }
}

fn fields(parts: &[LabelPart]) -> impl Iterator<Item = LabelField> {
    parts.iter().filter_map(|part| match part {
        LabelPart::Text(_) => None,
        LabelPart::Field(field) => Some(*field),
    })
}

/// Returns the recipe in a file, or `None` if it is missing or invalid.
fn recipe_of(file: &Path, notes: &mut Vec<String>) -> Result<Option<ImageRecipe>> {
    // Unreadable files are reported when their pixels are read.
    let recipe = if is_image(file) { said_by(file)?.recipe } else { None };
    let Some(json) = recipe else { return Ok(None) };
    let recipe = ImageRecipe::from_json(&json);
    if let Err(error) = &recipe {
        notes.push(format!("`{}` is labelled with its file name: {}", file.display(), error.what()));
    }
    Ok(recipe.ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux::engine::{ModelRecipe, Recipe};

    fn image(name: &str, prompt: &str, seed: u64, steps: usize) -> Image {
        let recipe = Recipe { steps: Some(steps), width: Some(64), height: Some(48), ..Recipe::new(prompt, seed) };
        let model = ModelRecipe { name: "tiny".to_string(), ..ModelRecipe::default() };
        Image { name: name.to_string(), recipe: Some(ImageRecipe { recipe, model, ..ImageRecipe::default() }) }
    }

    fn unknown(name: &str) -> Image {
        Image { name: name.to_string(), recipe: None }
    }

    fn lines(label: &str, images: Vec<Image>) -> Vec<String> {
        let labels = Labels { label: label.parse().expect("a label"), images };
        labels.lines().iter().map(|lines| lines.join("|")).collect()
    }

    #[test]
    fn auto_shows_what_differs_and_names_where_nothing_does() {
        assert_eq!(lines("auto", vec![image("a", "a cat", 1, 4), image("b", "a cat", 2, 4)]), ["1", "2"]);
        let two = vec![image("a", "a cat", 1, 4), image("b", "a dog", 1, 8)];
        assert_eq!(lines("auto", two), ["a cat|4 steps", "a dog|8 steps"]);
        assert_eq!(lines("auto", vec![image("a", "a cat", 1, 4), image("b", "a cat", 1, 4)]), ["a", "b"]);
        let mixed = vec![image("a", "a cat", 1, 4), unknown("photo"), image("b", "a cat", 2, 4)];
        assert_eq!(lines("auto", mixed), ["1", "photo", "2"]);
        assert_eq!(lines("auto", vec![unknown("x"), unknown("y")]), ["x", "y"]);
    }

    #[test]
    fn a_text_is_filled_from_the_recipe() {
        let images = || vec![image("a", "a cat\nat night", 7, 4), unknown("photo")];
        assert_eq!(lines("none", images()), ["", ""]);
        assert_eq!(lines("seed", images()), ["7", "photo"]);
        assert_eq!(lines("prompt", images()), ["a cat at night", "photo"]);
        assert_eq!(lines("{seed}: {size}\\n{model} {strength}", images()), ["7: 64x48|tiny -", "photo"]);
        assert_eq!(lines("{name} {seed}", images()), ["a 7", "photo -"]);
    }
}
