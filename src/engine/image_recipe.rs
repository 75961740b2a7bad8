//! Image recipes: metadata of image files to reproduce the images.

use std::collections::BTreeMap;
use std::mem;
use std::path::{Path, PathBuf};

use base64::Engine;
use serde::{Deserialize, Serialize};

use super::choice::{AttentionChoice, PrecisionChoice};
use super::inputs::EmbeddedFiles;
use super::{AdapterFile, Inputs, Recipe};
use crate::error::{Error, Result};
use crate::files::ModelPaths;
use crate::metadata::{DigitalSource, Metadata};
use crate::output::ImageFormat;
use crate::pipeline::request::fields::MAX_SAMPLES;
use crate::pipeline::{Hires, MAX_REFERENCES, MAX_REGIONS, Plan};

/// The version of the arithmetic. It is raised when the same recipe, model and device give an image that differs in
/// any bit.
pub const NUMERICS: u32 = 1;

/// Maximum [`OfImages::count`] of a file, so that a damaged recipe does not request endless work.
const MAX_IMAGES: usize = 65_536;

/// A recipe with every choice made, the model and the device, for reproducing an image.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageRecipe {
    /// Version of the program that generated the image.
    pub flux: String,
    /// Version of the arithmetic, see [`NUMERICS`]; 0 if the program did not record it.
    #[serde(default)]
    pub numerics: u32,
    /// Recipe that reproduces the image.
    pub recipe: Recipe,
    /// Model.
    pub model: ModelRecipe,
    /// Device: the name of a GPU and its type of arithmetic, or the CPU. The number of threads or GPUs changes no
    /// image.
    pub device: String,
    /// Index in the files of noise or latents, if they hold several images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<OfImages>,
    /// Index in the image's batch, if it affects rounding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<OfImages>,
    /// Hash of the request, so that its author recognizes the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Digest of the pixels in the file, see [`Pixels::digest`](crate::metadata::Pixels::digest). Old files have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pixels: Option<String>,
    /// Digest of each input file, by its name in the recipe; see [`digest`](crate::files::digest).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub digests: BTreeMap<String, String>,
    /// Embedded input files, in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub embedded: BTreeMap<String, String>,
}

/// The model of an [`ImageRecipe`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecipe {
    /// Name of the model.
    pub name: String,
    /// Paths that were passed; empty for the built-in model.
    #[serde(default)]
    pub paths: ModelPaths,
    /// `true` if keys and values of references were computed once, even if the model's folder does not request it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kv: bool,
    /// Formats of quantized weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantize: Option<String>,
    /// Requested type of the arithmetic.
    #[serde(default)]
    pub precision: PrecisionChoice,
    /// Requested type of attention.
    #[serde(default, skip_serializing_if = "AttentionChoice::is_auto")]
    pub attention: AttentionChoice,
    /// Digests of the model's components.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub digests: BTreeMap<String, String>,
}

/// The position of an image among the images of a file or of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfImages {
    /// Index, from 0.
    pub place: usize,
    /// Number of images.
    pub count: usize,
}

impl ImageRecipe {
    /// The key of the request from which a language model wrote the prompt, in [`ImageRecipe::parameters`].
    pub const UPSAMPLED_FROM: &str = "Upsampled from";

    /// Creates the recipe of the image of `plan`, without digests of the model and of files.
    pub(super) fn for_plan(recipe: &Recipe, plan: &Plan, model: &ModelRecipe, device: &str) -> Self {
        // A second pass chooses tiles by its size.
        let tiles = plan.second_pass().unwrap_or(plan).tiles;
        let recipe = Recipe {
            prompt: recipe.full_prompt().into_owned(),
            boxes: Vec::new(),
            width: Some(plan.width),
            height: Some(plan.height),
            steps: Some(plan.steps),
            guidance: Some(plan.guidance),
            seed: plan.seed,
            hires: recipe.hires.clone().map(|hires| Hires { strength: Some(hires.strength()), ..hires }),
            variety: plan.variety,
            tile: tiles.map(|tiles| tiles.side).or(recipe.tile),
            tile_overlap: tiles.map(|tiles| tiles.overlap).or(recipe.tile_overlap),
            ..recipe.clone()
        };
        Self::new(recipe, model.clone(), device)
    }

    fn new(recipe: Recipe, model: ModelRecipe, device: &str) -> Self {
        Self {
            flux: env!("CARGO_PKG_VERSION").to_string(),
            numerics: NUMERICS,
            recipe,
            model,
            device: device.to_string(),
            of: None,
            batch: None,
            key: None,
            pixels: None,
            digests: BTreeMap::new(),
            embedded: BTreeMap::new(),
        }
    }

    /// Adds the digests of the inputs, and the inputs to embed.
    pub(super) fn with_inputs(mut self, inputs: &Inputs) -> Self {
        self.digests.extend(inputs.digests.clone());
        let base64 = |bytes: &Vec<u8>| base64::engine::general_purpose::STANDARD.encode(bytes);
        let name = |file: &PathBuf| file.to_string_lossy().into_owned();
        self.embedded = inputs.kept.iter().map(|(file, bytes)| (name(file), base64(bytes))).collect();
        self
    }

    /// Returns the embedded files. Bytes that several files share are stored under one of their names.
    ///
    /// Errors if they are not valid base64.
    pub fn embedded_files(&self) -> Result<EmbeddedFiles> {
        let decode = |(name, text): (&String, &String)| match base64::engine::general_purpose::STANDARD.decode(text) {
            Ok(bytes) => Ok((PathBuf::from(name), bytes)),
            Err(e) => Err(Error::new(format!("the file `{name}` that the recipe embeds is damaged: {e}"))
                .hint("pass the file with a flag")),
        };
        let mut files = self.embedded.iter().map(decode).collect::<Result<EmbeddedFiles>>()?;
        let digest = |file: &Path| self.digests.get(&*file.to_string_lossy());
        let masks = self.recipe.regions.iter().take(MAX_REGIONS).filter_map(|region| region.mask.as_ref());
        for file in self.recipe.inputs.iter().take(MAX_REFERENCES).chain(&self.recipe.mask).chain(masks) {
            let same = digest(file).and_then(|own| files.iter().find(|(other, _)| digest(other) == Some(own)));
            if let Some(bytes) = same.map(|(_, bytes)| bytes.clone()).filter(|_| !files.contains_key(file)) {
                files.insert(file.clone(), bytes);
            }
        }
        Ok(files)
    }

    /// Checks that a file of this format has room for the recipe, before the image is generated. Only JPEG has a
    /// limit.
    ///
    /// Errors if the recipe is too long.
    pub fn check_room(recipe: &Recipe, paths: &ModelPaths, inputs: &Inputs, format: ImageFormat) -> Result<()> {
        /// Longer than the model's options, its digests, and the descriptions of the model and the device.
        const MORE: usize = 2048;
        /// A digest with its quotes.
        const DIGEST: usize = 96;
        if format != ImageFormat::Jpeg {
            return Ok(());
        }
        let adapters = recipe.adapters.iter().map(|used| used.file.as_os_str().len() + DIGEST).sum::<usize>();
        let model = ModelRecipe { name: "x".repeat(MORE + adapters), paths: paths.clone(), ..ModelRecipe::default() };
        let made = Self::new(recipe.clone(), model, "").with_inputs(inputs);
        let source = Some(DigitalSource::CompositeWithTrainedAlgorithmicMedia);
        let (recipe, parameters) = (Some(made.to_json()), Some(made.parameters()));
        Metadata { recipe, parameters, source, ..Metadata::default() }.check_jpeg()
    }

    /// Returns the recipe as in an image file: JSON on one line.
    ///
    /// In file names, bytes that are not text become replacement characters.
    pub fn to_json(&self) -> String {
        let made = self.clone();
        let model = ModelRecipe { paths: paths_as_text(made.model.paths), ..made.model };
        let made = Self { recipe: with_text_names(made.recipe), model, ..made };
        serde_json::to_string(&made).expect("names are text, and so are keys")
    }

    /// Reads the recipe of an image file.
    ///
    /// Errors if this version of the program does not write such a recipe.
    pub fn from_json(json: &str) -> Result<Self> {
        let wrong = |what: String| {
            Error::new(format!("its recipe cannot be read: {what}"))
                .hint("use the original file: this one was changed, or comes from another version of flux")
        };
        let made: Self = serde_json::from_str(json).map_err(|e| wrong(e.to_string()))?;
        let others = [(made.of, MAX_IMAGES), (made.batch, MAX_SAMPLES)];
        let mut others = others.into_iter().filter_map(|(of, most)| Some((of?, most)));
        match others.find(|(of, most)| of.place >= of.count || of.count > *most) {
            Some((OfImages { place, count }, most)) => {
                Err(wrong(format!("image index {place} does not fit {count} images, of at most {most}")))
            }
            None => Ok(made),
        }
    }

    /// Returns the recipe in the format of A1111, for programs that read it.
    pub fn parameters(&self) -> String {
        let Self { recipe, model, .. } = self;
        let hires = recipe.hires.as_ref();
        let upscaler = |hires: &Hires| match hires.upscaler.as_deref().and_then(Path::file_name) {
            Some(name) => name.to_string_lossy().into_owned(),
            None => "Lanczos".to_string(),
        };
        let size = recipe.width.zip(recipe.height).map(|(width, height)| format!("{width}x{height}"));
        let loras = recipe.adapters.iter().map(|used| {
            let name = used.file.file_stem().unwrap_or_default().to_string_lossy();
            format!("{name}:{}{}", used.strength, used.blocks.suffix())
        });
        let loras = loras.collect::<Vec<_>>().join(" ");
        let pairs = [
            ("Steps", recipe.steps.map(|steps| steps.to_string())),
            ("Sampler", Some("Euler".to_string())),
            ("Schedule type", Some(recipe.schedule.to_string())),
            ("CFG scale", recipe.guidance.map(|guidance| guidance.to_string())),
            ("Seed", Some(recipe.variation.map_or(recipe.seed, |variation| variation.seed).to_string())),
            ("Variation seed", recipe.variation.map(|_| recipe.seed.to_string())),
            ("Variation seed strength", recipe.variation.map(|variation| variation.strength.to_string())),
            ("Variety", recipe.variety.map(|variety| variety.to_string())),
            ("Size", size),
            ("Model", Some(model.name.clone())),
            ("Template", recipe.template.clone()),
            ("Denoising strength", hires.map(Hires::strength).or(recipe.strength).map(|strength| strength.to_string())),
            ("Hires upscale", hires.and_then(|hires| hires.by).map(|by| by.to_string())),
            ("Hires resize", hires.and_then(|hires| hires.size).map(|size| size.to_string())),
            ("Hires steps", hires.and_then(|hires| hires.steps).map(|steps| steps.to_string())),
            ("Hires upscaler", hires.map(upscaler)),
            ("Hires prompt", hires.and_then(|hires| hires.prompt.clone())),
            ("Lora", Some(loras).filter(|loras| !loras.is_empty())),
            (Self::UPSAMPLED_FROM, recipe.upsampled.as_ref().map(|before| before.request.clone())),
            ("Version", Some(format!("flux {}", self.flux))),
        ];
        let pairs = pairs.into_iter().filter_map(|(key, value)| Some(format!("{key}: {}", quoted(&value?))));
        // ComfyUI reads nothing without this line.
        let negative = format!("Negative prompt: {}", recipe.negative.as_deref().unwrap_or_default());
        let lines = [recipe.prompt.clone(), negative].into_iter();
        lines.chain([pairs.collect::<Vec<_>>().join(", ")]).collect::<Vec<_>>().join("\n")
    }
}

fn text(path: PathBuf) -> PathBuf {
    path.to_string_lossy().into_owned().into()
}

fn with_text_names(mut recipe: Recipe) -> Recipe {
    recipe.images_mut().for_each(|file| *file = text(mem::take(file)));
    let adapters = recipe.adapters.into_iter().map(|used| AdapterFile { file: text(used.file), ..used });
    Recipe {
        noise: recipe.noise.map(text),
        latents: recipe.latents.map(text),
        embeddings: recipe.embeddings.map(text),
        adapters: adapters.collect(),
        hires: recipe.hires.map(|hires| Hires { upscaler: hires.upscaler.map(text), ..hires }),
        ..recipe
    }
}

fn paths_as_text(paths: ModelPaths) -> ModelPaths {
    let ModelPaths { model, text_encoder, vae, tokenizer, variant } = paths;
    let [model, text_encoder, vae, tokenizer] = [model, text_encoder, vae, tokenizer].map(|path| path.map(text));
    ModelPaths { model, text_encoder, vae, tokenizer, variant }
}

/// Returns a value as A1111 writes it: quoted if it contains separators.
fn quoted(value: &str) -> String {
    if value.contains([',', ':', '\n']) { serde_json::json!(value).to_string() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Upsampled;

    fn made() -> ImageRecipe {
        let adapters = vec![AdapterFile::new("a/style.safetensors", 0.5)];
        let recipe = Recipe {
            negative: Some("a dog".to_string()),
            adapters,
            schedule: "power:1.5".parse().unwrap(),
            ..Recipe::new("a cat,\na hat", 7)
        };
        let model = ModelRecipe { name: "tiny".to_string(), ..ModelRecipe::default() };
        let plan = Plan::with_size(64, 48);
        ImageRecipe::for_plan(&recipe, &Plan { seed: 9, ..plan }, &model, "CPU")
    }

    #[test]
    fn it_is_the_same_after_json_and_has_every_choice() {
        let made = made();
        assert_eq!(ImageRecipe::from_json(&made.to_json()).unwrap(), made);
        let Recipe { width, height, steps, guidance, seed, .. } = made.recipe;
        assert_eq!((width, height, steps, guidance, seed), (Some(64), Some(48), Some(1), Some(1.0), 9));
        for json in ["", "{}", r#"{"flux":"1","recipe":{"x":1},"model":{"name":""},"device":""}"#] {
            assert!(ImageRecipe::from_json(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_prompt_for_which_a_jpeg_has_no_room_is_refused_before_any_work() {
        let check = |prompt: String, format| {
            let inputs = Inputs::default();
            ImageRecipe::check_room(&Recipe::new(prompt, 1), &ModelPaths::default(), &inputs, format)
        };
        for (prompt, fits) in [("a".repeat(30_000), true), ("a".repeat(33_000), false), ("<".repeat(17_000), false)] {
            assert_eq!(check(prompt.clone(), ImageFormat::Jpeg).is_ok(), fits);
            assert!(check(prompt.clone(), ImageFormat::Png).is_ok() && check(prompt, ImageFormat::Webp).is_ok());
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_told_as_far_as_it_is() {
        use std::os::unix::ffi::OsStringExt;
        let name = PathBuf::from(std::ffi::OsString::from_vec(b"a\xff.png".to_vec()));
        let recipe = Recipe { inputs: vec![name], ..Recipe::new("a cat", 1) };
        let json = ImageRecipe { recipe, ..made() }.to_json();
        assert!(json.contains("a\u{fffd}.png"), "{json}");
    }

    /// Parses the last line as A1111 does. Source: `parse_generation_parameters` and `re_param` in its
    /// `modules/infotext_utils.py`.
    fn pairs(parameters: &str) -> Vec<(String, String)> {
        let pair = regex::Regex::new(r#"\s*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)"#).unwrap();
        let last = parameters.trim().rsplit('\n').next().unwrap();
        let unquoted = |value: &str| serde_json::from_str(value).unwrap_or(value.to_string());
        pair.captures_iter(last).map(|found| (found[1].to_string(), unquoted(&found[2]))).collect()
    }

    #[test]
    fn the_parser_of_a1111_reads_every_pair() {
        let pairs = pairs(&made().parameters());
        let value = |key: &str| pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        assert_eq!(
            [value("Steps"), value("Seed"), value("Size"), value("CFG scale")].map(Option::unwrap),
            ["1", "9", "64x48", "1"]
        );
        assert_eq!([value("Schedule type"), value("Lora")].map(Option::unwrap), ["power:1.5", "style:0.5"]);
        // With fewer pairs, A1111 would read the line as a part of the prompt.
        assert!(pairs.len() >= 3);
    }

    /// Parses the text as ComfyUI's front end does: prompt, negative prompt and pairs. Source: `importA1111` in its
    /// `pnginfo.ts`.
    fn comfyui(parameters: &str) -> (String, String, Vec<(String, String)>) {
        let steps = parameters.rfind("\nSteps:").expect("without it, nothing is read");
        let negative = parameters[..steps].rfind("\nNegative prompt:").expect("without it, no graph is created");
        let pair = regex::Regex::new(r#"\s*([^:]+:\s*([^"\{].*?|".*?"|\{.*?\}))\s*(,|$)"#).unwrap();
        let pairs = pair.find_iter(parameters[steps..].split('\n').nth(1).unwrap()).map(|found| {
            let mut parts = found.as_str().split(':');
            let part = parts.next().zip(parts.next()).expect("a key and a value");
            (part.0.trim().to_lowercase(), part.1.trim_end_matches(',').trim().to_string())
        });
        let texts = [&parameters[..negative], &parameters[negative + 18..steps]].map(|text| text.trim().to_string());
        let [prompt, negative] = texts;
        (prompt, negative, pairs.collect())
    }

    #[test]
    fn the_request_of_a_written_prompt_is_a_pair() {
        let upsampled = Some(Upsampled { request: "a cat, red".to_string(), ..Upsampled::default() });
        let made = ImageRecipe { recipe: Recipe { upsampled, ..made().recipe }, ..made() };
        assert!(pairs(&made.parameters()).contains(&("Upsampled from".to_string(), "a cat, red".to_string())));
        assert_eq!(ImageRecipe::from_json(&made.to_json()).unwrap(), made);
    }

    #[test]
    fn comfyui_makes_a_graph_of_it() {
        let without = ImageRecipe { recipe: Recipe { negative: None, ..made().recipe }, ..made() };
        for (made, expected) in [(made(), "a dog"), (without, "")] {
            let (prompt, negative, pairs) = comfyui(&made.parameters());
            assert_eq!((&*prompt, &*negative), ("a cat,\na hat", expected));
            let value = |key: &str| pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
            assert_eq!(
                ["steps", "seed", "size", "cfg scale", "sampler"].map(value).map(Option::unwrap),
                ["1", "9", "64x48", "1", "Euler"]
            );
        }
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
