//! What an image file carries: how the image is made again.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::choice::PrecisionChoice;
use super::{AdapterFile, Recipe};
use crate::error::{Error, Result};
use crate::files::ModelPaths;
use crate::metadata::{DigitalSource, Metadata};
use crate::output::ImageFormat;
use crate::pipeline::Plan;

/// How an image was made: the recipe with every choice made, and with what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageRecipe {
    /// The version of the program that made it.
    pub flux: String,
    /// What makes it again.
    pub recipe: Recipe,
    /// The model.
    pub model: ModelRecipe,
    /// What computed it: the name of a GPU and how it computes, or the CPU. How many threads or GPUs there were changes
    /// no image.
    pub device: String,
    /// Which of the images of the files of noise or latents it is, where they have several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<OfImages>,
}

/// The model of an [`ImageRecipe`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecipe {
    /// Its name.
    pub name: String,
    /// What was named; nothing for the built-in model.
    #[serde(default)]
    pub paths: ModelPaths,
    /// Whether keys and values of references were made once, whatever the model's folder says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kv: bool,
    /// The formats that weights were brought to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantize: Option<String>,
    /// The type of the arithmetic that was asked for.
    #[serde(default)]
    pub precision: PrecisionChoice,
}

/// An image among those of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfImages {
    /// Counted from 0.
    pub place: usize,
    /// All of them.
    pub count: usize,
}

impl ImageRecipe {
    /// What makes the image of `plan` again.
    pub(super) fn of(recipe: &Recipe, plan: &Plan, model: &ModelRecipe, device: &str, of: OfImages) -> Self {
        let recipe = Recipe {
            width: Some(plan.width),
            height: Some(plan.height),
            steps: Some(plan.steps),
            guidance: Some(plan.guidance),
            seed: plan.seed,
            ..recipe.clone()
        };
        let (flux, model, device) = (env!("CARGO_PKG_VERSION").to_string(), model.clone(), device.to_string());
        let is_of_several = of.count > 1 && (recipe.noise.is_some() || recipe.latents.is_some());
        Self { flux, recipe, model, device, of: is_of_several.then_some(of) }
    }

    /// Errors when a file of this format has no room for the recipe, which a JPEG bounds: asked before the image is
    /// made.
    pub fn check_room(recipe: &Recipe, paths: &ModelPaths, format: ImageFormat) -> Result<()> {
        /// Longer than the choices of the model, and what describes it and the device.
        const MORE: usize = 1024;
        let model = ModelRecipe { name: "x".repeat(MORE), paths: paths.clone(), ..ModelRecipe::default() };
        let made = Self { flux: String::new(), recipe: recipe.clone(), model, device: String::new(), of: None };
        match format {
            ImageFormat::Jpeg => {
                let source = Some(DigitalSource::CompositeWithTrainedAlgorithmicMedia);
                let (recipe, parameters) = (Some(made.to_json()), Some(made.parameters()));
                Metadata { recipe, parameters, source, ..Metadata::default() }.check_jpeg()
            }
            ImageFormat::Png | ImageFormat::Webp => Ok(()),
        }
    }

    /// As an image file has it: JSON in one line.
    ///
    /// A name of a file that is no text has a replacement character for what is none.
    pub fn to_json(&self) -> String {
        let Self { flux, recipe, model, device, of } = self.clone();
        let (recipe, model) = (with_text_names(recipe), ModelRecipe { paths: of_text(model.paths), ..model });
        let made = Self { flux, recipe, model, device, of };
        serde_json::to_string(&made).expect("names are text, and so are keys")
    }

    /// Reads what an image file has.
    ///
    /// Errors when it is not what this version of the program writes.
    pub fn of_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|e| {
            Error::new(format!("its recipe cannot be read: {e}"))
                .hint("the file was changed, or another version of flux made it")
        })
    }

    /// The same as programs that read what A1111 writes understand it.
    pub fn parameters(&self) -> String {
        let Self { recipe, model, .. } = self;
        let size = recipe.width.zip(recipe.height).map(|(width, height)| format!("{width}x{height}"));
        let loras = recipe.adapters.iter().map(|used| {
            let name = used.file.file_stem().unwrap_or_default().to_string_lossy();
            format!("{name}:{}", used.strength)
        });
        let loras = loras.collect::<Vec<_>>().join(" ");
        let pairs = [
            ("Steps", recipe.steps.map(|steps| steps.to_string())),
            ("Sampler", Some("Euler".to_string())),
            ("Schedule type", Some(recipe.schedule.to_string())),
            ("CFG scale", recipe.guidance.map(|guidance| guidance.to_string())),
            ("Seed", Some(recipe.seed.to_string())),
            ("Size", size),
            ("Model", Some(model.name.clone())),
            ("Denoising strength", recipe.strength.map(|strength| strength.to_string())),
            ("Lora", Some(loras).filter(|loras| !loras.is_empty())),
            ("Version", Some(format!("flux {}", self.flux))),
        ];
        let pairs = pairs.into_iter().filter_map(|(key, value)| Some(format!("{key}: {}", quoted(&value?))));
        let negative = recipe.negative.iter().map(|negative| format!("Negative prompt: {negative}"));
        let lines = [recipe.prompt.clone()].into_iter().chain(negative);
        lines.chain([pairs.collect::<Vec<_>>().join(", ")]).collect::<Vec<_>>().join("\n")
    }
}

fn text(path: PathBuf) -> PathBuf {
    path.to_string_lossy().into_owned().into()
}

fn with_text_names(recipe: Recipe) -> Recipe {
    let adapters = recipe.adapters.into_iter().map(|used| AdapterFile { file: text(used.file), ..used });
    Recipe {
        inputs: recipe.inputs.into_iter().map(text).collect(),
        mask: recipe.mask.map(text),
        noise: recipe.noise.map(text),
        latents: recipe.latents.map(text),
        embeddings: recipe.embeddings.map(text),
        adapters: adapters.collect(),
        ..recipe
    }
}

fn of_text(paths: ModelPaths) -> ModelPaths {
    let ModelPaths { model, text_encoder, vae, tokenizer, variant } = paths;
    let [model, text_encoder, vae, tokenizer] = [model, text_encoder, vae, tokenizer].map(|path| path.map(text));
    ModelPaths { model, text_encoder, vae, tokenizer, variant }
}

/// A value as A1111 writes it: in quotes where it would end too early.
fn quoted(value: &str) -> String {
    if value.contains([',', ':', '\n']) { serde_json::json!(value).to_string() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> ImageRecipe {
        let adapters = vec![AdapterFile { file: "a/style.safetensors".into(), strength: 0.5 }];
        let recipe = Recipe {
            negative: Some("a dog".to_string()),
            adapters,
            schedule: "power:1.5".parse().unwrap(),
            ..Recipe::new("a cat,\na hat", 7)
        };
        let model = ModelRecipe { name: "tiny".to_string(), ..ModelRecipe::default() };
        let plan = Plan::of_size(64, 48);
        ImageRecipe::of(&recipe, &Plan { seed: 9, ..plan }, &model, "CPU", OfImages { place: 2, count: 4 })
    }

    #[test]
    fn it_is_the_same_after_json_and_has_every_choice() {
        let made = made();
        assert_eq!(ImageRecipe::of_json(&made.to_json()).unwrap(), made);
        let Recipe { width, height, steps, guidance, seed, .. } = made.recipe;
        assert_eq!((width, height, steps, guidance, seed), (Some(64), Some(48), Some(1), Some(1.0), 9));
        assert_eq!(made.of, None, "a seed says which image it is");
        for json in ["", "{}", r#"{"flux":"1","recipe":{"x":1},"model":{"name":""},"device":""}"#] {
            assert!(ImageRecipe::of_json(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_prompt_for_which_a_jpeg_has_no_room_is_refused_before_any_work() {
        let check =
            |prompt: String, format| ImageRecipe::check_room(&Recipe::new(prompt, 1), &ModelPaths::default(), format);
        for (prompt, fits) in [("a".repeat(30_000), true), ("a".repeat(33_000), false), ("<".repeat(17_000), false)] {
            assert_eq!(check(prompt.clone(), ImageFormat::Jpeg).is_ok(), fits);
            assert!(check(prompt.clone(), ImageFormat::Png).is_ok() && check(prompt, ImageFormat::Webp).is_ok());
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_name_that_is_no_text_is_told_as_far_as_it_is() {
        use std::os::unix::ffi::OsStringExt;
        let name = PathBuf::from(std::ffi::OsString::from_vec(b"a\xff.png".to_vec()));
        let recipe = Recipe { inputs: vec![name], ..Recipe::new("a cat", 1) };
        let json = ImageRecipe { recipe, ..made() }.to_json();
        assert!(json.contains("a\u{fffd}.png"), "{json}");
    }

    #[test]
    fn others_read_prompt_negative_prompt_and_pairs() {
        assert_eq!(
            made().parameters(),
            format!(
                "a cat,\na hat\nNegative prompt: a dog\nSteps: 1, Sampler: Euler, Schedule type: \"power:1.5\", \
                 CFG scale: 1, Seed: 9, Size: 64x48, Model: tiny, Lora: \"style:0.5\", Version: flux {}",
                env!("CARGO_PKG_VERSION")
            )
        );
    }
}
