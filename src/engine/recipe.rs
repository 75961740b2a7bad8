//! How an image is made, as data.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Field, Result};
use crate::input::Sides;
use crate::pipeline::{Embeddings, Latents, Request};
use crate::sampler::{Rng, ScheduleKind};

/// Everything that makes an image again with one model: what is drawn, how, and from which files. Where a field is left
/// out, the model chooses. As JSON, a field that is not known is an error.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recipe {
    /// What to draw; see [`Request::prompt`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prompt: String,
    /// What to lean away from.
    #[serde(skip_serializing_if = "Option::is_none", alias = "negative_prompt")]
    pub negative: Option<String>,
    /// Pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<usize>,
    /// Denoising steps.
    #[serde(skip_serializing_if = "Option::is_none", alias = "num_inference_steps")]
    pub steps: Option<usize>,
    /// Seed of the noise.
    pub seed: u64,
    /// How strongly the image follows the prompt.
    #[serde(skip_serializing_if = "Option::is_none", alias = "guidance_scale")]
    pub guidance: Option<f32>,
    /// How the noise levels fall.
    #[serde(skip_serializing_if = "is_default")]
    pub schedule: ScheduleKind,
    /// How the seed becomes noise.
    #[serde(skip_serializing_if = "is_default")]
    pub rng: Rng,
    /// Tokens that prompts are cut or padded to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_sequence_length: Option<usize>,
    /// Images that the model sees; where something says how one is changed, the first is that one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<PathBuf>,
    /// An image that is white where the first input is drawn anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<PathBuf>,
    /// How far from the first input to go, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strength: Option<f64>,
    /// By how many pixels the first input grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extend: Option<Sides>,
    /// How many pixels around what the mask covers the model sees; all of the image where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_padding: Option<usize>,
    /// Pixels over which what is drawn fades into the image around it.
    #[serde(skip_serializing_if = "is_default")]
    pub feather: usize,
    /// Whether the result is what the model makes, and not the first input with what is new.
    #[serde(skip_serializing_if = "is_default")]
    pub no_composite: bool,
    /// Whether the image to change is none of the references.
    #[serde(skip_serializing_if = "is_default")]
    pub no_self_reference: bool,
    /// Whether steps behind the first compute only what the mask covers, and what is next to it.
    #[serde(skip_serializing_if = "is_default")]
    pub sparse: bool,
    /// A file of noise in place of the seed's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<PathBuf>,
    /// A file of latents to begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latents: Option<PathBuf>,
    /// A file of text features in place of a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<PathBuf>,
    /// Files that change the model, each with its strength.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<AdapterFile>,
}

/// An adapter of a [`Recipe`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterFile {
    /// A file, or a folder of PEFT.
    pub file: PathBuf,
    /// How strongly it changes the model; 1 is the adapter as it was made.
    pub strength: f32,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Recipe {
    /// A prompt and a seed; the model chooses everything else.
    pub fn new(prompt: impl Into<String>, seed: u64) -> Self {
        Self { prompt: prompt.into(), seed, ..Self::default() }
    }

    /// Whether the first input is an image to change.
    pub fn changes(&self) -> bool {
        self.mask.is_some() || self.strength.is_some() || self.extend.is_some()
    }

    /// The files of images and tensors that are read, as a whole before any work; those of adapters are not.
    pub fn files(&self) -> impl Iterator<Item = (Field, &Path)> {
        let inputs = self.inputs.iter().map(|file| (Field::Inputs, file));
        let others = [
            (Field::Mask, &self.mask),
            (Field::Noise, &self.noise),
            (Field::Latents, &self.latents),
            (Field::Embeddings, &self.embeddings),
        ];
        let others = others.into_iter().filter_map(|(field, file)| Some((field, file.as_ref()?)));
        inputs.chain(others).map(|(field, file)| (field, file.as_path()))
    }

    /// Errors when something has no meaning without something else, or beside it.
    pub fn check(&self) -> Result<()> {
        self.check_needs().and_then(|()| self.check_conflicts())
    }

    fn check_needs(&self) -> Result<()> {
        let input = (!self.inputs.is_empty(), &[Field::Inputs][..]);
        let of_an_input = |others| if self.inputs.is_empty() { input } else { others };
        let mask = of_an_input((self.mask.is_some(), &[Field::Mask][..]));
        let part = of_an_input((self.mask.is_some() || self.extend.is_some(), &[Field::Mask, Field::Extend]));
        let change = of_an_input((self.changes(), &[Field::Strength, Field::Mask]));
        let needs = [
            (self.mask.is_some(), Field::Mask, input),
            (self.strength.is_some(), Field::Strength, input),
            (self.extend.is_some(), Field::Extend, input),
            (self.mask_padding.is_some(), Field::MaskPadding, mask),
            (self.feather > 0, Field::Feather, part),
            (self.no_composite, Field::NoComposite, part),
            (self.no_self_reference, Field::NoSelfReference, change),
            (self.sparse, Field::Sparse, part),
        ];
        let Some((_, field, (_, others))) = needs.iter().find(|(given, _, (met, _))| *given && !met) else {
            return Ok(());
        };
        let others: Vec<_> = others.iter().map(|other| format!("`{other:#}`")).collect();
        let others = others.join(" or ");
        Err(Error::usage(format!("`{field:#}` has no meaning without {others}"))
            .of(*field)
            .hint(format!("give {others} too, or leave out `{field:#}`")))
    }

    fn check_conflicts(&self) -> Result<()> {
        let has_features = self.embeddings.is_some();
        let conflicts = [
            (self.mask_padding.is_some() && self.extend.is_some(), Field::MaskPadding, Field::Extend),
            (self.feather > 0 && self.no_composite, Field::Feather, Field::NoComposite),
            (self.sparse && self.no_self_reference, Field::Sparse, Field::NoSelfReference),
            (self.noise.is_some() && self.latents.is_some(), Field::Noise, Field::Latents),
            (has_features && !self.prompt.is_empty(), Field::Embeddings, Field::Prompt),
            (has_features && self.negative.is_some(), Field::Embeddings, Field::NegativePrompt),
            (has_features && self.max_sequence_length.is_some(), Field::Embeddings, Field::MaxSequenceLength),
        ];
        match conflicts.iter().find(|(both, ..)| *both) {
            Some((_, field, other)) => Err(Error::usage(format!("`{field:#}` does not go with `{other:#}`"))
                .of(*field)
                .hint("leave one of them out")),
            None => Ok(()),
        }
    }

    /// The request, as far as it needs neither a model nor the files of images. Reads the files of tensors; the prompt
    /// of text features is the one that their file names.
    ///
    /// Errors as [`Recipe::check`] and [`Request::check_prompt`], and when a file cannot be read, or holds something
    /// else.
    pub fn request(&self) -> Result<Request> {
        self.check()?;
        let latents = |path: &Option<PathBuf>, field: Field| {
            path.as_deref().map(|path| Latents::read(path).map_err(|e: Error| e.of(field))).transpose()
        };
        let mut request = Request {
            width: self.width,
            height: self.height,
            steps: self.steps,
            guidance: self.guidance,
            rng: self.rng,
            schedule: self.schedule.clone(),
            negative: self.negative.clone(),
            max_sequence_length: self.max_sequence_length,
            noise: latents(&self.noise, Field::Noise)?,
            latents: latents(&self.latents, Field::Latents)?,
            sparse: self.sparse,
            ..Request::new(&self.prompt, self.seed)
        };
        if let Some(path) = &self.embeddings {
            let (embeddings, prompt) = Embeddings::read(path).map_err(|e| e.of(Field::Embeddings))?;
            (request.embeddings, request.prompt) = (Some(embeddings), prompt.unwrap_or_default());
        }
        request.check_prompt()?;
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_the_same_after_json_and_says_no_more_than_it_must() {
        let short = Recipe::new("a cat", 7);
        assert_eq!(serde_json::to_string(&short).unwrap(), r#"{"prompt":"a cat","seed":7}"#);
        let long = Recipe {
            negative: Some("a dog".to_string()),
            width: Some(64),
            height: Some(48),
            steps: Some(3),
            guidance: Some(2.5),
            schedule: "power:1.5".parse().unwrap(),
            rng: Rng::Portable,
            max_sequence_length: Some(32),
            inputs: vec!["a.png".into(), "b.png".into()],
            mask: Some("mask.png".into()),
            strength: Some(0.1 + 0.2),
            extend: Some(Sides { left: 16, ..Sides::default() }),
            mask_padding: Some(8),
            feather: 4,
            no_composite: true,
            no_self_reference: true,
            sparse: true,
            noise: Some("n".into()),
            latents: Some("l".into()),
            embeddings: Some("e".into()),
            adapters: vec![AdapterFile { file: "style.safetensors".into(), strength: 0.7 }],
            ..Recipe::new("", u64::MAX)
        };
        for recipe in [short, long, Recipe::default()] {
            let json = serde_json::to_string(&recipe).unwrap();
            assert_eq!(serde_json::from_str::<Recipe>(&json).unwrap(), recipe, "{json}");
        }
    }

    #[test]
    fn what_has_no_meaning_without_another_or_beside_it_is_refused() {
        let file = || Some("file".into());
        let image = || Recipe { inputs: vec!["a.png".into()], ..Recipe::new("x", 1) };
        for (recipe, field, other) in [
            (Recipe { mask: file(), ..Recipe::new("x", 1) }, "mask", "`inputs`"),
            (Recipe { strength: Some(0.5), ..Recipe::new("x", 1) }, "strength", "`inputs`"),
            (Recipe { extend: Some(Sides::default()), ..Recipe::new("x", 1) }, "extend", "`inputs`"),
            (Recipe { feather: 4, ..Recipe::new("x", 1) }, "feather", "`inputs`"),
            (Recipe { feather: 4, strength: Some(0.5), ..image() }, "feather", "`mask` or `extend`"),
            (Recipe { no_composite: true, ..image() }, "no_composite", "`mask` or `extend`"),
            (Recipe { mask_padding: Some(8), ..image() }, "mask_padding", "`mask`"),
            (Recipe { no_self_reference: true, ..image() }, "no_self_reference", "`strength` or `mask`"),
            (Recipe { sparse: true, strength: Some(0.5), ..image() }, "sparse", "`mask` or `extend`"),
            (Recipe { feather: 4, no_composite: true, mask: file(), ..image() }, "feather", "`no_composite`"),
            (
                Recipe { mask_padding: Some(8), extend: Some(Sides::default()), mask: file(), ..image() },
                "mask_padding",
                "`extend`",
            ),
            (
                Recipe { sparse: true, no_self_reference: true, mask: file(), ..image() },
                "sparse",
                "`no_self_reference`",
            ),
            (Recipe { noise: file(), latents: file(), ..Recipe::new("x", 1) }, "noise", "`latents`"),
            (Recipe { embeddings: file(), ..Recipe::new("x", 1) }, "embeddings", "`prompt`"),
            (
                Recipe { embeddings: file(), max_sequence_length: Some(8), ..Recipe::new("", 1) },
                "embeddings",
                "length`",
            ),
        ] {
            let error = recipe.check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{field}`")) && error.contains(other), "{error}");
        }
        let whole = Recipe { mask: file(), mask_padding: Some(8), feather: 4, no_self_reference: true, ..image() };
        assert!(whole.check().is_ok() && Recipe::new("x", 1).check().is_ok());
    }

    #[test]
    fn what_a_recipe_does_not_know_is_an_error() {
        for json in [
            r#"{"promt": "a cat"}"#,
            r#"{"prompt": "a cat", "schedule": "power:x"}"#,
            r#"{"rng": "cuda"}"#,
            r#"{"adapters": [{"file": "a", "strength": 1, "layers": 3}]}"#,
            r#"{"seed": -1}"#,
        ] {
            assert!(serde_json::from_str::<Recipe>(json).is_err(), "{json}");
        }
    }
}
